"""Recipes: all settings of a training as a small frozen value, and as small TOML files.

What changes the privacy cost stands in `PrivacySettings`; everything else only changes what is learnt. A
recipe knows nothing of the data: shapes, classes and sizes come in with the plan (`plan.py`). `read_value`
checks JSON or TOML against the annotations of the dataclass that it is for.

`choose_recipe` is one rule for a training without a recipe, by public facts and ε alone; docs/defaults.md
has what it was measured on (`benchmarks/defaults.py`).
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.mechanisms import find_mechanism, mechanism_names
from dpsinkhorn.mechanisms.shared.terms import Facts, FlowSettings, LossSettings, one_of, require

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
        one_of("privacy", self, mechanism=mechanism_names())
        require("a positive number", "privacy", self, "clip", "steps", "batch", "noise_multiplier")
        if self.clip > _LARGEST_CLIP:
            raise ValueError(f"privacy.clip must be at most {_LARGEST_CLIP:g}, not {self.clip:g}")
        if self.steps > MOST_STEPS:
            raise ValueError(f"privacy.steps must be at most {MOST_STEPS:,}, not {self.steps:,}")
        if (self.sampling_rate is None) == (self.batch is None):
            raise ValueError("privacy: give one of sampling_rate and batch")
        if self.sampling_rate is not None and not 0 < self.sampling_rate <= 1:
            raise ValueError(f"privacy.sampling_rate must be above 0 and at most 1, not {self.sampling_rate}")


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
        one_of("optimizer", self, algorithm=("adam", "sgd"), schedule=("constant", "cosine"))
        one_of("optimizer", self, precision=("float32", "bfloat16"))
        require("a positive number", "optimizer", self, "learning_rate")
        require("0 or a positive number", "optimizer", self, "weight_decay", "warm_up")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas must be from 0 to below 1, not {self.betas}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"optimizer.ema must be between 0 and 1, not {self.ema}")


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


def read_value(kind: Any, value: Any, where: str) -> Any:
    """`value` as an instance of the annotated type `kind`; whole numbers may stand for floats."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TrainingError(f"{where} must be a table of settings, not {value!r}")
        hints = typing.get_type_hints(kind)
        known = {item.name for item in dataclasses.fields(kind)}
        if unknown := sorted(set(value) - known):
            raise TrainingError(f"{where} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
        entries = {name: read_value(hints[name], item, f"{where}.{name}") for name, item in value.items()}
        try:
            return kind(**entries)  # type: ignore[operator]
        except TypeError as error:
            raise TrainingError(f"{where} lacks a setting: {error}") from error
        except ValueError as error:
            raise TrainingError(str(error)) from error
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        kinds = [part for part in typing.get_args(kind) if part is not type(None)]
        return read_value(kinds[0 if isinstance(value, str) else -1], value, where)  # a name, or a number
    if origin is tuple:
        parts = typing.get_args(kind)
        if parts[1:] == (...,) and isinstance(value, Sequence):
            parts = parts[:1] * len(value)
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != len(parts):
            raise TrainingError(f"{where} must be a list of {len(parts)}, not {value!r}")
        return tuple(read_value(part, item, where) for part, item in zip(parts, value, strict=True))
    if origin is typing.Literal:  # checked by the dataclass
        return value
    if origin is not None:
        if not isinstance(value, Mapping):
            raise TrainingError(f"{where} must be a table of settings, not {value!r}")
        return dict(value)
    return _read_plain(kind, value, where)


def _read_plain(kind: type, value: Any, where: str) -> Any:
    """A number, text or truth value; NumPy's numbers become Python's, which JSON knows."""
    fits = isinstance(value, kind)
    if kind is int:
        fits = isinstance(value, numbers.Integral)
    elif kind is float:
        fits = isinstance(value, numbers.Real)
    if not fits or isinstance(value, bool) is not (kind is bool):
        raise TrainingError(f"{where} must be {kind.__name__}, not {value!r}")
    return kind(value)


# ---- the recipe of a training for which none was named


DELTA = 1e-5
"""δ where none is given, whatever the recipe; the papers' recipes state their own."""

_MIXTURE, _FLOW, _GRADIENTS = "mixture", "flow", "record"
_SMALL = 256  # numbers of an image that an MLP makes
_LARGEST_SIDE = 32  # of grey images that were compared on a GPU
_BATCH = 4096  # of a flow, where there are enough records
# With fewer: a flow's channels by epsilon times the records, few steps, and a rate and average to match.
_NUMBERS_OF_A_CHANNEL, _CHANNELS = 3000.0, (16, 64)
_FEW_STEPS = 100
_LEARNING_OF_FEW = {"draws": 8, "updates": 2000, "update_rate": 4e-3}  # from the records, and from the sketch
_OPTIMIZER_OF_FEW = {"learning_rate": 2e-3, "warm_up": 10, "ema": 0.95}
# Of epsilon times the records of a class, as a part of the variance, a sketch gets this much.
_SKETCH_WEIGHT, _LARGEST_SHARE = 1200.0, 0.5
_USUAL_EPSILON = 10.0  # where the noise is given in its place
# From where on thousands of noisy gradients say as much as a few sums. Fewer records were not measured.
_LARGE_EPSILON, _MANY_RECORDS = 3.0, 50_000


def choose_recipe(
    facts: Facts,
    *,
    recipe: str | Path | Recipe | None = None,
    mechanism: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    epsilon: float | None = None,
    quick: bool = True,
    labels: tuple[float, ...] | str = "uniform",
) -> Recipe:
    """Return the recipe that was asked for, or the default for data of which these facts are public.

    The default is a mixture by `moments`: seconds on a CPU. Where there is a GPU (not `quick`), many grey
    images of a middling size and a large ε, it is `grey`, by `record`. `mechanism` asks for another, or
    replaces that of a recipe that was named. `settings` change what was chosen, by section. Where shares of
    classes are stated (`labels`), the smallest class decides on the sizes.

    >>> digits = Facts((1, 8, 8), classes=10, records=1347, units=1347)
    >>> chosen = choose_recipe(digits, epsilon=10)
    >>> chosen.name, chosen.generator["components"], chosen.privacy.steps
    ('mixture', 4, 5)
    >>> choose_recipe(digits, epsilon=10, labels=(0.01, *[0.11] * 9)).generator["components"]
    2
    >>> choose_recipe(Facts((1, 28, 28), 10, 60_000, 60_000), epsilon=10, quick=False).name
    'grey'
    >>> choose_recipe(digits, mechanism="record", settings={"privacy": {"steps": 5}}).privacy.steps
    5
    """
    if mechanism is not None and mechanism not in mechanism_names():
        raise TrainingError(f"mechanism must be one of {', '.join(mechanism_names())}, not {mechanism!r}")
    named = recipe is not None
    if recipe is None:
        recipe = _default_name(facts, mechanism, epsilon, quick)
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    sizes = {_MIXTURE: _sizes, _FLOW: _flow_sizes}.get(str(recipe))
    if sizes is not None:
        chosen = chosen.replace(**sizes(facts, (epsilon or _USUAL_EPSILON) * members(facts, labels)))
    if mechanism not in (None, chosen.privacy.mechanism):
        chosen = chosen.replace(privacy={"mechanism": mechanism})
    if not settings:
        return chosen
    _check_used(chosen, settings, named)
    return chosen.replace(**settings)


def _default_name(facts: Facts, mechanism: str | None, epsilon: float | None, quick: bool) -> str:
    channels, height, width = facts.image_shape
    small = facts.pixels <= _SMALL
    by_size = "digits" if small else "grey" if channels == 1 else "colour"
    if mechanism is not None:
        return by_size if mechanism == _GRADIENTS else find_mechanism(mechanism).recipe
    if facts.grouped:
        return _MIXTURE
    enough = (epsilon or _USUAL_EPSILON) >= _LARGE_EPSILON and facts.records >= _MANY_RECORDS
    gradients = not quick and enough and by_size == "grey" and max(height, width) <= _LARGEST_SIDE
    return by_size if gradients else _MIXTURE


def members(facts: Facts, labels: tuple[float, ...] | str) -> float:
    """Return how many records or persons a class has, by public numbers: the smallest, by stated shares."""
    stated = () if isinstance(labels, str) else [share for share in labels if share > 0]
    return facts.units * min(stated, default=1.0 / max(facts.classes, 1))


def _sizes(facts: Facts, weight: float) -> dict[str, dict[str, int]]:
    """Sizes and steps of a mixture, by ε times the records of a class, which count a ninth in colour."""
    weight /= facts.image_shape[0] ** 2
    components = min(32, max(2, round(math.sqrt(weight) / 10)))
    return {
        "generator": {"components": components, "frequencies": 20 if weight >= 18_000 else 16},
        "privacy": {"steps": min(6, 3 + int(math.log2(components)))},
    }


def _flow_sizes(facts: Facts, weight: float) -> dict[str, dict[str, Any]]:
    """The sketch's share and sizes, and the expected batch, of a flow; with few records all of its sizes.

    A quarter of N records in a step, T steps: the noise of a step's mean is about 100 c sqrt(T) / (epsilon N)
    for c channels, in a unit in which the signal of the first steps is about a half. What T steps tell
    together hardly depends on T: so there are few, and as many channels as keep the noise below a third.
    """
    share = min(_LARGEST_SHARE, _SKETCH_WEIGHT / weight)
    sketch = _sizes(facts, weight * math.sqrt(share))
    flow = {**sketch["generator"], "share": share, "sketch_steps": max(4, sketch["privacy"]["steps"])}
    batch = max(1, facts.units // 4)
    if batch >= _BATCH:
        return {"privacy": {"batch": _BATCH}, "flow": flow}
    fewest, most = _CHANNELS
    channels = 8 * round(weight * max(facts.classes, 1) / _NUMBERS_OF_A_CHANNEL / 8)
    return {
        "privacy": {"batch": batch, "steps": _FEW_STEPS},
        "generator": {"channels": min(most, max(fewest, channels))},
        "optimizer": _OPTIMIZER_OF_FEW,
        "flow": {**flow, **_LEARNING_OF_FEW},
    }


def _check_used(recipe: Recipe, settings: Mapping[str, Mapping[str, Any]], named: bool) -> None:
    """Refuse a setting that the recipe's mechanism has no use for."""
    kind = find_mechanism(recipe.privacy.mechanism)
    for section, changes in settings.items():
        for name in changes if isinstance(changes, Mapping) else ():
            if not {section, f"{section}.{name}"}.isdisjoint(kind.unused_settings):
                chosen = "" if named else ", which suits these data,"
                raise TrainingError(
                    f"{section}.{name} plays no part in the recipe {recipe.name}{chosen} by the mechanism "
                    f"{kind.name}; leave it out, or choose another mechanism, such as record (--mechanism)"
                )
