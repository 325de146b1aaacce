"""What the report says, of every kind of run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import json
import math
import shlex

import numpy as np
import pytest

from dpsinkhorn import load
from dpsinkhorn.cli import main
from dpsinkhorn.data import from_arrays
from dpsinkhorn.generators import MLPConfig
from dpsinkhorn.privacy import (
    Adjacency,
    Budget,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    RecordMechanism,
    best_of,
    epsilon,
    format_epsilon,
    group_epsilon,
    read_ledger,
)
from dpsinkhorn.privacy.words import factor_in_words
from dpsinkhorn.release import PrivacyStatement, write_release
from dpsinkhorn.report import ReportError, write_report
from dpsinkhorn.training import Run
from support.html import check_page, read_page, rows
from support.releases import CONFIGS, statement, trained, write_small_release
from support.runs import EVERY_BLOCK, MECHANISMS, finished, tiny_arrays, tiny_data, tiny_plan

DAY = datetime.date(2030, 5, 4)


def page_of(folder, **options):
    written = write_report(folder, **options)
    page = read_page(written.report.read_bytes())
    check_page(page)
    return page


def banner(page):
    (found,) = [node for node in page.all("div") if "banner" in (node.attributes.get("class") or "")]
    return found


def about(page):
    """What stands above the banner."""
    (found,) = [node for node in page.all("dl") if node.attributes["class"] == "about"]
    return dict(zip(*([node.text for node in found.all(tag)] for tag in ("dt", "dd")), strict=True))


def printed(code):
    """What a snippet of the page prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().split()


def figure(page, name="Privacy loss"):
    """The large figure of a card."""
    (card,) = [node for node in page.all("div") if node.all("dt") and node.all("dt")[0].text.startswith(name)]
    return card.all("dd")[0].text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished, private, unseeded run."""
    data = tiny_data()
    return finished(tmp_path_factory.mktemp("runs") / "run", tiny_plan(data, seed=None), data)


def test_the_guarantee_stands_at_the_top(run):
    page, privacy = page_of(run.folder), load(run.folder).privacy
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
    for heading in ("In plain words", "Against whom", "What is not guaranteed"):
        assert heading in [node.text for node in first.all("h3")]
    assert names[0].startswith("What is protected"), "a record is said to be an image before ε speaks of it"
    assert "one image with its label" in first.text
    assert "1 in 100,000" in first.text
    # before any other section, and its title says it too
    assert page.all("h2")[0].text == "What is guaranteed"
    assert format_epsilon(privacy.epsilon) in page.one("head").one("title").text


def test_what_anyone_can_become_sure_of(run):
    """Bayes' rule by hand: the odds grow by e^ε."""
    spent = load(run.folder).privacy.epsilon
    table = rows(page_of(run.folder), "How sure")
    for before, cells in zip((1e-4, 1e-2, 0.5), table[1:], strict=True):
        odds = before / (1 - before) * math.exp(spent)
        limit = 100 * odds / (1 + odds)
        assert limit <= float(cells[1].split(" %")[0]) <= limit + 0.1
        assert float(cells[1].split(" %")[0]) < 100
        assert ("no useful limit" in cells[1]) == (limit > 99.99)


def test_what_delta_adds(run):
    """It comes on top of what ε allows; the probability that ε is passed can be larger."""
    text, spent = page_of(run.folder).one("main").all("section")[0].text, load(run.folder).privacy.epsilon
    assert "plus a probability of at most 1 in 100,000 (δ)" in text
    assert "The table is what ε alone allows; δ comes on top" in text
    assert (
        "except with a probability of at most 1 in 50,000 (2 δ), the odds grow by a factor of at most" in text
    )
    assert f"a factor of at most {factor_in_words(spent + math.log(2))} (2 e" in text
    for wrong in ("may not hold", "Chance of failure", "probability of 1 in 100,000", "at the very most"):
        assert wrong not in text


def test_epsilon_against_steps(run):
    page, privacy = page_of(run.folder), load(run.folder).privacy
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


