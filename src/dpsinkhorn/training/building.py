"""From a plan to the sanitizer that runs."""

from __future__ import annotations

from dpsinkhorn.privacy import BatchMechanism, ImageMechanism, ParameterMechanism, RecordMechanism
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.sanitizers import (
    BatchSanitizer,
    ImageSanitizer,
    NonPrivateSanitizer,
    ParameterSanitizer,
    RecordSanitizer,
    Sanitizer,
)

__all__ = ["build_sanitizer"]


def build_sanitizer(plan: Plan) -> Sanitizer:
    """The sanitizer of a plan: its mechanism is `plan.mechanism`, so what is charged is what is done."""
    loss, classes = plan.recipe.loss, plan.facts.classes
    mechanism = plan.mechanism
    try:
        if isinstance(mechanism, RecordMechanism):
            return RecordSanitizer(
                mechanism,
                plan.cost,
                loss.regularization,
                plan.expected_batch,
                loss.self_weight,
                classes,
                max_sample=plan.facts.records,
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
