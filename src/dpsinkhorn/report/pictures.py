"""Pictures of a page: generated images as data URIs, and the geometry of a line plot."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dpsinkhorn.release import Release, grid_image

__all__ = ["ClassSamples", "Plot", "line_plot", "picture_uri", "read_picture", "samples_by_class"]

_CLASSES = 20  # shown at most
_SHOWN = 10  # images of each
_MEASURED = 100  # images of each for the figures, at most
_DRAWN = 500  # images in all, about: a large generator takes its time on a CPU
_ROWS = 5  # of images without classes


@dataclass(frozen=True)
class ClassSamples:
    """Generated images of a class, and figures of them."""

    number: int | None
    """`None` where there are no classes."""
    name: str
    share: float | None
    """Of the labels that the generator draws."""
    shown: int
    measured: int
    uri: str
    width: int
    height: int
    brightness: float
    """Mean of all pixels, 0 to 1."""
    diversity: float
    """Root mean square difference of the pixels of two images, 0 to 1: none where all are the same."""

    @property
    def title(self) -> str:
        """Number and name."""
        if self.number is None:
            return "all images"
        return (
            f"{self.number}: {self.name}" if self.name and self.name != str(self.number) else f"{self.number}"
        )


def samples_by_class(release: Release) -> list[ClassSamples]:
    """Images of every class, twenty classes at most, always the same ones for a release."""
    numbers: Sequence[int | None] = range(min(release.classes, _CLASSES)) if release.classes else (None,)
    measured = max(_SHOWN, min(_MEASURED, _DRAWN // len(numbers)))
    found = []
    for number in numbers:
        images, _ = release.sample(measured, number, random_state=number or 0)
        shown = images[:_SHOWN] if number is not None else images[: _SHOWN * _ROWS]
        picture = grid_image(shown, None, columns=_SHOWN)
        probabilities = release.label_probabilities
        found.append(
            ClassSamples(
                number,
                release.class_names[number] if number is not None and release.class_names else "",
                None if number is None or probabilities is None else probabilities[number],
                len(shown),
                measured,
                picture_uri(picture),
                *picture.size,
                brightness=float(images.mean()) / 255,
                diversity=_diversity(images),
            )
        )
    return found


def _diversity(images: NDArray[np.uint8]) -> float:
    pixels = images.reshape(len(images), -1) / 255.0
    # two different images: twice the unbiased variance
    return math.sqrt(2 * float(pixels.var(axis=0, ddof=1).mean()))


def picture_uri(picture: Image.Image) -> str:
    """A picture as a PNG within the page."""
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def read_picture(path: Path) -> Image.Image:
    """A picture from a file, its pixels alone: what else a PNG may carry stays behind."""
    with Image.open(path) as file:
        picture: Image.Image = file.convert("L" if file.mode == "L" else "RGB")
    picture.info.clear()
    return picture


@dataclass(frozen=True)
class Plot:
    """A line in a frame of 400 x 240, in SVG's coordinates."""

    line: str
    area: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    limit: float | None
    """Height of the horizontal line of a limit."""
    end: tuple[float, float]
    left: float = 44.0
    right: float = 388.0
    top: float = 18.0
    bottom: float = 200.0


def line_plot(x: Sequence[float], y: Sequence[float], limit: float | None = None) -> Plot:
    """A line from the origin on, with round ticks, and a limit that it should not pass.

    >>> plot = line_plot([0, 50, 100], [0.0, 3.0, 4.0], limit=5.0)
    >>> [text for _, text in plot.x_ticks], [text for _, text in plot.y_ticks]
    (['0', '20', '40', '60', '80', '100'], ['0', '1', '2', '3', '4', '5'])
    """
    x_step, y_step = _round_step(max(x)), _round_step(max(*y, limit or 0.0))
    x_top = max(x)
    y_top = math.ceil(max(*y, limit or 0.0) / y_step - 1e-9) * y_step
    frame = Plot("", "", (), (), None, (0, 0))

    def across(value: float) -> float:
        return round(frame.left + value / x_top * (frame.right - frame.left), 1)

    def up(value: float) -> float:
        return round(frame.bottom - value / y_top * (frame.bottom - frame.top), 1)

    places = [(across(a), up(b)) for a, b in zip(x, y, strict=True)]
    line = " ".join(f"{a},{b}" for a, b in places)
    return Plot(
        line,
        f"{frame.left},{frame.bottom} {line} {places[-1][0]},{frame.bottom}",
        tuple((across(value), _tick(value)) for value in _ticks(x_top, x_step)),
        tuple((up(value), _tick(value)) for value in _ticks(y_top, y_step)),
        None if limit is None else up(limit),
        places[-1],
    )


def _round_step(top: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that fits four to ten times."""
    rough = top / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return max(step * power for step in (1, 2, 5) if step * power <= rough * (1 + 1e-9))


def _ticks(top: float, step: float) -> list[float]:
    return [index * step for index in range(math.floor(top / step + 1e-9) + 1)]


def _tick(value: float) -> str:
    for unit, letter in ((1e9, " bn"), (1e6, " m"), (1e3, " k")):
        if value >= max(unit, 1e4):  # four digits still fit
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"
