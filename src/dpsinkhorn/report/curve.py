"""ε counted again: against the steps of a run, with a plot; and what a reader can run to check it.

It is counted from charges, whatever blocks they were charged in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.privacy import Accountant, Adjacency, Charge, compose, epsilon
from dpsinkhorn.privacy.charges import flatten
from dpsinkhorn.release import PrivacyStatement
from dpsinkhorn.report.gather import Findings

_POINTS = 12


@dataclass(frozen=True)
class Curve:
    """ε after some numbers of steps, from none to all. At first it is that of all else that was charged."""

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    adjacency: str

    @property
    def table(self) -> tuple[tuple[int, float], ...]:
        """Some of the points, the last one among them."""
        return tuple(zip(self.steps, self.epsilons, strict=True))[::-3][::-1]


def steps_of(charge: Charge, step: Charge | None = None) -> int:
    """How many steps on a Poisson sample a charge is made of; none if they are not those of `step`.

    >>> from dpsinkhorn.privacy import RecordMechanism
    >>> noisy = RecordMechanism(clip=1.0, noise_multiplier=2.0)
    >>> charge = noisy.sampled(0.1, steps=100)
    >>> steps_of(charge), steps_of(charge, noisy.sampled(0.1, 1)), steps_of(charge, noisy.sampled(0.2, 1))
    (100, 100, 0)
    """
    parts = flatten(charge.event)
    kinds = dp.PoissonSampledDpEvent | dp.SampledWithoutReplacementDpEvent
    if len(parts) != 1 or not isinstance(parts[0].event, kinds):
        return 0
    if step is not None:
        expected = (step.adjacency, flatten(step.event)[0].event)
        return parts[0].count if (charge.adjacency, parts[0].event) == expected else 0
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
    plan, ledger, privacy = found.plan, found.ledger, found.privacy
    if plan is not None and ledger is not None:
        step, taken, besides = plan.step_charge, ledger.steps, ledger.besides
        adjacency, accountant = step.adjacency, plan.accountant
    else:
        charges = [Charge.from_json(dict(charge)) for charge in privacy.charges]
        sampled = [charge for charge in charges if steps_of(charge)]
        if found.shared or len(sampled) != 1:
            return None
        step = Charge(flatten(sampled[0].event)[0].event, sampled[0].adjacency)
        taken, besides = steps_of(sampled[0]), tuple(charge for charge in charges if charge is not sampled[0])
        adjacency, accountant = Adjacency(privacy.adjacency), cast(Accountant, privacy.accountant)
    if not privacy.private or not taken:
        return None

    def spent(count: int) -> float:
        steps = Charge(dp.SelfComposedDpEvent(step.event, count), step.adjacency)
        charges = [*besides, *([steps] if count else [])]
        return epsilon(compose(*charges, adjacency=adjacency), privacy.delta, accountant) if charges else 0.0

    # ε grows about as the root of the steps: more points where it is steep
    steps = tuple(sorted({round(taken * (index / _POINTS) ** 2) for index in range(_POINTS + 1)}))
    return Curve(steps, tuple(map(spent, steps)), adjacency.value)


@dataclass(frozen=True)
class Plot:
    """A line in a frame of 400 x 240, in SVG's coordinates."""

    line: str
    area: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    limit: float | None
    """Height of the horizontal line of a limit."""
    end: tuple[float, float]
    left: float = 44.0
    right: float = 388.0
    top: float = 18.0
    bottom: float = 200.0


def line_plot(x: Sequence[float], y: Sequence[float], limit: float | None = None) -> Plot:
    """A line from the origin on, with round ticks, and a limit that it should not pass."""
    x_top, highest = max(x), max(*y, limit or 0.0)
    x_step, y_step = _round_step(x_top), _round_step(highest)
    y_top = math.ceil(highest / y_step - 1e-9) * y_step

    def across(value: float) -> float:
        return round(Plot.left + value / x_top * (Plot.right - Plot.left), 1)

    def up(value: float) -> float:
        return round(Plot.bottom - value / y_top * (Plot.bottom - Plot.top), 1)

    places = [(across(a), up(b)) for a, b in zip(x, y, strict=True)]
    line = " ".join(f"{a},{b}" for a, b in places)
    return Plot(
        line,
        f"{Plot.left},{Plot.bottom} {line} {places[-1][0]},{Plot.bottom}",
        tuple((across(value), _tick(value)) for value in _ticks(x_top, x_step)),
        tuple((up(value), _tick(value)) for value in _ticks(y_top, y_step)),
        None if limit is None else up(limit),
        places[-1],
    )


def _round_step(top: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that fits four to ten times."""
    rough = top / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return max(step * power for step in (1, 2, 5) if step * power <= rough * (1 + 1e-9))


def _ticks(top: float, step: float) -> list[float]:
    return [index * step for index in range(math.floor(top / step + 1e-9) + 1)]


def _tick(value: float) -> str:
    for unit, letter in ((1e9, " bn"), (1e6, " m"), (1e3, " k")):
        if value >= max(unit, 1e4):  # four digits still fit
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


# ---- what a reader can run to check it


def command_for(found: Findings) -> str | None:
    """Return the command that computes ε again, where one does: all that was charged is steps of this plan.

    They can be those of several runs on a ledger: ε is that of all of them.
    """
    plan, charges = found.plan, found.privacy.charges
    if plan is None or not plan.private or len(charges) != 1:
        return None
    steps = steps_of(Charge.from_json(dict(charges[0])), plan.step_charge)
    rows = f" --rows {plan.generated}" if plan.kind.clips_rows else ""
    command = (
        f"dpsinkhorn privacy epsilon --mechanism {plan.recipe.privacy.mechanism}{rows} "
        f"--noise-multiplier {plan.noise_multiplier!r} --sampling-rate {plan.sampling_rate!r} "
        f"--steps {steps} --delta {plan.delta!r} --accountant {plan.accountant}"
    )
    return command if steps else None


def events_of(privacy: PrivacyStatement) -> list[tuple[str, int]]:
    """Return what was charged in dp-accounting's words, and how often; nothing where it has none for it.

    Its noise multipliers under replace-one are not ours.
    """
    found = [(_event(part.event), part.count) for part in flatten(privacy.total().event)]
    sayable = Adjacency(privacy.adjacency) is Adjacency.ADD_OR_REMOVE_ONE and all(text for text, _ in found)
    return found if sayable else []


def _event(event: dp.DpEvent) -> str:
    sampled = isinstance(event, dp.PoissonSampledDpEvent)
    inner = event.event if sampled else event
    if not isinstance(inner, dp.GaussianDpEvent):
        return ""
    text = f"dp.GaussianDpEvent({float(inner.noise_multiplier)!r})"
    return f"dp.PoissonSampledDpEvent({float(event.sampling_probability)!r}, {text})" if sampled else text
