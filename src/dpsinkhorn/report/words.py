"""The guarantee, the banner and the settings in words, for the templates of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dpsinkhorn.data import KNOWN
from dpsinkhorn.mechanisms import find_mechanism, mechanism_names
from dpsinkhorn.privacy.charges import VoteMechanism, parts_of
from dpsinkhorn.privacy.words import at_most_sure, factor_in_words, format_epsilon, one_in
from dpsinkhorn.release import LABEL_SOURCES, PrivacyStatement
from dpsinkhorn.report.findings import Findings
from dpsinkhorn.training import Plan, recipe_names

# ---- the guarantee, and what of it speaks against passing a release on


# ε as researchers read it: Ponomareva and others, How to DP-fy ML, 2023
_STRONG, _WEAK = 1, 10
_STRENGTHS = (
    (_STRONG, "strong"),
    (9, "reasonable"),
    (_WEAK, "the upper end of what is still called reasonable, at the border to weak"),
    (math.inf, "weak"),
)
_FEW = 100  # units below which noise that hides one of them hides nearly all there is to see
_BEFORE = ((0.0001, "1 in 10,000"), (0.01, "1 in 100"), (0.5, "1 in 2 (a coin flip)"))


def explain(found: Findings) -> dict[str, Any] | None:
    """Return the figures of the guarantee, as its words need them; `None` where there is none."""
    privacy = found.privacy
    if not privacy.private:
        return None
    two, three = (privacy.group_epsilon(size) for size in (2, 3))
    allowed = None if found.plan is None else 1 / found.plan.facts.units
    return {
        "epsilon": format_epsilon(privacy.epsilon),
        "delta": decimal(privacy.delta),
        "delta_in_words": one_in(privacy.delta),
        "factor": factor_in_words(privacy.epsilon),
        # odds grow by at most 2 e^ε, except with probability 2 δ: `privacy.words.at_most_sure` says why
        "twice_delta_in_words": one_in(min(1.0, 2 * privacy.delta)),
        "twice_factor": factor_in_words(privacy.epsilon + math.log(2)),
        "sure": [(words, _percent(before, privacy.epsilon)) for before, words in _BEFORE],
        "strength": next(words for most, words in _STRENGTHS if privacy.epsilon <= most),
        "almost_certain": at_most_sure(0.5, privacy.epsilon) > 0.99,
        "delta_is_large": _delta_is_large(found),
        "times_below": None if allowed is None else math.floor(allowed / privacy.delta),
        "unused": two == 0,
        "less": "much less" if two > _STRONG else "less",
        # of two and of three together; `None` where no limit is proved
        "together": [format_epsilon(value) if math.isfinite(value) else None for value in (two, three)],
    }


def _delta_is_large(found: Findings) -> bool:
    """Whether δ is at or above one divided by the number of units, where that is known."""
    return (
        found.privacy.private
        and found.plan is not None
        and found.privacy.delta * found.plan.facts.units >= 1 - 1e-9
    )


def decimal(delta: float) -> str:
    """δ without an exponent where that can be read.

    >>> decimal(1e-5), decimal(1.5e-12)
    ('0.00001', '1.5e-12')
    """
    text = f"{delta:.12f}".rstrip("0")
    return text if float(text) == delta and len(text) <= 10 else f"{delta:g}"


def _percent(before: float, epsilon: float) -> str:
    """How sure one can be afterwards, rounded up, with as many digits as it takes to stay below 100 %."""
    against = (1 - before) * math.exp(-epsilon)
    doubt = 100 * against / (before + against)  # what is left of it, in per cent
    if doubt > 0.5:
        sure = 100 * at_most_sure(before, epsilon)
        digits = max(1, 1 - math.floor(math.log10(sure)))
        return f"{math.ceil(10**digits * sure - 1e-9) / 10**digits:.{digits}f} %"
    if doubt < 1e-9:
        return "100 % (certain: no limit)"
    digits = max(2, -math.floor(math.log10(doubt)))
    left = math.floor(doubt * 10**digits) / 10**digits
    text = f"{100 - left:.{digits}f} %"
    return text if doubt > 0.01 else f"{text} (practically certain: no useful limit)"


# ---- whether a release may be passed on, as far as software can tell


class Status(NamedTuple):
    """Whether this may be passed on, in the banner at the top."""

    kind: str
    """`ready`, `draft` (wait, or think twice) or `stop`."""
    title: str
    sentences: tuple[str, ...]


def status_of(found: Findings) -> Status:
    """May it be passed on?"""
    reasons = found.privacy.objections
    if found.finished and not found.releasable and not reasons:
        reasons = ("whoever made it said so",)
    because = tuple(f"{reason[0].upper()}{reason[1:]}." for reason in reasons)
    doubts = cautions(found)
    said = [sentence for _, sentence in doubts]
    if found.plan is not None and found.privacy.private and found.plan.facts.units < _FEW:
        said.append(f"There are only {_units(found)}: expect the images to be mostly noise.")
    public = [f"The data are public ({found.data_name}): this run is a demonstration."]
    public = public if found.data_name else []
    if not found.finished:
        unfinished = (
            "Training still runs, or was interrupted: there is no release yet. The figures below are those "
            "of what was spent so far, and will grow. Make this page again when the run is done."
        )
        title = (
            "Not finished, and not for release" if because else "Not finished: nothing may be passed on yet"
        )
        return Status("stop" if because else "draft", title, (*because, unfinished, *said, *public))
    if because:
        no = "Neither the generator, nor images drawn from it, nor this page may be passed on."
        return Status("stop", "Not for release", (*because, no, *said, *public))
    decide = (
        "By its records, training kept to the limits below. Software cannot judge whether they are strict "
        "enough for these data, or whether the law allows a release: that is for the owner of the data (in a "
        "hospital the controller, with its data-protection officer)."
    )
    if doubts:
        return Status("draft", doubts[0][0], (*said, decide, *public))
    return Status("ready", "Technically ready for release; the decision is yours", (decide, *said, *public))


def cautions(found: Findings) -> tuple[tuple[str, str], ...]:
    """What speaks against passing it on although nothing forbids it: titles and sentences, worst first."""
    privacy, doubts = found.privacy, []
    if _delta_is_large(found):
        doubts.append(
            (
                "Not protected as it should be: δ is too large",
                f"δ is {decimal(privacy.delta)}, and there are {_units(found)}: a δ of one "
                f"divided by their number, or more, would allow publishing one of them picked at random, "
                "whatever ε is. Train again with a far smaller one (--delta).",
            )
        )
    if found.finished and privacy.private and privacy.epsilon > _WEAK:
        doubts.append(
            (
                "Technically ready for release, but the guarantee is weak",
                f"ε is {format_epsilon(privacy.epsilon)}: so large a privacy loss rules out little. "
                "The noise hides less than the word private suggests.",
            )
        )
    if found.ledger_missing:
        doubts.append(
            (
                "Technically ready for release, but its ledger was not found",
                "The ledger of this run was not found when this page was made. ε is what the release states; "
                "whether the same data were used again since, and what all uses cost together, is not known. "
                "Put the ledger back, or beside the run, and make this page again.",
            )
        )
    return tuple(doubts)


def _units(found: Findings) -> str:
    assert found.plan is not None
    facts = found.plan.facts
    return f"{facts.units:,} {facts.unit}s{'' if facts.size_is_public else ' (as declared)'}"


# ---- data and settings as tables: what names something of the curator's own stays out


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
