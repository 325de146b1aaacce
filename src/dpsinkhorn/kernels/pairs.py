"""All pairs of two clouds on a GPU: their costs, and sums of a semi-dual's powers, which are never stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.kernels.launch import ceil_div, jit, on, tl

MOST_DIMENSIONS = 16  # of points whose costs are formed anew wherever they are needed
_COST_TILE = 32, 512
_ROW_TILE, _COLUMN_TILE, _WARPS = (16, 256), (16, 256), 8
_PROGRAMS, _CHUNK = 4096, 2**13  # for sums over rows: about so many programs, of at most so many rows


@jit
def _costs(x, y, i, j, n, m, D: tl.constexpr, SQUARED: tl.constexpr, ABSOLUTE: tl.constexpr):
    """Costs of a tile."""
    total = tl.zeros([i.shape[0], j.shape[0]], dtype=x.dtype.element_ty)
    for k in range(D):
        first = tl.load(x + k * n + i, mask=i < n, other=0.0)
        second = tl.load(y + k * m + j, mask=j < m, other=0.0)
        difference = first[:, None] - second[None, :]
        if SQUARED:
            total += difference * difference
        if ABSOLUTE != 0:
            total += ABSOLUTE * tl.abs(difference)
    return total


@jit
def costs_kernel(
    x, y, out, n, m, D: tl.constexpr, SQUARED: tl.constexpr,
    ABSOLUTE: tl.constexpr,  # the weight of absolute differences: as an argument it would be a float32
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program per tile of the matrix."""
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    costs = _costs(x, y, i, j, n, m, D, SQUARED, ABSOLUTE)
    at = out + i.to(tl.int64)[:, None] * m + j[None, :]
    tl.store(at, costs, mask=(i < n)[:, None] & (j < m)[None, :])


@jit
def _exponents(
    costs, x, y, shifted, scale, i, j, n, m, D: tl.constexpr, SQUARED: tl.constexpr, ABSOLUTE: tl.constexpr,
    EXPONENTS: tl.constexpr,
):  # fmt: skip
    """``shifted_j - scale C_ij`` of a tile, for stored costs (D = 0) or points; without a column, -inf.

    In float32 shifted is the sum of two numbers, so that rounding is in proportion to the exponent.
    """
    if D == 0:
        at = costs + i.to(tl.int64)[:, None] * m + j[None, :]
        tile = tl.load(at, mask=(i < n)[:, None] & (j < m)[None, :], other=0.0)
    else:
        tile = _costs(x, y, i, j, n, m, D, SQUARED, ABSOLUTE)
    base = tl.load(shifted + j, mask=j < m, other=float("-inf"))
    e = base[None, :] - scale * tile.to(EXPONENTS)
    if EXPONENTS == tl.float32:  # noqa: SIM300
        e += tl.load(shifted + m + j, mask=j < m, other=0.0)[None, :]
    return e


