"""An evaluation, as `dpsinkhorn evaluate --output` wrote it, for a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpsinkhorn.data import KNOWN
from dpsinkhorn.errors import ReportError
from dpsinkhorn.release import Release
from dpsinkhorn.report.findings import Picture, class_title, curators_picture

_SHOWN = 20  # classes, the worst served first if there are more
_CLASSIFIERS = {
    "logistic": "logistic regression",
    "forest": "random forest",
    "mlp": "MLP, one hidden layer",
    "cnn": "CNN",
    "resnet": "ResNet",
    "wide-resnet": "WideResNet",
    "resnext": "ResNeXt",
}

_MEASURES = {  # where they are in the JSON, and their decimals
    "accuracy": ("mean", "spread", 1),
    "balanced accuracy": ("balanced_accuracy", "balanced_accuracy_spread", 1),
    "AUC": ("roc_auc", "roc_auc_spread", 3),
}


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


def private_pictures(found: dict[str, Any], path: Path) -> list[tuple[str, Picture]]:
    """What `--beside` and `--neighbours` drew, where the evaluation says, or beside it: for the curator."""
    captions = {
        "beside": "Generated images on the left, real ones on the right",
        "neighbours": "Generated images, each beside the training image that is nearest to it",
    }
    shown = []
    for name, caption in captions.items():
        given = Path(str(found.get(name) or ""))
        for place in (given, path.parent / given.name):
            if place.suffix == ".png" and place.is_file():
                picture = curators_picture(place)
                shown += [] if picture is None else [(caption, picture)]
                break
    return shown


def evaluation_tables(
    found: dict[str, Any], class_names: Sequence[str], *, public: bool, learnt_public: bool = False
) -> dict[str, Any]:
    """Return figures as text. On a page that may be shown, names of files and of private labels stay out.

    So do figures that real training images had a part in, unless they are of a public data set: that the
    images to test on are public does not say that those of the training are. These are classifiers trained on
    them, and all likeness: its features are taught by them, and they are measured beside. Whether the images
    to test on were trained on is a threshold on all of the training's, which one record can pass: it is told
    where these are public by their name, `learnt_public`, or to the curator.
    """
    try:
        utility = found["utility"]
        beside, likeness = (
            found[name] if found["public"] or not public else None for name in ("real", "likeness")
        )
        scores = [] if utility is None else utility["classifiers"]
        columns = [scores] if beside is None else [scores, beside["classifiers"]]
        pairs = list(zip(*columns, strict=True))
        names = class_names if public or class_names else tuple(str(name) for name in found["class_names"])
        data = str(found["data"])
        if public and data not in KNOWN:
            data = "data that the curator states to be public"
        ranked = _ranked(scores)
        return {
            "data": data,
            "count": (f"{int(found['sets'])} sets of " if found["sets"] > 1 else "")
            + f"{int(found['count']):,}",
            "protocol": f"{found['protocol']['name']}: {found['protocol']['summary']}",
            "varied": bool(found["varied"]),  # rather than plain images
            # real images that the classifiers beside were trained on
            "real": "" if beside is None else f"{int(beside['trained_on']):,}",
            "headings": tuple(_MEASURES),
            # for each heading a figure, or two: trained on generated and on real images
            "scores": tuple(_score(pair) for pair in pairs),
            "classifiers": tuple(str(score["name"]) for score in scores),
            "per_class": tuple(
                (
                    class_title(k, names),
                    f"{int(utility['tested_by_class'][k]):,}",
                    tuple(" / ".join(f"{float(one['per_class'][k]):.1f}" for one in pair) for pair in pairs),
                )
                for k in ranked[:_SHOWN]
            ),
            "left_out": max(0, len(ranked) - _SHOWN),
            "measures": () if likeness is None else tuple(_measures(likeness)),
            "floor_from": "" if likeness is None else str(likeness["floor_from"]),
            "summary": _summary(scores, names),
            # where it is false, nothing is known
            "trained_on": found.get("trained_on") is True and (learnt_public or not public),
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ReportError(
            f"the evaluation lacks something, or holds what it should not ({error!r}); evaluate again"
        ) from error


def _measures(likeness: Any) -> Iterator[tuple[str, str, str]]:
    if likeness["frechet"] is not None:
        distances = _distance(likeness["frechet"]), _distance(likeness["floor"])
        yield (f"{likeness['name']} (low is good)", *distances)
    if likeness["precision"] is not None:
        for name in ("precision", "recall"):
            yield name, f"{float(likeness[name]):.3f}", f"{float(likeness[f'real_{name}']):.3f}"


def _summary(scores: Sequence[Any], names: Sequence[str]) -> str:
    if not scores:
        return "No classifier was tried on them."
    last = scores[-1]
    tested = {k: float(right) for k, right in enumerate(last["per_class"]) if right is not None}
    worst, best = min(tested, key=lambda k: tested[k]), max(tested, key=lambda k: tested[k])
    name = _CLASSIFIERS.get(str(last["name"]), str(last["name"]))
    return (
        f"Trained on generated images alone, the last classifier below ({name}) names {last['mean']:.1f} % "
        f"of real images rightly: from {tested[worst]:.1f} % of class {class_title(worst, names)} "
        f"to {tested[best]:.1f} % of class {class_title(best, names)}."
    )


def _ranked(scores: Sequence[Any]) -> list[int]:
    """Classes that were tested; in order, or from the worst served on if they are too many."""
    if not scores:
        return []
    last = scores[-1]["per_class"]
    present = [k for k, value in enumerate(last) if value is not None]
    return present if len(present) <= _SHOWN else sorted(present, key=lambda k: float(last[k]))


def _score(pair: Sequence[Any]) -> tuple[str, ...]:
    """A classifier's name, and its figures."""
    cells = [
        " / ".join(_number(one[name], one[spread], digits) for one in pair)
        for name, spread, digits in _MEASURES.values()
    ]
    name = str(pair[0]["name"])
    return (_CLASSIFIERS.get(name, name), *cells)


def _number(value: Any, spread: Any, digits: int) -> str:
    if value is None:
        return "-"
    return f"{float(value):.{digits}f}" + ("" if spread is None else f" ± {float(spread):.{digits}f}")


def _distance(value: Any) -> str:
    """Three significant digits: distances of small images are far below one.

    >>> _distance(0.0123), _distance(0.00412), _distance(7.5), _distance(1234.5), _distance(0)
    ('0.0123', '0.00412', '7.50', '1,234', '0')
    """
    number = float(value)
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    return f"{number:,.0f}" if abs(number) >= 99.95 else f"{number:#.3g}"
