"""Where an ascent stands, held and moved in C, for a single problem on a CPU."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
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


class _HeldInC(ABC):
    """What the two iterates below have in common."""

    def __init__(
        self,
        library: native.Library,
        dual: SemiDual,
        size: Callable[..., int],
        start: Callable[..., object],
        *arrays: Tensor,
    ) -> None:
        self._library, self._dual = library, dual
        self._arrays = *arrays, dual.a.contiguous(), dual.b.contiguous()
        self._block = torch.empty(size(dual.rows, dual.columns), dtype=torch.float64)
        self._places, self._out = (ctypes.c_int64 * 5)(), (ctypes.c_double * 3)()
        self._state, self._out_at = self._block.data_ptr(), ctypes.addressof(self._out)
        addresses = [array.data_ptr() for array in self._arrays]
        start(self._state, *addresses, dual.rows, dual.columns, ctypes.addressof(self._places))
        self._trial = self._kept = (0.0, 2.0)  # value and error

    @abstractmethod
    def _evaluate(self, step: float, regularization: float) -> None:
        """Go to the trial point, and leave its value and error in `_out`."""

    def stand(self, g: Tensor) -> None:
        self._view(0, self._dual.columns).copy_(g)

    def evaluate(self, steps: list[float], regularization: float) -> tuple[list[float], list[float]]:
        self._evaluate(steps[0], regularization)
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
        super().__init__(library, dual, library.state_size, library.state_start, costs)

    def leave_out(self, weight: float) -> None:
        self._library.leave_out(self._state, weight)

    def scale(self, regularization: float, target: float, limit: int) -> int:  # noqa: ARG002
        return 0

    def _evaluate(self, step: float, regularization: float) -> None:
        self._library.evaluate(self._state, step, regularization, self._out_at)

    def newton(self, ridge: list[float], accuracy: float) -> Direction:  # noqa: ARG002
        self._library.newton(self._state, ridge[0], self._out_at)
        return [self._out[0]], [self._out[1] != 0.0]

    def extend(self, regularization: float) -> None:
        self._library.extend(self._state, regularization)


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
        kernel = torch.empty_like(costs)
        super().__init__(library, dual, library.scaling_size, library.scaling_start, costs, kernel)
        self._successor = successor
        self._single = costs.dtype == torch.float32
        self._weight = self._regularization = 0.0
        self._sweeps = min(max(dual.columns // _SWEEPS_PART, _LEAST_SWEEPS), _MOST_SWEEPS)

    def leave_out(self, weight: float) -> None:
        self._weight = weight  # for the successor: powers that were formed have them all

    def scale(self, regularization: float, target: float, limit: int) -> int:
        self._regularization = regularization
        self._library.scaling_steps(
            self._state, self._single, regularization, target, limit, PATIENCE, self._out_at
        )
        value, error, points = self._out
        self._trial = value, error
        self.keep([True])
        return int(points)

    def _evaluate(self, step: float, regularization: float) -> None:
        self._regularization = regularization
        self._library.scaling_evaluate(self._state, self._single, step, regularization, self._out_at)

    def newton(self, ridge: list[float], accuracy: float) -> Direction | Iterate:
        accuracy = min(0.1, max(1e-6, accuracy))
        self._library.scaling_newton(
            self._state, self._single, ridge[0], accuracy, self._sweeps, self._out_at
        )
        if self._out[1]:
            return [self._out[0]], [True]
        successor = self._successor()
        successor.leave_out(self._weight)
        successor.stand(self._view(4, self._dual.columns).clone())  # the trial point
        successor.evaluate([0.0], self._regularization)
        successor.keep([True])
        return successor

    def extend(self, regularization: float) -> None:
        if self._dual.least_weight <= 0.0:
            self._dual.leave_out(0.0)
            self.stand(self._dual.extend(self.f, self.g, regularization))
