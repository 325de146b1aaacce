"""`private_test`: do two private data sets come from one distribution? ε-DP, with a proved level.

The statistic T is compared with its values T_1, ..., T_B under random relabellings of the pooled points. All
of them carry Laplace noise of scale 2Δ/ε, Δ being the sensitivity of T, so that under the hypothesis they are
exchangeable, and the noised T exceeds the k-th largest of the others with probability k/(B + 1) at most.
What leaves the data is one number, by how much it exceeds it: of sensitivity 2Δ, as both move by Δ at most.
Proof: docs/proofs/two-sample-test.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost
from dpsinkhorn.privacy import Adjacency, Charge, compose
from dpsinkhorn.privacy.noise import LATTICE_BITS, NoiseSource, laplace_cells
from dpsinkhorn.transport import checks, statistics
from dpsinkhorn.transport.certified import rounding
from dpsinkhorn.transport.charging import Account, LedgerLike
from dpsinkhorn.transport.clouds import Clouds, Interval, Setting, of_populations, spread
from dpsinkhorn.transport.direct import DirectMechanism
from dpsinkhorn.transport.release import LaplaceRelease, NumberRelease
from dpsinkhorn.transport.sliced import Ball, SlicedMechanism, require_euclidean

Statistic: TypeAlias = Literal["mmd", "sliced", "exact"]
StatisticChoice: TypeAlias = Literal["auto", Statistic]
STATISTICS = get_args(Statistic)

_ALL_PAIRS = 2000  # points of a side up to which the kernel of all pairs takes about a second
_LARGEST = 2.0**50  # whole numbers on the lattice are clamped to this, as those of `add_laplace`


@dataclass(frozen=True)
class PrivateTest:
    """The outcome of a private two-sample test. Every field is private in the sense of ε: safe to show.

    Attributes:
        rejected: whether the data sets are told apart at this level.
        p_value: `level` if rejected, else 1: conservative, and all that a decision at one level has to say.
        margin: by how much the noised statistic exceeds the threshold, which is noised too.
        margin_interval: contains the margin without the statistic's own noise, with probability `confidence`.
        effect: the statistic of these samples, noised; None unless a share of ε was given to it.
        effect_interval: contains the statistic of these samples with probability `confidence` over the
            noise. It says nothing of the populations: two samples of one population are not at 0.
        population_interval: contains the populations' statistic with probability `confidence` over noise and
            samples, for rows that are independent draws. It is wide; for exact its lower end is 0, as no
            other holds for all populations. None for pairs.
        epsilon: of all of it together.
    """

    rejected: bool
    p_value: float
    level: float
    margin: float
    margin_interval: tuple[float, float]
    effect: float | None
    effect_interval: tuple[float, float] | None
    population_interval: tuple[float, float] | None
    confidence: float
    epsilon: float
    effect_share: float
    statistic: Statistic
    permutations: int
    cost_bound: float
    adjacency: str
    seeded: bool
    charge: Charge = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "charge"}


@dataclass(frozen=True)
class TwoSampleMechanism(LaplaceRelease):
    """What is settled before any point is looked at.

    Attributes:
        epsilon: of the decision and the margin.
        moves: how far replacing one point moves the statistic as computed, whatever the labels; both
            points of a person, where they are paired.
        gap: how far below its true value a computed statistic may be, at most.
        rounding: how far float64 may put it off besides.
        lines: directions and ball of the sliced statistic.
        rank: k; what exceeds the k-th largest of the others is rejected.
    """

    setting: Setting
    statistic: Statistic
    epsilon: float
    permutations: int
    rank: int
    moves: float
    gap: float
    rounding: float
    lines: SlicedMechanism | None = None

    @classmethod
    def plan(
        cls,
        setting: Setting,
        statistic: Statistic,
        *,
        epsilon: float,
        level: float = 0.05,
        permutations: int = 199,
        center: npt.ArrayLike | Tensor | None = None,
    ) -> TwoSampleMechanism:
        """Fix sensitivity and rank from public numbers."""
        checks.positive(epsilon=epsilon)
        checks.fraction(level=level)
        checks.count(permutations=permutations)
        checks.choice(STATISTICS, statistic=statistic)
        if setting.paired and setting.n != setting.m:
            raise TransportError(
                f"paired: row i of x and row i of y must be one person's, but x has {setting.n} rows and y "
                f"{setting.m}"
            )
        # As a fraction: a rank that float64 rounds up would pass the level.
        rank = math.floor(Fraction(float(level)) * (int(permutations) + 1))
        if rank < 1:
            raise TransportError(
                f"permutations must be at least {math.ceil(1 / level) - 1} at level {level:g}, "
                f"not {permutations}"
            )
        lines: SlicedMechanism | None = None
        if center is not None:
            Ball.of(setting, center)  # checked, whatever the statistic
        if statistic == "sliced":
            lines = SlicedMechanism.plan(setting, epsilon=epsilon, center=center)
            gap, off = 0.0, lines.rounding
            moves = setting.worst(lines.span / setting.n, lines.span / setting.m) + 2 * off
        elif statistic == "exact":
            direct = DirectMechanism.plan(setting, "exact", regularization=0.0, epsilon=epsilon)
            moves, gap, off = direct.sensitivity, direct.gap, direct.rounding
        else:
            waves, off = _by_waves(setting), rounding(setting, 0.0, bound=1.0)
            gap, off = 0.0, off if waves else math.sqrt(off)
            moves = setting.worst(_jump(waves) / setting.n, _jump(waves) / setting.m) + 2 * off
        return cls(setting, statistic, float(epsilon), int(permutations), rank, moves, gap, off, lines)

    @property
    def sensitivity(self) -> float:
        """Of the statistic less the noised threshold, on the lattice of the noise."""
        lattice = 1 - min(0.5, 2.0 ** (2 - LATTICE_BITS) / self.epsilon)  # both are rounded to it
        return self._widened(2 * self.moves / lattice, largest=2 * self.largest)

    @property
    def largest(self) -> float:
        """Return what the statistic does not exceed."""
        return 2.0 if self.statistic == "mmd" else 2 * self.setting.bound

    @property
    def step(self) -> float:
        """Of the lattice."""
        return self.scale * 2.0**-LATTICE_BITS

    def values(self, clouds: Clouds, noise: NoiseSource) -> tuple[Tensor, int]:
        """Return the statistics of all labellings, ``(B + 1,)``, and which is that of the data. **Private.**

        Labellings are drawn first, and the data are laid out to fit one of them, at a random place: under the
        hypothesis the points as they then stand say nothing of which, however values are computed.
        """
        seed = noise.words(4).numpy().view(np.uint64)
        rng = np.random.default_rng([int(word) for word in seed])
        n, m = self.setting.n, self.setting.m
        at = int(rng.integers(self.permutations + 1))
        if self.setting.paired:  # either point of a pair may be the x
            first = torch.from_numpy(rng.integers(2, size=(self.permutations + 1, n)).astype(bool))
            labels = torch.cat([first, ~first], dim=1)
            mask = first[at][:, None]
            pool = torch.cat([torch.where(mask, clouds.x, clouds.y), torch.where(mask, clouds.y, clouds.x)])
        else:
            ordered = np.tile(np.arange(n + m) < n, (self.permutations + 1, 1))
            labels = torch.from_numpy(rng.permuted(ordered, axis=1))
            pool = torch.empty(n + m, self.setting.dimension, dtype=torch.float64)
            pool[labels[at]], pool[~labels[at]] = clouds.x, clouds.y
        if self.statistic == "mmd":
            if _by_waves(self.setting):
                omega = statistics.frequencies(clouds.cost.base, self.setting.bound, self.setting.dimension)
                return statistics.spectral(pool, labels, omega), at
            return statistics.mmd(pool, labels, statistics.kernel(clouds.cost.base, self.setting.bound)), at
        if self.lines is not None:
            return statistics.sliced(self.lines.ball.moved(pool) @ self.lines.directions.T, labels), at
        return statistics.exact(pool, labels, clouds.cost, self.gap), at

    def excess(self, values: Tensor, at: int, noise: NoiseSource) -> Tensor:
        """Return the statistic, without noise, less the k-th largest of the others, with it. **Private.**

        It is a multiple of the lattice's step, computed in whole numbers.
        """
        whole = (values / self.step).round().clamp(-_LARGEST, _LARGEST).long()
        others = torch.cat([whole[:at], whole[at + 1 :]]) + laplace_cells(noise, (self.permutations,))
        threshold = others.sort(descending=True).values[self.rank - 1]
        return (whole[at] - threshold).double() * self.step

    def margin(self, excess: Tensor, noise: NoiseSource) -> float:
        """Return what `excess` returned, with the statistic's own noise; charge `charge` first."""
        return float(self._noised(excess, noise))

    def rejects(self, margin: float) -> bool:
        """Return whether the noised statistic is above the threshold; equal ones, at half a step, are not."""
        return margin > self.step


