"""What a run was trained on, as far as its folder tells: for the curator, who evaluates it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsinkhorn.cli.data import DataOptions
from dpsinkhorn.errors import DPSinkhornError

if TYPE_CHECKING:  # they load PyTorch, which --help can do without
    from dpsinkhorn.data import Dataset

_MOST = 0.5  # of the images: a few may be alike by chance


def trained_from(folder: Path, *, quiet: bool) -> TrainedFrom | None:
    """The data of a run, or of the run whose release this is; None where the folder does not tell."""
    from dpsinkhorn.training import Run, TrainingError

    whole = folder.resolve()
    run = whole.parent if whole.name == "release" and not (whole / "run.json").exists() else whole
    if not (run / "run.json").is_file():
        return None
    try:
        source = Run.resume(run).settings["source"]
    except TrainingError:  # the release is whole, and evaluated all the same
        return None
    return TrainedFrom(source, quiet=quiet) if isinstance(source.get("data"), str) else None


class TrainedFrom:
    """The source of a run's training images, which is read where there is no other way to know."""

    def __init__(self, source: dict[str, Any], *, quiet: bool) -> None:
        self._data: str = source["data"]
        self._reading = DataOptions.of(source)
        self._quiet = quiet

    @cached_property
    def dataset(self) -> Dataset | None:
        """The training images, or None where they are there no more."""
        try:
            return self._reading.load(self._data, quiet=self._quiet)
        except (DPSinkhornError, OSError, TypeError, ValueError, MemoryError):  # run.json may be edited
            return None

    def holds(self, data: str, part: str, image: str | None, test: Dataset) -> bool | None:
        """Whether (most of) the images of a part of some data are among the training images."""
        from dpsinkhorn.data import has_parts

        if _place(data) == _place(self._data) and image == self._reading.image:
            # an array named by --image is the same for every part
            return part == "train" or image is not None or not has_parts(data)
        if self.dataset is None:
            return None
        seen, found = set(_prints(self.dataset)), _prints(test)
        return sum(one in seen for one in found) > _MOST * len(found)

    def class_names(self, data: str, reading: DataOptions, test: Dataset) -> tuple[str, ...] | None:
        """Names of the classes in the order of training, none for numbers; None where it cannot be known."""
        from dpsinkhorn.data import KNOWN, has_parts

        alike = all(getattr(reading, n) == getattr(self._reading, n) for n in ("image", "label", "classes"))
        if alike and _place(data) == _place(self._data) and (data in KNOWN or not has_parts(data)):
            return test.class_names
        return None if self.dataset is None else self.dataset.class_names


def _place(data: str) -> str:
    from dpsinkhorn.data import KNOWN

    return data if data in KNOWN else str(Path(data).expanduser().resolve())


def _prints(data: Dataset) -> list[int]:
    """A number for each image, the same for the same pixels."""
    from dpsinkhorn.evaluation import images_of

    return [hash(image.tobytes()) for image in images_of(data)]
