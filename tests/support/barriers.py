"""Mechanisms by a few numbers, for tests that need no plan."""

from __future__ import annotations

from typing import Any, TypeVar

from dpsinkhorn.generators import MixtureConfig, MLPConfig
from dpsinkhorn.mechanisms.moments import Moments
from dpsinkhorn.mechanisms.shared.base import TrainingMechanism
from dpsinkhorn.mechanisms.shared.terms import Facts, LossSettings, Terms
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean

Kind = TypeVar("Kind", bound=TrainingMechanism)
_NAMES = {SquaredEuclidean: "sqeuclidean", Cityblock: "cityblock", L1L2: "l1l2"}


def terms(
    clip, sigma, generator=None, *, classes=0, rate=1.0, batch=1.0, rows=1, persons=1, most=2**20, loss=None
):
    """Public numbers: `batch` records are expected, `persons` records of each person."""
    generator = generator or MLPConfig(image_shape=(1, 8, 8), classes=classes)
    facts = Facts(generator.image_shape, classes, batch / rate, batch / rate / persons)
    options = {"loss": loss or LossSettings(), "least_largest_sample": most}
    return Terms(
        facts, clip, sigma, sampling_rate=rate, steps=1, generated=rows, generator=generator, **options
    )


def mechanism_of(
    kind: type[Kind],
    clip: float,
    sigma: float,
    cost: Cost | None = None,
    regularization: float = 1.0,
    debias: float = 0.0,
    classes: int = 0,
    label_weight: float = 15.0,
    *,
    own: float = 0.0,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    marginals: Any = "balanced",
    iterations: int | None = None,
    **others: Any,
) -> Kind:
    """A mechanism of the Sinkhorn loss; `own` weighs the self term of `record`."""
    cost = cost or SquaredEuclidean()
    loss = LossSettings(
        cost=_NAMES[type(cost)],
        l1_weight=getattr(cost, "l1_weight", 1.0),
        regularization=regularization,
        self_weight=own,
        debias=debias,
        label_weight=label_weight,
        marginals=marginals,
        iterations=iterations,
    )
    made = kind(terms(clip, sigma, classes=classes, loss=loss, **others))
    made.tolerance, made.max_iterations = tolerance, max_iterations
    return made


def moments(config: MixtureConfig, clip: float, sigma: float, most: int = 2**20, *, persons=False) -> Moments:
    """The mechanism `moments`, which has room for so many records."""
    found = terms(clip, sigma, config, classes=config.classes, most=most)
    object.__setattr__(found.facts, "grouped", persons)
    return Moments(found)
