"""The same statement in the words of others: NIST's questions, and the fields of the deployments registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dpsinkhorn import __version__
from dpsinkhorn.errors import ReportError
from dpsinkhorn.privacy.words import PUBLIC_FACTS, format_epsilon
from dpsinkhorn.release import TRUST
from dpsinkhorn.report.gather import Findings
from dpsinkhorn.report.guarantee import decimal
from dpsinkhorn.report.settings import data_rows, labels_in_words, mechanism_in_words

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
    """Answer what NIST SP 800-226 looks at, from the top of its pyramid to the bottom."""
    top, middle, bottom = "The guarantee", "The algorithm", "The deployment"
    return [
        *(Point(top, *point) for point in _of_the_guarantee(found)),
        *(Point(middle, *point) for point in _of_the_algorithm(found)),
        *(Point(bottom, *point) for point in _of_the_deployment(found)),
    ]


def _of_the_guarantee(found: Findings) -> Iterator[tuple[str, str, str]]:
    privacy = found.privacy
    yield (
        "Privacy parameter ε",
        f"ε = {format_epsilon(privacy.epsilon)}, rounded up.",
        "Why this is small enough for these data.",
    )
    variant = "pure" if privacy.delta == 0 else "approximate, (ε, δ)"
    text = f"Differential privacy, {variant}, δ = {decimal(privacy.delta)}, by the accountant "
    text += f"{privacy.accountant}."
    if found.plan is not None and privacy.delta:
        units = found.plan.facts.units
        side = "above" if privacy.delta > units**-2 else "not above"
        text += (
            f" NIST SP 800-226 advises at most 1/n²; for n = {units:,} that is {units**-2:.1g}, and "
            f"δ is {side} it."
        )
    yield "Variant, and δ", text, "Why this δ, if it is above 1/n²."
    change = (
        "added or removed (unbounded)" if privacy.adjacency == "add-or-remove-one" else "replaced (bounded)"
    )
    if privacy.unit == "person":
        text = f"A person with all of their records, {change}; their contribution is clipped as a whole."
        missing = "That a name or number in the data stands for one person, and each person has one."
    else:
        text = f"A record, {change}: event level where a person has several."
        missing = "How many records a person has at most."
    yield "Unit of privacy, and bounded contributions", text, missing
    text = "Whatever else was on the ledger when the release was made is counted in ε."
    if found.ledger is not None and found.ledger.later is not None:
        text += " More was spent since: see the top of this page."
    yield "Other releases from the same data", text, "Releases that are on no ledger, with noise or without."


def _of_the_algorithm(found: Findings) -> Iterator[tuple[str, str, str]]:
    privacy, plan = found.privacy, found.plan
    yield "Mechanism", f"{mechanism_in_words(privacy)}. {_AFTERWARDS}", ""
    text = (
        f"By clipping, before anything is summed; what one {privacy.unit} can change is bounded by that alone"
    )
    if plan is not None:
        text += (
            f" (bound {plan.recipe.privacy.clip:g}, noise {plan.noise_multiplier:.6g} times the sensitivity)"
        )
    yield "Sensitivity", f"{text}.", ""
    text = (
        "A public library with a proof and three kinds of tests for each claim; ε can be computed again by "
        "another one (see How to verify). An audit can show that a claim is wrong, never that it is right."
    )
    yield (
        "Correctness, and audits",
        text,
        "Who reviewed it, and what an audit (dpsinkhorn audit) found, if it was run.",
    )
    text = "Figures computed from private data are not private: this page has them only of public data."
    yield "Utility", text, "How well the images serve the purpose, by class."
    text = (
        "Noise hides small groups first: classes with few records are drawn worst, and rare looks get lost."
    )
    if found.release is not None and found.release.classes:
        text += f" Synthetic labels: {labels_in_words(found)}."
    yield "Bias", text, "Groups that may be served worse, and what follows for the use."


def _of_the_deployment(found: Findings) -> Iterator[tuple[str, str, str]]:
    about = found.about
    yield "Query model", "One release of a generator; nobody queries the data.", ""
    yield "Trust model", f"Central. {TRUST}", "Who trained it, and on whose machine."
    yield "Floating point", f"{_EXACT} Drawn from: {found.privacy.noise}", ""
    yield "Timing and other side channels", _SIDES, "Who could watch the machine while it trained."
    text = (
        "Settings follow from public facts, or were stated; what was tried on the data before is not counted."
    )
    yield "Tuning", text, "Whether other settings were tried on these data, on which ledger."
    text = "Not a matter of the release: whoever holds records or run folder holds more than ε allows."
    yield "Data security and access", text, "Who can reach them, how they are kept, when they are deleted."
    said = [f"Purpose: {about.purpose}." if about.purpose else ""]
    said += [f"Legal basis: {about.legal_basis}." if about.legal_basis else ""]
    text = " ".join(filter(None, said)) or "Not stated."
    yield "Data collection exposure", text, "Why the data were collected, and that less would not do."


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
        "privacy_unit_details": words["Unit of privacy, and bounded contributions"],
        "privacy_parameters": {"epsilon": privacy.epsilon, "delta": privacy.delta},
        "privacy_parameters_details": words["Variant, and δ"],
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
                "release_type_details": words["Other releases from the same data"],
                "data_source_type": "",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "",
                "mechanisms": f"{words['Mechanism']} {words['Sensitivity']} {words['Floating point']} "
                f"{_SIDES} Library: dpsinkhorn {found.trained_with or __version__}.",
                "composition": f"All charges together, by the accountant {privacy.accountant}.",
                "post_processing": _AFTERWARDS,
                "justification": "",
                "utility": "",
            },
            "administrative": {"status": "Draft", "registry_authors": [""], "tier": 3},
        },
    }
