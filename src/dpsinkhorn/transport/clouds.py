"""Two clouds of points, one or both of them private, under a capped cost: what every mechanism here takes.

The proofs need two things of a cost as computed: it lies in [0, bound], and the entry of a pair depends on
that pair alone. The second is why costs are summed up from differences here: the faster way, by a matrix
product of centred points, lets one far outlier change the rounding of every entry without limit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import L1L2, Cityblock, Cost, Euclidean, Problem, SquaredEuclidean, as_cost, native
from dpsinkhorn.ot.costs import PixelCost
from dpsinkhorn.ot.problem import Flipped
from dpsinkhorn.transport import checks

# Coordinates beyond these count as these, so that no square of a difference overflows.
_FARTHEST = {torch.float64: 1e100, torch.float32: 1e15}

Points: TypeAlias = "npt.ArrayLike | Tensor"
PublicSide: TypeAlias = Literal["x", "y"]
_IN_PIXELS = (SquaredEuclidean, Cityblock, L1L2)
_BOUND = (1e-100, 1e100)  # so that squares of costs, and the noise, stay within float64


@dataclass(frozen=True)
class CappedCost(Cost):
    """``min(cost(x, y), bound)``; silently, a negative cost counts as 0, and what is no number as ``bound``.

    >>> x, y = torch.tensor([[0.0]]).double(), torch.tensor([[1.0], [5.0]]).double()
    >>> CappedCost(SquaredEuclidean(), bound=4.0).pairwise(x, y)
    tensor([[1., 4.]], dtype=torch.float64)
    """

    base: Cost
    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", checked_cost(self.base))

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Return whether c(x, y) = c(y, x)."""
        return self.base.symmetric

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        far = _FARTHEST[x.dtype]
        x, y = (points.clamp(-far, far) for points in (x, y))
        base, rule = self.base, type(self.base).pairwise  # a subclass may have its own
        if rule is Euclidean.pairwise:
            costs = _by_differences(x, y, SquaredEuclidean.pixels).sqrt_()
        elif isinstance(base, _IN_PIXELS) and rule in [known.pairwise for known in _IN_PIXELS]:
            costs = _by_differences(x, y, base.pixels)
        else:
            costs = base.pairwise(x, y)
        return costs.nan_to_num_(nan=self.bound).clamp_(0.0, self.bound)


def checked_cost(cost: Cost | str | None, *, dimension: int | None = None) -> Cost:
    """Return the cost itself, or that of a name, or a `TransportError`.

    A cost of the user's own is tried on points at 0, which are public, where their dimension is known: a
    mistake in it shows before anything is charged. It must be a class: of a function nobody has promised that
    each cost depends on its two points alone, without which no sensitivity holds.
    """
    if callable(cost) and not isinstance(cost, type):
        raise TransportError(
            "cost: a function may look at all points at once; derive a class from dpsinkhorn.ot.Cost whose "
            "pairwise takes each pair on its own"
        )
    try:
        found = as_cost(cost)
    except ValueError as error:
        raise TransportError(str(error)) from None
    if dimension is not None and type(found) not in (Euclidean, *_IN_PIXELS):
        x, y = torch.zeros(2, dimension).double(), torch.zeros(3, dimension).double()
        name = type(found).__name__
        try:
            costs = found.pairwise(x, y)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise TransportError(
                f"cost: {name} fails on points at 0: {type(error).__name__}: {reason}"
            ) from error
        if not isinstance(costs, Tensor) or costs.shape != (2, 3) or costs.dtype != torch.float64:
            raise TransportError(
                f"cost: pairwise of {name} must return a float64 tensor of shape (n, m) for points in float64"
            )
    return found


