"""Costs between tiles of generated images and of records, free of rounding.

The points are first rounded to a public grid, so coarse that every product and every sum in a cost is a
whole multiple of the grid below 2^53: float64 then holds it exactly, and the cost of a pair is the same
bits whatever else is in the batch and in whatever order a matrix product adds. That is what the bound in
docs/proofs/record-rounding.md rests on.

Shapes: ``x`` is ``(tiles, rows, d)``, ``y`` is ``(tiles, records, d)``, all in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import tidy
from dpsinkhorn.ot.costs import Cost, PixelCost

# Elements of the largest tensor of differences (tiles, rows, records, d), on a CPU and on a GPU.
_BLOCK, _BLOCK_CUDA = 2**18, 2**26
_LARGEST_DIMENSION = 2**21


def grid_bits(dimension: int) -> int:
    """Binary digits after the point that pixels keep: 4 d 4^bits <= 2^53.

    >>> grid_bits(784), grid_bits(64)
    (20, 22)
    """
    if not 1 <= dimension <= _LARGEST_DIMENSION:
        raise ValueError(f"points: expected a dimension from 1 to {_LARGEST_DIMENSION}, got {dimension}")
    return (51 - (dimension - 1).bit_length()) // 2


def on_grid(points: Tensor) -> Tensor:
    """Points in [-1, 1], in float64, rounded to multiples of ``2 ** -grid_bits(d)``.

    >>> on_grid(torch.tensor([[1.0, float("nan"), 2.0**-30]]))
    tensor([[1., 0., 0.]], dtype=torch.float64)
    """
    scale = 2.0 ** grid_bits(points.shape[-1])
    return tidy(points).mul_(scale).round_().mul_(1 / scale)


def slope_bound(cost: PixelCost) -> float:
    """A bound on every partial derivative in x, for points in [-1, 1]."""
    return 4.0 * cost.squared + cost.absolute


def measure(cost: PixelCost, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``c(x_i, y_j)`` and ``|grad_x c(x_i, y_j)|^2``, both ``(tiles, rows, records)``.

    Sums of one kind are exact; what combines them is entry by entry, one operation at a time.
    """
    if not cost.absolute:
        costs = _squares(x, y)
        return costs, 4 * costs
    absolute, count = _absolutes(x, y)
    if not cost.squared:
        return absolute * cost.absolute, count * cost.absolute**2  # sign(0) = 0: count x != y only
    squared = _squares(x, y)
    costs = squared + absolute * cost.absolute
    return costs, 4 * squared + absolute * (4 * cost.absolute) + count * cost.absolute**2


def gradient(cost: PixelCost, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """``sum_j weights[i, j] grad_x c(x_i, y_j)``, of the shape of ``x``."""
    total: Tensor | None = None
    if cost.squared:
        total = torch.baddbmm(weights.sum(-1, keepdim=True) * x, weights, y, beta=2, alpha=-2)
    if cost.absolute:
        signs = _signs(x, y, weights) * cost.absolute
        total = signs if total is None else total + signs
    assert total is not None
    return total


def pixel_cost(cost: Cost) -> PixelCost:
    """The cost in this form; no other cost is free of rounding."""
    found = PixelCost.of(cost)
    if found is None:
        raise ValueError(f"cost: expected SquaredEuclidean, Cityblock or L1L2, got {cost!r}")
    if not 0 <= found.absolute < 2**20:
        raise ValueError(f"l1_weight: expected a number from 0 to 2^20, got {found.absolute}")
    return found


def _squares(x: Tensor, y: Tensor) -> Tensor:
    lengths = (x * x).sum(-1).unsqueeze(-1) + (y * y).sum(-1).unsqueeze(-2)
    return torch.baddbmm(lengths, x, y.mT, alpha=-2)


def _absolutes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``|x_i - y_j|_1`` and the number of coordinates in which they differ."""
    if x.device.type != "cpu":
        return torch.cdist(x, y, p=1.0), torch.cdist(x, y, p=0.0)
    shape = (*x.shape[:2], y.shape[1])
    absolute, count = x.new_empty(shape), x.new_empty(shape)
    for at in _row_blocks(x, y):
        tile = (x[:, at, None, :] - y[:, None, :, :]).abs_()
        torch.sum(tile, dim=-1, out=absolute[:, at])
        torch.sum(tile.sign_(), dim=-1, out=count[:, at])
    return absolute, count


def _signs(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """``sum_j weights[i, j] sign(x_i - y_j)``."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for at in _row_blocks(x, y):
        tile = (x[:, at, None, :] - y[:, None, :, :]).sign_()  # (tiles, rows, records, d)
        out[:, at] = (weights[:, at, None, :] @ tile).squeeze(-2)
    return out


def _row_blocks(x: Tensor, y: Tensor) -> list[slice]:
    block = _BLOCK if x.device.type == "cpu" else _BLOCK_CUDA
    rows = max(1, block // max(1, x.shape[0] * y.shape[1] * x.shape[2]))
    return [slice(at, at + rows) for at in range(0, x.shape[1], rows)]
