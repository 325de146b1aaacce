"""Whether a device multiplies matrices in float64 as the proofs take for granted.

Assumption A2 of docs/proofs/record-rounding.md: the products of a sum are added in some order, each addition
correctly rounded. Libraries can be told to emulate float64 with narrower types, which is faster where a GPU
has few units for it; then a number that is small beside others of its row may be lost. What is asked here
finds an emulation out where it is used; a library that emulates some shapes only may still pass, so the
switch that asks for it is refused, too.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import torch
from torch import Tensor

from dpsinkhorn.errors import TrainingError

_SWITCH = "CUBLAS_EMULATE_DOUBLE_PRECISION"
_ROWS = 128
_TERMS = 512  # of a sum
_SIZES = {"cpu": (512,), "cuda": (512, 2048)}  # where emulation pays, products are large
_SPANS = (200, 60, 40)  # binary orders of magnitude between numbers of a row
_BATCHES: tuple[tuple[int, ...], ...] = ((), (2,))


def check_float64(device: torch.device) -> None:
    """Refuse a device that emulates float64. Nothing private is needed for it.

    Raises:
        TrainingError: Products that should be exact are not, or emulation was asked for.
    """
    if device.type == "cuda" and os.environ.get(_SWITCH, "0") not in ("", "0"):
        raise TrainingError(
            f"{_SWITCH} is set, and the guarantee needs float64 as it is: unset it, or train on the CPU"
        )
    if not multiplies_float64(device):
        raise TrainingError(
            f"{device} does not multiply in float64 as the guarantee needs it: products that should be exact "
            f"are not. Is emulation switched on ({_SWITCH})? Switch it off, or train on the CPU"
        )


def computed_by(device: torch.device) -> str:
    """Return what decides on the last bits here: the version of PyTorch, and the kind of device."""
    kind, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    on_cpu = f"{device.type} ({kind}, threads: {threads})"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu
    return f"torch {torch.__version__} on {name}"


def multiplies_float64(
    device: torch.device, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> bool:
    """Whether products come out to the last bit where they must: public matrices, alone and in a batch.

    >>> multiplies_float64(torch.device("cpu"))
    True
    """
    draws = torch.Generator().manual_seed(0)
    sizes = _SIZES.get(device.type, _SIZES["cuda"])
    questions = itertools.chain(
        (_of_all_digits(draws, batch) for batch in _BATCHES),
        (_of_many_sizes(draws, *asked) for asked in itertools.product(_BATCHES, sizes, _SPANS)),
    )
    for left, right, expected in questions:
        right = right.to(device)
        right = right.diag_embed() if right.ndim < left.ndim else right
        if not torch.equal(product(left.to(device), right), expected.to(device)):
            return False
    return True


def _of_many_sizes(
    draws: torch.Generator, batch: tuple[int, ...], size: int, span: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of large and small numbers, and a diagonal: as many products, of which none may be lost."""
    numbers = torch.randint(2**25, 2**26, (*batch, _ROWS, size), generator=draws).double()
    scales = torch.exp2(-torch.linspace(0, span, size).round().double())
    left = numbers * scales[torch.randperm(size, generator=draws)]
    factors = torch.randint(2**25, 2**26, (*batch, size), generator=draws).double()
    return left, factors, left * factors.unsqueeze(-2)


def _of_all_digits(draws: torch.Generator, batch: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers whose sums of products take up all 53 binary digits."""
    left = torch.randint(-(2**22), 2**22, (*batch, _ROWS, _TERMS), generator=draws)
    right = torch.randint(-(2**22), 2**22, (*batch, _TERMS, _ROWS), generator=draws)
    return left.double(), right.double(), (left @ right).double()
