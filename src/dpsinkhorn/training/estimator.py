"""`DPSinkhorn`: train, sample and save in scikit-learn's manner."""

from __future__ import annotations

import dataclasses
import numbers
import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]

from dpsinkhorn.data import Dataset, from_arrays, load_dataset, number_classes, read_records
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.generators import ModuleClass, Variation, choose_device, register_module
from dpsinkhorn.privacy import Accountant
from dpsinkhorn.privacy.words import new_run_name
from dpsinkhorn.ranks import Ranks, joined
from dpsinkhorn.release import PrivacyStatement, Release, load, save_release
from dpsinkhorn.training.advice import advice_on
from dpsinkhorn.training.fitting import check_all, follow, hand_out, run_in, shown, train_alone, train_in
from dpsinkhorn.training.plan import Plan, Request, plan_for, refused
from dpsinkhorn.training.recipe import DELTA, Recipe, choose_recipe
from dpsinkhorn.training.records import facts_of
from dpsinkhorn.training.used_data import note_use
from dpsinkhorn.training.watching import Watch

if TYPE_CHECKING:  # scikit-learn has no types: with its own class, a checker would let any name pass
    from typing_extensions import Self

    class BaseEstimator:
        """What type checkers see of scikit-learn's."""

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: Any) -> Self: ...
        def __sklearn_tags__(self) -> Any: ...

else:
    from sklearn.base import BaseEstimator


