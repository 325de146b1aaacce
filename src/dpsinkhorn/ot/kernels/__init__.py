"""Triton kernels for CUDA: the gradient of DP-Sinkhorn's loss at the size of a training step."""

from dpsinkhorn._kernels import available
from dpsinkhorn.ot.kernels.step import (
    MOST_COLUMNS,
    GroundCost,
    Schedule,
    Step,
    eq6_gradient,
    supported,
)

__all__ = ["MOST_COLUMNS", "GroundCost", "Schedule", "Step", "available", "eq6_gradient", "supported"]
