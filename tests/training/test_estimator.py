"""`DPSinkhorn`: fit, sample, save, in scikit-learn's manner."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dpsinkhorn
from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import DataError
from dpsinkhorn.privacy import Budget, Ledger, epsilon, read_ledger
from dpsinkhorn.training import Run, TrainingError
from support.runs import tiny_arrays

SMALL = {
    "privacy": {"steps": 6, "sampling_rate": 0.3, "noise_multiplier": 1.5},
    "loss": {"generated_per_class": 3, "generated": 6},
    "generator": {"latent": 2, "hidden": [8]},
}


def model(**options):
    """Without a budget, so that nothing need be calibrated."""
    return DPSinkhorn(
        **{
            "epsilon": None,
            "mechanism": "record",
            "anyway": True,
            "settings": SMALL,
            "accountant": "rdp",
            **options,
        }
    )


@pytest.fixture(scope="module")
def fitted():
    images, labels, _ = tiny_arrays()
    return model().fit(images, labels)


class TestRoundTrip:
    def test_fit_returns_itself_and_samples(self, fitted):
        images, labels = fitted.sample(7)
        assert images.shape == (7, 4, 4)
        assert images.dtype == np.uint8
        assert labels.shape == (7,)
        assert set(labels) <= {0, 1, 2}
        assert fitted.sample()[0].shape == (1, 4, 4)

    def test_save_and_load(self, fitted, tmp_path):
        fitted.save(tmp_path / "release")
        release = dpsinkhorn.load(tmp_path / "release")
        for ours, theirs in zip(fitted.sample(20, seed=1), release.sample(20, seed=1), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert release.privacy == fitted.privacy_

    def test_labels_can_be_chosen(self, fitted):
        assert fitted.sample(5, 2)[1].tolist() == [2] * 5
        assert fitted.sample(3, [0, 1, 2])[1].tolist() == [0, 1, 2]

    def test_the_statement(self, fitted):
        privacy = fitted.privacy_
        assert privacy.epsilon == pytest.approx(fitted.plan_.epsilon)
        assert (privacy.delta, privacy.unit, privacy.mechanism) == (1e-5, "record", "record")
        assert privacy.releasable
        assert not privacy.seeded
        assert privacy.recomputed_epsilon() == pytest.approx(privacy.epsilon)

    def test_a_budget(self):
        images, labels, _ = tiny_arrays()
        made = model(epsilon=np.float64(2.0), delta=1e-3).fit(images, labels)
        assert 1.9 < made.privacy_.epsilon <= 2
        assert made.privacy_.delta == 1e-3


class TestScikitLearn:
    def test_parameters(self):
        made = model(random_state=3)
        assert made.get_params()["random_state"] == 3
        assert clone(made).get_params() == made.get_params()
        assert made.set_params(epsilon=3.0).epsilon == 3.0

    def test_not_fitted(self, tmp_path):
        for use in (lambda: model().sample(1), lambda: model().save(tmp_path / "x")):
            with pytest.raises(NotFittedError):
                use()
        assert not (tmp_path / "x").exists()

    def test_a_seed_replays_and_is_not_for_release(self, tmp_path):
        images, labels, _ = tiny_arrays()
        first, second = (model(random_state=np.int64(4)).fit(images, labels) for _ in range(2))
        np.testing.assert_array_equal(first.sample(9, seed=0)[0], second.sample(9, seed=0)[0])
        assert not first.privacy_.releasable
        first.save(tmp_path / "release")
        assert not dpsinkhorn.load(tmp_path / "release").releasable

    def test_without_a_seed_no_two_fits_are_equal(self):
        images, labels, _ = tiny_arrays()
        first, second = (model().fit(images, labels) for _ in range(2))
        assert (first.sample(9, seed=0)[0] != second.sample(9, seed=0)[0]).any()

    @pytest.mark.parametrize("seed", [np.random.default_rng(0), 1.5, "3", True])
    def test_what_is_no_seed(self, seed):
        images, labels, _ = tiny_arrays()
        with pytest.raises(TrainingError, match="random_state"):
            model(random_state=seed).fit(images, labels)

    def test_fitting_again_replaces_what_was_learnt(self):
        images, labels, _ = tiny_arrays()
        made = model().fit(images, labels)
        made.fit(images[:, :3], labels)
        assert made.sample(1)[0].shape == (1, 3, 4)

    def test_a_fit_that_fails_leaves_what_was_learnt_before(self):
        images, labels, _ = tiny_arrays()
        made = model().fit(images, labels)
        before = made.plan_, made.release_, made.privacy_, list(made.classes_)
        with pytest.raises(TrainingError, match="stopped"):
            made.fit(images[:, :3], labels % 2, watch=lambda _: True)
        assert (made.plan_, made.release_, made.privacy_, list(made.classes_)) == before

    def test_a_declared_number_of_records(self):
        images, labels, _ = tiny_arrays()
        made = model(records=np.int64(100)).fit(images, labels)
        assert made.plan_.facts.records == 100
        assert not made.privacy_.size_is_public
        for bad in (0, 1.5, "90", True):
            with pytest.raises(TrainingError, match="records"):
                model(records=bad).fit(images, labels)


class TestFolder:
    def test_none_is_written_unless_asked_for(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Run, "create", None)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        seen = []
        model().fit(*tiny_arrays()[:2], watch=lambda _: seen.extend(tmp_path.glob("tmp*/*")))
        assert {path.name.split(".")[0] for path in seen} == {"ledger"}
        assert not list(tmp_path.glob("tmp*"))

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("how", ["watch", "Ctrl-C"])
    def test_a_fit_that_was_stopped_goes_on(self, tmp_path, how):
        images, labels, _ = tiny_arrays()
        seeded = model(random_state=4, budget=50, ledger=tmp_path / "ledger.jsonl")
        interrupt = partial(os.kill, os.getpid(), signal.SIGINT)
        with pytest.raises(TrainingError if how == "watch" else KeyboardInterrupt, match="to go on"):
            seeded.fit(images, labels, watch=lambda _: how == "watch" or interrupt(), folder=tmp_path / "run")
        with pytest.raises(TrainingError, match="a run with other settings or data"):
            model(random_state=5).fit(images, labels, folder=tmp_path / "run")
        found = seeded.fit(images, labels, folder=tmp_path / "run").sample(9, seed=0)[0]
        whole = model(random_state=4).fit(images, labels)
        np.testing.assert_array_equal(found, whole.sample(9, seed=0)[0])
        assert seeded.privacy_.charges == whole.privacy_.charges
        with pytest.raises(TrainingError, match="is finished"):
            seeded.fit(images, labels, folder=tmp_path / "run")


class TestAdvice:
    """Said before anything is spent, and once."""

    def test_none_where_all_is_well(self, recwarn):
        images, labels, _ = tiny_arrays()
        model().fit(images, labels)
        assert not recwarn.list

    @pytest.mark.parametrize(
        ("options", "scale", "records", "words"),
        [
            ({"delta": 0.1}, 1, 90, "delta 0.1 is not below 1/records = 0.011"),
            ({}, 1 / 8, 90, "nearly black. State their public range"),
        ],
    )
    def test_what_is_probably_not_meant(self, options, scale, records, words):
        images, labels, _ = tiny_arrays(records=records)
        with pytest.warns(UserWarning, match=re.escape(words)) as caught:
            model(**options).fit((images * scale).astype(np.uint8), labels)
        assert len(caught) == 1
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("name", ["epsilon", "delta", "budget"])
    def test_what_is_no_number(self, name):
        images, labels, _ = tiny_arrays()
        with pytest.raises(TrainingError, match=f"{name} must be a number, not '3'"):
            model(**{name: "3"}).fit(images, labels)


class TestKindsOfData:
    def test_lists(self):
        images, labels, _ = tiny_arrays(records=30)
        made = model(value_range=(0, 255)).fit(images.tolist(), labels.tolist())
        assert made.sample(2)[0].shape == (2, 4, 4)

    def test_unlabelled(self):
        made = model().fit(tiny_arrays()[0])
        images, labels = made.sample(4)
        assert images.shape == (4, 4, 4)
        assert labels is None

    def test_names_as_labels(self):
        images, labels, _ = tiny_arrays()
        named = np.array(["bee", "cat", "ant"])[labels]
        made = model().fit(images, named)
        assert made.classes_.tolist() == ["ant", "bee", "cat"]
        assert made.release_.class_names == ()  # text of private labels is not published
        stated = model(classes=("cat", "bee", "ant")).fit(images, named)
        assert stated.release_.class_names == ("cat", "bee", "ant")
        assert clone(stated).classes == ("cat", "bee", "ant")

    def test_classes_by_number(self):
        images, labels, _ = tiny_arrays()
        assert model(classes=3).fit(images, labels).classes_.tolist() == [0, 1, 2]
        assert model(classes=4).fit(images, labels).sample(3, labels=3)[0].shape == (3, 4, 4)
        with pytest.raises(DataError, match="2 classes stated"):
            model(classes=2).fit(images, labels)

    def test_colour_and_16_bit(self):
        images = np.random.default_rng(0).integers(0, 65536, (40, 4, 5, 3), dtype=np.uint16)
        made = model().fit(images, np.arange(40) % 2)
        found = made.sample(3)[0]
        assert found.shape == (3, 4, 5, 3)
        assert found.dtype == np.uint8

    def test_floats_by_their_public_range(self):
        images = np.random.default_rng(0).uniform(0, 1, (40, 4, 4))
        assert model().fit(images).plan_.facts.image_shape == (1, 4, 4)
        with pytest.raises(DataError, match="outside of the range"):
            model().fit(images * 2)
        assert model(value_range=(0, 2)).fit(images * 2).sample(1)[0].shape == (1, 4, 4)

    @pytest.mark.parametrize("mechanism", ["batch", "image", "parameter", "none"])
    def test_other_mechanisms(self, mechanism):
        images, labels, _ = tiny_arrays()
        settings = dict(SMALL)
        if mechanism == "none":
            settings["privacy"] = {"steps": 6, "sampling_rate": 0.3}
        made = model(recipe="digits", mechanism=mechanism, settings=settings).fit(images, labels)
        assert made.privacy_.mechanism == mechanism
        assert made.privacy_.releasable == (mechanism != "none")

    @pytest.mark.parametrize(
        ("images", "labels", "words"),
        [
            (np.zeros((0, 4, 4), np.uint8), None, "empty"),
            (np.full((5, 4, 4), np.nan), None, "nan"),
            (np.zeros((5, 4, 4), np.uint8), [0, 1, 2], "5 images but 3 labels"),
            (np.zeros((5, 4, 4), np.uint8), [0, 1, 2, 3, -1], "must not be negative"),
            (np.zeros((5, 4, 4), np.uint8), [0, 1, 2, 4, 4], "class 3 has no records"),
        ],
    )
    def test_bad_data(self, images, labels, words):
        with pytest.raises(DataError, match=words):
            model().fit(images, labels)


class TestLabels:
    @pytest.fixture
    def imbalanced(self):
        images, _, _ = tiny_arrays(records=2000, classes=2)
        return images, (np.arange(2000) >= 1800).astype(int)

    def test_released_frequencies_are_near_the_data_s(self, imbalanced):
        made = model(labels="released").fit(*imbalanced)
        # noise of 25 on counts of 1800 and 200: five standard deviations
        assert made.release_.label_probabilities == pytest.approx((0.9, 0.1), abs=5 * 25 / 2000)
        assert made.release_.label_probabilities != (0.5, 0.5)
        assert len(made.privacy_.charges) == 2
        plain = model().fit(*imbalanced)
        assert made.privacy_.epsilon > plain.privacy_.epsilon
        assert plain.release_.label_probabilities == (0.5, 0.5)

    def test_a_person_counts_once_in_them(self, imbalanced):
        """All records of class 1 are one person's: their count may move the frequencies by 1 at most."""
        images, labels = imbalanced
        groups = np.where(labels == 1, 0, np.arange(len(labels)) + 1)
        made = model(labels="released").fit(images, labels, groups=groups)
        assert made.release_.label_probabilities[1] <= 5 * 25 / 1800

    def test_given_shares(self, imbalanced):
        made = model(labels=(0.9, 0.1)).fit(*imbalanced)
        assert made.release_.label_probabilities == pytest.approx((0.9, 0.1))
        assert (made.sample(1000, seed=0)[1] == 1).mean() == pytest.approx(0.1, abs=0.05)
        array = model(labels=np.array([9, 1], dtype=np.float32)).fit(*imbalanced)
        assert array.release_.label_probabilities == pytest.approx((0.9, 0.1))


