"""Privacy loss distributions: numerical composition on a grid, always from above.

dp-accounting discretises each loss by connecting the dots (Doroshenko et al. 2022): on a fixed grid the
result is an upper bound, and a monotone one. What is left to choose is the grid, and where rounding to
double precision would spoil the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dp_accounting as dp  # type: ignore[import-untyped]
import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_mechanism  # type: ignore[import-untyped]
from dp_accounting.pld import privacy_loss_distribution as pld
from numpy.typing import NDArray
from scipy import fft, optimize

from dpsinkhorn.errors import UnsupportedEventError
from dpsinkhorn.privacy.charges import Adjacency, Event, Part

_ACCURACY = 2e-3  # target for the share of ε that the grid adds
_COARSEST = 2.0**-8  # where nothing forbids it
_COARSE = 2.0**-3  # with grids wider than this ε is in the hundred thousands, and any bound will do
_LARGEST = 400_000  # points of one step's distribution
_FINEST_SHARE = 1e-6  # of ε: keeps the composed distribution to a few million points
_MOST_POINTS = 2**25  # of a composed distribution
_TAIL = 1e-6  # share of δ given away to each truncation
_ROUNDING = 2e-15  # of probability mass, per composed step: a dozen units in the last place
_PROFILE_POINTS = 64
_SAMPLED = dp.PoissonSampledDpEvent | dp.SampledWithoutReplacementDpEvent


def epsilon(parts: tuple[Part, ...], delta: float, adjacency: Adjacency, bound: float) -> float:
    """ε at δ of all parts together, given a `bound` on it that some other proof supplies (may be infinite).

    Where δ is so small that double precision cannot resolve it, or ε beyond all use, the answer is `bound`.
    """
    if any(isinstance(part.event, dp.NonPrivateDpEvent) for part in parts):
        return math.inf
    for part in parts:
        _require_known(part.event, adjacency)
    if not parts or bound == 0:
        return 0.0
    # FFT and the differences of the discretisation err by a few units in the last place per step. That much
    # of δ is set aside, so that rounding cannot make the reported ε too small.
    resolved = delta - _rounding(parts)
    total = composed(parts, delta, adjacency, bound) if resolved >= delta / 2 else None
    if total is None:
        return bound
    with np.errstate(all="ignore"):
        return _solve(total, resolved, bound)


def profile(
    parts: tuple[Part, ...], adjacency: Adjacency, lowest: float, bound_at: Callable[[float], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Some ε from `lowest` on, ascending, and the δ that each is proved for, as far as rounding lets δ fall.

    One composition serves them all. `bound_at` gives ε at a δ by some other proof. Empty where a composition
    is of no use.
    """
    nothing = np.empty(0), np.empty(0)
    for part in parts:
        _require_known(part.event, adjacency)
    rounding = _rounding(parts)
    bound = bound_at(2 * rounding)
    total = composed(parts, 2 * rounding, adjacency, bound) if 2 * rounding < 1 else None
    if total is None:
        return nothing
    with np.errstate(all="ignore"):
        highest = _solve(total, rounding, bound)
        if not lowest < highest < math.inf:
            return nothing
        points = np.linspace(lowest, highest, _PROFILE_POINTS)
        return points, np.array([total.get_delta_for_epsilon(float(e)) + rounding for e in points])


def _rounding(parts: tuple[Part, ...]) -> float:
    """Return what of δ is set aside for rounding."""
    return _ROUNDING * (sum(part.count for part in _merge_gaussians(parts)) + 100)


def composed(parts: tuple[Part, ...], delta: float, adjacency: Adjacency, bound: float) -> Any:
    """Return the loss of all parts together, good for this δ and above; `None` where ε is beyond all use."""
    parts = _merge_gaussians(parts)
    steps = sum(part.count for part in parts)
    interval = _interval(parts, steps, delta, bound)
    if interval > _COARSE:
        return None
    total: Any = None
    with np.errstate(all="ignore"):
        for part in parts:
            loss = _distribution(part, delta / steps, adjacency, interval)
            if part.count > 1:
                try:
                    loss = _repeat(loss, part.count, delta * _TAIL)
                except _TooLargeError:
                    return None
            total = loss if total is None else total.compose(loss, delta * _TAIL)
    return total


