"""One transform of a Sinkhorn potential in one launch, at any size up to a row that a program holds."""

from __future__ import annotations

from torch import Tensor

from dpsinkhorn.kernels import _triton_softmin
from dpsinkhorn.kernels.launch import on, power_of_2

__all__ = ["LONGEST_ROW", "softmin"]

LONGEST_ROW = 2048


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
    block = max(16, power_of_2(columns))
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
