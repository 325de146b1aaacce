"""What the report says, of every kind of run."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import shlex

import numpy as np
import pytest

from dpsinkhorn import load
from dpsinkhorn.cli import main
from dpsinkhorn.data import from_arrays
from dpsinkhorn.generators import MLPConfig
from dpsinkhorn.privacy import RecordMechanism, epsilon, format_epsilon, group_epsilon, read_ledger
from dpsinkhorn.privacy.words import factor_in_words
from dpsinkhorn.release import TRUST, About, PrivacyStatement, write_release
from dpsinkhorn.report import ReportError, write_report
from dpsinkhorn.training import Request, Run, plan_for
from dpsinkhorn.training.advice import expectation
from support.html import read_page, rows
from support.releases import CONFIGS, statement, trained, write_small_release
from support.reports import DAY, about, banner, figure, page_of, printed
from support.runs import (
    DATA,
    EVERY_BLOCK,
    IMAGES,
    LABELS,
    MECHANISMS,
    finished,
    small_plan,
    tiny_data,
    tiny_plan,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished, private, unseeded run."""
    return finished(tmp_path_factory.mktemp("runs") / "run", tiny_plan(DATA, seed=None), DATA)


@pytest.fixture(scope="module")
def page(run):
    return page_of(run.folder)


def page_of_run(folder, mechanism="record", *, data=DATA, seed=None, **options):
    """The page of a finished run, unseeded unless a seed is given."""
    return page_of(finished(folder / "run", tiny_plan(data, mechanism, seed=seed, **options), data).folder)


def page_of_release(folder, **changes):
    """The page of a small release without a run."""
    write_small_release(folder / "release", **changes)
    return page_of(folder / "release", output=folder / "r.html")


def test_the_guarantee_stands_at_the_top(run, page):
    privacy = load(run.folder).privacy
    assert banner(page).attributes["class"] == "banner ready"
    first = page.one("main").all("section")[0]
    names = [node.text for node in first.all("dt")]
    values = [node.text for node in first.all("dd") if "value" in node.attributes["class"]]
    assert dict(zip(names, values, strict=True)) == {
        "Privacy loss, ε (epsilon)": format_epsilon(privacy.epsilon),
        "Added probability, δ (delta)": "0.00001",
        "What is compared (adjacency)": "Add or remove one record",
        "What is protected (unit of privacy)": "One record, not one person",
    }
    for heading in ("In plain words", "Against whom, and whom to trust", "What is not guaranteed"):
        assert heading in [node.text for node in first.all("h3")]
    assert names[0].startswith("What is protected"), "a record is said to be an image before ε speaks of it"
    assert "one image with its label" in first.text
    assert "1 in 100,000" in first.text
    # before any other section, and its title says it too
    assert page.all("h2")[0].text == "What is guaranteed"
    assert format_epsilon(privacy.epsilon) in page.one("head").one("title").text


def test_what_to_expect_stands_where_it_is_looked_for(tmp_path):
    """Public numbers say it; it is no part of what counts as public."""
    run = finished(tmp_path / "run", plan_for(DATA, Request(epsilon=10.0, anyway=True, quick=True)), DATA)
    expected = str(expectation(run.plan))
    page = page_of(run.folder)
    assert expected in page.one("section", id="evaluation").text
    assert expected in page.one("section", id="decision").text
    assert expected not in page.one("main").all("section")[0].text
    assert expected in (run.folder / "release" / "README.md").read_text()


def test_what_anyone_can_become_sure_of(run, page):
    """Bayes' rule by hand: the odds grow by e^ε."""
    spent = load(run.folder).privacy.epsilon
    table = rows(page, "How sure")
    for before, cells in zip((1e-4, 1e-2, 0.5), table[1:], strict=True):
        odds = before / (1 - before) * math.exp(spent)
        limit = 100 * odds / (1 + odds)
        assert limit <= float(cells[1].split(" %")[0]) <= limit + 0.1
        assert float(cells[1].split(" %")[0]) < 100
        assert ("no useful limit" in cells[1]) == (limit > 99.99)


