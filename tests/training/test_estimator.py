"""`DPSinkhorn`: fit, sample, save, in scikit-learn's manner."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import tempfile
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import dpsinkhorn
from dpsinkhorn import DPSinkhorn, Variation
from dpsinkhorn.data import DataError, load_dataset
from dpsinkhorn.privacy import Budget, Ledger, epsilon, format_epsilon, read_ledger
from dpsinkhorn.release import ReleaseError
from dpsinkhorn.training import Run, TrainingError, fitting, watching
from support.modules import OwnNet
from support.runs import IMAGES, LABELS, tiny_arrays

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


def drawn(*data):
    """Images and labels of a model that was fitted to these data; equal data give equal ones."""
    return model(random_state=3).fit(*data).sample(9, random_state=0)


class Table(list):
    """Stands in for `datasets.Dataset`."""

    features = column_names = ()


class Parts(dict):
    """Stands in for `datasets.DatasetDict`."""

    column_names = ()


@pytest.fixture(scope="module")
def fitted():
    return model().fit(IMAGES, LABELS)


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
        for ours, theirs in zip(
            fitted.sample(20, random_state=1), release.sample(20, random_state=1), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
        assert release.privacy == fitted.privacy_
        assert release.label_source == "uniform"

    def test_what_is_said_of_it(self, fitted, tmp_path):
        names = ["none", "some", "all"]
        fitted.save(tmp_path / "r", title="Digits", contact="dpo@example.org", class_names=names)
        release = dpsinkhorn.load(tmp_path / "r")
        assert (release.about.title, release.about.contact) == ("Digits", "dpo@example.org")
        assert release.sample(2, labels="some")[1].tolist() == [1, 1]
        for wrong in ({"class_names": ["a"]}, {"title": ""}, {"purpose": "two\nlines"}):
            with pytest.raises(ReleaseError):
                fitted.save(tmp_path / "s", **wrong)
        assert not (tmp_path / "s").exists()

    def test_variation_is_asked_for(self, fitted):
        plain, grainy = (
            fitted.sample(9, random_state=1, variation=v)[0] for v in (None, Variation(grain=0.5))
        )
        assert not np.array_equal(plain, grainy)
        np.testing.assert_array_equal(
            plain, fitted.sample(9, random_state=1, vary=True)[0]
        )  # its recipe has none

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
        made = model(epsilon=np.float64(2.0), delta=1e-3).fit(IMAGES, LABELS)
        assert 1.9 < made.privacy_.epsilon <= 2
        assert made.privacy_.delta == 1e-3


class TestEpsilon:
    def test_it_must_be_given(self):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'epsilon'"):
            DPSinkhorn()
        with pytest.raises(TrainingError, match="needs a budget: give epsilon"):
            DPSinkhorn(epsilon=None).fit(*tiny_arrays()[:2])


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
        first, second = (model(random_state=np.int64(4)).fit(IMAGES, LABELS) for _ in range(2))
        np.testing.assert_array_equal(first.sample(9, random_state=0)[0], second.sample(9, random_state=0)[0])
        assert not first.privacy_.releasable
        first.save(tmp_path / "release")
        assert not dpsinkhorn.load(tmp_path / "release").releasable

    def test_without_a_seed_no_two_fits_are_equal(self):
        first, second = (model().fit(IMAGES, LABELS) for _ in range(2))
        assert (first.sample(9, random_state=0)[0] != second.sample(9, random_state=0)[0]).any()

    @pytest.mark.parametrize("seed", [np.random.default_rng(0), 1.5, "3", True])
    def test_what_is_no_seed(self, seed):
        with pytest.raises(TrainingError, match="random_state"):
            model(random_state=seed).fit(IMAGES, LABELS)

    def test_fitting_again_replaces_what_was_learnt(self):
        made = model().fit(IMAGES, LABELS)
        made.fit(IMAGES[:, :3], LABELS)
        assert made.sample(1)[0].shape == (1, 3, 4)

    def test_a_fit_that_fails_leaves_what_was_learnt_before(self):
        made = model().fit(IMAGES, LABELS)
        before = made.plan_, made.release_, made.privacy_, list(made.classes_)
        with pytest.raises(TrainingError, match="stopped"):
            made.fit(IMAGES[:, :3], LABELS % 2, watch=lambda _: True)
        assert (made.plan_, made.release_, made.privacy_, list(made.classes_)) == before

    def test_a_declared_number_of_records(self):
        made = model(records=np.int64(100)).fit(IMAGES, LABELS)
        assert made.plan_.facts.records == 100
        assert not made.privacy_.size_is_public
        for bad in (0, 1.5, "90", True):
            with pytest.raises(TrainingError, match="records"):
                model(records=bad).fit(IMAGES, LABELS)

    def test_and_nothing_follows_from_the_true_one(self):
        """With a class of one's own, too, sizes that a recipe takes from facts follow the declared one."""
        own = {"recipe": "mixture", "generator": OwnNet, "settings": {"privacy": {"noise_multiplier": 5.0}}}
        images, labels, _ = tiny_arrays(records=500, shape=(8, 8))
        plans = [
            model(records=200, **own).fit(images[:count], labels[:count]).plan_.to_json()
            for count in (60, 500)
        ]
        assert plans[0] == plans[1]


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
        seeded = model(random_state=4, budget=50, ledger=tmp_path / "ledger.jsonl")
        interrupt = partial(os.kill, os.getpid(), signal.SIGINT)
        with pytest.raises(TrainingError if how == "watch" else KeyboardInterrupt, match="to go on"):
            seeded.fit(IMAGES, LABELS, watch=lambda _: how == "watch" or interrupt(), folder=tmp_path / "run")
        with pytest.raises(TrainingError, match="a run with other settings or data"):
            model(random_state=5).fit(IMAGES, LABELS, folder=tmp_path / "run")
        found = seeded.fit(IMAGES, LABELS, folder=tmp_path / "run").sample(9, random_state=0)[0]
        whole = model(random_state=4).fit(IMAGES, LABELS)
        np.testing.assert_array_equal(found, whole.sample(9, random_state=0)[0])
        assert seeded.privacy_.charges == whole.privacy_.charges
        with pytest.raises(TrainingError, match="is finished"):
            seeded.fit(IMAGES, LABELS, folder=tmp_path / "run")


