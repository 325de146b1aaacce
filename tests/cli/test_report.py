"""`dpsinkhorn report`, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import shutil
from functools import partial

import numpy as np
import pytest

from dpsinkhorn import load
from dpsinkhorn.cli import main
from support.html import check_page, read_page, rows
from support.processes import Command
from support.runs import RECIPE, tiny_arrays

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = np.array(["SECRETA", "SECRETB", "SECRETC"])


def call(*arguments):
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return left.value.code or 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run from the command line on files of private labels, and its evaluation."""
    place = tmp_path_factory.mktemp("place")
    for name, seed in (("train", 0), ("test", 1)):
        images, labels, _ = tiny_arrays(records=120, seed=seed)
        np.savez(place / f"{name}-geheim.npz", images=images, labels=NAMES[labels])
    (place / "geheim.toml").write_text(RECIPE.format(steps=12))
    data = ("--data", place / "train-geheim.npz")
    recipe = ("--recipe", place / "geheim.toml", "--accountant", "rdp", "--picture-every", 4)
    assert call("train", *data, *recipe, "--out", place / "run", "--device", "cpu") == 0
    real = ("--data", place / "test-geheim.npz", "--split", "train")
    real += ("--train-data", place / "train-geheim.npz")
    quick = ("--count", 200, "--sets", 2, "--only", "logistic,forest,real,frechet,precision-recall")
    assert (
        call("evaluate", place / "run", *real, *quick, "--output", place / "e.json", "--device", "cpu") == 0
    )
    return place


