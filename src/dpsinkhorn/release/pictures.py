"""Pictures of samples."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from dpsinkhorn.release._files import new_file
from dpsinkhorn.release.errors import ReleaseError

__all__ = ["check_images", "grid_image", "grid_picture"]

_GAP = 2
_GAP_COLOUR = "#a0a0a0"  # neither black nor white, else strokes that reach the border run on into it
_SMALLEST_TILE = 56  # pixels; smaller images are enlarged until they can be seen
_MARGIN = 28  # for the labels


def grid_picture(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    path: str | os.PathLike[str],
    *,
    columns: int = 10,
    rows: int = 20,
) -> None:
    """Draw images into a PNG file: a row per class with its label, or without labels as they come.

    At most `rows` rows of at most `columns` images are drawn, the first ones of every class.

    >>> import tempfile
    >>> images = np.zeros((20, 8, 8), dtype=np.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     grid_picture(images, np.repeat([0, 1], 10), f"{folder}/grid.png")
    ...     with Image.open(f"{folder}/grid.png") as picture:
    ...         picture.size
    (608, 114)
    """
    picture = grid_image(images, labels, columns=columns, rows=rows)
    try:
        with new_file(Path(path)) as draft:
            picture.save(draft, format="PNG")
    except OSError as error:
        raise ReleaseError(f"cannot write {path}: {error.strerror or error}") from error


def grid_image(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    *,
    columns: int = 10,
    rows: int = 20,
) -> Image.Image:
    """The picture of `grid_picture`, in memory.

    >>> grid_image(np.zeros((4, 28, 28, 3), dtype=np.uint8), None, columns=2).size
    (114, 114)
    """
    images, labels = check_images(images, labels)
    if columns < 1 or rows < 1:
        raise ReleaseError("a grid needs at least one row and one column")
    margin = 0 if labels is None else _MARGIN
    lines = _lines(len(images), labels, columns, rows)
    height, width = images.shape[1:3]
    scale = max(1, math.ceil(_SMALLEST_TILE / max(height, width)))
    wide, high = width * scale + _GAP, height * scale + _GAP
    across = max(len(line) for _, line in lines)
    # no gap after the last tile, but a gap after the margin
    size = (margin + (_GAP if margin else 0) + across * wide - _GAP, len(lines) * high - _GAP)
    picture = Image.new("L" if images.ndim == 3 else "RGB", (max(size[0], 1), max(size[1], 1)), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default()
    left = margin + (_GAP if margin else 0)
    for row, (label, line) in enumerate(lines):
        top = row * high
        if label is not None:
            pen.text((margin / 2, top + height * scale / 2), str(label), "black", font, anchor="mm")
        for column, index in enumerate(line):
            side = left + column * wide
            # around the tile; what would reach beyond the picture is cut off
            pen.rectangle(
                (side - _GAP if column else side, top - _GAP, side + wide - 1, top + high - 1), _GAP_COLOUR
            )
            tile = Image.fromarray(images[index])
            picture.paste(tile.resize((wide - _GAP, high - _GAP), Image.Resampling.NEAREST), (side, top))
    return picture


def _lines(
    count: int, labels: NDArray[np.int64] | None, columns: int, rows: int
) -> Sequence[tuple[int | None, Sequence[int]]]:
    """What each row shows: its label, and the indices of its images."""
    if labels is None:
        starts = range(0, min(count, rows * columns), columns)
        return [(None, range(start, min(start + columns, count))) for start in starts]
    present = np.unique(labels)[:rows]
    return [(int(label), np.flatnonzero(labels == label)[:columns].tolist()) for label in present]


def check_images(
    images: NDArray[np.uint8], labels: NDArray[np.int64] | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    """Images (n, height, width) or (n, height, width, 3) in uint8, and labels (n,), or `ReleaseError`."""
    images = np.ascontiguousarray(images)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise ReleaseError(
            f"images must be uint8 of shape (n, height, width) or (n, height, width, 3), "
            f"not {images.dtype} of shape {images.shape}"
        )
    if images.size == 0:
        raise ReleaseError("there are no images")
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            raise ReleaseError(f"labels must be {len(images)} whole numbers, one per image")
        labels = labels.astype(np.int64)
        if labels.min() < 0:
            raise ReleaseError("labels must be from 0 upwards")
    return images, labels
