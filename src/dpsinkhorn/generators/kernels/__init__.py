"""Triton kernels for CUDA, for training: BatchNorm and activation in one; the last layer, crop and tanh."""

from dpsinkhorn._kernels import available
from dpsinkhorn.generators.kernels.fold import LastTiling, fused_last, last_supported
from dpsinkhorn.generators.kernels.norm import Tiling, fused_norm, supported

__all__ = [
    "LastTiling",
    "Tiling",
    "available",
    "fused_last",
    "fused_norm",
    "last_supported",
    "supported",
]