def test_samples_of_every_class(run):
    page = page_of(run.folder)
    pictures = page.one("section", id="images").all("img")
    assert [picture.attributes["alt"] for picture in pictures] == [
        f"10 generated images of class {k}" for k in range(3)
    ]
    table = rows(page, "100 generated images")
    images, _ = load(run.folder).sample(100, 1, seed=1)
    pairs = [(a, b) for a in range(100) for b in range(a)]
    apart = math.sqrt(np.mean([np.mean((images[a] / 255 - images[b] / 255) ** 2) for a, b in pairs]))
    assert table[2] == ["1", f"{images.mean() / 2.55:.0f} %", f"{100 * apart:.0f} %"]


def test_data_and_settings(run):
    page = page_of(run.folder)
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
    data = tiny_data()
    run = Run.create(tmp_path / "run", tiny_plan(data, seed=None), source={"data": "digits"})
    assert run.train(data, saving=EVERY_BLOCK)
    page = page_of(run.folder)
    assert dict(rows(page, "The data"))["data set"].startswith("digits: handwritten")
    assert "The data are public (digits)" in banner(page).text
    assert about(page)["Data"] == "digits, a public data set, 90 records"


@pytest.mark.parametrize("mechanism", ["record", "image"])
def test_the_command_shown_gives_the_same_epsilon(tmp_path, capsys, mechanism):
    data = tiny_data()
    run = finished(tmp_path / "run", tiny_plan(data, mechanism, seed=None, accountant="pld"), data)
    page = page_of(run.folder)
    (command,) = [node.text for node in page.all("pre") if node.text.startswith("dpsinkhorn privacy")]
    with pytest.raises(SystemExit) as left:
        main([*shlex.split(command)[1:], "--json"])
    assert not left.value.code
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(load(run.folder).privacy.epsilon)


def test_verification(run):
    page, privacy = page_of(run.folder), load(run.folder).privacy
    belongs = dict(rows(page, "What this page belongs to"))
    config = json.loads((run.folder / "release" / "config.json").read_text())
    assert belongs["SHA-256 of generator.safetensors"] == config["generator_sha256"]
    assert belongs["digest of the ledger"] == privacy.ledger_digest
    assert read_ledger(run.ledger_path).digest == privacy.ledger_digest
    assert "holds the entry that the release names" in page.one("section", id="verify").text


def test_the_snippets_print_what_they_should(run, monkeypatch):
    page, privacy = page_of(run.folder), load(run.folder).privacy
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


def test_several_records_of_one_person(run):
    """The figures are those of the proved bound, not multiples of ε at a δ that nobody looked at."""
    text, privacy = page_of(run.folder).one("main").all("section")[0].text, load(run.folder).privacy
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

    def test_the_decision_is_not_taken(self, run):
        assert "Technically ready for release; the decision is yours" in banner(page_of(run.folder)).text
        assert "may be released" not in page_of(run.folder).text.lower()


def test_memory_is_not_guaranteed(run):
    page = page_of(run.folder)
    assert "memory" not in dict(rows(page, "Privacy"))["noise drawn from"].lower()
    assert "provided the cipher that supplied the random noise (ChaCha20) is not broken" in page.text
    (line,) = [node.text for node in page.all("li") if node.text.startswith("Access to the machine")]
    assert "Memory" in line
    assert "any amount of computing" not in page.text


