"""Options and data that `dpsinkhorn train` refuses: one line, status 2, nothing written."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.privacy import Budget, Ledger, epsilon
from support.train_command import TINY


class TestBadOptions:
    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ("--recipe tiny.toml --out run", "give --data"),
            ("--data data.npz --recipe tiny.toml", "give --out"),
            ("--data data.npz --epsilon 3 --noise-multiplier 2 --out run", "not both"),
            ("--data data.npz --recipe no.toml --out run", "there is no recipe file no.toml"),
            ("--data data.npz --recipe minst --out run", "unknown recipe 'minst'; choose"),
            ("--data data.npz --recipe broken.toml --out run", "is not TOML"),
            ("--data data.npz --recipe tiny.toml --generator diffusion --out run", "generator: "),
            ("--data data.npz --recipe tiny.toml --mechanism none --epsilon 3 --out run", "has no epsilon"),
            ("--data data.npz --recipe tiny.toml --mechanism magic --out run", "--mechanism"),
            ("--data data.npz --recipe tiny.toml --epsilon 0 --out run", "epsilon must be a positive"),
            ("--data data.npz --recipe tiny.toml --epsilon inf --out run", "epsilon must be a positive"),
            ("--data data.npz --recipe tiny.toml --delta 2 --out run", "delta must be between 0 and 1"),
            ("--data data.npz --recipe tiny.toml --steps 0 --out run", "steps must be a positive"),
            ("--data data.npz --recipe tiny.toml --clip -1 --out run", "clip must be a positive"),
            ("--data data.npz --recipe tiny.toml --clip 1e-12 --out run", "raise clip"),
            ("--data data.npz --recipe tiny.toml --sampling-rate 2 --out run", "at most 1"),
            ("--data data.npz --recipe tiny.toml --sampling-rate x --out run", "a number like 0.01"),
            ("--data data.npz --recipe tiny.toml --sampling-rate 0.001 --out run", "fewer than one expected"),
            ("--data data.npz --recipe paper-first-mnist --records 10 --out run", "fewer than one expected"),
            ("--data data.npz --recipe tiny.toml --records 0 --out run", "1 or more"),
            ("--data data.npz --recipe tiny.toml --labels half --out run", "--labels must be uniform"),
            ("--data data.npz --recipe tiny.toml --labels 0.5,0.5 --out run", "2 label probabilities for 3"),
            ("--data data.npz --recipe tiny.toml --set steps=3 --out run", "--set takes SECTION.NAME=VALUE"),
            ("--data data.npz --recipe tiny.toml --set privacy.steps --out run", "SECTION.NAME=VALUE"),
            ("--data data.npz --recipe tiny.toml --set magic.steps=3 --out run", "no section 'magic'"),
            ("--data data.npz --recipe tiny.toml --set loss.magic=3 --out run", "magic"),
            ("--data data.npz --recipe tiny.toml --set loss.cost=l3 --out run", "l3"),
            ("--data data.npz --recipe tiny.toml --set loss.debias=0 --set loss.debias=1 --out run", "twice"),
            ("--data data.npz --recipe tiny.toml --set privacy.steps=3 --steps 4 --out run", "give one"),
            ("--data data.npz --recipe tiny.toml --seed -3 --out run", "a seed is a whole number"),
            ("--data data.npz --recipe tiny.toml --seed 99999999999999999999999 --out run", "a seed is"),
            ("--data data.npz --recipe tiny.toml --device tpu --out run", "there is no device"),
            ("--data data.npz --recipe tiny.toml --device meta --out run", "there is no device"),
            ("--data data.npz --recipe tiny.toml --device cuda:99 --out run", "there is no device"),
            ("--data data.npz --recipe tiny.toml --checkpoint-every -1 --out run", "--checkpoint-every"),
            ("--data data.npz --recipe tiny.toml --ledger . --out run", "is a folder"),
            ("--data data.npz --recipe tiny.toml --ledger tiny.toml --out run", "tiny.toml"),
            ("--data data.npz --recipe tiny.toml --fast --out run", "--fast"),
            ("--data data.npz --recipe tiny.toml --out full", "is not empty; choose another folder"),
            ("--data data.npz --recipe tiny.toml --out tiny.toml", "is a file; choose another folder"),
            ("--data data.npz --recipe tiny.toml --out tiny.toml/run", "Not a directory"),
            ("--out run --resume", "holds no run to resume"),
            ("--resume", "give --out"),
        ],
    )
    def test_one_line_and_nothing_written(self, refused, place, command, words):
        (place / "broken.toml").write_text("steps = = 5")
        (place / "full").mkdir()
        (place / "full" / "thesis.tex").write_text("steps_are_costly")
        assert words in refused(command)

    def test_an_epsilon_that_cannot_be_met(self, refused):
        line = refused(
            "--data data.npz --recipe tiny.toml --epsilon 0.001 --steps 1000000000 --sampling-rate 1 "
            "--out run --accountant rdp"
        )
        assert "epsilon 0.001 at delta 1e-05 cannot be met with 1000000000 steps" in line

    def test_a_folder_that_holds_another_run(self, run, refused):
        assert run(f"--data data.npz --recipe tiny.toml --out run {TINY}")[0] == 0
        assert "already holds a run; resume it (--resume), or" in refused(
            "--data data.npz --recipe tiny.toml --out run"
        )
        assert "is finished: its release is in run/release" in refused("--out run --resume")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written(self, refused, place):
        (place / "locked").mkdir(mode=0o500)
        assert "Permission denied" in refused("--data data.npz --recipe tiny.toml --out locked/run")

    def test_a_folder_of_the_system_that_cannot_be_written(self, refused):
        line = refused("--data data.npz --recipe tiny.toml --out /proc/run")
        assert "the run cannot begin: /proc/run" in line


class TestBadData:
    @pytest.fixture
    def npz(self, place, refused):
        def npz(words, *options, **arrays):
            np.savez(place / "bad.npz", **arrays)
            assert words in refused("--data bad.npz --recipe tiny.toml --out run", *options)

        return npz

    images = np.zeros((12, 4, 4), np.uint8)

    def test_a_label_that_is_missing(self, npz):
        npz("missing in row 11", images=self.images, labels=np.array([0.0] * 11 + [np.nan]))

    def test_labels_that_are_negative(self, npz):
        npz("must not be negative", images=self.images, labels=np.arange(12) - 1)

    def test_labels_that_are_fractions(self, npz):
        npz("must be whole numbers", images=self.images, labels=np.arange(12) / 2)

    def test_fewer_labels_than_images(self, npz):
        npz("12 images but 5 labels", images=self.images, labels=np.arange(5))

    def test_more_classes_than_stated(self, npz):
        npz("with the 3 classes stated", "--classes", "3", images=self.images, labels=np.arange(12) % 4)

    def test_an_empty_class(self, npz):
        npz("class 1 has no records", images=self.images, labels=np.arange(12) % 2 * 2)
        npz("classes 1, 2 have no records", images=self.images, labels=np.arange(12) % 2 * 3)

    def test_no_records(self, npz):
        npz("the data set is empty", images=self.images[:0], labels=np.arange(0))

    def test_floats(self, npz):
        values = np.zeros((12, 4, 4))
        values[7, 1, 2] = np.nan
        npz("image 7 (counted from 0) holds nan", images=values)
        values[7, 1, 2] = 1.5
        npz("outside of the range 0 to 1", images=values)
        npz("outside of the range 0 to 1.2", "--value-range", "0,1.2", images=values)

    def test_pictures_of_mixed_size(self, place, refused):
        (place / "pictures" / "cats").mkdir(parents=True)
        for number, size in enumerate(((4, 4), (4, 5))):
            Image.new("L", size).save(place / "pictures" / "cats" / f"{number}.png")
        refused("--data pictures --recipe tiny.toml --out run")

    def test_nothing_there(self, refused):
        assert "there is no file or folder nowhere" in refused("--data nowhere --recipe tiny.toml --out run")


def test_a_ledger_of_another_delta(refused, place):
    Ledger.open(place / "all.jsonl", epsilon, budget=Budget(9.0, 1e-6)).close()
    assert "give delta 1e-06" in refused("--data data.npz --recipe tiny.toml --ledger all.jsonl --out run")
