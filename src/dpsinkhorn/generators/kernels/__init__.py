"""Triton kernels for CUDA: BatchNorm and activation in one, for training."""

from dpsinkhorn.generators.kernels.norm import Tiling, available, fused_norm, supported

__all__ = ["Tiling", "available", "fused_norm", "supported"]
