"""What a run wrote down while training. It follows the clock, and is for the curator alone."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.report.pictures import picture_uri, read_picture

__all__ = ["LogPicture", "TrainingLog", "training_log"]

_PICTURES = 6
_LINES = 40


@dataclass(frozen=True)
class LogPicture:
    """Images that were generated while training."""

    step: int
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class TrainingLog:
    """Some lines of the statistics, and some pictures, from the first to the last."""

    lines: tuple[tuple[str, str, str, str], ...]
    """Step, ε, norm of the gradient, steps per second."""
    pictures: tuple[LogPicture, ...]


def training_log(folder: Path) -> TrainingLog:
    """What a run folder holds of it; empty for a release."""
    statistics = folder / "statistics.jsonl"
    texts = statistics.read_text(encoding="utf-8").splitlines() if statistics.exists() else []
    lines = [line for line in map(_line, texts) if line is not None]
    paths = _some(sorted((folder / "samples").glob("step-*.png")), _PICTURES)
    pictures = [picture for picture in map(_picture, paths) if picture is not None]
    return TrainingLog(tuple(_some(lines, _LINES)), tuple(pictures))


def _line(text: str) -> tuple[str, str, str, str] | None:
    """A line of the table; `None` where a crash tore it, or it is being written."""
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


def _picture(path: Path) -> LogPicture | None:
    try:
        picture = read_picture(path)
        return LogPicture(int(path.stem[5:]), picture_uri(picture), *picture.size)
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return None


def _some(values: list[Any], most: int) -> list[Any]:
    """At most so many, evenly spread, the last one among them."""
    if len(values) <= most:
        return values
    return [values[math.ceil((index + 1) * len(values) / most) - 1] for index in range(most)]
