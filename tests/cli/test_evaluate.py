"""`dpsinkhorn evaluate`, as a user meets it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import PROTOCOLS, downstream_utility, find_protocol, images_of
from dpsinkhorn.evaluation.architectures import mlp
from dpsinkhorn.generators import MLPConfig, Variation, build_generator, draw_latents
from dpsinkhorn.release import About, load, write_release
from support.releases import CONFIGS, EPSILON, not_private, statement, trained, write_small_release


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """Run `dpsinkhorn evaluate ARGUMENTS`."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))  # no Inception weights of this machine
    return partial(run, "evaluate")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A generator that draws digits, blurred: for each class it was shown the records of that class."""
    torch.set_num_threads(1)
    data = load_dataset("digits")
    points, labels = data.points(), torch.from_numpy(data.labels)
    generator = build_generator(MLPConfig(image_shape=(1, 8, 8), classes=10, hidden=(64,)), seed=0)
    optimizer = torch.optim.Adam(generator.parameters(), lr=5e-3)
    draws = torch.Generator().manual_seed(0)
    for _ in range(150):
        rows = torch.randint(len(points), (128,), generator=draws)
        images = generator(draw_latents(128, generator.config.latent, draws), labels[rows])
        optimizer.zero_grad()
        (images.flatten(1) - points[rows]).square().mean().backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("run") / "release"
    write_release(
        folder,
        generator.eval(),
        label_probabilities=None,
        privacy=statement(),
        about=About(title="Digits"),
        releasable=True,
    )
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The digits as files without parts; few to train on, so that features are quick to learn."""
    folder = tmp_path_factory.mktemp("files")
    for split, count in (("train", 200), ("test", 450)):
        data = load_dataset("digits", split=split)
        np.save(folder / f"{split}.npy", images_of(data)[:count])
        np.save(folder / f"{split}.labels.npy", data.labels[:count])
    return folder


@pytest.fixture
def quick(files):
    data = ("--data", files / "test.npy", "--train-data", files / "train.npy")
    return (*data, "--count", 200, "--device", "cpu")


def test_from_a_release_to_a_table(run, release, tmp_path, quick):
    output, near = tmp_path / "e.json", tmp_path / "near.png"
    pictures = ("--neighbours", near, "--beside", tmp_path / "both.png")
    status, out, err = run(release.parent, *quick, "--sets", 2, "--output", output, *pictures)
    assert status == 0
    # no terminal: how long it takes, and a line for each part
    parts = ["logistic", "forest", "mlp", "cnn", "features", "precision-recall"]
    warning, estimate, *lines = err.splitlines()
    assert "warning: evaluating on private data is not itself private" in warning
    assert "this takes about" in estimate
    assert lines == [f"dpsinkhorn: {part}" for part in parts]
    for part in (*parts[:4], "2 sets of 200", "plain", "quick", "balanced", "AUC", "frechet-cnn", "recall"):
        assert part in out
    assert "not covered by the privacy guarantee" in out
    found = json.loads(output.read_text())
    assert found["private"] is False
    assert "private data" in found["warning"]
    assert (found["epsilon"], found["count"], found["sets"], found["seed"]) == (EPSILON, 200, 2, 0)
    assert (found["protocol"]["name"], found["varied"]) == ("quick", False)
    ours, real = (
        {score["name"]: score for score in found[kind]["classifiers"]} for kind in ("utility", "real")
    )
    assert [len(ours[name]["runs"]) for name in parts[:4]] == [2] * 4
    assert ours["logistic"]["mean"] > 80
    assert real["forest"]["mean"] > ours["forest"]["mean"], "averages mislead a forest"
    row = next(line for line in out.splitlines() if line.strip().startswith("logistic"))
    shown = [float(word) for word in re.sub(r"±\S+", "", row).split()[1:]]
    names = [("mean", 1), ("balanced_accuracy", 1), ("roc_auc", 3)]
    scores = ours["logistic"], real["logistic"]
    assert shown == [float(f"{score[name]:.{digits}f}") for name, digits in names for score in scores]
    likeness = found["likeness"]
    assert likeness["frechet"] > 2 * likeness["floor"] > 0
    assert likeness["recall"] < 0.5 < likeness["real_recall"], "averages have little diversity"
    assert likeness["compared"] == 200
    assert "of 200 images on either side" in out
    # three digits of the distances, which may be far below 1
    row = next(line for line in out.splitlines() if "frechet-cnn (low" in line)
    shown = [float(word) for word in row.replace("│", " ").split()[-2:]]
    assert shown == [float(f"{likeness[name]:.3g}") for name in ("frechet", "floor")]
    # the picture's name says whom it is for
    assert found["neighbours"] == str(tmp_path / "near-CURATOR-ONLY.png")
    assert not near.exists()
    assert found["beside"] == str(tmp_path / "both-CURATOR-ONLY.png")
    for name in ("neighbours", "beside"):
        with Image.open(found[name]) as picture:
            assert picture.getpixel((0, 0)) == (176, 0, 32)


