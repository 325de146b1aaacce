"""An evaluation, as `dpsinkhorn evaluate --output` wrote it, for a page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsinkhorn.data import KNOWN
from dpsinkhorn.release import Release
from dpsinkhorn.report.gather import ReportError
from dpsinkhorn.report.pictures import class_title

__all__ = ["EvaluationTables", "evaluation_tables", "read_evaluation"]

_SHOWN = 20  # classes, the worst served first if there are more
_CLASSIFIERS = {
    "logistic": "logistic regression",
    "mlp": "MLP, one hidden layer",
    "cnn": "CNN",
}


@dataclass(frozen=True)
class EvaluationTables:
    """Figures as text."""

    data: str
    count: str
    scores: tuple[tuple[str, str, str, str], ...]
    """Classifier, accuracy, spread, worst class."""
    classifiers: tuple[str, ...]
    per_class: tuple[tuple[str, tuple[str, ...]], ...]
    left_out: int
    """Classes that are served better than those shown."""
    measures: tuple[tuple[str, str, str], ...]
    """Measure, synthetic, real."""
    floor_from: str
    summary: str
    """What the last classifier makes of it, class by class, in a sentence."""
    trained_on: bool
    """Whether the real images are known to be those of the training; nothing is known where it is false."""


def read_evaluation(path: Path, release: Release) -> dict[str, Any]:
    """The JSON of an evaluation of this very release."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"the evaluation {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not the JSON that `dpsinkhorn evaluate --output` writes") from error
    privacy = release.privacy
    expected = {
        "title": release.title,
        "epsilon": privacy.epsilon if math.isfinite(privacy.epsilon) else None,
        "delta": privacy.delta,
    }
    if not isinstance(found, dict) or not {"likeness", "utility", *expected} <= found.keys():
        raise ReportError(f"{path} is not the JSON that `dpsinkhorn evaluate --output` writes")
    for name, value in expected.items():
        if found[name] != value:
            raise ReportError(
                f"{path} is of another release: its {name} is {found[name]}, here it is {value}"
            )
    return found


def evaluation_tables(found: dict[str, Any], class_names: Sequence[str], *, public: bool) -> EvaluationTables:
    """Figures as text. On a page that may be shown, names of files and of private labels stay out."""
    try:
        utility, likeness = found["utility"], found["likeness"]
        scores = [] if utility is None else utility["classifiers"]
        names = class_names if public or class_names else tuple(str(name) for name in found["class_names"])
        data = str(found["data"])
        if public and data not in KNOWN:
            data = "data that the curator states to be public"
        ranked = _ranked(scores)
        return EvaluationTables(
            data,
            f"{int(found['count']):,}",
            tuple(_score(score, names) for score in scores),
            tuple(str(score["name"]) for score in scores),
            tuple(
                (class_title(k, names), tuple(_percent(score["per_class"][k]) for score in scores))
                for k in ranked[:_SHOWN]
            ),
            max(0, len(ranked) - _SHOWN),
            (
                (
                    f"{likeness['name']} (low is good)",
                    _distance(likeness["frechet"]),
                    _distance(likeness["floor"]),
                ),
                ("precision", _three(likeness["precision"]), _three(likeness["real_precision"])),
                ("recall", _three(likeness["recall"]), _three(likeness["real_recall"])),
            ),
            str(likeness["floor_from"]),
            _summary(scores, names),
            found.get("trained_on") is True,
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ReportError(
            f"the evaluation lacks something, or holds what it should not: {error!r}"
        ) from error


def _summary(scores: Sequence[Any], names: Sequence[str]) -> str:
    if not scores:
        return "No classifier was tried on them."
    tested = {k: float(right) for k, right in enumerate(scores[-1]["per_class"]) if right is not None}
    worst, best = min(tested, key=lambda k: tested[k]), max(tested, key=lambda k: tested[k])
    return (
        f"Trained on generated images alone, the last classifier below ({_score(scores[-1], names)[0]}) "
        "names "
        f"{_percent(scores[-1]['mean'])} % of real images rightly: from {_percent(tested[worst])} % of class "
        f"{class_title(worst, names)} to {_percent(tested[best])} % of class {class_title(best, names)}."
    )


def _ranked(scores: Sequence[Any]) -> list[int]:
    """Classes that were tested; in order, or from the worst served on if they are too many."""
    if not scores:
        return []
    last = scores[-1]["per_class"]
    present = [k for k, value in enumerate(last) if value is not None]
    return present if len(present) <= _SHOWN else sorted(present, key=lambda k: float(last[k]))


def _score(score: Any, names: Sequence[str]) -> tuple[str, str, str, str]:
    worst = int(score["worst_class"])
    spread = "" if score["spread"] is None else f"± {float(score['spread']):.1f}"
    return (
        _CLASSIFIERS.get(str(score["name"]), str(score["name"])),
        _percent(score["mean"]),
        spread,
        f"{_percent(score['worst_class_accuracy'])} ({class_title(worst, names)})",
    )


def _percent(value: Any) -> str:
    return f"{float(value):.1f}"


def _distance(value: Any) -> str:
    """Three significant digits: distances of small images are far below one.

    >>> _distance(0.0123), _distance(0.00412), _distance(7.5), _distance(1234.5), _distance(0)
    ('0.0123', '0.00412', '7.50', '1,234', '0')
    """
    number = float(value)
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    return f"{number:,.0f}" if abs(number) >= 99.95 else f"{number:#.3g}"


def _three(value: Any) -> str:
    return f"{float(value):.3f}"
