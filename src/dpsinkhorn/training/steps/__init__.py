"""How the steps of a training are taken: one by one, or replayed from a captured graph."""

from __future__ import annotations

import torch

from dpsinkhorn.mechanisms.shared.base import Barrier, GradientBarrier
from dpsinkhorn.mechanisms.shared.steps import Setting, Steps
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import Drawable
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps.captured import FixedSteps
from dpsinkhorn.training.steps.plain import (
    PlainSteps,
    generate,
    labels_are_fixed,
    training_labels,
    with_resampled,
)

__all__ = ["FixedSteps", "PlainSteps", "Steps", "generate", "make_steps", "training_labels"]


def make_steps(
    plan: Plan,
    state: TrainingState,
    records: Drawable,
    barrier: Barrier,
    probabilities: tuple[float, ...],
    *,
    horizon: int,
    capture: bool | None = None,
) -> Steps:
    """Captured steps on a GPU where the barrier has them, and one by one elsewhere.

    Both take the same steps, in law and in what they cost. But they round differently, also where no noise
    is added, and a sample for which the fixed shapes have no room is taken the other way. With room for
    eight standard deviations that tells nothing (docs/proofs/floating-point.md); where the number of records
    is not public, neither is how large samples are, and all steps are taken one by one.

    `capture=False` takes steps in fixed shapes, one by one, on any device: for tests.
    """
    own = barrier.own_steps(state, records, horizon=horizon)
    if own is not None:
        return own
    assert isinstance(barrier, GradientBarrier)
    plain = PlainSteps(plan, state, records, barrier, probabilities, horizon=horizon)
    if not _may_show_sizes(plan):
        return plain
    if capture is None:
        capture = state.device.type == "cuda"
        if not capture or not state.capturable:
            return plain
    stored = records.stored(plan.facts.classes, on_the_grid=plan.kind.on_the_grid)
    n = plan.generated
    labels: torch.Tensor | None = None
    if labels_are_fixed(plan):
        first = training_labels(plan, n, probabilities, state.random, state.device)
        labels = with_resampled(first, barrier.resampled(n))
    fixed = None if stored is None else barrier.fixed(Setting(n, labels, plan.expected_batch, stored))
    if stored is None or fixed is None:
        return plain
    return FixedSteps(
        plan, state, stored, barrier, fixed, labels, probabilities, horizon=horizon, capture=capture
    )


def _may_show_sizes(plan: Plan) -> bool:
    """Whether it may show how large a sample is, as it does where it finds no room."""
    return plan.facts.size_is_public
