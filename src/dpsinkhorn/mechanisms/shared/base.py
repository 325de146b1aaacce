"""What a mechanism is: it alone sees private records, and hands on nothing of them but noised numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from dpsinkhorn.generators import GeneratorConfig, MixtureConfig
from dpsinkhorn.mechanisms.shared.steps import AllRecords, FixedStep, NetworkLearner, Sample, Setting, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy import Charge, poisson_sample
from dpsinkhorn.privacy.charges import ImageMechanism, Mechanism
from dpsinkhorn.privacy.noise import NoiseSource, add_gaussian

__all__ = [
    "TRANSPORT",
    "Barrier",
    "GradientBarrier",
    "GradientMechanism",
    "Parameters",
    "Sample",
    "TrainingMechanism",
    "WorstCase",
    "backpropagate",
    "check_labels",
    "pulled_back",
    "rows_of_classes",
]

Parameters: TypeAlias = Sequence[nn.Parameter]

_OF_PLANS = ("cost", "l1_weight", "regularization", "self_weight", "debias", "label_weight", "marginals")
TRANSPORT = frozenset(f"loss.{name}" for name in _OF_PLANS)
"""Settings of the transport loss, of which what has another one makes no use."""


@dataclass(frozen=True)
class WorstCase:
    """The pair of data sets, none and one record, that a mechanism tells apart the most."""

    mechanism: Any  # clip, sensitivity, noise and cost of a step
    clipped: Callable[[bool], Tensor]  # what is noised, without and with the record, as a vector
    # what a step hands out, given whether the record is there, the sampling rate and the noise
    release: Callable[[bool, float, NoiseSource], Tensor]

    @classmethod
    def of_record(
        cls,
        mechanism: Mechanism,
        clipped: Callable[[Sample], Tensor],
        release: Callable[[Sample, NoiseSource], Tensor],
    ) -> WorstCase:
        """Return the case of a grey record of one pixel, given what is noised of a sample, and released."""
        record = torch.zeros(1, 1)

        def sampled(present: bool, rate: float, noise: NoiseSource) -> Tensor:
            taken = poisson_sample(int(present), rate, noise)
            return release(Sample(record[taken]), noise).flatten()

        return cls(mechanism, lambda present: clipped(Sample(record[: int(present)])).flatten(), sampled)


class Barrier(ABC):
    """Stands between private records and everything else.

    Its ``mechanism`` says what a step costs: ``mechanism.sampled(rate, steps)``. Number and shapes of all
    outputs, and what is drawn from a source of noise, do not depend on the realised sample; an empty one is
    an ordinary step.
    """

    mechanism: Any  # of `dpsinkhorn.privacy`

    def noised(
        self, values: Tensor, noise: NoiseSource | None, *, times: float = 1.0, **drawn: Any
    ) -> Tensor:
        """Return values with the mechanism's noise, where they are of `times` its sensitivity.

        What else is `drawn` goes to `add_gaussian`.
        """
        return add_gaussian(
            values,
            sensitivity=times * self.mechanism.sensitivity,
            noise_multiplier=self.mechanism.noise_multiplier,
            noise=noise,
            **drawn,
        )

    def check_device(self, learner: NetworkLearner) -> None:  # noqa: B027
        """Refuse a device on which what is claimed does not hold, by a `ValueError`; nothing is spent yet."""

    def prepare(self, learner: NetworkLearner, records: AllRecords) -> None:  # noqa: B027
        """Release what comes before the first step: it was charged as `preparation` says."""

    @property
    def summing(self) -> tuple[object, ...]:
        """Whose methods `over_ranks` the steps call: the mechanism itself, and others that it is made of."""
        return (self,)

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps | None:  # noqa: ARG002
        """Return who takes the steps, where they are not those of a `GradientBarrier`."""
        return None


class TrainingMechanism(Barrier):
    """A way of training a generator under privacy; it is built from public terms, which it keeps."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What is clipped, and where the noise goes, in a line for people."""
    summary_of_persons: ClassVar[str] = ""
    """The same where the unit of privacy is a person, if it differs."""
    recipe: ClassVar[str]
    """The recipe by default."""
    private: ClassVar[bool] = True
    trains_mixtures: ClassVar[bool] = False
    """Whether a generator is a mixture of Gaussians; else it is a network."""
    learns_on_cpu: ClassVar[bool] = False
    """Whether all that follows its noised sums is computed on the CPU, on whatever device records are: where
    the sums are exact, a seeded run then ends with the same bits on every device."""
    takes_persons: ClassVar[bool] = True
    takes_samples: ClassVar[bool] = True
    """Whether a step sees a Poisson sample, or all records."""
    clips_rows: ClassVar[bool] = False
    """Whether rows are clipped one by one, and the noise multiplier is stated for one of them."""
    steps_are_costly: ClassVar[bool] = False
    """Whether each step costs a large part of the budget, so that none is to be lost by a crash."""
    splits_records: ClassVar[bool] = False
    """Whether records are split into parts for good, one over the sampling rate of them."""
    learns_every: int = 1
    """Steps from one to the next in which critics of all parts learn, where there are parts."""
    learns_in_private: ClassVar[bool] = False
    """Whether it keeps something that follows records without noise. No checkpoint holds that: a run that is
    resumed begins it anew, and so does not replay."""
    labels_are_fixed: ClassVar[bool] = False
    """Whether the generated images have the same labels at every step, each class as often."""
    sums_over_records: ClassVar[bool] = False
    """Whether what is noised is a sum over records, taken by methods that are marked `over_ranks`: of several
    ranks each sums over its own. Else a step's whole sample comes together at rank 0."""
    sums_are_exact: ClassVar[bool] = True
    """Whether these sums are the same bits in whatever order, and so on whatever number of ranks."""
    on_the_grid: ClassVar[bool] = False
    """Whether it computes with pixels that are rounded to a grid."""
    audit_recipe: ClassVar[str] = "digits"
    """The recipe that audits change into a small one."""
    unused_settings: ClassVar[frozenset[str]] = frozenset({"flow"})
    """Settings of a recipe that play no part, as `section` or `section.name`; another set takes its place."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.mechanism = terms, self.releases(terms)

    @classmethod
    @abstractmethod
    def releases(cls, terms: Terms) -> Mechanism:
        """Return what a step releases: what is clipped, to what, with how much noise; so what it costs."""

    @classmethod
    def release_of_size(cls, noise_multiplier: float, rows: int = 1) -> Mechanism:
        """Return a release that costs as much, where no plan is known; `rows` are clipped one by one."""
        return ImageMechanism(1.0, noise_multiplier, rows)

    @classmethod
    def learns_on(cls, device: torch.device) -> torch.device:
        """Return where what follows its noised sums is computed, for records on this device."""
        return torch.device("cpu") if cls.learns_on_cpu else device

    @classmethod
    def preparation(cls, terms: Terms) -> Charge | None:  # noqa: ARG003
        """Return what is charged once, before the first step; none where nothing is released then."""
        return None

    @classmethod
    def companion(cls, terms: Terms) -> GeneratorConfig | None:  # noqa: ARG003
        """Return the config of what the learner keeps beside its generator, such as a released sketch."""
        return None

    @classmethod
    def check(cls, terms: Terms) -> None:
        """Refuse terms that it cannot work with, by a `ValueError`; nothing but what is public is known."""
        if terms.facts.grouped and not cls.takes_persons:
            raise ValueError(
                f"the mechanism {cls.name} protects records, and these data name persons (--groups): leave "
                "the recipe to be chosen, or leave groups out and protect records only"
            )
        if isinstance(terms.generator, MixtureConfig) and not cls.trains_mixtures:
            raise ValueError(
                f"the mechanism {cls.name} trains networks, not a mixture: moments and a generator of kind "
                "mixture belong together"
            )

    @classmethod
    def published_epsilon(cls, terms: Terms, delta: float) -> float | None:  # noqa: ARG003
        """Return the ε that a paper counts for these terms where it is **not a guarantee**; else none."""
        return None

    @classmethod
    @abstractmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:
        """Return the pair of data sets that shows the most, for audits; `rows` images are generated."""

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        """Return changes, by section, that make a small recipe for an audit, in which everything is clipped.

        They are changes of `audit_recipe`. Batches are small: among few records one weighs most.
        """
        return {
            "privacy": {
                "mechanism": cls.name,
                "sampling_rate": min(1.0, 2 / records),
                "steps": 4,
                "clip": 0.1,
            },
            "loss": {"generated_per_class": 2, "generated": 12},
            "generator": {"hidden": [16]},
            "optimizer": {"learning_rate": 1e-3},
        }

    def exact_releases(self, record: Tensor) -> dict[str, Callable[..., object]]:  # noqa: ARG002
        """Return releases, by name, in which no sum over records is ever rounded, for audits.

        Each is called as ``release(samples, noise=noise)``, with samples that make up all records, and
        releases sums over all of them. Public state is the worst there is, aimed at a record, (1, d),
        where it can be.
        """
        return {}

    def check_step(self, terms: Terms) -> None:
        """Refuse terms under which no step can be taken; nothing is spent."""


class GradientBarrier(Barrier):
    """A barrier whose step is one of gradient descent: ``gradient`` alone sees private records."""

    resampled_learn: bool = True
    """Whether the gradient of the resampled images is used; if not, they are generated without a graph."""

    @abstractmethod
    def resampled(self, generated: int) -> int:
        """n': how many images a step generates beyond the ``generated`` ones of the cross term."""

    def gradient(self, points: Tensor, labels: Tensor | None, sample: Sample, noise: NoiseSource) -> Tensor:
        """Return the noised gradient in the generated images, ``(n + n', d)``.

        Args:
            points: ``(n + n', d)`` generated images.
            labels: ``(n + n',)`` their classes; the resampled images repeat the first n'.
            sample: the private records of this step.
            noise: where all noise is drawn from.
        """
        raise NotImplementedError(f"{type(self).__name__} releases no gradient in the images")

    def backward(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Parameters,
        noise: NoiseSource,
    ) -> None:
        """Set ``.grad`` of the generator's parameters, whose graph `points` have, to the noised gradient."""
        backpropagate(points, self.gradient(points, labels, sample, noise), parameters)

    def fixed(self, setting: Setting) -> FixedStep | None:  # noqa: ARG002
        """Return the same step in shapes that never change, for a captured graph; ``None``: there is none."""
        return None


