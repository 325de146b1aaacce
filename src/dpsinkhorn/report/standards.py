"""The same statement in the words of others: NIST's questions, and the fields of the deployments registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dpsinkhorn import __version__
from dpsinkhorn.errors import ReportError
from dpsinkhorn.privacy.charges import VoteMechanism
from dpsinkhorn.privacy.words import PUBLIC_FACTS, format_epsilon
from dpsinkhorn.release import TRUST
from dpsinkhorn.report.findings import Findings
from dpsinkhorn.report.words import ACCOUNTANTS, data_rows, decimal, labels_in_words, mechanism_in_words

_EXACT = (
    "Noise is drawn exactly and added in whole numbers on a public lattice; clipped sums are exact, or "
    "within a margin that is proved and counted in the noise (docs/proofs of dpsinkhorn)."
)
_AFTERWARDS = "Learning from what was noised, and drawing images, see no private data and cost nothing more."
_SIDES = (
    "Nobody but the curator runs anything on the data, so that nobody can time queries or provoke errors. "
    "What follows the clock (speed, pictures while training) stays out of release and page; memory, files "
    "and the length of the training are not protected."
)


class Point(NamedTuple):
    """A question of the publication, what the statement answers, and what the curator has to add."""

    part: str
    asked: str
    answer: str
    missing: str


def sp_800_226(found: Findings) -> list[Point]:
    """Answer what NIST SP 800-226 looks at, from the top of its pyramid to the bottom.

    Points and the numbers of sections are those of its public draft (December 2023), gone through with
    each of its privacy hazards; the final text (March 2025) has the same parts.
    """
    top, middle, bottom = "The guarantee", "The algorithm", "The deployment"
    return [
        *(Point(top, *point) for point in _of_the_guarantee(found)),
        *(Point(middle, *point) for point in _of_the_algorithm(found)),
        *(Point(bottom, *point) for point in _of_the_deployment(found)),
    ]


def _of_the_guarantee(found: Findings) -> Iterator[tuple[str, str, str]]:
    privacy = found.privacy
    text = f"ε = {format_epsilon(privacy.epsilon)}, rounded up. "
    if privacy.epsilon <= 1:
        text += "Up to 1, the publication takes the protection for strong in most cases."
    else:
        text += "Above 1, the publication says, it depends on the case whether the protection means much."
    yield "2.2 Privacy parameter ε", text, "Why this is small enough for these data."
    variant = "pure" if privacy.delta == 0 else "approximate, (ε, δ)"
    text = f"Differential privacy, {variant}, δ = {decimal(privacy.delta)}, counted by "
    text += f"{ACCOUNTANTS[privacy.accountant]}."
    if found.plan is not None and privacy.delta:
        units = found.plan.facts.units
        text += (
            f" δ has to be far below 1/n, since at 1/n one record could be published as it is: "
            f"for n = {units:,} it is {privacy.delta * units:.2g} times 1/n."
        )
    text += " The charges are in privacy.json, as is asked: ε at any other δ follows from them."
    yield "2.3 Variant, and δ", text, "Why this δ."
    change = (
        "added or removed (unbounded)" if privacy.adjacency == "add-or-remove-one" else "replaced (bounded)"
    )
    if privacy.unit == "person":
        text = (
            f"A person with all of their records, {change}: user level; what they add is clipped as a whole."
        )
        missing = "That a name or number in the data stands for one person, and each person has one; "
    else:
        text = f"A record, {change}: event level where a person has several."
        missing = "How many records a person has at most; "
    missing += "whether a picture also shows somebody who is in other pictures (3.7)."
    yield "2.4 Unit of privacy", text, missing
    yield (
        "2.5 Comparing guarantees",
        "ε compares with that of others only at the same δ and for the same unit of privacy.",
        "",
    )
    text = "Whatever else was on the ledger when the release was made is counted in ε."
    if found.ledger is not None and found.ledger.later is not None:
        text += " More was spent since: see the top of this page."
    yield (
        "2.6 Other releases from the same data",
        text,
        "Releases that are on no ledger, with noise or without.",
    )


def _of_the_algorithm(found: Findings) -> Iterator[tuple[str, str, str]]:
    privacy, plan = found.privacy, found.plan
    yield "3.1 Mechanism", f"{mechanism_in_words(privacy)}. {_AFTERWARDS}", ""
    how, bound = "clipping, before anything is summed", ""
    if plan is not None:
        bound = f"setting clip {plan.recipe.privacy.clip:g}, "  # of `moments` for images of 28 x 28
        if isinstance(plan.mechanism, VoteMechanism):
            how, bound = "counting votes, of which each part of the records has a fixed number", ""
        bound = f" ({bound}noise {plan.noise_multiplier:.6g} times the sensitivity)"
    text = f"By {how}; what one {privacy.unit} can change is bounded by that alone{bound}"
    yield "3.1 Sensitivity", f"{text}.", ""
    text = (
        "A public library with a proof and three kinds of tests for each claim; ε can be computed again by "
        "another one (see How to verify). An audit can show that a claim is wrong, never that it is right."
    )
    yield (
        "3 Correctness",
        text,
        "Who reviewed it, and what an audit (dpsinkhorn audit) found, if it was run.",
    )
    text = "Figures computed from private data are not private: this page has them only of public data."
    yield "3.2 Utility", text, "How well the images serve the purpose, by class."
    text = (
        "Noise hides small groups first: classes with few records are drawn worst, and rare looks get lost. "
        "Clipping and noise shift statistics of the images, too."
    )
    if found.release is not None and found.release.classes:
        text += f" Synthetic labels: {labels_in_words(found)}."
    missing = "Groups that may be served worse; that recipients know the images for noisy ones."
    yield "3.3 Bias: systemic, human, statistical", text, missing
    text = f"Not read off private values, or counted as public: {'; '.join(PUBLIC_FACTS)}."
    yield "3.4 Bounds and categories", text, "That each of these may be known."
    text = "Generators without differential privacy remember their data; this one saw noised values only."
    yield "3.5 and 3.6 Machine learning, synthetic data", text, ""
    text = (
        "Settings follow from public facts, or were stated; what was tried on the data before is not counted."
    )
    yield "Tuning (not in the publication)", text, "Whether others were tried on these data, on which ledger."


def _of_the_deployment(found: Findings) -> Iterator[tuple[str, str, str]]:
    about = found.about
    yield "4.1 Query model", "The data are released once, as a generator; nobody queries them.", ""
    text = f"Central: data subjects and curator are trusted, recipients are not. {TRUST}"
    yield "4.2 Threat model", text, "Who trained it, on whose machine, and that they can be trusted."
    yield "4.3 Floating point", f"{_EXACT} Drawn from: {found.privacy.noise}", ""
    yield "4.3 Timing and other side channels", _SIDES, "Who could watch the machine while it trained."
    text = "Not a matter of the release: whoever holds records or run folder holds more than ε allows."
    yield "4.4 Security and access", text, "Who can reach them, how they are kept, when they are deleted."
    said = [f"Purpose: {about.purpose}." if about.purpose else ""]
    said += [f"Legal basis: {about.legal_basis}." if about.legal_basis else ""]
    text = " ".join(filter(None, said)) or "Not stated."
    yield "4.5 Data collection exposure", text, "Why the data were collected, and that less would not do."


def registry_entry(found: Findings) -> dict[str, Any]:
    """Return a draft for the DP deployments registry, by its schema; what is empty the curator fills in.

    The fields are those of `schemas/deployments-schema.yaml` in opendp/deployments-registry-data, by which
    the registry of arXiv 2509.13509 is kept. JSON is YAML too.
    """
    privacy, about, plan = found.privacy, found.about, found.plan
    if not found.releasable:
        raise ReportError("only a finished release that may be passed on can be registered")
    words = {point.asked: point.answer for point in sp_800_226(found)}
    images = "; ".join(f"{name}: {value}" for name, value in data_rows(found)[:3])
    loss: dict[str, Any] = {
        "privacy_unit": f"{privacy.unit.capitalize()}-level",
        "privacy_unit_details": words["2.4 Unit of privacy"],
        "privacy_parameters": {"epsilon": privacy.epsilon, "delta": privacy.delta},
        "privacy_parameters_details": words["2.3 Variant, and δ"],
    }
    if plan is not None:
        loss["number_of_privacy_units"] = plan.facts.units
    return {
        "url_slug": "",
        "deployment": {
            "basic": {
                "name": about.title,
                "data_curators": [{"data_curator_name": "", "data_curator_type": ""}],
                "description": about.description,
                "intended_use": about.purpose,
                "data_product_type": "Machine learning model",
                "data_product_region": "",
                "data_product_sector": "",
                "publication_date": "",
            },
            "dp_variant": {
                "variant_name": "Approximate DP" if privacy.delta else "Pure DP",
                "data_domain": images,
                "unprotected_quantities": "; ".join(PUBLIC_FACTS),
            },
            "privacy_loss": loss,
            "deployment_model": {
                "model_name": "Central",
                "trust_assumptions": TRUST,
                "actors": about.recipients,
                "release_type": "One release",
                "release_type_details": words["2.6 Other releases from the same data"],
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": words["Tuning (not in the publication)"],
                "mechanisms": " ".join(
                    words[point] for point in ("3.1 Mechanism", "3.1 Sensitivity", "4.3 Floating point")
                )
                + f" {_SIDES} Library: dpsinkhorn {found.trained_with or __version__}.",
                "composition": f"All charges together, by {ACCOUNTANTS[privacy.accountant]}.",
                "post_processing": _AFTERWARDS,
                "justification": "",
                "utility": "",
            },
            "administrative": {"status": "Draft", "registry_authors": [""], "tier": 3},
        },
    }
