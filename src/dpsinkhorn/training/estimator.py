"""`DPSinkhorn`: train, sample and save in scikit-learn's manner."""

from __future__ import annotations

import dataclasses
import json
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

from dpsinkhorn._interrupt import stop_on_interrupt
from dpsinkhorn.data import Dataset, from_arrays
from dpsinkhorn.generators import GeneratorError, ModuleClass, choose_device, register_module
from dpsinkhorn.privacy import Accountant
from dpsinkhorn.privacy.units import new_run_name
from dpsinkhorn.release import PrivacyStatement, Release, load, save_release
from dpsinkhorn.training.account import Account
from dpsinkhorn.training.advice import advice_on
from dpsinkhorn.training.building import check_mechanism
from dpsinkhorn.training.defaults import DELTA, choose_recipe
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.pace import Pace, Saving
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.planning import Request, plan_for
from dpsinkhorn.training.recipe import Recipe
from dpsinkhorn.training.records import facts_of
from dpsinkhorn.training.run import Progress, Run, Watch
from dpsinkhorn.training.shared_ledger import begin_ledger, check_ledger
from dpsinkhorn.training.trainer import Trainer, check_data

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
        anyway: Whether to train even where the public numbers say that nothing useful can come of it; by
            default `fit` refuses then, before anything is spent.

    After `fit`: `privacy_` is the privacy statement, `plan_` has all settings as they were used, `release_`
    is what `save` writes and `sample` draws from; `classes_` has the classes in order, for the curator alone.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DPSinkhorn(epsilon=10, value_range=(0, 16))
    >>> images, labels = model.fit(X.reshape(-1, 8, 8), y).sample(100)
    >>> images.shape, labels.shape, model.privacy_.epsilon <= 10
    ((100, 8, 8), (100,), True)
    """

    def __init__(
        self,
        epsilon: float | None = 10.0,
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
        self.anyway = anyway

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        watch: Watch | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> DPSinkhorn:
        """Train on images `X`, (N, H, W) or (N, H, W, C), and labels `y`, (N,).

        With `groups`, (N,), the unit of privacy is the person that it names, whatever the number of their
        records. `watch` is called after every block of steps; an answer of True stops the training.

        Nothing is written but the ledger, unless a `folder` is given: it keeps the run, with a checkpoint
        when it is stopped or interrupted by Ctrl-C. `fit` with the same folder, or `dpsinkhorn train
        --resume`, goes on from there.
        """
        dataset = from_arrays(X, y, groups=groups, classes=self.classes, value_range=self.value_range)
        device = choose_device(self.device, TrainingError)
        request = Request(
            epsilon=_number("epsilon", self.epsilon),
            delta=_number("delta", self.delta),
            recipe=self.recipe,
            mechanism=self.mechanism,
            settings=self.settings,
            labels=self.labels,
            records=_whole("records", self.records),
            accountant=self.accountant,
            seed=_whole("random_state", self.random_state),
            quick=device.type == "cpu",
            anyway=self.anyway,
        )
        plan = plan_for(dataset, self._with_own_module(dataset, request))
        for sentence in advice_on(plan, dataset):
            warnings.warn(sentence, stacklevel=2)
        ledger, budget = None if self.ledger is None else Path(self.ledger), _number("budget", self.budget)
        if folder is None:
            release = _train(plan, dataset, device, ledger, budget, watch)
        else:
            run = _run_in(Path(folder), plan, ledger, budget)
            _train_in(run, dataset, device, watch)
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
        save_release(folder, self._fitted())

    def _with_own_module(self, dataset: Dataset, request: Request) -> Request:
        """Return the request with a recipe whose generator is the caller's own module."""
        if self.generator is None:
            return request
        settings = dict(self.settings or {})
        own = settings.pop("generator", {})
        chosen = choose_recipe(
            facts_of(dataset),
            recipe=self.recipe,
            mechanism=self.mechanism or ("record" if self.recipe is None else None),
            settings=settings,
        )
        try:
            section = register_module(
                self.generator, own, image_shape=dataset.image_shape, classes=dataset.classes
            )
        except GeneratorError as error:
            raise TrainingError(f"generator: {error}") from error
        return dataclasses.replace(
            request, recipe=chosen.with_generator(section), mechanism=None, settings=None
        )

    def _fitted(self) -> Release:
        if not hasattr(self, "release_"):
            raise NotFittedError("this DPSinkhorn is not fitted yet; call fit first")
        return self.release_


def _train(
    plan: Plan,
    dataset: Dataset,
    device: torch.device,
    ledger: Path | None,
    budget: float | None,
    watch: Watch | None,
) -> Release:
    """Train without a run folder; without a ledger that is named, on one that is thrown away."""
    check_mechanism(plan)
    check_data(plan, dataset)
    try:
        check_ledger(ledger, plan, budget)
        if ledger is not None:
            begin_ledger(ledger, plan, budget)
        with tempfile.TemporaryDirectory() as place:
            path, name = ledger or Path(place) / "ledger.jsonl", new_run_name("fit", plan.facts.unit)
            with Account.open(path, plan, name, begin=ledger is None) as account:
                trainer, pace = Trainer(plan, dataset, device, account), Pace(account, Saving(), 0)
                for block in trainer.blocks():
                    if watch is None:
                        continue
                    pace.look(block)
                    if watch(Progress(block, pace.spent)) and block.step < block.horizon:
                        raise TrainingError("the training was stopped: nothing was learnt that could be kept")
                return trainer.release()
    except OSError as error:
        place = error.filename or "the ledger"
        raise TrainingError(f"{place} cannot be read or written: {error.strerror}") from error


def _run_in(folder: Path, plan: Plan, ledger: Path | None, budget: float | None) -> Run:
    """Begin a run in a folder, or open the one that is there if it is the same."""
    if not (folder / "run.json").exists():
        return Run.create(folder, plan, ledger=ledger, budget=budget)
    run = Run.resume(folder)
    settled = json.loads(json.dumps(plan.to_json())), None if ledger is None else str(ledger.resolve())
    if settled != (run.settings["plan"], run.settings["ledger"]):
        raise TrainingError(
            f"{folder} holds a run with other settings or data; fit as it was begun, or choose another folder"
        )
    return run


def _train_in(run: Run, dataset: Dataset, device: torch.device, watch: Watch | None) -> None:
    """Train in a run folder, from where it stands."""
    with stop_on_interrupt() as stop:
        finished = run.train(
            dataset,
            device=device,
            watch=lambda progress: (watch is not None and watch(progress)) or stop.asked,
        )
    if not finished:
        stopped = f"the training was stopped, with a checkpoint: fit with the folder {run.folder} to go on"
        raise KeyboardInterrupt(stopped) if stop.asked else TrainingError(stopped)


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
