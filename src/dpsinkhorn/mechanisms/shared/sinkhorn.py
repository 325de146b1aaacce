"""What the mechanisms of the Sinkhorn loss share: its gradient in the generated images, clipped.

The loss is Eq. 6, 2 W(X, Y) - W(A, B) with A = x[0:n] and B = x[n':n+n']. Only 2 W(X, Y) sees private
records. Claims: docs/proofs/batch-sensitivity.md and image-sensitivity.md.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample, check_labels
from dpsinkhorn.mechanisms.shared.clipping import tidy
from dpsinkhorn.mechanisms.shared.fixed_plans import annealed_plans, plan_within_classes
from dpsinkhorn.mechanisms.shared.fixed_rows import FixedRows
from dpsinkhorn.mechanisms.shared.steps import Setting
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.ot import Problem, solve
from dpsinkhorn.ot.divergence import count_resampled, split_generated
from dpsinkhorn.privacy.noise import NoiseSource

_UNSOLVABLE = (ValueError, ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


class SinkhornMechanism(GradientMechanism):
    """What the mechanisms of the Sinkhorn loss share: the loss, and its gradient in the images.

    The marginals of the loss hold in the self term too, for those of the second images: both must be the same
    function. The first images always keep their weights. A solve on private records that ends early is used
    as it is and says nothing, for whether it converged depends on the records.
    """

    unused_settings = frozenset({"loss.self_weight"})

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
