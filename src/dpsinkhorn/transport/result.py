"""What a private transport cost comes with: an interval, what it cost in privacy, and how it was made."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpsinkhorn.privacy import Charge, Ledger
from dpsinkhorn.transport.errors import TransportError

__all__ = ["Method", "PrivateCost", "Quantity", "spend"]

Method: TypeAlias = Literal["direct", "noisy-sinkhorn", "histogram", "two-stage"]
Quantity: TypeAlias = Literal["entropic", "exact", "divergence"]
_RUN_NAME = re.compile(r"-(record|person)-[0-9a-f]{8}$")  # as training names its runs


@dataclass(frozen=True)
class PrivateCost:
    """A released transport cost. Every field is private in the sense of its guarantee: safe to show.

    Attributes:
        cost: the estimate, within what is possible at all (0 to the bound, for a transport cost).
        released: the noised value as it left the private data, without bias from that limit.
        interval: contains the true value (for histogram, that of the binned data; for two-stage, <c, π̂>) with
            probability `confidence`, over the noise.
        predicted_error: mean absolute error to expect, from public quantities alone.
        reason: why this method was taken.
        private: whether epsilon is a proved guarantee; False for the paper's own calibration.
        seeded: made with predictable noise: not for release.
    """

    cost: float
    released: float
    interval: tuple[float, float]
    confidence: float
    epsilon: float
    delta: float
    method: Method
    quantity: Quantity
    predicted_error: float
    regularization: float
    cost_bound: float
    adjacency: str
    reason: str
    seeded: bool
    charge: Charge = field(repr=False)
    private: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "cost": self.cost,
            "interval": list(self.interval),
            "confidence": self.confidence,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "method": self.method,
            "quantity": self.quantity,
            "predicted_error": self.predicted_error,
            "regularization": self.regularization,
            "cost_bound": self.cost_bound,
            "adjacency": self.adjacency,
            "reason": self.reason,
            "guaranteed": self.private,
            "seeded": self.seeded,
        }


def spend(ledger: Ledger | None, charge: Charge, *, what: str, paired: bool) -> None:
    """Write a charge down before anything private is computed. The run's name says whom it protects."""
    if ledger is None:
        return
    unit = "person" if paired else "record"
    for name in ledger.statement().runs:
        if (known := _RUN_NAME.search(name)) and known[1] != unit:
            raise TransportError(
                f"the ledger is of runs that protect each {known[1]}, and this one protects each {unit}; "
                "give it another ledger"
            )
    ledger.spend(charge, run=f"transport-{what}-{unit}-{os.urandom(4).hex()}")
