"""The paper's two-stage transport cost: noisy potentials, then <c, π̂> plus Laplace noise.

The paper calibrates the second stage to the exact plan; what is released uses π̂, which depends on released
potentials and on costs. With the potentials fixed, replacing x_i changes row i of c π̂, whose entries are
(1/nm) e^((φ_i + ψ_j)/η) h(c_ij), h(c) = c e^(-c/η) between 0 and h(min(η, c̄)). Proof:
docs/proofs/two-stage.md.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost
from dpsinkhorn.privacy import Adjacency, Charge, LaplaceMechanism, add_laplace, compose
from dpsinkhorn.privacy.noise import NoiseSource, laplace_scale
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.algorithm import coupling, project_span
from dpsinkhorn.transport.certified import rounding
from dpsinkhorn.transport.charging import Account, LedgerLike
from dpsinkhorn.transport.clouds import Clouds, PublicSide, Setting
from dpsinkhorn.transport.noisy import NoisySinkhorn
from dpsinkhorn.transport.release import CostMechanism, PrivateCost, laplace_multiplier

_STEEPEST = 100.0  # of c̄/η, so that e^(3c̄/η) stays well within float64, whatever the potentials
_SHARES = np.linspace(0.1, 0.9, 9)


def linear_sensitivity(
    setting: Setting, regularization: float, phi: npt.ArrayLike, psi: npt.ArrayLike
) -> float:
    """Return how far replacing one point moves <c, π̂> at fixed potentials φ ``(n,)`` and ψ ``(m,)``.

    >>> round(linear_sensitivity(Setting(10, 10, bound=1.0), 1.0, np.zeros(10), np.zeros(10)), 4)
    0.0368
    """
    eta = regularization
    phi, psi = (np.asarray(potential, dtype=np.float64) / eta for potential in (phi, psi))
    worst = min(eta, setting.bound)
    most = math.log(worst) - worst / eta - math.log(setting.n * setting.m)
    row = most + float(phi.max()) + float(special.logsumexp(psi))
    column = most + float(psi.max()) + float(special.logsumexp(phi))
    exact = setting.worst(math.exp(row), math.exp(column))
    # Float64: exponents to a few units of their parts, and sums of m and of n terms.
    size = (np.abs(phi).max() + np.abs(psi).max()) * eta + setting.bound
    mass = math.exp(most + float(special.logsumexp(phi)) + float(special.logsumexp(psi)))
    slack = 4 * mass * rounding(setting, eta) * float(1 / eta + 1 / setting.bound + size / eta**2)
    return exact + slack


@dataclass(frozen=True)
class TwoStageMechanism(CostMechanism):
    """What is settled before any point is looked at: noisy Sinkhorn, and what of ε is left after it.

    Attributes:
        first: of both potentials: both enter π̂, so both are released, whichever side is public.
        epsilon: of both stages together.
    """

    method = what = "two-stage"
    setting: Setting
    first: NoisySinkhorn
    epsilon: float

    @classmethod
    def plan(
        cls,
        setting: Setting,
        *,
        regularization: float,
        epsilon: float,
        delta: float,
        share: float | None = None,
        iterations: int | None = None,
    ) -> TwoStageMechanism:
        """Split ε, where the share of the first stage is not given, by the least predicted error."""
        checks.positive(epsilon=epsilon, regularization=regularization)
        if share is not None:
            checks.fraction(share=share)
            share = float(share)
        epsilon, regularization = float(epsilon), float(regularization)
        if setting.bound / regularization > _STEEPEST:
            raise TransportError(
                f"regularization must be at least {setting.bound / _STEEPEST:g} at this cost bound: "
                "e^(bound / regularization) is beyond use"
            )
        both = dataclasses.replace(setting, public=None)
        plans = [
            cls(
                setting,
                NoisySinkhorn.plan(
                    both,
                    regularization=regularization,
                    epsilon=part * epsilon,
                    delta=delta,
                    iterations=iterations,
                ),
                epsilon,
            )
            for part in (_SHARES.tolist() if share is None else [share])
        ]
        found = min(plans, key=lambda plan: plan._unbounded_error)
        with checks.noise_that_fits():
            laplace_scale(1.0, found.second_epsilon, 1)
        return found

    @property
    def second_epsilon(self) -> float:
        return self.epsilon - self.first.epsilon

    @property
    def charge(self) -> Charge:
        # the scale of the second stage follows the released potentials, its ε does not
        multiplier = laplace_multiplier(self.second_epsilon)
        return compose(self.first.charge, LaplaceMechanism(1.0, multiplier, Adjacency.REPLACE_ONE).charge())

    @property
    def predicted_error(self) -> float:
        """Of the noise, from public quantities alone: that of the entropic cost by these potentials, and the
        second stage's. What <c, π̂> leaves out of the entropic cost, η KL(π̂ | a⊗b), is not in it.
        """
        return min(self._unbounded_error, self.setting.bound)

    @property
    def _unbounded_error(self) -> float:
        """Return the error before it is cut; the second stage adds its noise at potentials that span c̄.

        Noise of the potentials moves <c, π̂> less than the dual value: about half as much, as measured.
        """
        eta, setting = self.first.regularization, self.first.setting
        worst = min(eta, setting.bound)
        most = worst * math.exp(-worst / eta + min(setting.bound / eta, 300.0))
        scale = setting.worst(most / setting.n, most / setting.m) / self.second_epsilon
        return self.first.predicted_error / 2 + scale

    def facts(self) -> dict[str, Any]:
        eta = self.first.regularization
        note = (
            f"<c, P> of a P made of noisy potentials, at regularization {eta:g}: neither the exact nor the "
            "entropic cost, and the interval is of <c, P> itself. The predicted error is of the noise, "
            "beside the entropic cost: that <c, P> leaves out the entropy is not in it."
        )
        return {
            "quantity": "plan-cost", "delta": self.first.delta, "regularization": eta, "notes": (note,)
        }  # fmt: skip

    def estimate(self, prepared: Clouds, noise: NoiseSource, confidence: float) -> dict[str, Any]:
        released, scale = self.release(prepared, noise)
        reach = scale * math.log(1 / (1 - confidence))
        return {"released": released, "interval": (released - reach, released + reach)}

    def release(self, clouds: Clouds, noise: NoiseSource) -> tuple[float, float]:
        """Return the noised <c, π̂>, and the scale of its Laplace noise; charge `charge` first."""
        eta, bound = self.first.regularization, self.setting.bound
        found = self.first.release(clouds, noise)
        assert found.phi is not None
        assert found.psi is not None
        # Post-processing: exact potentials span at most c̄, φ' within ±c̄ and ψ' from -c̄ to 2c̄.
        phi = project_span(found.phi, bound).clip(-bound, bound)
        psi = project_span(found.psi, bound).clip(-bound, 2 * bound)
        sensitivity = linear_sensitivity(self.setting, eta, phi, psi)
        # The value is the sum of n rows, or of m columns, none of which is above the sensitivity.
        largest = sensitivity * max(self.setting.n, self.setting.m)
        multiplier = laplace_multiplier(self.second_epsilon)
        sensitivity = checks.widened(sensitivity, multiplier=multiplier, largest=largest)
        costs = clouds.costs()
        plan = coupling(costs, torch.from_numpy(phi), torch.from_numpy(psi), eta)
        value = (plan * costs).sum(1).sum()
        noisy = add_laplace(value, sensitivity=sensitivity, epsilon=self.second_epsilon, noise=noise)
        return float(noisy), laplace_scale(sensitivity, self.second_epsilon, 1)


def two_stage_cost(
    x: npt.ArrayLike | Tensor,
    y: npt.ArrayLike | Tensor,
    *,
    epsilon: float,
    delta: float,
    cost_bound: float,
    cost: Cost | str | None = None,
    regularization: float | None = None,
    share: float | None = None,
    iterations: int | None = None,
    public: PublicSide | None = None,
    paired: bool = False,
    confidence: float = 0.95,
    ledger: LedgerLike = None,
    budget: float | None = None,
    noise: NoiseSource | None = None,
) -> PrivateCost:
    """<c, π̂> by the paper's two stages, (ε, δ)-DP with proved sensitivities. For research.

    `private_cost` gives a far better cost. <c, π̂> estimates neither the exact nor the entropic cost, but the
    first part of the latter, <c, π> of <c, π> + η KL(π | a⊗b); `predicted_error` is that of the noise alone.

    Potentials are projected to where exact ones can be before π̂ is formed (post-processing). The interval is
    that of <c, π̂> itself, over the noise of the second stage: how far π̂ is from a plan is not covered by it,
    and where π̂ has more mass than a plan it may lie above the bound, to which `cost` is cut.

    All arguments but these are as for `noisy_sinkhorn`.

    Args:
        regularization: η, by default the bound; `bounds.regularization_by_equation13` is the paper's choice.
        share: of ε for the first stage; by default the one with the least predicted error.
        confidence: of the interval.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> x, y = np.random.default_rng(0).random((2, 200, 2))
    >>> two_stage_cost(x, y, epsilon=5, delta=1e-5, cost_bound=2, noise=SeededNoise(0)).method
    'two-stage'
    """
    checks.fraction(confidence=confidence)
    source = checks.noise_or_secure(noise)
    clouds = Clouds.of(x, y, cost_bound=cost_bound, cost=cost, public=public, paired=paired)
    bound = clouds.setting.bound
    plan = TwoStageMechanism.plan(
        clouds.setting,
        regularization=bound if regularization is None else regularization,
        epsilon=epsilon,
        delta=delta,
        share=share,
        iterations=iterations,
    )
    account = Account.of(ledger, budget=budget, epsilon=epsilon, delta=delta)
    account.spend(plan.charge, what="two-stage", paired=paired)
    return plan.estimator(clouds, float(confidence))(source)
