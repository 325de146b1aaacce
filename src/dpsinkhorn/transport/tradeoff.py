"""Error against ε, for every method: measured on given data, and predicted from public quantities.

Measured errors are **not private**: they are for a curator who chooses a method, on data that may be shown
to that curator, or for research on public data.
"""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Callable, Sequence
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
from dpsinkhorn.transport.cost import quantity_of, regularization_of
from dpsinkhorn.transport.direct import DirectMechanism
from dpsinkhorn.transport.histogram import HistogramMechanism
from dpsinkhorn.transport.noisy import NoisySinkhorn
from dpsinkhorn.transport.two_stage import TwoStageMechanism

PAPER = "noisy-sinkhorn (paper, not a guarantee)"


@dataclass(frozen=True)
class TradeoffRow:
    """One method at one ε. `chosen`: `auto` takes it."""

    method: str
    epsilon: float
    measured_error: float
    predicted_error: float
    chosen: bool


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
            here = [row for row in self.rows if row.epsilon == epsilon and row.method != PAPER]
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
    runs: int = 20,
    seed: int = 0,
) -> Tradeoff:
    """Measure mean absolute errors over `runs` seeded runs of every method that can be had at these settings.

    All are measured against the value that is asked for: the entropic cost, unless `regularization` is 0 or
    `debiased` is set. By default λ is a twentieth of the bound: most methods have no exact cost to offer.
    Two-stage estimates another one, <c, π̂> without the entropy, and histogram that of data moved to the
    support: both differences are in their measured errors, and not in the predicted ones.

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
    turned = clouds.flipped() if public == "x" else clouds
    noise = SeededNoise(int(seed))
    bound = clouds.setting.bound
    true = DirectMechanism.plan(clouds.setting, quantity, regularization=value, epsilon=1.0).value(clouds)

    def error(released: float) -> float:
        return abs((released if debiased else min(max(released, 0.0), bound)) - true)

    rows: list[TradeoffRow] = []
    for epsilon in epsilons:
        direct = DirectMechanism.plan(clouds.setting, quantity, regularization=value, epsilon=epsilon)
        found: dict[str, tuple[float, Callable[[], float]]] = {
            "direct": (direct.predicted_error, lambda d=direct: d.noised(true, noise))  # type: ignore[misc]
        }
        if quantity == "entropic" and delta > 0:
            options: dict[str, float] = {"regularization": value, "epsilon": epsilon, "delta": delta}
            for name, mode in (("noisy-sinkhorn", "sound"), (PAPER, "paper")):
                with contextlib.suppress(TransportError):
                    plan = NoisySinkhorn.plan(turned.setting, mode=mode, **options)  # type: ignore[arg-type]
                    found[name] = (
                        plan.predicted_error,
                        lambda p=plan: p.release(turned, noise).cost,  # type: ignore[misc]
                    )
            with contextlib.suppress(TransportError):
                stages = TwoStageMechanism.plan(clouds.setting, **options)  # type: ignore[arg-type]
                found["two-stage"] = (
                    stages.predicted_error,
                    lambda s=stages: s.release(clouds, noise)[0],  # type: ignore[misc]
                )
        if support is not None:
            bins = HistogramMechanism.plan(clouds, support, epsilon=epsilon)
            found["histogram"] = (
                bins.predicted_error(quantity),
                lambda b=bins: b.release(clouds, noise).cost(quantity, value),  # type: ignore[misc]
            )
        offered = [name for name in found if name in ("direct", "noisy-sinkhorn")]  # what `auto` looks at
        best = min(offered, key=lambda name: found[name][0])
        rows += [
            TradeoffRow(
                name, epsilon, float(np.mean([error(draw()) for _ in range(runs)])), predicted, name == best
            )
            for name, (predicted, draw) in found.items()
        ]
    return Tradeoff(tuple(rows), true)


def write_tradeoff(tradeoff: Tradeoff, path: Path) -> None:
    """The rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["method", "epsilon", "measured_error", "predicted_error", "chosen"])
        for row in tradeoff.rows:
            writer.writerow([row.method, row.epsilon, row.measured_error, row.predicted_error, row.chosen])


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
