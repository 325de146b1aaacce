"""The GPU kernel that solves both transport problems of a step. Host code is in ``transport.py``.

A matrix is held as ``[lanes, rows, columns / lanes / 4, 4]``: entry ``[l, i, q, r]`` is that of row i and
column ``l * columns / lanes + 4 * q + r``. The first two axes are spread over threads, the last two lie in a
thread's registers, so that the sum of a row takes an exchange or two within a warp. Sums of columns would
take exchanges between warps; so the transposed matrix is held as well, in the same way.
"""

from __future__ import annotations

from dpsinkhorn.kernels.launch import jit, tl

# Bounds, as powers of 2, on the entries and sums of a plan in the middle of a solution. They keep all
# products finite: a potential can be far off, by chance or because of the records.
_HIGHEST = tl.constexpr(30.0)
_LOWEST = tl.constexpr(2.0**-30)
_LEAST_FACTOR = tl.constexpr(2.0**-60)


@jit
def _own(x, INSTRUCTION: tl.constexpr):
    """The GPU's own instruction, exact to 2^-22; the interpreter does not know it."""
    return tl.inline_asm_elementwise(
        INSTRUCTION + ".approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@jit
def _log2(x, FAST: tl.constexpr):
    return _own(x, "lg2") if FAST else tl.log2(x)


@jit
def _exp2(x, FAST: tl.constexpr):
    return _own(x, "ex2") if FAST else tl.exp2(x)


@jit
def _inverse(x, FAST: tl.constexpr):
    return _own(x, "rcp") if FAST else 1.0 / x


@jit
def _down(vector):
    """A number per row, to go with a matrix."""
    return vector[None, :, None, None]


@jit
def _across(vector, COLUMNS: tl.constexpr, LANES: tl.constexpr):
    """A number per column, to go with a matrix."""
    return tl.reshape(vector, [LANES, COLUMNS // LANES // 4, 4])[:, None, :, :]


@jit
def _row_sums(matrix):
    return tl.sum(tl.sum(tl.sum(matrix, axis=2), axis=2), axis=0)


@jit
def _row_minima(matrix):
    """Those of rows that are there, else 0."""
    least = tl.min(tl.min(tl.min(matrix, axis=2), axis=2), axis=0)
    return tl.where(least < float("inf"), least, 0.0)


@jit
def _entries(
    at, row_stride, column_stride, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """A matrix from memory, infinite where it has no rows or columns."""
    i = _down(tl.arange(0, ROWS))
    j = _across(tl.arange(0, COLUMNS), COLUMNS, LANES)
    at += i * row_stride + j * column_stride
    # Nothing known of the addresses: else the compiler gives a thread the entries that are neighbours
    # in memory, and every sum takes more exchanges from then on.
    at = tl.max_contiguous(tl.multiple_of(at, (1, 1, 1, 1)), (1, 1, 1, 1))
    return tl.load(at, mask=(i < rows) & (j < columns), other=float("inf"))


@jit
def _weighted(M, f, g, inverse, log_weight, FAST: tl.constexpr):
    """A plan's density, of these potentials and κ, times the weight of a point."""
    return _exp2(tl.minimum((f + g - M) * inverse + log_weight, _HIGHEST), FAST)


@jit
def _relaxed(u, sums, extra, FAST: tl.constexpr):
    """The factors u of rows, from the sums that 1 / sums would bring to 1, over-relaxed.

    With x = u * sums that is u * h(1 / x) / x, where h(r) = ((1 + extra) r + (1 - extra)) /
    ((1 - extra) r + (1 + extra)) is r^extra near 1 and bounded: the further off, the less is added.
    """
    sums = tl.maximum(sums, _LOWEST)
    x = u * sums
    above = (1.0 - extra) * x + (1.0 + extra)
    below = (1.0 + extra) * x + (1.0 - extra)
    return above * _inverse(sums * below, FAST)


@jit
def _solve(
    costs, plan, error_at, columns, scale, falls, rounds, extra, ahead, N: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LENGTH: tl.constexpr,
    LANES: tl.constexpr, HOLD: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Sinkhorn's iteration on one problem that stays in registers; see ``Schedule``.

    With κ the present regularization over the last one, and potentials and costs M in units of
    λ ln 2, the plan's density is 2^((f + g - M) / κ). K and L are this matrix, times the columns'
    weight, and its transpose, times the rows'. In a round they are fixed, and factors u of rows and v of
    columns are found; then potentials take these up. No exponentials and logarithms in the inner loop.
    """
    row_weight = 1.0 / N
    column_weight = 1.0 / tl.maximum(columns, 1)
    log_rows = -tl.log2(N + 0.0)
    log_columns = tl.log2(column_weight)

    # Reduced costs: potentials are then small, and their rounding is.
    M = _entries(costs, WIDTH, 1, N, columns, ROWS, COLUMNS, LANES)
    T = _entries(costs, 1, WIDTH, columns, N, COLUMNS, ROWS, LANES)
    row_least = _row_minima(M)
    M -= _down(row_least)
    T -= _across(row_least, ROWS, LANES)
    column_least = _row_minima(T)
    M = (M - _across(column_least, COLUMNS, LANES)) * scale
    T = (T - _down(column_least)) * scale
    largest = tl.max(tl.where(tl.abs(M) < float("inf"), M, 0.0))
    start = tl.where(falls > 0, largest * (0.05 / 1.4426950408889634), 1.0)
    log_start = tl.log2(tl.maximum(start, 1.0))

    f = tl.zeros([ROWS], dtype=tl.float32)
    g = tl.zeros([COLUMNS], dtype=tl.float32)
    f_step, g_step = f, g
    v = g
    K, L = tl.zeros_like(M), tl.zeros_like(T)
    kappa = tl.exp2(log_start)
    shrink = tl.exp2(-log_start / tl.maximum(falls, 1))
    onward = 0.0
    step = 0
    while step < rounds:
        # Potentials are nearly straight lines in κ: go on along them.
        f_step *= onward
        g_step *= onward
        f += f_step
        g += g_step
        inverse = 1.0 / kappa
        if HOLD:
            K = _weighted(M, _down(f), _across(g, COLUMNS, LANES), inverse, log_columns, FAST)
            L = _weighted(T, _across(f, ROWS, LANES), _down(g), inverse, log_rows, FAST)
        else:
            again = _entries(costs, WIDTH, 1, N, columns, ROWS, COLUMNS, LANES)
            again = (again - _down(row_least) - _across(column_least, COLUMNS, LANES)) * scale
            K = _weighted(again, _down(f), _across(g, COLUMNS, LANES), inverse, log_columns, FAST)
            again = _entries(costs, 1, WIDTH, columns, N, COLUMNS, ROWS, LANES)
            again = (again - _across(row_least, ROWS, LANES) - _down(column_least)) * scale
            L = _weighted(again, _across(f, ROWS, LANES), _down(g), inverse, log_rows, FAST)
        u = tl.full([ROWS], 1.0, dtype=tl.float32)
        v = tl.full([COLUMNS], 1.0, dtype=tl.float32)
        for _ in range(LENGTH):
            u = _relaxed(u, _row_sums(K * _across(v, COLUMNS, LANES)), extra, FAST)
            v = _relaxed(v, _row_sums(L * _across(u, ROWS, LANES)), extra, FAST)
        f_move = kappa * _log2(tl.maximum(u, _LEAST_FACTOR), FAST)
        g_move = kappa * _log2(tl.maximum(v, _LEAST_FACTOR), FAST)
        f += f_move
        g += g_move
        f_step += f_move
        g_step += g_move
        # The first round's move is not along the line, and there is no way to go at the last κ.
        onward = tl.where((step > 0) & (step < falls), ahead * shrink, 0.0)
        step += 1
        kappa = tl.where(step < falls, kappa * shrink, 1.0)

    # Rows exact last: every generated point then moves its whole weight.
    u = _inverse(tl.maximum(_row_sums(K * _across(v, COLUMNS, LANES)), _LOWEST), FAST)
    off = tl.abs(v * _row_sums(L * _across(u, ROWS, LANES)) - 1.0)
    off = tl.where(tl.arange(0, COLUMNS) < columns, off, 0.0)
    tl.store(error_at, tl.sum(off, axis=0) / tl.maximum(columns, 1))
    P = K * _across(v, COLUMNS, LANES) * _down(u * row_weight)
    # What is left out is below the rounding of a row's or column's total; the gradient skips it.
    floor = 2.0**-24 * row_weight * column_weight
    i = _down(tl.arange(0, ROWS))
    j = _across(tl.arange(0, COLUMNS), COLUMNS, LANES)
    tl.store(plan + i * WIDTH + j, tl.where(floor < P, P, 0.0), mask=(i < N) & (j < columns))


@jit
def plans_kernel(
    costs, plans, errors, count,
    scale,  # log2(e) / λ
    falls,  # rounds before λ is reached
    rounds, extra, ahead, N: tl.constexpr, CAPACITY: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    NARROW: tl.constexpr, WIDE: tl.constexpr,
    LENGTH: tl.constexpr,  # iterations of a round
    LANES: tl.constexpr,  # threads that share a row
    HOLD: tl.constexpr,  # keep the costs of the narrow matrix in registers
    FAST: tl.constexpr,
):  # fmt: skip
    """A program per problem: the plan and its marginal error."""
    own = tl.program_id(0)
    columns = tl.minimum(tl.load(count).to(tl.int32), CAPACITY) * (1 - own) + N * own
    limit = tl.where(columns > 0, rounds, 0)
    at = own * N * WIDTH
    if columns <= NARROW:
        _solve(
            costs + at, plans + at, errors + own, columns, scale, falls, limit, extra, ahead,
            N, WIDTH, ROWS, NARROW, LENGTH, LANES, HOLD, FAST,
        )  # fmt: skip
    elif WIDE > NARROW:
        _solve(
            costs + at, plans + at, errors + own, columns, scale, falls, limit, extra, ahead,
            N, WIDTH, ROWS, WIDE, LENGTH, LANES, False, FAST,
        )  # fmt: skip
