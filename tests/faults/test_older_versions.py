"""Files of a version of dpsinkhorn that is not this one: one clear line, and nothing is spent or changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from dpsinkhorn.cli import main
from dpsinkhorn.privacy import journal
from dpsinkhorn.privacy.ledger import Ledger
from dpsinkhorn.training import Run
from support.file_campaigns import leaves
from support.runs import DATA, IMAGES, LABELS, tiny_plan

Change = Callable[[dict], object]


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run that was stopped after its first step, with its data beside it."""
    np.savez(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    source = {"data": str(tmp_path / "data.npz")}
    run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=None), source=source)
    assert not run.train(DATA, watch=lambda _: True)
    return run.folder


def refusal(folder: Path, capsys) -> str:
    """What `train --resume` says: one line, status 2, nothing written."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SystemExit) as left:
        main(["train", "--resume", "--out", str(folder)])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    assert said.err.startswith("dpsinkhorn: ")
    assert said.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    return said.err


def change_settings(folder: Path, change: Change) -> None:
    settings = json.loads((folder / "run.json").read_text())
    change(settings)
    (folder / "run.json").write_text(json.dumps(settings))


def change_ledger(path: Path, change: Change) -> None:
    """A ledger with other entries, sound in itself."""
    last, lines = None, []
    for entry in journal.read_journal(path):
        body = json.loads(json.dumps(entry.body))
        change(body)
        last = journal._next_entry(body, last)
        lines.append(last.line)
    path.write_bytes(b"".join(lines))
    journal._write_head(path, last, pending=False)


def test_the_run_can_be_resumed_as_it_is(begun, capsys):
    with pytest.raises(SystemExit) as left:
        main(["train", "--resume", "--out", str(begun)])
    assert not left.value.code, capsys.readouterr().err


class TestRunFile:
    @pytest.mark.parametrize("version", [0, "0.0.1", None])
    def test_version(self, begun, capsys, version):
        change_settings(begun, lambda settings: settings.update(version=version, dpsinkhorn="0.0.1"))
        assert "was made by another version (0.0.1): resume it with that one" in refusal(begun, capsys)

    @pytest.mark.parametrize("name", ["version", "dpsinkhorn", "name", "plan", "source", "ledger"])
    def test_an_entry_that_was_not_there_yet(self, begun, capsys, name):
        change_settings(begun, lambda settings: settings.pop(name))
        assert f"it has no '{name}'; was it edited, or made by another version" in refusal(begun, capsys)

    @pytest.mark.parametrize("name", ["recipe", "facts", "delta", "accountant", "labels", "seed"])
    def test_a_plan_without_an_entry(self, begun, capsys, name):
        change_settings(begun, lambda settings: settings["plan"].pop(name))
        assert "or made by another version" in refusal(begun, capsys)

    def test_an_entry_that_is_no_more(self, begun, capsys):
        change_settings(begun, lambda settings: settings["plan"].update(momentum=0.9))
        assert "or made by another version" in refusal(begun, capsys)


class TestCheckpoint:
    @pytest.mark.parametrize("version", ["0", None])
    def test_version(self, begun, capsys, version):
        path = begun / "checkpoint.safetensors"
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        metadata.pop("version")
        save_file(tensors, path, metadata | ({} if version is None else {"version": version}))
        words = f"is a checkpoint of version {version}, not 1: resume it with the version of dpsinkhorn"
        assert words in refusal(begun, capsys)


class TestLedger:
    @staticmethod
    def older(body: dict) -> None:
        if body["kind"] == "ledger":
            body["version"] = 0

    def test_version(self, begun):
        change_ledger(begun / "ledger.jsonl", self.older)
        with pytest.raises(
            journal.JournalDamagedError, match=r"^this ledger is of version 0, not 1: use the"
        ):
            Ledger.open(begun / "ledger.jsonl", leaves)

    def test_version_of_the_ledger_of_a_run(self, begun, capsys):
        (begun / "checkpoint.safetensors").unlink()  # which knows a digest, and so refuses any other ledger
        change_ledger(begun / "ledger.jsonl", self.older)
        assert "this ledger is of version 0, not 1: use the" in refusal(begun, capsys)

    @pytest.mark.parametrize("name", ["run", "steps", "charge", "kind"])
    def test_a_spend_without_an_entry(self, begun, name):
        change_ledger(
            begun / "ledger.jsonl", lambda body: body["kind"] == "spend" and body.pop(name) and None
        )
        with pytest.raises(journal.JournalDamagedError, match="not a spend"):
            Ledger.open(begun / "ledger.jsonl", leaves)

    def test_another_ledger_than_the_checkpoint_knows(self, begun, capsys):
        change_ledger(begun / "ledger.jsonl", lambda body: body.pop("name", None))
        assert "an older copy, or another ledger" in refusal(begun, capsys)

    def test_version_of_the_head(self, begun, capsys):
        head = begun / "ledger.jsonl.head"
        head.write_text(json.dumps(json.loads(head.read_text()) | {"version": 0}))
        assert "head is of version 0, not 1: use the dpsinkhorn that wrote it" in refusal(begun, capsys)

    def test_another_budget(self, begun, capsys):
        """Before the first checkpoint a run knows its ledger by the budget alone."""
        (begun / "checkpoint.safetensors").unlink()

        def change(body: dict) -> None:
            if body["kind"] == "ledger":
                body["epsilon"] = 1e6

        change_ledger(begun / "ledger.jsonl", change)
        assert "this is the ledger of another run: put the right one back" in refusal(begun, capsys)