def test_what_delta_adds(run, page):
    """It comes on top of what ε allows; the probability that ε is passed can be larger."""
    text, spent = page.one("main").all("section")[0].text, load(run.folder).privacy.epsilon
    assert "plus a probability of at most 1 in 100,000 (δ)" in text
    assert "The table is what ε alone allows; δ comes on top" in text
    assert (
        "except with a probability of at most 1 in 50,000 (2 δ), the odds grow by a factor of at most" in text
    )
    assert f"a factor of at most {factor_in_words(spent + math.log(2))} (2 e" in text
    for wrong in ("may not hold", "Chance of failure", "probability of 1 in 100,000", "at the very most"):
        assert wrong not in text


def test_epsilon_against_steps(run, page):
    privacy = load(run.folder).privacy
    table = [(int(steps), float(spent)) for steps, spent in rows(page, "The same in figures")[1:]]
    assert table[0] == (0, 0.0)
    assert table[-1] == (12, float(format_epsilon(privacy.epsilon)))
    for steps, spent in table[1:]:
        expected = epsilon(run.plan.mechanism.sampled(0.25, steps), 1e-5, "rdp")
        assert expected <= spent <= expected * 1.001
    drawing = page.one("svg")
    assert "budget" in drawing.text
    heights = [float(pair.split(",")[1]) for pair in drawing.one("polyline").attributes["points"].split()]
    assert heights == sorted(heights, reverse=True), "ε grows"


def test_samples_of_every_class(run, page):
    pictures = page.one("section", id="images").all("img")
    assert [picture.attributes["alt"] for picture in pictures] == [
        f"4 generated images of class {k}" for k in (0, 0, 1, 1, 2, 2)
    ]
    table = rows(page, "100 generated images")
    images, _ = load(run.folder).sample(100, 1, random_state=1)
    pairs = [(a, b) for a in range(100) for b in range(a)]
    apart = math.sqrt(np.mean([np.mean((images[a] / 255 - images[b] / 255) ** 2) for a, b in pairs]))
    assert table[2] == ["1", f"{images.mean() / 2.55:.0f} %", f"{100 * apart:.0f} %"]


def test_data_and_settings(page):
    data, privacy, training = (dict(rows(page, name)) for name in ("The data", "Privacy", "Training"))
    assert data["records"].startswith("90 ")
    assert data["images"] == "grey, 4 x 4 pixels"
    assert data["data set"].startswith("private")
    assert privacy["mechanism"].startswith("record:")
    assert (privacy["steps planned"], privacy["steps charged"]) == ("12", "12")
    assert privacy["noise multiplier (noise / sensitivity)"] == "1.5"
    assert training["optimizer: learning rate"] == "0.01"
    assert "loss: debias" not in training, "it plays no part in this mechanism"


def test_a_public_data_set_is_named(tmp_path):
    run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=None), source={"data": "digits"})
    assert run.train(DATA, saving=EVERY_BLOCK)
    page = page_of(run.folder)
    assert dict(rows(page, "The data"))["data set"].startswith("digits: handwritten")
    assert "The data are public (digits)" in banner(page).text
    assert about(page)["Data"] == "digits, a public data set, 90 records"


@pytest.mark.parametrize("mechanism", ["record", "image"])
def test_the_command_shown_gives_the_same_epsilon(tmp_path, capsys, mechanism):
    run = finished(tmp_path / "run", tiny_plan(DATA, mechanism, seed=None, accountant="pld"), DATA)
    page = page_of(run.folder)
    (command,) = [node.text for node in page.all("pre") if node.text.startswith("dpsinkhorn privacy")]
    with pytest.raises(SystemExit) as left:
        main([*shlex.split(command)[1:], "--json"])
    assert not left.value.code
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(load(run.folder).privacy.epsilon)


def test_verification(run, page):
    privacy = load(run.folder).privacy
    belongs = dict(rows(page, "What this page belongs to"))
    config = json.loads((run.folder / "release" / "config.json").read_text())
    assert belongs["SHA-256 of generator.safetensors"] == config["generator_sha256"]
    assert belongs["digest of the ledger"] == privacy.ledger_digest
    assert read_ledger(run.ledger_path).digest == privacy.ledger_digest
    assert "holds the entry that the release names" in page.one("section", id="verify").text


