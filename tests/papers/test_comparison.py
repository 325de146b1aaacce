"""`compare`: methods beside each other at one (ε, δ), what they cost together, and which were left out."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from PIL import Image

from dpsinkhorn.errors import ReproductionError
from dpsinkhorn.mechanisms.shared.taught import PartCritics
from dpsinkhorn.papers import Compared, Comparison, LeftOut, compare
from dpsinkhorn.privacy import read_ledger
from dpsinkhorn.report import write_comparison
from dpsinkhorn.training import Request, Run, plan_for
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.trial import try_plan
from support.html import check_page, read_page, rows
from support.runs import finished, tiny_data, tiny_plan

EPSILON = 40.0  # among so few records


@pytest.fixture(autouse=True)
def _own_note_of_used_data(monkeypatch, tmp_path):
    monkeypatch.setenv("DPSINKHORN_USED_DATA", str(tmp_path / "used.jsonl"))


def compared(folder, **options):
    settled = {"epsilon": EPSILON, "methods": ["moments"], "count": 60, "seed": 1, **options}
    return compare(tiny_data(records=300), tiny_data(records=60, seed=9), folder, **settled)


def line(method, epsilon=10.0, published=None):
    return Compared(
        method=method,
        summary="it is <clipped>",
        recipe="digits",
        epsilon=epsilon,
        delta=1e-5,
        published_epsilon=published,
        steps=5,
        seconds=1.0,
        accuracy={"logistic": 90.0, "mlp": 91.0, "cnn": 92.0},
        distance=1.5,
        grid=Image.new("L", (8, 8)),
    )


def comparison(*lines, public=False):
    return Comparison(
        data="our own patients",
        epsilon=10.0,
        protocol="quick: short",
        count=100,
        distance_name="frechet-cnn",
        distance_floor=0.5,
        real={"logistic": 95.0, "mlp": 96.0, "cnn": 97.0},
        methods=lines,
        left_out=(LeftOut("batch", "it would take years", 1e9),),
        warning="For the curator alone.",
        public=public,
        real_grid=Image.new("L", (8, 8)) if public else None,
    )


class TestCompare:
    def test_methods_beside_each_other(self, tmp_path):
        told = []
        found = compared(tmp_path, methods=["moments", "moments"], progress=lambda *now: told.append(now))
        (one,) = found.methods
        assert one.method == "moments"
        assert 0.99 * EPSILON < one.epsilon <= EPSILON
        assert set(one.accuracy) == set(found.real) == {"logistic", "mlp", "cnn"}
        assert found.real["logistic"] > 90
        assert one.seconds is not None
        assert list(found.grids) == ["moments"]  # nothing of real images that may be private
        assert told[-1] == ("moments: measuring", 0, 1)
        assert read_ledger(tmp_path / "moments" / "ledger.jsonl").budget.epsilon == EPSILON

    def test_what_is_trained_is_found_again(self, tmp_path):
        first, second = compared(tmp_path), compared(tmp_path)
        assert second.methods[0].seconds is None
        assert second.methods[0].accuracy == first.methods[0].accuracy
        assert len(read_ledger(tmp_path / "moments" / "ledger.jsonl").runs) == 1

    def test_what_was_spent_in_the_folder_before_is_added(self, tmp_path):
        first = compared(tmp_path)
        (tmp_path / "moments").rename(tmp_path / "record")
        second = compared(tmp_path, seed=2)
        assert first.earlier == ()
        ((name, epsilon, delta),) = second.earlier
        assert (name, delta) == ("record", 1e-5)
        assert epsilon == pytest.approx(first.methods[0].epsilon)
        assert second.together == pytest.approx((epsilon + second.methods[0].epsilon, 2e-5))
        assert "with those that were trained in this folder before" in second.sentence

    def test_what_cannot_be_added_up_is_refused(self, tmp_path):
        """Before anything is spent: runs that protect others, and runs whose ledger is gone."""
        data = tiny_data(persons=20)
        Run.create(tmp_path / "of persons" / "record", tiny_plan(data))
        with pytest.raises(ReproductionError, match="protects each person, and this comparison each record"):
            compared(tmp_path / "of persons")
        run = finished(tmp_path / "lost" / "record", tiny_plan(tiny_data()), tiny_data())
        run.ledger_path.unlink()
        with pytest.raises(ReproductionError, match=r"is gone, so that what .* cost is not known"):
            compared(tmp_path / "lost")
        assert not list(tmp_path.glob("*/moments"))

    def test_those_that_take_long_are_left_out_unless_they_are_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr("dpsinkhorn.papers.comparison.private_names", lambda: ("batch",))
        with pytest.raises(
            ReproductionError, match=r"no method is left: batch: the recipe paper-first-mnist would take"
        ):
            compared(tmp_path, methods=None, longest=0.0)
        assert not any(tmp_path.iterdir())

    def test_others_are_compared_without_those(self, tmp_path, monkeypatch):
        monkeypatch.setattr("dpsinkhorn.papers.comparison.private_names", lambda: ("moments", "record"))
        monkeypatch.setattr("dpsinkhorn.papers.comparison.try_plan", _as_asked)
        found = compared(tmp_path, methods=None, longest=60.0)
        assert [each.method for each in found.methods] == ["moments"]
        ((name, reason, seconds),) = [dataclasses.astuple(each) for each in found.left_out]
        assert (name, seconds) == ("record", 7200.0)
        assert "about 2 h" in reason

    def test_an_earlier_use_of_the_data_is_told(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        assert compared(tmp_path / "a", seed=None).used_before is None
        assert "ledger" in compared(tmp_path / "b", seed=None).used_before
        assert compared(tmp_path / "b", seed=None, public=True).used_before is None

    def test_no_such_method(self, tmp_path):
        with pytest.raises(ReproductionError, match="there is no magic"):
            compared(tmp_path, methods=["magic"])

    def test_it_stops_when_it_is_asked_to(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            compared(tmp_path, watch=lambda _: True)
        assert compared(tmp_path).methods[0].seconds is not None


@dataclasses.dataclass(frozen=True)
class _Expected:
    seconds: float


def _as_asked(plan, device):  # noqa: ARG001
    return _Expected(7200.0 if plan.kind.name == "record" else 1.0)


class TestCosts:
    def test_they_add_up(self):
        found = comparison(line("record", 9.5), line("moments", 10.0), line("dp_merf", 10.0))
        assert found.together == pytest.approx((29.5, 3e-5))
        assert "costs the sum of all epsilons: here ε = 29.5 at δ = 3e-05 together" in found.sentence
        assert found.to_json()["together"]["epsilon"] == 29.5

    def test_few_steps_are_tried(self, monkeypatch):
        """Of an optimizer that goes on with what was released, too."""
        steps, update = [], TrainingState.update
        monkeypatch.setattr(TrainingState, "update", lambda *given: (steps.append(1), update(*given)))
        plan = plan_for(tiny_data(), Request(EPSILON, mechanism="dp_merf", quick=True))
        assert plan.recipe.loss.iterations == 600
        assert 0 < try_plan(plan, torch.device("cpu")).seconds < math.inf
        assert len(steps) == 10

    def test_critics_that_learn_before_the_first_step_are_counted(self, monkeypatch):
        """By few of their iterations."""
        taught, learn = [], PartCritics.learn
        monkeypatch.setattr(PartCritics, "learn", lambda *given: (taught.append(1), learn(*given)))
        settings = {"privacy": {"batch": 60, "steps": 10}, "loss": {"iterations": 10**9}}
        plan = plan_for(tiny_data(), Request(EPSILON, mechanism="gs_wgan", settings=settings, quick=True))
        assert try_plan(plan, torch.device("cpu")).seconds > 10**4
        assert len(taught) < 10


class TestPage:
    def page(self, tmp_path, found):
        write_comparison(tmp_path / "page.html", found.to_json(), found.grids)
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    def test_of_private_data(self, tmp_path):
        text = self.page(tmp_path, comparison(line("record"), line("image", 10.0, published=0.25)))
        assert "CURATOR ONLY" in text
        assert "patients" not in text
        assert "costs the sum of all epsilons: here ε = 20" in text
        assert "it is &lt;clipped&gt;" in text
        assert "image †" in text
        assert "in the paper of image this training has ε = 0.25; that is not a valid guarantee" in text
        assert "it would take years" in text
        assert text.count("data:image/png") == 2

    def test_of_public_data(self, tmp_path):
        text = self.page(tmp_path, comparison(line("record"), public=True))
        assert "CURATOR" not in text
        assert "our own patients" in text
        assert "†" not in text
        assert text.count("data:image/png") == 2  # real ones too

    def test_it_is_whole(self, tmp_path):
        page = read_page(self.page(tmp_path, comparison(line("record"), line("image"))))
        check_page(page)
        figures = rows(page, "Per cent of real test images")
        assert figures[1] == ["record", "digits", "10", "1e-05", "90.0", "91.0", "92.0", "1.5", "1 s"]
        assert figures[3] == ["real images", "-", "-", "-", "95.0", "96.0", "97.0", "0.5", "-"]
