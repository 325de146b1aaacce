"""Steps one by one: Algorithm 1 as it reads."""

from __future__ import annotations

from dpsinkhorn.mechanisms.shared.base import GradientBarrier
from dpsinkhorn.mechanisms.shared.steps import Steps
from dpsinkhorn.privacy.noise import announce
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import Drawable
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps.images import generate, training_labels


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
        """Take `count` steps."""
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
