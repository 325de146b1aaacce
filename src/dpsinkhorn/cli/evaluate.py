"""`dpsinkhorn evaluate`: how good the images of a release are, measured on real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dpsinkhorn.cli._evaluate_output import progress_bars, show_evaluation
from dpsinkhorn.cli._shared import (
    BadInputError,
    DataOptions,
    DeviceOption,
    JsonOption,
    ReleaseArgument,
    SplitName,
    check_file,
    json_text,
    parse_names,
    print_json,
    printable,
    takes_options,
    warn,
)
from dpsinkhorn.errors import DPSinkhornError
from dpsinkhorn.files import failing_as, new_file

if TYPE_CHECKING:  # they load PyTorch, which --help can do without
    from dpsinkhorn.data import Dataset
    from dpsinkhorn.release import Release

ProtocolName = Literal["quick", "paper", "authors", "dpimagebench"]
FeaturesName = Literal["auto", "inception", "efficientnet-lite0", "cnn"]

_MOST = 0.5  # of the images: a few may be alike by chance
_PAIRS = 25  # in the picture of neighbours
_SHOWN = 20  # classes in a message
_LONG_NAME = 200  # letters of a class name in a release, at most


@takes_options(leave_out=("groups",))
def evaluate(
    *,
    folder: ReleaseArgument,
    data: Annotated[
        str, "A name (`dpsinkhorn data list`) or a path: idx or picture folder, .npz, .npy, .csv, .parquet."
    ],
    split: Annotated[
        SplitName | None, "Part of the data to test on: test, unless the file has no parts."
    ] = None,
    train_data: Annotated[str | None, "Real training images; by default the train part of --data."] = None,
    protocol: Annotated[
        ProtocolName,
        "quick: a minute for 28 x 28 on two cores. paper: as the papers say. authors: the "
        "classifiers of their released code. dpimagebench: large networks. These three take a GPU, or hours.",
    ] = "quick",
    count: Annotated[int | None, "Synthetic images in a set: 10000, or 60000 as the papers have it."] = None,
    sets: Annotated[
        int | None, "Sets drawn afresh, each trains every classifier once: 1, or the papers' 5."
    ] = None,
    only: Annotated[
        str | None,
        "Parts to carry out, with commas between: logistic, forest, mlp, cnn (of dpimagebench: resnet, "
        "wide-resnet, resnext), real (the same trained on real images), frechet, precision-recall; "
        "all unless said.",
    ] = None,
    vary: Annotated[bool, "Measure images with the release's own variation, and not plain ones."] = False,
    features: Annotated[
        FeaturesName,
        "For the Frechet distance: inception (FID), efficientnet-lite0, or cnn; "
        "auto is inception on a GPU if its weights are here, else cnn.",
    ] = "auto",
    inception_weights: Annotated[Path | None, "File of the standard Inception weights."] = None,
    output: Annotated[Path | None, "Write the result to FILE.json."] = None,
    neighbours: Annotated[
        Path | None,
        "Draw synthetic images beside the nearest training images into this .png; "
        "CURATOR-ONLY is added to its name.",
    ] = None,
    beside: Annotated[
        Path | None,
        "Draw synthetic images beside real ones of the same class into this .png, for the curator's page of "
        "the report; CURATOR-ONLY is added to its name.",
    ] = None,
    seed: Annotated[int, "The same seed gives the same figures."] = 0,
    device: DeviceOption = None,
    reading: DataOptions,
    force: Annotated[bool, "Replace what --output, --neighbours and --beside name."] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the images of a release on real data: classifiers, Frechet distance, precision and recall.

    The figures are not private: they are for the curator, not for release.

    Example:

        dpsinkhorn evaluate my-run --data mnist --output my-evaluation.json

        dpsinkhorn evaluate my-run --data mnist --only logistic,forest,real
    """
    from dpsinkhorn.data import KNOWN
    from dpsinkhorn.evaluation import (
        beside_picture,
        check_parts,
        draw_images,
        evaluate_images,
        find_protocol,
        images_of,
        nearest_neighbours,
        neighbours_picture,
    )
    from dpsinkhorn.release import load

    try:
        release = load(folder)
        picture, both = _check_outputs(folder, output, neighbours, beside, force)
        chosen = find_protocol(protocol)
        parts = chosen.parts if only is None else parse_names(only)
        count, sets = chosen.count if count is None else count, chosen.sets if sets is None else sets
        check_parts(parts, sets, chosen)
        if vary and not release.config.variation:
            raise BadInputError("this release has no variation of its own; leave out --vary")
        test, training, part = _real_images(data, split, train_data, reading, as_json)
        source = _trained_from(folder, quiet=as_json)
        _check_classes(release, test, data, reading, source)
        if picture is not None and training is None:
            raise BadInputError("--neighbours needs the training images; name them by --train-data")
        public = data in KNOWN and (train_data is None or train_data in KNOWN)
        if not public:
            warn("evaluating on private data is not itself private: these figures are for the curator alone")
        trained_on = None if source is None else source.holds(data, part, reading.image, test)
        if trained_on:
            warn(
                "these are the images it was trained on: the figures say little of new ones; "
                "hold some back from training, and evaluate on those"
            )
        images, labels = draw_images(release, count * sets, chosen, seed=seed, vary=vary, device=device)
        with progress_bars(quiet=as_json) as (estimated, progress):
            result = evaluate_images(
                images,
                labels,
                test,
                training=training,
                protocol=chosen,
                parts=parts,
                sets=sets,
                features=features,
                inception_weights=inception_weights,
                seed=seed,
                device=device,
                estimated=estimated,
                progress=progress,
            )
        result = replace(result, public=public, class_names=result.class_names or release.class_names)
        if picture is not None and training is not None:
            plain, _ = release.sample(_PAIRS, random_state=seed, device=device)
            nearest = images_of(training)
            neighbours_picture(plain, nearest, nearest_neighbours(plain, nearest, device=device), picture)
        if both is not None:
            beside_picture(images, labels, images_of(test), test.labels, result.class_names, both)
    except MemoryError as error:
        raise BadInputError("so many images do not fit into memory; draw fewer (--count, --sets)") from error
    privacy = release.privacy
    found = {
        "release": str(folder),
        "title": release.title,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "count": count,
        "seed": seed,
        "neighbours": None if picture is None else str(picture),
        "beside": None if both is None else str(both),
        **result.to_json(),
        "varied": vary,
        "trained_on": trained_on,
    }
    if output is not None:
        with failing_as(BadInputError, f"cannot write {output}"), new_file(output) as draft:
            draft.write_text(json_text(found) + "\n", "utf-8")
    if as_json:
        print_json(found)
        return
    show_evaluation(result, release, count, test, varied=vary)
    if result.utility is not None and result.real is None and "real" in parts:
        print("No column of real data, since there are no training images: --train-data names them.")
    for path in (output, picture, both):
        if path is not None:
            print(f"Written: {path}")
    print(result.warning)


