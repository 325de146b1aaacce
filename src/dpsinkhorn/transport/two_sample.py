"""`private_test`: do two private data sets come from one distribution? ε-DP, with a proved level.

The statistic T is compared with its values T_1, ..., T_B under random relabellings of the pooled points. All
of them carry Laplace noise of scale 2Δ/ε, Δ being the sensitivity of T, so that under the hypothesis they are
exchangeable, and the noised T exceeds the k-th largest of the others with probability k/(B + 1) at most.
What leaves the data is one number, by how much it exceeds it: of sensitivity 2Δ, as both move by Δ at most.
Proof: docs/proofs/two-sample-test.md.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import L1L2, Cityblock, Cost, Euclidean, SquaredEuclidean
from dpsinkhorn.privacy import Adjacency, Charge, compose
from dpsinkhorn.privacy.noise import NoiseSource, laplace_cells
from dpsinkhorn.privacy.noise.sources import LATTICE_BITS
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.certified import exact_value, rounding
from dpsinkhorn.transport.charging import Account, LedgerLike
from dpsinkhorn.transport.clouds import CappedCost, Clouds, Setting
from dpsinkhorn.transport.direct import DirectMechanism
from dpsinkhorn.transport.laplace import LaplaceRelease

Statistic: TypeAlias = Literal["mmd", "exact"]
StatisticChoice: TypeAlias = Literal["auto", "mmd", "exact"]

_LARGEST = 2.0**50  # whole numbers on the lattice are clamped to this, as those of `add_laplace`
_BLOCK = 2**21  # entries of the kernel matrix at a time
_WIDTHS = 8.0  # of the kernel within the bound on the distance
_UNCAPPED = 1e300  # a capped distance would have no positive definite kernel


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
            samples, for rows that are independent draws. It is wide. None for exact, and for pairs.
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
        """Return plain JSON values, for users."""
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

    @classmethod
    def plan(
        cls,
        setting: Setting,
        statistic: Statistic,
        *,
        epsilon: float,
        level: float = 0.05,
        permutations: int = 199,
    ) -> TwoSampleMechanism:
        """Fix sensitivity and rank from public numbers."""
        checks.positive(epsilon=epsilon)
        checks.fraction(level=level)
        checks.count(permutations=permutations)
        checks.choice(("mmd", "exact"), statistic=statistic)
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
        if statistic == "exact":
            direct = DirectMechanism.plan(setting, "exact", regularization=0.0, epsilon=epsilon)
            moves, gap, off = direct.sensitivity, direct.gap, direct.rounding
        else:
            root2 = math.sqrt(2)
            sizes = Setting(setting.n, setting.m, 1.0, dimension=setting.dimension)
            gap, off = 0.0, math.sqrt(rounding(sizes, 0.0))
            moves = setting.worst(root2 / setting.n, root2 / setting.m) + 2 * off
        return cls(setting, statistic, float(epsilon), int(permutations), rank, moves, gap, off)

    @property
    def sensitivity(self) -> float:
        """Of the statistic less the noised threshold, on the lattice of the noise."""
        lattice = 1 - min(0.5, 2.0 ** (2 - LATTICE_BITS) / self.epsilon)  # both are rounded to it
        largest = 2.0 * (self.setting.bound if self.statistic == "exact" else 1.0)
        return self._widened(2 * self.moves / lattice, largest=largest)

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
            return _mmd(pool, labels, kernel(clouds.cost.base, self.setting.bound)), at
        return _exact(pool, labels, clouds.cost, self.gap), at

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
    confidence: float = 0.95,
    ledger: LedgerLike = None,
    budget: float | None = None,
    noise: NoiseSource | None = None,
) -> PrivateTest:
    """Test under pure ε-DP whether two data sets come from one distribution.

    If they do, whatever it is, it is rejected with a probability of `level` at most, for every n, m and ε.
    Replacing one point of either side, sizes being public, changes the chance of any outcome by a factor of
    at most e^ε.

    Args:
        x: points ``(n, d)``, or ``(n,)`` on a line.
        y: points ``(m, d)``.
        epsilon: ε, of all that is returned.
        cost_bound: a public bound, never read off the data. The exact cost is capped at it; the width of the
            kernel is an eighth of the distance that it stands for.
        level: the probability of rejecting what is true, at most.
        statistic: "mmd", the distance of mean embeddings for a Gaussian kernel (a Laplace one for cityblock,
            their product for l1l2), or "exact", the transport cost, which takes B + 1 solves. `auto` takes
            mmd, except for a `Cost` of your own, which need not have a kernel.
        cost: of a pair, as for `private_cost`.
        permutations: B, how many relabellings the statistic is compared with.
        effect_share: the part of ε that goes to releasing the statistic itself; the decision has the rest.
        paired: row i of x and row i of y are one person's: both are protected, and relabellings exchange
            them. The hypothesis then is that exchanging them makes no difference.
        confidence: of the intervals, over the noise.
        ledger: a file, or an open `Ledger`; charged before anything private is computed.
        budget: ε that a new file allows in all; by default this ε.
        noise: by default secure noise. A seeded source marks the result as not for release.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> x, y = np.random.default_rng(0).random((2, 300, 2))
    >>> private_test(x, y + 0.3, epsilon=1, cost_bound=1.5, noise=SeededNoise(0)).rejected
    True
    """
    checks.positive(epsilon=epsilon)
    checks.fraction(confidence=confidence)
    checks.fraction(zero=True, effect_share=effect_share)
    checks.choice(("auto", "mmd", "exact"), statistic=statistic)
    epsilon, share, confidence = float(epsilon), float(effect_share), float(confidence)
    source = checks.noise_or_secure(noise)
    clouds = Clouds.of(x, y, cost_bound=cost_bound, cost=cost, paired=paired)
    known = _has_kernel(clouds.cost.base)
    if statistic == "mmd" and not known:
        raise TransportError("mmd needs a cost of dpsinkhorn.ot, which has a kernel; use statistic exact")
    chosen: Statistic = statistic if statistic != "auto" else "mmd" if known else "exact"
    account = Account.of(ledger, budget=budget, epsilon=epsilon, delta=0.0)
    rest = epsilon * (1 - share) * (1 - 1e-12) if share else epsilon  # the sum may not round up past ε
    plan = TwoSampleMechanism.plan(
        clouds.setting, chosen, epsilon=rest, level=level, permutations=permutations
    )
    release = _Effect(plan, epsilon * share) if share else None
    charge = compose(plan.charge, release.charge) if release else plan.charge
    account.spend(charge, what="test", paired=paired)

    values, at = plan.values(clouds, source)
    margin = plan.margin(plan.excess(values, at, source), source)
    effect, sample, population = None, None, None
    if release:
        effect = release.noised(values[at], source)
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
class _Effect(LaplaceRelease):
    """The statistic of the data as they are, with Laplace noise of its own."""

    plan: TwoSampleMechanism
    epsilon: float

    @property
    def sensitivity(self) -> float:
        largest = 2.0 * (self.plan.setting.bound if self.plan.statistic == "exact" else 1.0)
        return self._widened(self.plan.moves, largest=largest)

    def noised(self, value: Tensor, noise: NoiseSource) -> float:
        return float(self._noised(value, noise))

    def interval(self, released: float, confidence: float) -> tuple[float, float]:
        reach = self.scale * math.log(1 / (1 - confidence)) + self.plan.rounding
        return max(0.0, released - reach), max(0.0, released + reach + self.plan.gap)

    def of_populations(self, released: float, confidence: float) -> tuple[float, float] | None:
        """Half of what may go wrong is the noise, half the draw of the samples."""
        if self.plan.statistic != "mmd" or self.plan.setting.paired:
            return None
        low, high = self.interval(released, (1 + confidence) / 2)
        spread = math.sqrt(1 / self.plan.setting.n + 1 / self.plan.setting.m)
        reach = spread * (1 + math.sqrt(math.log(2 / (1 - confidence))))
        return max(0.0, low - reach), high + reach


def _has_kernel(cost: Cost) -> bool:
    return type(cost) in (SquaredEuclidean, Euclidean, Cityblock, L1L2)


def kernel(cost: Cost, bound: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a positive definite kernel with values in [0, 1], and 1 on the diagonal, for a known cost.

    It is exp(-64 |x - y|² / 2D²) where the bound is one on the Euclidean distance, D, or on its square, D²;
    for the others exp(-8 c / bound).
    """
    uncapped = CappedCost(cost, _UNCAPPED)

    def values(x: Tensor, y: Tensor) -> Tensor:
        costs = uncapped.pairwise(x, y) / bound
        if type(cost) is Euclidean:
            costs = costs.square_()
        gaussian = type(cost) in (Euclidean, SquaredEuclidean)
        return costs.mul_(-(_WIDTHS**2) / 2 if gaussian else -_WIDTHS).exp_()

    return values


