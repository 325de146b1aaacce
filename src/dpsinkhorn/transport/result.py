"""What a private transport cost comes with: an interval, what it cost in privacy, and how it was made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpsinkhorn.privacy import Charge

CostMethod: TypeAlias = Literal[
    "direct", "noisy-sinkhorn", "histogram", "linear-program", "sliced", "smoothed-sliced"
]
Method: TypeAlias = Literal[CostMethod, "two-stage"]
Quantity: TypeAlias = Literal["entropic", "exact", "divergence"]
Released: TypeAlias = Literal[Quantity, "sliced", "smoothed-sliced", "plan-cost"]


@dataclass(frozen=True)
class PrivateCost:
    """A released transport cost. ε is proved, and every field is private in its sense: safe to show.

    Attributes:
        cost: the estimate, within what is possible at all (0 to the bound, for a transport cost).
        released: the noised value as it left the private data, without bias from that limit.
        interval: contains the true value for these samples (for histogram and linear-program, that of the
            binned data; for two-stage, <c, π̂>) with probability `confidence`, over the noise.
        population_interval: contains the same for the populations, of which rows are independent draws, with
            probability `confidence` over noise and samples; None where none is proved.
        quantity: what is estimated: the transport cost (exact), the entropic cost, the Sinkhorn divergence,
            the mean along lines (sliced, smoothed-sliced), or the <c, π̂> of two-stage (plan-cost).
        predicted_error: mean absolute error to expect, from public quantities alone (for histogram and
            linear-program, from the released histograms); see `notes` for what it leaves out.
        sizes: n and m.
        reason: why this method was taken.
        seeded: made with predictable noise: not for release.
    """

    cost: float
    released: float
    interval: tuple[float, float]
    confidence: float
    epsilon: float
    delta: float
    method: Method
    quantity: Released
    predicted_error: float
    regularization: float
    cost_bound: float
    adjacency: str
    reason: str
    seeded: bool
    sizes: tuple[int, int]
    charge: Charge = field(repr=False)
    population_interval: tuple[float, float] | None = None
    remarks: tuple[str, ...] = field(default=(), repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What cost, interval and predicted error are of, where that is not simply the transport cost."""
        at = f"regularization {self.regularization:g}"
        most = self.regularization * math.log(min(self.sizes))
        notes = []
        if self.quantity == "exact" and self.method == "direct":
            notes.append("The transport cost of these samples itself, without regularization.")
        if self.quantity == "entropic" and most > 0:
            notes.append(
                f"An entropic cost, at {at}: larger than the transport cost, by up to regularization times "
                f"log min(n, m) = {most:.3g}, and not 0 for equal data; regularization 0 is the exact cost."
            )
        if self.quantity == "divergence":
            notes.append(
                f"The Sinkhorn divergence, at {at}: 0 for equal data, and near twice the transport cost "
                "where the regularization is small."
            )
        if self.quantity == "sliced":
            notes.append(
                "The mean over public directions of the transport cost between projections: at most the "
                "transport cost itself, of points moved to within the bound."
            )
        if self.quantity == "smoothed-sliced":
            notes.append(
                "The mean distance along lines of measures that are smoothed by normal noise, which brings "
                "them closer. What noise alone adds was taken out of the cost."
            )
        if self.method == "linear-program":
            notes.append(
                "An upper bound, with the probability of the interval: of mass that is there for certain, "
                "the rest at the largest cost."
            )
        if self.method in ("histogram", "linear-program"):
            notes.append(
                "Cost, interval and predicted error are of the data moved to the nearest points of the "
                "support: what that changes is not known, and not in them."
            )
        if self.quantity == "plan-cost":
            notes.append(
                f"<c, P> of a P made of noisy potentials, at {at}: neither the exact nor the entropic cost, "
                "and the interval is of <c, P> itself. The predicted error is of the noise, beside the "
                "entropic cost: that <c, P> leaves out the entropy is not in it."
            )
        return (*notes, *self.remarks)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, for users: not what only the curator's own programs need."""
        shown = {k: v for k, v in vars(self).items() if k not in ("released", "sizes", "charge", "remarks")}
        populations = self.population_interval
        return {
            **shown,
            "interval": list(self.interval),
            "population_interval": None if populations is None else list(populations),
            "notes": list(self.notes),
        }
