"""What images are good for: classifiers trained on them, tested on real ones (appendix D.2)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.images import check_labels, on_device, size_of
from dpsinkhorn.evaluation.networks import Lesson
from dpsinkhorn.evaluation.protocols import Protocol, find_protocol
from dpsinkhorn.generators import choose_device


@dataclass(frozen=True)
class ClassifierScore:
    """How one classifier did on real images; accuracies are in per cent, and there is one for each set."""

    name: str
    accuracy: tuple[float, ...]
    balanced_accuracy: tuple[float, ...]
    """The mean over classes of the share that is recognised: a class counts the same, however rare."""
    roc_auc: tuple[float, ...]
    """Area under the ROC curve, from 0 to 1, the mean over classes of one against the rest; none where all
    test images are of one class."""
    per_class: tuple[float | None, ...]
    """Recall of each class, mean over the sets; `None` for a class without test images."""
    epochs: tuple[int, ...] = ()
    """How long networks trained."""
    by_sensitive: ClassifierScore | None = None
    """The same network, its epoch chosen on private images, where the protocol has that too."""

    @property
    def mean(self) -> float:
        """Mean accuracy over the sets."""
        return statistics.fmean(self.accuracy)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the accuracy over the sets; `None` for a single one."""
        return _spread(self.accuracy)

    @property
    def worst_class(self) -> int:
        """The class that is served worst."""
        present = [(value, k) for k, value in enumerate(self.per_class) if value is not None]
        return min(present)[1]

    def to_json(self) -> dict[str, Any]:
        worst = self.worst_class
        return {
            "name": self.name,
            "mean": self.mean,
            "spread": self.spread,
            "runs": list(self.accuracy),
            "balanced_accuracy": statistics.fmean(self.balanced_accuracy),
            "balanced_accuracy_spread": _spread(self.balanced_accuracy),
            "roc_auc": statistics.fmean(self.roc_auc) if self.roc_auc else None,
            "roc_auc_spread": _spread(self.roc_auc),
            "per_class": list(self.per_class),
            "worst_class": worst,
            "worst_class_accuracy": self.per_class[worst],
            "epochs": list(self.epochs),
            "by_sensitive": None if self.by_sensitive is None else self.by_sensitive.to_json(),
        }


@dataclass(frozen=True)
class Utility:
    """Scores of several classifiers on the same images."""

    scores: tuple[ClassifierScore, ...]
    trained_on: int
    """Images in a set."""
    trained_by_class: tuple[int, ...]
    """How many of all sets' are of each class."""
    tested_on: int
    tested_by_class: tuple[int, ...]

    def __getitem__(self, name: str) -> ClassifierScore:
        for score in self.scores:
            if score.name == name:
                return score
        raise KeyError(name)

    def mean_and_best(self, *, by_sensitive: bool = False) -> tuple[float, float]:
        """Of the classifiers' accuracies."""
        scores = [score.by_sensitive if by_sensitive else score for score in self.scores]
        means = [score.mean for score in scores if score is not None]
        return statistics.fmean(means), max(means)

    def to_json(self) -> dict[str, Any]:
        return {
            "trained_on": self.trained_on,
            "trained_by_class": list(self.trained_by_class),
            "tested_on": self.tested_on,
            "tested_by_class": list(self.tested_by_class),
            "classifiers": [score.to_json() for score in self.scores],
        }


