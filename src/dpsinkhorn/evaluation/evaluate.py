"""Everything that is measured of a set of synthetic images, in one result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.features import TAUGHT_BY, TRAINED, FeatureNetwork, chosen_features, load_features
from dpsinkhorn.evaluation.images import check_labels, images_of, on_device, size_of
from dpsinkhorn.evaluation.likeness import Likeness, Progress, compare_images, precision_recall
from dpsinkhorn.evaluation.networks import Lesson
from dpsinkhorn.evaluation.protocols import LIKENESS, Classifier, Protocol, find_protocol
from dpsinkhorn.evaluation.utility import Utility, downstream_utility
from dpsinkhorn.generators import choose_device

NOT_PRIVATE = (
    "These figures are computed from private data without noise: they are for the curator alone and are not "
    "covered by the privacy guarantee of the release."
)
"""What is said beside figures of private data."""
PUBLIC_DATA = (
    "These figures are computed from a public data set, without noise: they are not covered by the privacy "
    "guarantee of the release. Of private data they would be for the curator alone."
)
"""What is said beside figures of public data."""

_Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]
_TRIED = 1024  # images, to see how long it takes to compare them


@dataclass(frozen=True)
class Evaluation:
    """All measures. Not private, whatever the synthetic images are."""

    protocol: Protocol
    sets: int
    utility: Utility | None
    """Of classifiers trained on synthetic images; `None` where there are no labels, or none were wanted."""
    real: Utility | None
    """Of the same classifiers trained on real images."""
    likeness: Likeness | None
    data: str
    class_names: tuple[str, ...] = ()
    public: bool = False
    """Whether the real images are a public data set, and not the curator's own."""

    @property
    def warning(self) -> str:
        """For whom the figures are."""
        return PUBLIC_DATA if self.public else NOT_PRIVATE

    def to_json(self) -> dict[str, Any]:
        """Plain values, with a warning that goes wherever they go."""
        return {
            "private": False,
            "public": self.public,
            "warning": self.warning,
            "data": self.data,
            "class_names": list(self.class_names),
            "protocol": self.protocol.to_json(),
            "sets": self.sets,
            "utility": None if self.utility is None else self.utility.to_json(),
            "real": None if self.real is None else self.real.to_json(),
            "likeness": None if self.likeness is None else self.likeness.to_json(),
        }


