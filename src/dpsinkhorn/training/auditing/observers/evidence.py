"""What the releases of all steps say of canaries together."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Evidence"]

_PRIOR = 4.0  # one over the variance of a fair coin


class Evidence:
    """Adds up over steps, and gives the best linear estimate of which canaries are in.

    Step t releases V_tᵀ b and noise of covariance Σ_t, with b the coins and V_t the canaries' effects, one
    row each. With P = Σ_t V_t Σ_t⁻¹ V_tᵀ and z = Σ_t V_t Σ_t⁻¹ (release - what is expected of it), where
    every coin counts a half, the estimate of b - 1/2 of least variance is (P + 4)⁻¹ z.

    >>> evidence = Evidence(2)
    >>> evidence.add(torch.tensor([1]), torch.tensor([[4.0]]), torch.tensor([2.0]))
    >>> evidence.scores()
    tensor([0.0000, 0.2500], dtype=torch.float64)
    """

    def __init__(self, canaries: int) -> None:
        self._precision = torch.zeros(canaries, canaries, dtype=torch.float64)
        self._along = torch.zeros(canaries, dtype=torch.float64)

    def add(self, which: Tensor, precision: Tensor, along: Tensor) -> None:
        """Take in a part of a step that says something of these canaries only."""
        self._precision[which.unsqueeze(1), which] += precision
        self._along[which] += along

    def scores(self) -> Tensor:
        """Return the estimate, ``(canaries,)``: the higher, the more likely a canary is in."""
        prior = _PRIOR * torch.eye(len(self._along), dtype=torch.float64)
        scores: Tensor = torch.linalg.solve(self._precision + prior, self._along)
        return scores