def downstream_utility(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test_images: NDArray[np.uint8],
    test_labels: NDArray[np.int64],
    *,
    classes: int,
    protocol: Protocol | str = "quick",
    classifiers: Sequence[str] | None = None,
    sets: int = 1,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Callable[[str, float], object] | None = None,
    sensitive: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None,
) -> Utility:
    """Train classifiers on images, and test them on real ones.

    Args:
        images: Synthetic or real, uint8, (n, H, W) or (n, H, W, 3), taken as they are, however many.
        labels: Theirs, (n,), from 0 to `classes` - 1.
        test_images: Real, of the same size.
        protocol: One of `PROTOCOLS`, or its name.
        classifiers: Some of the protocol's; all unless said.
        sets: Into so many equal parts the images are cut; each trains every classifier once.
        seed: The same seed gives the same scores, on the same machine and device.
        device: By default the GPU where there is one.
        progress: Called with the classifier and the part of its work that is done, from 0 to 1.
        sensitive: Private images and labels, by which the epochs of networks are chosen a second time.

    >>> from dpsinkhorn.data import load_dataset
    >>> from dpsinkhorn.evaluation import images_of
    >>> train, test = (load_dataset("digits", split=split) for split in ("train", "test"))
    >>> arrays = images_of(train), train.labels, images_of(test), test.labels
    >>> found = downstream_utility(*arrays, classes=10, classifiers=["logistic"], device="cpu")
    >>> found["logistic"].mean > 93
    True
    """
    specs = find_protocol(protocol).classifiers
    classifiers = tuple(specs) if classifiers is None else classifiers
    if not set(classifiers) <= set(specs) or not classifiers or len(set(classifiers)) < len(classifiers):
        raise EvaluationError(f"classifiers must be some of {', '.join(specs)}, each once")
    if not 0 <= seed < 2**62:
        raise EvaluationError(f"seed must be a whole number from 0 to below 2^62, not {seed}")
    where = choose_device(device, EvaluationError)
    x, tx = on_device(images, where, "images"), on_device(test_images, where, "test images")
    if x.shape[1:] != tx.shape[1:]:
        raise EvaluationError(
            f"images are {size_of(x.shape[1:])} but test images are {size_of(tx.shape[1:])}; they must agree"
        )
    if not 1 <= sets <= len(x):
        raise EvaluationError(f"sets must be a whole number from 1 to that of the images, not {sets}")
    y = torch.from_numpy(check_labels(labels, len(x), classes)).to(where)
    truth = check_labels(test_labels, len(tx), classes, "test labels")
    choosing = None
    if sensitive is not None:
        kinds = check_labels(sensitive[1], len(sensitive[0]), classes, "sensitive labels")
        choosing = on_device(sensitive[0], where, "sensitive images"), torch.from_numpy(kinds).to(where)
    count = len(x) // sets
    scores = []
    for name in classifiers:
        found = []
        for k in range(sets):

            def report(done: float, name: str = name, k: int = k) -> None:
                if progress is not None:
                    progress(name, (k + done) / sets)

            report(0.0)
            rows = slice(k * count, (k + 1) * count)
            lesson = Lesson(x[rows], y[rows], classes, tx, seed + k, choosing)
            found.append(specs[name].classify(lesson, report))
            report(1.0)
        epochs = [verdict.epochs for verdict in found if verdict.epochs]
        score = _score(name, [verdict.probabilities for verdict in found], truth, classes, epochs)
        others = [verdict.by_sensitive for verdict in found if verdict.by_sensitive is not None]
        if others:
            score = replace(score, by_sensitive=_score(name, others, truth, classes, epochs))
        scores.append(score)
    return Utility(
        tuple(scores),
        count,
        tuple(torch.bincount(y[: sets * count], minlength=classes).tolist()),
        len(tx),
        tuple(np.bincount(truth, minlength=classes).tolist()),
    )


def _score(
    name: str, found: Sequence[NDArray[Any]], truth: NDArray[np.int64], classes: int, epochs: Sequence[int]
) -> ClassifierScore:
    """Compare the probabilities (tests, classes) that each set led to with the truth."""
    from sklearn.metrics import accuracy_score, recall_score, roc_auc_score  # type: ignore[import-untyped]

    every, present = np.arange(classes), np.unique(truth)
    positive = [1] if classes == 2 else present  # of many, each in turn that has test images
    guesses = [told.argmax(1) for told in found]
    recalls = np.array(
        [recall_score(truth, guess, labels=every, average=None, zero_division=0) for guess in guesses]
    )
    return ClassifierScore(
        name,
        tuple(100 * float(accuracy_score(truth, guess)) for guess in guesses),
        tuple(100 * float(value) for value in recalls[:, present].mean(1)),
        tuple(float(np.mean([roc_auc_score(truth == k, told[:, k]) for k in positive])) for told in found)
        if len(present) > 1
        else (),
        tuple(100 * float(value) if k in present else None for k, value in enumerate(recalls.mean(0))),
        tuple(epochs),
    )


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None
