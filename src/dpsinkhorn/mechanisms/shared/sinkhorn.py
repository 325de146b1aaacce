"""What the mechanisms of the Sinkhorn loss share: its gradient in the generated images, clipped.

The loss is Eq. 6, 2 W(X, Y) - W(A, B) with A = x[0:n] and B = x[n':n+n']. Only 2 W(X, Y) sees private
records. Claims: docs/proofs/batch-sensitivity.md and image-sensitivity.md.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample, backpropagate, check_labels, tidy
from dpsinkhorn.mechanisms.shared.fixed import Setting
from dpsinkhorn.mechanisms.shared.fixed_rows import FixedRows
from dpsinkhorn.mechanisms.shared.plans import annealed_plans, plan_within_classes
from dpsinkhorn.mechanisms.shared.terms import Held, Terms
from dpsinkhorn.ot import Cost, Problem, solve
from dpsinkhorn.ot.divergence import count_resampled, split_generated
from dpsinkhorn.privacy.mechanisms import BatchMechanism, ImageMechanism, Mechanism
from dpsinkhorn.privacy.noise import NoiseSource, add_gaussian

_UNSOLVABLE = (ValueError, ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


def _check_classes(marginals: Held, classes: int) -> None:
    if marginals == "classes" and not classes:
        raise ValueError(
            "loss.marginals: there are no classes to keep plans within; choose balanced, or a number"
        )


class SinkhornMechanism(GradientMechanism):
    """What the mechanisms of the Sinkhorn loss share: the loss, and its gradient in the images.

    Args:
        mechanism: what is clipped, and how much noise is added.
        cost: ground cost on pixels.
        regularization: λ, in the units of the cost.
        debias: fraction p of generated images that are sampled twice.
        classes: number of classes; 0 where there are none.
        label_weight: α_c, scale of the one-hot label that is appended to the pixels in the cost.
        marginals: how strongly a plan keeps the weights of the records, and in the self term those of the
            second images, for both must be the same function: "balanced" exactly, "classes" within each
            class, whatever the label weight, and ρ by a penalty ρ KL. The first images always keep theirs.
        iterations: stop balanced plans after so many annealed iterations; by default they converge.
        tolerance, max_iterations: of a solve. A solve on private records that ends early is used as it is
            and says nothing, for whether it converged depends on the records.
    """

    unused_settings = frozenset({"loss.self_weight"})

    def __init__(
        self,
        mechanism: Mechanism,
        cost: Cost,
        regularization: float,
        debias: float = 0.0,
        classes: int = 0,
        label_weight: float = 15.0,
        *,
        marginals: Held = "balanced",
        iterations: int | None = None,
        tolerance: float = 1e-6,
        max_iterations: int = 1000,
    ) -> None:
        if not 1e-100 < regularization < 1e100:
            raise ValueError(f"regularization: expected a positive number, got {regularization}")
        if not 0 <= debias <= 1:
            raise ValueError(f"debias: expected a fraction between 0 and 1, got {debias}")
        if classes < 0:
            raise ValueError(f"classes: expected 0 or more, got {classes}")
        if not 0 <= label_weight < 1e100:
            raise ValueError(f"label_weight: expected zero or a positive number, got {label_weight}")
        if not tolerance > 0 or max_iterations < 1:
            raise ValueError("tolerance and max_iterations: expected positive numbers")
        _check_classes(marginals, classes)
        self.mechanism = mechanism
        self.cost = cost
        self.regularization = regularization
        self.debias = debias
        self.classes = classes
        self.label_weight = label_weight
        self.marginals = marginals
        self.iterations = iterations
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    @classmethod
    def build(cls, terms: Terms) -> Self:
        return cls(
            cls.releases(terms),
            terms.cost,
            terms.regularization,
            terms.debias,
            terms.facts.classes,
            terms.label_weight,
            marginals=terms.marginals,
            iterations=terms.iterations,
        )

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        _check_classes(terms.marginals, terms.facts.classes)

    def resampled(self, generated: int) -> int:
        """n' = floor(n p)."""
        return count_resampled(generated, self.debias)

    def _gradient(self, points: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
        """Gradient of Eq. 6 in all of the n + n' images, ``(n + n', d)``, in float64, as it is.

        Row i < n has 2∇₁W(X, Y)_i - ∇₁W(A, B)_i - [i >= n']∇₂W(A, B)_{i-n'}, row i >= n has
        -∇₂W(A, B)_{i-n'}. An empty sample has no cross term.
        """
        check_labels(points, labels, sample, self.classes)
        n, extra = split_generated(len(points), self.debias)
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
        weight = 1.0 if self.marginals == "classes" else self.label_weight  # which plays no part there
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.iterations is not None:
                costs = self.cost.pairwise(x, y)
                rows, columns = annealed_plans(
                    costs, self.regularization, self.diameter(x.shape[1] - self.classes), self.iterations
                )
            elif self.marginals == "classes":
                pixels = x.shape[1] - self.classes
                kinds = x[:, pixels:] != 0, y[:, pixels:] != 0
                costs = self.cost.pairwise(x[:, :pixels], y[:, :pixels])
                rows = columns = plan_within_classes(costs, *kinds, self.regularization, **options)
            else:
                held = None if self.marginals == "balanced" else (math.inf, float(self.marginals))
                problem = Problem(x, y, self.cost)
                result = solve(problem, self.regularization, marginals=held, **options)
                in_x, in_y = result.gradients()
                assert in_x is not None
                assert in_y is not None
                return in_x, in_y
        return self.cost.gradient(x, y, rows), self.cost.gradient_y(x, y, columns)

    def diameter(self, pixels: int) -> float:
        """Length of the diagonal of the box that all pixels and scaled labels are in: a public number."""
        return math.sqrt(4 * pixels + self.classes * self.label_weight**2)


class RowGradients(SinkhornMechanism):
    """What is released is the gradient in the images, row by row or all of it, by `_released`."""

    @abstractmethod
    def _released(
        self, gradient: Tensor, noise: NoiseSource | None = None, cells: Tensor | None = None
    ) -> Tensor:
        """Return what leaves the barrier, from all n + n' rows."""

    def backward(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Sequence[nn.Parameter],
        noise: NoiseSource,
    ) -> None:
        gradient = self._released(self._gradient(points, labels, sample), noise)
        backpropagate(points, gradient, parameters)

    def fixed(self, setting: Setting) -> FixedRows | None:
        """The same step in fixed shapes, where there is one for its size and cost."""
        return FixedRows.of(self, setting)


class NoisedRows(RowGradients):
    """Rows of the cross term clipped and noised; the others, which see no record, clipped only."""

    mechanism: BatchMechanism | ImageMechanism

    @abstractmethod
    def _clip(self, rows: Tensor) -> Tensor: ...

    def clipped(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Sequence[nn.Parameter] = (),  # noqa: ARG002
    ) -> Tensor:
        """Return what is noised: ``(n, d)``, in float64."""
        n, _ = split_generated(len(points), self.debias)
        return self._clip(self._gradient(points, labels, sample)[:n])

    def _released(
        self, gradient: Tensor, noise: NoiseSource | None = None, cells: Tensor | None = None
    ) -> Tensor:
        """All n + n' rows clipped, and the first n of them noised, in float64."""
        n, _ = split_generated(len(gradient), self.debias)
        released = add_gaussian(
            self._clip(gradient[:n]),
            sensitivity=self.mechanism.sensitivity,
            noise_multiplier=self.mechanism.noise_multiplier,
            noise=noise,
            cells=cells,
        )
        return torch.cat([released, self._clip(gradient[n:])])
