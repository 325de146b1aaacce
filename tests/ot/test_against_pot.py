"""Values of generated problems, solved in every way, beside POT's Sinkhorn and its exact solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from dpsinkhorn.ot import ConvergenceWarning, native, solve
from support.problems import generate, relative_error, solve_by_pot

PROBLEMS, CHUNK = 320, 40


@dataclass(frozen=True)
class Way:
    """How a problem is solved, how far the value may be off, and for what part of all it must converge."""

    options: dict[str, Any]
    bound: float = 1e-9
    dtype: torch.dtype = torch.float64
    compiled: bool = True
    exact: bool = False
    part: float = 1.0


WAYS = {
    "newton": Way({}),
    "streamed": Way({"storage": "streamed"}),
    "without the compiled loops": Way({}, compiled=False),
    "float32": Way({}, bound=1e-5, dtype=torch.float32),
    "sinkhorn": Way({"method": "sinkhorn", "max_iterations": 20_000}, part=0.8),  # slow at small λ
    "exact": Way({}, exact=True),
}


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")
@pytest.mark.parametrize("first", range(0, PROBLEMS, CHUNK))
def test_value_agrees_with_pot(first: int, monkeypatch: pytest.MonkeyPatch):
    converged = dict.fromkeys(WAYS, 0)
    cold_starts = 0
    for seed in range(first, first + CHUNK):
        case = generate(seed)
        results = {}
        for name, way in WAYS.items():
            with monkeypatch.context() as patch:
                if not way.compiled:
                    patch.setattr(native, "library", None)
                regularization = 0.0 if way.exact else case.regularization
                result = results[name] = solve(case.problem(way.dtype), regularization, **way.options)
            assert math.isfinite(result.value), (name, case)
            assert all(torch.isfinite(t).all() for t in (result.f, result.g, result.plan)), (name, case)

        # POT from a cold start; where that is too slow at this λ, from our potentials. A fixed point of
        # Sinkhorn's iteration is the optimum (the dual is concave), so the value at one is the answer.
        precise = results["newton"]
        costs = case.cost.pairwise(case.x, case.y)
        reference = solve_by_pot(costs, case.a, case.b, case.regularization)
        if reference.marginal_error < 1e-9:
            cold_starts += 1
        else:
            start = (precise.f, precise.g)
            reference = solve_by_pot(costs, case.a, case.b, case.regularization, start)
            assert reference.marginal_error < 1e-8, case

        for name, way in WAYS.items():
            if results[name].converged:
                converged[name] += 1
                expected = reference.exact if way.exact else reference.value
                assert relative_error(float(results[name].value), expected, costs) <= way.bound, (name, case)
        rounding = 1e-9 * float(costs.max()) + 1e-12
        most = reference.exact + case.regularization * math.log(costs.numel())
        assert reference.exact - rounding <= precise.value <= most + rounding, case
    for name, way in WAYS.items():
        assert converged[name] >= way.part * CHUNK, name
    assert cold_starts >= 0.6 * CHUNK  # the comparison does not rest on our own start
