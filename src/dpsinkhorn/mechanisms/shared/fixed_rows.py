"""`batch`, `image` and `none` in fixed shapes: the gradient of the Sinkhorn loss, and then the barrier."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpsinkhorn.kernels import softmin as fused
from dpsinkhorn.kernels.launch import available
from dpsinkhorn.kernels.transport import MOST_COLUMNS, Step, eq6_gradient, supported
from dpsinkhorn.mechanisms.shared import fixed_plans as plans
from dpsinkhorn.mechanisms.shared.clipping import tidy
from dpsinkhorn.mechanisms.shared.steps import Drawn, FixedStep, Setting
from dpsinkhorn.ot.costs import PixelCost

if TYPE_CHECKING:
    from dpsinkhorn.mechanisms.shared.sinkhorn import RowGradients

_LARGEST = 1e15  # costs and λ that the kernels, in float32, are trusted with


class FixedRows(FixedStep):
    """A step of the Sinkhorn loss: costs, plans and gradient by kernels, or on a CPU by the same arithmetic.

    Small problems are solved by a program each, others transform by transform. The kernels
    compute in float32, and plans that are to converge are stopped at a marginal error that the ordinary
    solver goes below. That makes another function of the records, close to the same; the clipping, which is
    done here in float64 as ever, bounds it all the same.
    """

    def __init__(self, barrier: RowGradients, cost: PixelCost, setting: Setting) -> None:
        self._barrier, self._cost, self._records = barrier, cost, setting.records
        self._n = setting.generated
        self._capacity = -(-setting.capacity // 32) * 32
        self._kernels = available(setting.records.device)
        plain = barrier.loss.marginals == "balanced" and barrier.loss.iterations is None
        self._small = self._kernels and plain and supported(self._n, setting.capacity)
        if self._small:
            self._capacity = min(MOST_COLUMNS, self._capacity)

    @classmethod
    def of(cls, barrier: RowGradients, setting: Setting) -> FixedRows | None:
        """Return the step, where there is one for this size, cost and device."""
        cost, device = PixelCost.of(barrier.cost), setting.records.device
        if cost is None or not (available(device) or device.type == "cpu"):
            return None
        penalty = 0.0 if isinstance(barrier.loss.marginals, str) else barrier.loss.marginals
        largest = max(cost.of_difference(barrier.loss.label_weight), cost.absolute, penalty)
        if not (largest < _LARGEST and 1 / _LARGEST < barrier.loss.regularization < _LARGEST):
            return None
        made = cls(barrier, cost, setting)
        return made if max(made._capacity, made._n) <= fused.LONGEST_ROW else None

    @property
    def noise_rows(self) -> int:
        return self._n if self._barrier.private else 0

    def inputs_of(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        counts = torch.bincount(drawn.step, minlength=drawn.steps)
        starts = (counts.cumsum(0) - counts).unsqueeze(1)
        at = starts + torch.arange(self._capacity, device=drawn.rows.device)
        last = len(drawn.rows)  # one more than there are: what is behind the end of a sample does not matter
        rows, kinds = (
            torch.cat([values, values.new_zeros(1)])[at.clamp(max=last)]
            for values in (drawn.rows, drawn.kind)
        )
        return {"rows": rows, "kinds": kinds, "count": counts.unsqueeze(1)}, counts <= self._capacity

    def gradient(
        self, points: Tensor, labels: Tensor | None, inputs: dict[str, Tensor], cells: Tensor | None
    ) -> Tensor:
        barrier = self._barrier
        labelled = barrier.classes > 0
        step = Step(
            points.detach().float().contiguous(),
            labels if labelled else None,
            self._records.read(inputs["rows"]).float(),
            inputs["kinds"] if labelled else None,
            inputs["count"],
            resampled=len(points) - self._n,
            squared=self._cost.squared,
            absolute=self._cost.absolute,
            classes=barrier.classes if barrier.loss.marginals != "classes" else 0,
            label_cost=self._cost.of_difference(barrier.loss.label_weight),
        )
        if self._small:
            gradient = eq6_gradient(step, barrier.loss.regularization)
        else:
            gradient = self._by_kernels(step) if self._kernels else self._in_float64(step)
        return barrier._released(gradient, cells=cells)

    def _by_kernels(self, step: Step) -> Tensor:
        costs, out = step.buffer(), torch.empty_like(step.x)
        step.costs(costs)
        small = fused.holds(step.rows, step.width)
        solver = fused.plans if small else partial(plans.plans, softmin=fused.softmin)
        rows, columns = self._plans(step, costs, solver)
        step.gradient(rows, out, columns[1])
        return out

    def _in_float64(self, step: Step) -> Tensor:
        """The same by the ordinary operations."""
        n, extra, width, cost = step.rows, step.resampled, step.width, self._barrier.cost
        x, there = tidy(step.x), self._there(step)
        y = torch.where(
            there[0, : len(step.y), None], tidy(step.y), 0.0
        )  # records of other steps have no say
        costs = x.new_zeros(2, n, width)
        costs[0, :, : len(y)] = cost.pairwise(x[:n], y)
        costs[1, :, :n] = cost.pairwise(x[:n], x[extra:])
        if step.classes:
            costs += step.label_cost * self._differences(step)
        rows, columns = self._plans(step, costs, plans.plans)
        gradient = torch.zeros_like(x)
        gradient[:n] = 2 * cost.gradient(x[:n], y, rows[0, :, : len(y)].contiguous())
        gradient[:n] -= cost.gradient(x[:n], x[extra:], rows[1, :, :n].contiguous())
        gradient[extra:] -= cost.gradient_y(x[:n], x[extra:], columns[1, :, :n].contiguous())
        return gradient

    def _plans(self, step: Step, costs: Tensor, solver: plans.Solver) -> tuple[Tensor, Tensor]:
        """Plans of both problems for the gradients in their rows and in their columns."""
        barrier, loss = self._barrier, self._barrier.loss
        there, marginals = self._there(step), loss.marginals
        if marginals == "classes":
            assert step.labels is not None
            labels = step.labels[: step.rows]
            pair = plans.within_classes(costs, there, labels, self._kinds(step), barrier.classes)
        else:
            pair = plans.uniform(costs, there)
        d = step.x.shape[1]
        if loss.iterations is not None:
            diameter = barrier.diameter(d)
            return plans.stopped_plans(pair, loss.regularization, diameter, loss.iterations, solver)
        penalty = None if isinstance(marginals, str) else marginals
        largest = d * self._cost.of_difference(2.0)
        return plans.solve_fixed(pair, loss.regularization, largest, penalty, solver)

    @staticmethod
    def _there(step: Step) -> Tensor:
        """Which columns are points, ``(2, width)``."""
        sizes = torch.stack([step.count.flatten()[0], torch.full_like(step.count.flatten()[0], step.rows)])
        return torch.arange(step.width, device=step.x.device) < sizes[:, None]

    @staticmethod
    def _kinds(step: Step) -> Tensor:
        """Labels of the columns, ``(2, width)``."""
        assert step.labels is not None
        assert step.y_labels is not None
        kinds = step.labels.new_full((2, step.width), -1)
        kinds[0, : len(step.y)] = step.y_labels
        kinds[1, : step.rows] = step.labels[step.resampled :]
        return kinds

    def _differences(self, step: Step) -> Tensor:
        """In how many entries the one-hot labels of rows and columns differ, ``(2, n, width)``."""
        assert step.labels is not None
        ours, theirs = step.labels[: step.rows, None], self._kinds(step)[:, None]
        known = [(each >= 0) & (each < step.classes) for each in (ours, theirs)]
        return torch.where(known[0] & (ours == theirs), 0, known[0].long() + known[1].long())
