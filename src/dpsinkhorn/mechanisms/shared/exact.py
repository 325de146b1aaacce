"""Products without rounding: public weights on a grid so coarse that float64 holds every sum exactly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DIGITS = 53  # binary digits of float64


def exact_weights(weights: Tensor, bits: int) -> tuple[Tensor, int]:
    """Return weights (rows, d), in float64, whose products with multiples of 2^-bits in [-1, 1] are exact.

    Also returns e: no such product with a row is above 2^e. What is not finite becomes 0.

    >>> found, e = exact_weights(torch.tensor([[0.1, 0.2]]), bits=20)
    >>> e, bool((found * 2.0 ** (53 - 20 - e)).frac().any())
    (0, False)
    """
    found = torch.nan_to_num(weights.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)
    # rows' absolute values add up to less than 2^(e - 1), and to less than 2^e once they are rounded
    e = math.frexp(float(found.abs().max()) * found.shape[1])[1] + 1
    step = 2.0 ** (e + bits - DIGITS)
    return (found / step).round_().mul_(step), e
