"""The GPU kernel that transforms a potential, in both problems of a step. Host code is in ``softmin.py``."""

from __future__ import annotations

from dpsinkhorn.kernels.launch import AVAILABLE

__all__: list[str] = []

if AVAILABLE:
    from dpsinkhorn.kernels.launch import tl, triton

    __all__ += ["softmin_kernel"]

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
