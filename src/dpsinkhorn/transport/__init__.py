"""Private optimal transport: costs and potentials between data sets that are not to be shown."""

from dpsinkhorn.errors import TransportError
from dpsinkhorn.transport import bounds
from dpsinkhorn.transport.algorithm import paper_sensitivity, step_sensitivity
from dpsinkhorn.transport.clouds import CappedCost, Clouds, Setting
from dpsinkhorn.transport.cost import private_cost
from dpsinkhorn.transport.direct import DirectMechanism, cost_sensitivity
from dpsinkhorn.transport.histogram import (
    FeasiblePlan,
    HistogramMechanism,
    LinearProgramMechanism,
    NoisyHistograms,
)
from dpsinkhorn.transport.noisy import NoisyPotentials, NoisySinkhorn, noisy_sinkhorn
from dpsinkhorn.transport.reading import read_points, read_together
from dpsinkhorn.transport.release import PrivateCost
from dpsinkhorn.transport.sliced import SlicedMechanism, SmoothedMechanism, published_sensitivity
from dpsinkhorn.transport.tradeoff import (
    Tradeoff,
    TradeoffRow,
    draw_tradeoff,
    measure_tradeoff,
    write_tradeoff,
)
from dpsinkhorn.transport.two_sample import PrivateTest, TwoSampleMechanism, private_test
from dpsinkhorn.transport.two_stage import TwoStageMechanism, linear_sensitivity, two_stage_cost

__all__ = [
    "CappedCost",
    "Clouds",
    "DirectMechanism",
    "FeasiblePlan",
    "HistogramMechanism",
    "LinearProgramMechanism",
    "NoisyHistograms",
    "NoisyPotentials",
    "NoisySinkhorn",
    "PrivateCost",
    "PrivateTest",
    "Setting",
    "SlicedMechanism",
    "SmoothedMechanism",
    "Tradeoff",
    "TradeoffRow",
    "TransportError",
    "TwoSampleMechanism",
    "TwoStageMechanism",
    "bounds",
    "cost_sensitivity",
    "draw_tradeoff",
    "linear_sensitivity",
    "measure_tradeoff",
    "noisy_sinkhorn",
    "paper_sensitivity",
    "private_cost",
    "private_test",
    "published_sensitivity",
    "read_points",
    "read_together",
    "step_sensitivity",
    "two_stage_cost",
    "write_tradeoff",
]
