"""Algorithm 1 of the paper, the noisy Sinkhorn iteration, and how far one replaced point moves a step.

Noise comes from a function that is handed in, and so does what is done to a noisy ψ before it is used again.
Line 5 takes φ'_{k+1}, not the noisy φ_{k+1} that the listing prints: the proofs, the paper's own included,
are for that. A step computes, from costs in [0, c̄] and a public ψ_k with a span of at most c̄,

    φ̃_i = -η log mean_j exp((ψ_j - c_ij) / η),    φ' = φ̃ - mean φ̃,
    ψ'_j = -η log mean_i exp((φ'_i - c_ij) / η).

Bounds are in the Euclidean norm of everything that is released: (φ', ψ'), or ψ' alone where y is public.
Proof: docs/proofs/noisy-sinkhorn.md. `paper_sensitivity` is the paper's own value, which is too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.transport.certified import rounding
from dpsinkhorn.transport.clouds import Setting

_BLOCK = 2**21  # entries of the cost matrix at a time

_Array = npt.NDArray[np.float64]
_PEAK = 3.921553634567505  # log²(1 + x) / x grows up to here
_STEEP = 300.0  # of c̄/η: beyond it e^(2c̄/η) would leave float64


@dataclass(frozen=True, eq=False)
class Exact:
    """The exact iterates of one step, before noise. **Private.**"""

    phi_tilde: Tensor
    phi: Tensor
    psi: Tensor


def transform(potential: Tensor, costs: Tensor, regularization: float) -> Tensor:
    """The (c, η)-transform ``-η log mean_j exp((potential_j - costs_ij) / η)`` of ``(m,)``, ``(n,)``."""
    rows = max(1, _BLOCK // costs.shape[-1])
    totals = [((potential - part) / regularization).logsumexp(-1) for part in torch.split(costs, rows)]
    return -regularization * (torch.cat(totals) - math.log(costs.shape[-1]))


def exact_step(costs: Tensor, psi: Tensor, regularization: float) -> Exact:
    """Do lines 3 to 5: minimise in φ, centre, minimise in ψ."""
    phi_tilde = transform(psi, costs, regularization)  # line 3
    phi = phi_tilde - phi_tilde.mean()  # line 4
    return Exact(phi_tilde, phi, transform(phi, costs.mT, regularization))  # line 5


def iterate(
    costs: Tensor,
    regularization: float,
    iterations: int,
    add_noise: Callable[[Exact, Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    prepare: Callable[[Tensor], Tensor] = lambda psi: psi,
) -> tuple[Tensor, Tensor]:
    """All of Algorithm 1, from zeros. `add_noise`, lines 6 to 9, takes θ' and θ_k and returns θ_{k+1}."""
    n, m = costs.shape
    phi, psi = costs.new_zeros(n), costs.new_zeros(m)  # line 1
    for _ in range(iterations):  # line 2
        psi = prepare(psi)
        phi, psi = add_noise(exact_step(costs, psi, regularization), phi, psi)
    return phi, psi  # line 11


def coupling(costs: Tensor, phi: Tensor, psi: Tensor, regularization: float) -> Tensor:
    """π̂_ij = exp((φ_i + ψ_j - c_ij) / η) / (n m). **For the curator alone**, unless both supports are public.

    It is not post-processing of the potentials: η log π̂_ij - φ_i - ψ_j gives every cost c_ij away, exactly.
    """
    return ((phi[:, None] + psi - costs) / regularization).exp_() / costs.numel()


def project_span(values: npt.ArrayLike, span: float) -> npt.NDArray[np.float64]:
    """Return the nearest vector whose entries span at most `span`: clamped to the interval that fits best."""
    values = np.asarray(values, dtype=np.float64)
    if np.ptp(values) <= span:
        return values
    # The best interval [a, a + span] balances what is cut below and above; that is increasing in a.
    low, high = float(values.min()), float(values.max()) - span

    def pull(start: float) -> float:
        return float(np.maximum(start - values, 0).sum() - np.maximum(values - start - span, 0).sum())

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if pull(middle) < 0 else (low, middle)
    start = (low + high) / 2
    end = start + span
    if end - start > span:  # rounded up
        end = math.nextafter(end, start)
    return values.clip(start, end)


@dataclass(frozen=True)
class StepSensitivity:
    """Sensitivities of one step: `x` and `y` are those of replacing one such point."""

    x: float
    y: float
    total: float  # of the release, under the setting's adjacency, rounding included