class _TooLargeError(Exception):
    """The composed distribution would not fit in ordinary memory."""


def _repeat(loss: Any, count: int, tail: float) -> Any:
    """A distribution composed `count` times with itself; a mass of up to `tail` is moved to infinite loss.

    dp-accounting's own `self_compose` is not made for millions of steps: small distributions it keeps as
    dictionaries, for which it works out size ** count in full, and the window it keeps is too wide by far.
    """
    remove = _repeat_pmf(loss._pmf_remove.to_dense_pmf(), count, tail)
    add = None if loss._symmetric else _repeat_pmf(loss._pmf_add.to_dense_pmf(), count, tail)
    return pld.PrivacyLossDistribution(remove, add)


def _repeat_pmf(pmf: Any, count: int, tail: float) -> Any:
    probabilities = np.asarray(pmf._probs, dtype=np.float64)
    bins = np.arange(len(probabilities))
    mean = float(probabilities @ bins)
    spread = math.sqrt(max(float(probabilities @ (bins - mean) ** 2), 1e-12))
    # Any orders give a valid window by Chernoff's bound. It is narrowest near sqrt(2 log(1/tail) / variance)
    # where the sum is nearly Gaussian, and at a few times 1/size where few steps carry all of the loss.
    best = math.sqrt(2 * math.log(2 / tail) / count) / spread
    orders = np.append(best * np.geomspace(1 / 16, 4, 25), np.geomspace(0.1, 50, 25) / len(bins))
    low, high = common.compute_self_convolve_bounds(probabilities, count, tail, np.append(-orders, orders))
    if high - low > _MOST_POINTS:
        raise _TooLargeError
    size = fft.next_fast_len(max(high - low + 1, len(bins)), real=True)
    composed = fft.irfft(
        fft.rfft(probabilities, size) ** count, size
    )  # periodic: what lies outside wraps around
    window = np.roll(composed, -low)[: high - low + 1]
    infinite = tail - math.expm1(count * math.log1p(-pmf._infinity_mass))
    return pld_pmf.DensePLDPmf(pmf._discretization, pmf._lower_loss * count + low, window, infinite, True)


