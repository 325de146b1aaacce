"""GPU kernels of Sinkhorn's iteration in logarithms, on both problems of a step. Host code: softmin.py."""

from __future__ import annotations

from dpsinkhorn.kernels.launch import AVAILABLE

__all__: list[str] = []

if AVAILABLE:
    from dpsinkhorn.kernels.launch import tl, triton

    __all__ += ["plans_kernel", "softmin_kernel"]

    _LEAST = tl.constexpr(2.0**-24)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _log_sum(terms):  # type: ignore[no-untyped-def]
        """Their logarithmic sum; minus infinity where there are none."""
        most = tl.max(terms, axis=0)
        some = tl.where(most > float("-inf"), most, 0.0)
        return most + tl.log(tl.maximum(tl.sum(tl.exp(terms - some), axis=0), 1.0))  # the largest counts 1

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def softmin_kernel(  # type: ignore[no-untyped-def]
        costs,
        potential,
        log_weights,
        old,
        out,
        epsilon,
        share,
        extra,
        reach,
        damping,
        penalty,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
        BLOCK: tl.constexpr,  # a power of 2 that a row fits into
        CENTRED: tl.constexpr,
    ):
        """A program per row and problem: see ``softmin``."""
        i = tl.program_id(0)
        problem = tl.program_id(1)
        j = tl.arange(0, BLOCK)
        there = j < COLUMNS
        row = tl.load(costs + (problem * ROWS + i) * COLUMNS + j, mask=there, other=float("inf"))
        others = tl.load(potential + problem * COLUMNS + j, mask=there, other=0.0)
        weights = tl.load(log_weights + problem * COLUMNS + j, mask=there, other=float("-inf"))
        total = _log_sum((others - row) / epsilon + weights)
        new = tl.where(total > float("-inf"), -epsilon * total, 0.0)
        if CENTRED:
            shift = _log_sum(weights - others / penalty)
            new -= tl.where(shift > float("-inf"), penalty * shift, 0.0)
        new *= damping
        before = tl.load(old + problem * ROWS + i)
        move = new - before
        beyond = tl.minimum(tl.maximum(move, -reach), reach)
        tl.store(out + problem * ROWS + i, before + share * move + extra * beyond)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _transformed(costs, others, weights, inverse, AXIS: tl.constexpr):  # type: ignore[no-untyped-def]
        """A potential over the last one's ε; the sums go along this axis."""
        terms = (tl.expand_dims(others, 1 - AXIS) - costs) * inverse + tl.expand_dims(weights, 1 - AXIS)
        most = tl.max(terms, axis=AXIS)
        some = tl.where(most > float("-inf"), most, 0.0)
        sums = tl.sum(tl.exp(terms - tl.expand_dims(some, AXIS)), axis=AXIS)
        return tl.where(most > float("-inf"), -some - tl.log(tl.maximum(sums, 1.0)), 0.0)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _moved(before, new, share, extra, reach):  # type: ignore[no-untyped-def]
        move = new - before
        return before + share * move + extra * tl.minimum(tl.maximum(move, -reach), reach)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _shares(costs, others, weights, inverse, AXIS: tl.constexpr, LENGTH: tl.constexpr):  # type: ignore[no-untyped-def]
        """How a point is shared out along this axis; nothing where there is nobody to take it."""
        terms = (tl.expand_dims(others, 1 - AXIS) - costs) * inverse + tl.expand_dims(weights, 1 - AXIS)
        most = tl.max(terms, axis=AXIS)
        some = tl.where(most > float("-inf"), most, 0.0)
        parts = tl.exp(terms - tl.expand_dims(some, AXIS))
        shares = parts / tl.expand_dims(tl.maximum(tl.sum(parts, axis=AXIS), 1.0), AXIS)
        return tl.where(shares > _LEAST / LENGTH, shares, 0.0)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def plans_kernel(  # type: ignore[no-untyped-def]
        costs,
        log_rows,
        log_columns,
        epsilons,
        steps,
        rows_out,
        columns_out,
        regularization,
        share,
        extra,
        penalty,
        N: tl.constexpr,
        WIDTH: tl.constexpr,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
        AVERAGED: tl.constexpr,
        RELAXED: tl.constexpr,
    ):
        """A program per problem, which it holds as a whole: see ``plans``."""
        problem = tl.program_id(0)
        i = tl.arange(0, ROWS)
        j = tl.arange(0, COLUMNS)
        there = (i < N)[:, None] & (j < WIDTH)[None, :]
        at = problem * N * WIDTH + i[:, None] * WIDTH + j[None, :]
        matrix = tl.load(costs + at, mask=there, other=float("inf"))
        a = tl.load(log_rows + problem * N + i, mask=i < N, other=float("-inf"))
        b = tl.load(log_columns + problem * WIDTH + j, mask=j < WIDTH, other=float("-inf"))
        f = tl.zeros([ROWS], dtype=tl.float32)
        g = tl.zeros([COLUMNS], dtype=tl.float32)
        for step in range(steps):
            epsilon = tl.load(epsilons + step)
            inverse = 1.0 / epsilon
            part = tl.where(step > 0, share, 1.0)
            further = tl.where(step > 0, extra, 0.0)
            reach = 2.0 * epsilon
            new = epsilon * _transformed(matrix, g, b, inverse, 1)
            if RELAXED:
                shift = _log_sum(b - g / penalty)
                new -= tl.where(shift > float("-inf"), penalty * shift, 0.0)
            before = f
            f = _moved(before, new, part, further, reach)
            if AVERAGED:
                other = epsilon * _transformed(matrix, before, a, inverse, 0)
            else:
                other = epsilon * _transformed(matrix, f, a, inverse, 0)
            if RELAXED:
                other *= penalty / (penalty + epsilon)
            g = _moved(g, other, part, further, reach)
        inverse = 1.0 / regularization
        rows = _shares(matrix, g, b, inverse, 1, WIDTH) * tl.exp(a)[:, None]
        tl.store(rows_out + at, rows, mask=there)
        if AVERAGED:
            columns = _shares(matrix, f, a, inverse, 0, N) * tl.exp(b)[None, :]
            tl.store(columns_out + at, columns, mask=there)