class DPSinkhorn(BaseEstimator):
    """A generator of images, trained under (ε, δ)-differential privacy.

    Args:
        epsilon: ε of the whole training, for adding or removing one record (or person, with `groups`). None
            where it follows from a noise multiplier in `settings`, or there is no privacy.
        delta: δ; below one over the number of records.
        recipe: Name of a recipe, a TOML file or a `Recipe`; by default one that fits the images.
        mechanism: Where the privacy barrier stands: `record`, `moments` (a mixture, without gradients), or
            the papers' `batch`, `image`, `parameter`; or `none` for training without privacy.
        settings: Changes to the recipe by section, such as `{"privacy": {"steps": 500}}`.
        generator: A class of modules of your own, in place of the recipe's generator. It is called with
            `settings["generator"]`; its `forward(latents, labels)` returns images in [-1, 1], and its
            attribute `latent` says how many latents an image takes (docs/training.md).
        labels: Distribution of generated labels: `uniform`, `released` (the data's own, released privately
            and charged) or a probability for each class.
        classes: Their public number, or their names in order. By default the number is read off `y`, and
            counts as public; labels that are read off `y` stay out of the release.
        records: A public number of records (of persons, with `groups`) to count with where theirs is not
            public; by default it is, and is read off the data.
        value_range: Public range of float images; 0 to 1 by default. Never taken from the data.
        accountant: How ε is counted: `pld` (the tightest), `rdp` or `rdp-classic`.
        random_state: A seed. The run then replays, and is **not for release**: who knows the seed knows the
            noise.
        ledger: File that keeps the record of all runs on the same data; by default one of this run alone.
        budget: ε that all runs on a new `ledger` may spend together; by default that of this run.
        device: Where to train; a GPU where there is one.
        verbose: Whether a terminal or a notebook shows a progress bar.
        anyway: Whether to train even where the public numbers say that nothing useful can come of it; by
            default `fit` refuses then, before anything is spent.

    After `fit`: `privacy_` is the privacy statement, `plan_` has all settings as they were used, `release_`
    is what `save` writes and `sample` draws from; `classes_` has the classes as they were in `y`, in order,
    for the curator alone.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DPSinkhorn(epsilon=10, value_range=(0, 16))
    >>> images, labels = model.fit(X.reshape(-1, 8, 8), y).sample(100)
    >>> images.shape, labels.shape, model.privacy_.epsilon <= 10
    ((100, 8, 8), (100,), True)
    """

    def __init__(
        self,
        epsilon: float | None,
        delta: float = DELTA,
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
        verbose: bool = True,
        anyway: bool = False,
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
        self.verbose = verbose
        self.anyway = anyway

    def fit(
        self,
        X: Any,
        y: ArrayLike | str | None = None,
        *,
        groups: ArrayLike | str | None = None,
        watch: Watch | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> DPSinkhorn:
        """Train on images `X`, (N, H, W) or (N, H, W, C), and labels `y`, (N,): numbers or names.

        `X` may also be a data set of PyTorch or Hugging Face whose records have an image, and a label if any,
        a table of pandas with such columns, or a list or column of images, which may be paths to pictures. A
        name or path alone is read as by `dpsinkhorn train --data`: `y` and `groups` then name columns. What
        `load_dataset` gives may be handed over too, for its other options.
        With `groups`, (N,), the unit of privacy is the person that it names, whatever the number of their
        records. `watch` is called after every block of steps; an answer of True stops the training.

        Nothing is written but the ledger, and the curator's own note of which data were used, unless a
        `folder` is given: it keeps the run, with a checkpoint when it is stopped or interrupted by Ctrl-C.
        `fit` with the same folder, or `dpsinkhorn train --resume`, goes on from there.

        Within a process group of torch.distributed all ranks call `fit` with the same data: each holds a part
        of the records, rank 0 trains, and all receive the release (docs/scale.md).
        """
        dataset, classes = self._read(X, y, groups)
        device = choose_device(self.device, TrainingError)
        with joined() if dist.is_initialized() else nullcontext() as ranks:
            if ranks is None:
                plan, release = self._fit(dataset, device, watch, folder)
            elif ranks.rank:
                plan, release = follow(ranks, dataset, ranks.device(device), self.generator)
            else:
                plan, release = self._fit(dataset, ranks.device(device), watch, folder, ranks)
                hand_out(release, ranks)
        self.classes_ = classes
        self.plan_: Plan = plan
        self.release_: Release = release
        self.privacy_: PrivacyStatement = release.privacy
        return self

    def _fit(
        self,
        dataset: Dataset,
        device: torch.device,
        watch: Watch | None,
        folder: str | os.PathLike[str] | None,
        ranks: Ranks | None = None,
    ) -> tuple[Plan, Release]:
        request = Request(
            epsilon=_number("epsilon", self.epsilon),
            delta=_number("delta", self.delta),
            recipe=self.recipe,
            mechanism=self.mechanism,
            settings=self.settings,
            labels=self.labels,
            records=_number("records", self.records, numbers.Integral),
            accountant=self.accountant,
            seed=_number("random_state", self.random_state, numbers.Integral),
            quick=device.type == "cpu",
            anyway=self.anyway,
        )
        plan = plan_for(dataset, self._with_own_module(dataset, request))
        for sentence in advice_on(plan, dataset):
            warnings.warn(sentence, stacklevel=3)
        ledger, budget = None if self.ledger is None else Path(self.ledger), _number("budget", self.budget)
        run = None if folder is None else run_in(Path(folder), plan, ledger, budget)
        if run is None:
            check_all(plan, dataset, ledger, budget)
        name = new_run_name("fit", plan.facts.unit) if run is None else run.name
        if warning := note_use(dataset, plan, name, ledger if run is None else run.ledger_path):
            warnings.warn(warning, stacklevel=3)
        with shown(plan, ledger, watch, verbose=self.verbose) as seen:
            if run is None:
                release = train_alone(plan, dataset, device, ledger, name, seen, ranks)
            else:
                train_in(run, dataset, device, seen, ranks)
                release = load(run.release_folder, generator=self.generator)
        if release.privacy.lost_steps:
            warnings.warn(release.privacy.lost_steps, stacklevel=3)
        return plan, release

    def sample(
        self,
        n_samples: int = 1,
        labels: ArrayLike | None = None,
        *,
        random_state: int | None = None,
        vary: bool = False,
        variation: Variation | None = None,
    ) -> tuple[NDArray[np.uint8], NDArray[Any] | None]:
        """Synthetic images (n, H, W) or (n, H, W, 3), uint8 from 0 to 255 whatever `value_range` was, and
        their labels (n,), as they were in `y`.

        `labels` asks for images of one class, or one image for each of `n_samples` labels. The same
        `random_state` gives the same images. With `vary`, or a `variation`, they are changed at random: see
        `Release.sample`.
        """
        release = self._fitted()
        asked = labels if labels is None or not release.classes else self._numbers(labels)
        images, numbers = release.sample(
            n_samples, asked, random_state=random_state, vary=vary, variation=variation
        )
        return images, None if numbers is None else self.classes_[numbers]

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        title: str | None = None,
        description: str | None = None,
        purpose: str | None = None,
        contact: str | None = None,
        legal_basis: str | None = None,
        recipients: str | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        """Write the release to a new folder: what an analyst receives.

        Title and the other texts are a line each, for its card and report. Its classes have numbers from
        0, in the order of `classes_`, and names only where they were stated: as `classes`, or here as
        `class_names`, which are public.
        """
        release = self._fitted()
        names = release.class_names if class_names is None else tuple(class_names)
        if not (names or np.array_equal(self.classes_, np.arange(release.classes))):
            warnings.warn(
                "labels read off the private data stay out of the release: its classes are numbers from "
                f"0 to {release.classes - 1}, in the order of classes_; state class_names if they are public",
                stacklevel=2,
            )
        about = {"title": title, "description": description, "purpose": purpose, "contact": contact}
        about |= {"legal_basis": legal_basis, "recipients": recipients}
        said = dataclasses.replace(release.about, **{k: v for k, v in about.items() if v is not None})
        save_release(folder, dataclasses.replace(release, about=said, class_names=names))

    def __sklearn_tags__(self) -> Any:
        """Say to scikit-learn that images are no tables."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.non_deterministic = self.random_state is None
        return tags

    def _read(self, X: Any, y: Any, groups: Any) -> tuple[Dataset, NDArray[Any]]:
        """Return the checked data, and the classes as they are in `y`."""
        if isinstance(X, (str, os.PathLike)):
            dataset = self._load(X, y, groups)
            return dataset, _classes(dataset)
        if isinstance(X, Dataset):
            if any(given is not None for given in (y, groups, self.classes, self.value_range)):
                raise TrainingError("a Dataset has y, groups, classes and value_range itself; leave them out")
            return X, _classes(X)
        images, own_labels = read_records(X)
        y = own_labels if y is None else y
        numbers, classes = (None, np.arange(0)) if y is None else number_classes(y, self.classes)
        labels = numbers if self.classes is None else y
        dataset = from_arrays(
            images, labels, groups=groups, classes=self.classes, value_range=self.value_range
        )
        return dataset, classes

    def _load(self, source: str | os.PathLike[str], y: Any, groups: Any) -> Dataset:
        for name, value in {"y": y, "groups": groups}.items():
            if not isinstance(value, (str, type(None))):
                raise TrainingError(f"{name} must name a column of {os.fspath(source)}, or be left out")
        dataset = load_dataset(
            source, label=y, groups=groups, classes=self.classes, value_range=self.value_range
        )
        if dataset.skipped_files:
            warnings.warn(dataset.skipped_sentence(), stacklevel=4)
        return dataset

    def _numbers(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return the numbers of classes that are given as they were in `y`."""
        places = {value: place for place, value in enumerate(self.classes_.tolist())}
        asked = np.asarray(labels)
        unknown = next((value for value in asked.reshape(-1).tolist() if value not in places), None)
        if unknown is not None:
            raise TrainingError(f"{unknown!r} is none of the classes: they are {', '.join(map(str, places))}")
        return np.array([places[value] for value in asked.reshape(-1).tolist()]).reshape(asked.shape)

    def _with_own_module(self, dataset: Dataset, request: Request) -> Request:
        """Return the request with a recipe whose generator is the caller's own module."""
        if self.generator is None:
            return request
        settings = dict(self.settings or {})
        own = settings.pop("generator", {})
        chosen = choose_recipe(
            facts_of(dataset, records=request.records),
            recipe=self.recipe,
            mechanism=self.mechanism or ("record" if self.recipe is None else None),
            settings=settings,
        )
        with refused("generator: "):
            section = register_module(
                self.generator, own, image_shape=dataset.image_shape, classes=dataset.classes
            )
        return dataclasses.replace(
            request, recipe=chosen.with_generator(section), mechanism=None, settings=None
        )

    def _fitted(self) -> Release:
        if not hasattr(self, "release_"):
            raise NotFittedError("this DPSinkhorn is not fitted yet; call fit first")
        return self.release_


def _classes(dataset: Dataset) -> NDArray[Any]:
    return np.array(dataset.class_names) if dataset.class_names else np.arange(dataset.classes)


def _number(name: str, value: Any, kind: Any = numbers.Real) -> Any:
    """A number, of NumPy too. For a seed a generator will not do: the run is replayed from a number."""
    if value is None:
        return None
    what = "a number" if kind is numbers.Real else "a whole number or None"
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TrainingError(f"{name} must be {what}, not {value!r}")
    return float(value) if kind is numbers.Real else int(value)
