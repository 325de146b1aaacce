"""Error against ε, for every method: measured on given data, and predicted from public quantities.

Measured errors are **not private**: they are for a curator who chooses a method, on data that may be shown
to that curator, or for research on public data.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.clouds import Clouds, PublicSide
from dpsinkhorn.transport.cost import SLICED, offered, quantity_of, regularization_of, taken_by_auto
from dpsinkhorn.transport.direct import DirectMechanism
from dpsinkhorn.transport.noisy import NoisySinkhorn
from dpsinkhorn.transport.release import CostMechanism
from dpsinkhorn.transport.two_stage import TwoStageMechanism

PAPER = "noisy-sinkhorn (paper, not a guarantee)"


@dataclass(frozen=True)
class TradeoffRow:
    """One method at one ε.

    Attributes:
        measured_error: against the value that is asked for; of the sliced methods, which estimate another,
            against that.
        predicted_error: from public numbers; of methods that tell of their own error in what they release,
            the mean of that.
        chosen: `auto` takes it.
        own_error: against what the method itself estimates, such as the cost of binned data: it is this that
            is predicted.
    """

    method: str
    epsilon: float
    measured_error: float
    predicted_error: float
    chosen: bool
    own_error: float | None = None


@dataclass(frozen=True)
class Tradeoff:
    """All rows, and the true value that errors are measured against. **Not private.**"""

    rows: tuple[TradeoffRow, ...]
    true_value: float

    def worst_choice(self) -> float:
        """Return the most by which the method that `auto` takes exceeds the best measured error, as a factor.

        Infinite where the best has no error at all, and that method has some.
        """
        factors = []
        for epsilon in {row.epsilon for row in self.rows}:
            here = [row for row in self.rows if row.epsilon == epsilon and row.method not in (PAPER, *SLICED)]
            chosen = next(row.measured_error for row in here if row.chosen)
            least = min(row.measured_error for row in here)
            factors.append(chosen / least if least else (math.inf if chosen else 1.0))
        return max(factors)


def measure_tradeoff(
    x: npt.ArrayLike | Tensor,
    y: npt.ArrayLike | Tensor,
    *,
    cost_bound: float,
    epsilons: Sequence[float] = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    delta: float = 1e-5,
    cost: Cost | str | None = None,
    regularization: float | None = None,
    debiased: bool = False,
    public: PublicSide | None = None,
    support: npt.ArrayLike | Tensor | None = None,
    center: npt.ArrayLike | Tensor | None = None,
    runs: int = 20,
    seed: int = 0,
) -> Tradeoff:
    """Measure mean absolute errors over `runs` seeded runs of every method that can be had at these settings.

    All are measured against the value that is asked for: the entropic cost, unless `regularization` is 0 or
    `debiased` is set. By default λ is a twentieth of the bound: most methods have no exact cost to offer.
    Two-stage estimates another one, <c, π̂> without the entropy, histogram and linear-program that of data
    moved to the support: these differences are in their measured errors, and not in the predicted ones. The
    sliced methods, for cost "euclidean", are measured against what they estimate.

    >>> x, y = np.random.default_rng(0).random((2, 40, 1))
    >>> found = measure_tradeoff(x, y, cost_bound=1, epsilons=[1.0], regularization=1.0, runs=3)
    >>> sorted({row.method for row in found.rows})
    ['direct', 'noisy-sinkhorn', 'noisy-sinkhorn (paper, not a guarantee)', 'two-stage']
    """
    checks.count(runs=runs)
    checks.fraction(zero=True, delta=delta)
    checks.flag(debiased=debiased)
    if isinstance(epsilons, str) or checks.is_number(epsilons) or not len(epsilons):
        raise TransportError(
            f"epsilons must be a list of numbers, at least one, not {checks.shown(epsilons)}"
        )
    for each in epsilons:
        checks.positive(epsilon=each)
    epsilons, delta = [float(each) for each in epsilons], float(delta)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TransportError(f"seed must be a whole number, not {checks.shown(seed)}")
    clouds = Clouds.of(x, y, cost_bound=cost_bound, cost=cost, public=public)
    value = regularization_of(regularization, clouds.setting.bound)
    quantity = quantity_of(value, debiased)
    noise = SeededNoise(int(seed))
    true = DirectMechanism.plan(clouds.setting, quantity, regularization=value, epsilon=1.0).value(clouds)
    rows: list[TradeoffRow] = []
    for epsilon in epsilons:
        settings: dict[str, float] = {"regularization": value, "epsilon": epsilon, "delta": delta}
        plans = offered(clouds, quantity, **settings, support=support, center=center)  # type: ignore[arg-type]
        best = taken_by_auto(plans)
        research = _for_research(clouds, settings) if quantity == "entropic" and delta > 0 else ()
        for name, plan in (*plans.items(), *research):
            own = plan.target(clouds)
            target = true if own is None else own
            estimate = plan.estimator(clouds, confidence=0.95)
            found = [estimate(noise) for _ in range(runs)]

            def error(of: float, costs: Sequence[float] = [each.cost for each in found]) -> float:
                return float(np.mean([abs(cost - of) for cost in costs]))

            asked = target if name in SLICED else true  # no estimate of what was asked for
            predicted = float(np.mean([each.predicted_error for each in found]))
            rows.append(TradeoffRow(name, epsilon, error(asked), predicted, name == best, error(target)))
    return Tradeoff(tuple(rows), true)


def _for_research(clouds: Clouds, settings: dict[str, float]) -> Iterator[tuple[str, CostMechanism]]:
    """Yield what `private_cost` does not offer: the paper's own noise, and its two stages."""
    turned = clouds.flipped() if clouds.setting.public == "x" else clouds
    with contextlib.suppress(TransportError):
        yield PAPER, NoisySinkhorn.plan(turned.setting, mode="paper", **settings)  # type: ignore[arg-type]
    with contextlib.suppress(TransportError):
        yield "two-stage", TwoStageMechanism.plan(clouds.setting, **settings)  # type: ignore[arg-type]


def write_tradeoff(tradeoff: Tradeoff, path: Path) -> None:
    """The rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        names = [field.name for field in dataclasses.fields(TradeoffRow)]
        writer.writerow(names)
        for row in tradeoff.rows:
            writer.writerow([getattr(row, name) for name in names])


def draw_tradeoff(tradeoff: Tradeoff, path: Path, *, title: str = "") -> None:
    """Measured (solid) and predicted (dashed) errors against ε."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row.method for row in tradeoff.rows):
        here = [row for row in tradeoff.rows if row.method == name]
        at = [row.epsilon for row in here]
        (line,) = axes.plot(at, [row.measured_error for row in here], marker=".", label=name)
        axes.plot(
            at, [row.predicted_error for row in here], linestyle="--", color=line.get_color(), alpha=0.6
        )
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="epsilon", ylabel="mean absolute error (dashed: predicted)")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
