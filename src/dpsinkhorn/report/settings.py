"""Data and settings as tables. What names something of the curator's own stays out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpsinkhorn.data import KNOWN
from dpsinkhorn.mechanisms import find_mechanism, mechanism_names
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.privacy.mechanisms import VoteMechanism, parts_of
from dpsinkhorn.release import LABEL_SOURCES, PrivacyStatement
from dpsinkhorn.report.gather import Findings
from dpsinkhorn.report.guarantee import decimal
from dpsinkhorn.training import Plan, recipe_names

Rows = list[tuple[str, str]]

ACCOUNTANTS = {
    "pld": "pld: privacy loss distributions, composed numerically, rounded upwards",
    "rdp": "rdp: Rényi differential privacy",
    "rdp-classic": "rdp-classic: Rényi differential privacy, converted as in the papers",
}


def data_rows(found: Findings) -> Rows:
    """What the data are, as far as it is public."""
    known = KNOWN.get(found.data_name or "")
    private = "not named in the release" if found.plan is None else "private, not named on this page"
    facts = None if found.plan is None else found.plan.facts
    images = found.release or facts
    assert images is not None
    channels, height, width = images.image_shape
    rows = [
        ("data set", f"{known.name}: {known.description}" if known else private),
        ("images", f"{'grey' if channels == 1 else 'colour'}, {height} x {width} pixels"),
        ("classes", f"{images.classes}" if images.classes else "none: the images have no labels"),
    ]
    if found.release is not None and found.release.class_names:
        rows.append(("names of the classes", ", ".join(found.release.class_names)))
    if found.release is not None and found.release.value_range is not None:
        low, high = (f"{limit:.10g}" for limit in found.release.value_range)
        rows.append(("range of the pixels", f"{low} to {high}; generated images show it as 0 to 255"))
    if facts is None:
        return rows
    if not facts.size_is_public:
        declared = f"{facts.records:,} declared"
        if facts.grouped:  # one number, which stands for both
            rows.append(("persons", f"{declared}, as for records; their true number is protected"))
            rows.append(("records", f"{declared}, as for persons; their true number is protected"))
        else:
            rows.append(("records", f"{declared}; their true number is protected"))
    else:
        rows.append(("records", f"{facts.records:,} (their number counts as public)"))
        if facts.grouped:
            rows.append(("persons", f"{facts.units:,} (their number counts as public)"))
    return rows


def data_line(found: Findings) -> str:
    """The same in a line, for the top of the page."""
    known = KNOWN.get(found.data_name or "")
    name = f"{known.name}, a public data set" if known else dict(data_rows(found))["data set"]
    if found.plan is None:
        return name
    facts = found.plan.facts
    if not facts.size_is_public:
        return f"{name}, {facts.units:,} {facts.unit}s declared"
    persons = f" of {facts.units:,} persons" if facts.grouped else ""
    return f"{name}, {facts.records:,} records{persons}"


def plan_rows(found: Findings) -> Rows:
    """The settings that decide about privacy."""
    privacy, plan = found.privacy, found.plan
    rows = [("mechanism", mechanism_in_words(privacy))]
    if plan is not None and plan.private:
        rows += _budget_rows(found)
        rows.append(("noise multiplier (noise / sensitivity)", f"{plan.noise_multiplier:.6g}"))
        votes = isinstance(plan.mechanism, VoteMechanism)
        rows.append(
            ("setting clip, of votes" if votes else "clipping bound", f"{plan.recipe.privacy.clip:g}")
        )
        if plan.preparation_epsilon is not None:
            before = f"epsilon {format_epsilon(plan.preparation_epsilon)} by itself"
            rows.append(("released before the first step", before))
    if plan is not None:
        if plan.kind.splits_records:
            rows.append(("parts that records are split into", f"{parts_of(plan.sampling_rate):,}"))
            rows.append(("records in a part, expected", f"{plan.expected_batch:,.0f}"))
        else:
            chance = f"chance of a {privacy.unit} to be in a step's sample"
            rows.append((chance, f"{plan.sampling_rate:.6g}"))
            rows.append(("records in a sample, expected", f"{plan.expected_batch:,.0f}"))
        rows.append(("steps planned", f"{plan.steps:,}"))
    if privacy.private:
        rows += _charged_rows(found)
        rows.append(("accountant", ACCOUNTANTS[privacy.accountant]))
        # what is to be said of memory stands among what is not guaranteed
        rows.append(("noise drawn from", privacy.noise.split(". ")[0].rstrip(".") or "not stated"))
    return rows


def mechanism_in_words(privacy: PrivacyStatement) -> str:
    """Say what is clipped and noised; a release may be of a mechanism that is not known here."""
    if privacy.mechanism not in mechanism_names():
        return privacy.mechanism
    kind = find_mechanism(privacy.mechanism)
    persons = kind.summary_of_persons if privacy.unit == "person" else ""
    return f"{kind.name}: {persons or kind.summary}"


def _budget_rows(found: Findings) -> Rows:
    """What this run may spend, and what all on a shared ledger may: they are not the same."""
    plan, ledger = found.plan, found.ledger
    assert plan is not None
    own = f"ε = {format_epsilon(plan.budget_epsilon)} at δ = {decimal(plan.delta)}"
    if not found.shared:
        return [("budget", own)]
    rows = [("budget of this run", own)]
    if ledger is not None:
        rows.append(("ε of this run alone (add or remove one)", format_epsilon(ledger.epsilon)))
        allowed = "none" if math.isinf(ledger.budget) else f"ε = {format_epsilon(ledger.budget)}"
        rows.append(("budget of the ledger, for all uses of the data together", allowed))
    return rows


def _charged_rows(found: Findings) -> Rows:
    """Steps that were charged, as far as it can be told whose they are."""
    privacy, ledger = found.privacy, found.ledger
    charged = privacy.steps_charged if ledger is None or found.plan is None else ledger.steps
    if charged is None:
        return []
    kept = "not told: it follows the clock" if privacy.steps_kept is None else f"{privacy.steps_kept:,}"
    if privacy.lost_steps:
        kept += "; a crash lost the others, and ε counts them"
    rows = [("steps charged", f"{charged:,}"), ("steps kept", kept)]
    return rows if found.finished else rows[:1]


_IN_WORDS = ("marginals", "iterations")  # settings that have a row of their own


def recipe_rows(found: Findings) -> Rows:
    """Everything else, as it stands in the recipe. A file's name is the curator's, and left out."""
    plan = found.plan
    if plan is None:
        config = None if found.release is None else found.release.config
        return [] if config is None else [("generator", f"{config.kind}, {config.parameters:,} parameters")]
    recipe, config = plan.recipe, plan.generator_config
    ours = recipe.name in recipe_names()
    rows = [
        ("recipe", f"{recipe.name}: {recipe.description}" if ours else "the curator's own"),
        ("generator", f"{config.kind}, {config.parameters:,} parameters"),
        *([("images generated a step", f"{plan.generated:,}")] if _applies("loss", "", plan) else []),
        *([("transport", recipe.loss.transport)] if _applies("loss", "marginals", plan) else []),
        ("labels of generated images", labels_in_words(found)),
        ("variation of samples, where it is asked for", value_in_words(config.variation.values) or "none"),
    ]
    settings = recipe.to_json()
    for section in ("loss", "optimizer", "generator"):
        rows += [
            (f"{section}: {name.replace('_', ' ')}", value_in_words(value))
            for name, value in settings[section].items()
            if value is not None and name not in _IN_WORDS and _applies(section, name, plan)
        ]
    return rows


def _applies(section: str, name: str, plan: Plan) -> bool:
    """Whether a setting plays a part: a list of idle ones would only confuse."""
    idle = {
        "generator.kind",  # has a row of its own
        "loss.generated",
        "loss.generated_per_class",
        *({"loss.l1_weight"} if plan.recipe.loss.cost != "l1l2" else ()),
        *(f"generator.{name}" for name in vars(plan.generator_config.variation)),
        *plan.kind.unused_settings,
    }
    return not idle & {section, f"{section}.{name}"}


def labels_in_words(found: Findings) -> str:
    """How often each class is drawn, and who set that."""
    source = None if found.plan is None else found.plan.label_source
    return LABEL_SOURCES.get(source or "", "none" if found.release is None else found.release.labels_in_words)


def value_in_words(value: Any) -> str:
    """A setting as text.

    >>> value_in_words({"warp": 0.5, "sizes": [1, 2]})
    'warp 0.5, sizes 1, 2'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_in_words(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(value_in_words(item) for item in value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return str(value)
