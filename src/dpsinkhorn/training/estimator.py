"""`DPSinkhorn`: train, sample and save in scikit-learn's manner."""

from __future__ import annotations

import numbers
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]

from dpsinkhorn.data import from_arrays
from dpsinkhorn.generators import GeneratorError, ModuleClass, choose_device, register_module
from dpsinkhorn.privacy import Accountant
from dpsinkhorn.release import PrivacyStatement, Release, load, write_release
from dpsinkhorn.training.advice import advice_on
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.plan import Facts, Plan
from dpsinkhorn.training.planning import make_plan
from dpsinkhorn.training.recipe import Recipe, choose_recipe
from dpsinkhorn.training.records import facts_of
from dpsinkhorn.training.run import Run, Saving, Watch

__all__ = ["DPSinkhorn"]


class DPSinkhorn(BaseEstimator):  # type: ignore[misc]
    """A generator of images, trained under (ε, δ)-differential privacy.

    Args:
        epsilon: ε of the whole training, for adding or removing one record (or person, with `groups`).
        delta: δ; below one over the number of records.
        recipe: Name of a recipe, a TOML file or a `Recipe`; by default one that fits the images.
        mechanism: Where the privacy barrier stands: `record`, `moments` (a mixture, without gradients), or
            the papers' `batch`, `image`, `parameter`; or `none` for training without privacy (then `epsilon`
            is None).
        settings: Changes to the recipe by section, such as `{"privacy": {"steps": 500}}`.
        generator: A class of modules of your own, in place of the recipe's generator. It is called with
            `settings["generator"]`; its `forward(latents, labels)` returns images in [-1, 1], and its
            attribute `latent` says how many latents an image takes (docs/training.md).
        labels: Distribution of generated labels: `uniform`, `released` (the data's own, released privately
            and charged) or a probability for each class.
        classes: Their public number, or their names in order. By default the number is read off `y`, and
            counts as public; names that are read off `y` stay out of the release.
        records: A public number of records (of persons, with `groups`) to count with where theirs is not
            public; by default it is, and is read off the data.
        value_range: Public range of float images; 0 to 1 by default. Never taken from the data.
        accountant: How ε is counted: `pld` (the tightest), `rdp` or `rdp-classic`.
        random_state: A seed. The run then replays, and is **not for release**: who knows the seed knows the
            noise.
        ledger: File that keeps the record of all runs on the same data; by default one of this run alone.
        budget: ε that all runs on a new `ledger` may spend together; by default that of this run.
        device: Where to train; a GPU where there is one.

    After `fit`: `privacy_` is the privacy statement, `plan_` has all settings as they were used, `release_`
    is what `save` writes and `sample` draws from; `classes_` has the classes in order, for the curator alone.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DPSinkhorn(epsilon=10, value_range=(0, 16), settings={"privacy": {"steps": 20}})
    >>> images, labels = model.fit(X.reshape(-1, 8, 8), y).sample(100)
    >>> images.shape, labels.shape, model.privacy_.epsilon <= 10
    ((100, 8, 8), (100,), True)
    """

    def __init__(
        self,
        epsilon: float | None = 10.0,
        delta: float = 1e-5,
        *,
        recipe: str | Path | Recipe | None = None,
        mechanism: str | None = None,
        settings: dict[str, dict[str, Any]] | None = None,
        generator: ModuleClass | None = None,
        labels: str | tuple[float, ...] = "uniform",
        classes: int | Sequence[str] | None = None,
        records: int | None = None,
        value_range: tuple[float, float] | None = None,
        accountant: Accountant = "pld",
        random_state: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.recipe = recipe
        self.mechanism = mechanism
        self.settings = settings
        self.generator = generator
        self.labels = labels
        self.classes = classes
        self.records = records
        self.value_range = value_range
        self.accountant = accountant
        self.random_state = random_state
        self.ledger = ledger
        self.budget = budget
        self.device = device

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        watch: Watch | None = None,
    ) -> DPSinkhorn:
        """Train on images `X`, (N, H, W) or (N, H, W, C), and labels `y`, (N,).

        With `groups`, (N,), the unit of privacy is the person that it names, whatever the number of their
        records. `watch` is called after every block of steps.
        """
        dataset = from_arrays(X, y, groups=groups, classes=self.classes, value_range=self.value_range)
        device = choose_device(self.device, TrainingError)
        epsilon = _number("epsilon", self.epsilon)
        facts = facts_of(dataset, records=_whole("records", self.records))
        plan = make_plan(
            self._recipe(facts, epsilon, quick=device.type == "cpu"),
            facts,
            budget_epsilon=epsilon,
            delta=_number("delta", self.delta),
            accountant=self.accountant,
            labels=self.labels,
            seed=_whole("random_state", self.random_state),
        )
        for sentence in advice_on(plan, dataset):
            warnings.warn(sentence, stacklevel=2)
        with tempfile.TemporaryDirectory() as folder:
            budget = _number("budget", self.budget)
            run = Run.create(Path(folder) / "run", plan, ledger=self.ledger, budget=budget)
            finished = run.train(
                dataset,
                device=device,
                saving=Saving(checkpoint_seconds=float("inf"), picture_steps=0),
                watch=watch,
            )
            if not finished:
                raise TrainingError("the training was stopped: nothing was learnt that could be kept")
            release = load(run.release_folder, generator=self.generator)
        names = dataset.class_names
        self.classes_ = np.array(names) if names else np.arange(dataset.classes)
        self.plan_: Plan = plan
        self.release_: Release = release
        self.privacy_: PrivacyStatement = release.privacy
        return self

    def sample(
        self, n_samples: int = 1, labels: int | ArrayLike | None = None, *, seed: int | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
        """Synthetic images (n, H, W) or (n, H, W, 3), uint8 from 0 to 255 whatever `value_range` was, and
        their labels (n,)."""
        return self._fitted().sample(n_samples, labels, seed=seed)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the release to a new folder: what an analyst receives."""
        release = self._fitted()
        write_release(
            folder,
            release.generator,
            label_probabilities=release.label_probabilities,
            privacy=release.privacy,
            class_names=release.class_names,
        )

    def _recipe(self, facts: Facts, epsilon: float | None, *, quick: bool) -> Recipe:
        """Return the recipe that fits these facts, with the module of the caller's own where there is one."""
        module_class, settings, own = self.generator, self.settings, {}
        mechanism = self.mechanism
        if module_class is not None:
            settings = dict(settings or {})
            own = settings.pop("generator", {})
            mechanism = mechanism or ("record" if self.recipe is None else None)
        recipe = choose_recipe(
            facts.image_shape,
            recipe=self.recipe,
            mechanism=mechanism,
            settings=settings,
            epsilon=epsilon,
            records=facts.records,
            persons=facts.grouped,
            quick=quick,
        )
        if module_class is None:
            return recipe
        try:
            section = register_module(module_class, own, image_shape=facts.image_shape, classes=facts.classes)
        except GeneratorError as error:
            raise TrainingError(f"generator: {error}") from error
        return recipe.with_generator(section)

    def _fitted(self) -> Release:
        if not hasattr(self, "release_"):
            raise NotFittedError("this DPSinkhorn is not fitted yet; call fit first")
        return self.release_


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TrainingError(f"{name} must be a number, not {value!r}")
    return float(value)


def _whole(name: str, value: Any) -> int | None:
    """A whole number, of NumPy too. For a seed a generator will not do: the run is replayed from a number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TrainingError(f"{name} must be a whole number or None, not {value!r}")
    return int(value)