def evaluate_images(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    test: Dataset,
    *,
    training: Dataset | None = None,
    protocol: Protocol | str = "quick",
    parts: Sequence[str] | None = None,
    sets: int = 1,
    features: str = "auto",
    inception_weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    estimated: Callable[[dict[str, float]], object] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure synthetic images against real ones that no generator was trained on.

    Args:
        images: Synthetic, uint8, as `Release.sample` gives them.
        labels: Theirs; `None` leaves the classifiers out.
        test: Real images for testing.
        training: Real images for training: for the classifiers of the column `real`, for the floor of the
            distance and, where no other features are to be had, for the network that makes them. Without them
            there is no such column, and halves of `test` serve.
        protocol: One of `PROTOCOLS`, or its name: how the classifiers are trained.
        parts: Some of the protocol's: what is measured; all unless said.
        sets: Into so many equal parts the images are cut; each trains every classifier once. Likeness is that
            of the first.
        features: One of `FEATURES`.
        inception_weights: A file, for FID.
        seed: Of the classifiers.
        device: By default the GPU where there is one.
        estimated: Called before the work, with the seconds that each part of it will take, about.
        progress: Called with a part of the work, named as in `estimated`, and how much of it is done, from 0
            to 1.

    >>> from dpsinkhorn.data import load_dataset
    >>> train = images_of(load_dataset("digits", split="train"))
    >>> test = load_dataset("digits", split="test", unlabelled=True)
    >>> found = evaluate_images(train, None, test, features="cnn", device="cpu")
    >>> found.likeness.name, found.likeness.diversity.precision > 0.7
    ('frechet-random-cnn', True)
    """
    chosen, where = find_protocol(protocol), choose_device(device, EvaluationError)
    parts = chosen.parts if parts is None else parts
    check_parts(parts, sets, chosen)
    names = [] if labels is None else [name for name in chosen.classifiers if name in parts]
    check_comparable(images, labels if names else None, test)
    if training is not None:
        check_comparable(images, None, training)
    count, tell = len(images) // sets, progress or (lambda *_: None)
    measures = [part for part in LIKENESS if part in parts]
    teachers = test if training is None else training
    x, real = on_device(images[:count], where), on_device(images_of(teachers), where)
    kinds = None
    if teachers.labels is not None and teachers.records >= 20:
        kinds = torch.from_numpy(check_labels(teachers.labels, teachers.records, teachers.classes)).to(where)
    features = chosen_features(features, where, inception_weights)
    network = None
    if measures:  # first: weights that are not here should not be missed after minutes of work
        network = load_features(features, real, None, 0, inception_weights=inception_weights)
    sensitive: _Labelled | None = None
    both: dict[str, _Labelled] = {}
    if names and labels is not None:
        both["synthetic"] = chosen.prepare(images), labels
        if training is not None and kinds is not None and ("real" in parts or chosen.sensitive):
            _check_classes(training, test)
            aside = chosen.set_aside(training.records)
            if len(aside):
                sensitive = _rows(training, aside)
            if "real" in parts:
                both["real"] = _rows(training, _real_sets(training.records, aside, count, sets, seed))

    if estimated is not None:
        seconds: dict[str, float] = {}
        if names:
            specs = {name: chosen.classifiers[name] for name in names}
            assert labels is not None
            y = torch.from_numpy(check_labels(labels, len(images), test.classes))[:count].to(where)
            counts = [len(own) // sets for own, _ in both.values() for _ in range(sets)]
            seconds = _seconds_of_classifiers(specs, x, y, test.classes, counts)
        if network is not None:
            seconds["features"] = _seconds_of_features(network, x, 2 * count + test.records)
            if features == "cnn" and kinds is not None:
                taught = {"features": TRAINED}, real, kinds, teachers.classes, [min(len(real), TAUGHT_BY)]
                seconds["features"] += _seconds_of_classifiers(*taught)["features"]
            if "precision-recall" in measures:
                compared = min(count, test.records, teachers.records, chosen.compared)
                seconds["precision-recall"] = _seconds_of_comparing(network, x, compared)
        estimated(seconds)

    utility: dict[str, Utility] = {}
    total = sum(len(own) for own, _ in both.values())
    for name in names:
        shown = 0
        for kind, (own, own_labels) in both.items():

            def show(_: str, done: float, name: str = name, first: int = shown, own: int = len(own)) -> None:
                tell(name, (first + own * done) / total)

            assert test.labels is not None
            found = downstream_utility(
                own,
                own_labels,
                images_of(test),
                test.labels,
                classes=test.classes,
                protocol=chosen,
                classifiers=[name],
                sets=sets,
                seed=seed,
                device=where,
                progress=show,
                sensitive=sensitive,
            )
            scores = (*utility[kind].scores, *found.scores) if kind in utility else found.scores
            utility[kind] = replace(found, scores=scores)
            shown += len(own)
    likeness = None
    if network is not None:
        tell("features", 0.0)
        if features == "cnn" and kinds is not None:
            network = load_features(features, real, kinds, teachers.classes)
        likeness = compare_images(
            network,
            x,
            on_device(images_of(test), where),
            None if training is None else real,
            measures=measures,
            compared=chosen.compared,
            progress=tell,
        )
    return Evaluation(
        chosen, sets, utility.get("synthetic"), utility.get("real"), likeness, test.name, test.class_names
    )


def _rows(data: Dataset, rows: NDArray[np.int64]) -> _Labelled:
    assert data.labels is not None
    return images_of(data)[rows], data.labels[rows]


def _real_sets(records: int, aside: NDArray[np.int64], count: int, sets: int, seed: int) -> NDArray[np.int64]:
    """As many sets of real images as of synthetic ones, each as large, or all that there are, shuffled."""
    draws, left = np.random.default_rng(seed), np.delete(np.arange(records), aside)
    return np.concatenate([draws.permutation(left)[:count] for _ in range(sets)])


def check_parts(parts: Sequence[str], sets: int, protocol: Protocol) -> None:
    """Refuse parts that there are not, and the column of real data where it would be empty."""
    if not parts or not set(parts) <= set(protocol.parts) or len(set(parts)) < len(parts):
        raise EvaluationError(
            f"parts (--only) must be some of {', '.join(protocol.parts)} in the protocol {protocol.name}, "
            "each once"
        )
    if "real" in parts and not set(parts) & set(protocol.classifiers):
        raise EvaluationError("the part real is a column of the classifiers; name some of them too")
    if sets < 1:
        raise EvaluationError(f"sets must be a whole number from 1 upwards, not {sets}")


def _check_classes(training: Dataset, test: Dataset) -> None:
    """Refuse real images to train on whose classes are not those of the images to test on, in their order."""
    ours, theirs = training.class_names, test.class_names
    if training.classes != test.classes or (ours and theirs and ours != theirs):
        raise EvaluationError(
            f"the training images ({training.name}) have other classes than those to test on ({test.name}), "
            "or in another order; state the classes, or leave out the part real"
        )


def check_comparable(images: NDArray[Any], labels: NDArray[Any] | None, data: Dataset) -> None:
    """Refuse synthetic and real images of different sizes, and classes that are not the same."""
    array = np.asarray(images)
    shape = (1 if array.ndim == 3 else array.shape[-1], *array.shape[1:3])
    if shape != data.image_shape:
        raise EvaluationError(
            f"the synthetic images are {size_of(shape)} but those of {data.name} are "
            f"{size_of(data.image_shape)}; give real images of the same size and channels"
        )
    if labels is not None and data.labels is None:
        raise EvaluationError(
            f"{data.name} has no labels to test classifiers on; name them, or leave both out"
        )
    if labels is not None and len(labels) and int(np.max(labels)) >= data.classes:
        raise EvaluationError(
            f"the synthetic images have a class {int(np.max(labels))} but {data.name} has {data.classes} "
            "classes; state the classes as in training"
        )


# ---- how long it will take: each part is tried on a few images, and the time multiplied


def _seconds_of_classifiers(
    specs: Mapping[str, Classifier], images: Tensor, labels: Tensor, classes: int, counts: Sequence[int]
) -> dict[str, float]:
    """Seconds that each classifier takes to learn from so many images, one number for each training."""
    found = {}
    for name, spec in specs.items():
        short, step = spec.shortened(), max(1, len(images) // spec.tried)  # they may come sorted by class
        x, y = images[::step][: spec.tried], labels[::step][: spec.tried]
        seconds = _timed(lambda short=short, x=x, y=y: short.classify(Lesson(x, y, classes, x[:1], 0)))  # type: ignore[misc]
        found[name] = sum(seconds * spec.work(count) / short.work(len(x)) for count in counts)
    return found


def _seconds_of_features(network: FeatureNetwork, images: Tensor, count: int) -> float:
    """Seconds for the features of so many images."""
    some = images[: min(_TRIED, network.batch_size // 4)]
    return _timed(lambda: network.features(some)) * count / len(some)


def _seconds_of_comparing(network: FeatureNetwork, images: Tensor, count: int) -> float:
    """Seconds for precision and recall of synthetic and of real images, so many on either side."""
    width = network.features(images[:1]).shape[1]
    points = torch.rand(2, _TRIED, width, device=images.device)
    return _timed(lambda: precision_recall(points[0], points[1])) * 2 * (count / _TRIED) ** 2


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the second time: the first one loads libraries, and chooses kernels."""
    for _ in range(2):
        started = time.perf_counter()
        work()
    return time.perf_counter() - started
