"""Plan-weighted sums of the slopes of a distance, without a tensor of pairs times dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

# Elements of the largest temporary.
_BLOCK = 2**24


def signs_over_edges(x: Tensor, y: Tensor, weights: Tensor, edges: tuple[Tensor, ...]) -> Tensor:
    """``sum_j plan[i, j] * sign(x_i - y_j)`` over the listed entries of the plan alone."""
    *batch, row, column = edges
    if batch:  # clouds of a batch are laid end to end
        row, column = batch[0] * x.shape[-2] + row, batch[0] * y.shape[-2] + column
    xs, ys = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    out = torch.zeros_like(xs)
    chunk = max(1, _BLOCK // max(1, x.shape[-1]))
    for at in range(0, len(row), chunk):
        i, j, w = row[at : at + chunk], column[at : at + chunk], weights[at : at + chunk]
        out.index_add_(0, i, (xs[i] - ys[j]).sign_().mul_(w.to(xs.dtype).unsqueeze(-1)))
    return out.reshape(x.shape)


def slopes_over_pairs(x: Tensor, y: Tensor, plan: Tensor, *, distances: Tensor, p: float) -> Tensor:
    """``sum_j plan[i, j] * grad_x |x_i - y_j|_p`` over all pairs, 0 for equal points: cdist's backward pass.

    ``distances``, ``(..., n, m)``, are those of the pairs; p = 1 does not read them.
    """
    # On a GPU that pass holds rows x m x d elements at a time, so the rows go through in blocks.
    rows = x.shape[-2]
    if x.device.type != "cpu":
        rows = max(1, _BLOCK // max(1, y.numel()))
    parts = [
        torch.ops.aten._cdist_backward(
            plan[..., at : at + rows, :].contiguous(),
            x[..., at : at + rows, :].contiguous(),
            y.contiguous(),
            p,
            distances[..., at : at + rows, :].contiguous(),
        )
        for at in range(0, x.shape[-2], rows)
    ]
    return torch.cat(parts, dim=-2)
