"""Rényi differential privacy: the curve of an event, and its two conversions to (ε, δ)."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Iterator

import dp_accounting as dp  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from dpsinkhorn.errors import UnsupportedEventError
from dpsinkhorn.privacy.charges import Adjacency, Event, Part

# dp-accounting's own orders, so that our figures are those of other tools. The smallest is 1.1: at ε in the
# hundreds smaller orders would give less (891 instead of 984 for the final version's MNIST setting).
ORDERS: NDArray[np.float64] = np.asarray(dp.rdp.RdpAccountant().orders, dtype=np.float64)


@contextlib.contextmanager
def _without_dropped_orders() -> Iterator[None]:
    """dp-accounting warns of every order it drops; a dropped order only loosens the bound."""
    logger = logging.getLogger("absl")

    def keep(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _rdp_of(event: Event) -> NDArray[np.float64]:
    with _without_dropped_orders():
        return np.asarray(dp.rdp.RdpAccountant(ORDERS).compose(event).rdp, dtype=np.float64)


@functools.lru_cache(maxsize=256)
def _sampled_gaussian(sampling_rate: float, noise_multiplier: float) -> NDArray[np.float64]:
    """RDP of one Poisson-sampled Gaussian at every order; cached because searches ask for it repeatedly."""
    event = dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(noise_multiplier))
    # The curve is the logarithm of a sum near 1, divided by α - 1. At small rates rounding can take it below
    # its true value, even below 0, which millions of steps multiply: a few units in the last place go on top,
    # and one part in 10^12 where it is far from 1.
    rounding = 1e-15 * (ORDERS + 1) * (1 + sampling_rate * ORDERS) / (ORDERS - 1)
    curve = np.maximum(_rdp_of(event), 0.0) * (1 + 1e-12) + rounding
    curve.setflags(write=False)
    return curve


def gaussian_without_replacement(parts: int, noise_multiplier: float) -> NDArray[np.float64]:
    """RDP of a Gaussian on one of several parts as GS-WGAN counts it: Wang et al. (2019)."""
    event = dp.SampledWithoutReplacementDpEvent(parts, 1, dp.GaussianDpEvent(noise_multiplier))
    with _without_dropped_orders():
        accountant = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE).compose(event)
    return np.asarray(accountant.rdp, dtype=np.float64)


def _gaussian_on_one_part(parts: int, noise_multiplier: float) -> NDArray[np.float64]:
    """RDP of the same at every order; it stays near the true one at large ε: docs/proofs/gs-wgan.md."""
    logs = (ORDERS - 1) * _sampled_gaussian(1 / parts, noise_multiplier)
    doubled = logs + math.log(2) + np.log1p(-np.exp(-logs) / 2)  # log(2 exp(logs) - 1)
    return np.asarray(doubled / (ORDERS - 1), dtype=np.float64)


def _curve_of_leaf(event: Event, adjacency: Adjacency) -> NDArray[np.float64]:
    match event:
        case dp.PoissonSampledDpEvent(event=dp.GaussianDpEvent()):
            if adjacency is Adjacency.REPLACE_ONE:
                raise UnsupportedEventError(
                    "RDP has no bound for Poisson sampling under replace-one; use the accountant pld"
                )
            return _sampled_gaussian(float(event.sampling_probability), float(event.event.noise_multiplier))
        case dp.SampledWithoutReplacementDpEvent(event=dp.GaussianDpEvent()):
            if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
                return _gaussian_on_one_part(
                    int(event.source_dataset_size), float(event.event.noise_multiplier)
                )
        # Our noise multipliers refer to the sensitivity under the charge's own adjacency, and the divergence
        # of two shifted Gaussians or Laplace densities depends on nothing else: no relation is passed on.
        case dp.GaussianDpEvent() | dp.NonPrivateDpEvent():
            return _rdp_of(event)
        case dp.LaplaceDpEvent():
            # a difference of two numbers near 1 / multiplier, whose rounding goes on top
            return np.maximum(_rdp_of(event), 0.0) + 2e-15 / float(event.noise_multiplier)
    raise UnsupportedEventError(f"the RDP accountant has no bound for {event!r}")


def curve(parts: tuple[Part, ...], adjacency: Adjacency) -> NDArray[np.float64]:
    """Return RDP at every order of `ORDERS`: composition is the sum (Mironov 2017, Proposition 1)."""
    total = np.zeros_like(ORDERS)
    for part in parts:
        total = total + part.count * _curve_of_leaf(part.event, adjacency)
    return total


def improved(rdp: NDArray[np.float64], delta: float) -> float:
    """Canonne, Kamath and Steinke (2020), Proposition 12, as dp-accounting has it."""
    epsilon, _ = dp.rdp.rdp_privacy_accountant.compute_epsilon(ORDERS, rdp, delta)
    return float(epsilon)


def classic(rdp: NDArray[np.float64], delta: float) -> float:
    """Mironov (2017), Proposition 3, the papers' own: min over α of rdp(α) + log(1/δ) / (α - 1)."""
    return float(np.min(rdp + math.log(1 / delta) / (ORDERS - 1)))


def log_delta(
    rdp: NDArray[np.float64], epsilons: NDArray[np.float64], *, classic: bool
) -> NDArray[np.float64]:
    """log δ at some ε: either conversion solved for δ, at the best order; even where δ itself underflows."""
    gain = 0.0 if classic else (ORDERS - 1) * np.log1p(-1 / ORDERS) - np.log(ORDERS)
    logs = (ORDERS - 1) * (rdp - epsilons[:, None]) + gain  # (ε, orders)
    return np.asarray(np.minimum(np.min(logs, axis=1), 0.0), dtype=np.float64)
