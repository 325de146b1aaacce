"""Whether a device multiplies matrices in float64 as the proofs take for granted.

Assumption A2 of docs/proofs/record-rounding.md: the products of a sum are added in some order, each addition
correctly rounded. Libraries can be told to emulate float64 with narrower types, which is faster where a GPU
has few units for it; then a number that is small beside others of its row is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from dpsinkhorn.training.errors import TrainingError

__all__ = ["check_float64", "multiplies_float64"]

_SIZE = 512
_ROWS = 128
_SPAN = 200  # binary orders of magnitude between numbers of a row


@cache
def check_float64(device: torch.device) -> None:
    """Refuse a device that emulates float64. Nothing private is needed for it.

    Raises:
        TrainingError: Products that should be exact are not.
    """
    if not multiplies_float64(device):
        raise TrainingError(
            f"{device} does not multiply in float64 as the guarantee needs it: products that should be exact "
            "are not. Is emulation switched on (CUBLAS_EMULATE_DOUBLE_PRECISION)? Switch it off, or train on "
            "the CPU"
        )


def multiplies_float64(
    device: torch.device, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> bool:
    """Whether products come out to the last bit where they must: public matrices, alone and in a batch.

    >>> multiplies_float64(torch.device("cpu"))
    True
    """
    draws = torch.Generator().manual_seed(0)
    return all(
        torch.equal(product(left.to(device), right.to(device)).cpu(), expected)
        for batch in ((), (2,))
        for left, right, expected in (_of_all_sizes(draws, batch), _of_all_digits(draws, batch))
    )


def _of_all_sizes(draws: torch.Generator, batch: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of large and small numbers, each times one of its own: as many products, of which none is lost."""
    numbers = torch.randint(2**25, 2**26, (*batch, _ROWS, _SIZE), generator=draws).double()
    scales = torch.exp2(-torch.linspace(0, _SPAN, _SIZE).round().double())
    left = numbers * scales[torch.randperm(_SIZE, generator=draws)]
    factors = torch.randint(2**25, 2**26, (*batch, _SIZE), generator=draws).double()
    return left, factors.diag_embed(), left * factors.unsqueeze(-2)


def _of_all_digits(draws: torch.Generator, batch: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers whose sums of products take up all 53 binary digits."""
    left = torch.randint(-(2**22), 2**22, (*batch, _ROWS, _SIZE), generator=draws)
    right = torch.randint(-(2**22), 2**22, (*batch, _SIZE, _ROWS), generator=draws)
    return left.double(), right.double(), (left @ right).double()