class TestNotForRelease:
    def test_seeded(self, tmp_path):
        data = tiny_data()
        page = page_of(finished(tmp_path / "run", tiny_plan(data, seed=77123), data).folder)
        assert banner(page).attributes["class"] == "banner stop"
        assert "Not for release" in banner(page).text
        assert "seed" in banner(page).text
        assert "if nobody knew the seed" in page.all("h2")[0].text
        assert page.one("head").one("title").text.startswith("NOT FOR RELEASE")
        assert "not to be used outside" in page.one("section", id="use").text
        assert "77123" not in page.text
        assert "dpsinkhorn sample" not in page.text

    def test_without_privacy(self, tmp_path):
        data = tiny_data()
        page = page_of(finished(tmp_path / "run", tiny_plan(data, "none", seed=None), data).folder)
        assert banner(page).attributes["class"] == "banner stop"
        assert page.all("h2")[0].text == "Nothing is guaranteed"
        assert page.one("h1").text == "Image generator, not private"
        assert not page.all("svg")
        assert "copies of private ones" in page.text
        assert "What is guaranteed" not in page.text

    def test_where_the_curator_said_so(self, tmp_path):
        write_small_release(tmp_path / "release", releasable=False)
        page = page_of(tmp_path / "release", output=tmp_path / "r.html")
        assert "Whoever made it said so" in banner(page).text


def test_persons(tmp_path):
    data = tiny_data(persons=30)
    page = page_of(finished(tmp_path / "run", tiny_plan(data, seed=None), data).folder)
    first = page.one("main").all("section")[0].text
    for words in ("Add or remove one person", "One person", "with all of their records", "Groups of people"):
        assert words in first
    assert "Several records of one person" not in first
    assert dict(rows(page, "The data"))["persons"].startswith(f"{data.units} ")
    settings = dict(rows(page, "Privacy"))
    assert "all of a person's records are added up, that sum is clipped" in settings["mechanism"]
    assert settings["chance of a person to be in a step's sample"] == "0.25"
    assert "each record's share" not in page.text
    assert "chance of a record" not in page.text


def test_without_labels(tmp_path):
    data = tiny_data(labelled=False)
    page = page_of(finished(tmp_path / "run", tiny_plan(data, seed=None), data).folder)
    assert "A record is one image." in page.text
    assert [picture.attributes["alt"] for picture in page.all("img")] == ["50 generated images"]
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
    data = tiny_data()
    run = finished(tmp_path / "run", tiny_plan(data, seed=None, labels="released", epsilon=50.0), data)
    page = page_of(run.folder)
    table = rows(page, "The same in figures")
    expected = epsilon(run.plan.count_mechanism.charge(), 1e-5, "rdp")
    assert float(table[1][1]) == pytest.approx(expected, rel=1e-3)
    assert "apart from these steps" in page.text
    assert not [node for node in page.all("pre") if node.text.startswith("dpsinkhorn privacy")], (
        "no one command does"
    )


def test_image_has_no_valid_published_figure(tmp_path):
    data = tiny_data()
    run = finished(tmp_path / "run", tiny_plan(data, "image", seed=None, steps=40), data)
    page, privacy = page_of(run.folder), load(run.folder).privacy
    (warning,) = [node.text for node in page.all("p") if node.attributes.get("class") == "warning"]
    assert "not a valid guarantee" in warning
    assert format_epsilon(privacy.published_epsilon) in warning
    assert format_epsilon(privacy.epsilon) in warning
    assert figure(page) == format_epsilon(privacy.epsilon), "what is large is what can be proved"
    # an ε that rules out little is no green light
    assert privacy.epsilon > 10
    assert banner(page).attributes["class"] == "banner draft"
    assert "weak" in banner(page).text


def test_too_large_a_delta(tmp_path):
    data = tiny_data()
    plan = dataclasses.replace(tiny_plan(data, seed=None), delta=0.02)
    page = page_of(finished(tmp_path / "run", plan, data).folder)
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
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data, seed=seed, steps=200))
        assert not run.train(data, saving=EVERY_BLOCK, watch=lambda now: now.block.step >= 11)
        page = page_of(run.folder)
        assert banner(page).attributes["class"] == f"banner {kind}"
        assert "not finished" in banner(page).text.lower()
        spent = epsilon(read_ledger(run.ledger_path).total(), 1e-5, "rdp")
        assert figure(page).startswith(f"{format_epsilon(spent)} of ")
        assert "so far" in page.all("h2")[0].text or seed is not None
        assert "--resume" in page.one("section", id="use").text
        assert not page.all("img")
        # and when it is done, the same page is the report
        assert Run.resume(run.folder).train(data)
        again = page_of(run.folder)
        assert "not finished" not in again.text.lower()

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_whatever_the_mechanism(self, tmp_path, mechanism):
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data, mechanism, seed=None, steps=30))
        assert not run.train(data, saving=EVERY_BLOCK, watch=lambda _: True)
        assert banner(page_of(run.folder)).attributes["class"] in ("banner draft", "banner stop")

    def test_it_may_be_looked_at_while_it_runs(self, tmp_path):
        """The ledger is open for writing, and nobody waits."""
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data, seed=None, steps=40))
        seen = []

        def watch(now):
            seen.append((now.block.step, figure(page_of(run.folder))))
            return False

        assert run.train(data, saving=EVERY_BLOCK, watch=watch)
        assert len(seen) >= 2
        assert seen[0][1] != seen[-1][1]


