"""Encoded pictures (PNG, JPEG and the like), decoded with Pillow, in parallel, into one array.

Files may come from strangers. Only common formats are tried, pictures of too many pixels are refused before
they are decoded, and whatever goes wrong in a decoder becomes one line that names the picture.
"""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped]
from PIL import Image, ImageOps

from dpsinkhorn.errors import DataError

Progress: TypeAlias = Callable[[int, int], None]  # called with pictures done, pictures altogether
Pixels: TypeAlias = npt.NDArray[Any]  # (H, W, C), uint8 or uint16

PICTURE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
)
DICOM_HINT = "DICOM (.dcm) is not read: convert it to 16-bit PNG"
_DICOM_SUFFIXES = (".dcm", ".dicom")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # none that starts another program
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_ORIENTATION = 0x0112  # EXIF's tag: how the camera was held
_TINY = 4096  # bytes of an encoded picture
_BATCH = 64  # pictures per task: small ones decode in less time than a task takes to start

# Pillow logs some damage besides raising; where the program has set up no logging, Python would print that
logging.getLogger("PIL").addHandler(logging.NullHandler())


def is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM, by its ending or its mark: many have no ending, or a number for one.

    >>> is_dicom(Path("scan.dcm"))
    True
    """
    if path.suffix.lower() in _DICOM_SUFFIXES:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(132)[128:] == b"DICM"
    except OSError:
        return False


def check_fits(size: int, what: str) -> None:
    """Refuse `what` if its `size` in bytes is more than the memory of this machine."""
    limit = psutil.virtual_memory().total
    if size > limit:
        raise DataError(
            f"{what} would take {size / 2**30:.3g} GiB, more than the {limit / 2**30:.3g} GiB here; "
            "the file may be damaged, else make the images smaller or keep them in an uncompressed .npy file"
        )


def decode_all(
    sources: Sequence[bytes | Path],
    names: Sequence[str],
    *,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    progress: Progress | None = None,
) -> Pixels:
    """All pictures as one array (N, H, W, C). They must agree in size, colour and depth, or be made to.

    With `size` each is cropped about its centre to that shape and resized; with `channels` each becomes grey
    (1) or colour (3).
    """
    if not sources:
        raise DataError("the data set is empty: there are no pictures")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        first = decode(sources[0], names[0], size=size, channels=channels)
        check_fits(
            first.nbytes * len(sources), f"{len(sources):,} pictures like {names[0]}, without size stated,"
        )
        images = np.empty((len(sources), *first.shape), first.dtype)

        def work(start: int) -> int:
            stop = min(start + _BATCH, len(sources))
            for k in range(start, stop):
                picture = decode(sources[k], names[k], size=size, channels=channels)
                if picture.shape != first.shape or picture.dtype != first.dtype:
                    raise _mixed(names[0], first, names[k], picture)
                images[k] = picture
            return stop - start

        done = 0
        with ThreadPoolExecutor(_workers(sources[0])) as pool:
            try:
                for count in pool.map(work, range(0, len(sources), _BATCH)):
                    done += count
                    if progress is not None:
                        progress(done, len(sources))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return images


def decode(
    source: bytes | Path, name: str, *, size: tuple[int, int] | None = None, channels: int | None = None
) -> Pixels:
    """Decode one picture as (H, W, C), uint8, or uint16 where the file has 16 bits (grey only).

    >>> stream = io.BytesIO()
    >>> Image.new("L", (4, 2), 7).save(stream, "PNG")
    >>> decode(stream.getvalue(), "small.png").shape
    (2, 4, 1)
    """
    try:
        with Image.open(
            io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS
        ) as file:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and file.width * file.height > limit:
                raise DataError(
                    f"{name} has {file.width} x {file.height} pixels, too many to decode safely; "
                    "remove it or make it smaller"
                )
            if getattr(file, "is_animated", False):
                raise DataError(f"{name} holds several pictures; give single ones")
            if size is not None:  # a JPEG can be decoded at a fraction of its size, in less time
                file.draft(None, (2 * max(size), 2 * max(size)))
            upright: Image.Image = file
            if file.getexif().get(_ORIENTATION, 1) != 1:
                upright = ImageOps.exif_transpose(file)
            picture = plain_picture(upright, name, file.format, channels)
            pixels = np.asarray(picture)
    except DataError:
        raise
    except Exception as error:  # decoders fail in many ways on damaged or hostile files
        raise DataError(f"cannot read the picture {name}: {_reason(error)}; remove or repair it") from error
    if pixels.ndim == 2:
        pixels = pixels[..., np.newaxis]
    if pixels.dtype not in (np.uint8, np.uint16):
        pixels = pixels.astype(np.uint16)
    if size is not None:
        pixels = _crop_and_resize(pixels, size)
    return np.repeat(pixels, 3, axis=2) if channels == 3 and pixels.shape[2] == 1 else pixels


def fit_array(
    images: npt.NDArray[Any], size: tuple[int, int] | None, channels: int | None
) -> npt.NDArray[Any]:
    """Return images that are an array already, (N, H, W, C), brought to a size and a number of channels."""
    if channels == 3 and images.shape[3] == 1:
        images = np.repeat(images, 3, axis=3)
    if channels == 1 and images.shape[3] == 3:
        grey = np.asarray(images, np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        images = _like(grey[..., np.newaxis], images.dtype)
    if size is not None and images.shape[1:3] != size:
        images = np.stack([_crop_and_resize(image, size) for image in images])
    return images


def plain_picture(
    picture: Image.Image, name: str, form: str | None = None, channels: int | None = None
) -> Image.Image:
    """The picture in a mode that NumPy reads as grey or colour; what loses something must be asked for."""
    mode = picture.mode
    if mode in _SIXTEEN_BITS or (mode == "I" and form == "PNG"):  # the latter in older releases of Pillow
        return picture
    if mode == "1":
        picture, mode = picture.convert("L"), "L"
    if mode == "P" and "transparency" not in picture.info:
        picture, mode = picture.convert("RGB"), "RGB"
    if channels is not None and mode in ("L", "RGB", "LA", "RGBA", "P", "PA", "CMYK", "YCbCr"):
        wanted = "L" if channels == 1 or mode in ("L", "LA") else "RGB"
        return picture if mode == wanted else picture.convert(wanted)
    if mode in ("L", "RGB"):
        return picture
    raise DataError(
        f"{name} is of mode {mode}, neither grey nor RGB; state channels (--channels 1 or 3), or convert it"
    )


def _crop_and_resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Cut out the largest part about the centre that has the shape wanted; resize it with antialiasing."""
    height, width = pixels.shape[:2]
    if (height, width) == size:
        return pixels
    box = _box(height, width, size)
    if pixels.dtype == np.uint8:
        picture = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
        small: Pixels = np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR, box=box))
        return small[..., np.newaxis] if small.ndim == 2 else small
    planes = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(pixels[..., c], np.float32)).resize(
                size[::-1], Image.Resampling.BILINEAR, box=box
            )
        )
        for c in range(pixels.shape[2])
    ]
    return _like(np.stack(planes, axis=2), pixels.dtype)