class TestProgress:
    @pytest.mark.parametrize("verbose", [True, False])
    def test_a_bar_where_one_can_be_drawn(self, verbose, monkeypatch):
        terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
        monkeypatch.setattr(fitting, "notebook_or_terminal", lambda: terminal)
        made = model(verbose=verbose).fit(*tiny_arrays()[:2])
        drawn = terminal.file.getvalue()
        assert ("6/6" in drawn) == (f"of {format_epsilon(made.plan_.budget_epsilon)}" in drawn) == verbose

    @pytest.mark.parametrize(("widgets", "file"), [(None, "stdout"), (object(), "stderr")])
    def test_a_notebook(self, widgets, file, monkeypatch):
        assert watching.notebook_or_terminal() is None  # a test has neither
        monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: widgets)
        console = watching.notebook_or_terminal()
        assert console.file is getattr(sys, file)
        assert console.is_jupyter == (widgets is not None)


class TestAdvice:
    """Said before anything is spent, and once."""

    def test_none_where_all_is_well(self, recwarn):
        model().fit(IMAGES, LABELS)
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
        with pytest.raises(TrainingError, match=f"{name} must be a number, not '3'"):
            model(**{name: "3"}).fit(IMAGES, LABELS)


class TestKindsOfData:
    def test_data_sets_of_pytorch(self):
        first = torch.from_numpy(IMAGES)[:, None] / 255  # float, channels first, as torchvision has them
        pairs = torch.utils.data.TensorDataset(first, torch.from_numpy(LABELS))
        for found, plain in zip(drawn(pairs), drawn(IMAGES, LABELS), strict=True):
            np.testing.assert_array_equal(found, plain)
        alone = model().fit(torch.utils.data.TensorDataset(first), LABELS)
        assert alone.classes_.tolist() == [0, 1, 2]
        assert model().fit(torch.utils.data.Subset(pairs, range(60))).plan_.facts.records == 60
        with pytest.raises(DataError, match=r"give its data set \(loader.dataset\)"):
            model().fit(torch.utils.data.DataLoader(pairs))
        with pytest.raises(DataError, match="a record has 3 parts"):
            model().fit(torch.utils.data.TensorDataset(first, first, first))

    def test_data_sets_of_hugging_face(self):
        rows = [
            {"img": Image.fromarray(image), "label": ["bee", "cat", "ant"][label], "age": 3}
            for image, label in zip(IMAGES, LABELS, strict=True)
        ]
        found, plain = drawn(Table(rows)), drawn(IMAGES, np.array([1, 2, 0])[LABELS])
        np.testing.assert_array_equal(found[0], plain[0])
        assert found[1].tolist() == [["ant", "bee", "cat"][number] for number in plain[1]]
        with pytest.raises(DataError, match=r"give one of them \(data\['train'\]\)"):
            model().fit(Parts(train=Table(rows)))
        with pytest.raises(DataError, match="no image among scan, age; rename that column to image"):
            model().fit(Table([{"scan": row["img"], "age": 3} for row in rows]))

    def test_a_tensor_may_have_its_channels_first(self):
        tensor = torch.from_numpy(IMAGES).requires_grad_(False)
        plain = drawn(IMAGES, LABELS)[0]
        for form in (tensor, tensor[:, None], tensor[..., None], list(tensor[:, None])):
            np.testing.assert_array_equal(drawn(form, LABELS)[0], plain)

    def test_columns_and_tables_of_pandas(self, tmp_path):
        pandas = pytest.importorskip("pandas", reason="pandas is not installed: its tables are not tried")
        paths = [str(tmp_path / f"{row}.png") for row in range(len(IMAGES))]
        for path, image in zip(paths, IMAGES, strict=True):
            Image.fromarray(image).save(path)
        frame = pandas.DataFrame({"age": 3, "image": list(IMAGES), "label": LABELS, "path": paths})
        for data in (
            (frame,),
            (frame[["path", "label"]],),
            (frame["image"], frame["label"]),
            (frame["path"], frame["label"].astype("category")),
            (paths, LABELS),
        ):
            for found, plain in zip(drawn(*data), drawn(IMAGES, LABELS), strict=True):
                np.testing.assert_array_equal(found, plain)
        table = pandas.DataFrame(IMAGES.reshape(len(IMAGES), -1))
        with pytest.raises(DataError, match=r"images only.*a height and a width: np.reshape\(images, "):
            model().fit(table, LABELS)
        with pytest.raises(DataError, match=r"cannot read the picture owl\.png: there is no such file"):
            model().fit(pandas.Series(["owl.png"] * 9), LABELS[:9])

    def test_a_file_as_the_command_line_reads_it(self, tmp_path):
        images, labels, groups = tiny_arrays(persons=15)
        names = np.array(["bee", "cat", "ant"])[labels]
        np.savez(tmp_path / "scans.npz", images=images, finding=names, patient=groups)
        made = model(random_state=3).fit(str(tmp_path / "scans.npz"), "finding", groups="patient")
        plain = model(random_state=3).fit(images, names, groups=groups)
        for found, same in zip(made.sample(9, random_state=0), plain.sample(9, random_state=0), strict=True):
            np.testing.assert_array_equal(found, same)
        assert made.privacy_.unit == "person"
        assert made.release_.class_names == ()  # text of private labels is not published
        with pytest.warns(UserWarning, match="not used: patient. One that tells whose a record is must be"):
            model().fit(tmp_path / "scans.npz", "finding")
        with pytest.raises(TrainingError, match=r"y must name a column of .*scans.npz, or be left out"):
            model().fit(tmp_path / "scans.npz", names)

    def test_a_folder_of_pictures(self, tmp_path):
        for row, image in enumerate(tiny_arrays(records=30)[0]):
            (tmp_path / "ab"[row % 2]).mkdir(exist_ok=True)
            Image.fromarray(image).save(tmp_path / "ab"[row % 2] / f"{row}.png")
        (tmp_path / "notes.txt").write_text("none")
        with pytest.warns(UserWarning, match="1 file that is no picture was skipped") as caught:
            made = model().fit(tmp_path)
        assert caught[0].filename == __file__
        assert made.classes_.tolist() == ["a", "b"]

    def test_a_dataset_with_options_of_its_own(self):
        digits = load_dataset("digits", split="test", size=4)
        made = model().fit(digits)
        assert made.sample(2)[0].shape == (2, 4, 4)
        assert made.classes_.tolist() == list(range(10))
        for model_of, y in ((model(classes=10), None), (model(), digits.labels)):
            with pytest.raises(TrainingError, match="a Dataset has y, groups, classes and value_range"):
                model_of.fit(digits, y)

    def test_lists(self):
        images, labels, _ = tiny_arrays(records=30)
        made = model(value_range=(0, 255)).fit(images.tolist(), labels.tolist())
        assert made.sample(2)[0].shape == (2, 4, 4)

    def test_unlabelled(self):
        made = model().fit(tiny_arrays()[0])
        images, labels = made.sample(4)
        assert images.shape == (4, 4, 4)
        assert labels is None

    @pytest.mark.parametrize(
        "written",
        [
            *(["bee", "cat", "ant"], ["1", "2", "10"], [7, -1, 3], [2.0, 4.0, 1.0]),
            *(np.array([300, 5, 100], dtype=np.uint16), np.array(["bee", "cat", "ant"], dtype=object)),
        ],
    )
    def test_labels_come_back_as_they_went_in(self, written, tmp_path):
        written = np.array(written)
        made = model().fit(IMAGES, written[LABELS])
        assert sorted(made.classes_.tolist()) == sorted(written.tolist())
        _, found = made.sample(200, random_state=0)
        assert set(found.tolist()) == set(written.tolist())
        assert found.dtype.kind == ("U" if written.dtype.kind == "O" else written.dtype.kind)
        _, numbers = made.release_.sample(200, random_state=0)
        assert (made.classes_[numbers] == found).all()
        ours, label = made.sample(4, written[0], random_state=1)
        assert (label == written[0]).all()
        number = made.classes_.tolist().index(written[0])
        assert (ours == made.release_.sample(4, number, random_state=1)[0]).all()
        with pytest.raises(TrainingError, match="'owl' is none of the classes: they are "):
            made.sample(4, ["owl"] * 4)
        with pytest.warns(UserWarning, match="out of the release: its classes are numbers from 0 to 2"):
            made.save(tmp_path / "release")
        kept = b"".join(path.read_bytes() for path in (tmp_path / "release").glob("*.[jm]*"))
        assert not re.search(rb"\bbee\b", kept)  # text of private labels is not published
        assert dpsinkhorn.load(tmp_path / "release").class_names == ()

    def test_names_that_are_stated(self):
        stated = model(classes=("cat", "bee", "ant")).fit(IMAGES, np.array(["bee", "cat", "ant"])[LABELS])
        assert stated.release_.class_names == ("cat", "bee", "ant")
        assert clone(stated).classes == ("cat", "bee", "ant")
        assert stated.sample(2, "ant")[1].tolist() == ["ant", "ant"]
        numbers = model(classes=("7", "3", "5")).fit(IMAGES, np.array([3, 5, 7])[LABELS])
        assert numbers.release_.class_names == ("7", "3", "5")
        assert numbers.sample(2, 5)[1].tolist() == [5, 5]

    def test_classes_by_number(self):
        assert model(classes=3).fit(IMAGES, LABELS).classes_.tolist() == [0, 1, 2]
        assert model(classes=4).fit(IMAGES, LABELS).sample(3, labels=3)[0].shape == (3, 4, 4)
        with pytest.raises(DataError, match="2 classes stated"):
            model(classes=2).fit(IMAGES, LABELS)

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
        settings = dict(SMALL)
        if mechanism == "none":
            settings["privacy"] = {"steps": 6, "sampling_rate": 0.3}
        made = model(recipe="digits", mechanism=mechanism, settings=settings).fit(IMAGES, LABELS)
        assert made.privacy_.mechanism == mechanism
        assert made.privacy_.releasable == (mechanism != "none")

    @pytest.mark.parametrize(
        ("images", "labels", "words"),
        [
            (np.zeros((0, 4, 4), np.uint8), None, "empty"),
            (np.full((5, 4, 4), np.nan), None, "nan"),
            (np.zeros((5, 4, 4), np.uint8), [0, 1, 2], "5 images but 3 labels"),
            (np.zeros((5, 4, 4), np.uint8), [0, 1, 2, 3, 0.5], "must be whole numbers"),
            (np.zeros((5, 4, 4), np.uint8), [0, 1, 2, 3, None], "label is missing in row 4"),
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
        assert (made.sample(1000, random_state=0)[1] == 1).mean() == pytest.approx(0.1, abs=0.05)
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
        with pytest.raises(TrainingError, match=r"about 0 persons a class .* too few.*anyway=True"):
            model(anyway=False).fit(IMAGES, LABELS, groups=["me"] * len(IMAGES))
        made = model().fit(IMAGES, LABELS, groups=["me"] * len(IMAGES))
        assert made.plan_.facts.units == 1


class TestLedger:
    def test_two_fits_add_up(self, tmp_path):
        path = tmp_path / "ledger.jsonl"
        Ledger.open(path, epsilon, budget=Budget(50.0, 1e-5)).close()
        first, second = (model(ledger=path).fit(IMAGES, LABELS) for _ in range(2))
        statement = read_ledger(path)
        assert len(statement.runs) == 2
        assert second.privacy_.epsilon == pytest.approx(epsilon(statement.total(), 1e-5, "rdp"))
        assert second.privacy_.epsilon > first.privacy_.epsilon
        assert sum(spend.steps for spend in statement.spends) == 12

    def test_no_room(self, tmp_path):
        path = tmp_path / "ledger.jsonl"
        model(ledger=path).fit(IMAGES, LABELS)
        again = model(ledger=path)
        with pytest.raises(TrainingError, match="no room"):
            again.fit(IMAGES, LABELS)
        assert not hasattr(again, "release_")

    def test_a_fit_that_is_stopped(self, tmp_path):
        path = tmp_path / "ledger.jsonl"
        with pytest.raises(TrainingError, match="stopped"):
            model(ledger=path).fit(IMAGES, LABELS, watch=lambda _: True)
        assert read_ledger(path).spends  # what was used stays on record


def test_several_models_on_one_ledger(tmp_path):
    ledger = tmp_path / "all.jsonl"
    spent = [
        model(ledger=ledger, budget=budget).fit(IMAGES, LABELS).privacy_.epsilon for budget in (90, None)
    ]
    assert 0 < spent[0] < spent[1] <= 90
    with pytest.raises(TrainingError, match="has its budget already"):
        model(ledger=ledger, budget=90).fit(IMAGES, LABELS)
    assert read_ledger(ledger).budget.epsilon == 90