def test_the_snippets_print_what_they_should(run, monkeypatch, page):
    privacy = load(run.folder).privacy
    codes = ["\n".join(node.all("code")[0].children) for node in page.one("section", id="verify").all("pre")]
    monkeypatch.chdir(run.folder)
    ours, independent, ledger = (code for code in codes if "import" in code)
    assert [float(text) for text in printed(ours)] == pytest.approx([privacy.epsilon] * 2)
    assert "dpsinkhorn" not in independent
    assert float(printed(independent)[0]) == pytest.approx(privacy.epsilon, rel=0.01)
    found, total = printed(ledger)
    assert found == "True"
    assert float(total) == pytest.approx(privacy.epsilon)
    assert f"True, and {format_epsilon(privacy.epsilon, digits=6)}" in page.text
    (digest,) = [code for code in codes if code.startswith("sha256sum")]
    assert (run.folder / digest.split()[1]).exists()


def test_several_records_of_one_person(run, page):
    """The figures are those of the proved bound, not multiples of ε at a δ that nobody looked at."""
    text, privacy = page.one("main").all("section")[0].text, load(run.folder).privacy
    charge = run.plan.mechanism.sampled(0.25, 12)
    for words, size in (("two", 2), ("three", 3)):
        bound = group_epsilon(charge, 1e-5, size, "rdp")
        assert bound > size * privacy.epsilon
        assert f"{words}, ε is {format_epsilon(bound)} at the same δ" in text
    two = format_epsilon(group_epsilon(charge, 1e-5, 2, "rdp"))
    assert f"guesses which of two things it shows, is held back less: ε is {two} for that" in text
    assert "does anyone have more than one?" in text


def test_what_cannot_be_proved_is_said(tmp_path):
    """Sampled steps under replace-one, so loud that nothing certifies two of them."""
    training = RecordMechanism(1.0, 0.5).sampled(0.5, 200).to_replace_one()
    privacy = PrivacyStatement(
        epsilon=epsilon(training, 1e-5),
        delta=1e-5,
        mechanism="record",
        charges=[training],
        adjacency="replace-one",
    )
    write_release(
        tmp_path / "r", trained(CONFIGS["unconditional"]), label_probabilities=None, privacy=privacy
    )
    page = page_of(tmp_path / "r", output=tmp_path / "r.html")
    assert "with two, no limit is proved; with three, no limit is proved" in page.text
    assert "The same limit holds for any guess about what it shows" in page.text
    assert "100 % (certain: no limit)" in page.text
    assert "dp_accounting" not in page.text, "its units under replace-one are not ours"
    assert "ChaCha20" not in page.text, "nothing is known of the noise"


