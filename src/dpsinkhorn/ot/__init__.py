"""Optimal transport, pure: knows nothing of privacy or networks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsinkhorn.ot.barycenters import barycenter
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
    from dpsinkhorn.ot.over_ranks import RowsResult, solve_rows
    from dpsinkhorn.ot.problem import MatrixProblem, Problem
    from dpsinkhorn.ot.samples import SamplesLoss
    from dpsinkhorn.ot.second_order import matrix_loss
    from dpsinkhorn.ot.sinkhorn import ConvergenceWarning, SinkhornResult, solve
    from dpsinkhorn.ot.sliced import line_costs, sliced_cost, whole_bases

__all__ = [
    "COST_NAMES",
    "L1L2",
    "Cityblock",
    "ConvergenceWarning",
    "Cost",
    "Euclidean",
    "MatrixProblem",
    "Problem",
    "RowsResult",
    "SamplesLoss",
    "SinkhornLoss",
    "SinkhornResult",
    "SquaredEuclidean",
    "as_cost",
    "barycenter",
    "compiled",
    "debiased_loss",
    "empirical_loss",
    "line_costs",
    "matrix_loss",
    "semi_debiased_loss",
    "sliced_cost",
    "solve",
    "solve_rows",
    "transport_loss",
    "whole_bases",
    "with_labels",
]

# Names are imported when they are first used: who needs a cost alone need not load the solver. In this order
# none of the modules loads a later one.
_MODULES = (
    "costs",
    "native",
    "problem",
    "sinkhorn",
    "second_order",
    "barycenters",
    "divergence",
    "samples",
    "over_ranks",
    "sliced",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f"{__name__}.{module}"))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
