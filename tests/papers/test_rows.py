"""What is trained for each line of the papers' tables."""

from __future__ import annotations

import pytest

from dpsinkhorn.generators import DCGANConfig
from dpsinkhorn.papers import (
    FULL,
    ITEMS,
    NOT_A_GUARANTEE,
    QUICK,
    VERSIONS,
    Line,
    ReproductionError,
    rows_of,
    to_tables,
)
from dpsinkhorn.papers.rows import published_figures
from dpsinkhorn.training import load_recipe, recipe_names

EVERY = [pytest.param(item, version, id=f"{item}-{version}") for item in ITEMS for version in VERSIONS]


@pytest.mark.parametrize(("item", "version"), EVERY)
def test_every_row_has_a_recipe_that_takes_its_settings(item: str, version: str):
    rows = rows_of(item, version)
    assert rows
    for row in rows:
        if row.kind == "train" and row.recipe:
            assert row.recipe in recipe_names()
            assert row.recipe.startswith(f"paper-{version}-")
            load_recipe(row.recipe).replace(**row.settings)


@pytest.mark.parametrize(("item", "version"), [pair for pair in EVERY if "table" in pair.id])
def test_tables_have_the_rows_of_the_paper_in_its_order(item: str, version: str):
    rows = [row for row in rows_of(item, version) if row.published is not None]
    assert [row.published for row in rows] == list(published_figures(item, version))


def settings_of(item: str, version: str, method: str) -> dict[str, object]:
    (row,) = [row for row in rows_of(item, version) if row.method == method and row.data != "fashion-mnist"]
    recipe = load_recipe(row.recipe).replace(**row.settings)
    privacy, loss = recipe.privacy, recipe.loss
    return {
        "mechanism": privacy.mechanism,
        "noise": privacy.noise_multiplier,
        "clip": privacy.clip,
        "cost": loss.cost,
        "m": loss.l1_weight,
        "p": loss.debias,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dcgan_for_faces_is_that_of_the_recipes(version: str):
    (row,) = [row for row in rows_of("table6", version) if row.generator]
    of_recipe = load_recipe(f"paper-{version}-mnist").generator
    assert DCGANConfig((3, 32, 32), 2, **_settings(row.generator, latent=32)) == DCGANConfig(
        (3, 32, 32), 2, **_settings(of_recipe, latent=32)
    )


def _settings(generator, **changes):
    return {name: value for name, value in {**generator, **changes}.items() if name != "kind"}


def test_the_search_of_the_first_version_varies_p_and_m():
    found = settings_of("table4", "first", "p = 0.5, m = 0.3")
    assert found == {"mechanism": "batch", "noise": 1.1, "clip": 0.5, "cost": "l1l2", "m": 0.3, "p": 0.5}


def test_the_search_of_the_final_version_varies_noise_and_clip_too():
    found = settings_of("table4", "final", "noise 1.9, clip 0.7, p = 0.2, m = 1")
    assert found == {"mechanism": "image", "noise": 1.9, "clip": 0.7, "cost": "l1l2", "m": 1.0, "p": 0.2}


@pytest.mark.parametrize(("version", "mechanism", "semi"), [("first", "batch", 0.2), ("final", "image", 0.4)])
def test_the_ablation(version: str, mechanism: str, semi: float):
    methods = [row.method for row in rows_of("table2", version)]
    found = [settings_of("table2", version, method) for method in methods]
    assert [row["mechanism"] for row in found] == ["parameter"] + [mechanism] * 5
    costs = ["sqeuclidean", "sqeuclidean", "cityblock", "l1l2", "l1l2", "l1l2"]
    assert [row["cost"] for row in found] == costs
    assert [row["p"] for row in found] == [0.0, 0.0, 0.0, 0.0, 1.0, semi]
    assert [row["clip"] for row in found] == [1.0] + [0.5] * 5


def test_real_data_and_other_methods_are_not_trained():
    kinds = {row.method: row.kind for row in rows_of("table1", "final")}
    assert kinds["real data"] == "real"
    assert {name for name, kind in kinds.items() if kind == "quoted"} == {
        "G-PATE", "DP-CGAN", "DataLens", "DP-MERF", "GS-WGAN",
    }  # fmt: skip


@pytest.mark.parametrize("name", recipe_names())
def test_full_scale_changes_nothing(name: str):
    assert FULL.apply(load_recipe(name)) == load_recipe(name)


def test_quick_scale_is_small():
    small = QUICK.apply(load_recipe("paper-final-mnist-nonprivate"))
    assert (small.privacy.steps, small.privacy.batch, small.loss.generated) == (40, 50, 50)
    assert small.loss.regularization == 0.05


@pytest.mark.parametrize(("item", "version"), [("table9", "final"), ("table1", "second")])
def test_what_does_not_exist_is_refused(item: str, version: str):
    with pytest.raises(ReproductionError, match="one of"):
        rows_of(item, version)


@pytest.mark.parametrize(("version", "noted"), [("final", True), ("first", False)])
def test_an_epsilon_that_does_not_hold_is_marked(version, noted):
    """That of `image`, and of nobody else."""
    lines = [Line(row, "", ()) for row in rows_of("table1", version)]
    for line in lines:
        is_theirs = line.row.method.startswith("DP-Sinkhorn") and line.row.published is not None
        assert (line.published_note == NOT_A_GUARANTEE) == (noted and is_theirs), line.row.method
        assert line.values()["epsilon_published_note"] == line.published_note
    marked = sum("†" in str(cell) for table in to_tables(lines) for cell in table.columns[2].cells)
    assert marked == sum(line.published_note is not None for line in lines)
    assert (marked > 0) == noted


def test_parameter_gradients_of_the_final_version_are_not_marked():
    notes = {row.method: Line(row, "", ()).published_note for row in rows_of("table2", "final")}
    for method, note in notes.items():
        assert (note is None) == method.startswith("parameter gradients"), method
