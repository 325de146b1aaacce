"""Sinkhorn's iteration in logarithms: of small problems in one launch, else one for each transform."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dpsinkhorn.kernels.launch import jit, on, power_of_2, tl

LONGEST_ROW = 2048
_LARGEST = 2**14  # entries of a problem that a program holds in its registers


_LEAST = tl.constexpr(2.0**-24)


@jit
def _moved(before, new, share, extra, reach):
    move = new - before
    return before + share * move + extra * tl.minimum(tl.maximum(move, -reach), reach)


@jit
def _log_sum(terms):
    """Their logarithmic sum; minus infinity where there are none."""
    most = tl.max(terms, axis=0)
    some = tl.where(most > float("-inf"), most, 0.0)
    return most + tl.log(tl.maximum(tl.sum(tl.exp(terms - some), axis=0), 1.0))  # the largest counts 1


@jit
def softmin_kernel(
    costs, potential, log_weights, old, out, epsilon, share, extra, reach, damping, penalty,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of 2 that a row fits into
    CENTRED: tl.constexpr,
):  # fmt: skip
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
    tl.store(out + problem * ROWS + i, _moved(before, new, share, extra, reach))


@jit
def _parts(costs, others, weights, inverse, AXIS: tl.constexpr):
    """What the points along this axis weigh, the logarithm of the largest, and a finite number for it."""
    terms = (tl.expand_dims(others, 1 - AXIS) - costs) * inverse + tl.expand_dims(weights, 1 - AXIS)
    most = tl.max(terms, axis=AXIS)
    some = tl.where(most > float("-inf"), most, 0.0)
    return tl.exp(terms - tl.expand_dims(some, AXIS)), most, some


@jit
def _transformed(costs, others, weights, inverse, AXIS: tl.constexpr):
    """A potential over the last one's ε; the sums go along this axis."""
    parts, most, some = _parts(costs, others, weights, inverse, AXIS)
    return tl.where(most > float("-inf"), -some - tl.log(tl.maximum(tl.sum(parts, axis=AXIS), 1.0)), 0.0)


@jit
def _shares(costs, others, weights, inverse, AXIS: tl.constexpr, LENGTH: tl.constexpr):
    """How a point is shared out along this axis; nothing where there is nobody to take it."""
    parts, _, _ = _parts(costs, others, weights, inverse, AXIS)
    shares = parts / tl.expand_dims(tl.maximum(tl.sum(parts, axis=AXIS), 1.0), AXIS)
    return tl.where(shares > _LEAST / LENGTH, shares, 0.0)


@jit
def plans_kernel(
    costs, log_rows, log_columns, epsilons, steps, rows_out, columns_out, regularization, share, extra,
    penalty, N: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    AVERAGED: tl.constexpr, RELAXED: tl.constexpr,
):  # fmt: skip
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


def softmin(
    costs: Tensor,
    potential: Tensor,
    log_weights: Tensor,
    old: Tensor,
    epsilon: float,
    *,
    share: float = 1.0,
    extra: float = 0.0,
    damping: float = 1.0,
    penalty: float | None = None,
) -> Tensor:
    """As `mechanisms.shared.fixed_plans.softmin`, of float32 tensors on a GPU."""
    problems, rows, columns = costs.shape
    if columns > LONGEST_ROW:
        raise ValueError(f"costs: rows are {LONGEST_ROW} long at most, not {columns}")
    if not all(each.is_contiguous() for each in (costs, potential, log_weights, old)):
        raise ValueError("costs, potential, log_weights and old: expected contiguous tensors")
    out = old.new_empty(problems, rows)
    block = _block(columns)
    with on(costs.device):
        softmin_kernel[(rows, problems)](
            costs, potential, log_weights, old, out, float(epsilon), float(share), float(extra),
            2.0 * epsilon, float(damping), float(penalty or 1.0), ROWS=rows, COLUMNS=columns, BLOCK=block,
            CENTRED=penalty is not None, num_warps=min(8, max(1, block // 128)),
        )  # fmt: skip
    return out


def holds(rows: int, columns: int) -> bool:
    """Whether a program holds such a problem as a whole, which `plans` needs.

    >>> holds(50, 128), holds(500, 704)
    (True, False)
    """
    return _block(rows) * _block(columns) <= _LARGEST


def plans(
    costs: Tensor,
    log_rows: Tensor,
    log_columns: Tensor,
    epsilons: Sequence[float],
    regularization: float,
    *,
    averaged: bool,
    extra: float,
    penalty: float | None,
) -> tuple[Tensor, Tensor]:
    """As `mechanisms.shared.fixed_plans.plans`, of small float32 problems on a GPU.

    The first call with these ``epsilons`` brings them to the device: not one that is captured in a graph.
    """
    problems, rows, columns = costs.shape
    if not holds(rows, columns):
        raise ValueError(f"costs: {rows} x {columns} is too large for a program")
    if not all(each.is_contiguous() for each in (costs, log_rows, log_columns)):
        raise ValueError("costs, log_rows and log_columns: expected contiguous tensors")
    in_rows = torch.empty_like(costs)
    in_columns = torch.empty_like(costs) if averaged else in_rows
    blocks = _block(rows), _block(columns)
    with on(costs.device):
        plans_kernel[(problems,)](
            costs, log_rows, log_columns, _on_device(tuple(epsilons), costs.device), len(epsilons), in_rows,
            in_columns, float(regularization), 0.5 if averaged else 1.0, 0.0 if averaged else float(extra),
            float(penalty or 1.0), N=rows, WIDTH=columns, ROWS=blocks[0], COLUMNS=blocks[1],
            AVERAGED=averaged, RELAXED=penalty is not None,
            num_warps=min(16, max(4, blocks[0] * blocks[1] // 1024)),
        )  # fmt: skip
    return in_rows, in_columns


def _block(size: int) -> int:
    return max(16, power_of_2(size))


@lru_cache(maxsize=64)
def _on_device(epsilons: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(epsilons, dtype=torch.float32, device=device)