class TestSharedLedger:
    def test_what_was_spent_later_is_told(self, tmp_path):
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None)
        Ledger.open(ledger, epsilon, budget=Budget(100.0, plan.delta)).close()
        first = finished(tmp_path / "one", plan, data, ledger=ledger)
        alone = page_of(first.folder)
        assert "spent on the same data since" not in alone.text
        finished(tmp_path / "ZWEITER", plan, data, ledger=ledger)
        page = page_of(first.folder)
        together = epsilon(plan.mechanism.sampled(0.25, 24), 1e-5, "rdp")
        assert f"together have ε = {format_epsilon(together)}" in page.text
        assert figure(page) == figure(alone)
        # the second one states both from the start
        second = page_of(tmp_path / "ZWEITER")
        assert figure(second) == format_epsilon(together)
        assert "ZWEITER" not in page.text + second.text

    def test_later_uses_are_told_with_what_is_compared(self, tmp_path):
        """The run's own accountant has no bound for a ledger with transport on it: another one has."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None)
        assert plan.accountant == "rdp"
        transport = LaplaceMechanism(1.0, 2.0, Adjacency.REPLACE_ONE).charge()
        Ledger.open(ledger, epsilon, budget=Budget(100.0, plan.delta)).close()
        run = finished(tmp_path / "run", plan, data, ledger=ledger)
        with Ledger.open(ledger, epsilon) as opened:
            opened.spend(transport, run="transport")
        page = page_of(run.folder)
        together = epsilon(read_ledger(ledger).total(), plan.delta, "pld")
        (warning,) = [node.text for node in page.all("p") if node.attributes.get("class") == "warning"]
        assert f"together have ε = {format_epsilon(together)} at δ = 0.00001 (replace one record)" in warning
        assert figure(page) == format_epsilon(load(run.folder).privacy.epsilon)
        (code,) = [
            "\n".join(node.all("code")[0].children) for node in page.all("pre") if "read_ledger" in node.text
        ]
        code = code.replace('"ledger.jsonl"', repr(str(ledger)))
        assert printed(code) == ["True", repr(together)]

    def test_what_no_accountant_can_count(self, tmp_path, capsys):
        """One line; the ledger holds sampled steps, transport and a best-of, and nothing bounds all three."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None, steps=2)
        Ledger.open(ledger, epsilon, budget=Budget(math.inf, plan.delta)).close()
        run = finished(tmp_path / "run", plan, data, ledger=ledger)
        with Ledger.open(ledger, lambda *_: 0.0) as opened:
            opened.spend(GaussianMechanism(1.0, 20.0, Adjacency.REPLACE_ONE).charge(), run="transport")
            opened.spend(best_of(plan.step_charge, mean_runs=3.0), run="search")
        with pytest.raises(SystemExit) as left:
            main(["report", str(run.folder)])
        assert left.value.code == 2
        told = capsys.readouterr().err
        assert told.startswith("dpsinkhorn: no accountant can count what the ledger")
        assert told.count("\n") == 1

    def test_later_runs_are_told_with_what_is_compared(self, tmp_path):
        data, ledger = tiny_data(persons=30), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None, steps=2)
        Ledger.open(ledger, epsilon, budget=Budget(100.0, plan.delta)).close()
        run = finished(tmp_path / "run", plan, data, ledger=ledger)
        finished(tmp_path / "other", plan, data, ledger=ledger)
        (warning,) = [
            node.text for node in page_of(run.folder).all("p") if node.attributes.get("class") == "warning"
        ]
        assert "(add or remove one person)" in warning

    @pytest.fixture
    def two(self, tmp_path):
        """A long run and a short one, on a ledger that allows more than both."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        long, short = tiny_plan(data, seed=None, steps=40), tiny_plan(data, "batch", seed=None, steps=5)
        short = dataclasses.replace(short, noise_multiplier=2.5)
        Ledger.open(ledger, epsilon, budget=Budget(77.0, long.delta)).close()
        return [
            finished(tmp_path / name, plan, data, ledger=ledger)
            for name, plan in (("long", long), ("short", short))
        ]

    def test_a_run_is_held_against_its_own_budget(self, two):
        """Steps and ε of a run are its own, whoever else took more; the ledger's are named as such."""
        short = two[1]
        page, plan = page_of(short.folder), short.plan
        own = epsilon(plan.mechanism.sampled(0.25, 5), 1e-5, "rdp")
        together = load(short.folder).privacy.epsilon
        assert together > 1.5 * own
        settings = dict(rows(page, "Privacy"))
        assert (settings["steps planned"], settings["steps charged"]) == ("5", "5")
        budget = format_epsilon(plan.budget_epsilon)
        assert settings["budget of this run"] == f"ε = {budget} at δ = 0.00001"
        assert settings["ε of this run alone (add or remove one)"] == format_epsilon(own)
        assert settings["budget of the ledger, for all uses of the data together"] == "ε = 77"
        assert "budget" not in settings
        assert rows(page, "The same in figures")[-1] == ["5", format_epsilon(own)]
        section = page.one("section", id="spending").text
        assert f"no step of it may pass its own budget of ε = {budget}" in section
        assert "nor may all uses together pass the ledger’s, ε = 77" in section
        assert f"rises from 0 to {format_epsilon(own)} in 5 steps" in section
        assert "uses of the data that were on the ledger when the release was made" in section
        assert (
            f"ε is {format_epsilon(together)}, of the ledger’s budget of 77 (add or remove one record)"
            in section
        )
        assert figure(page) == format_epsilon(together), "the release states all that is on the ledger"
        assert f"this run alone has ε = {format_epsilon(own)} (add or remove one record)" in page.text

    def test_the_first_run_is_told_of_nobody_before_it(self, two):
        page = page_of(two[0].folder)
        assert dict(rows(page, "Privacy"))["steps charged"] == "40"
        assert "this run alone has" not in page.text
        assert rows(page, "The same in figures")[-1] == ["40", figure(page)]

    def test_so_far_of_what_the_ledger_allows(self, two, tmp_path):
        """An unfinished run shows all that was spent beside what all may spend."""
        run = Run.create(tmp_path / "third", two[1].plan, ledger=two[1].ledger_path)
        page = page_of(run.folder)
        assert figure(page) == f"{format_epsilon(load(two[1].folder).privacy.epsilon)} of 77"
        assert dict(rows(page, "Privacy"))["steps charged"] == "0"
        assert not page.all("svg"), "it took no step"

    def test_without_the_ledger_it_is_not_guessed_whose_steps_they_are(self, two):
        short = two[1]
        for path in short.ledger_path.parent.glob("ledger.jsonl*"):
            path.unlink()
        page = page_of(short.folder)
        assert not page.all("svg")
        assert "steps charged" not in dict(rows(page, "Privacy"))
        assert banner(page).attributes["class"] == "banner draft"
        for part in (banner(page), page.one("main").all("section")[0]):
            assert "edger was not found" in part.text or "ledger of this run was not found" in part.text
        assert "what all uses cost together, is not known" in banner(page).text
        alone = page_of(short.release_folder, output=short.folder / "r.html")
        assert not alone.all("svg")
        assert not [name for name, _ in rows(alone, "Privacy") if name.startswith("steps charged")]

    @pytest.mark.parametrize("inside", [True, False])
    def test_a_ledger_that_was_moved_is_found(self, two, inside):
        """In the run's folder or beside it, under the same name; what was spent later counts."""
        first = two[0]
        expected = page_of(first.folder)
        assert "spent on the same data since" in expected.text
        place = first.folder if inside else first.folder.parent
        (first.folder.parent / "elsewhere").mkdir()
        for path in first.ledger_path.parent.glob("ledger.jsonl*"):
            path.rename(first.folder.parent / "elsewhere" / path.name)
        settings = json.loads((first.folder / "run.json").read_text())
        settings["ledger"] = str(first.folder.parent / "gone" / "ledger.jsonl")
        (first.folder / "run.json").write_text(json.dumps(settings))
        assert write_report(first.folder).findings.ledger_missing
        for path in (first.folder.parent / "elsewhere").iterdir():
            path.rename(place / path.name)
        written = write_report(first.folder)
        assert written.findings.ledger_moved_to == (place / "ledger.jsonl").resolve()
        assert not written.cautions
        assert read_page(written.report.read_bytes()).text == expected.text

    def test_the_ledger_of_another_is_not_taken_for_it(self, two):
        """Same name, right place, but not the release's entry; nor is one that cannot be trusted."""
        first = two[0]
        ledger = first.ledger_path
        files = {path.name: path.read_bytes() for path in ledger.parent.glob("ledger.jsonl*")}
        for name in files:
            (ledger.parent / name).unlink()
        Ledger.open(
            ledger.parent / first.folder.name / "ledger.jsonl", epsilon, budget=Budget(9.0, 1e-5)
        ).close()
        assert write_report(first.folder).findings.ledger_missing
        for name, data in files.items():
            (first.folder / name).write_bytes(data.replace(b'"steps":1', b'"steps":0', 1))
        assert write_report(first.folder).findings.ledger_missing

    def test_of_two_copies_the_one_that_goes_on_is_read(self, two):
        """An old copy must not hide what was spent since; two that went different ways are both left."""
        first, plan = two[0], two[0].plan
        ledger = first.ledger_path
        files = {path.name: path.read_bytes() for path in ledger.parent.glob("ledger.jsonl*")}
        elsewhere = first.folder.parent / "moved"
        elsewhere.mkdir()
        for name, data in files.items():
            (first.folder / name).write_bytes(data)
        with Ledger.open(ledger, epsilon) as opened:
            opened.spend(plan.step_charge, run="third")
        settings = json.loads((first.folder / "run.json").read_text())
        settings["ledger"] = str(elsewhere / "ledger.jsonl")
        (first.folder / "run.json").write_text(json.dumps(settings))
        found = write_report(first.folder).findings
        assert found.ledger_moved_to == ledger.resolve()
        with Ledger.open(first.folder / "ledger.jsonl", epsilon) as opened:
            opened.spend(plan.step_charge, run="fourth", steps=2)
        assert write_report(first.folder).findings.ledger_missing

    def test_an_unfinished_run_whose_ledger_is_gone(self, two, tmp_path):
        run = Run.create(tmp_path / "third", two[1].plan, ledger=two[1].ledger_path)
        for path in run.ledger_path.parent.glob("ledger.jsonl*"):
            path.unlink()
        with pytest.raises(ReportError, match="is gone; put it back"):
            write_report(run.folder)

    def test_the_command_is_of_all_steps(self, tmp_path, capsys):
        """Of both runs, where they took the same steps; none where others took others."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None)
        Ledger.open(ledger, epsilon, budget=Budget(100.0, plan.delta)).close()
        first, second = (finished(tmp_path / name, plan, data, ledger=ledger) for name in "ab")
        command = self.command(page_of(second.folder))
        assert "--steps 24 " in command
        with pytest.raises(SystemExit):
            main([*shlex.split(command)[1:], "--json"])
        stated = load(second.folder).privacy.epsilon
        assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(stated)
        assert dict(rows(page_of(second.folder), "Privacy"))["steps charged"] == "12"
        assert "--steps 12 " in self.command(page_of(first.folder))
        unlike = dataclasses.replace(plan, noise_multiplier=2.5)
        other = Run.create(tmp_path / "c", unlike, ledger=ledger)
        assert self.command(page_of(other.folder)) is None, "not a step of its own was taken"

    @staticmethod
    def command(page):
        found = [node.text for node in page.all("pre") if node.text.startswith("dpsinkhorn privacy")]
        return found[0] if found else None

    def test_a_guest_on_the_ledger_of_a_run(self, tmp_path):
        """A ledger is shared too where another run was given that of the first."""
        data = tiny_data()
        plan = tiny_plan(data, seed=None, epsilon=50.0)
        first = Run.create(tmp_path / "first", plan)
        assert not first.train(data, saving=EVERY_BLOCK, watch=lambda _: True)
        guest = dataclasses.replace(plan, noise_multiplier=20.0)
        finished(tmp_path / "guest", guest, data, ledger=first.ledger_path)
        page = page_of(first.folder)
        own = read_ledger(first.ledger_path).total(first.name)
        assert "budget of this run" in dict(rows(page, "Privacy"))
        assert f"this run alone has ε = {format_epsilon(epsilon(own, 1e-5, 'rdp'))}" in page.text

    def test_a_run_that_goes_by_another_name(self, two):
        settings = json.loads((two[1].folder / "run.json").read_text())
        settings["name"] = settings["name"].replace("short", "other")
        (two[1].folder / "run.json").write_text(json.dumps(settings))
        with pytest.raises(ReportError, match="has no charge of this run"):
            write_report(two[1].folder)

    def test_with_private_transport_before(self, tmp_path):
        """Then everything is counted under replace-one, and the page says so; the run alone is not."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None, accountant="pld", steps=3)
        transport = GaussianMechanism(1.0, 20.0, Adjacency.REPLACE_ONE).charge()
        with Ledger.open(ledger, epsilon, budget=Budget(100.0, plan.delta)) as opened:
            opened.spend(transport, run="transport")
        page = page_of(finished(tmp_path / "run", plan, data, ledger=ledger).folder)
        privacy = load(tmp_path / "run").privacy
        assert privacy.adjacency == "replace-one"
        assert "Replace one record" in [node.text for node in page.all("dd")]
        assert "with another in its place" in page.text
        assert "without it" not in page.text
        assert figure(page) == format_epsilon(privacy.epsilon)
        assert f"ε is {figure(page)}, of the ledger’s budget of 100 (replace one record)" in page.text
        own = format_epsilon(epsilon(plan.mechanism.sampled(0.25, 3), plan.delta))
        assert rows(page, "The same in figures")[-1] == ["3", own]
        assert "ε at δ = 0.00001 (add or remove one record), of this run alone" in page.text


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

    def test_another_ledger(self, tmp_path):
        data = tiny_data()
        one, two = (finished(tmp_path / name, tiny_plan(data, seed=None), data) for name in ("a", "b"))
        for path in two.folder.glob("ledger.jsonl*"):
            (one.folder / path.name).write_bytes(path.read_bytes())
        with pytest.raises(ReportError, match="does not hold the entry"):
            write_report(one.folder)

    def test_an_edited_ledger(self, tmp_path):
        data = tiny_data()
        run = finished(tmp_path / "run", tiny_plan(data, seed=None), data)
        run.ledger_path.write_bytes(run.ledger_path.read_bytes().replace(b'"steps":1', b'"steps":0', 1))
        with pytest.raises(ReportError, match="cannot be trusted"):
            write_report(run.folder)

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


