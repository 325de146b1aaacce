"""ε against the steps of a run, from its charges: whatever the blocks that they were charged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.privacy import Accountant, Adjacency, Charge, compose, epsilon
from dpsinkhorn.privacy.charges import flatten
from dpsinkhorn.report.gather import Findings

__all__ = ["Curve", "spending_curve", "steps_of"]

_POINTS = 12


@dataclass(frozen=True)
class Curve:
    """ε after some numbers of steps, from none to all."""

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    before: float
    """ε of all else that was charged: class counts, and other uses where they cannot be told apart."""
    adjacency: str

    @property
    def table(self) -> tuple[tuple[int, float], ...]:
        """Some of the points, the last one among them."""
        return tuple(zip(self.steps, self.epsilons, strict=True))[::-3][::-1]


@dataclass(frozen=True)
class _Training:
    """A step, how often it was charged, and what was charged besides."""

    step: Charge
    steps: int
    besides: tuple[Charge, ...]
    adjacency: Adjacency
    accountant: Accountant


def steps_of(charge: Charge, step: Charge | None = None) -> int:
    """How many steps on a Poisson sample a charge is made of; none if they are not those of `step`.

    >>> from dpsinkhorn.privacy import RecordMechanism
    >>> noisy = RecordMechanism(clip=1.0, noise_multiplier=2.0)
    >>> charge = noisy.sampled(0.1, steps=100)
    >>> steps_of(charge), steps_of(charge, noisy.sampled(0.1, 1)), steps_of(charge, noisy.sampled(0.2, 1))
    (100, 100, 0)
    """
    parts = flatten(charge.event)
    if len(parts) != 1 or not isinstance(parts[0].event, dp.PoissonSampledDpEvent):
        return 0
    if step is not None and (charge.adjacency, parts[0].event) != (
        step.adjacency,
        flatten(step.event)[0].event,
    ):
        return 0
    return parts[0].count


def spending_curve(found: Findings) -> Curve | None:
    """How ε grew with the steps of this run alone, where a ledger or a plan tells which they are.

    A release alone does not say which of its charges are its own: then they are those on a Poisson sample,
    if they are all of one kind. `None` where nothing is guaranteed, no step was taken, or none can be told
    from those of other runs.

    >>> from dpsinkhorn.privacy import RecordMechanism, epsilon
    >>> from dpsinkhorn.release import PrivacyStatement
    >>> charge = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)
    >>> spent = epsilon(charge, 1e-5)
    >>> statement = PrivacyStatement(epsilon=spent, delta=1e-5, mechanism="record", charges=[charge])
    >>> curve = spending_curve(Findings(statement, None))
    >>> curve.steps[0], curve.steps[-1], curve.epsilons[0], curve.epsilons[-1] == spent
    (0, 100, 0.0, True)
    """
    training = _training(found) if found.privacy.private else None
    if training is None or not training.steps:
        return None
    # ε grows about as the root of the steps: more points where it is steep
    steps = sorted({round(training.steps * (index / _POINTS) ** 2) for index in range(_POINTS + 1)})

    def spent(count: int) -> float:
        taken = Charge(dp.SelfComposedDpEvent(training.step.event, count), training.step.adjacency)
        charges = [*training.besides, *([taken] if count else [])]
        if not charges:
            return 0.0
        composed = compose(*charges, adjacency=training.adjacency)
        return epsilon(composed, found.privacy.delta, training.accountant)

    epsilons = tuple(spent(count) for count in steps)
    return Curve(tuple(steps), epsilons, epsilons[0], training.adjacency.value)


def _training(found: Findings) -> _Training | None:
    plan, ledger, privacy = found.plan, found.ledger, found.privacy
    if plan is not None and ledger is not None:
        step = plan.step_charge
        return _Training(step, ledger.steps, ledger.besides, step.adjacency, plan.accountant)
    if found.shared:
        return None
    charges = [Charge.from_json(dict(charge)) for charge in privacy.charges]
    sampled = [charge for charge in charges if steps_of(charge)]
    if len(sampled) != 1:
        return None
    step = Charge(flatten(sampled[0].event)[0].event, sampled[0].adjacency)
    others = tuple(charge for charge in charges if charge is not sampled[0])
    accountant = cast(Accountant, privacy.accountant)
    return _Training(step, steps_of(sampled[0]), others, Adjacency(privacy.adjacency), accountant)
