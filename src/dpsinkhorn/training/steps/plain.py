"""Which way of taking steps a training gets, and steps one by one: Algorithm 1 as it reads."""

from __future__ import annotations

import torch

from dpsinkhorn.mechanisms.shared.base import Barrier, GradientBarrier
from dpsinkhorn.mechanisms.shared.steps import Setting, Steps
from dpsinkhorn.privacy.noise import announce
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import Drawable
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps.captured import FixedSteps
from dpsinkhorn.training.steps.images import generate, labels_are_fixed, training_labels, with_resampled


class PlainSteps(Steps):
    """Each step draws, generates, sanitizes and updates by itself. Works everywhere."""

    def __init__(
        self,
        plan: Plan,
        state: TrainingState,
        records: Drawable,
        barrier: GradientBarrier,
        probabilities: tuple[float, ...],
        *,
        horizon: int,
    ) -> None:
        self._plan, self._state, self._records = plan, state, records
        self._barrier, self._probabilities, self._horizon = barrier, probabilities, horizon

    def take(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        plan, state, barrier, n = self._plan, self._state, self._barrier, self._plan.generated
        # ---- line 2: a Poisson sample of the private records
        sample = self._records.draw(plan.sampling_rate, state.noise)

        # ---- lines 3 to 5: n generated images, and n' more with the labels of the first n'
        labels = training_labels(plan, n, self._probabilities, state.random, state.device)
        points, labels = generate(state, barrier, n, labels)

        # ---- lines 6 to 10: the privacy barrier, and back through the generator
        announce(state.noise, images=points, labels=labels)
        barrier.backward(points, labels, sample, state.parameters, state.noise)

        # ---- line 11: post-processing from here on
        state.update(state.rate_at(state.step, self._horizon))
        state.step += 1


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