class TestPersons:
    def test_the_unit_is_the_person(self):
        images, labels, groups = tiny_arrays(persons=15)
        made = model().fit(images, labels, groups=groups)
        assert made.privacy_.unit == "person"
        assert made.plan_.facts.units == len(set(groups.tolist()))
        assert made.plan_.expected_batch == pytest.approx(0.3 * 90)

    def test_one_person_with_everything(self):
        images, labels, _ = tiny_arrays()
        with pytest.raises(TrainingError, match=r"about 0 persons a class .* too few.*anyway=True"):
            model(anyway=False).fit(images, labels, groups=["me"] * len(images))
        made = model().fit(images, labels, groups=["me"] * len(images))
        assert made.plan_.facts.units == 1


class TestLedger:
    def test_two_fits_add_up(self, tmp_path):
        images, labels, _ = tiny_arrays()
        path = tmp_path / "ledger.jsonl"
        Ledger.open(path, epsilon, budget=Budget(50.0, 1e-5)).close()
        first, second = (model(ledger=path).fit(images, labels) for _ in range(2))
        statement = read_ledger(path)
        assert len(statement.runs) == 2
        assert second.privacy_.epsilon == pytest.approx(epsilon(statement.total(), 1e-5, "rdp"))
        assert second.privacy_.epsilon > first.privacy_.epsilon
        assert sum(spend.steps for spend in statement.spends) == 12

    def test_no_room(self, tmp_path):
        images, labels, _ = tiny_arrays()
        path = tmp_path / "ledger.jsonl"
        model(ledger=path).fit(images, labels)
        again = model(ledger=path)
        with pytest.raises(TrainingError, match="no room"):
            again.fit(images, labels)
        assert not hasattr(again, "release_")

    def test_a_fit_that_is_stopped(self, tmp_path):
        images, labels, _ = tiny_arrays()
        path = tmp_path / "ledger.jsonl"
        with pytest.raises(TrainingError, match="stopped"):
            model(ledger=path).fit(images, labels, watch=lambda _: True)
        assert read_ledger(path).spends  # what was used stays on record


def test_several_models_on_one_ledger(tmp_path):
    images, labels, _ = tiny_arrays()
    ledger = tmp_path / "all.jsonl"
    spent = [
        model(ledger=ledger, budget=budget).fit(images, labels).privacy_.epsilon for budget in (90, None)
    ]
    assert 0 < spent[0] < spent[1] <= 90
    with pytest.raises(TrainingError, match="has its budget already"):
        model(ledger=ledger, budget=90).fit(images, labels)
    assert read_ledger(ledger).budget.epsilon == 90
