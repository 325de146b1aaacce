"""ε of an event or a charge, by three accountants.

| accountant | what it computes |
|---|---|
| `pld` | privacy loss distributions, composed numerically from above; the tightest, the default |
| `rdp` | Rényi DP with the conversion of Canonne, Kamath and Steinke (2020) |
| `rdp-classic` | Rényi DP with the papers' own conversion, ε + log(1/δ)/(α - 1), for reproduction |

All three are valid upper bounds. `published_epsilon` is not: it repeats the papers' count for `image`.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.errors import MixedAdjacencyError, UnsupportedEventError
from dpsinkhorn.privacy import _pld, _rdp
from dpsinkhorn.privacy.charges import Adjacency, Charge, Event, Part, flatten
from dpsinkhorn.privacy.mechanisms import CriticMechanism, ImageMechanism, parts_of

Accountant: TypeAlias = Literal["pld", "rdp", "rdp-classic"]
"""The name of an accountant."""
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
"""Privacy loss distributions; Rényi differential privacy; the same, converted as in the papers."""


def epsilon(
    event: Event | Charge, delta: float, accountant: Accountant = "pld", *, adjacency: Adjacency | None = None
) -> float:
    """The ε for which the event is (ε, δ)-differentially private; an upper bound, infinite if there is none.

    Args:
        event: A charge, which knows its adjacency, or a bare dp-accounting event. A sample of one without
            replacement stands for one of K disjoint parts of the records, drawn in secret; its noise is over
            how far apart any two of the values are, with or without a record (docs/proofs/gs-wgan.md).
        delta: δ, from 0 (pure differential privacy) to below 1.
        accountant: `pld`, `rdp` or `rdp-classic`.
        adjacency: Of a bare event; add-or-remove-one unless given. With a charge it must be the charge's.

    Raises:
        UnsupportedEventError: The accountant has no proved bound for the event.
        MixedAdjacencyError: `adjacency` is not that of the charge.

    >>> from dpsinkhorn.privacy import RecordMechanism
    >>> training = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=1000)
    >>> round(epsilon(training, delta=1e-5), 1)
    8.3
    """
    if isinstance(event, Charge):
        if adjacency not in (None, event.adjacency):
            raise MixedAdjacencyError(f"this charge is under {event.adjacency.value}; convert it first")
        event, adjacency = event.event, event.adjacency
    adjacency = adjacency or Adjacency.ADD_OR_REMOVE_ONE
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, not {accountant}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be from 0 to below 1, not {delta}")
    parts = flatten(event)
    _validate(parts)
    if accountant == "pld":
        return _tightest(parts, delta, adjacency)
    rdp = _rdp.curve(parts, adjacency)  # before the pure bound, so that unknown events raise at every δ
    if delta == 0:
        return pure_epsilon(parts)
    convert = _rdp.improved if accountant == "rdp" else _rdp.classic
    return min(convert(rdp, delta), pure_epsilon(parts))


def published_epsilon(mechanism: ImageMechanism, sampling_rate: float, steps: int, delta: float) -> float:
    """**Not a valid guarantee.** ε as papers count it for per-image clipping: DP-Sinkhorn's, and GS-WGAN's.

    It composes rows x steps separately subsampled queries with the classic conversion. The rows of a step
    share one sample, so that this is too small: docs/proofs/image-published-epsilon.md has two data sets that
    can be told apart far better. For comparison with published figures only.

    >>> mechanism = ImageMechanism(clip=0.5, row_noise_multiplier=1.5, rows=50)
    >>> round(published_epsilon(mechanism, 1 / 1200, steps=160_000, delta=1e-5), 1)
    10.0
    """
    uses = mechanism.rows * steps
    if isinstance(mechanism, CriticMechanism):
        parts = parts_of(sampling_rate)
        rdp = _rdp.gaussian_without_replacement(parts, mechanism.row_noise_multiplier)
        return _rdp.classic(uses * rdp, delta)
    row = dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(mechanism.row_noise_multiplier))
    return epsilon(dp.SelfComposedDpEvent(row, uses), delta, "rdp-classic")


def _tightest(parts: tuple[Part, ...], delta: float, adjacency: Adjacency) -> float:
    """Return the least of PLD, RDP and pure bounds: all three are valid, so that it is."""
    try:
        bound = _rdp.improved(_rdp.curve(parts, adjacency), delta) if delta > 0 else math.inf
    except UnsupportedEventError:
        bound = math.inf  # RDP knows fewer events; PLD decides whether this one is known at all
    return _pld.epsilon(parts, delta, adjacency, min(bound, pure_epsilon(parts)))


def pure_epsilon(parts: tuple[Part, ...]) -> float:
    """Return ε at δ = 0: Laplace mechanisms add up, sampled or not; anything else has none."""
    total = 0.0
    for part in parts:
        event = part.event
        if isinstance(event, dp.PoissonSampledDpEvent):
            event = event.event  # without the sampling: an upper bound
        if not isinstance(event, dp.LaplaceDpEvent):
            return math.inf
        total += part.count / event.noise_multiplier
    return total


def _validate(parts: tuple[Part, ...]) -> None:
    """Noise multipliers and rates that dp-accounting would accept in silence, or stumble over."""
    for part in parts:
        event = part.event
        if isinstance(event, dp.PoissonSampledDpEvent):
            if not 0 < event.sampling_probability <= 1:
                raise ValueError(f"a sampling rate must be above 0 and at most 1: {event!r}")
            event = event.event
        if isinstance(event, dp.SampledWithoutReplacementDpEvent):
            if event.sample_size != 1:
                raise UnsupportedEventError(
                    f"there is no proved bound for more than one of some parts: {event!r}"
                )
            if not event.source_dataset_size >= 1:
                raise ValueError(f"expected one of 1 or more parts: {event!r}")
            event = event.event
        # beyond these limits squares leave the range of float64; no noise at all is NonPrivateDpEvent
        if isinstance(event, dp.GaussianDpEvent | dp.LaplaceDpEvent) and not (
            1e-100 <= event.noise_multiplier <= 1e100
        ):
            raise ValueError(f"a noise multiplier must be positive, from 1e-100 to 1e100: {event!r}")