def _box(height: int, width: int, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the largest part about the centre that has the shape of `size`."""
    scale = min(height / size[0], width / size[1])
    # 28 * (29 / 28) rounds to more than 29, and Pillow refuses a box that leaves the picture
    tall, wide = min(size[0] * scale, height), min(size[1] * scale, width)
    return (width - wide) / 2, (height - tall) / 2, (width + wide) / 2, (height + tall) / 2


def _like(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "f":
        return values.astype(dtype)
    whole: Pixels = np.clip(np.rint(values), 0, np.iinfo(dtype).max).astype(dtype)
    return whole


def _workers(source: bytes | Path) -> int:
    """Threads to decode with: for tiny pictures they mostly wait for each other's turn to run Python."""
    length = len(source) if isinstance(source, bytes) else source.stat().st_size
    return 1 if length < _TINY else min(8, os.cpu_count() or 1)


def _mixed(first_name: str, first: Pixels, name: str, picture: Pixels) -> DataError:
    if picture.shape[:2] != first.shape[:2]:
        return DataError(
            f"pictures differ in size: {first_name} is {_shape(first)}, {name} is {_shape(picture)} pixels; "
            "state size (--size 28 and the like) to crop and resize them all"
        )
    if picture.shape != first.shape:
        return DataError(
            f"pictures differ in mode: {first_name} is {_mode(first)}, {name} is {_mode(picture)}; "
            "state channels (--channels 1 or 3) to convert them all"
        )
    return DataError(
        f"pictures differ in depth: {first_name} has {8 * first.itemsize} bits, {name} has "
        f"{8 * picture.itemsize}; convert them to one depth"
    )


def _shape(picture: Pixels) -> str:
    return f"{picture.shape[0]} x {picture.shape[1]}"


def _mode(picture: Pixels) -> str:
    return "grey" if picture.shape[2] == 1 else "colour"


def _reason(error: Exception) -> str:
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return "it has too many pixels to decode safely"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if "cannot identify" in str(error):
        return f"it is none of {', '.join(_FORMATS)}"
    return " ".join(str(error).split()) or type(error).__name__