def step_sensitivity(setting: Setting, regularization: float, psi: npt.ArrayLike) -> StepSensitivity:
    """For a public ψ_k, ``(m,)``, that spans at most the bound.

    >>> found = step_sensitivity(Setting(n=1000, m=1000, bound=1.0), 1.0, np.zeros(1000))
    >>> round(found.x, 2), round(found.y, 2)
    (1.01, 1.01)
    """
    n, m, bound, eta = setting.n, setting.m, setting.bound, regularization
    psi = np.asarray(psi, dtype=np.float64)
    if float(np.ptp(psi)) > bound * (1 + 1e-12):
        raise TransportError("psi must span at most the cost bound; project it first")
    weights, others = _shares(psi / eta)
    # Both are bounds, rounded up by more than float64 errs in computing them.
    by_rows = math.sqrt(m) * bound / n + eta * _moved_columns(n, weights, others, bound / eta)
    columns = min(by_rows, bound * _moved_along(n, weights, others, bound / eta)) * (1 + 1e-9)
    share = eta * _log1p_exp_times(bound / eta, float(weights.max())) * (1 + 1e-9)
    if setting.public == "y":  # ψ' alone is released
        x, y = columns, 0.0
    else:
        x = math.hypot(bound * math.sqrt(1 - 1 / n), columns)
        y = _moved_by_column(n, m, bound, share)
    slack = 6 * rounding(setting, eta) * math.sqrt(n + m)
    return StepSensitivity(x, y, setting.worst(x, y) + slack)


def _shares(psi: _Array) -> tuple[_Array, _Array]:
    """w = softmax(ψ/η), and 1 - w as the sum of the others: near w = 1 a difference would lose all digits."""
    terms = np.exp(psi - psi.max())
    total, top = terms.sum(), int(np.argmax(terms))
    others = total - terms
    others[top] = np.delete(terms, top).sum()
    return terms / total, others / total


def _moved_columns(n: int, weights: _Array, others: _Array, ratio: float) -> float:
    """Bound the norm over j of log((S_j + t'_j) / (S_j + t_j)), for a row t that is replaced by t'.

    A row is t_j = e^(-c_j / η) / Σ w e^(-c / η): between lo_j and hi_j, and w t is a distribution. S_j is the
    sum of n - 1 other rows, so that S_j + t_j >= n lo_j.
    """
    if ratio > _STEEP:  # log(1 + e^(2c̄/η)) <= 2 c̄/η + log 2, entry by entry
        return math.sqrt(len(weights)) * (2 * ratio + math.log(2))
    low, high = _range_of_rows(weights, others, ratio)
    # (hi - lo) / (n lo), of |t' - t| / (S + min(t, t')): the entry alone. As a product nothing cancels.
    most = -math.expm1(-2 * ratio) * others * high / (n * math.exp(-ratio))
    alone = float(np.sum(np.log1p(most) ** 2))
    # All entries together: Σ w |t' - t| is twice a total variation, at most 2 tanh(c̄ / 2η).
    x = np.minimum(most, _PEAK)
    slope = np.where(x > 0, np.log1p(x) ** 2 / np.maximum(x, 1e-300), 0.0)
    together = 2 * math.tanh(ratio / 2) * float(np.max(slope / (n * low * weights)))
    return math.sqrt(min(alone, together))


def _moved_along(n: int, weights: _Array, others: _Array, ratio: float) -> float:
    """The same norm of ψ' over c̄, along the way from one row to the other; near the truth where η is large.

    dψ'_j = (1/n) dφ̃ + v_j (dc_j - dφ̃), v_j the share of the row in column j: at most max(1/n, 2 v_j - 1/n).
    """
    share = np.ones_like(weights)
    if ratio <= _STEEP:
        low, high = _range_of_rows(weights, others, ratio)
        share = high / ((n - 1) * low + high)
    return float(np.linalg.norm(np.maximum(1 / n, 2 * share - 1 / n)))


def _range_of_rows(weights: _Array, others: _Array, ratio: float) -> tuple[_Array, _Array]:
    """Return the limits of every entry of a row t, whatever its costs."""
    q = math.exp(-ratio)
    return q / (others + weights * q), 1 / (weights + others * q)


def _log1p_exp_times(ratio: float, weight: float) -> float:
    """Return log(1 + (e^ratio - 1) weight) without overflow: by how many η a replaced y moves one φ̃_i."""
    if ratio > 700:
        return ratio + math.log(weight) + math.exp(-ratio) / weight
    return math.log1p(math.expm1(ratio) * weight)


def _moved_by_column(n: int, m: int, bound: float, share: float) -> float:
    """Bound what a new y moves: φ̃_i by at most `share`, with mean ±α; the worst α in [0, share] counts."""
    alpha = share
    if n > m:
        alpha = min(share, (m * share + bound) / (n - m))
    squared = n * (share**2 - alpha**2) + (m - 1) * (share + alpha) ** 2 + (bound + share + alpha) ** 2
    return math.sqrt(squared)


def paper_sensitivity(n: int, bound: float, regularization: float) -> float:
    """Δ₂ of Theorem 2 as printed. **Too small**: it is that of a function's value, not of 2n coordinates.

    >>> round(paper_sensitivity(1000, 1.0, 1.0), 2)
    0.96
    """
    exponent = 6 * bound / regularization + math.log(4 * regularization * bound / n)
    return regularization * (exponent if exponent > 700 else math.log1p(math.exp(exponent)))
