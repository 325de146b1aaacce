"""What the report says of a run whose ledger others use too."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex

import pytest

from dpsinkhorn import load
from dpsinkhorn.cli import main
from dpsinkhorn.privacy import (
    Adjacency,
    Budget,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    epsilon,
    format_epsilon,
    read_ledger,
)
from dpsinkhorn.report import ReportError, write_report
from dpsinkhorn.training import Run
from support.html import read_page, rows
from support.reports import banner, figure, page_of, printed
from support.runs import DATA, EVERY_BLOCK, finished, tiny_data, tiny_plan


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
        """One line; nothing bounds a sampled Laplace release together with one under replace-one."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None, steps=2)
        Ledger.open(ledger, epsilon, budget=Budget(math.inf, plan.delta)).close()
        run = finished(tmp_path / "run", plan, data, ledger=ledger)
        with Ledger.open(ledger, lambda *_: 0.0) as opened:
            opened.spend(GaussianMechanism(1.0, 20.0, Adjacency.REPLACE_ONE).charge(), run="transport")
            opened.spend(LaplaceMechanism(1.0, 9.0).sampled(0.1, steps=1), run="sampled")
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

    def test_without_the_ledger_the_release_says_how_many_steps_were_its_own(self, two):
        short = two[1]
        for path in short.ledger_path.parent.glob("ledger.jsonl*"):
            path.unlink()
        page = page_of(short.folder)
        assert not page.all("svg")
        assert dict(rows(page, "Privacy"))["steps charged"] == "5", "the release states its own"
        assert banner(page).attributes["class"] == "banner draft"
        for part in (banner(page), page.one("main").all("section")[0]):
            assert "edger was not found" in part.text or "ledger of this run was not found" in part.text
        assert "what all uses cost together, is not known" in banner(page).text
        alone = page_of(short.release_folder, output=short.folder / "r.html")
        assert not alone.all("svg")
        assert dict(rows(alone, "Privacy"))["steps charged"] == "5"

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
        plan = tiny_plan(DATA, seed=None, epsilon=50.0)
        first = Run.create(tmp_path / "first", plan)
        assert not first.train(DATA, saving=EVERY_BLOCK, watch=lambda _: True)
        guest = dataclasses.replace(plan, noise_multiplier=20.0)
        finished(tmp_path / "guest", guest, DATA, ledger=first.ledger_path)
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


def test_another_ledger(tmp_path):
    one, two = (finished(tmp_path / name, tiny_plan(DATA, seed=None), DATA) for name in ("a", "b"))
    for path in two.folder.glob("ledger.jsonl*"):
        (one.folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ReportError, match="does not hold the entry"):
        write_report(one.folder)


def test_an_edited_ledger(tmp_path):
    run = finished(tmp_path / "run", tiny_plan(DATA, seed=None), DATA)
    run.ledger_path.write_bytes(run.ledger_path.read_bytes().replace(b'"steps":1', b'"steps":0', 1))
    with pytest.raises(ReportError, match="cannot be trusted"):
        write_report(run.folder)


def test_without_its_ledger_a_finished_run_still_has_a_page(tmp_path):
    run = finished(tmp_path / "run", tiny_plan(DATA, seed=None), DATA)
    for path in run.folder.glob("ledger.jsonl*"):
        path.unlink()
    page = page_of(run.folder)
    assert banner(page).attributes["class"] == "banner draft"
    assert "its ledger was not found" in banner(page).text
    assert "holds the entry" not in page.text
