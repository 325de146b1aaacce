"""The ascent in the kernel domain: a single problem on a CPU, of any size whose costs are stored.

The powers of a point are formed once, for many points near it (``scaling.h``). What is left of a step is one
sweep over the kernel, so Sinkhorn's steps are taken as long as they get on fast, then Newton's by conjugate
gradients. Where these need too many sweeps the costs are many λ, and another iterate takes over for good.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpsinkhorn.ot import native
from dpsinkhorn.ot.semidual import SemiDual

if TYPE_CHECKING:
    from dpsinkhorn.ot.iterate import Iterate

# Sinkhorn's steps go on while their rate promises to reach the target within so many more.
_PATIENCE = 15
# Sweeps of a system: a part of the columns, within bounds. Beyond, factorising it is faster.
_SWEEPS_PART, _LEAST_SWEEPS, _MOST_SWEEPS = 6, 20, 100


class ScalingIterate:
    """Vectors in C, costs and kernel as tensors, in the working type; ``successor()`` takes over."""

    def __init__(
        self, library: native.Library, dual: SemiDual, costs: Tensor, successor: Callable[[], Iterate]
    ) -> None:
        n, m = costs.shape
        self._library, self._dual, self._n, self._m = library, dual, n, m
        self._successor: Iterate | None = None
        self._make_successor = successor
        self._single = costs.dtype == torch.float32
        self._inputs = costs, torch.empty_like(costs), dual.a.contiguous(), dual.b.contiguous()
        self._block = torch.empty(library.scaling_size(n, m), dtype=torch.float64)
        self._places = (ctypes.c_int64 * 5)()
        self._out = (ctypes.c_double * 3)()
        self._state, self._out_at = self._block.data_ptr(), ctypes.addressof(self._out)
        addresses = [tensor.data_ptr() for tensor in self._inputs]
        library.scaling_start(self._state, *addresses, n, m, ctypes.addressof(self._places))
        self._trial = self._kept = (0.0, 2.0)
        self._weight = self._regularization = 0.0
        self._sweeps = min(max(m // _SWEEPS_PART, _LEAST_SWEEPS), _MOST_SWEEPS)

    def leave_out(self, weight: float) -> None:
        self._weight = weight
        if self._successor is not None:
            self._successor.leave_out(weight)

    def stand(self, g: Tensor) -> None:
        if self._successor is not None:
            return self._successor.stand(g)
        self._part(0, self._m).copy_(g)
        return None

    def scale(self, regularization: float, target: float, limit: int) -> int:
        if self._successor is not None:
            return self._successor.scale(regularization, target, limit)
        self._regularization = regularization
        self._library.scaling_steps(
            self._state, self._single, regularization, target, limit, _PATIENCE, self._out_at
        )
        value, error, points = self._out
        self._trial = value, error
        self._library.keep(self._state)
        self._kept = self._trial
        return int(points)

    def evaluate(self, steps: list[float], regularization: float) -> tuple[list[float], list[float]]:
        if self._successor is not None:
            return self._successor.evaluate(steps, regularization)
        self._regularization = regularization
        self._library.scaling_evaluate(self._state, self._single, steps[0], regularization, self._out_at)
        value, error, _ = self._out
        self._trial = value, error
        return [value], [error]

    def keep(self, taken: list[bool]) -> None:
        if self._successor is not None:
            self._successor.keep(taken)
        elif taken[0]:
            self._library.keep(self._state)
            self._kept = self._trial

    def newton(self, ridge: list[float], accuracy: float) -> tuple[list[float], list[bool]]:
        if self._successor is None:
            accuracy = min(0.1, max(1e-6, accuracy))
            self._library.scaling_newton(
                self._state, self._single, ridge[0], accuracy, self._sweeps, self._out_at
            )
            if self._out[1]:
                return [self._out[0]], [True]
            self._hand_over()
            assert self._successor is not None
        return self._successor.newton(ridge, accuracy)

    def _hand_over(self) -> None:
        successor = self._make_successor()
        successor.leave_out(self._weight)
        successor.stand(self._part(4, self._m).clone())
        successor.evaluate([0.0], self._regularization)
        successor.keep([True])
        self._successor = successor

    def sinkhorn(self, spare: list[bool]) -> list[float]:
        if self._successor is not None:
            return self._successor.sinkhorn(spare)
        if not spare[0]:
            self._library.sinkhorn(self._state, self._out_at)
        return [self._out[0]]

    def lengths(self) -> list[float]:
        return [self._out[2]] if self._successor is None else self._successor.lengths()

    def turn(self, factors: list[float], taken: list[bool]) -> None:
        if self._successor is not None:
            self._successor.turn(factors, taken)
        elif taken[0]:
            self._library.turn(self._state, factors[0])

    def extend(self, regularization: float) -> None:
        if self._successor is not None:
            return self._successor.extend(regularization)
        if self._dual.least_weight <= 0.0:
            self._dual.leave_out(0.0)
            self._part(0, self._m).copy_(self._dual.extend(self.f, self.g, regularization))
        return None

    @property
    def f(self) -> Tensor:
        return self._part(1, self._n).clone() if self._successor is None else self._successor.f

    @property
    def g(self) -> Tensor:
        return self._part(0, self._m).clone() if self._successor is None else self._successor.g

    @property
    def value(self) -> Tensor:
        if self._successor is not None:
            return self._successor.value
        return torch.tensor(self._kept[0], dtype=torch.float64)

    @property
    def error(self) -> Tensor:
        if self._successor is not None:
            return self._successor.error
        return torch.tensor(self._kept[1], dtype=torch.float64)

    def _part(self, which: int, length: int) -> Tensor:
        return self._block.narrow(0, self._places[which], length)