def test_without_its_ledger_a_finished_run_still_has_a_page(tmp_path):
    data = tiny_data()
    run = finished(tmp_path / "run", tiny_plan(data, seed=None), data)
    for path in run.folder.glob("ledger.jsonl*"):
        path.unlink()
    page = page_of(run.folder)
    assert banner(page).attributes["class"] == "banner draft"
    assert "its ledger was not found" in banner(page).text
    assert "holds the entry" not in page.text


@pytest.mark.parametrize("delta", [0.5, 1 / 90])
def test_a_delta_of_one_in_all_records_is_warned_of(tmp_path, delta):
    """Such a guarantee is kept by publishing one record picked at random, however small ε is."""
    data = tiny_data()
    plan = dataclasses.replace(tiny_plan(data, seed=None), delta=delta, noise_multiplier=30.0)
    written = write_report(finished(tmp_path / "run", plan, data).folder)
    page = read_page(written.report.read_bytes())
    assert load(tmp_path / "run").privacy.epsilon < 1
    assert banner(page).attributes["class"] == "banner draft"
    assert "δ is too large" in banner(page).text
    assert "90 records" in banner(page).text
    assert "ready for release" not in page.text
    assert ": strong" not in page.text
    assert written.cautions


def test_a_delta_below_that_is_not(run):
    assert "δ is too large" not in page_of(run.folder).text
    assert not write_report(run.folder).cautions


