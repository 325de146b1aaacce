"""Two clouds of points, one or both of them private, under a capped cost: what every mechanism here takes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.ot import Cost, Problem
from dpsinkhorn.transport.checks import check_count, check_flag, check_positive, shown
from dpsinkhorn.transport.costs import CappedCost, checked_cost
from dpsinkhorn.transport.errors import TransportError

__all__ = ["Clouds", "PublicSide", "Setting", "checked_points"]

Points: TypeAlias = "npt.ArrayLike | Tensor"
PublicSide: TypeAlias = Literal["x", "y"]
_BOUND = (1e-100, 1e100)  # so that squares of costs, and the noise, stay within float64


@dataclass(frozen=True)
class Setting:
    """All that is public about two clouds: their sizes, the bound on the cost, and who is protected.

    Attributes:
        n, m: numbers of points x and y.
        bound: c̄; costs are capped at it.
        public: the side that is public, "x" or "y", if one is.
        paired: one person owns a point of either side, so that both are replaced at once.
    """

    n: int
    m: int
    bound: float
    public: PublicSide | None = None
    paired: bool = False
    dimension: int = 1

    def __post_init__(self) -> None:
        check_positive(cost_bound=self.bound)
        if not _BOUND[0] <= float(self.bound) <= _BOUND[1]:
            raise TransportError(
                f"cost_bound must be from {_BOUND[0]:g} to {_BOUND[1]:g}, not {self.bound:g}"
            )
        check_count(n=self.n, m=self.m, dimension=self.dimension)
        check_flag(paired=self.paired)
        if self.public is not None and not (isinstance(self.public, str) and self.public in ("x", "y")):
            raise TransportError(f"public must be 'x', 'y' or None, not {shown(self.public)}")
        for name, plain in (("n", int), ("m", int), ("bound", float), ("dimension", int)):
            object.__setattr__(self, name, plain(getattr(self, name)))  # NumPy's scalars included
        if self.paired and self.public is not None:
            raise TransportError("paired means that persons own points on both sides; none can be public")

    def worst(self, x: float, y: float) -> float:
        """The sensitivity, from how far a replaced x and a replaced y can move the value.

        One of them is replaced; both, by the same person, where they are paired.
        """
        if self.paired:
            return x + y
        if self.public is None:
            return max(x, y)
        return y if self.public == "x" else x


@dataclass(frozen=True, eq=False)
class Clouds:
    """Points x ``(n, d)`` and y ``(m, d)`` in float64, and a cost capped at a public bound."""

    x: Tensor
    y: Tensor
    cost: CappedCost
    setting: Setting

    @classmethod
    def of(
        cls,
        x: Points,
        y: Points,
        *,
        cost_bound: float,
        cost: Cost | str | None = None,
        public: PublicSide | None = None,
        paired: bool = False,
    ) -> Clouds:
        """Check the points and put them into float64. `cost` is as for `private_cost`."""
        check_positive(cost_bound=cost_bound)
        first, second = checked_points("x", x), checked_points("y", y)
        if first.shape[1] != second.shape[1]:
            raise TransportError(
                f"x and y must have the same number of columns, not {first.shape[1]} and {second.shape[1]}"
            )
        setting = Setting(len(first), len(second), float(cost_bound), public, paired, first.shape[1])
        base = checked_cost(cost, dimension=setting.dimension)
        return cls(first, second, CappedCost(base, setting.bound), setting)

    def problem(self, sides: Literal["xy", "xx", "yy"] = "xy") -> Problem:
        """The transport problem between two of the clouds, for `dpsinkhorn.ot`."""
        first, second = ({"x": self.x, "y": self.y}[side] for side in sides)
        return Problem(first, second, self.cost)

    def flipped(self) -> Clouds:
        """The same with the roles of x and y exchanged."""
        side: dict[PublicSide | None, PublicSide | None] = {"x": "y", "y": "x", None: None}
        old = self.setting
        setting = dataclasses.replace(old, n=old.m, m=old.n, public=side[old.public])
        base = self.cost.base if self.cost.symmetric else _Flipped(self.cost.base)
        return Clouds(self.y, self.x, CappedCost(base, old.bound), setting)

    def costs(self) -> Tensor:
        """The matrix of capped costs, ``(n, m)``."""
        return self.cost.pairwise(self.x, self.y)


@dataclass(frozen=True)
class _Flipped(Cost):
    """A cost that is not symmetric, seen from the other side."""

    base: Cost
    symmetric = False

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return self.base.pairwise(y, x).mT


def checked_points(name: str, values: Points) -> Tensor:
    """Points ``(n, d)`` in float64, of whatever holds finite numbers."""
    if isinstance(values, Tensor):
        readable = values.layout == torch.strided and not (values.dtype == torch.bool or values.is_complex())
    else:
        try:
            values = np.asarray(values)
        except (TypeError, ValueError, RuntimeError):  # rows of different lengths, for example
            values = np.empty(0, dtype=object)
        readable = values.dtype.kind in "iuf"
    if not readable:
        raise TransportError(f"{name} must be an array of numbers, one row a point")
    if isinstance(values, Tensor):
        points = values.detach().cpu().double()
    else:
        points = torch.from_numpy(np.array(values, dtype=np.float64))
    if points.ndim == 1:
        points = points.unsqueeze(1)  # a column of numbers: points on a line
    if points.ndim != 2:
        raise TransportError(f"{name} must be of shape (points, dimensions), not {tuple(points.shape)}")
    if 0 in points.shape:
        raise TransportError(f"{name} is empty: shape {tuple(points.shape)}")
    # Where and how many is not said: the message may reach others than the curator.
    if not bool(torch.isfinite(points).all()):
        raise TransportError(f"{name} has values that are not finite; fill them in or leave those rows out")
    return points
