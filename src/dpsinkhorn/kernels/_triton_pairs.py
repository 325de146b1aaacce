"""GPU kernels over all pairs of two clouds: costs, and sums of a semi-dual's powers. Host code: pairs.py.

Points are stored dimension by dimension, ``(d, n)`` and ``(d, m)``.
"""

from __future__ import annotations

from dpsinkhorn.kernels.launch import AVAILABLE

__all__: list[str] = []

if AVAILABLE:
    from dpsinkhorn.kernels.launch import tl, triton

    __all__ += ["columns_kernel", "costs_kernel", "rows_kernel"]

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _costs(  # type: ignore[no-untyped-def]
        x, y, i, j, n, m, D: tl.constexpr, SQUARED: tl.constexpr, ABSOLUTE: tl.constexpr
    ):
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

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def costs_kernel(  # type: ignore[no-untyped-def]
        x,
        y,
        out,
        n,
        m,
        D: tl.constexpr,
        SQUARED: tl.constexpr,
        ABSOLUTE: tl.constexpr,  # the weight of absolute differences: as an argument it would be a float32
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):
        """A program per tile of the matrix."""
        i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        costs = _costs(x, y, i, j, n, m, D, SQUARED, ABSOLUTE)
        at = out + i.to(tl.int64)[:, None] * m + j[None, :]
        tl.store(at, costs, mask=(i < n)[:, None] & (j < m)[None, :])

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _exponents(  # type: ignore[no-untyped-def]
        costs,
        x,
        y,
        shifted,
        scale,
        i,
        j,
        n,
        m,
        D: tl.constexpr,
        SQUARED: tl.constexpr,
        ABSOLUTE: tl.constexpr,
        EXPONENTS: tl.constexpr,
    ):
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

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def rows_kernel(  # type: ignore[no-untyped-def]
        costs,
        x,
        y,
        shifted,
        scale,
        top,
        v,
        out,
        n,
        m,
        FRESH: tl.constexpr,
        D: tl.constexpr,
        SQUARED: tl.constexpr,
        ABSOLUTE: tl.constexpr,
        EXPONENTS: tl.constexpr,  # their type
        WORK: tl.constexpr,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):
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

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def columns_kernel(  # type: ignore[no-untyped-def]
        costs,
        x,
        y,
        shifted,
        scale,
        top,
        u,
        out,
        n,
        m,
        chunk,  # rows of a program
        SQUARE: tl.constexpr,
        D: tl.constexpr,
        SQUARED: tl.constexpr,
        ABSOLUTE: tl.constexpr,
        EXPONENTS: tl.constexpr,  # their type
        WORK: tl.constexpr,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):
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
