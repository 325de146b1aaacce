"""ε against steps, from the charges of a statement: whatever the blocks that they were charged in."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

from dpsinkhorn.privacy import Accountant, Adjacency, Charge, compose, epsilon
from dpsinkhorn.release import PrivacyStatement

__all__ = ["Curve", "charged_steps", "spending_curve"]

_POINTS = 12


@dataclass(frozen=True)
class Curve:
    """ε after some numbers of steps, from none to all."""

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    before: float
    """ε of all else that was charged: class counts, or other runs on a shared ledger."""

    @property
    def table(self) -> tuple[tuple[int, float], ...]:
        """Some of the points, the last one among them."""
        return tuple(zip(self.steps, self.epsilons, strict=True))[::-3][::-1]


def charged_steps(privacy: PrivacyStatement) -> int:
    """Training steps that were charged.

    >>> from dpsinkhorn.privacy import RecordMechanism
    >>> charge = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)
    >>> charged_steps(PrivacyStatement(epsilon=9.0, delta=1e-5, mechanism="record", charges=[charge]))
    100
    """
    return max((_count(charge) for charge in _sampled(privacy)), default=0)


def spending_curve(privacy: PrivacyStatement) -> Curve | None:
    """How ε grew with the steps of the training; `None` where nothing is guaranteed, or no step was taken.

    >>> from dpsinkhorn.privacy import RecordMechanism, epsilon
    >>> charge = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)
    >>> spent = epsilon(charge, 1e-5)
    >>> statement = PrivacyStatement(epsilon=spent, delta=1e-5, mechanism="record", charges=[charge])
    >>> curve = spending_curve(statement)
    >>> curve.steps[0], curve.steps[-1], curve.epsilons[0], curve.epsilons[-1] == spent
    (0, 100, 0.0, True)
    """
    candidates = _sampled(privacy)
    if not privacy.private or not candidates:
        return None
    training = max(candidates, key=_count)
    others = [dict(charge) for charge in privacy.charges if charge is not training]
    total = _count(training)
    # ε grows about as the root of the steps: more points where it is steep
    steps = sorted({round(total * (index / _POINTS) ** 2) for index in range(_POINTS + 1)})

    def spent(count: int) -> float:
        charges = [*others, *([_with_count(training, count)] if count else [])]
        if not charges:
            return 0.0
        composed = compose(
            *(Charge.from_json(charge) for charge in charges), adjacency=Adjacency(privacy.adjacency)
        )
        return epsilon(composed, privacy.delta, cast(Accountant, privacy.accountant))

    epsilons = tuple(spent(count) for count in steps)
    return Curve(tuple(steps), epsilons, epsilons[0])


def _sampled(privacy: PrivacyStatement) -> list[Any]:
    """Charges of steps on a Poisson sample: those of training."""
    return [charge for charge in privacy.charges if _innermost(charge["event"])["type"] == "PoissonSampled"]


def _innermost(event: Any) -> Any:
    while event["type"] == "SelfComposed":
        event = event["event"]
    return event


def _count(charge: Any) -> int:
    count, event = 1, charge["event"]
    while event["type"] == "SelfComposed":
        count, event = count * event["count"], event["event"]
    return int(count)


def _with_count(charge: Any, count: int) -> dict[str, Any]:
    event = copy.deepcopy(_innermost(charge["event"]))
    return {**charge, "event": {"type": "SelfComposed", "count": count, "event": event}}