class TestTheTop:
    def test_who_answers_for_it(self, run):
        page = page_of(run.folder, responsible="Klinik <b>Süd</b>", contact="dpo@example.org", made=DAY)
        assert about(page) == {
            "Data": "private, not named on this page, 90 records",
            "Responsible": "Klinik <b>Süd</b>",
            "Contact": "dpo@example.org",
            "Page made": "2030-05-04",
        }
        # it does not stay there by itself
        assert set(about(page_of(run.folder))) == {"Data", "Page made"}

    def test_what_the_curator_says(self, tmp_path):
        said = About("Lungs & <hearts>", "Of one ward.", "Teaching", "dpo@example.org")
        page = page_of_release(tmp_path, about=said, value_range=(0, 4095), label_source="released")
        assert page.one("h1").text == "Lungs & <hearts>"
        assert "Lungs & <hearts>" in page.one("head").one("title").text
        assert "Of one ward." in page.one("header").text
        assert "Purpose: Teaching" in page.one("header").text
        assert about(page)["Contact"] == "dpo@example.org"
        assert dict(rows(page, "The data"))["range of the pixels"].startswith("0 to 4095")
        assert "which were released with noise; that is part of ε" in page.text
        other = page_of(tmp_path / "release", output=tmp_path / "r.html", contact="elsewhere")
        assert about(other)["Contact"] == "elsewhere"

    def test_its_date_is_today(self, run):
        before = datetime.datetime.now(datetime.timezone.utc).date()
        shown = datetime.date.fromisoformat(about(page_of(run.folder))["Page made"])
        assert before <= shown <= datetime.datetime.now(datetime.timezone.utc).date()

    @pytest.mark.parametrize("text", ["", "  ", "two\nlines", "x" * 201, "\x1b[1m"])
    def test_one_line(self, run, text):
        with pytest.raises(ReportError, match="--contact must be one line"):
            write_report(run.folder, contact=text)

    def test_of_a_release_alone(self, tmp_path):
        write_small_release(tmp_path / "release")
        assert (
            about(page_of(tmp_path / "release", output=tmp_path / "r.html"))["Data"]
            == "not named in the release"
        )

    def test_the_decision_is_not_taken(self, page):
        assert "Technically ready for release; the decision is yours" in banner(page).text
        assert "may be released" not in page.text.lower()


class TestTheDecision:
    def test_lines_to_fill_in(self, run, page):
        lines = rows(page.one("section", id="decision"), "To be filled in by hand")
        assert [line[0].split(":")[0] for line in lines] == [
            *("Decision", "Conditions", "Controller", "Data-protection officer", "Date", "Reference")
        ]
        assert all(not value for _, value in lines[1:])
        config = json.loads((run.folder / "release" / "config.json").read_text())
        assert config["generator_sha256"] in page.one("section", id="decision").text

    def test_what_is_signed(self, run):
        said = {"contact": "dpo@example.org", "legal_basis": "Art. 6 (1) a", "recipients": "students"}
        page = page_of(run.folder, responsible="City Hospital", **said)
        (caption,) = [node.text for node in page.all("caption") if "by this page of" in node.text]
        lines = dict(rows(page, caption))
        assert lines["Legal basis"] == "Art. 6 (1) a"
        assert (lines["Recipients"], lines["Contact"]) == ("students", "dpo@example.org")
        assert lines["Purpose"] == "not stated"
        assert lines["Data"].endswith("; responsible: City Hospital")
        assert f"ε = {format_epsilon(load(run.folder).privacy.epsilon)}, δ = " in lines["Guarantee"]
        assert lines["Whom to trust"] == TRUST
        with pytest.raises(ReportError, match="--legal-basis must be one line"):
            page_of(run.folder, legal_basis="two\nlines")

    def test_none_where_there_is_nothing_to_decide(self, tmp_path):
        page = page_of_release(tmp_path, releasable=False)
        assert "decision" not in [node.attributes.get("id") for node in page.all("section")]

    def test_whom_to_trust_and_whom_to_ask(self, page):
        assert "Whoever trained it is trusted with the data" in page.one("main").all("section")[0].text
        assert "they stay with the curator" in page.one("section", id="evaluation").text


def test_memory_is_not_guaranteed(page):
    assert "memory" not in dict(rows(page, "Privacy"))["noise drawn from"].lower()
    assert "provided the cipher that supplied the random noise (ChaCha20) is not broken" in page.text
    (line,) = [node.text for node in page.all("li") if node.text.startswith("Access to the machine")]
    assert "Memory" in line
    assert "any amount of computing" not in page.text


class TestNotForRelease:
    def test_seeded(self, tmp_path):
        page = page_of_run(tmp_path, seed=77123)
        assert banner(page).attributes["class"] == "banner stop"
        assert "Not for release" in banner(page).text
        assert "seed" in banner(page).text
        assert "if nobody knew the seed" in page.all("h2")[0].text
        assert page.one("head").one("title").text.startswith("NOT FOR RELEASE")
        assert "not to be used outside" in page.one("section", id="use").text
        assert "77123" not in page.text
        assert "dpsinkhorn sample" not in page.text

    def test_without_privacy(self, tmp_path):
        page = page_of_run(tmp_path, "none")
        assert banner(page).attributes["class"] == "banner stop"
        assert page.all("h2")[0].text == "Nothing is guaranteed"
        assert page.one("h1").text == "Image generator, not private"
        assert not page.all("svg")
        assert "copies of private ones" in page.text
        assert "What is guaranteed" not in page.text

    def test_where_the_curator_said_so(self, tmp_path):
        page = page_of_release(tmp_path, releasable=False)
        assert "Whoever made it said so" in banner(page).text


