"""What each table and figure consists of: one row per training, with the papers' settings and own figures.

From T. Cao, A. Bie, A. Vahdat, S. Fidler, K. Kreis, "Don't Generate Me: Training Differentially Private
Generative Models with Sinkhorn Divergence", 2021: its `first` version (tables 1 to 6, with the appendix)
and its `final` one. Those of other methods are as quoted there.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from dpsinkhorn.errors import ReproductionError

Version = Literal["first", "final"]
VERSIONS: tuple[Version, ...] = ("first", "final")
ITEMS = (
    "table1", "table2", "table3", "table4", "table5", "table6",
    "fig2", "fig4a", "fig4b", "fig4c", "fig5",
)  # fmt: skip

OURS = "DP-Sinkhorn by record"
_SHORT = {"mnist": "mnist", "fashion-mnist": "fashion", "celeba": "celeba"}
_L1_WEIGHT = {"mnist": 1.0, "fashion-mnist": 3.0}  # the papers' m
_TABLE_OF = {"mnist": "table4", "fashion-mnist": "table5"}  # of p and m
_DCGAN = {
    "kind": "dcgan",
    "batch_norm": True,
    "activation": "leaky_relu",
    "embedding": 8,
}  # as in the recipes
_DEBIAS = {"first": 0.2, "final": 0.4}  # the papers' p
# Not given as numbers in the papers, whose figures show about these ranges.
_RATES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_PARTS_OF_EPSILON = (0.1, 0.233, 0.5, 1.0)
_DEBIAS_SWEEP = (0.0, 0.1, 0.2, 0.4, 0.5, 1.0)


@dataclass(frozen=True)
class Published:
    """A row of one of the papers' tables. ε is what the paper says, which for the final version is no
    guarantee."""

    data: str
    method: str
    epsilon: float
    fid: float | None
    logistic: float | None
    mlp: float | None
    cnn: float | None


@cache
def published_figures(item: str, version: str) -> tuple[Published, ...]:
    """Return the rows of a table, in the order of the paper; none for a figure, whose numbers are not given.

    >>> [row.cnn for row in published_figures("table1", "final") if row.method == "real data"]
    [99.3, 90.8]
    """
    with (resources.files("dpsinkhorn.papers") / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["item"], row["version"]) == (item, version)]
    return tuple(
        Published(
            row["data"],
            row["method"],
            float(row["epsilon"]),
            *(float(row[name]) if row[name] else None for name in ("fid", "logistic", "mlp", "cnn")),
        )
        for row in rows
    )


@dataclass(frozen=True)
class Row:
    """One line of a table, or point of a figure."""

    method: str
    data: str
    kind: Literal["train", "real", "quoted"] = "train"
    """`real`: real images in the place of synthetic ones; `quoted`: another method, as published."""
    recipe: str = ""
    """Its name; none: the default for images of that shape."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes to the recipe, by section."""
    generator: Mapping[str, Any] | None = None  # another generator altogether
    part: float = 1.0  # part of the recipe's ε at which the training ends
    series: str = ""
    """The line of a figure that the point is on, and where along it."""
    at: float = 0.0
    published: Published | None = None


def rows_of(item: str, version: str) -> list[Row]:
    """Return the rows of a table or figure in the paper's first or final version.

    >>> [row.method for row in rows_of("table6", "final")]
    ['real data', 'DP-Sinkhorn, DCGAN', 'DP-Sinkhorn, BigGAN']
    """
    if item not in ITEMS:
        raise ReproductionError(f"choose one of {', '.join(ITEMS)}, not {item}")
    if version not in VERSIONS:
        raise ReproductionError(f"the version is one of {', '.join(VERSIONS)}, not {version}")
    if item.startswith("table"):
        rows = [_row_of_table(item, version, figures) for figures in published_figures(item, version)]
        if item == "table1":
            rows += [_within_classes(row) for row in rows if row.method.startswith("DP-Sinkhorn")]
        if item in ("table1", "table3"):
            rows += [Row(OURS, data) for data in dict.fromkeys(row.data for row in rows)]
        return rows
    if item == "fig5":
        return _debias_sweep(version)
    return {"fig2": _samples, "fig4a": _rates, "fig4b": _budgets, "fig4c": _generators}[item](version)


# ---- tables: the method's name says what is trained


def _row_of_table(item: str, version: str, figures: Published) -> Row:
    data, method = figures.data, figures.method
    row = Row(method, data, published=figures)
    if method == "real data":
        return replace(row, kind="real")
    if item == "table2":
        return replace(_ablation(version, method), published=figures)
    if item in ("table4", "table5"):
        return replace(_searched(version, data, method), published=figures)
    recipe = f"paper-{version}-{_SHORT[data]}"
    if method.startswith("non-private Sinkhorn"):
        return replace(row, recipe=f"{recipe}-nonprivate", settings=_mixed(method))
    if method.startswith("DP-Sinkhorn"):
        dcgan = {**_DCGAN, "latent": 32} if method.endswith("DCGAN") else None
        return replace(row, recipe=recipe, settings=_mixed(method), generator=dcgan)
    return replace(row, kind="quoted")