def _mmd(pool: Tensor, labels: Tensor, k: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return |mean k(x, .) - mean k(y, .)| in the kernel's norm for each row of labels ``(B + 1, N)``."""
    n = int(labels[0].sum())
    of_x, of_y = torch.tensor([1 / n, -1 / (len(pool) - n)], dtype=torch.float64)
    weights = torch.where(labels, of_x, of_y)
    squares = torch.zeros(len(labels), dtype=torch.float64)
    rows = max(1, _BLOCK // len(pool))
    for start in range(0, len(pool), rows):
        part = slice(start, start + rows)
        squares += ((weights @ k(pool, pool[part])) * weights[:, part]).sum(1)
    return squares.clamp(min=0.0).sqrt()


def _exact(pool: Tensor, labels: Tensor, cost: CappedCost, gap: float) -> Tensor:
    """Return certified transport costs, one for each row of labels; equal points are merged."""
    unique, places = np.unique(pool.numpy() + 0.0, axis=0, return_inverse=True)
    points, places = torch.from_numpy(unique), places.reshape(-1)
    costs = cost.pairwise(points, points).numpy()
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever a solver has to say would tell of the data
        for row in labels.numpy():
            a, b = (np.bincount(places[side], minlength=len(unique)) / side.sum() for side in (row, ~row))
            block = np.ascontiguousarray(costs[np.ix_(a > 0, b > 0)])
            found.append(exact_value(block, a[a > 0], b[b > 0], bound=cost.bound, gap=gap))
    return torch.tensor(found, dtype=torch.float64)
