"""Noisy Sinkhorn: private potentials, and the entropic cost that follows from them.

`sound` (the default) takes σ = 0 and noise of standard deviation z Δ(ψ_k), Δ a proved bound at the public
ψ_k, and z fixed beforehand: K Gaussian mechanisms of noise multiplier z, whatever the outputs. `paper` takes
the paper's σ, M and Theorem 2, whose ε is **not a valid guarantee**; it is labelled so and charged as no
protection. Proof and counterexample: docs/proofs/noisy-sinkhorn.md.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize, stats
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost
from dpsinkhorn.privacy import Adjacency, Charge, GaussianMechanism, NonPrivate, add_gaussian, epsilon
from dpsinkhorn.privacy.noise import NoiseSource, gaussian_std
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.algorithm import Exact, iterate, project_span, step_sensitivity
from dpsinkhorn.transport.bounds import theorem2_noise
from dpsinkhorn.transport.charging import Account, LedgerLike
from dpsinkhorn.transport.clouds import Clouds, PublicSide, Setting
from dpsinkhorn.transport.release import CostMechanism, notes_of

Mode: TypeAlias = Literal["sound", "paper"]
_MOST_ITERATIONS = 20
_LARGEST_EPSILON = 1e6  # there is no privacy left long before


@cache
def gaussian_multiplier(target: float, delta: float, uses: int) -> float:
    """The least noise multiplier for which `uses` Gaussian mechanisms are (target, δ)-DP, replacing one."""
    checks.positive(epsilon=target, delta=delta)
    if target > _LARGEST_EPSILON:
        raise TransportError(
            f"noisy Sinkhorn takes an epsilon of at most {_LARGEST_EPSILON:g}, not {target:g}"
        )

    def over(z: float) -> float:  # δ of one Gaussian mechanism of multiplier z/√uses, over the δ allowed
        mu = math.sqrt(uses) / z
        first, second = (stats.norm.logcdf(sign * mu / 2 - target / mu) for sign in (1, -1))
        return float(first + math.log(-math.expm1(min(target + second - first, -1e-300))) - math.log(delta))

    high = 1.0
    while over(high) > 0:
        high *= 2
    low = high / 2
    while over(low) < 0:
        low /= 2
    z = float(optimize.brentq(over, low, high, rtol=1e-12))
    # The accountant decides, and rounds up: what is charged must meet the budget as it counts it.
    step = 2e-4
    while epsilon(_gaussians(z, uses), delta) > target:
        if step > 1:
            raise TransportError(
                f"epsilon {target:g} is less than the accountant can tell from its rounding; 0.001 is not"
            )
        z, step = z * (1 + step), 1.3 * step
    return z


def _gaussians(multiplier: float, uses: int) -> Charge:
    return GaussianMechanism(1.0, multiplier, Adjacency.REPLACE_ONE).charge(uses)


@dataclass(frozen=True, eq=False)
class NoisyPotentials:
    """What noisy Sinkhorn releases.

    Attributes:
        phi: noisy potential at the points x, or None where only the public side's is released.
        psi: noisy potential at the points y, or None likewise.
        cost: estimate of the entropic cost: mean ψ_K, as φ'_K is centred. Post-processing.
        cost_std: standard deviation of its noise. Without noise it lies below the true cost by at most
            `shortfall`.
        noise_std: of the noise per coordinate, in each iteration.
        private: whether epsilon is a proved guarantee; False for `paper`.
    """

    phi: npt.NDArray[np.float64] | None
    psi: npt.NDArray[np.float64] | None
    cost: float
    cost_std: float
    shortfall: float
    noise_std: tuple[float, ...]
    iterations: int
    regularization: float
    epsilon: float
    delta: float
    mode: Mode
    private: bool
    seeded: bool
    charge: Charge = field(repr=False)


@dataclass(frozen=True)
class NoisySinkhorn(CostMechanism):
    """What is settled before any point is looked at: K, and z (`sound`) or σ and M (`paper`).

    Made by `plan`. In mode `paper`, with σ (`adaptive`) and M (`floor`) 0, there is no noise at all: plain
    Sinkhorn, centred.
    """

    method, what = "noisy-sinkhorn", "noisy-cost"
    setting: Setting
    regularization: float
    iterations: int
    epsilon: float
    delta: float
    mode: Mode = "sound"
    multiplier: float = 0.0
    adaptive: float = 0.0
    floor: float = 0.0

    @classmethod
    def plan(
        cls,
        setting: Setting,
        *,
        regularization: float,
        epsilon: float,
        delta: float,
        iterations: int | None = None,
        mode: Mode = "sound",
        adaptive: float = 0.0,
    ) -> NoisySinkhorn:
        """Choose K, where it is not given, and the noise, by the least predicted error."""
        checks.positive(epsilon=epsilon)
        checks.regularization(regularization, setting.bound)
        if not (checks.is_number(delta) and 0 < delta < 1):
            raise TransportError(
                f"noisy Sinkhorn needs a delta between 0 and 1, not {checks.shown(delta)}; 1e-5 is usual"
            )
        checks.choice(("sound", "paper"), mode=mode)
        if not (checks.is_number(adaptive) and 0 <= adaptive < 1) or (adaptive and mode == "sound"):
            raise TransportError(
                "adaptive noise (sigma) is from 0 to below 1, and for mode paper only: its size tells of the "
                "data, which no proof covers"
            )
        epsilon, regularization, delta, adaptive = map(float, (epsilon, regularization, delta, adaptive))
        if iterations is not None:
            checks.count(iterations=iterations)
        size = min(setting.n, setting.m)  # the paper has one size

        def fixed(k: int) -> NoisySinkhorn:
            multiplier, floor = 0.0, 0.0
            if mode == "sound":
                multiplier = gaussian_multiplier(epsilon, delta, k)
            else:
                floor = theorem2_noise(epsilon, delta, k, size, setting.bound, regularization)
            found = cls(setting, regularization, k, epsilon, delta, mode, multiplier, adaptive, floor)
            with checks.noise_that_fits():
                gaussian_std(found.predicted_std, 1.0, setting.n + setting.m)
                gaussian_std(1.0, multiplier or 1.0, setting.n + setting.m)
            return found

        choices = range(1, _MOST_ITERATIONS + 1) if iterations is None else [int(iterations)]
        return min(map(fixed, choices), key=lambda plan: plan.predicted_error)

    @property
    def private(self) -> bool:
        return self.mode == "sound"

    @property
    def charge(self) -> Charge:
        """K Gaussian mechanisms, or, for `paper`, no protection: a ledger with a budget refuses it."""
        if not self.private:
            return NonPrivate(Adjacency.REPLACE_ONE).charge()
        return _gaussians(self.multiplier, self.iterations)

    @property
    def rate(self) -> float:
        """Return how much half a step shrinks the span of an error: Birkhoff's coefficient of the kernel."""
        return math.tanh(self.setting.bound / (2 * self.regularization))

    @property
    def shortfall(self) -> float:
        """Return how far below the true cost the estimate can be without its noise, whatever ψ_{K-1} was."""
        span = self.setting.bound * (1 if self.iterations == 1 else 2)
        return self._below(self.rate * span)

    def _below(self, span: float) -> float:
        """The dual's gap at a φ whose error has this span. It can pass c̄: a dual value can be negative."""
        return min(span, span**2 / (8 * self.regularization))

    @property
    def predicted_std(self) -> float:
        """Noise per coordinate at ψ = 0, where the first iteration takes place."""
        if self.mode == "paper":
            return math.sqrt(self.floor)
        return self.multiplier * self._sensitivity(np.zeros(self.setting.m))

    def _sensitivity(self, psi: npt.NDArray[np.float64]) -> float:
        """Of a step at this public ψ. Exact potentials are at most 3 c̄ (Lemma 1)."""
        exact = step_sensitivity(self.setting, self.regularization, psi).total
        return checks.widened(exact, multiplier=self.multiplier, largest=3 * self.setting.bound)

    @property
    def predicted_error(self) -> float:
        """Return the mean absolute error of the cost to expect, from public quantities alone.

        The noise of the mean of ψ_K, and the gap that is left by K steps: each shrinks the span of the
        error of ψ by the rate squared, and the noise of the step before adds the fluctuation of a mean.
        """
        bound, eta, m = self.setting.bound, self.regularization, self.setting.m
        std = self.predicted_std
        spread = math.expm1(min((std / eta) ** 2, (bound / eta) ** 2, 700.0))
        error = bound
        for _ in range(self.iterations - 1):
            error = min(bound, self.rate**2 * error + 2 * eta * math.sqrt(spread / m))
        noise = math.sqrt(2 / math.pi) * std / math.sqrt(m)
        return min(bound, noise + self._below(self.rate * error))

    def facts(self) -> dict[str, Any]:
        notes = notes_of("entropic", self.regularization, self.setting)
        fixed = {"delta": self.delta, "regularization": self.regularization}
        return {"quantity": "entropic", "notes": notes, **fixed}

    def prepared(self, clouds: Clouds) -> Clouds:
        # ψ, the algorithm's state, may have been planned for the other side
        return clouds if clouds.setting == self.setting else clouds.flipped()

    def estimate(self, prepared: Clouds, noise: NoiseSource, confidence: float) -> dict[str, Any]:
        found = self.release(prepared, noise)
        # The estimate is a dual value plus normal noise, and a dual value is never above the true cost.
        reach = float(stats.norm.ppf((1 + confidence) / 2)) * found.cost_std
        interval = (found.cost - reach, found.cost + reach + found.shortfall)
        return {"released": found.cost, "interval": interval}

    def release(self, clouds: Clouds, noise: NoiseSource) -> NoisyPotentials:
        """Run Algorithm 1; charge `charge` first."""
        used: list[float] = []  # standard deviations
        alone = self.private and self.setting.public == "y"

        def add_noise(exact: Exact, phi: Tensor, psi: Tensor) -> tuple[Tensor, Tensor]:
            values = exact.psi if alone else torch.cat([exact.phi, exact.psi])
            if self.private:
                sensitivity, multiplier = self._sensitivity(psi.numpy()), self.multiplier
                used.append(gaussian_std(sensitivity, multiplier, len(values)))
            else:  # line 6
                moved = (exact.phi - phi).square().sum() + (exact.psi - psi).square().sum()
                sensitivity, multiplier = math.sqrt(self.adaptive**2 * float(moved) + self.floor), 1.0
                used.append(sensitivity)
            if sensitivity:  # lines 7 to 9
                values = add_gaussian(
                    values, sensitivity=sensitivity, noise_multiplier=multiplier, noise=noise
                )
            if alone:
                return torch.zeros_like(exact.phi), values
            return values[: len(exact.phi)], values[len(exact.phi) :]

        phi, psi = iterate(
            clouds.costs(), self.regularization, self.iterations, add_noise, prepare=self._prepare
        )
        return NoisyPotentials(
            phi=None if alone else phi.numpy(),
            psi=psi.numpy(),
            cost=float(psi.mean()),
            cost_std=used[-1] / math.sqrt(self.setting.m),
            shortfall=self.shortfall,
            noise_std=tuple(used),
            iterations=self.iterations,
            regularization=self.regularization,
            epsilon=self.epsilon,
            delta=self.delta,
            mode=self.mode,
            private=self.private,
            seeded=not noise.secure,
            charge=self.charge,
        )

    def _prepare(self, psi: Tensor) -> Tensor:
        """The sound bounds are for a ψ that spans at most c̄, as every exact one does. Post-processing.

        Its level does not matter (line 4 takes it out again); near 0, rounding is that of small numbers.
        """
        if self.mode == "paper":
            return psi
        spanned = project_span(psi.numpy(), self.setting.bound)
        return torch.from_numpy(spanned - (spanned.max() + spanned.min()) / 2)


