"""Newton's linear system ``H d = r``: by Cholesky where it is small, else by conjugate gradients.

At small regularizations the kernel is all but sparse, a few entries a row. Conjugate gradients then run
on the entries that matter, which makes a product with ``H`` some hundred times cheaper, and spares the
passes over the costs where these are not stored.
"""

from __future__ import annotations

from collections.abc import Callable

import scipy.sparse
import torch
from torch import Tensor

from dpsinkhorn.ot.semidual import Curvature

# Up to this many columns the system is solved by Cholesky outright; up to the second number, when
# conjugate gradients do not get there.
_DIRECT_COLUMNS, _FALLBACK_COLUMNS = 350, 2048
_CG_ITERATIONS, _CG_ITERATIONS_STREAMED, _CG_ITERATIONS_SPARSE = 120, 10, 1000
# Iterations by products that cost less than to find the entries that matter, before those are looked for.
_CG_ITERATIONS_CHEAP = 40
# The kernel is held sparse where fewer than one entry in so many is above one of these floors (its rows
# have maximum 1), and no more than so many in all.
_SPARSE_FLOORS, _SPARSE_RATIO, _SPARSE_LIMIT = (1e-8, 1e-4), 20, 2**25

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
    shift = curvature.column_marginal * column(ridge, residual)
    dual = curvature.dual
    if dual.cheap_products:
        solution, reached = _descend(
            curvature.column_marginal, curvature.times, curvature.diagonal(), _CG_ITERATIONS_CHEAP,
            residual, shift, accuracy,
        )  # fmt: skip
        if reached or not dual.stored:
            return solution, reached
    system = _sparse_product(curvature) or (
        curvature.times,
        curvature.diagonal(),
        _CG_ITERATIONS if dual.kernel is not None or dual.cheap_products else _CG_ITERATIONS_STREAMED,
    )
    return _descend(curvature.column_marginal, *system, residual, shift, accuracy)


def _descend(
    marginal: Tensor,
    product: Product,
    diagonal: Tensor,
    limit: int,
    residual: Tensor,
    shift: Tensor,
    accuracy: float,
) -> tuple[Tensor, bool]:
    """At most so many iterations of conjugate gradients, and whether they reached the accuracy."""
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
    entries = _sparse_entries(curvature)
    if entries is None:
        return None
    rows, columns, values = entries
    values = values.double() * curvature.row_weights().sqrt()[rows]
    n, m = curvature.dual.rows, curvature.dual.columns
    forth, back = _matrix(rows, columns, values, (n, m)), _matrix(columns, rows, values, (m, n))
    marginal = curvature.column_marginal

    def product(v: Tensor) -> Tensor:
        return marginal * v - back(forth(v))

    squares = torch.zeros_like(marginal).index_add_(0, columns, values.square())
    return product, marginal - squares, _CG_ITERATIONS_SPARSE


def _sparse_entries(curvature: Curvature) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows, columns and values of the kernel's entries that matter; None where they are too many."""
    if curvature.column_marginal.ndim > 1 or not curvature.whole:
        return None
    floor: float | None = None
    parts, count = [], 0
    for rows, kernel in curvature.kernel_blocks():
        if floor is None:
            few = kernel.numel() // _SPARSE_RATIO
            floors = (f for f in _SPARSE_FLOORS if int((kernel > f).count_nonzero()) <= few)
            floor = next(floors, None)
            if floor is None:
                return None
        i, j = (kernel > floor).nonzero(as_tuple=True)
        parts.append((i + rows.start, j, kernel[i, j]))
        count += len(i)
        if count > _SPARSE_LIMIT:
            return None
    i, j, values = (torch.cat(part) for part in zip(*parts, strict=True))
    return i, j, values


def _matrix(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Product:
    """Multiplication by a sparse matrix: SciPy's on a CPU, CUDA's on a GPU."""
    if rows.device.type == "cpu":
        indices = (rows.numpy(), columns.numpy())
        matrix = scipy.sparse.csr_array((values.numpy(), indices), shape=size)
        return lambda v: torch.from_numpy(matrix @ v.numpy())
    order = rows.argsort(stable=True)
    starts = torch.bincount(rows, minlength=size[0]).cumsum(0)
    starts = torch.cat([starts.new_zeros(1), starts])
    compressed = torch.sparse_csr_tensor(starts, columns[order], values[order], size, check_invariants=False)
    return lambda v: compressed @ v


def column(per_problem: list[float], like: Tensor) -> Tensor | float:
    """Numbers per problem, to be multiplied with a ``(B, m)`` tensor."""
    if len(per_problem) == 1:
        return per_problem[0]
    return torch.tensor(per_problem, dtype=torch.float64, device=like.device).unsqueeze(-1)


def numbers(tensor: Tensor) -> list[float]:
    """One number per problem of the batch, of a tensor of one per problem."""
    return [tensor.item()] if tensor.ndim == 0 else tensor.tolist()
