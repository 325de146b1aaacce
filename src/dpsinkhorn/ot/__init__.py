"""Optimal transport, pure: knows nothing of privacy or networks."""

from dpsinkhorn.ot.costs import (
    COST_NAMES,
    L1L2,
    Cityblock,
    Cost,
    Euclidean,
    SquaredEuclidean,
    as_cost,
    with_labels,
)
from dpsinkhorn.ot.divergence import (
    SinkhornLoss,
    debiased_loss,
    empirical_loss,
    semi_debiased_loss,
    transport_loss,
)
from dpsinkhorn.ot.native import compiled
from dpsinkhorn.ot.problem import MatrixProblem, Problem
from dpsinkhorn.ot.samples import SamplesLoss
from dpsinkhorn.ot.sinkhorn import ConvergenceWarning, SinkhornResult, solve

__all__ = [
    "COST_NAMES",
    "L1L2",
    "Cityblock",
    "ConvergenceWarning",
    "Cost",
    "Euclidean",
    "MatrixProblem",
    "Problem",
    "SamplesLoss",
    "SinkhornLoss",
    "SinkhornResult",
    "SquaredEuclidean",
    "as_cost",
    "compiled",
    "debiased_loss",
    "empirical_loss",
    "semi_debiased_loss",
    "solve",
    "transport_loss",
    "with_labels",
]
