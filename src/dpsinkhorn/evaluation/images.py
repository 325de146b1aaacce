"""Images as the measures take them: uint8, checked, and on the device as (n, channels, height, width)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.release import to_uint8

_CHUNK = 4096


def images_of(data: Dataset) -> NDArray[np.uint8]:
    """The images of a data set on the scale of a release's samples: 0..255, (N, H, W) or (N, H, W, 3).

    >>> from dpsinkhorn.data import load_dataset
    >>> digits = images_of(load_dataset("digits", split="test"))  # stored as 0..16
    >>> digits.shape, digits.dtype.name, int(digits.max())
    ((450, 8, 8), 'uint8', 255)
    """
    channels, height, width = data.image_shape
    if data.images.dtype == np.uint8 and data.value_range == (0.0, 255.0):
        whole: NDArray[np.uint8] = np.ascontiguousarray(data.images)
        return whole[..., 0] if channels == 1 else whole
    images = np.empty((data.records, *((height, width) if channels == 1 else (height, width, 3))), np.uint8)
    for start in range(0, data.records, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, data.records))
        images[rows] = to_uint8(data.points(rows).reshape(-1, channels, height, width))
    return images


def on_device(images: NDArray[Any], device: torch.device | str, name: str = "images") -> Tensor:
    """uint8 images (n, H, W) or (n, H, W, C) as a tensor (n, C, H, W), uint8 still.

    >>> on_device(np.zeros((2, 5, 4, 3), dtype=np.uint8), "cpu").shape
    torch.Size([2, 3, 5, 4])
    """
    array = np.asarray(images)
    if array.ndim == 3:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] not in (1, 3) or array.size == 0:
        raise EvaluationError(
            f"{name} must be uint8 of shape (n, height, width) or (n, height, width, 3), "
            f"not {array.dtype} of shape {array.shape}"
        )
    tensor = torch.from_numpy(np.array(array, copy=not array.flags.writeable)).to(device)
    return tensor.permute(0, 3, 1, 2).contiguous()


def size_of(shape: Sequence[int]) -> str:
    """Channels, height and width in words.

    >>> size_of((3, 28, 20))
    '28 x 20 colour'
    """
    channels, height, width = shape
    return f"{height} x {width} {'grey' if channels == 1 else 'colour'}"


def check_labels(labels: NDArray[Any], count: int, classes: int, name: str = "labels") -> NDArray[np.int64]:
    """Labels (count,) from 0 to classes - 1, or `EvaluationError`."""
    array = np.asarray(labels)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise EvaluationError(f"{name} must be {count} whole numbers, one for each image")
    if array.min() < 0 or array.max() >= classes:
        raise EvaluationError(f"{name} must be from 0 to {classes - 1}; there are {classes} classes")
    return array.astype(np.int64)