def _by_differences(x: Tensor, y: Tensor, cost: PixelCost) -> Tensor:
    """Sums of (squared) differences, each pair on its own: nothing cancels, nothing else is looked at."""
    costs = native.pairwise(x, y, cost)
    if costs is not None:
        return costs
    costs = x.new_zeros(x.shape[-2], y.shape[-2])
    for k in range(x.shape[-1]):
        difference = (x[:, k, None] - y[None, :, k]).abs_()
        if cost.squared:
            costs.addcmul_(difference, difference)
        if cost.absolute:
            costs.add_(difference, alpha=cost.absolute)
    return costs


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
        checks.positive(cost_bound=self.bound)
        if not _BOUND[0] <= float(self.bound) <= _BOUND[1]:
            raise TransportError(
                f"cost_bound must be from {_BOUND[0]:g} to {_BOUND[1]:g}, not {self.bound:g}"
            )
        checks.count(n=self.n, m=self.m, dimension=self.dimension)
        checks.flag(paired=self.paired)
        if self.public is not None and not (isinstance(self.public, str) and self.public in ("x", "y")):
            raise TransportError(f"public must be 'x', 'y' or None, not {checks.shown(self.public)}")
        for name, plain in (("n", int), ("m", int), ("bound", float), ("dimension", int)):
            object.__setattr__(self, name, plain(getattr(self, name)))  # NumPy's scalars included
        if self.paired and self.public is not None:
            raise TransportError("paired means that persons own points on both sides; none can be public")

    def worst(self, x: float, y: float) -> float:
        """Return the sensitivity, from how far a replaced x and a replaced y can move the value.

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
        checks.positive(cost_bound=cost_bound)
        first, second = checked_points("x", x), checked_points("y", y)
        if first.shape[1] != second.shape[1]:
            raise TransportError(
                f"x and y must have the same number of columns, not {first.shape[1]} and {second.shape[1]}"
            )
        setting = Setting(len(first), len(second), float(cost_bound), public, paired, first.shape[1])
        base = checked_cost(cost, dimension=setting.dimension)
        return cls(first, second, CappedCost(base, setting.bound), setting)

    def problem(self, sides: Literal["xy", "xx", "yy"] = "xy") -> Problem:
        """Return the transport problem between two of the clouds, for `dpsinkhorn.ot`."""
        first, second = ({"x": self.x, "y": self.y}[side] for side in sides)
        return Problem(first, second, self.cost)

    def flipped(self) -> Clouds:
        """Return the same with the roles of x and y exchanged."""
        side: dict[PublicSide | None, PublicSide | None] = {"x": "y", "y": "x", None: None}
        old = self.setting
        setting = dataclasses.replace(old, n=old.m, m=old.n, public=side[old.public])
        base = self.cost.base if self.cost.symmetric else Flipped(self.cost.base)
        return Clouds(self.y, self.x, CappedCost(base, old.bound), setting)

    def costs(self) -> Tensor:
        """Return the matrix of capped costs, ``(n, m)``."""
        return self.cost.pairwise(self.x, self.y)


def checked_points(name: str, values: Points) -> Tensor:
    """Return points ``(n, d)`` in float64, of whatever holds finite numbers."""
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


Interval = tuple[float, float]


def of_populations(
    interval: Callable[[float], Interval],
    setting: Setting,
    *,
    confidence: float,
    span: float,
    excess: float = math.inf,
) -> Interval | None:
    """Return an interval for the populations: half of what may go wrong is the noise, half the samples.

    Rows are independent draws, x of P and y of Q. A transport cost is jointly convex in its measures, so that
    E W(samples) >= W(P, Q); and it moves by range/n where a row is replaced, so that it is within
    range √((1/n + 1/m) log(1/β) / 2) of its mean with probability 1 - β on either side (McDiarmid). How far
    the mean lies above the populations' value needs more: `excess`. Proof: docs/proofs/populations.md.

    `interval` is that of the samples at a confidence, `span` n times what a replaced row moves, and `excess`
    bounds E W(samples) - W(P, Q); where nothing does, the lower end is 0. None where rows are not independent
    draws: one side is public, or they are pairs.
    """
    if setting.public is not None or setting.paired:
        return None
    low, high = interval((1 + confidence) / 2)
    reach = span * math.sqrt(spread(setting) * math.log(4 / (1 - confidence)) / 2)
    return max(0.0, low - excess - reach), max(0.0, high + reach)


def spread(setting: Setting) -> float:
    """Return 1/n + 1/m."""
    return 1 / setting.n + 1 / setting.m


def root_spread(setting: Setting) -> float:
    """Return 1/√n + 1/√m."""
    return 1 / math.sqrt(setting.n) + 1 / math.sqrt(setting.m)
