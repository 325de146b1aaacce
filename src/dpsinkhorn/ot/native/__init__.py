"""Compiled loops for CPUs, in plain C, where the package was built with them.

PyTorch takes some microseconds to start an operation, and a small problem consists of hundreds of small
ones. The functions here do the same work in one call each. All of them may decline: without a compiler at
installation there is no library, and tensors on a GPU or tracked by autograd are not for it. They then
return ``None``, or ``False``, and the caller goes on in PyTorch.

The environment variable ``DPSINKHORN_NATIVE=0`` switches the library off.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dpsinkhorn.ot.costs import PixelCost

_VERSION = 5  # of the functions and their arguments; that of kernels.c
_THREADED = 2**26  # sums of more terms than this are shared out to threads
# At hand, as they are asked for at every call.
_PLAIN, _TYPES, _STRIDED = (Tensor, torch.nn.Parameter), (torch.float32, torch.float64), torch.strided
_transforms = torch._C._functorch.peek_interpreter_stack

_ADDRESS, _COUNT, _FLAG, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_double
_POINTS: list[type] = [_ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT, _COUNT, _FLAG, _NUMBER]
_TRANSPORT: list[type] = [*[_FLAG] * 2, *[_ADDRESS] * 4, *[_COUNT] * 3, _FLAG, *[_ADDRESS] * 6]
_SIGNATURES: dict[str, tuple[list[type], type | None]] = {
    "instructions": ([], _FLAG),
    "state_size": ([_COUNT, _COUNT, _FLAG], _COUNT),
    "state_start": ([_ADDRESS, _FLAG, *[_ADDRESS] * 4, _COUNT, _COUNT, _ADDRESS], None),
    "leave_out": ([_ADDRESS, _NUMBER], None),
    "evaluate": ([_ADDRESS, _NUMBER, _NUMBER, _ADDRESS], None),
    "keep": ([_ADDRESS], None),
    "newton": ([_ADDRESS, _NUMBER, _NUMBER, _COUNT, _ADDRESS], None),
    "sinkhorn": ([_ADDRESS, _ADDRESS], None),
    "turn": ([_ADDRESS, _NUMBER], None),
    "scaling_steps": ([_ADDRESS, _NUMBER, _NUMBER, _COUNT, _COUNT, _ADDRESS], None),
    "plan": ([*[_ADDRESS] * 7, _COUNT, _COUNT, _NUMBER, _FLAG], None),
    "settle": ([*[_ADDRESS] * 7, _COUNT, _COUNT, _ADDRESS], None),
    "range": ([_ADDRESS, _COUNT, _ADDRESS], None),
    "finite": ([_FLAG, _ADDRESS, _COUNT], _FLAG),
    "pairwise": ([_FLAG, *_POINTS], None),
    "finish": ([_FLAG, *[_ADDRESS] * 5, *[_COUNT] * 3], None),
    "centre": ([_FLAG, *[_ADDRESS] * 4, *[_COUNT] * 2, _FLAG], None),
    "gradient": ([_FLAG, _ADDRESS, *_POINTS], _FLAG),
    "transport": (_TRANSPORT, _FLAG),
}


class Library:
    """The C functions, by their names without the prefix.

    ``instructions`` are the most that may be used of 0: plain ones, 1: AVX2, 2: AVX-512.
    """

    def __init__(self, path: Path, instructions: int = 2) -> None:
        library = ctypes.CDLL(str(path))
        library.dps_start.argtypes = [_FLAG]
        if library.dps_start(instructions) != _VERSION:
            raise OSError(f"{path} belongs to another version; install the package again")
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(library, f"dps_{name}")
            function.argtypes, function.restype = arguments, result
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


def find() -> Path | None:
    """Where the library is, if it was built."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            return path
    return None


def _load() -> Library | None:
    path = find()
    if path is None or os.environ.get("DPSINKHORN_NATIVE", "1") == "0":
        return None
    try:
        return Library(path)
    except (OSError, AttributeError):  # built for another machine or version
        return None


library: Library | None = _load()


def compiled() -> bool:
    """Whether small problems on a CPU run in the compiled loops; if not, all is done in PyTorch.

    >>> isinstance(compiled(), bool)
    True
    """
    return library is not None


def instructions() -> int:
    """What the loops use: 2 for AVX-512, 1 for AVX2, 0 for plain instructions, or without loops."""
    return library.instructions() if library is not None else 0


def finite(array: Tensor) -> bool:
    """Whether all entries are finite."""
    if library is None or not readable(array):
        return bool(torch.isfinite(array).all())
    return bool(library.finite(_single(array), array.data_ptr(), array.numel()))


def value_range(array: Tensor) -> tuple[float, float] | None:
    """Least and greatest entry of a float64 array; not finite where an entry is not."""
    if library is None or not readable(array) or array.dtype != torch.float64:
        return None
    ends = (_NUMBER * 2)()
    library.range(array.data_ptr(), array.numel(), ctypes.addressof(ends))
    return ends[0], ends[1]


def settle(costs: Tensor, plan: Tensor, a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor] | None:
    """Feasible potentials of an exact plan: the transform of g, where b is positive, and in g that of this.

    With their dual value and the L1 error of the plan, ``(2,)``. All is of one problem, in float64.
    """
    if library is None or not all(map(readable, (costs, plan, a, b, g))):
        return None
    (n, m), f, numbers = costs.shape, torch.empty_like(a), b.new_empty(2)
    arrays = (costs, plan, a, b, f, g, b.new_empty(2 * m))
    library.settle(*(array.data_ptr() for array in arrays), n, m, numbers.data_ptr())
    return f, numbers


