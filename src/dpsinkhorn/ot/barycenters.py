"""Barycenters of histograms on a fixed support, by iterated Bregman projections in the log domain."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from dpsinkhorn.ot.costs import shown
from dpsinkhorn.ot.problem import Array, MatrixProblem
from dpsinkhorn.ot.sinkhorn import ConvergenceWarning, check_settings


def barycenter(
    histograms: Array,
    matrix: Array,
    regularization: float,
    *,
    weights: Array | None = None,
    tolerance: float = 1e-9,
    max_iterations: int = 10_000,
) -> Tensor:
    """The histogram ``(m,)`` with the least weighted sum of entropic costs to all ``histograms``, ``(k, n)``.

    ``matrix``, ``(n, m)``, holds the costs between their bins and its own. The entropy of plans is taken
    beside the counting measure, as POT's ``ot.bregman.barycenter`` does. Iterations end when the plans'
    marginals are within ``tolerance`` of each other.

    >>> bins = torch.arange(5.0)
    >>> costs = (bins[:, None] - bins).square()
    >>> found = barycenter(torch.tensor([[1.0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]]), costs, 0.1)
    >>> [round(mass, 3) for mass in found.tolist()]
    [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    check_settings(regularization, tolerance=tolerance, max_iterations=max_iterations)
    if not regularization > 0:
        raise ValueError(f"regularization: expected a positive number, got {regularization}")
    try:
        histograms = torch.as_tensor(histograms)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"histograms: expected an array (k, n), got {shown(histograms)}") from None
    if histograms.ndim != 2:
        raise ValueError(f"histograms: expected (k, n), got shape {tuple(histograms.shape)}")
    problems = [MatrixProblem(matrix, each) for each in histograms]
    if len(problems) == 0:
        raise ValueError("histograms: there are none")
    if problems[0].batched:
        raise ValueError("matrix: expected costs (n, m)")
    parts = MatrixProblem(problems[0].matrix.new_zeros(len(problems), 1), weights).a.unsqueeze(-1)  # (k, 1)
    log_kernel = problems[0].matrix.double() / -regularization  # (n, m)
    log_a = torch.stack([problem.a for problem in problems]).log()  # (k, n)
    log_v = torch.zeros(len(problems), log_kernel.shape[1], dtype=torch.float64, device=log_a.device)
    for _ in range(max_iterations):
        log_u = log_a - (log_kernel + log_v.unsqueeze(-2)).logsumexp(-1)
        marginals = (log_kernel + log_u.unsqueeze(-1)).logsumexp(-2)  # (k, m), without v
        log_mean = (parts * (marginals + log_v)).sum(0)
        error = ((marginals + log_v).exp() - log_mean.exp()).abs().sum(-1).max()
        log_v = log_mean - marginals
        if error <= tolerance:
            break
        if not bool(torch.isfinite(error)):
            raise ValueError("matrix: no barycenter avoids all pairs of infinite cost")
    else:
        warnings.warn(
            f"the barycenter did not converge: its plans' marginals differ by {float(error):.1e}, tolerance "
            f"{tolerance:.1e}",
            ConvergenceWarning,
            stacklevel=2,
        )
    return log_mean.exp()
