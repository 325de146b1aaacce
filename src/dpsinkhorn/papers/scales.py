"""How much of an experiment is repeated, all of it or a small one by the same code, and on which data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from dpsinkhorn.data import Dataset, from_arrays, load_dataset
from dpsinkhorn.errors import ReproductionError
from dpsinkhorn.evaluation import FeatureNetwork, images_of, load_features
from dpsinkhorn.evaluation.images import on_device
from dpsinkhorn.training import Recipe

DATA = ("mnist", "fashion-mnist", "celeba")
_PATCH = 16


@dataclass(frozen=True)
class Scale:
    """Limits on what is done, and by how much learning rates grow to make up for fewer steps."""

    name: str
    small_data: bool = False
    """Whether data that come with scikit-learn stand in for the papers' where no other are given."""
    steps: int | None = None
    """Most steps of a training; `None`: the paper's own number."""
    batch: int | None = None
    """Most records, and most generated images, of a step of the papers' recipes."""
    narrow: bool = False
    """Whether generators get an eighth, or less, of their channels."""
    rate: float = 1.0
    """Factor on the papers' learning rates."""
    count: int = 60_000
    """Synthetic images for the measures."""
    sets: int = 5
    """Sets of them, drawn afresh; each trains every classifier once."""
    patience: int | None = None
    """Of the classifiers; `None`: that of the paper's version."""
    seeds: int = 3
    gradient_batches: int = 300  # over which bias and variance of a gradient are computed

    def apply(self, recipe: Recipe) -> Recipe:
        """Return the recipe, made smaller."""
        privacy: dict[str, Any] = {}
        loss: dict[str, Any] = {}
        optimizer: dict[str, Any] = {}
        if self.steps is not None:
            privacy["steps"] = min(self.steps, recipe.privacy.steps)
        if self.batch is not None and recipe.privacy.batch is not None:  # those of the papers
            privacy["batch"] = min(self.batch, recipe.privacy.batch)
            loss["generated"] = min(self.batch, recipe.loss.generated)
            optimizer["learning_rate"] = self.rate * recipe.optimizer.learning_rate
        generator = dict(recipe.generator)
        if self.narrow:
            generator.update(_NARROW.get(generator["kind"], {}))
        smaller = recipe.replace(privacy=privacy, loss=loss, optimizer=optimizer)
        return smaller.with_generator(generator)


_NARROW = {"dcgan": {"width": 8}, "biggan": {"depth": 8}}
QUICK = Scale(
    "quick",
    small_data=True,
    steps=40,
    batch=50,
    narrow=True,
    rate=30.0,
    count=500,
    sets=1,
    patience=3,
    seeds=1,
)
FULL = Scale("full")  # all as in the papers
SCALES = {scale.name: scale for scale in (QUICK, FULL)}


@dataclass(frozen=True)
class Source:
    """Images for training and for testing, and the features that a Frechet distance is taken in."""

    title: str
    training: Dataset
    test: Dataset
    device: torch.device

    @cached_property
    def features(self) -> FeatureNetwork:
        """Loaded, or trained, once for all rows: Inception where its weights are here."""
        assert self.training.labels is not None
        labels = torch.from_numpy(self.training.labels).to(self.device)
        return load_features(
            "auto", on_device(images_of(self.training), self.device), labels, self.training.classes
        )


def open_source(name: str, paths: Mapping[str, str], scale: Scale, device: torch.device) -> Source:
    """Return the data set of that name in the papers, from where the user has it."""
    if name in paths:
        place = paths[name]
    elif not scale.small_data:
        place = name
    elif name == "celeba":
        return Source("patches of two photographs, for CelebA", *_patches(), device=device)
    else:
        title = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}[name]
        training, test = (load_dataset("digits", split=split) for split in ("train", "test"))
        return Source(f"digits, for {title}", training, test, device)
    size = 32 if name == "celeba" else None
    training, test = (load_dataset(place, split=split, size=size) for split in ("train", "test"))
    for part in (training, test):
        if part.labels is None:
            raise ReproductionError(f"{place} has no labels, which the paper's experiments need")
    return Source(training.name, training, test, device)


def _patches() -> tuple[Dataset, Dataset]:
    """Squares cut from scikit-learn's two sample photographs, every fourth of them for testing: colour
    images of two classes that need no download."""
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    images, labels = [], []
    for label, photograph in enumerate(load_sample_images().images):
        height, width = (size // _PATCH for size in photograph.shape[:2])
        whole = photograph[: height * _PATCH, : width * _PATCH]
        squares = whole.reshape(height, _PATCH, width, _PATCH, 3).swapaxes(1, 2)
        images.append(squares.reshape(-1, _PATCH, _PATCH, 3))
        labels.append(np.full(height * width, label))
    squares, kinds = np.concatenate(images), np.concatenate(labels)
    is_test = np.arange(len(squares)) % 4 == 3
    return (
        from_arrays(squares[~is_test], kinds[~is_test], classes=2, name="photographs"),
        from_arrays(squares[is_test], kinds[is_test], classes=2, name="photographs"),
    )
