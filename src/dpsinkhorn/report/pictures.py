"""Generated images on a page: those of the finished generator, and those that a run wrote while training."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, UnidentifiedImageError

from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.release import Release, grid_image

_CLASSES = 20  # shown at most
_COLUMNS = 4  # images in a row of a strip; there are two strips, side by side where the page is wide
_MEASURED = 100  # images of each for the figures, at most
_DRAWN = 500  # images in all, about: a large generator takes its time on a CPU
_ROWS = 5  # of a strip without classes
_LOGGED_PICTURES, _LOGGED_LINES = 6, 40


class Picture(NamedTuple):
    """A picture as a PNG within the page."""

    uri: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Image.Image) -> Picture:
        """Encode its pixels alone: what else a PNG may carry stays behind."""
        image.info.clear()
        file = io.BytesIO()
        image.save(file, format="PNG", optimize=True)
        return cls("data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii"), *image.size)


class ClassSamples(NamedTuple):
    """Generated images of a class, and figures of them."""

    title: str
    share: float | None
    """Of the labels that the generator draws; `None` where there are no classes."""
    shown: int
    """Images on each strip."""
    measured: int
    strips: tuple[Picture, ...]
    brightness: float
    """Mean of all pixels, 0 to 1."""
    diversity: float
    """Root mean square difference of the pixels of two images, 0 to 1: none where all are the same."""


def samples_by_class(release: Release) -> list[ClassSamples]:
    """Images of every class, twenty classes at most, always the same ones for a release."""
    numbers: Sequence[int | None] = range(min(release.classes, _CLASSES)) if release.classes else (None,)
    measured = max(2 * _COLUMNS, min(_MEASURED, _DRAWN // len(numbers)))
    found = []
    for number in numbers:
        images, _ = release.sample(measured, number, random_state=number or 0)
        shown = _COLUMNS * (_ROWS if number is None else 1)
        halves = images[:shown], images[shown : 2 * shown]
        pixels = images.reshape(len(images), -1) / 255.0
        found.append(
            ClassSamples(
                "all images" if number is None else class_title(number, release.class_names),
                None if number is None else (release.label_probabilities or ())[number],
                shown,
                measured,
                tuple(Picture.of(grid_image(half, None, columns=_COLUMNS)) for half in halves),
                brightness=float(pixels.mean()),
                # two different images: twice the unbiased variance
                diversity=math.sqrt(2 * float(pixels.var(axis=0, ddof=1).mean())),
            )
        )
    return found


def class_title(k: int, names: Sequence[str]) -> str:
    """Number and name.

    >>> class_title(1, ["well", "ill"]), class_title(1, ["0", "1"]), class_title(1, [])
    ('1: ill', '1', '1')
    """
    return f"{k}: {names[k]}" if k < len(names) and names[k] not in ("", str(k)) else str(k)


def training_log(folder: Path) -> dict[str, list[Any]]:
    """Some lines of statistics and some pictures that a run wrote, from the first to the last.

    They follow the clock, and are for the curator alone. A release has none.
    """
    statistics = folder / "statistics.jsonl"
    texts = statistics.read_text(encoding="utf-8").splitlines() if statistics.exists() else []
    lines = [line for line in map(_line, texts) if line is not None]
    paths = _some(sorted((folder / "samples").glob("step-*.png")), _LOGGED_PICTURES)
    pictures = [picture for picture in map(_logged_picture, paths) if picture is not None]
    return {"lines": _some(lines, _LOGGED_LINES), "pictures": pictures}


def _line(text: str) -> tuple[str, str, str, str] | None:
    """Step, ε, norm of the gradient, steps a second; `None` where a crash tore it, or it is being written."""
    try:
        value = json.loads(text)
        spent = value["epsilon"]
        return (
            f"{int(value['step']):,}",
            "" if spent is None else format_epsilon(float(spent)),
            f"{float(value['gradient_norm']):.4g}",
            "" if value["steps_per_second"] is None else f"{float(value['steps_per_second']):.4g}",
        )
    except (ValueError, KeyError, TypeError):
        return None


def _logged_picture(path: Path) -> tuple[int, Picture] | None:
    """The step, and the images that were generated then."""
    picture, step = curators_picture(path), path.stem[5:]
    return (int(step), picture) if picture is not None and step.isdecimal() else None


def curators_picture(path: Path) -> Picture | None:
    """A picture of a file, for the curator's page; `None` where it is none."""
    try:
        with Image.open(path) as file:
            return Picture.of(file.convert("L" if file.mode == "L" else "RGB"))
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return None


def _some(values: list[Any], most: int) -> list[Any]:
    """At most so many, evenly spread, the last one among them."""
    if len(values) <= most:
        return values
    return [values[math.ceil((index + 1) * len(values) / most) - 1] for index in range(most)]