def noisy_sinkhorn(
    x: npt.ArrayLike | Tensor,
    y: npt.ArrayLike | Tensor,
    *,
    epsilon: float,
    delta: float,
    cost_bound: float,
    cost: Cost | str | None = None,
    regularization: float | None = None,
    iterations: int | None = None,
    mode: Mode = "sound",
    adaptive: float = 0.0,
    public: PublicSide | None = None,
    paired: bool = False,
    ledger: LedgerLike = None,
    budget: float | None = None,
    noise: NoiseSource | None = None,
) -> NoisyPotentials:
    """Potentials of entropic transport between two data sets, released under (ε, δ)-DP (replace one point).

    A potential at a private point moves by up to the bound when that point is replaced, so its noise is of
    the order of the bound per coordinate, however many points there are. Where one side is **public**, only
    its potential is released, and the noise falls with the number of private points.

    All arguments but these are as for `private_cost`.

    Args:
        delta: δ, above 0.
        regularization: η, by default the bound. Far smaller ones need far more noise.
        iterations: K; by default the one with the least predicted error.
        mode: `sound`, or `paper` for the paper's own noise, whose ε is not a valid guarantee.
        adaptive: the paper's σ, for `paper` only.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> x, y = np.random.default_rng(0).random((2, 300, 2))
    >>> found = noisy_sinkhorn(x, y, epsilon=1, delta=1e-5, cost_bound=2, public="y", noise=SeededNoise(0))
    >>> found.phi is None, found.psi.shape
    (True, (300,))
    """
    source = checks.noise_or_secure(noise)
    clouds = Clouds.of(x, y, cost_bound=cost_bound, cost=cost, public=public, paired=paired)
    if public == "x":  # the algorithm's own state is ψ: the public side takes its place
        clouds = clouds.flipped()
    plan = NoisySinkhorn.plan(
        clouds.setting,
        regularization=clouds.setting.bound if regularization is None else regularization,
        epsilon=epsilon,
        delta=delta,
        iterations=iterations,
        mode=mode,
        adaptive=adaptive,
    )
    account = Account.of(ledger, budget=budget, epsilon=epsilon, delta=delta)
    account.spend(plan.charge, what="potentials", paired=paired)
    found = plan.release(clouds, source)
    return dataclasses.replace(found, phi=found.psi, psi=found.phi) if public == "x" else found
