"""From a plan to the mechanism that runs."""

from __future__ import annotations

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.mechanisms.shared.base import TrainingMechanism
from dpsinkhorn.training.plan import Plan

__all__ = ["build_mechanism", "check_mechanism"]


def build_mechanism(plan: Plan) -> TrainingMechanism:
    """Build the mechanism of a plan; it charges `plan.mechanism`, so what is charged is what is done."""
    try:
        return plan.kind.build(plan.terms)
    except ValueError as error:
        raise TrainingError(str(error)) from error


def check_mechanism(plan: Plan) -> None:
    """Refuse settings under which no step can be taken. Nothing is spent."""
    try:
        build_mechanism(plan).check_step(plan.terms)
    except ValueError as error:
        raise TrainingError(str(error)) from error