def plan(costs: Tensor, f: Tensor, g: Tensor, a: Tensor, b: Tensor, regularization: float) -> Tensor | None:
    """``a b^T exp((f + g - C) / λ)`` for costs ``(..., n, m)``, in their type."""
    vectors = [v.contiguous() for v in (f, g, a, b)]
    if library is None or not all(map(readable, (costs, *vectors))):
        return None
    if any(v.dtype != torch.float64 for v in vectors):
        return None
    n, m = costs.shape[-2:]
    assert f.shape == a.shape == costs.shape[:-1]
    assert g.shape == b.shape == (*costs.shape[:-2], m)
    scratch, out = vectors[0].new_empty(m), torch.empty_like(costs)
    single, size = _single(costs), costs.element_size()
    at_costs, at_out = costs.data_ptr(), out.data_ptr()
    at = [v.data_ptr() for v in vectors]
    for k in range(costs.shape[:-2].numel()):
        library.plan(
            at_costs + k * n * m * size, at[0] + 8 * k * n, at[1] + 8 * k * m, at[2] + 8 * k * n,
            at[3] + 8 * k * m, scratch.data_ptr(), at_out + k * n * m * size, n, m, regularization, single,
        )  # fmt: skip
    return out


def pairwise(x: Tensor, y: Tensor, cost: PixelCost) -> Tensor | None:
    """Costs ``(..., n, m)`` of clouds ``(..., n, d)``, ``(..., m, d)``."""
    if library is None or not _sound(x, y):
        return None
    out = x.new_empty(*x.shape[:-1], y.shape[-2])
    _by_rows(library.pairwise, x.contiguous(), y.contiguous(), cost, out)
    return out


def centre(x: Tensor, around: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor] | None:
    """``x - c``, ``(n, d)``, with its squared lengths, and c: ``around``, or the mean of x."""
    if library is None or x.ndim != 2 or not readable(x) or _tracked(x):
        return None
    out, squares = torch.empty_like(x), x.new_empty(len(x))
    point = x.new_empty(x.shape[1]) if around is None else around.contiguous()
    at = [array.data_ptr() for array in (x, out, point, squares)]
    library.centre(_single(x), *at, *x.shape, around is None)
    return out, squares, point


def finish(x: Tensor, y: Tensor, squares: tuple[Tensor, Tensor], products: Tensor) -> bool:
    """Make squared distances of ``<x_i, y_j>``, ``(n, m)``, in place; by differences where these cancel."""
    arrays = (x, y, *squares, products)
    if library is None or x.ndim != 2 or not all(map(readable, arrays)) or _tracked(*arrays):
        return False
    library.finish(_single(x), *(array.data_ptr() for array in arrays), len(x), len(y), x.shape[1])
    return True


def gradient(x: Tensor, y: Tensor, plan: Tensor, cost: PixelCost) -> Tensor | None:
    """Gradient in x of the costs of :func:`pairwise` under a plan ``(..., n, m)``, of the shape of ``x``."""
    if library is None or not _sound(x, y, plan):
        return None
    x = x.contiguous()
    out = torch.empty_like(x)
    _by_rows(library.gradient, x, y.contiguous(), cost, plan.contiguous(), out)
    return out


def _by_rows(function: Callable[..., Any], x: Tensor, y: Tensor, cost: PixelCost, *others: Tensor) -> None:
    """Call a function for all x, and the rows of others that belong to them, by threads where it pays."""
    (n, d), m = x.shape[-2:], y.shape[-2]
    single, size, batch = _single(x), x.element_size(), x.shape[:-2].numel()
    at_y, starts = y.data_ptr(), [(each.data_ptr(), each.shape[-1] * size) for each in (x, *others)]

    def rows(k: int, first: int, last: int) -> None:
        own, *rest = (start + (k * n + first) * row for start, row in starts)
        all_y = at_y + k * m * d * size
        if function(single, own, all_y, *rest, last - first, m, d, cost.squared, cost.absolute):
            raise MemoryError

    threads = torch.get_num_threads() if x.numel() * m > _THREADED else 1
    if threads == 1:
        for k in range(batch):
            rows(k, 0, n)
        return
    parts = min(n, 4 * threads)
    shares = [(k, n * part // parts, n * (part + 1) // parts) for k in range(batch) for part in range(parts)]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(rows, *share) for share in shares]:
            done.result()


def readable(array: Tensor) -> bool:
    """Whether the memory of a tensor is what it seems: on the CPU, in order, no wrapper."""
    return _on_cpu(array) and array.is_contiguous()


def _on_cpu(array: Tensor) -> bool:
    return (
        type(array) in _PLAIN
        and array.is_cpu
        and array.dtype in _TYPES
        and array.layout == _STRIDED
        and not array.is_neg()
        and _transforms() is None
    )


def _single(array: Tensor) -> bool:
    return array.dtype == torch.float32


def _tracked(*tensors: Tensor) -> bool:
    """Whether autograd follows one of them."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _sound(x: Tensor, y: Tensor, plan: Tensor | None = None) -> bool:
    """Whether clouds (and a plan) are of one type and fit each other, and autograd does not follow them."""
    tensors = (x, y) if plan is None else (x, y, plan)
    if _tracked(*tensors):
        return False
    return (
        all(_on_cpu(tensor) and tensor.dtype == x.dtype for tensor in tensors)
        and x.ndim >= 2
        and x.ndim == y.ndim
        and x.shape[:-2] == y.shape[:-2]
        and x.shape[-1] == y.shape[-1] > 0
        and (plan is None or plan.shape == (*x.shape[:-1], y.shape[-2]))
    )