def _within_classes(row: Row) -> Row:
    """Return the paper's own row with the better teacher: plans that keep to classes, and converge."""
    loss = {**row.settings.get("loss", {}), "marginals": "classes", "iterations": None}
    return replace(
        row, method=f"{row.method}, within classes", settings={**row.settings, "loss": loss}, published=None
    )


def _mixed(method: str) -> dict[str, dict[str, Any]]:
    """Return the cost that "m = 3" in a name stands for; no m, no change."""
    found = re.search(r"\bm = ([0-9.]+)", method)
    return {} if found is None else {"loss": {"cost": "l1l2", "l1_weight": float(found[1])}}


def _ablation(version: str, method: str) -> Row:
    where, cost, debiasing = method.split(", ")
    costs: dict[str, dict[str, Any]] = {"L2": {"cost": "sqeuclidean"}, "L1": {"cost": "cityblock"}}
    chosen = costs.get(cost, {"cost": "l1l2", "l1_weight": 1.0})
    debias = {"biased": 0.0, "debiased": 1.0, "semi-debiased": _DEBIAS[version]}[debiasing]
    settings: dict[str, dict[str, Any]] = {"loss": {**chosen, "debias": debias}}
    if where == "parameter gradients":
        settings["privacy"] = {"mechanism": "parameter", "clip": 1.0}
    return _of_paper(version, method, settings=settings)


def _searched(version: str, data: str, method: str) -> Row:
    numbers = {name: float(value) for name, value in re.findall(r"(\w+)(?: =)? ([0-9.]+)", method)}
    settings: dict[str, dict[str, Any]] = _mixed(method)
    settings["loss"]["debias"] = numbers["p"]
    if "noise" in numbers:
        settings["privacy"] = {"noise_multiplier": numbers["noise"], "clip": numbers["clip"]}
    return _of_paper(version, method, data, settings=settings)


def _of_paper(version: str, method: str, data: str = "mnist", **options: Any) -> Row:
    """Return a row that is trained by the paper's recipe for the data."""
    return Row(method, data, recipe=f"paper-{version}-{_SHORT[data]}", **options)


# ---- figures


def _samples(version: str) -> list[Row]:
    both = ("mnist", "fashion-mnist")
    return [*(_of_paper(version, "DP-Sinkhorn", data) for data in both), *(Row(OURS, data) for data in both)]


def _rates(version: str) -> list[Row]:
    return [
        _of_paper(
            version,
            f"{algorithm.upper()}, learning rate {rate:g}",
            settings={"optimizer": {"algorithm": algorithm, "learning_rate": rate}},
            series={"adam": "Adam", "sgd": "SGD"}[algorithm],
            at=rate,
        )
        for algorithm in ("adam", "sgd")
        for rate in _RATES
    ]


def _budgets(version: str) -> list[Row]:
    weights = (1.0, 3.0) if version == "first" else (1.0,)
    papers = [
        _of_paper(
            version,
            f"DP-Sinkhorn, m = {weight:g}, {part:.3g} of epsilon",
            settings={"loss": {"l1_weight": weight}},
            part=part,
            series=f"DP-Sinkhorn, m = {weight:g}",
            at=part,
        )
        for weight in weights
        for part in _PARTS_OF_EPSILON
    ]
    ours = [
        Row(f"{OURS}, {part:.3g} of epsilon", "mnist", part=part, series=OURS, at=part)
        for part in _PARTS_OF_EPSILON
    ]
    return [*papers, *ours]


def _generators(version: str) -> list[Row]:
    return [
        _of_paper(
            version,
            f"trained with p = {debias:g}",
            settings={"loss": {"debias": debias}},
            series=f"trained with p = {debias:g}",
            at=debias,
        )
        for debias in (0.0, _DEBIAS[version], 1.0)
    ]


def _debias_sweep(version: str) -> list[Row]:
    rows: list[Row] = []
    for data in ("mnist", "fashion-mnist"):
        weight = 1.0 if version == "first" else _L1_WEIGHT[data]  # of the tables that the figure shows
        quoted = {row.method: row for row in published_figures(_TABLE_OF[data], version)}
        rows += [
            _of_paper(
                version,
                f"p = {debias:g}, m = {weight:g}",
                data,
                settings={"loss": {"cost": "l1l2", "l1_weight": weight, "debias": debias}},
                series=data,
                at=debias,
                published=quoted.get(f"p = {debias:g}, m = {weight:g}"),
            )
            for debias in _DEBIAS_SWEEP
        ]
    return rows
