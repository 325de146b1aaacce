"""Where an ascent stands, held and moved in C, for a single problem on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpsinkhorn.ot import native
from dpsinkhorn.ot.semidual import SemiDual

if TYPE_CHECKING:
    from dpsinkhorn.ot.iterate import Direction, Iterate

# Sinkhorn's steps go on while their rate promises to reach the target within so many more.
PATIENCE = 15
# Sweeps of a system: a part of the columns, within bounds. Beyond, factorising it is faster.
_SWEEPS_PART, _LEAST_SWEEPS, _MOST_SWEEPS = 6, 20, 100


class _HeldInC:
    """What the two iterates below have in common."""

    def __init__(self, library: native.Library, dual: SemiDual, costs: Tensor, kernel: Tensor | None) -> None:
        self._library, self._dual = library, dual
        self._arrays = costs, kernel, dual.a.contiguous(), dual.b.contiguous()
        size = library.state_size(dual.rows, dual.columns, kernel is None)
        self._block = torch.empty(size, dtype=torch.float64)
        self._places, self._out = (ctypes.c_int64 * 5)(), (ctypes.c_double * 3)()
        self._state, self._out_at = self._block.data_ptr(), ctypes.addressof(self._out)
        addresses = [None if array is None else array.data_ptr() for array in self._arrays]
        single, places = costs.dtype == torch.float32, ctypes.addressof(self._places)
        library.state_start(self._state, single, *addresses, dual.rows, dual.columns, places)
        self._trial = self._kept = (0.0, 2.0)  # value and error
        self._left_out = 0.0  # columns of at most this weight are

    def stand(self, g: Tensor) -> None:
        self._view(0, self._dual.columns).copy_(g)

    def evaluate(self, steps: list[float], regularization: float) -> tuple[list[float], list[float]]:
        self._regularization = regularization
        self._library.evaluate(self._state, steps[0], regularization, self._out_at)
        value, error, _ = self._out
        self._trial = value, error
        return [value], [error]

    def keep(self, taken: list[bool]) -> None:
        if taken[0]:
            self._library.keep(self._state)
            self._kept = self._trial

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
        if self._dual.least_weight <= self._left_out:
            self._dual.leave_out(self._left_out)
            self.stand(self._dual.extend(self.f, self.g, regularization))

    @property
    def g(self) -> Tensor:
        return self._view(0, self._dual.columns).clone()

    @property
    def f(self) -> Tensor:
        return self._view(1, self._dual.rows).clone()

    @property
    def residual(self) -> Tensor:
        """``b - P^T 1`` at the point last evaluated."""
        return self._view(2, self._dual.columns).clone()

    @property
    def proposal(self) -> Tensor:
        """The direction last computed, in units of λ."""
        return self._view(3, self._dual.columns).clone()

    @property
    def value(self) -> Tensor:
        return torch.tensor(self._kept[0], dtype=torch.float64)

    @property
    def error(self) -> Tensor:
        return torch.tensor(self._kept[1], dtype=torch.float64)

    def _view(self, which: int, length: int) -> Tensor:
        return self._block.narrow(0, self._places[which], length)


class NativeIterate(_HeldInC):
    """As :class:`dpsinkhorn.ot.iterate.TorchIterate`, of one small problem, in float64."""

    def __init__(self, library: native.Library, dual: SemiDual, costs: Tensor) -> None:
        super().__init__(library, dual, costs, None)

    def leave_out(self, weight: float) -> None:
        self._left_out = weight
        self._library.leave_out(self._state, weight)

    def scale(self, regularization: float, target: float, limit: int) -> int:  # noqa: ARG002
        return 0

    def newton(self, ridge: list[float], accuracy: float) -> Direction:  # noqa: ARG002
        self._library.newton(self._state, ridge[0], 0.0, 0, self._out_at)
        return [self._out[0]], [self._out[1] != 0.0]


class ScalingIterate(_HeldInC):
    """The ascent in the kernel domain, of any size; costs and kernel are tensors, in the working type.

    The powers of a point are formed once, for many points near it (``scaling.h``). What is left of a step is
    one sweep over the kernel, so Sinkhorn's steps are taken as long as they get on fast, then Newton's by
    conjugate gradients. Where these need too many sweeps the costs are many λ, and ``successor()`` takes over
    for good.
    """

    def __init__(
        self, library: native.Library, dual: SemiDual, costs: Tensor, successor: Callable[[], Iterate]
    ) -> None:
        super().__init__(library, dual, costs, torch.empty_like(costs))
        self._successor = successor
        self._weight = 0.0
        self._sweeps = min(max(dual.columns // _SWEEPS_PART, _LEAST_SWEEPS), _MOST_SWEEPS)

    def leave_out(self, weight: float) -> None:
        self._weight = weight  # for the successor: powers that were formed have them all

    def scale(self, regularization: float, target: float, limit: int) -> int:
        self._regularization = regularization
        self._library.scaling_steps(self._state, regularization, target, limit, PATIENCE, self._out_at)
        value, error, points = self._out
        self._trial = value, error
        self.keep([True])
        return int(points)

    def newton(self, ridge: list[float], accuracy: float) -> Direction | Iterate:
        accuracy = min(0.1, max(1e-6, accuracy))
        self._library.newton(self._state, ridge[0], accuracy, self._sweeps, self._out_at)
        if self._out[1]:
            return [self._out[0]], [True]
        successor = self._successor()
        successor.leave_out(self._weight)
        successor.stand(self._view(4, self._dual.columns).clone())  # the trial point
        successor.evaluate([0.0], self._regularization)
        successor.keep([True])
        return successor