def test_few_records_are_told(run, tmp_path):
    assert "There are only 90 records" in banner(page_of(run.folder)).text
    data = tiny_data(records=120)
    enough = page_of(finished(tmp_path / "enough", tiny_plan(data, seed=None), data).folder)
    assert "There are only" not in enough.text
    people = tiny_data(records=120, persons=30)
    few = page_of(finished(tmp_path / "few", tiny_plan(people, seed=None), people).folder)
    assert f"There are only {people.units} persons" in banner(few).text


class TestAReleaseAlone:
    def test_it_has_a_page_too(self, tmp_path):
        write_small_release(tmp_path / "release")
        page = page_of(tmp_path / "release", output=tmp_path / "r.html")
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
        write_small_release(tmp_path / "release", class_names=names, title="<b>T</b>{% raw %}'\"&")
        page = page_of(tmp_path / "release", output=tmp_path / "r.html")
        assert page.one("h1").text == "<b>T</b>{% raw %}'\"&"
        assert [cells[0] for cells in rows(page, "100 generated images")[1:]] == [
            f"{k}: {names[k]}" for k in range(3)
        ]
        assert [picture.attributes["alt"] for picture in page.all("img")] == [
            f"10 generated images of class {k}: {name}" for k, name in enumerate(names)
        ]

    def test_many_classes(self, tmp_path):
        config = MLPConfig(image_shape=(3, 5, 4), classes=33, hidden=(4,))
        write_release(tmp_path / "r", trained(config), label_probabilities=None, privacy=statement())
        page = page_of(tmp_path / "r", output=tmp_path / "r.html")
        assert len(page.all("img")) == 20
        assert "The first 20 of 33 classes" in page.text
        assert len(rows(page, "25 generated images of each class")) == 1 + 20

    def test_without_classes(self, tmp_path):
        write_release(
            tmp_path / "r", trained(CONFIGS["unconditional"]), label_probabilities=None, privacy=statement()
        )
        assert len(page_of(tmp_path / "r", output=tmp_path / "r.html").all("img")) == 1


def test_the_same_run_gives_the_same_page(run):
    first = write_report(run.folder, made=DAY).report.read_bytes()
    assert write_report(run.folder, made=DAY).report.read_bytes() == first
    assert not list(run.folder.glob("*.partial"))


def test_every_class_by_its_public_name(tmp_path):
    images, labels, _ = tiny_arrays()
    names = ["healthy", "flu", "<i>cold"]
    data = from_arrays(images, np.array(names)[labels], classes=names)
    run = finished(tmp_path / "run", tiny_plan(data, seed=None), data)
    assert "Class 2: <i>cold" in page_of(run.folder).text
    # text read off private labels is not public
    private = from_arrays(images, np.array(["SECRETA", "SECRETB", "SECRETC"])[labels])
    run = finished(tmp_path / "other", tiny_plan(private, seed=None), private)
    assert "SECRET" not in page_of(run.folder).text
