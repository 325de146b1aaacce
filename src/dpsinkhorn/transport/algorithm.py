"""Algorithm 1 of the paper, the noisy Sinkhorn iteration, line by line.

Nothing here knows of ε: noise comes from a function that is handed in, and so does what is done to a noisy ψ
before it is used again. Line 5 takes φ'_{k+1}, not the noisy φ_{k+1} that the listing prints: the proofs, the
paper's own included, are for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK = 2**21  # entries of the cost matrix at a time


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
    """Lines 3 to 5: minimise in φ, centre, minimise in ψ."""
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
    """The nearest vector whose entries span at most `span`: clamped to the interval that fits best.

    >>> project_span([0.0, 1.0, 5.0], 2.0)
    array([1.33333333, 1.33333333, 3.33333333])
    """
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
