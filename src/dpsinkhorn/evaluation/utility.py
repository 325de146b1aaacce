"""What synthetic images are good for: classifiers trained on them, tested on real ones (appendix D.2)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.classifiers import cnn, fit_network, logistic_sklearn, logistic_torch, mlp, predict
from dpsinkhorn.evaluation.images import check_labels, on_device
from dpsinkhorn.generators import choose_device

__all__ = ["CLASSIFIERS", "ClassifierScore", "Utility", "downstream_utility"]

CLASSIFIERS = ("logistic", "mlp", "cnn")
_NETWORKS = {"mlp": mlp, "cnn": cnn}


@dataclass(frozen=True)
class ClassifierScore:
    """How one classifier did on real images, in per cent."""

    name: str
    runs: tuple[float, ...]
    """Accuracy of every run. Logistic regression has one optimum: it is run once."""
    per_class: tuple[float | None, ...]
    """Accuracy for the real images of each class, mean over runs; `None` for a class without test images."""
    epochs: tuple[int, ...] = ()
    """How long each run trained before it stopped."""

    @property
    def mean(self) -> float:
        """Mean accuracy over the runs."""
        return statistics.fmean(self.runs)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the runs; `None` for a single one."""
        return statistics.stdev(self.runs) if len(self.runs) > 1 else None

    @property
    def worst_class(self) -> int:
        """The class that is served worst."""
        present = [(value, k) for k, value in enumerate(self.per_class) if value is not None]
        return min(present)[1]

    def to_json(self) -> dict[str, Any]:
        """Plain values, accuracies in per cent."""
        worst = self.worst_class
        return {
            "name": self.name,
            "mean": self.mean,
            "spread": self.spread,
            "runs": list(self.runs),
            "per_class": list(self.per_class),
            "worst_class": worst,
            "worst_class_accuracy": self.per_class[worst],
            "epochs": list(self.epochs),
        }


@dataclass(frozen=True)
class Utility:
    """Scores of several classifiers on the same images."""

    scores: tuple[ClassifierScore, ...]
    trained_on: int
    tested_on: int
    patience: int

    def __getitem__(self, name: str) -> ClassifierScore:
        for score in self.scores:
            if score.name == name:
                return score
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "trained_on": self.trained_on,
            "tested_on": self.tested_on,
            "patience": self.patience,
            "classifiers": [score.to_json() for score in self.scores],
        }


def downstream_utility(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test_images: NDArray[np.uint8],
    test_labels: NDArray[np.int64],
    *,
    classes: int,
    classifiers: Sequence[str] = CLASSIFIERS,
    runs: int = 5,
    patience: int = 30,
    seed: int = 0,
    device: torch.device | str | None = None,
    logistic: Literal["auto", "sklearn", "torch"] = "auto",
    progress: Callable[[str, int, int], object] | None = None,
) -> Utility:
    """Train classifiers on synthetic images and test them on real ones.

    Args:
        images: Synthetic, uint8, (n, H, W) or (n, H, W, 3).
        labels: Theirs, (n,), from 0 to `classes` - 1.
        test_images: Real, of the same size.
        test_labels: Theirs.
        classes: How many there are.
        classifiers: Some of `CLASSIFIERS`.
        runs: How often a network is trained, each time from other weights and with another tenth held out.
        patience: Epochs without improvement on held-out synthetic images after which a network stops.
        seed: The same seed gives the same scores, on the same machine and device.
        device: By default the GPU where there is one.
        logistic: scikit-learn's or PyTorch's L-BFGS; `auto` takes scikit-learn's on the processor.
        progress: Called with the classifier, the run (from 0) and its finished epochs.

    >>> from dpsinkhorn.data import load_dataset
    >>> from dpsinkhorn.evaluation import images_of
    >>> train, test = (load_dataset("digits", split=split) for split in ("train", "test"))
    >>> arrays = images_of(train), train.labels, images_of(test), test.labels
    >>> found = downstream_utility(*arrays, classes=10, classifiers=["logistic"], device="cpu")
    >>> found["logistic"].mean > 93
    True
    """
    _check_settings(classifiers, runs, patience, seed)
    where = choose_device(device, EvaluationError)
    x, tx = on_device(images, where, "images"), on_device(test_images, where, "test images")
    if x.shape[1:] != tx.shape[1:]:
        raise EvaluationError(f"images are {_shape(x)} but test images are {_shape(tx)}; they must agree")
    y = torch.from_numpy(check_labels(labels, len(x), classes)).to(where)
    ty = torch.from_numpy(check_labels(test_labels, len(tx), classes, "test labels")).to(where)
    scores = []
    for name in classifiers:
        guesses, epochs = [], []
        if name == "logistic":
            reference = logistic == "sklearn" or (logistic == "auto" and where.type == "cpu")
            if progress is not None:
                progress(name, 0, 0)
            guesses.append(logistic_sklearn(x, y, tx) if reference else logistic_torch(x, y, classes, tx))
        else:
            for run in range(runs):

                def show(epoch: int, name: str = name, run: int = run) -> None:
                    if progress is not None:
                        progress(name, run, epoch)

                show(0)
                fit = fit_network(
                    _NETWORKS[name], x, y, classes, seed=seed + run, patience=patience, progress=show
                )
                guesses.append(predict(fit.network, tx))
                epochs.append(len(fit.history))
        scores.append(_score(name, guesses, ty, classes, epochs))
    return Utility(tuple(scores), len(x), len(tx), patience)


def _score(
    name: str, guesses: Sequence[Tensor], truth: Tensor, classes: int, epochs: Sequence[int]
) -> ClassifierScore:
    right = torch.stack([guess.to(truth.device) == truth for guess in guesses]).double()
    share = right.mean(0)
    per_class: list[float | None] = []
    for k in range(classes):
        of_class = share[truth == k]
        per_class.append(100 * float(of_class.mean()) if len(of_class) else None)
    runs = tuple(100 * value for value in right.mean(1).tolist())
    return ClassifierScore(name, runs, tuple(per_class), tuple(epochs))


def _check_settings(classifiers: Sequence[str], runs: int, patience: int, seed: int) -> None:
    unknown = [name for name in classifiers if name not in CLASSIFIERS]
    if unknown or not classifiers or len(set(classifiers)) < len(classifiers):
        raise EvaluationError(f"classifiers must be some of {', '.join(CLASSIFIERS)}, each once")
    for name, value in (("runs", runs), ("patience", patience)):
        if value < 1:
            raise EvaluationError(f"{name} must be a whole number from 1 upwards, not {value}")
    if not 0 <= seed < 2**62:
        raise EvaluationError(f"seed must be a whole number from 0 to below 2^62, not {seed}")


def _shape(images: Tensor) -> str:
    _, channels, height, width = images.shape
    return f"{height} x {width} {'grey' if channels == 1 else 'colour'}"