def test_persons(tmp_path):
    page = page_of_run(tmp_path, data=tiny_data(persons=30))
    first = page.one("main").all("section")[0].text
    for words in ("Add or remove one person", "One person", "with all of their records", "Groups of people"):
        assert words in first
    assert "Several records of one person" not in first
    assert dict(rows(page, "The data"))["persons"].startswith(f"{tiny_data(persons=30).units} ")
    settings = dict(rows(page, "Privacy"))
    assert "all of a person's records are added up, that sum is clipped" in settings["mechanism"]
    assert settings["chance of a person to be in a step's sample"] == "0.25"
    assert "each record's share" not in page.text
    assert "chance of a record" not in page.text


def test_without_labels(tmp_path):
    page = page_of_run(tmp_path, data=tiny_data(labelled=False))
    assert "A record is one image." in page.text
    assert [picture.attributes["alt"] for picture in page.all("img")] == ["20 generated images"] * 2
    assert dict(rows(page, "The data"))["classes"].startswith("none")


def test_a_declared_number_of_records(tmp_path):
    data = tiny_data(persons=30)
    run = finished(tmp_path / "run", tiny_plan(data, seed=None, records=100), data)
    page = page_of(run.folder)
    assert dict(rows(page, "The data"))["records"].startswith("100 declared")
    assert dict(rows(page, "The data"))["persons"].startswith("100 declared")
    assert "A number of persons was declared (100; it stands for that of records too)" in page.text
    assert about(page)["Data"].endswith("100 persons declared")
    assert " 90 " not in page.text
    alone = tiny_data()
    page = page_of(finished(tmp_path / "alone", tiny_plan(alone, seed=None, records=100), alone).folder)
    assert "A number of records was declared (100) and is public" in page.text
    assert "persons" not in dict(rows(page, "The data"))
    assert about(page)["Data"].endswith("100 records declared")


def test_released_labels_cost_before_the_first_step(tmp_path):
    run = finished(tmp_path / "run", tiny_plan(DATA, seed=None, labels="released", epsilon=50.0), DATA)
    page = page_of(run.folder)
    table = rows(page, "The same in figures")
    expected = epsilon(run.plan.count_mechanism.charge(), 1e-5, "rdp")
    assert float(table[1][1]) == pytest.approx(expected, rel=1e-3)
    assert "apart from these steps" in page.text
    assert not [node for node in page.all("pre") if node.text.startswith("dpsinkhorn privacy")], (
        "no one command does"
    )


@pytest.mark.parametrize("mechanism", ["image", "gs_wgan"])
def test_a_published_figure_that_is_not_valid(tmp_path, mechanism):
    options = {"steps": 40} if mechanism == "image" else {}
    run = finished(tmp_path / "run", small_plan(DATA, mechanism, seed=None, **options), DATA)
    page, privacy = page_of(run.folder), load(run.folder).privacy
    (warning,) = [node.text for node in page.all("p") if node.attributes.get("class") == "warning"]
    assert "not a valid guarantee" in warning
    assert f"For this method, {mechanism} " in " ".join(warning.split())
    assert format_epsilon(privacy.published_epsilon) in warning
    assert format_epsilon(privacy.epsilon) in warning
    assert figure(page) == format_epsilon(privacy.epsilon), "what is large is what can be proved"
    if mechanism == "image":  # an ε that rules out little is no green light
        assert privacy.epsilon > 10
        assert banner(page).attributes["class"] == "banner draft"
        assert "weak" in banner(page).text


