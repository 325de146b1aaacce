"""Everything that is measured of a set of synthetic images, in one result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.diversity import PrecisionRecall, precision_recall
from dpsinkhorn.evaluation.features import FeatureNetwork, load_features
from dpsinkhorn.evaluation.frechet import feature_statistics, frechet_distance
from dpsinkhorn.evaluation.images import check_labels, images_of, on_device
from dpsinkhorn.evaluation.utility import CLASSIFIERS, Utility, downstream_utility
from dpsinkhorn.generators import choose_device

__all__ = ["NOT_PRIVATE", "PUBLIC_DATA", "Evaluation", "Likeness", "compare_images", "evaluate_images"]

NOT_PRIVATE = (
    "These figures are computed from private data without noise: they are for the curator alone and are not "
    "covered by the privacy guarantee of the release."
)
PUBLIC_DATA = (
    "These figures are computed from a public data set, without noise: they are not covered by the privacy "
    "guarantee of the release. Of private data they would be for the curator alone."
)
_MANIFOLD = 10_000  # images at most on either side of precision and recall, as its authors use


@dataclass(frozen=True)
class Likeness:
    """How like the real images the synthetic ones are, beside real images measured in the same way."""

    name: str
    """What the distance is called: `FID` only with Inception's standard weights."""
    features: str
    frechet: float
    floor: float
    """The distance of real images to the test images: what a perfect generator would have."""
    floor_from: str
    diversity: PrecisionRecall
    real_diversity: PrecisionRecall
    """Precision and recall of those real images."""
    compared: int
    """Images on either side of precision and recall, of both kinds: with more of them manifolds shrink."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "features": self.features,
            "frechet": self.frechet,
            "floor": self.floor,
            "floor_from": self.floor_from,
            **self.diversity.to_json(),
            "real_precision": self.real_diversity.precision,
            "real_recall": self.real_diversity.recall,
            "compared": self.compared,
        }


@dataclass(frozen=True)
class Evaluation:
    """All measures. Not private, whatever the synthetic images are."""

    utility: Utility | None
    """`None` where there are no labels."""
    likeness: Likeness
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
            "warning": self.warning,
            "data": self.data,
            "class_names": list(self.class_names),
            "utility": None if self.utility is None else self.utility.to_json(),
            "likeness": self.likeness.to_json(),
        }


def evaluate_images(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    test: Dataset,
    *,
    training: Dataset | None = None,
    classifiers: Sequence[str] = CLASSIFIERS,
    runs: int = 5,
    patience: int = 30,
    features: str = "auto",
    inception_weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> Evaluation:
    """Measure synthetic images against real ones that no generator was trained on.

    Args:
        images: Synthetic, uint8, as `Release.sample` gives them.
        labels: Theirs; `None` leaves the classifiers out.
        test: Real images for testing.
        training: Real images for training: for the floor of the distance and, where no other features are to
            be had, for the network that makes them. Without them halves of `test` serve.
        classifiers: Some of `CLASSIFIERS`.
        runs: How often networks are trained.
        patience: Epochs without improvement before one stops.
        features: One of `FEATURES`.
        inception_weights: A file, for FID.
        seed: Of the classifiers.
        device: By default the GPU where there is one.
        progress: Called with what is being done, the run and the epoch.

    >>> from dpsinkhorn.data import load_dataset
    >>> train = images_of(load_dataset("digits", split="train"))
    >>> test = load_dataset("digits", split="test", unlabelled=True)
    >>> found = evaluate_images(train, None, test, features="cnn", device="cpu")
    >>> found.likeness.name, found.likeness.diversity.precision > 0.7
    ('frechet-random-cnn', True)
    """
    where = choose_device(device, EvaluationError)
    check_comparable(images, labels, test)
    if training is not None:
        check_comparable(images, None, training)
    # features first: weights that are not here should not be missed after minutes of work
    teachers = test if training is None else training
    if progress is not None:
        progress("features", 0, 0)
    teacher_labels = None
    if teachers.labels is not None and teachers.records >= 20:
        checked = check_labels(teachers.labels, teachers.records, teachers.classes)
        teacher_labels = torch.from_numpy(checked).to(where)
    real = on_device(images_of(teachers), where)
    network = load_features(
        features, real, teacher_labels, teachers.classes, inception_weights=inception_weights
    )
    utility = None
    if labels is not None and test.labels is not None:
        utility = downstream_utility(
            images,
            labels,
            images_of(test),
            test.labels,
            classes=test.classes,
            classifiers=classifiers,
            runs=runs,
            patience=patience,
            seed=seed,
            device=where,
            progress=progress,
        )
    likeness = compare_images(
        network,
        on_device(images, where),
        on_device(images_of(test), where),
        None if training is None else real,
        progress=progress,
    )
    return Evaluation(utility, likeness, test.name, test.class_names)


def compare_images(
    network: FeatureNetwork,
    synthetic: Tensor,
    test: Tensor,
    training: Tensor | None,
    *,
    progress: Callable[[str, int, int], object] | None = None,
) -> Likeness:
    """Distance, precision and recall of uint8 images (n, C, H, W) on one device, beside the real ones'."""
    done = 0

    def show(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("features", 0, done)

    # a fixed order: a subset is a random one, and the same in every evaluation
    draws = torch.Generator().manual_seed(0)
    ours = network.features(synthetic, show)
    theirs = network.features(test, show)[torch.randperm(len(test), generator=draws)]
    if len(theirs) < 8:
        raise EvaluationError(f"{len(theirs)} real images are too few to measure anything by; give more")
    target = feature_statistics(theirs)
    if training is None:
        half = len(theirs) // 2
        floor = frechet_distance(feature_statistics(theirs[:half]), feature_statistics(theirs[half:]))
        source, others, reference = (
            "one half of the test images against the other",
            theirs[:half],
            theirs[half:],
        )
    else:
        chosen = torch.randperm(len(training), generator=draws)[: max(len(synthetic), 8)].to(training.device)
        others, reference = network.features(training[chosen], show), theirs
        floor = frechet_distance(feature_statistics(others), target)
        source = f"{len(others)} training images against the test images"
    # Balls shrink as points are added: as many on either side, and in either column, or recall would fall
    # with every synthetic image more. Images may come sorted, so these are chosen at random too.
    count = min(len(ours), len(others), len(reference), _MANIFOLD)
    some = ours[torch.randperm(len(ours), generator=draws)[:count].to(ours.device)]
    manifold = reference[:count]
    return Likeness(
        name=network.name,
        features=network.description,
        frechet=frechet_distance(feature_statistics(ours), target),
        floor=floor,
        floor_from=source,
        diversity=precision_recall(manifold, some),
        real_diversity=precision_recall(manifold, others[:count]),
        compared=count,
    )


def check_comparable(images: NDArray[Any], labels: NDArray[Any] | None, data: Dataset) -> None:
    """Refuse synthetic and real images of different sizes, and classes that are not the same."""
    array = np.asarray(images)
    shape = (1 if array.ndim == 3 else array.shape[-1], *array.shape[1:3])
    if shape != data.image_shape:
        raise EvaluationError(
            f"the synthetic images are {_size(shape)} but those of {data.name} are "
            f"{_size(data.image_shape)}; give real images of the same size and channels"
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


def _size(shape: Sequence[int]) -> str:
    channels, height, width = shape
    return f"{height} x {width} {'grey' if channels == 1 else 'colour'}"
