"""Recipes: all settings of a training as a small frozen value, and as small TOML files.

What changes the privacy cost stands in `PrivacySettings`; everything else only changes what is learnt. A
recipe knows nothing of the data: shapes, classes and sizes come in with the plan (`plan.py`).
"""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.mechanisms import mechanism_names
from dpsinkhorn.mechanisms.shared.terms import FlowSettings
from dpsinkhorn.training.reading import read_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "MOST_STEPS",
    "FlowSettings",
    "LossSettings",
    "OptimizerSettings",
    "PrivacySettings",
    "Recipe",
    "load_recipe",
    "recipe_names",
]

CostName = Literal["sqeuclidean", "cityblock", "l1l2"]

MOST_STEPS = 10**9  # what the accountants are made for, and more than anyone waits for
_LARGEST_CLIP = 1e30  # gradients of the generator are in float32


@dataclass(frozen=True)
class PrivacySettings:
    """What decides the privacy cost, together with ε and δ."""

    mechanism: str = "record"
    clip: float = 6.0
    steps: int = 3000
    sampling_rate: float | None = None
    """Chance of a record to be in a step's batch; or give `batch`."""
    batch: int | None = None
    """Expected number of records in a batch, in place of a rate."""
    noise_multiplier: float | None = None
    """Noise / sensitivity, for `image` of one row; left out, it follows from ε and δ."""

    def __post_init__(self) -> None:
        _one_of("privacy.mechanism", self.mechanism, mechanism_names())
        _positive("privacy.clip", self.clip)
        if self.clip > _LARGEST_CLIP:
            raise TrainingError(f"privacy.clip must be at most {_LARGEST_CLIP:g}, not {self.clip:g}")
        _positive("privacy.steps", self.steps)
        if self.steps > MOST_STEPS:
            raise TrainingError(f"privacy.steps must be at most {MOST_STEPS:,}, not {self.steps:,}")
        if (self.sampling_rate is None) == (self.batch is None):
            raise TrainingError("privacy: give one of sampling_rate and batch")
        if self.sampling_rate is not None and not 0 < self.sampling_rate <= 1:
            raise TrainingError(
                f"privacy.sampling_rate must be above 0 and at most 1, not {self.sampling_rate}"
            )
        if self.batch is not None:
            _positive("privacy.batch", self.batch)
        if self.noise_multiplier is not None:
            _positive("privacy.noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class LossSettings:
    """The transport loss of a step."""

    cost: CostName = "sqeuclidean"
    l1_weight: float = 1.0
    """m of c_m = L2² + m L1, where the cost is `l1l2`."""
    regularization: float = 1.0
    """λ, in the units of the cost."""
    generated: int = 500
    """Images generated in a step (n); where there are classes, `generated_per_class` comes first."""
    generated_per_class: int | None = None
    self_weight: float = 1.0
    """Weight s of the self term; `record` only."""
    debias: float = 0.4
    """Fraction p of images that are resampled for the self term; all but `record`."""
    label_weight: float = 15.0
    """Scale α_c of the one-hot label in the cost; all but `record`, which matches within classes."""
    marginals: Literal["balanced", "classes"] | float = "balanced"
    """How strongly a plan keeps the records' weights; all but `record`. `balanced`: every record is reached
    as much as any other; `classes`: within its class, to which as much goes as there are generated images of
    it; a number ρ: a penalty ρ KL, in the units of the cost, so that 0 leaves them free."""
    iterations: int | None = None
    """Stop balanced plans after so many annealed iterations, as the papers' authors did (13); all but
    `record`. Left out, they converge. For `dp_merf`: steps of the optimizer on what was released. For
    `gs_wgan`, `datalens` and `g_pate`: iterations of critics before the first step."""

    def __post_init__(self) -> None:
        _one_of("loss.cost", self.cost, typing.get_args(CostName))
        _positive("loss.regularization", self.regularization)
        _positive("loss.generated", self.generated)
        if self.generated_per_class is not None:
            _positive("loss.generated_per_class", self.generated_per_class)
        for name in ("l1_weight", "label_weight"):
            _not_negative(f"loss.{name}", getattr(self, name))
        if isinstance(self.marginals, str):
            if self.marginals not in ("balanced", "classes"):
                raise TrainingError(
                    f"loss.marginals must be balanced, classes or a number, not {self.marginals!r}"
                )
        else:
            _not_negative("loss.marginals", self.marginals)
        if self.iterations is not None:
            _positive("loss.iterations", self.iterations)
            if self.marginals != "balanced":
                raise TrainingError("loss.iterations is for balanced marginals: leave one of the two out")
        for name in ("self_weight", "debias"):
            if not 0 <= getattr(self, name) <= 1:
                raise TrainingError(f"loss.{name} must be between 0 and 1, not {getattr(self, name)}")

    @property
    def transport(self) -> str:
        """Return in words what plans are used.

        >>> LossSettings(iterations=13).transport
        'balanced, stopped early: 13 annealed iterations, not converged'
        """
        if self.iterations is not None:
            return f"balanced, stopped early: {self.iterations} annealed iterations, not converged"
        if isinstance(self.marginals, str):
            return {"balanced": "balanced", "classes": "within classes"}[self.marginals]
        return f"records' weights relaxed, penalty {self.marginals:g}"


@dataclass(frozen=True)
class OptimizerSettings:
    """Adam or plain gradient descent, and what is averaged and decayed over the run."""

    algorithm: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warm_up: int = 0
    """Steps over which the learning rate rises from 0."""
    ema: float | None = None
    """Decay of the exponential moving average of the weights that is released; none: the last weights."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the generator's layers compute in while trained, where the device is fast at it.

    Nothing of privacy depends on it.
    """

    def __post_init__(self) -> None:
        _one_of("optimizer.algorithm", self.algorithm, ("adam", "sgd"))
        _one_of("optimizer.precision", self.precision, ("float32", "bfloat16"))
        _positive("optimizer.learning_rate", self.learning_rate)
        _not_negative("optimizer.weight_decay", self.weight_decay)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise TrainingError(f"optimizer.betas must be from 0 to below 1, not {self.betas}")
        _one_of("optimizer.schedule", self.schedule, ("constant", "cosine"))
        _not_negative("optimizer.warm_up", self.warm_up)
        if self.ema is not None and not 0 < self.ema < 1:
            raise TrainingError(f"optimizer.ema must be between 0 and 1, not {self.ema}")


@dataclass(frozen=True)
class Recipe:
    """All settings of a training, but for its data and its budget.

    >>> recipe = load_recipe("digits")
    >>> recipe.privacy.mechanism
    'record'
    >>> recipe.replace(privacy={"steps": 10}).privacy.steps
    10
    """

    name: str
    description: str
    privacy: PrivacySettings
    loss: LossSettings = field(default_factory=LossSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    generator: Mapping[str, Any] = field(default_factory=lambda: {"kind": "dcgan"})
    """Settings of the generator's config, without the image's shape and the classes."""
    published_epsilon: float | None = None
    """What a paper reports for these settings; never used, only shown beside ours."""
    delta: float | None = None
    """What a paper states for its run; by default δ is the same for all recipes."""

    def replace(self, **sections: Mapping[str, Any]) -> Recipe:
        """A recipe with some settings of its sections changed."""
        data = self.to_json()
        for section, changes in sections.items():
            if not isinstance(data.get(section), Mapping):
                known = ", ".join(name for name, value in data.items() if isinstance(value, Mapping))
                raise TrainingError(f"a recipe has no section {section!r}; it has {known}")
            if not isinstance(changes, Mapping):
                raise TrainingError(f"changes to {section} must be settings by name, not {changes!r}")
            data[section] = {**data[section], **changes}
        privacy = sections.get("privacy", {})
        for given, dropped in (("sampling_rate", "batch"), ("batch", "sampling_rate")):
            if privacy.get(given) is not None and dropped not in privacy:
                data["privacy"][dropped] = None
        return Recipe.from_json(data)

    def with_generator(self, generator: Mapping[str, Any]) -> Recipe:
        """A recipe with another generator altogether."""
        return dataclasses.replace(self, generator=generator)

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values; `from_json` reads it back."""
        return {**dataclasses.asdict(self), "generator": dict(self.generator)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """A recipe from JSON or TOML values. Unknown names and values of the wrong type are refused."""
        return typing.cast(Recipe, read_value(cls, data, "recipe"))


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that come with the package.

    >>> "paper-first-mnist" in recipe_names()
    True
    """
    return tuple(sorted(entry.name[:-5] for entry in _folder().iterdir() if entry.name.endswith(".toml")))


def load_recipe(source: str | Path) -> Recipe:
    """A recipe by its name, or from a TOML file of one's own."""
    path = Path(source)
    if path.suffix == ".toml":
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise TrainingError(f"there is no recipe file {path}") from error
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
            raise TrainingError(f"the recipe {path} cannot be read: {reason}") from error
    elif str(source) in recipe_names():
        text = (_folder() / f"{source}.toml").read_text(encoding="utf-8")
    else:
        raise TrainingError(
            f"unknown recipe {str(source)!r}; choose a .toml file or {', '.join(recipe_names())}"
        )
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TrainingError(f"the recipe {source} is not TOML: {error}") from error
    return Recipe.from_json({"name": path.stem, **data})


def _folder() -> Any:
    return resources.files("dpsinkhorn.training") / "recipes"


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise TrainingError(f"{name} must be a positive number, not {value}")


def _not_negative(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise TrainingError(f"{name} must be 0 or a positive number, not {value}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise TrainingError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
