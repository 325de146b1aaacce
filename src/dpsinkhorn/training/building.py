"""From a plan to the sanitizer that runs."""

from __future__ import annotations

import math

import torch

from dpsinkhorn.generators import MixtureConfig
from dpsinkhorn.privacy import (
    BatchMechanism,
    ImageMechanism,
    MomentsMechanism,
    ParameterMechanism,
    RecordMechanism,
    SeededNoise,
)
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.sanitizers import (
    BatchSanitizer,
    ImageSanitizer,
    Moments,
    NonPrivateSanitizer,
    ParameterSanitizer,
    RecordSanitizer,
    Sample,
    Sanitizer,
)

__all__ = ["build_sanitizer", "check_sanitizer", "largest_sample"]

_LEAST_ROOM = 2**20


def build_sanitizer(plan: Plan) -> Sanitizer | Moments:
    """The sanitizer of a plan: its mechanism is `plan.mechanism`, so what is charged is what is done."""
    loss, classes = plan.recipe.loss, plan.facts.classes
    mechanism = plan.mechanism
    try:
        if isinstance(mechanism, MomentsMechanism):
            config = plan.generator_config
            assert isinstance(config, MixtureConfig)  # as the plan saw to
            return Moments(mechanism, config, largest_sample(plan))
        if isinstance(mechanism, RecordMechanism):
            return RecordSanitizer(
                mechanism,
                plan.cost,
                loss.regularization,
                plan.expected_batch,
                loss.self_weight,
                classes,
                records_per_person=max(1, round(plan.facts.records / plan.facts.units)),
                max_sample=largest_sample(plan),
            )
        options = (plan.cost, loss.regularization, loss.debias, classes, loss.label_weight)
        if isinstance(mechanism, ImageMechanism):
            return ImageSanitizer(mechanism, *options)
        if isinstance(mechanism, ParameterMechanism):  # a kind of BatchMechanism, so it comes first
            return ParameterSanitizer(mechanism, *options)
        if isinstance(mechanism, BatchMechanism):
            return BatchSanitizer(mechanism, *options)
        return NonPrivateSanitizer(*options)
    except ValueError as error:
        raise TrainingError(str(error)) from error


def largest_sample(plan: Plan) -> int:
    """The most records that a step may meet: a public number, for which rounding is bounded.

    It leaves ample room, for neighbouring data sets have other sizes, and a number that was declared may be
    too low; that the data fit into it is checked before anything is spent, not when a sample turns out large.
    """
    return max(4 * plan.facts.records, _LEAST_ROOM)


def check_sanitizer(plan: Plan) -> None:
    """Refuse settings under which no step can be taken, by a step without any records. Nothing is spent."""
    sanitizer = build_sanitizer(plan)
    if not isinstance(sanitizer, RecordSanitizer):
        return
    count = plan.generated + sanitizer.resampled(plan.generated)
    pixels = math.prod(plan.facts.image_shape)
    points = torch.zeros(count, pixels, requires_grad=True)
    classes = plan.facts.classes
    nothing = torch.empty(0, dtype=torch.int64)
    sample = Sample(
        points=torch.empty(0, pixels),
        labels=nothing if classes else None,
        groups=nothing if plan.facts.grouped else None,
    )
    labels = torch.arange(count) % classes if classes else None
    try:
        sanitizer.backward(points * 1, labels, sample, [points], SeededNoise(0))  # type: ignore[list-item]
    except ValueError as error:
        raise TrainingError(str(error).replace(" or lower max_sample", "")) from error
