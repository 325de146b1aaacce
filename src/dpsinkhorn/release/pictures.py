"""Pictures of samples."""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.files import failing_as, new_file

_GAP = 2
_GAP_COLOUR = "#a0a0a0"  # neither black nor white, else strokes that reach the border run on into it
_SMALLEST_TILE = 84  # pixels; smaller images are enlarged until they can be seen
_SMOOTHED = 16  # images of fewer pixels a side are enlarged smoothly: of squares the eye sees nothing else
_MARGIN = 28  # for the labels, at least
_WIDEST = 150  # pixels of a label; a longer name is cut
_SPACE = 5  # on either side of it
_NO_LETTER = "\uffff"  # stands for no character, and so is in no font


def grid_picture(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    path: str | os.PathLike[str],
    *,
    columns: int = 10,
    rows: int = 20,
    class_names: Sequence[str] = (),
) -> None:
    """Draw images into a PNG file: a row per class with its name or number, or without labels as they come.

    At most `rows` rows of at most `columns` images are drawn, the first ones of every class. A name that the
    font cannot draw is left to its number.

    >>> import tempfile
    >>> images = np.zeros((20, 8, 8), dtype=np.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     grid_picture(images, np.repeat([0, 1], 10), f"{folder}/grid.png")
    ...     with Image.open(f"{folder}/grid.png") as picture:
    ...         picture.size
    (928, 178)
    """
    picture = grid_image(images, labels, columns=columns, rows=rows, class_names=class_names)
    with failing_as(ReleaseError, f"cannot write {path}"), new_file(Path(path)) as draft:
        picture.save(draft, format="PNG")


def grid_image(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    *,
    columns: int = 10,
    rows: int = 20,
    class_names: Sequence[str] = (),
) -> Image.Image:
    """Return the picture of `grid_picture`, in memory.

    >>> grid_image(np.zeros((4, 28, 28, 3), dtype=np.uint8), None, columns=2).size
    (170, 170)
    """
    images, labels = check_images(images, labels)
    if columns < 1 or rows < 1:
        raise ReleaseError("a grid needs at least one row and one column")
    lines = _lines(len(images), labels, columns, rows)
    font = ImageFont.load_default()
    titles = _titles([label for label, _ in lines if label is not None], class_names, font)
    widest = max((math.ceil(font.getlength(title)) for title in titles), default=0)
    margin = 0 if labels is None else max(_MARGIN, widest + 2 * _SPACE)
    height, width = images.shape[1:3]
    scale = max(1, math.ceil(_SMALLEST_TILE / max(height, width)))
    smooth = max(height, width) < _SMOOTHED
    resampling = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    wide, high = width * scale + _GAP, height * scale + _GAP
    across = max(len(line) for _, line in lines)
    # no gap after the last tile, but a gap after the margin
    size = (margin + (_GAP if margin else 0) + across * wide - _GAP, len(lines) * high - _GAP)
    picture = Image.new("L" if images.ndim == 3 else "RGB", (max(size[0], 1), max(size[1], 1)), "white")
    pen = ImageDraw.Draw(picture)
    left = margin + (_GAP if margin else 0)
    for row, (_, line) in enumerate(lines):
        top = row * high
        if titles:
            pen.text((margin / 2, top + height * scale / 2), titles[row], "black", font, anchor="mm")
        for column, index in enumerate(line):
            side = left + column * wide
            # around the tile; what would reach beyond the picture is cut off
            pen.rectangle(
                (side - _GAP if column else side, top - _GAP, side + wide - 1, top + high - 1), _GAP_COLOUR
            )
            tile = Image.fromarray(images[index]).resize((wide - _GAP, high - _GAP), resampling)
            picture.paste(tile, (side, top))
    return picture


def _lines(
    count: int, labels: NDArray[np.int64] | None, columns: int, rows: int
) -> Sequence[tuple[int | None, Sequence[int]]]:
    """Return what each row shows: its label, and the indices of its images."""
    if labels is None:
        starts = range(0, min(count, rows * columns), columns)
        return [(None, range(start, min(start + columns, count))) for start in starts]
    present = np.unique(labels)[:rows]
    return [(int(label), np.flatnonzero(labels == label)[:columns].tolist()) for label in present]


def _titles(
    labels: Sequence[int], class_names: Sequence[str], font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[str]:
    """Return what to write beside each row: the name of the class, cut where it is long, or its number."""
    titles = []
    for label in labels:
        name = class_names[label].strip() if label < len(class_names) else ""
        forms = (form for form in (name, _without_accents(name)) if form and _can_draw(form, font))
        titles.append(_cut(next(forms, str(label)), font))
    # cut names, or a name that is the number of another class, must not read alike
    return [
        title if titles.count(title) == 1 else _cut(f"{label}: {title}", font)
        for label, title in zip(labels, titles, strict=True)
    ]


def _cut(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(name) <= _WIDEST:
        return name
    kept = len(name)
    while kept and font.getlength(name[:kept] + "...") > _WIDEST:
        kept -= 1
    return name[:kept].rstrip() + "..."


def _without_accents(name: str) -> str:
    """Take accents off, for a font of few letters: Pillow's own has none with accents."""
    parts = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def _can_draw(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> bool:
    """Say whether the font has every letter: it draws those that it lacks as the same box."""
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow without FreeType
        return name.isascii()
    missing = bytes(font.getmask(_NO_LETTER))
    return all(letter.isspace() or bytes(font.getmask(letter)) != missing for letter in name)


def check_images(
    images: NDArray[np.uint8], labels: NDArray[np.int64] | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    """Return images (n, height, width) or (n, height, width, 3) in uint8, and labels (n,), or raise."""
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
