"""Private optimal transport: costs and potentials between data sets that are not to be shown."""

from dpsinkhorn.transport.clouds import Clouds, Setting
from dpsinkhorn.transport.cost import private_cost
from dpsinkhorn.transport.costs import CappedCost
from dpsinkhorn.transport.direct import DirectMechanism, cost_sensitivity
from dpsinkhorn.transport.errors import TransportError
from dpsinkhorn.transport.histogram import HistogramMechanism, NoisyHistograms
from dpsinkhorn.transport.result import PrivateCost

__all__ = [
    "CappedCost",
    "Clouds",
    "DirectMechanism",
    "HistogramMechanism",
    "NoisyHistograms",
    "PrivateCost",
    "Setting",
    "TransportError",
    "cost_sensitivity",
    "private_cost",
]