def test_figures_are_those_of_the_library(run, release, quick):
    status, out, _ = run(release, *quick, "--only", "logistic", "--seed", 7, "--json")
    assert status == 0
    images, labels = load(release).sample(200, random_state=7, device="cpu", variation=Variation())
    test = load_dataset("digits", split="test")
    expected = downstream_utility(
        images, labels, images_of(test), test.labels, classes=10, classifiers=["logistic"], device="cpu"
    )
    found = json.loads(out)
    assert found["utility"] == expected.to_json()
    assert found["release"] == str(release)
    assert found["real"] is found["likeness"] is None, "left out"


def test_the_same_seed_gives_the_same_figures(run, release, quick):
    arguments = (release, *quick, "--only", "forest,mlp", "--json")
    first, again, other = (run(*arguments, "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again != other


def test_plain_unless_variation_is_asked_for(run, release, tmp_path, quick):
    varied = dataclasses.replace(load(release).config, grain=0.8)
    generator = build_generator(varied, seed=0)
    generator.load_state_dict(load(release).generator.state_dict())
    write_release(tmp_path / "r", generator.eval(), label_probabilities=None, privacy=statement())
    arguments = (tmp_path / "r", *quick, "--only", "forest")
    plain, vary = run(*arguments), run(*arguments, "--vary")
    assert plain[0] == vary[0] == 0
    assert "(plain, as the generator renders them)" in " ".join(plain[1].split())
    assert "(with the release's variation)" in " ".join(vary[1].split())
    known = json.loads(run(release, *quick, "--only", "forest", "--json")[1])
    found = [json.loads(run(*arguments, *more, "--json")[1]) for more in ((), ("--vary",))]
    assert [one["varied"] for one in found] == [False, True]
    assert found[0]["utility"] == known["utility"] != found[1]["utility"]


def test_rare_classes(run, tmp_path):
    """Ten to one: what always says the frequent class has a good accuracy, and nothing else."""
    data = load_dataset("digits", split="test")
    rows = np.concatenate([np.flatnonzero(data.labels == 1), np.flatnonzero(data.labels == 8)[:5]])
    labels = (data.labels[rows] == 8).astype(np.int64)
    np.savez(tmp_path / "t.npz", images=images_of(data)[rows], labels=labels)
    generator = build_generator(MLPConfig(image_shape=(1, 8, 8), classes=2, hidden=(4,)), seed=0)
    write_release(tmp_path / "r", generator.eval(), label_probabilities=None, privacy=not_private())
    real = ("--data", tmp_path / "t.npz", "--train-data", tmp_path / "t.npz", "--count", 40)
    status, out, _ = run(tmp_path / "r", *real, "--only", "forest,real", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["real"]["tested_by_class"] == [45, 5]
    assert found["real"]["classifiers"][0]["roc_auc"] > 0.99
    assert 0 <= found["utility"]["classifiers"][0]["roc_auc"] <= 1
    _, out, _ = run(tmp_path / "r", *real, "--only", "forest,real")
    assert "the real ones: compare balanced accuracy and AUC" in " ".join(out.split())


def test_parts_of_a_named_set(run, release):
    arguments = ("--data", "digits", "--count", 40, "--only", "frechet", "--device", "cpu")
    status, out, _ = run(release, *arguments, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["data"] == "digits"
    assert "public data set" in found["warning"]
    assert found["likeness"]["floor_from"] == "40 training images against the test images"


@pytest.mark.parametrize(("training", "public"), [((), True), (("--train-data", "OWN"), False)])
def test_a_public_set_is_called_one(run, release, files, training, public):
    training = [str(files / "train.npy") if word == "OWN" else word for word in training]
    arguments = ("--data", "digits", "--count", 40, "--only", "logistic", "--device", "cpu")
    status, out, err = run(release, *arguments, *training)
    assert status == 0
    assert ("private data" in err) is not public
    words = " ".join(out.split())
    assert ("computed from a public data set" in words) is public
    assert ("for the curator alone and are not covered" in words) is not public


def test_a_folder_of_a_public_name_is_not_public(run, release, tmp_path):
    write_pictures(tmp_path / "digits", load_dataset("digits", split="test"))
    usual = ("--count", 40, "--only", "logistic", "--device", "cpu", "--json")
    _, out, err = run(release, "--data", tmp_path / "digits", *usual)
    assert "private data" in err
    assert "private data" in json.loads(out)["warning"]


def test_files_of_ones_own(run, release, files):
    arguments = (release, "--data", files / "test.npy", "--count", 60, "--only", "frechet", "--device", "cpu")
    status, out, _ = run(*arguments, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["utility"] is None
    assert "half" in found["likeness"]["floor_from"]
    status, out, _ = run(*arguments, "--train-data", files / "train.npy")
    assert status == 0
    assert "60 training images" in out


def write_pictures(folder, data):
    for k, (image, label) in enumerate(zip(images_of(data), data.labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{k:04}.png")
    return folder


@pytest.mark.parametrize("form", ["npz", "npz of one's own names", "folder", "csv"])
def test_a_source_without_parts_is_taken_whole(run, refused, release, tmp_path, form):
    test = load_dataset("digits", split="test")
    pixels, options = images_of(test), ()
    if form == "folder":
        source = write_pictures(tmp_path / "pictures", test)
    elif form == "csv":
        source = tmp_path / "t.csv"
        header = ",".join(["label", *(f"pixel{k}" for k in range(64))])
        table = np.column_stack([test.labels, pixels.reshape(len(pixels), -1)])
        np.savetxt(source, table, fmt="%d", delimiter=",", header=header, comments="")
    elif form == "npz":
        source = tmp_path / "t.npz"
        np.savez(source, images=(pixels / 255).astype(np.float32), labels=test.labels)
    else:
        source, options = tmp_path / "t.npz", ("--image", "scans", "--label", "kind")
        np.savez(source, scans=pixels, kind=test.labels)
    usual = ("--count", 40, "--only", "frechet", "--device", "cpu", "--json")
    status, out, err = run(release, "--data", source, *options, *usual)
    assert status == 0, err
    # the images are not compared with themselves as if they were those for training
    assert "half" in json.loads(out)["likeness"]["floor_from"]
    if options:
        return
    assert "or give split train (--split train)" in refused(
        release, "--data", source, "--split", "test", *usual
    )


def test_an_array_is_not_compared_with_itself(run, release, tmp_path):
    test = load_dataset("digits", split="test")
    parts = {"x_train": images_of(test)[::-1], "y_train": test.labels[::-1]}
    np.savez(tmp_path / "t.npz", **parts, x_test=images_of(test), y_test=test.labels)
    usual = ("--data", tmp_path / "t.npz", "--count", 40, "--only", "frechet", "--device", "cpu", "--json")
    assert "training" in json.loads(run(release, *usual)[1])["likeness"]["floor_from"]
    _, out, _ = run(release, *usual, "--image", "x_test")
    assert "half" in json.loads(out)["likeness"]["floor_from"]


def test_a_release_without_classes(run, tmp_path, files):
    write_release(
        tmp_path / "r", trained(CONFIGS["unconditional"]), label_probabilities=None, privacy=not_private()
    )
    status, out, _ = run(
        tmp_path / "r", "--data", files / "test.npy", "--unlabelled", "--count", 30, "--json"
    )
    assert status == 0
    found = json.loads(out)
    assert found["utility"] is None
    assert found["epsilon"] is None
    assert found["likeness"]["name"] == "frechet-random-cnn"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--unlabelled"], "--label"),
        (["--classes", "12"], "12 classes but the release has 10"),
        (["--size", "9"], "9 x 9"),
        (["--channels", "3"], "colour"),
        (["--data", "nowhere.npz"], "nowhere.npz"),
        (["--split", "valid"], "valid"),
        (["--train-data", "nowhere"], "nowhere"),
        (["--count", "0"], "count"),
        (["--count", "10"], "20 images"),
        (["--sets", "0"], "sets must be"),
        (["--protocol", "thorough"], "authors"),
        (["--only", "frechet,svm"], "logistic, forest, mlp, cnn, real, frechet, precision-recall"),
        (["--only", "real"], "name some of them"),
        (["--vary"], "no variation of its own"),
        (["--features", "vgg"], "--features"),
        (["--features", "inception", "--inception-weights", "{}/none.pth"], "none.pth"),
        (["--device", "abacus"], "abacus"),
        (["--seed", "-1"], "seed"),
        (["--output", "{}/e.csv"], ".json"),
        (["--output", "{}/no/e.json"], "create it first"),
        (["--neighbours", "{}/n.jpg"], ".png"),
        (["--output", "RELEASE/e.json"], "leaves the building"),
        (["--neighbours", "RELEASE/n.png"], "leaves the building"),
        (["--beside", "RELEASE/b.png"], "leaves the building"),
        (["--beside", "{}/b.gif"], ".png"),
        (["--protocol", "dpimagebench", "--only", "mlp,cnn"], "resnet, wide-resnet, resnext"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(run, release, tmp_path, arguments, part):
    before = sorted(release.iterdir())
    places = [text.replace("{}", str(tmp_path)).replace("RELEASE", str(release)) for text in arguments]
    usual = ["--data", "digits", "--count", "100", "--only", "mlp"]
    usual = usual[:-2] if "--features" in arguments else usual
    status, out, err = run(release, *usual, *places)
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if "warning: evaluating" not in line]
    assert len(lines) == 1
    assert part in lines[0]
    assert sorted(release.iterdir()) == before
    assert list(tmp_path.iterdir()) == []


def test_classes_that_differ(refused, tmp_path, quick):
    write_small_release(tmp_path / "r")  # three classes
    assert "test.npy has 10 classes but the release has 3" in refused(tmp_path / "r", *quick)


def test_classes_in_another_order(run, refused, tmp_path):
    names = ["zero", "one", "two"]
    write_small_release(tmp_path / "r", class_names=names)
    data = load_dataset("digits", split="test")
    kept = data.labels < 3
    np.savez(tmp_path / "t.npz", images=images_of(data)[kept], labels=np.array(names)[data.labels[kept]])
    usual = ("--data", tmp_path / "t.npz", "--count", 40, "--only", "logistic", "--device", "cpu")
    assert "in another order; state --classes zero,one,two" in refused(tmp_path / "r", *usual)
    assert run(tmp_path / "r", *usual, "--classes", "zero,one,two")[0] == 0


def test_neighbours_need_training_images(refused, release, files, tmp_path):
    assert "--train-data" in refused(
        release, "--data", files / "test.npy", "--neighbours", tmp_path / "n.png"
    )


def test_what_is_there_stays(run, release, tmp_path, quick):
    output = tmp_path / "e.json"
    output.write_text("mine")
    status, out, err = run(release, *quick, "--output", output)
    assert (status, out) == (2, "")
    assert "--force" in err
    assert output.read_text() == "mine"
    assert run(release, *quick, "--only", "frechet", "--output", output, "--force")[0] == 0
    assert json.loads(output.read_text())["count"] == 200


def test_no_release(refused, tmp_path, quick):
    assert "not a release" in refused(tmp_path, *quick)


def test_dpimagebench_says_both_choices(run, release, quick, monkeypatch):
    """Tiny networks in the place of the large ones."""
    chosen = find_protocol("dpimagebench")
    tiny = {
        name: dataclasses.replace(spec, build=mlp, epochs=2, batch=32)
        for name, spec in chosen.classifiers.items()
    }
    monkeypatch.setitem(PROTOCOLS, "dpimagebench", dataclasses.replace(chosen, classifiers=tiny))
    status, out, _ = run(release, *quick, "--protocol", "dpimagebench", "--only", "resnet,resnext,real")
    assert status == 0
    words = " ".join(out.split())
    for name in ("resnet", "resnext"):
        assert f"{name} * " in words
    assert re.search(r"Trained on synthetic images: mean \d+\.\d, best .* images, \* alone: mean \d+", words)
    assert "1/(55,000 ln 55,000) = 1.7e-6" in words
    assert 1 / (55_000 * math.log(55_000)) == pytest.approx(1.7e-6, rel=0.03)