def test_too_large_a_delta(tmp_path):
    plan = dataclasses.replace(tiny_plan(DATA, seed=None), delta=0.02)
    page = page_of(finished(tmp_path / "run", plan, DATA).folder)
    (warning,) = [node.text for node in page.all("p") if node.attributes.get("class") == "warning"]
    assert "1 in 50" in warning
    assert "too much: there are 90 records" in warning


class TestNotFinished:
    def test_before_the_first_step(self, tmp_path):
        run = Run.create(tmp_path / "run", tiny_plan(tiny_data(), seed=None))
        page = page_of(run.folder)
        assert banner(page).attributes["class"] == "banner draft"
        assert figure(page).startswith("0 of ")
        assert not page.all("svg", "img")
        assert [cells[1] for cells in rows(page, "How sure")[1:]] == ["0.010 %", "1.0 %", "50.0 %"]
        assert "less: " not in page.text, "than what?"

    @pytest.mark.parametrize(("seed", "kind"), [(None, "draft"), (5, "stop")])
    def test_interrupted(self, tmp_path, seed, kind):
        run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=seed, steps=60))
        assert not run.train(DATA, saving=EVERY_BLOCK, watch=lambda now: now.block.step >= 11)
        page = page_of(run.folder)
        assert banner(page).attributes["class"] == f"banner {kind}"
        assert "not finished" in banner(page).text.lower()
        spent = epsilon(read_ledger(run.ledger_path).total(), 1e-5, "rdp")
        assert figure(page).startswith(f"{format_epsilon(spent)} of ")
        assert "so far" in page.all("h2")[0].text or seed is not None
        assert "--resume" in page.one("section", id="use").text
        assert not page.all("img")
        # and when it is done, the same page is the report
        assert Run.resume(run.folder).train(DATA)
        again = page_of(run.folder)
        assert "not finished" not in again.text.lower()

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_whatever_the_mechanism(self, tmp_path, mechanism):
        run = Run.create(tmp_path / "run", tiny_plan(DATA, mechanism, seed=None, steps=30))
        assert not run.train(DATA, saving=EVERY_BLOCK, watch=lambda _: True)
        assert banner(page_of(run.folder)).attributes["class"] in ("banner draft", "banner stop")

    def test_it_may_be_looked_at_while_it_runs(self, tmp_path):
        """The ledger is open for writing, and nobody waits."""
        run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=None, steps=40))
        seen = []

        def watch(now):
            seen.append((now.block.step, figure(page_of(run.folder))))
            return False

        assert run.train(DATA, saving=EVERY_BLOCK, watch=watch)
        assert len(seen) >= 2
        assert seen[0][1] != seen[-1][1]


class TestRefused:
    def test_a_lower_epsilon_than_was_spent(self, run, tmp_path):
        folder = tmp_path / "release"
        folder.mkdir()
        for path in (run.folder / "release").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        statement = json.loads((folder / "privacy.json").read_text())
        statement["epsilon"] *= 0.9
        (folder / "privacy.json").write_text(json.dumps(statement))
        with pytest.raises(ReportError, match="lower epsilon"):
            write_report(folder, output=tmp_path / "r.html")
        assert not (tmp_path / "r.html").exists()

    @pytest.mark.parametrize(
        ("output", "part"), [(None, "say where"), ("r.htm", ".html"), ("release/r.html", "in the release")]
    )
    def test_places(self, tmp_path, output, part):
        write_small_release(tmp_path / "release")
        with pytest.raises(ReportError, match=part):
            write_report(tmp_path / "release", output=None if output is None else tmp_path / output)

    def test_what_is_neither(self, tmp_path):
        with pytest.raises(ReportError, match="neither a run nor a release"):
            write_report(tmp_path)
        with pytest.raises(ReportError, match="no folder"):
            write_report(tmp_path / "nowhere")