def private_test(
    x: npt.ArrayLike | Tensor,
    y: npt.ArrayLike | Tensor,
    *,
    epsilon: float,
    cost_bound: float,
    level: float = 0.05,
    statistic: StatisticChoice = "auto",
    cost: Cost | str = "euclidean",
    permutations: int = 199,
    effect_share: float = 0.0,
    paired: bool = False,
    center: npt.ArrayLike | Tensor | None = None,
    confidence: float = 0.95,
    ledger: LedgerLike = None,
    budget: float | None = None,
    noise: NoiseSource | None = None,
) -> PrivateTest:
    """Test under pure ε-DP whether two data sets come from one distribution.

    If they do, whatever it is, it is rejected with a probability of `level` at most, for every n, m and ε.
    Replacing one point of either side, sizes being public, changes the chance of any outcome by a factor of
    at most e^ε.

    All arguments but these are as for `private_cost`.

    Args:
        epsilon: ε, of all that is returned.
        cost_bound: a public bound, never read off the data. The exact cost is capped at it; the width of the
            kernel is an eighth of the distance that it stands for.
        level: the probability of rejecting what is true, at most.
        statistic: "mmd", the distance of mean embeddings for a Gaussian kernel (a Laplace one for cityblock,
            their product for l1l2; beyond 2,000 points of a side by 256 random frequencies), "sliced", the
            mean transport cost along lines, for euclidean, or "exact", the transport cost, which takes B + 1
            solves. `auto` takes mmd, except for a `Cost` of your own, which need not have a kernel.
        permutations: B, how many relabellings the statistic is compared with.
        effect_share: the part of ε that goes to releasing the statistic itself; the decision has the rest.
        paired: row i of x and row i of y are one person's: both are protected, and relabellings exchange
            them. The hypothesis then is that exchanging them makes no difference.
        center: for sliced.
        confidence: of the intervals, over the noise.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> x, y = np.random.default_rng(0).random((2, 300, 2))
    >>> private_test(x, y + 0.3, epsilon=1, cost_bound=1.5, noise=SeededNoise(0)).rejected
    True
    """
    checks.positive(epsilon=epsilon)
    checks.fraction(confidence=confidence)
    checks.fraction(zero=True, effect_share=effect_share)
    checks.choice(("auto", *STATISTICS), statistic=statistic)
    epsilon, share, confidence = float(epsilon), float(effect_share), float(confidence)
    source = checks.noise_or_secure(noise)
    clouds = Clouds.of(x, y, cost_bound=cost_bound, cost=cost, paired=paired)
    known = statistics.has_kernel(clouds.cost.base)
    if statistic == "sliced":
        require_euclidean(clouds.cost.base)
    if statistic == "mmd" and not known:
        raise TransportError("mmd needs a cost of dpsinkhorn.ot, which has a kernel; use statistic exact")
    chosen: Statistic = statistic if statistic != "auto" else "mmd" if known else "exact"
    account = Account.of(ledger, budget=budget, epsilon=epsilon, delta=0.0)
    rest = epsilon * (1 - share) * (1 - 1e-12) if share else epsilon  # the sum may not round up past ε
    plan = TwoSampleMechanism.plan(
        clouds.setting, chosen, epsilon=rest, level=level, permutations=permutations, center=center
    )
    release = _Effect(plan, epsilon * share, plan.gap, plan.rounding) if share else None
    charge = compose(plan.charge, release.charge) if release else plan.charge
    account.spend(charge, what="test", paired=paired)

    values, at = plan.values(clouds, source)
    margin = plan.margin(plan.excess(values, at, source), source)
    effect, sample, population = None, None, None
    if release:
        effect = release.noised(float(values[at]), source)
        sample, population = release.interval(effect, confidence), release.of_populations(effect, confidence)
    rejected, reach = plan.rejects(margin), plan.scale * math.log(1 / (1 - confidence))
    return PrivateTest(
        rejected=rejected,
        p_value=float(level) if rejected else 1.0,
        level=float(level),
        margin=margin,
        margin_interval=(margin - reach, margin + reach),
        effect=effect,
        effect_interval=sample,
        population_interval=population,
        confidence=confidence,
        epsilon=epsilon,
        effect_share=share,
        statistic=chosen,
        permutations=plan.permutations,
        cost_bound=clouds.setting.bound,
        adjacency=Adjacency.REPLACE_ONE.value,
        seeded=not source.secure,
        charge=charge,
    )


