"""What a private transport cost comes with: an interval, what it cost in privacy, and how it was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpsinkhorn.privacy import Charge

__all__ = ["Method", "PrivateCost", "Quantity"]

Method: TypeAlias = Literal["direct", "noisy-sinkhorn", "histogram", "two-stage"]
Quantity: TypeAlias = Literal["entropic", "exact", "divergence"]


@dataclass(frozen=True)
class PrivateCost:
    """A released transport cost. ε is proved, and every field is private in its sense: safe to show.

    Attributes:
        cost: the estimate, within what is possible at all (0 to the bound, for a transport cost).
        released: the noised value as it left the private data, without bias from that limit.
        interval: contains the true value (for histogram, that of the binned data; for two-stage, <c, π̂>) with
            probability `confidence`, over the noise.
        predicted_error: mean absolute error to expect, from public quantities alone.
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
    quantity: Quantity
    predicted_error: float
    regularization: float
    cost_bound: float
    adjacency: str
    reason: str
    seeded: bool
    charge: Charge = field(repr=False)

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
            "seeded": self.seeded,
        }
