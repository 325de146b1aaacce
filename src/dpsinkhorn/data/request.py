"""What is asked of the readers, and what they find: each takes a `Request` and returns a `Content`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsinkhorn.data.dataset import Dataset, from_arrays
from dpsinkhorn.data.pictures import Pixels, Progress, decode_all, fit_array
from dpsinkhorn.errors import DataError


@dataclass(frozen=True)
class Content:
    """What a source holds, not yet checked."""

    images: npt.NDArray[Any]
    labels: Any = None
    groups: Any = None
    class_names: tuple[str, ...] = ()
    """Of folders or columns, not of records."""
    unused: tuple[str, ...] = ()
    """Names of other columns or arrays, but for those of other parts."""
    skipped: tuple[tuple[str, int], ...] = ()
    """Kinds of files that are no pictures, and how many of each."""


@dataclass(frozen=True)
class Request:
    """What the caller of `load_dataset` asked for, in the form that the readers take."""

    split: str
    image: str | None
    label: str | None
    groups: str | None
    unlabelled: bool
    classes: int | Sequence[str] | None
    class_names: tuple[str, ...]
    size: tuple[int, int] | None
    channels: int | None
    value_range: tuple[float, float] | None
    progress: Progress | None
    persons: Persons | None = None
    """Those of other files, of whose persons this one may have none."""

    def decode(self, sources: Sequence[bytes | Path], names: Sequence[str]) -> Pixels:
        return decode_all(sources, names, size=self.size, channels=self.channels, progress=self.progress)

    def refuse(self, name: str, *options: str, hint: str = "leave it out") -> None:
        """Refuse options that have no meaning for a source."""
        for option in options:
            if getattr(self, option) is not None:
                raise DataError(f"{option} cannot be stated for {name}; {hint}")

    def no_part(self, path: Path, what: str = "file", *, of: str = "images") -> DataError:
        """Return what to say of a source without parts, of which another than train is asked for."""
        return DataError(
            f"{path} has no {self.split} part; name the {what} of the {self.split} {of} itself, "
            "or give split train (--split train)"
        )

    def finish(self, found: Content, name: str) -> Dataset:
        """Check everything, then bring the images to the size and channels asked for."""
        if self.persons is not None and found.groups is not None:
            self.persons.add(np.asarray(found.groups, dtype=object).tolist(), name)
        labels, class_names = (None, ()) if self.unlabelled else (found.labels, found.class_names)
        classes = self.classes
        if class_names and classes not in (None, len(class_names)):
            raise DataError(f"{name} has {len(class_names)} classes, not the {classes} classes stated")
        if class_names:
            classes = len(class_names)
        elif self.class_names and classes is None:
            classes = len(self.class_names)
        made = from_arrays(
            found.images,
            labels,
            groups=found.groups,
            classes=classes,
            value_range=self.value_range,
            name=name,
        )
        fitted = made.images
        if self.size is not None or self.channels is not None:
            fitted = fit_array(fitted, self.size, self.channels)
        if class_names:
            made = replace(made, class_names=class_names)
        if self.class_names:
            if len(self.class_names) != made.classes:
                given = f"{len(self.class_names)} class names for {made.classes} classes"
                raise DataError(f"{given}; give one for each, in order (--class-names)")
            made = replace(made, class_names=self.class_names)
        return replace(made, images=fitted, unused_columns=found.unused, skipped_files=found.skipped)


class Persons:
    """The persons of the files read so far: a shard holds whole persons, and so must a file."""

    def __init__(self) -> None:
        self._file_of: dict[str, str] = {}

    def add(self, persons: Iterable[Any], file: str) -> None:
        """Note the persons of another file; one who was in an earlier file is refused."""
        own = {str(person).strip() for person in persons}
        for person in own & self._file_of.keys():
            raise DataError(
                f"a person has records in {self._file_of[person]} and in {file}; all records of a person "
                "belong into one file: sort the records by person before they are split into files"
            )
        self._file_of.update(dict.fromkeys(own, file))
