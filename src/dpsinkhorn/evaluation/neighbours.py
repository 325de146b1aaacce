"""Synthetic images beside the training images that are nearest to them: for the curator's eyes only.

A picture like this shows private records. It says so itself, and so does the name of its file.
"""

from __future__ import annotations

import math
import os
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
_WARNING = (
    "PRIVATE RECORDS: for the curator's eyes only, do not pass on.",
    "Left: synthetic. Right: the nearest training image.",
)
_TILE = 56  # pixels at least
_GAP = 12
_CELLS = 2**24


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each synthetic image the training image nearest to it, by Euclidean distance of pixels in 0..1."""

    indices: NDArray[np.int64]
    distances: NDArray[np.float64]


def nearest_neighbours(
    synthetic: NDArray[np.uint8],
    training: NDArray[np.uint8],
    *,
    device: torch.device | str | None = None,
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


def neighbours_path(path: str | os.PathLike[str]) -> Path:
    """The name that the picture gets: it says whom it is for.

    >>> neighbours_path("near.png").name
    'near-CURATOR-ONLY.png'
    """
    wanted = Path(path)
    if wanted.suffix.lower() != ".png":
        raise EvaluationError(f"pictures of neighbours are PNG files: {wanted} must end in .png")
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
    target = neighbours_path(path)
    height, width = synthetic.shape[1:3]
    scale = max(1, math.ceil(_TILE / max(height, width)))
    wide, high = width * scale, height * scale
    font = ImageFont.load_default()
    lines = max(1, math.ceil(len(synthetic) / columns))
    banner, caption = 34, 16
    least = max(int(font.getlength(line)) for line in _WARNING) + 2 * _GAP
    size = (
        max(columns * (2 * wide + 2 + _GAP) + _GAP, least),
        banner + lines * (high + caption + _GAP) + _GAP,
    )
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    pen.rectangle((0, 0, size[0], banner - 4), fill="#b00020")
    for row, line in enumerate(_WARNING):
        pen.text((_GAP, 2 + 14 * row), line, "white", font)
    for k in range(len(synthetic)):
        left = _GAP + (k % columns) * (2 * wide + 2 + _GAP)
        top = banner + (k // columns) * (high + caption + _GAP) + 4
        for image, side in ((synthetic[k], left), (training[neighbours.indices[k]], left + wide + 2)):
            tile = Image.fromarray(_plain(image)).convert("RGB")
            picture.paste(tile.resize((wide, high), Image.Resampling.NEAREST), (side, top))
        pen.text((left, top + high + 1), f"distance {neighbours.distances[k]:.2f}", "black", font)
    with failing_as(EvaluationError, f"cannot write {target}"):
        picture.save(target, format="PNG")
    return target


def _plain(image: NDArray[Any]) -> NDArray[Any]:
    return image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
