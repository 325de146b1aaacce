"""Record and replay of private transport: one point replaced by the worst there are, with all noise frozen.

Sizes are public, so a neighbour has one point replaced, on either private side, or on both where one person
owns a point of each. What is noised may move by no more than the claimed sensitivity, the charge must stand
for just the noise that was added, and every field of the result must be the same.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpsinkhorn.errors import TransportError
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.privacy.audit import Outcome, Recorder, Replayed, Replayer, Shared
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport.cost import private_cost
from dpsinkhorn.transport.noisy import noisy_sinkhorn
from dpsinkhorn.transport.reading import read_together
from dpsinkhorn.transport.two_sample import private_test
from dpsinkhorn.transport.two_stage import two_stage_cost

Points: TypeAlias = npt.NDArray[np.float64]
Pair: TypeAlias = tuple[Points, Points]
Watch: TypeAlias = Callable[[str], None]

_NOBODY_SAMPLED = Shared.all_and(0)
_TOKENS = ("0.5", "1e300", "", "nan", "true", "2024-01-01", '"1"', "12345678901234567890", "word", "1e0")
_WHO: tuple[dict[str, Any], ...] = ({}, {"public": "x"}, {"public": "y"}, {"paired": True})


@dataclass(frozen=True)
class _Method:
    """A way of releasing something of two clouds."""

    name: str
    release: Callable[..., Any]
    options: dict[str, Any]
    who: tuple[dict[str, Any], ...] = _WHO


def replay_transport(
    x: Points, y: Points, *, cost_bound: float, watch: Watch | None = None
) -> list[Replayed]:
    """Replay every method on neighbours of two clouds of points, x ``(n, d)`` and y ``(m, d)``.

    >>> x, y = np.random.default_rng(0).random((2, 12, 2))
    >>> all(not each.violations for each in replay_transport(x, y, cost_bound=1.0))
    True
    """
    found = []
    for method in _methods(x, y, cost_bound):
        if watch is not None:
            watch(method.name)
        found.append(Replayed.of(method.name, _outcomes(method, (x, y), cost_bound)))
    return found


def _methods(x: Points, y: Points, bound: float) -> Iterator[_Method]:
    common: dict[str, Any] = {"epsilon": 1.0, "cost_bound": bound}
    direct = partial(private_cost, method="direct", **common)
    yield _Method("direct, entropic", direct, {"regularization": 0.1 * bound})
    yield _Method("direct, exact", direct, {"regularization": 0.0})
    yield _Method("direct, divergence", direct, {"regularization": 0.1 * bound, "debiased": True})
    along_lines = {"cost": "euclidean", "center": x[0].tolist()}
    yield _Method("sliced", partial(private_cost, method="sliced", **common), along_lines)
    smoothed = partial(private_cost, method="smoothed-sliced", delta=1e-5, **common)
    yield _Method("smoothed sliced", smoothed, along_lines)
    support = np.concatenate([x[:3], y[:3]])
    yield _Method("histogram", partial(private_cost, method="histogram", **common), {"support": support})
    program = partial(private_cost, method="linear-program", **common)
    yield _Method("linear program", program, {"support": support})
    yield _Method("noisy Sinkhorn", noisy_sinkhorn, {**common, "delta": 1e-5, "iterations": 3})
    yield _Method("two-stage", two_stage_cost, {**common, "epsilon": 5.0, "delta": 1e-5, "iterations": 2})
    who = ({}, {"paired": True}) if len(x) == len(y) else ({},)
    for statistic in ("mmd", "sliced", "exact"):
        options = {**common, "statistic": statistic, "permutations": 39, "effect_share": 0.5}
        yield _Method(f"test, {statistic}", private_test, options, who)


def _outcomes(method: _Method, clouds: Pair, bound: float) -> Iterator[Outcome]:
    x, y = clouds
    # where all costs are 0, one point moves a cost the most
    in_one_place = np.repeat(x[:1], len(x), axis=0), np.repeat(x[:1], len(y), axis=0)
    for who in method.who:
        words = [f"{name} {value}" if name == "public" else name for name, value in who.items()]
        yield from _replays(method, clouds, who, ", ".join(words), bound)
        yield from _replays(method, in_one_place, who, ", ".join([*words, "all in one place"]), bound)


def _replays(
    method: _Method, clouds: Pair, who: dict[str, Any], words: str, bound: float
) -> Iterator[Outcome]:
    recorder = Recorder(SeededNoise(0))
    run = partial(_seen, method, who)
    seen = run(*clouds, recorder)
    own = Outcome(words or "the data", differences=recorder.recording.differences(seen["charge"]))
    if own.violations:
        yield own
    for name, read in _neighbours(clouds, who, bound):
        replayer = Replayer(recorder.recording, SeededNoise(0), _NOBODY_SAMPLED)

        def released(read: Callable[[], Pair] = read, replayer: Replayer = replayer) -> list[str]:
            found = run(*read(), replayer)
            return [f"{field} differs" for field in seen if not _same(seen[field], found[field])]

        yield replayer.outcome(f"{words}: {name}" if words else name, released, TransportError)


def _seen(method: _Method, who: dict[str, Any], x: Points, y: Points, noise: NoiseSource) -> dict[str, Any]:
    """Return all that is handed back of a release, and what is warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = method.release(x, y, **method.options, **who, noise=noise)
    return {**vars(result), "warnings": [str(each.message) for each in warned]}


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first.tobytes() == second.tobytes()
    return bool(first == second)


# ---- neighbours


def _neighbours(clouds: Pair, who: dict[str, Any], bound: float) -> Iterator[tuple[str, Callable[[], Pair]]]:
    x, y = clouds
    sides = ["both"] if who.get("paired") else [side for side in ("x", "y") if side != who.get("public")]
    far = np.abs(np.concatenate([x, y])).max() + np.sqrt(bound)
    for side in sides:
        for name, at_x, at_y in (
            ("in a far corner", np.full(x.shape[1], 10 * far), np.full(x.shape[1], -10 * far)),
            ("in a corner within reach", np.full(x.shape[1], far), np.full(x.shape[1], far)),
            ("at the origin", np.zeros(x.shape[1]), np.zeros(x.shape[1])),
            ("on another point of its side", x[-1], y[-1]),
            ("on a point of the other side", y[-1], x[-1]),
            ("beyond all numbers", np.full(x.shape[1], 1e300), np.full(x.shape[1], -1e300)),
            ("at no number", np.full(x.shape[1], np.nan), np.full(x.shape[1], np.inf)),
        ):
            new_x = _replaced(x, at_x) if side in ("x", "both") else x
            new_y = _replaced(y, at_y) if side in ("y", "both") else y
            yield f"the first point of {side} {name}", lambda pair=(new_x, new_y): pair  # type: ignore[misc]
    if not who:  # tables of both clouds, and a line of x that the reader may trip over
        yield "a .csv file: nothing unusual", partial(_read, clouds, None)
        for token in _TOKENS:
            yield f"a .csv file: {token or 'nothing'} as the first number", partial(_read, clouds, token)


def _replaced(points: Points, point: Points) -> Points:
    return np.concatenate([point[None], points[1:]])


def _read(clouds: Pair, token: str | None) -> Pair:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.csv" for name in "xy"]
        for path, points, first in zip(paths, clouds, (token, None), strict=True):
            rows = [[repr(float(number)) for number in point] for point in points]
            rows[0][0] = rows[0][0] if first is None else first
            header = [f"c{k}" for k in range(points.shape[1])]
            path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n", encoding="utf-8")
        found = read_together(paths)
        return found[0], found[1]
