"""How much of an experiment is repeated: all of it, or a small one by the same code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpsinkhorn.training import Recipe

__all__ = ["FULL", "QUICK", "SCALES", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Limits on what is done, and by how much learning rates grow to make up for fewer steps."""

    name: str
    small_data: bool
    """Whether data that come with scikit-learn stand in for the papers' where no other are given."""
    steps: int | None
    """Most steps of a training; `None`: the paper's own number."""
    batch: int | None
    """Most records, and most generated images, of a step of the papers' recipes."""
    narrow: bool
    """Whether generators get an eighth, or less, of their channels."""
    rate: float
    """Factor on the papers' learning rates."""
    count: int
    """Synthetic images for the measures."""
    sets: int
    """Sets of them, drawn afresh; each trains every classifier once."""
    patience: int | None
    """Of the classifiers; `None`: that of the paper's version."""
    seeds: int
    gradient_batches: int
    """Over which bias and variance of a gradient are computed."""

    def apply(self, recipe: Recipe) -> Recipe:
        """The recipe, made smaller."""
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
    gradient_batches=300,
)
FULL = Scale(
    "full",
    small_data=False,
    steps=None,
    batch=None,
    narrow=False,
    rate=1.0,
    count=60_000,
    sets=5,
    patience=None,
    seeds=3,
    gradient_batches=300,
)
SCALES = {scale.name: scale for scale in (QUICK, FULL)}
