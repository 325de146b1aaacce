"""The ascent's vectors of one small problem, held and moved in C."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from dpsinkhorn.ot import native
from dpsinkhorn.ot.semidual import SemiDual


class NativeIterate:
    """As :class:`dpsinkhorn.ot.iterate.TorchIterate`, of a single problem, in float64."""

    def __init__(self, library: native.Library, dual: SemiDual, costs: Tensor) -> None:
        n, m = dual.rows, dual.columns
        self._library, self._n, self._m = library, n, m
        inputs = costs, dual.a.contiguous(), dual.b.contiguous()
        self._block = torch.empty(library.state_size(n, m), dtype=torch.float64)
        self._places = (ctypes.c_int64 * 4)()
        self._out = (ctypes.c_double * 3)()
        self._state, self._out_at = self._block.data_ptr(), ctypes.addressof(self._out)
        addresses = [tensor.data_ptr() for tensor in inputs]
        library.state_start(self._state, *addresses, n, m, ctypes.addressof(self._places))
        self._evaluate, self._keep = library.evaluate, library.keep
        self._trial = self._kept = (0.0, 0.0)

    def leave_out(self, weight: float) -> None:
        self._library.leave_out(self._state, weight)

    def stand(self, g: Tensor) -> None:
        self._block.narrow(0, self._places[0], self._m).copy_(g)

    def scale(self, regularization: float, target: float, limit: int) -> int:  # noqa: ARG002
        return 0

    def evaluate(self, steps: list[float], regularization: float) -> tuple[list[float], list[float]]:
        self._evaluate(self._state, steps[0], regularization, self._out_at)
        value, error, _ = self._out
        self._trial = value, error
        return [value], [error]

    def keep(self, taken: list[bool]) -> None:
        if taken[0]:
            self._keep(self._state)
            self._kept = self._trial

    def newton(self, ridge: list[float], accuracy: float) -> tuple[list[float], list[bool]]:  # noqa: ARG002
        self._library.newton(self._state, ridge[0], self._out_at)
        return [self._out[0]], [self._out[1] != 0.0]

    def sinkhorn(self, spare: list[bool]) -> list[float]:
        if not spare[0]:
            self._library.sinkhorn(self._state, self._out_at)
        return [self._out[0]]

    def lengths(self) -> list[float]:
        return [self._out[2]]

    def turn(self, factors: list[float], taken: list[bool]) -> None:
        if taken[0]:
            self._library.turn(self._state, factors[0])

    def extend(self, regularization: float) -> None:
        self._library.extend(self._state, regularization)

    @property
    def f(self) -> Tensor:
        return self._part(1, self._n)

    @property
    def g(self) -> Tensor:
        return self._part(0, self._m)

    @property
    def residual(self) -> Tensor:
        """``b - P^T 1`` at the point last evaluated."""
        return self._part(2, self._m)

    @property
    def proposal(self) -> Tensor:
        """The direction last computed, in units of λ."""
        return self._part(3, self._m)

    @property
    def value(self) -> Tensor:
        return torch.tensor(self._kept[0], dtype=torch.float64)

    @property
    def error(self) -> Tensor:
        return torch.tensor(self._kept[1], dtype=torch.float64)

    def _part(self, which: int, length: int) -> Tensor:
        return self._block.narrow(0, self._places[which], length).clone()