@jit
def rows_kernel(
    costs, x, y, shifted, scale, top, v, out, n, m, FRESH: tl.constexpr, D: tl.constexpr,
    SQUARED: tl.constexpr, ABSOLUTE: tl.constexpr,
    EXPONENTS: tl.constexpr,  # their type
    WORK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program per few rows: sums of 2^(e - top) v. FRESH: v is 1, and top, the greatest e, is found."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    factor = tl.load(scale).to(EXPONENTS)
    if FRESH:
        most = tl.full([ROWS], float("-inf"), EXPONENTS)
    else:
        most = tl.load(top + i, mask=i < n, other=float("inf")).to(EXPONENTS)  # no row, no power
    total = tl.zeros([ROWS], dtype=tl.float64)
    for start in range(0, m, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        e = _exponents(costs, x, y, shifted, factor, i, j, n, m, D, SQUARED, ABSOLUTE, EXPONENTS)
        if FRESH:
            higher = tl.maximum(most, tl.max(e, axis=1))
            some = tl.where(higher > float("-inf"), higher, 0.0)
            total *= tl.exp2((most - some).to(WORK)).to(tl.float64)
            most = higher
            terms = tl.exp2((e - some[:, None]).to(WORK))
        else:
            times = tl.load(v + j, mask=j < m, other=0.0)
            terms = tl.exp2((e - most[:, None]).to(WORK)) * times[None, :]
        total += tl.sum(terms, axis=1).to(tl.float64)
    if FRESH:
        tl.store(top + i, most, mask=i < n)
    tl.store(out + i, total, mask=i < n)


@jit
def columns_kernel(
    costs, x, y, shifted, scale, top, u, out, n, m,
    chunk,  # rows of a program
    SQUARE: tl.constexpr, D: tl.constexpr, SQUARED: tl.constexpr, ABSOLUTE: tl.constexpr,
    EXPONENTS: tl.constexpr,  # their type
    WORK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program per few columns and chunk of rows: sums of u 2^(e - top), or of its square, over them."""
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    factor = tl.load(scale).to(EXPONENTS)
    total = tl.zeros([ROWS, COLUMNS], dtype=WORK)
    first = tl.program_id(1) * chunk
    for start in range(first, tl.minimum(first + chunk, n), ROWS):
        i = start + tl.arange(0, ROWS)
        e = _exponents(costs, x, y, shifted, factor, i, j, n, m, D, SQUARED, ABSOLUTE, EXPONENTS)
        most = tl.load(top + i, mask=i < n, other=float("inf")).to(EXPONENTS)  # no row, no power
        weights = tl.load(u + i, mask=i < n, other=0.0)
        powers = tl.exp2((e - most[:, None]).to(WORK))
        if SQUARE:
            powers *= powers
        total += powers * weights[:, None]
    at = out + tl.program_id(1).to(tl.int64) * m + j
    tl.store(at, tl.sum(total, axis=0), mask=j < m)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Costs of n x m pairs: a matrix, or the points to form them from, dimension by dimension.

    The cost of points is ``squared * |x - y|^2 + absolute * |x - y|_1``.
    """

    matrix: Tensor | None  # (n, m)
    x: Tensor  # (d, n)
    y: Tensor  # (d, m)
    squared: bool = False
    absolute: float = 0.0

    @staticmethod
    def stored(matrix: Tensor) -> Pairs:
        """Pairs of a matrix of costs, which must be contiguous."""
        if matrix.ndim != 2 or not matrix.is_contiguous():
            raise ValueError(f"matrix: expected a contiguous (n, m), got {tuple(matrix.shape)}")
        nothing = matrix.new_empty(0)
        return Pairs(matrix, nothing, nothing)

    @staticmethod
    def of_points(x: Tensor, y: Tensor, *, squared: bool, absolute: float) -> Pairs:
        """Pairs of points ``(n, d)`` and ``(m, d)``."""
        return Pairs(None, x.mT.contiguous(), y.mT.contiguous(), squared, absolute)

    @property
    def shape(self) -> tuple[int, int]:
        """n and m."""
        return (
            (self.x.shape[1], self.y.shape[1])
            if self.matrix is None
            else (len(self.matrix), self.matrix.shape[1])
        )

    @property
    def _constants(self) -> dict[str, float]:
        d = len(self.x) if self.matrix is None else 0
        return {"D": d, "SQUARED": self.squared, "ABSOLUTE": float(self.absolute)}


def costs(x: Tensor, y: Tensor, *, squared: bool, absolute: float) -> Tensor:
    """Costs of points ``(n, d)`` and ``(m, d)``, sums of differences, where nothing cancels."""
    (n, d), m = x.shape, len(y)
    out = x.new_empty(n, m)
    rows, columns = _COST_TILE
    with on(x.device):
        costs_kernel[(ceil_div(m, columns), ceil_div(n, rows))](
            x.mT.contiguous(), y.mT.contiguous(), out, n, m,
            D=d, SQUARED=squared, ABSOLUTE=float(absolute), ROWS=rows, COLUMNS=columns, num_warps=_WARPS,
        )  # fmt: skip
    return out


@dataclass(frozen=True, eq=False)
class Powers:
    """The matrix ``2^(shifted_j - scale C_ij - top_i)``, in [0, 1], whose entries are formed in every sum."""

    pairs: Pairs
    shifted: Tensor  # (1, m), float64, or (2, m), float32, to be added up
    scale: Tensor  # (1,), float64: as an argument a number would be a float32
    top: Tensor  # (n,), float64
    work: torch.dtype

    def rows(self, v: Tensor | None = None) -> Tensor:
        """Its product with ``v`` ``(m,)``, float64; without v, sums of its rows, once ``top`` is found."""
        n, m = self.pairs.shape
        out = torch.empty_like(self.top)
        rows, columns = _ROW_TILE
        with on(out.device):
            rows_kernel[(ceil_div(n, rows),)](
                *self._inputs, self.top if v is None else v.to(self.work), out, n, m, FRESH=v is None,
                **self._types, **self.pairs._constants, ROWS=rows, COLUMNS=columns, num_warps=_WARPS,
            )  # fmt: skip
        return out

    def columns(self, u: Tensor, *, square: bool = False) -> Tensor:
        """The product of ``u`` ``(n,)`` with it, or with the squares of its entries: ``(m,)``, float64."""
        n, m = self.pairs.shape
        rows, columns = _COLUMN_TILE
        tiles = ceil_div(m, columns)
        parts = max(min(_PROGRAMS // tiles, ceil_div(n, 4 * rows)), ceil_div(n, _CHUNK))
        chunk = rows * ceil_div(n, rows * parts)
        parts = ceil_div(n, chunk)
        out = torch.empty(parts, m, dtype=self.work, device=self.top.device)
        with on(out.device):
            columns_kernel[(tiles, parts)](
                *self._inputs, u.to(self.work), out, n, m, chunk, SQUARE=square,
                **self._types, **self.pairs._constants, ROWS=rows, COLUMNS=columns, num_warps=_WARPS,
            )  # fmt: skip
        return out.sum(0, dtype=torch.float64)

    @property
    def _types(self) -> dict[str, object]:
        return {"EXPONENTS": _TYPES[self.shifted.dtype], "WORK": _TYPES[self.work]}

    @property
    def _inputs(self) -> tuple[object, ...]:
        pairs = self.pairs
        matrix = pairs.x if pairs.matrix is None else pairs.matrix
        return matrix, pairs.x, pairs.y, self.shifted, self.scale, self.top


def powers(
    pairs: Pairs, shifted: Tensor, scale: float, work: torch.dtype, *, narrow: bool = False
) -> tuple[Powers, Tensor]:
    """The matrix whose rows have maximum 1, and the sums of its rows, ``(n,)``, float64.

    ``shifted`` is ``(m,)``, float64. Narrow, exponents are formed in float32, to a relative 2^-23: faster.
    """
    top = shifted.new_empty(pairs.shape[0])
    found = Powers(pairs, split(shifted, narrow), shifted.new_full((1,), scale), top, work)
    return found, found.rows()


def split(shifted: Tensor, narrow: bool) -> Tensor:
    """Numbers in float64, ``(m,)``, as one row, or as two of float32 whose sum they are."""
    if not narrow:
        return shifted.contiguous().unsqueeze(0)
    first = shifted.float()
    return torch.stack([first, (shifted - first).nan_to_num(0.0).float()])  # -inf has no rest


_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}