@pytest.fixture
def place(trained, tmp_path):
    """A copy to work on."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def run(run):
    """Run `dpsinkhorn report ARGUMENTS`."""
    return partial(run, "report")


def undated(path):
    """A page but for its date: tests may run at midnight."""
    page, found = re.subn(rb"<dd>\d{4}-\d\d-\d\d</dd>", b"", path.read_bytes())
    assert found == 1
    return page


def page_of(path):
    page = read_page(path.read_bytes())
    check_page(page)
    return page


def test_train_writes_it(place):
    page = page_of(place / "run" / "report.html")
    assert page.one("h1").text
    for word in ("geheim", "SECRET", str(place)):
        assert word not in (place / "run" / "report.html").read_text()


def test_and_the_command_writes_the_same(run, place):
    before = undated(place / "run" / "report.html")
    (place / "run" / "report.html").unlink()
    status, out, err = run(place / "run")
    assert (status, err) == (0, "")
    assert f"Report   {place}/run/report.html" in out
    assert "Ready to be shown, if those responsible agree: ε = " in out
    assert undated(place / "run" / "report.html") == before
    assert not (place / "run" / "report-CURATOR-ONLY.html").exists()


def test_an_evaluation_stays_with_the_curator(run, place):
    plain = undated(place / "run" / "report.html")
    status, out, _ = run(place / "run", "--evaluation", place / "e.json")
    assert status == 0
    assert "NOT private: it must not leave" in out
    assert undated(place / "run" / "report.html") == plain
    page = page_of(place / "run" / "report-CURATOR-ONLY.html")
    found = json.loads((place / "e.json").read_text())
    scores = found["utility"]["classifiers"]
    beside = found["real"]["classifiers"]
    table = rows(page, "Classifiers trained")
    assert [row[0] for row in table] == ["classifier", "logistic regression", "random forest"]
    both = scores[1], beside[1]
    assert table[2][1] == " / ".join(f"{score['mean']:.1f} ± {score['spread']:.1f}" for score in both)
    assert table[2][3] == " / ".join(f"{one['roc_auc']:.3f} ± {one['roc_auc_spread']:.3f}" for one in both)
    assert rows(page, "Per cent of each class")[1] == [
        "0: SECRETA",
        str(found["utility"]["tested_by_class"][0]),
        *(
            f"{one['per_class'][0]:.1f} / {two['per_class'][0]:.1f}"
            for one, two in zip(scores, beside, strict=True)
        ),
    ]
    assert "Protocol quick: short trainings" in page.text
    assert "2 sets of 200 images were drawn from the generator, plain" in page.text
    shown = [float(text.replace(",", "")) for text in rows(page, "How like real")[1][1:]]
    assert shown == pytest.approx([found["likeness"][name] for name in ("frechet", "floor")], rel=5.1e-3)
    assert "not trained on" not in page.text, "no evaluation can prove that"
    assert "it was trained on" not in page.text
    assert "Must not leave" in page.text
    assert str(place) not in page.text


def test_unless_its_data_are_public(run, place):
    status, out, _ = run(place / "run", "--evaluation", place / "e.json", "--public-evaluation")
    assert status == 0
    assert "Curator" not in out
    page = page_of(place / "run" / "report.html")
    section = page.one("section", id="evaluation")
    assert "curator states that the real images used here are public" in section.text
    found = json.loads((place / "e.json").read_text())
    scores = found["utility"]["classifiers"]
    # of the training images nobody has said that they are public: what they had a part in stays out
    assert rows(page, "Classifiers trained")[1][1] == f"{scores[0]['mean']:.1f} ± {scores[0]['spread']:.1f}"
    assert found["likeness"]["floor_from"].startswith("120 training images")
    assert "How like real" not in page.text
    assert "training images" not in section.text
    right = [value for value in scores[-1]["per_class"] if value is not None]
    assert f"names {scores[-1]['mean']:.1f} % of real images rightly: from {min(right):.1f} %" in section.text
    assert f"to {max(right):.1f} % of class" in section.text
    for word in ("geheim", "SECRET", str(place)):
        assert word not in page.text
    # it does not stay there by itself
    assert run(place / "run")[0] == 0
    section = page_of(place / "run" / "report.html").one("section", id="evaluation")
    assert not section.all("table")
    assert "they stay with the curator" in section.text


def test_all_of_it_where_they_are_known_by_name(run, place):
    found = json.loads((place / "e.json").read_text()) | {"data": "digits", "public": True}
    (place / "e.json").write_text(json.dumps(found))
    assert run(place / "run", "--evaluation", place / "e.json", "--public-evaluation")[0] == 0
    page = page_of(place / "run" / "report.html")
    assert " / " in rows(page, "Classifiers trained")[1][1]
    assert len(rows(page, "How like real")) == 4


@pytest.mark.parametrize("value", [1.2345e-2, 4.1e-3, 0.0, 7.5, 99.97, 1234.5])
def test_small_distances_have_digits(run, place, value):
    found = json.loads((place / "e.json").read_text())
    found["likeness"] |= {"frechet": value, "floor": value / 3}
    (place / "e.json").write_text(json.dumps(found))
    assert run(place / "run", "--evaluation", place / "e.json")[0] == 0
    table = rows(page_of(place / "run" / "report-CURATOR-ONLY.html"), "How like real")
    shown = [float(text.replace(",", "")) for text in table[1][1:]]
    assert shown == pytest.approx([value, value / 3], rel=5.1e-3)


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_an_evaluation_on_the_images_of_the_training(run, place, public, known):
    """Said loudly to the curator, where the evaluation knows it; the other is never claimed.

    A page that may be shown does not say it: one private record more or less could turn it over.
    """
    found = json.loads((place / "e.json").read_text())
    (place / "e.json").write_text(json.dumps(found | {"trained_on": known}))
    options = ("--public-evaluation",) if public else ()
    assert run(place / "run", "--evaluation", place / "e.json", *options)[0] == 0
    page = page_of(place / "run" / ("report.html" if public else "report-CURATOR-ONLY.html"))
    warnings = [node.text for node in page.all("p") if node.attributes.get("class") == "warning"]
    assert (any("These are the images that it was trained on, all or most" in text for text in warnings)) == (
        known and not public
    )
    assert "was not trained on" not in page.text


def test_an_evaluation_on_public_images_of_the_training(run, place):
    """Where the training's own data are public by their name, no private record has a part in it."""
    settings = json.loads((place / "run" / "run.json").read_text())
    (place / "run" / "run.json").write_text(json.dumps(settings | {"source": {"data": "digits"}}))
    found = json.loads((place / "e.json").read_text())
    (place / "e.json").write_text(json.dumps(found | {"trained_on": True}))
    assert run(place / "run", "--evaluation", place / "e.json", "--public-evaluation")[0] == 0
    page = page_of(place / "run" / "report.html")
    assert "These are the images that it was trained on" in page.text


def test_who_answers_for_it(run, place):
    options = ("--responsible", "City Hospital", "--contact", "dpo@hospital.example")
    assert run(place / "run", *options)[0] == 0
    header = page_of(place / "run" / "report.html").one("header").text
    assert "Responsible City Hospital Contact dpo@hospital.example" in header


def test_json(run, place):
    status, out, _ = run(place / "run", "--curator-page", "--json")
    assert status == 0
    privacy = load(place / "run").privacy
    assert json.loads(out) == {
        "report": str(place / "run" / "report.html"),
        "curator_page": str(place / "run" / "report-CURATOR-ONLY.html"),
        "finished": True,
        "releasable": True,
        "epsilon": privacy.epsilon,
        "delta": 1e-5,
        "warnings": [],
    }


