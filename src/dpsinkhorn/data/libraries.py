"""Data sets of PyTorch and Hugging Face, tables of pandas: each record becomes pixels and a label."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from dpsinkhorn.data.pictures import decode, plain_picture
from dpsinkhorn.errors import DataError

_IMAGES = ("image", "img", "images", "pixel_values", "x", "path", "file", "file_name", "filename")
_LABELS = ("label", "labels", "fine_label", "target", "y")


def read_records(data: Any) -> tuple[Any, list[Any] | None]:
    """Return images and labels (or None) of records; an array as it is.

    Records are a data set of PyTorch or Hugging Face, a table of pandas, or a list or column of images. One
    is an image, a pair of an image and a label, or a mapping with an `image` and perhaps a `label`. Images
    are arrays, pictures of Pillow or paths to such, or tensors, whose channels come first. Each is read by
    itself.

    >>> pairs = torch.utils.data.TensorDataset(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 1]))
    >>> images, labels = read_records(pairs)
    >>> images[0].shape, labels
    ((8, 8, 1), [0, 1, 1])
    """
    if isinstance(data, DataLoader):
        raise DataError("a DataLoader gives batches; give its data set (loader.dataset)")
    if isinstance(data, Mapping) and hasattr(data, "column_names"):
        raise DataError(
            f"the data set has several parts; give one of them (data[{next(iter(data), 'train')!r}])"
        )
    of_hugging_face = hasattr(data, "features") and hasattr(data, "column_names")
    if not (isinstance(data, TorchDataset) or of_hugging_face or _is_frame(data)):
        if isinstance(data, torch.Tensor):
            return _channels_last(data, axes=4), None
        if isinstance(data, (list, tuple)) or getattr(data, "ndim", 0) == 1:
            return [_pixels(image) for image in data], None
        return data, None
    pairs = [(_pixels(image), label) for image, label in map(_pair, _records(data))]
    images, labels = [image for image, _ in pairs], [label for _, label in pairs]
    return images, None if all(label is None for label in labels) else labels


def _is_frame(data: Any) -> bool:
    """Whether it is a table of pandas that has a column of images, and not one of numbers alone."""
    return hasattr(data, "iterrows") and not set(_IMAGES).isdisjoint(data.columns)


def _records(data: Any) -> Iterator[Any]:
    if _is_frame(data):
        yield from data.to_dict("records")
    elif hasattr(data, "__len__"):  # a data set by number need not end an iteration
        yield from (data[row] for row in range(len(data)))
    else:
        yield from data


def _pair(record: Any) -> tuple[Any, Any]:
    """Return an image and its label, or None in the place of a label."""
    if isinstance(record, Mapping):
        image, label = (
            next((name for name in names if name in record), None) for names in (_IMAGES, _LABELS)
        )
        if image is None:
            raise DataError(
                f"the records have no image among {', '.join(map(str, record))}; rename that column to image"
            )
        record = (record[image], None if label is None else record[label])
    if not isinstance(record, (tuple, list)):
        return record, None
    if len(record) not in (1, 2):
        raise DataError(f"a record has {len(record)} parts; give an image and a label, and persons as groups")
    image, label = (*record, None)[:2]
    return image, label.item() if isinstance(label, (torch.Tensor, np.generic)) and label.ndim == 0 else label


def _pixels(image: Any) -> npt.NDArray[Any]:
    """Return an image as (H, W) or (H, W, C)."""
    if isinstance(image, Image.Image):
        return np.asarray(plain_picture(image, "an image of the data set"))
    if isinstance(image, (str, os.PathLike)):
        return decode(Path(image), os.fspath(image))
    if isinstance(image, torch.Tensor):
        return _channels_last(image, axes=3)
    try:
        return np.asarray(image)
    except ValueError:
        raise DataError("the rows of an image differ in length; make each an array") from None


def _channels_last(tensor: torch.Tensor, *, axes: int) -> npt.NDArray[Any]:
    """Return a tensor as an array; where it has so many axes, and channels come first, with channels last."""
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return np.moveaxis(array, -3, -1) if array.ndim == axes and array.shape[-3] in (1, 3) else array
