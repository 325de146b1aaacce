"""Newton's linear system ``H d = r``: by Cholesky where it is small, else by conjugate gradients.

At small regularizations the kernel is all but sparse, a few entries a row. Conjugate gradients on a CPU
then run on the entries that matter, which makes a product with ``H`` some hundred times cheaper.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from dpsinkhorn.ot.semidual import Curvature

# Up to this many columns the system is solved by Cholesky outright; up to the second number, when
# conjugate gradients do not get there.
_DIRECT_COLUMNS, _FALLBACK_COLUMNS = 512, 2048
_CG_ITERATIONS, _CG_ITERATIONS_SPARSE = 120, 1000
# Entries below the first are left out of a sparse kernel, whose rows have maximum 1; it is used where
# fewer than one entry in so many remains.
_SPARSE_FLOOR, _SPARSE_RATIO = 1e-8, 32

Product = Callable[[Tensor], Tensor]


def solve_curvature(
    curvature: Curvature, residual: Tensor, ridge: list[float], accuracy: float
) -> tuple[Tensor, list[bool]]:
    """Solve ``(H + ridge * diag(P^T 1)) d = residual``, ``(B, m)``, for each problem of the batch.

    ``accuracy`` is relative and holds for conjugate gradients: loose far from the optimum, where a
    precise direction would be wasted. Returns the solutions and which of them can be used.
    """
    columns = residual.shape[-1]
    if columns <= _DIRECT_COLUMNS:
        return _by_cholesky(curvature, residual, ridge)
    solution, reached = _by_conjugate_gradients(curvature, residual, ridge, min(0.1, max(1e-6, accuracy)))
    if not reached and columns <= _FALLBACK_COLUMNS:
        return _by_cholesky(curvature, residual, ridge)
    return solution, [True] * len(ridge)


def _by_cholesky(curvature: Curvature, residual: Tensor, ridge: list[float]) -> tuple[Tensor, list[bool]]:
    matrix = curvature.matrix(column(ridge, residual))
    if curvature.dual.left_out is not None:  # decoupled: their row and column of the matrix are zero
        matrix.diagonal(dim1=-2, dim2=-1).add_(curvature.dual.left_out.to(matrix.dtype))
    factor, info = torch.linalg.cholesky_ex(matrix)
    solution = torch.cholesky_solve(residual.to(matrix.dtype).unsqueeze(-1), factor).squeeze(-1)
    return solution.double(), [code == 0 for code in numbers(info)]


def _by_conjugate_gradients(
    curvature: Curvature, residual: Tensor, ridge: list[float], accuracy: float
) -> tuple[Tensor, bool]:
    """A truncated solution, preconditioned by the diagonal, and whether it has the accuracy."""
    marginal = curvature.column_marginal
    shift = marginal * column(ridge, residual)
    product, diagonal, limit = _sparse_product(curvature) or (
        curvature.times,
        curvature.diagonal(),
        _CG_ITERATIONS,
    )
    inverse = (diagonal.clamp_(min=0) + marginal * 1e-3 + shift).reciprocal_()
    inverse.masked_fill_(marginal <= 0, 0.0)
    solution = torch.zeros_like(residual)
    rest, preconditioned = residual.clone(), inverse * residual
    search, energy = preconditioned, (residual * preconditioned).sum(-1, keepdim=True)
    goal = energy * accuracy**2
    for _ in range(limit):
        image = product(search).add_(shift * search)
        bend = (search * image).sum(-1, keepdim=True)
        active = (bend > 0) & (energy > goal)
        if not bool(active.any()):
            return solution, True
        length = torch.where(active, energy / bend, 0.0)
        solution = solution + length * search
        rest = rest - length * image
        preconditioned = inverse * rest
        fresh = (rest * preconditioned).sum(-1, keepdim=True)
        search = preconditioned + torch.where(active, fresh / energy, 0.0) * search
        energy = fresh
    return solution, False


def _sparse_product(curvature: Curvature) -> tuple[Product, Tensor, int] | None:
    """Product with ``H``, its diagonal and a limit of iterations, where the kernel is sparse enough."""
    kernel = curvature.stored_kernel()
    if kernel is None or kernel.device.type != "cpu" or kernel.ndim > 2:
        return None
    entries = kernel.numpy()
    kept = entries > _SPARSE_FLOOR
    if np.count_nonzero(kept) * _SPARSE_RATIO > kept.size:
        return None
    rows, columns = kept.nonzero()
    weights = curvature.row_weights().numpy()
    values = entries[rows, columns] * np.sqrt(weights)[rows]
    scaled = scipy.sparse.csr_array((values, (rows, columns)), shape=entries.shape)
    transposed = scaled.T.tocsr()
    marginal = curvature.column_marginal

    def product(v: Tensor) -> Tensor:
        return marginal * v - torch.from_numpy(transposed @ (scaled @ v.numpy()))

    squares = torch.from_numpy(np.bincount(columns, values**2, minlength=entries.shape[1]))
    return product, marginal - squares, _CG_ITERATIONS_SPARSE


def column(per_problem: list[float], like: Tensor) -> Tensor | float:
    """Numbers per problem, to be multiplied with a ``(B, m)`` tensor."""
    if len(per_problem) == 1:
        return per_problem[0]
    return torch.tensor(per_problem, dtype=torch.float64, device=like.device).unsqueeze(-1)


def numbers(tensor: Tensor) -> list[float]:
    """One number per problem of the batch, of a tensor of one per problem."""
    return [tensor.item()] if tensor.ndim == 0 else tensor.tolist()