def test_a_ledger_that_was_not_found_is_told(run, place, tmp_path):
    """Without it later uses of the data are not counted, so that nothing is called ready."""
    shutil.copytree(place / "run", tmp_path / "run")
    for path in (tmp_path / "run").glob("ledger.jsonl*"):
        path.rename(tmp_path / path.name)
    status, out, _ = run(tmp_path / "run")
    assert status == 0
    assert "Ready to be shown" in out
    assert f"{tmp_path / 'ledger.jsonl'} holds the run's entries" in " ".join(out.split())
    for path in tmp_path.glob("ledger.jsonl*"):
        path.unlink()
    status, out, _ = run(tmp_path / "run")
    assert status == 0
    assert "Ready to be shown" not in out
    assert "Warning: The ledger of this run was not found" in out
    (warning,) = json.loads(run(tmp_path / "run", "--json")[1])["warnings"]
    assert "is not known" in warning


def test_a_release_alone(run, place):
    before = sorted((place / "run" / "release").iterdir())
    status, out, _ = run(place / "run" / "release", "--output", place / "page.html")
    assert status == 0
    assert "page.html" in out
    page_of(place / "page.html")
    assert sorted((place / "run" / "release").iterdir()) == before
    status, _, err = run(place / "run" / "release", "--output", place / "page.html")
    assert status == 2
    assert "--force" in err
    assert run(place / "run" / "release", "--output", place / "page.html", "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["PLACE/nowhere"], "no folder"),
        (["PLACE"], "neither a run nor a release"),
        (["PLACE/run/release"], "--output"),
        (["PLACE/run", "--output", "PLACE/p.txt"], ".html"),
        (["PLACE/run", "--output", "PLACE/no/p.html"], "create it first"),
        (["PLACE/run", "--output", "PLACE/run/release/p.html"], "in the release"),
        (["PLACE/run", "--evaluation", "PLACE/none.json"], "none.json"),
        (["PLACE/run", "--evaluation", "PLACE/geheim.toml"], "not the JSON"),
        (["PLACE/run", "--evaluation", "PLACE/run/run.json"], "not the JSON"),
        (["PLACE/run", "--evaluation", "PLACE/other.json"], "another release"),
        (["PLACE/run", "--evaluation", "PLACE/broken.json"], "lacks something"),
        (["PLACE/run", "--public-evaluation"], "none is given"),
        (["PLACE/run", "--responsible", ""], "--responsible must be one line"),
        (["PLACE/damaged"], "run.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(run, place, arguments, part):
    found = json.loads((place / "e.json").read_text())
    (place / "other.json").write_text(json.dumps({**found, "epsilon": 0.5}))
    (place / "broken.json").write_text(json.dumps({**found, "likeness": {}}))
    (place / "damaged").mkdir()
    (place / "damaged" / "run.json").write_text("{}")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    status, out, err = run(*(text.replace("PLACE", str(place)) for text in arguments))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert part in err
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_not_finished(run, place):
    shutil.rmtree(place / "run" / "release")
    status, out, _ = run(place / "run")
    assert status == 0
    assert "not finished" in out
    assert "Not finished" in page_of(place / "run" / "report.html").text
    status, _, err = run(place / "run", "--evaluation", place / "e.json")
    assert status == 2
    assert "no release yet" in err


def test_not_for_release(run, place, capsys):
    options = ("--data", place / "train-geheim.npz", "--recipe", place / "geheim.toml", "--accountant", "rdp")
    assert call("train", *options, "--out", place / "seeded", "--seed", 3) == 0
    assert f"Report   {place}/seeded/report.html" in capsys.readouterr().out
    status, out, _ = run(place / "seeded")
    assert status == 0
    assert "NOT FOR RELEASE" in out


class TestAReportThatCannotBeWritten:
    """The release is there all the same, and the command says so in one line."""

    def test_a_full_disk(self, place):
        sizes = [path.stat().st_size for path in (place / "run").rglob("*") if path.name != "report.html"]
        report = (place / "run" / "report.html").stat().st_size
        limit = (max(sizes) + report) // 2  # files of another run are somewhat larger or smaller
        assert limit < report
        options = ["--data", place / "train-geheim.npz", "--recipe", place / "geheim.toml"]
        options += ["--accountant", "rdp", "--picture-every", "0", "--out", place / "again"]
        status, out, err = Command(["train", *options], place, file_limit=limit).wait()
        assert status == 0, err
        assert load(place / "again").privacy.releasable
        warnings = [line for line in err.splitlines() if "report could not be written" in line]
        assert len(warnings) == 1
        assert warnings[0].startswith("dpsinkhorn: warning: the release is there")
        assert "File too large" in warnings[0]
        assert "Report" not in out
        assert not [name for name in os.listdir(place / "again") if "report" in name]

    def test_something_in_its_place(self, run, place):
        (place / "run" / "report.html").unlink()
        (place / "run" / "report.html").mkdir()
        status, out, err = run(place / "run")
        assert (status, out) == (2, "")
        assert "cannot write" in err
