"""`dpsinkhorn train --recipe mixture`: from data to release, refusals, and a process that is killed."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest

from dpsinkhorn import load
from dpsinkhorn.privacy import epsilon, read_ledger
from support.processes import Command
from support.runs import header
from support.train_command import lines_so_far, steps_on_record

MIXTURE = "--data data.npz --recipe mixture --epsilon 10 --accountant rdp --picture-every 0 --out run"


def test_from_data_to_release(run, place):
    status, _, err = run(MIXTURE)
    assert (status, err) == (0, "")
    release = load(place / "run")
    assert release.privacy.mechanism == "moments"
    assert release.privacy.releasable
    assert 9.9 < release.privacy.epsilon <= 10
    spent = read_ledger(place / "run" / "ledger.jsonl")
    assert release.privacy.epsilon == pytest.approx(epsilon(spent.total(), 1e-5, "rdp"))
    assert steps_on_record(place / "run") == 4
    page = (place / "run" / "report.html").read_text(encoding="utf-8")
    assert "moments: each record" in page
    assert "learning rate" not in page  # there is none
    card = (place / "run" / "release" / "README.md").read_text(encoding="utf-8")
    assert "mixture" in card


def test_persons(run, place):
    status, _, err = run(MIXTURE.replace("data.npz", "persons.npz") + " --groups patient")
    assert status == 0
    assert "persons a class at epsilon 10" in err  # they are few
    assert load(place / "run").privacy.unit == "person"
    page = (place / "run" / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert "moments: a person's part" in page


def test_the_mechanism_chooses_the_recipe(run, place):
    status, _, err = run(
        "--data data.npz --mechanism moments --epsilon 10 --accountant rdp --out run --steps 5"
    )
    assert (status, err) == (0, "")
    assert load(place / "run").config.kind == "mixture"


def test_a_dry_run(run, place):
    status, out, err = run(MIXTURE.replace("--out run", "--dry-run --json"))
    assert (status, err) == (0, "")
    assert json.loads(out)["recipe"]["privacy"]["mechanism"] == "moments"
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--sampling-rate 0.5", "sampling rate"),
        ("--steps 3", "at least 4 steps"),
        ("--generator dcgan", "mixture"),
        ("--clip 1e-40", "clip"),
    ],
)
def test_refusals(refused, options, words):
    assert words in refused(f"{MIXTURE} {options}")


def test_a_mixture_by_another_mechanism(refused):
    line = refused("--data data.npz --recipe tiny.toml --out run --generator mixture")
    assert "belong together" in line


@pytest.mark.parametrize("after", [1, 3])
def test_killed_and_resumed(run, place, after):
    """kill -9: what was charged stays charged, and the run goes on from its last step."""
    arguments = MIXTURE.replace("data.npz", str(place / "data.npz")).replace(
        "--out run", f"--out {place}/run"
    )
    command = Command(["train", *arguments.split()], place)
    command.until(lambda: len(lines_so_far(place)) >= after)
    command.send(signal.SIGKILL)
    command.wait()
    status, out, err = run("--out run --resume")
    if (place / "run" / "release").exists() and status == 2:
        assert "finished" in err  # it was quicker than the kill
        return
    kept, steps = header(place / "run" / "checkpoint.safetensors")["step"], 4
    assert status == 0
    assert steps_on_record(place / "run") == steps
    assert kept >= steps - 1  # one may be lost, no more
    privacy = load(place / "run").privacy
    assert privacy.steps_charged == steps
    assert privacy.steps_kept in (steps - 1, steps)
    assert ("Steps charged 4, steps kept 3" in out) == (privacy.steps_kept < steps)
    assert privacy.epsilon <= 10


def larger(place, **arrays):
    """200 images of 28 x 28."""
    images = np.zeros((200, 28, 28), np.uint8)
    np.savez(place / "large.npz", images=images, labels=np.arange(200) % 10, **arrays)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("--epsilon 100", False),  # which takes the quick way
        ("--epsilon 100 --recipe grey", True),
        ("--epsilon 100 --mechanism record", True),
        ("--epsilon 100 --mechanism record --steps 5", False),
    ],
)
def test_on_a_cpu_a_long_training_has_a_quick_way_beside_it(run, place, options, hint):
    larger(place)
    status, _, err = run(
        f"--data large.npz {options} --anyway --accountant rdp --device cpu --out ."
    )  # not a new folder
    assert status == 2
    assert ("--recipe mixture takes seconds" in err) == hint


def test_it_is_the_default_on_a_cpu(run, place):
    larger(place)
    command = "--data large.npz --epsilon 10 --accountant rdp --device cpu --dry-run --json"
    few, many = (json.loads(run(f"{command} {more}")[1]) for more in ("", "--records 60000"))
    assert few["recipe"]["name"] == many["recipe"]["name"] == "mixture"
    assert few["recipe"]["generator"]["components"] == 2
    assert many["recipe"]["generator"]["components"] == 24
    assert (few["expectation"]["level"], many["expectation"]["level"]) == ("hopeless", "fine")


def test_settings_change_the_default_plan(run, refused, place):
    larger(place)
    command = "--data large.npz --epsilon 100 --device cpu --accountant rdp"
    plan = json.loads(run(f"{command} --dry-run --json --set generator.grain=0")[1])
    assert (plan["recipe"]["name"], plan["recipe"]["generator"]["grain"]) == ("mixture", 0)
    for change, words in (
        ("optimizer.learning_rate=1e-3", "plays no part in the recipe mixture, which suits these data"),
        ("generator.hidden=[8]", "a mixture has no field 'hidden'; it has components"),
        ("privacy.steps=3000", "at most 100 steps"),
    ):
        assert words in refused(f"{command} --out run --set {change}")


def test_a_hopeless_training_is_refused_unless_asked_for(run, refused, place):
    larger(place)
    command = "--data large.npz --epsilon 1 --device cpu --accountant rdp --picture-every 0 --out run"
    assert "about 20 records a class at epsilon 1 are too few" in refused(command)
    status, out, _ = run(command.replace("--out run", "--dry-run"))
    assert status == 0
    assert "hopeless" in out
    assert run(f"{command} --anyway")[0] == 0
    for name in ("release/README.md", "report.html"):
        assert "are too few: images will be noise" in (place / "run" / name).read_text(encoding="utf-8")
