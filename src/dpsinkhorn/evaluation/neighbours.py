"""Synthetic images beside real ones, the nearest to them or any of their class: for the curator's eyes only.

Pictures like these show private records. They say so themselves, and so do the names of their files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.images import on_device
from dpsinkhorn.files import failing_as
from dpsinkhorn.generators import choose_device

MARK = "CURATOR-ONLY"
_WARNING = "PRIVATE RECORDS: for the curator's eyes only, do not pass on."
_TILE = 56  # pixels at least
_BANNER = 34  # pixels high
_CLASSES, _IN_A_ROW, _LETTERS = 20, 6, 24
_GAP = 12
_CELLS = 2**24


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each synthetic image the training image nearest to it, by Euclidean distance of pixels in 0..1."""

    indices: NDArray[np.int64]
    distances: NDArray[np.float64]


def nearest_neighbours(
    synthetic: NDArray[np.uint8], training: NDArray[np.uint8], *, device: torch.device | str | None = None
) -> Neighbours:
    """The nearest training image of each synthetic one.

    >>> training = np.arange(0, 250, 50, dtype=np.uint8).reshape(5, 1, 1)
    >>> nearest_neighbours(np.array([[[60]], [[200]]], dtype=np.uint8), training).indices.tolist()
    [1, 4]
    """
    where = choose_device(device, EvaluationError)
    x, y = on_device(synthetic, where, "synthetic images"), on_device(training, where, "training images")
    if x.shape[1:] != y.shape[1:]:
        raise EvaluationError("synthetic and training images differ in size; resize one of them")
    # sums of whole numbers below 2^53: exact in float64, so equal images are at distance 0
    points = x.flatten(1).double()
    norms = points.square().sum(1, keepdim=True)
    best = torch.full((len(points),), torch.inf, dtype=torch.float64, device=where)
    found = torch.zeros(len(points), dtype=torch.int64, device=where)
    step = max(1, _CELLS // max(len(points), points.shape[1]))
    for start in range(0, len(y), step):
        part = y[start : start + step].flatten(1).double()
        squares, rows = (norms + part.square().sum(1) - 2 * points @ part.T).min(1)
        nearer = squares < best
        best = torch.where(nearer, squares, best)
        found = torch.where(nearer, rows + start, found)
    return Neighbours(found.cpu().numpy(), best.clamp(min=0).sqrt().div(255).cpu().numpy())


def curator_path(path: str | os.PathLike[str]) -> Path:
    """The name that a picture gets: it says whom it is for.

    >>> curator_path("near.png").name
    'near-CURATOR-ONLY.png'
    """
    wanted = Path(path)
    if wanted.suffix.lower() != ".png":
        raise EvaluationError(f"pictures are PNG files: {wanted} must end in .png")
    return wanted if MARK in wanted.stem else wanted.with_stem(f"{wanted.stem}-{MARK}")


def neighbours_picture(
    synthetic: NDArray[np.uint8],
    training: NDArray[np.uint8],
    neighbours: Neighbours,
    path: str | os.PathLike[str],
    *,
    columns: int = 5,
) -> Path:
    """Draw pairs, synthetic and nearest training image with their distance, into a marked PNG file.

    Returns:
        Where it was written: `path` with `CURATOR-ONLY` in its name.
    """
    tile, font = _tiles(synthetic), ImageFont.load_default()
    wide, high = tile(synthetic[0]).size
    lines = max(1, math.ceil(len(synthetic) / columns))
    caption = 16
    size = (columns * (2 * wide + 2 + _GAP) + _GAP, _BANNER + lines * (high + caption + _GAP) + _GAP)
    picture, pen = _marked("Left: synthetic. Right: the nearest training image.", size)
    for k in range(len(synthetic)):
        left = _GAP + (k % columns) * (2 * wide + 2 + _GAP)
        top = _BANNER + (k // columns) * (high + caption + _GAP) + 4
        for image, side in ((synthetic[k], left), (training[neighbours.indices[k]], left + wide + 2)):
            picture.paste(tile(image), (side, top))
        pen.text((left, top + high + 1), f"distance {neighbours.distances[k]:.2f}", "black", font)
    return _saved(picture, path)


def beside_picture(
    synthetic: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    real: NDArray[np.uint8],
    real_labels: NDArray[np.int64] | None,
    class_names: Sequence[str],
    path: str | os.PathLike[str],
) -> Path:
    """Draw synthetic images beside real ones, a line for each class, into a marked PNG file.

    Six of each are drawn, of twenty classes at most of which there are both; all are one without labels.

    Returns:
        Where it was written: `path` with `CURATOR-ONLY` in its name.
    """
    if labels is None or real_labels is None:
        lines = [("all", synthetic, real)]
    else:
        both = np.intersect1d(labels, real_labels)[:_CLASSES].tolist()
        names = [class_names[k] if k < len(class_names) else str(k) for k in both]
        lines = [
            (name[:_LETTERS], synthetic[labels == k], real[real_labels == k])
            for k, name in zip(both, names, strict=True)
        ]
    tile, font = _tiles(synthetic), ImageFont.load_default()
    wide, high = tile(synthetic[0]).size
    margin = 2 * _GAP + int(max((font.getlength(name) for name, _, _ in lines), default=0))
    middle = margin + _IN_A_ROW * (wide + 2) + _GAP
    size = (middle + _IN_A_ROW * (wide + 2) + _GAP, _BANNER + len(lines) * (high + 4) + _GAP)
    picture, pen = _marked("Left: synthetic. Right: real images, to test on.", size)
    for k, (name, ours, theirs) in enumerate(lines):
        top = _BANNER + k * (high + 4) + 4
        pen.text((_GAP, top + high // 2 - 6), name, "black", font)
        for images, left in ((ours, margin), (theirs, middle)):
            for place, image in enumerate(images[:_IN_A_ROW]):
                picture.paste(tile(image), (left + place * (wide + 2), top))
    return _saved(picture, path)


def _tiles(images: NDArray[np.uint8]) -> Callable[[NDArray[Any]], Image.Image]:
    """What draws an image so large that it can be seen, pixel by pixel."""
    height, width = images.shape[1:3]
    scale = max(1, math.ceil(_TILE / max(height, width)))
    return lambda image: (
        Image.fromarray(_plain(image))
        .convert("RGB")
        .resize((width * scale, height * scale), Image.Resampling.NEAREST)
    )


def _marked(about: str, size: tuple[int, int]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """An empty picture under a red banner, which fits into it."""
    font = ImageFont.load_default()
    least = max(int(font.getlength(line)) for line in (_WARNING, about)) + 2 * _GAP
    picture = Image.new("RGB", (max(size[0], least), size[1]), "white")
    pen = ImageDraw.Draw(picture)
    pen.rectangle((0, 0, picture.width, _BANNER - 4), fill="#b00020")
    for row, line in enumerate((_WARNING, about)):
        pen.text((_GAP, 2 + 14 * row), line, "white", font)
    return picture, pen


def _saved(picture: Image.Image, path: str | os.PathLike[str]) -> Path:
    target = curator_path(path)
    with failing_as(EvaluationError, f"cannot write {target}"):
        picture.save(target, format="PNG")
    return target


def _plain(image: NDArray[Any]) -> NDArray[Any]:
    return image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