@pytest.mark.parametrize("delta", [0.5, 1 / 90])
def test_a_delta_of_one_in_all_records_is_warned_of(tmp_path, delta):
    """Such a guarantee is kept by publishing one record picked at random, however small ε is."""
    plan = dataclasses.replace(tiny_plan(DATA, seed=None), delta=delta, noise_multiplier=30.0)
    written = write_report(finished(tmp_path / "run", plan, DATA).folder)
    page = read_page(written.report.read_bytes())
    assert load(tmp_path / "run").privacy.epsilon < 1
    assert banner(page).attributes["class"] == "banner draft"
    assert "δ is too large" in banner(page).text
    assert "90 records" in banner(page).text
    assert "ready for release" not in page.text
    assert ": strong" not in page.text
    assert written.cautions


def test_a_delta_below_that_is_not(run, page):
    assert "δ is too large" not in page.text
    assert not write_report(run.folder).cautions


def test_few_records_are_told(tmp_path, page):
    assert "There are only 90 records" in banner(page).text
    data = tiny_data(records=120)
    enough = page_of(finished(tmp_path / "enough", tiny_plan(data, seed=None), data).folder)
    assert "There are only" not in enough.text
    people = tiny_data(records=120, persons=30)
    few = page_of(finished(tmp_path / "few", tiny_plan(people, seed=None), people).folder)
    assert f"There are only {people.units} persons" in banner(few).text


class TestAReleaseAlone:
    def test_it_has_a_page_too(self, tmp_path):
        page = page_of_release(tmp_path)
        assert page.one("h1").text == "Small digits"
        assert banner(page).attributes["class"] == "banner ready"
        assert page.all("svg"), "its charges are in the statement"
        assert "budget" not in page.one("svg").text
        assert sorted(path.name for path in (tmp_path / "release").iterdir()) == sorted(
            ["README.md", "config.json", "generator.safetensors", "privacy.json", "samples.png"]
        )

    def test_hostile_names(self, tmp_path):
        names = [
            "</style><script>alert(1)</script>",
            "\"><img src=x onerror='alert(1)'>",
            "{{ 7 * 7 }} &amp;",
        ]
        page = page_of_release(tmp_path, class_names=names, about=About("<b>T</b>{% raw %}'\"&"))
        assert page.one("h1").text == "<b>T</b>{% raw %}'\"&"
        assert [cells[0] for cells in rows(page, "100 generated images")[1:]] == [
            f"{k}: {names[k]}" for k in range(3)
        ]
        assert [picture.attributes["alt"] for picture in page.all("img")] == [
            f"4 generated images of class {k}: {names[k]}" for k in (0, 0, 1, 1, 2, 2)
        ]

    def test_many_classes(self, tmp_path):
        config = MLPConfig(image_shape=(3, 5, 4), classes=33, hidden=(4,))
        write_release(tmp_path / "r", trained(config), label_probabilities=None, privacy=statement())
        page = page_of(tmp_path / "r", output=tmp_path / "r.html")
        assert len(page.all("img")) == 2 * 20
        assert "The first 20 of 33 classes" in page.text
        assert len(rows(page, "25 generated images of each class")) == 1 + 20

    def test_without_classes(self, tmp_path):
        write_release(
            tmp_path / "r", trained(CONFIGS["unconditional"]), label_probabilities=None, privacy=statement()
        )
        assert len(page_of(tmp_path / "r", output=tmp_path / "r.html").all("img")) == 2


def test_the_same_run_gives_the_same_page(run):
    first = write_report(run.folder, made=DAY).report.read_bytes()
    assert write_report(run.folder, made=DAY).report.read_bytes() == first
    assert not list(run.folder.glob("*.partial"))


def test_every_class_by_its_public_name(tmp_path):
    names = ["healthy", "flu", "<i>cold"]
    data = from_arrays(IMAGES, np.array(names)[LABELS], classes=names)
    run = finished(tmp_path / "run", tiny_plan(data, seed=None), data)
    assert "Class 2: <i>cold" in page_of(run.folder).text
    # text read off private labels is not public
    private = from_arrays(IMAGES, np.array(["SECRETA", "SECRETB", "SECRETC"])[LABELS])
    run = finished(tmp_path / "other", tiny_plan(private, seed=None), private)
    assert "SECRET" not in page_of(run.folder).text
