"""What is fuzzed: the files of each format that we read, whole to begin with, and how they are read."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpsinkhorn.data import DataError, from_arrays, load_dataset
from dpsinkhorn.privacy import Ledger
from dpsinkhorn.privacy.journal import JournalDamagedError
from dpsinkhorn.release import ReleaseError, load
from dpsinkhorn.report import ReportError, write_report
from dpsinkhorn.training import Run, Saving, TrainingError, choose_recipe, facts_of, make_plan
from dpsinkhorn.transport import TransportError
from dpsinkhorn.transport.reading import read_points
from support.fuzz import png


@dataclass(frozen=True)
class Aim:
    files: dict[str, bytes]
    place: Callable[[str], Path]
    read: Callable[[], object]
    errors: tuple[type[Exception], ...]


RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (12, 6, 5), dtype=np.uint8)
LABELS = np.arange(12) % 3


def one_file(folder: Path, name: str, content: bytes, **options) -> Aim:
    path = folder / name
    return Aim({name: content}, lambda _: path, lambda: load_dataset(path, **options), (DataError,))


def idx(folder: Path) -> Aim:
    images = bytes([0, 0, 8, 3]) + struct.pack(">3I", *IMAGES.shape) + IMAGES.tobytes()
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", len(LABELS)) + LABELS.astype(np.uint8).tobytes()
    place = folder / "idx"
    place.mkdir()
    files = {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte.gz": gzip.compress(labels)}
    for name, content in files.items():
        (place / name).write_bytes(content)
    return Aim(files, lambda name: place / name, lambda: load_dataset(place), (DataError,))


def npz(folder: Path) -> Aim:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=IMAGES, labels=LABELS)
    return one_file(folder, "data.npz", buffer.getvalue())


def npy(folder: Path) -> Aim:
    buffer = io.BytesIO()
    np.save(buffer, IMAGES)
    return one_file(folder, "data.npy", buffer.getvalue(), unlabelled=True)


def picture(folder: Path) -> Aim:
    place = folder / "pictures"
    files = {f"{label}/{k}.png": png(IMAGES[k]) for k, label in enumerate(("a", "b", "a"))}
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return Aim(files, lambda name: place / name, lambda: load_dataset(place), (DataError,))


def csv(folder: Path) -> Aim:
    rows = [",".join(map(str, [*image.ravel(), label])) for image, label in zip(IMAGES, LABELS, strict=True)]
    head = ",".join([*(f"p{k}" for k in range(30)), "label"])
    text = "\n".join([head, *rows]) + "\n"
    return one_file(folder, "data.csv", text.encode(), size=(6, 5), label="label")


def parquet(folder: Path) -> Aim:
    buffer = io.BytesIO()
    table = pa.table({"image": [png(image) for image in IMAGES], "label": LABELS})
    pq.write_table(table, buffer)
    return one_file(folder, "data.parquet", buffer.getvalue())


def trained(folder: Path) -> Run:
    data = from_arrays(IMAGES, LABELS)
    settings = {
        "privacy": {"steps": 2, "batch": 6},
        "loss": {"generated_per_class": 1},
        "generator": {"hidden": [8]},
    }
    recipe = choose_recipe(facts_of(data), mechanism="record", settings=settings)
    plan = make_plan(recipe, facts_of(data), budget_epsilon=50.0)
    run = Run.create(folder / "run", plan)
    assert run.train(data, saving=Saving(picture_steps=0))
    return run


def release(folder: Path) -> Aim:
    place = trained(folder).release_folder
    files = {path.name: path.read_bytes() for path in place.iterdir()}
    return Aim(
        files, lambda name: place / name, lambda: load(place).sample(2, random_state=0), (ReleaseError,)
    )


def checkpoint(folder: Path) -> Aim:
    run = trained(folder)
    release = run.release_folder
    release.rename(folder / "aside")
    data = from_arrays(IMAGES, LABELS)
    files = {name: (run.folder / name).read_bytes() for name in ("checkpoint.safetensors", "run.json")}
    everything = {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}

    def read() -> None:
        try:
            Run.resume(run.folder).train(data, saving=Saving(picture_steps=0), watch=lambda _: True)
        finally:  # what a resumed run wrote is put back
            shutil.rmtree(release, ignore_errors=True)
            for name, content in everything.items():
                (run.folder / name).write_bytes(content)

    return Aim(files, lambda name: run.folder / name, read, (TrainingError, JournalDamagedError))


def ledger(folder: Path) -> Aim:
    run = trained(folder)
    path = run.ledger_path
    files = {path.name: path.read_bytes()}

    def read() -> None:
        with Ledger.open(path, lambda *_: 1.0):
            pass

    return Aim(files, lambda _: path, read, (JournalDamagedError, ValueError))


def report(folder: Path) -> Aim:
    run = trained(folder)
    files = {name: (run.folder / name).read_bytes() for name in ("run.json", "ledger.jsonl")}
    return Aim(files, lambda name: run.folder / name, lambda: write_report(run.folder), (ReportError,))


def points(folder: Path) -> Aim:
    table = pa.table({name: RANDOM.random(20) for name in "abc"})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    path = folder / "points.parquet"
    return Aim({path.name: buffer.getvalue()}, lambda _: path, lambda: read_points(path), (TransportError,))


TARGETS = {
    each.__name__: each
    for each in (idx, npz, npy, picture, csv, parquet, release, checkpoint, ledger, report, points)
}