def _merge_gaussians(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Gaussians compose exactly: k of multiplier σ_i are one of multiplier (Σ k / σ²)^(-1/2)."""
    precision = sum(
        p.count / p.event.noise_multiplier**2 for p in parts if isinstance(p.event, dp.GaussianDpEvent)
    )
    others = tuple(p for p in parts if not isinstance(p.event, dp.GaussianDpEvent))
    if not precision:
        return others
    return (*others, Part(dp.GaussianDpEvent(1 / math.sqrt(precision)), 1))


def _solve(total: Any, delta: float, bound: float) -> float:
    """Return the ε at which δ(ε) falls to `delta`, from above.

    dp-accounting has such a function too, but it sums exp(-loss), which is lost to underflow at ε near 745.
    """

    def excess(e: float) -> float:
        return math.log(max(float(total.get_delta_for_epsilon(e)), 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    high = bound if math.isfinite(bound) else 1.0
    while math.isinf(bound) and excess(high) > 0:
        high *= 4
        if high > 1e6:
            return bound
    if not excess(high) <= 0:
        return bound
    tolerance = 1e-9
    root = float(optimize.brentq(excess, 0.0, high, xtol=tolerance, rtol=tolerance))
    return min(root + 2 * tolerance * (1 + root), bound)


def _interval(parts: tuple[Part, ...], steps: int, delta: float, bound: float) -> float:
    """Width of the grid.

    Connecting the dots adds to every step's loss a variance of at most a quarter of the squared width, hence
    about steps * width² / 4 to ε where the mean of the loss rules, and a share of about log(1/δ) steps *
    width² / 4ε² of it where its spread does. The width is chosen for a share of `_ACCURACY` / 2, then limited
    by memory. Powers of two, so that neighbouring settings mostly share a grid and stay in order.
    """
    scale = bound if math.isfinite(bound) else 1.0
    wanted = math.sqrt(_ACCURACY * min(scale / 2, 2 * scale * scale / math.log(2 / delta)) / steps)
    reach = max(_reach(part.event) for part in parts)
    width = max(min(wanted, _COARSEST), scale * _FINEST_SHARE, reach / _LARGEST)
    return float(2.0 ** math.floor(math.log2(width)))


def _reach(event: Event) -> float:
    """Return roughly how far one step's losses reach."""
    noise = event.event if isinstance(event, _SAMPLED) else event
    if isinstance(noise, dp.LaplaceDpEvent):
        return float(2 / noise.noise_multiplier)
    return float((1 + 20 * noise.noise_multiplier) / noise.noise_multiplier**2)


def _require_known(event: Event, adjacency: Adjacency) -> None:
    match event:
        case (
            dp.GaussianDpEvent() | dp.LaplaceDpEvent() | dp.PoissonSampledDpEvent(event=dp.GaussianDpEvent())
        ):
            return
        case (
            dp.PoissonSampledDpEvent(event=dp.LaplaceDpEvent())
            | dp.SampledWithoutReplacementDpEvent(event=dp.GaussianDpEvent())
        ):
            if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
                return
    raise UnsupportedEventError(f"the PLD accountant has no bound for {event!r} under {adjacency.value}")


def _distribution(part: Part, delta: float, adjacency: Adjacency, interval: float) -> Any:
    """Return the privacy loss of one use of a leaf. `delta` is this step's share of the total."""
    event = part.event
    if isinstance(event, dp.SampledWithoutReplacementDpEvent):
        noise = float(event.event.noise_multiplier)
        return _on_one_part(noise, int(event.source_dataset_size), math.log(delta * _TAIL), interval)
    sampled = isinstance(event, dp.PoissonSampledDpEvent)
    rate = float(event.sampling_probability) if sampled else 1.0
    noise = float((event.event if sampled else event).noise_multiplier)
    if isinstance(event.event if sampled else event, dp.LaplaceDpEvent):
        return pld.from_laplace_mechanism(noise, sampling_prob=rate, value_discretization_interval=interval)
    options = {
        "sampling_prob": rate,
        "value_discretization_interval": interval,
        "log_mass_truncation_bound": math.log(delta * _TAIL),
    }
    if sampled and adjacency is Adjacency.REPLACE_ONE:
        # Ours is noise / replace-one sensitivity; dp-accounting's is noise / norm of one record's addend,
        # which is half as large: docs/proofs/composing-adjacencies.md.
        options["neighboring_relation"] = adjacency.relation
        noise *= 2
    return pld.from_gaussian_mechanism(noise, **options)


def _on_one_part(noise: float, parts: int, log_tail: float, interval: float) -> Any:
    """Return the privacy loss of a Gaussian on one of several parts of the data: docs/proofs/gs-wgan.md.

    Its divergences are those of removing a record from a Poisson sample where α >= 1, and those of adding
    one where α < 1, in both orders of the neighbours.
    """
    remove, add = (
        privacy_loss_mechanism.GaussianPrivacyLoss(
            noise, sampling_prob=1 / parts, adjacency_type=kind, log_mass_truncation_bound=log_tail
        )
        for kind in (privacy_loss_mechanism.AdjacencyType.REMOVE, privacy_loss_mechanism.AdjacencyType.ADD)
    )
    lowest = math.floor(add.connect_dots_bounds().epsilon_lower / interval)
    highest = math.ceil(remove.connect_dots_bounds().epsilon_upper / interval)
    grid = np.arange(lowest, highest + 1) * interval
    deltas = np.concatenate(
        [add.get_delta_for_epsilon(grid[grid < 0]), remove.get_delta_for_epsilon(grid[grid >= 0])]
    )
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, deltas)
    return pld.PrivacyLossDistribution(pmf)