def _check_outputs(
    folder: Path, output: Path | None, neighbours: Path | None, beside: Path | None, force: bool
) -> tuple[Path | None, Path | None]:
    """Refuse files that could not, or should not, be written, before any work; the pictures' full names."""
    from dpsinkhorn.evaluation import curator_path

    near, both = (None if path is None else curator_path(path) for path in (neighbours, beside))
    release = folder / "release" if (folder / "release").is_dir() else folder
    named = ("--output", output, ".json"), ("--neighbours", near, ".png"), ("--beside", both, ".png")
    for option, path, suffix in named:
        if path is None:
            continue
        if release.resolve() in path.resolve().parents:
            raise BadInputError(
                f"{option} {path} lies in the release, which leaves the building; put it elsewhere"
            )
        check_file(path, suffix, option, force=force)
    return near, both


def _real_images(
    source: str, split: SplitName | None, train_source: str | None, reading: DataOptions, quiet: bool
) -> tuple[Dataset, Dataset | None, SplitName]:
    """Images to test on, those for training where they can be had, and the part that the former are."""
    from dpsinkhorn.data import has_parts

    parts = has_parts(source)
    part = split or ("test" if parts else "train")
    test = reading.load(source, split=part, quiet=quiet)
    if train_source is not None:
        return test, reading.load(train_source, quiet=quiet), part
    # an array named by --image is the same for every part: it cannot be what to compare with
    if part == "train" or not parts or reading.image is not None:
        return test, None, part
    try:
        return test, reading.load(source, quiet=quiet), part
    except DPSinkhornError:  # a source of test images only
        return test, None, part


def _check_classes(
    release: Release, test: Dataset, data: str, reading: DataOptions, source: _TrainedFrom | None
) -> None:
    """Refuse other classes, or the same in another order: every figure by class would be wrong.

    Private names are not in the release, but the run knows where its data are.
    """
    if not release.classes:
        return
    if not test.classes:
        raise BadInputError(
            f"{test.name} has no labels, but the release has {release.classes} classes; name them by --label"
        )
    if test.classes != release.classes:
        raise BadInputError(
            f"{test.name} has {test.classes} classes but the release has {release.classes}; "
            "state --classes and --label as in training"
        )
    ours: tuple[str, ...] | None = release.class_names
    if not ours:
        ours = None if source is None else source.class_names(data, reading, test)
    theirs = test.class_names
    if ours and theirs and any(map(_differ, ours, theirs)):
        if sorted(ours) == sorted(theirs):
            raise BadInputError(
                f"{test.name} has the classes of the release in another order; "
                f"state --classes {printable(','.join(ours))}"
            )
        raise BadInputError(
            f"{test.name} has the classes {_listed(theirs)}, but the release was trained on {_listed(ours)}; "
            "name the labels as in training, and the classes in the same order (--classes)"
        )
    if bool(ours) != bool(theirs):  # numbers, or nothing known, on one side
        warn(
            f"the classes of {test.name if ours else 'the training'} have no names that are known: they are "
            f"matched by their order, {_listed(theirs or ours or ())}"
        )


def _differ(ours: str, theirs: str) -> bool:
    """A release has names as they can be printed, and cut off where they are very long."""
    shown = printable(theirs)
    return theirs != ours and shown != ours and not (len(ours) >= _LONG_NAME and shown.startswith(ours))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return printable(", ".join(names[:_SHOWN])) + more


# ---- what a run was trained on, as far as its folder tells


def _trained_from(folder: Path, *, quiet: bool) -> _TrainedFrom | None:
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
    return _TrainedFrom(source, quiet=quiet) if isinstance(source.get("data"), str) else None


class _TrainedFrom:
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