@dataclass(frozen=True)
class _Effect(NumberRelease):
    """The statistic of the data as they are, with Laplace noise of its own."""

    plan: TwoSampleMechanism
    epsilon: float
    gap: float
    rounding: float

    @property
    def sensitivity(self) -> float:
        return self._widened(self.plan.moves, largest=2 * self.plan.largest)

    def interval(self, released: float, confidence: float) -> Interval:
        low, high = super().interval(released, confidence)
        return max(0.0, low), max(0.0, high)

    def of_populations(self, released: float, confidence: float) -> Interval | None:
        """Half of what may go wrong is the noise, half the draw of the samples."""
        if self.plan.lines is not None:
            return self.plan.lines.of_populations(released, confidence, interval=self.interval)
        if self.plan.statistic == "exact":
            setting, interval = self.plan.setting, partial(self.interval, released)
            return of_populations(interval, setting, confidence=confidence, span=setting.bound)
        if self.plan.setting.paired:
            return None
        low, high = self.interval(released, (1 + confidence) / 2)
        jump = _jump(_by_waves(self.plan.setting))
        reach = 1 + jump * math.sqrt(math.log(2 / (1 - confidence)) / 2)
        reach *= math.sqrt(spread(self.plan.setting))
        return max(0.0, low - reach), high + reach


def _by_waves(setting: Setting) -> bool:
    """Return whether mmd is computed at random frequencies: for more points than all pairs are affordable."""
    return max(setting.n, setting.m) > _ALL_PAIRS


def _jump(waves: bool) -> float:
    """Return how far two points' embeddings are apart, at most: a kernel of waves can be as low as -1."""
    return 2.0 if waves else math.sqrt(2)
