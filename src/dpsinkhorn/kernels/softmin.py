"""Sinkhorn's iteration in logarithms: of small problems in one launch, else one for each transform."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dpsinkhorn.kernels import _triton_softmin
from dpsinkhorn.kernels.launch import on, power_of_2

LONGEST_ROW = 2048
_LARGEST = 2**14  # entries of a problem that a program holds in its registers


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
        _triton_softmin.softmin_kernel[(rows, problems)](
            costs,
            potential,
            log_weights,
            old,
            out,
            float(epsilon),
            float(share),
            float(extra),
            2.0 * epsilon,
            float(damping),
            float(penalty or 1.0),
            ROWS=rows,
            COLUMNS=columns,
            BLOCK=block,
            CENTRED=penalty is not None,
            num_warps=min(8, max(1, block // 128)),
        )
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
        _triton_softmin.plans_kernel[(problems,)](
            costs,
            log_rows,
            log_columns,
            _on_device(tuple(epsilons), costs.device),
            len(epsilons),
            in_rows,
            in_columns,
            float(regularization),
            0.5 if averaged else 1.0,
            0.0 if averaged else float(extra),
            float(penalty or 1.0),
            N=rows,
            WIDTH=columns,
            ROWS=blocks[0],
            COLUMNS=blocks[1],
            AVERAGED=averaged,
            RELAXED=penalty is not None,
            num_warps=min(16, max(4, blocks[0] * blocks[1] // 1024)),
        )
    return in_rows, in_columns


def _block(size: int) -> int:
    return max(16, power_of_2(size))


@lru_cache(maxsize=64)
def _on_device(epsilons: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(epsilons, dtype=torch.float32, device=device)
