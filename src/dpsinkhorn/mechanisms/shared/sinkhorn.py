"""What the mechanisms of the Sinkhorn loss share: its gradient in the generated images, clipped.

The loss is Eq. 6, 2 W(X, Y) - W(A, B) with A = x[0:n] and B = x[n':n+n']. Only 2 W(X, Y) sees private
records. Claims: docs/proofs/batch-sensitivity.md and image-sensitivity.md.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.kernels import softmin as fused
from dpsinkhorn.kernels.launch import available
from dpsinkhorn.kernels.transport import MOST_COLUMNS, Step, eq6_gradient, supported
from dpsinkhorn.mechanisms.shared import fixed_plans as plans
from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample, check_labels
from dpsinkhorn.mechanisms.shared.clipping import tidy
from dpsinkhorn.mechanisms.shared.fixed_plans import annealed_plans, plan_within_classes
from dpsinkhorn.mechanisms.shared.steps import Drawn, FixedStep, Setting
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.ot import Problem, solve
from dpsinkhorn.ot.costs import PixelCost
from dpsinkhorn.ot.divergence import count_resampled, split_generated
from dpsinkhorn.privacy.noise import NoiseSource

_UNSOLVABLE = (ValueError, ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


class SinkhornMechanism(GradientMechanism):
    """What the mechanisms of the Sinkhorn loss share: the loss, and its gradient in the images.

    The marginals of the loss hold in the self term too, for those of the second images: both must be the same
    function. The first images always keep their weights. A solve on private records that ends early is used
    as it is and says nothing, for whether it converged depends on the records.
    """

    unused_settings = frozenset({"loss.self_weight", "flow"})

    tolerance, max_iterations = 1e-6, 1000  # of a solve

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.loss, self.classes, self.cost = terms.loss, terms.facts.classes, terms.loss.ground_cost

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        if terms.loss.marginals == "classes" and not terms.facts.classes:
            raise ValueError(
                "loss.marginals: there are no classes to keep plans within; choose balanced, or a number"
            )

    def resampled(self, generated: int) -> int:
        """n' = floor(n p)."""
        return count_resampled(generated, self.loss.debias)

    def _gradient(self, points: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
        """Gradient of Eq. 6 in all of the n + n' images, ``(n + n', d)``, in float64, as it is.

        Row i < n has 2∇₁W(X, Y)_i - ∇₁W(A, B)_i - [i >= n']∇₂W(A, B)_{i-n'}, row i >= n has
        -∇₂W(A, B)_{i-n'}. An empty sample has no cross term.
        """
        check_labels(points, labels, sample, self.classes)
        n, extra = split_generated(len(points), self.loss.debias)
        with torch.no_grad():
            x = self._augmented(points, labels)
            gradient = torch.zeros(points.shape, dtype=torch.float64, device=points.device)
            first, second = self._of_transport(x[:n], x[extra : n + extra])
            gradient[:n] -= first[:, : points.shape[1]]
            gradient[extra : n + extra] -= second[:, : points.shape[1]]
            if len(sample.points):
                gradient[:n] += 2 * self._cross(x[:n], sample)[:, : points.shape[1]]
        return gradient

    def _augmented(self, points: Tensor, labels: Tensor | None) -> Tensor:
        """Pixels beside the scaled one-hot label; a label that is no class has none."""
        if not self.classes or labels is None:
            return tidy(points)
        # As `ot.with_labels`, which checks the labels: a check on private ones would be seen from outside.
        onehot = labels.unsqueeze(-1) == torch.arange(self.classes, device=points.device)
        weight = 1.0 if self.loss.marginals == "classes" else self.loss.label_weight  # it plays no part there
        return torch.cat([tidy(points), onehot.double() * weight], dim=-1)

    def _cross(self, x: Tensor, sample: Sample) -> Tensor:
        """Gradient of W(x, records) in x; 0 where that problem cannot be solved.

        An error that only some records bring about would tell of them. What is wrong whatever the records
        are raises in the self term, which is solved first.
        """
        try:
            return self._of_transport(x, self._augmented(sample.points, sample.labels))[0]
        except _UNSOLVABLE:
            return torch.zeros_like(x)

    def _of_transport(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of W(x, y) in both clouds, silently: a warning would tell of the records too."""
        options: dict[str, Any] = {"tolerance": self.tolerance, "max_iterations": self.max_iterations}
        loss, pixels = self.loss, x.shape[1] - self.classes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if loss.iterations is not None:
                costs, diameter = self.cost.pairwise(x, y), self.diameter(pixels)
                rows, columns = annealed_plans(costs, loss.regularization, diameter, loss.iterations)
            elif loss.marginals == "classes":
                kinds = x[:, pixels:] != 0, y[:, pixels:] != 0
                costs = self.cost.pairwise(x[:, :pixels], y[:, :pixels])
                rows = columns = plan_within_classes(costs, *kinds, loss.regularization, **options)
            else:
                strengths = None if loss.marginals == "balanced" else (math.inf, float(loss.marginals))
                result = solve(Problem(x, y, self.cost), loss.regularization, marginals=strengths, **options)
                in_x, in_y = result.gradients()
                assert in_x is not None
                assert in_y is not None
                return in_x, in_y
        return self.cost.gradient(x, y, rows), self.cost.gradient_y(x, y, columns)

    def diameter(self, pixels: int) -> float:
        """Length of the diagonal of the box that all pixels and scaled labels are in: a public number."""
        return math.sqrt(4 * pixels + self.classes * self.loss.label_weight**2)


class RowGradients(SinkhornMechanism):
    """What is released is the gradient in the images, row by row or all of it, by `_released`."""

    @abstractmethod
    def _released(
        self, gradient: Tensor, noise: NoiseSource | None = None, cells: Tensor | None = None
    ) -> Tensor:
        """Return what leaves the barrier, from all n + n' rows."""

    def gradient(self, points: Tensor, labels: Tensor | None, sample: Sample, noise: NoiseSource) -> Tensor:
        return self._released(self._gradient(points, labels, sample), noise)

    def fixed(self, setting: Setting) -> FixedRows | None:
        """The same step in fixed shapes, where there is one for its size and cost."""
        return FixedRows.of(self, setting)


class NoisedRows(RowGradients):
    """Rows of the cross term clipped and noised; the others, which see no record, clipped only."""

    @abstractmethod
    def _clip(self, rows: Tensor) -> Tensor: ...

    def clipped(self, points: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
        """Return what is noised: ``(n, d)``, in float64."""
        n, _ = split_generated(len(points), self.loss.debias)
        return self._clip(self._gradient(points, labels, sample)[:n])

    def _released(
        self, gradient: Tensor, noise: NoiseSource | None = None, cells: Tensor | None = None
    ) -> Tensor:
        """All n + n' rows clipped, and the first n of them noised, in float64."""
        n, _ = split_generated(len(gradient), self.loss.debias)
        private, public = self._clip_apart(gradient, n)
        return torch.cat([self.noised(private, noise, cells=cells), public])

    def _clip_apart(self, gradient: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Clip the first n rows, and apart from them the others."""
        return self._clip(gradient[:n]), self._clip(gradient[n:])


# ---- in fixed shapes: the gradient of the loss, and then the barrier


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