class GradientMechanism(GradientBarrier, TrainingMechanism):
    """A mechanism of gradient descent."""

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:
        """Images of one pixel lie at -1/2 and 1/2, in equal numbers, and the record at 0.

        Without it a step of the Sinkhorn loss sees the self term alone, which drives the images apart; with
        it the cross term outweighs that, and draws them together. Both gradients are clipped, so that all of
        the release flips: the most that there can be. In a sum over records the one has a share of full norm.

        A mechanism has its own case where its gradient is not `clipped` with noise, entry by entry and with
        the same sign, or where a record at 0 has no share of full norm.
        """
        built = cls(one_pixel(noise_multiplier, rows))
        images = nn.Parameter(torch.tensor([[-0.5], [0.5]], dtype=torch.float64).repeat(rows // 2, 1))

        def release(sample: Sample, noise: NoiseSource) -> Tensor:
            built.backward(images * 1, None, sample, [images], noise)
            assert images.grad is not None
            return images.grad

        def clipped(sample: Sample) -> Tensor:
            return built.clipped(images * 1, None, sample)

        return WorstCase.of_record(built.mechanism, clipped, release)

    @abstractmethod
    def clipped(self, points: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
        """Return what is noised, in float64. Private: for audits."""


def rows_of_classes(sample: Sample, classes: int) -> tuple[Tensor, Tensor]:
    """Return the rows of records that have a class, and their classes: 0 where there are none."""
    if not classes:
        rows = torch.arange(len(sample.points), device=sample.points.device)
        return rows, torch.zeros_like(rows)
    assert sample.labels is not None
    rows = ((sample.labels >= 0) & (sample.labels < classes)).nonzero().flatten()
    return rows, sample.labels[rows].long()


def backpropagate(points: Tensor, gradient: Tensor, parameters: Parameters) -> None:
    """Set ``.grad`` of the parameters, given the gradient in the points. What was there is replaced."""
    for parameter, value in zip(parameters, pulled_back(points, gradient, parameters), strict=True):
        parameter.grad = value


def pulled_back(
    points: Tensor, gradient: Tensor, parameters: Sequence[Tensor], *, keep_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradient in the parameters of a loss whose gradient in the points is ``gradient``."""
    parts = torch.autograd.grad(
        points,
        list(parameters),
        gradient.to(points.dtype),
        retain_graph=keep_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return tuple(parts)


def check_labels(points: Tensor, labels: Tensor | None, sample: Sample, classes: int) -> None:
    """One-line errors for what is wrong whatever the private records are."""
    if points.ndim != 2:
        raise ValueError(f"points: expected shape (n, d), got {tuple(points.shape)}")
    if sample.points.ndim != 2 or sample.points.shape[1] != points.shape[1]:
        raise ValueError(
            f"sample: expected points of dimension {points.shape[1]}, got shape {tuple(sample.points.shape)}"
        )
    if classes and (labels is None or sample.labels is None):
        raise ValueError(f"labels: missing, though there are {classes} classes")
    if classes and labels is not None and labels.shape != points.shape[:1]:
        raise ValueError(f"labels: expected shape ({len(points)},), got {tuple(labels.shape)}")
