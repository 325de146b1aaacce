"""Data sets known by name: what they are, where they lie, and where they can be had."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from dpsinkhorn.data import formats
from dpsinkhorn.data.errors import DataError
from dpsinkhorn.data.folders import is_celeba
from dpsinkhorn.data.formats import CIFAR_CLASSES, CIFAR_FILES

__all__ = ["KNOWN", "KnownDataset", "RemoteFile", "advice", "data_folder", "find_known", "require_known"]


@dataclass(frozen=True)
class RemoteFile:
    """A file on the network: places to try in turn, its length in bytes, and its SHA-256."""

    name: str
    urls: tuple[str, ...]
    length: int
    sha256: str


@dataclass(frozen=True)
class KnownDataset:
    """A data set that goes by a name."""

    name: str
    description: str
    image_shape: tuple[int, int, int]  # (C, H, W)
    classes: int
    records: dict[str, int]  # per split
    licence: str
    homepage: str
    files: tuple[RemoteFile, ...] = ()
    places: tuple[str, ...] = ()  # below the data folder; downloads go to the folder of its name
    system_places: tuple[str, ...] = ()  # where packages of the system put it
    advice: str = ""  # how else to get it
    class_names: tuple[str, ...] = ()


def data_folder() -> Path:
    """Where data sets are kept: DPSINKHORN_DATA, else a folder in the user's cache."""
    stated = os.environ.get("DPSINKHORN_DATA")
    if stated:
        return Path(stated).expanduser()
    return platformdirs.user_cache_path("dpsinkhorn", appauthor=False, opinion=False)


def find_known(known: KnownDataset, folder: Path | None = None, split: str | None = None) -> Path | None:
    """Where a data set is installed; None where it is not. `digits` is part of scikit-learn."""
    if known.name == "digits":
        package = importlib.util.find_spec("sklearn")
        return None if package is None or package.origin is None else Path(package.origin).parent
    base = data_folder() if folder is None else folder
    candidates = [base / place for place in known.places] + [Path(place) for place in known.system_places]
    return next((path for path in candidates if path.is_dir() and _holds(known, path, split)), None)


def require_known(known: KnownDataset, folder: Path | None = None, split: str | None = None) -> Path:
    """Where a data set is installed, or one line on how to get it."""
    found = find_known(known, folder, split)
    if found is None:
        base = data_folder() if folder is None else folder
        how = f"run `dpsinkhorn data get {known.name}`" if known.files else known.advice
        raise DataError(
            f"{known.name} is not in {base}; {how}, or set DPSINKHORN_DATA to the folder that has it"
        )
    return found


def advice(known: KnownDataset, folder: Path | None = None) -> str:
    """What to do where a data set cannot be downloaded."""
    base = data_folder() if folder is None else folder
    return known.advice.format(folder=base / known.name)


def _holds(known: KnownDataset, path: Path, split: str | None) -> bool:
    """Whether a folder holds a split of a data set; None: all that belongs to it."""
    if known.name == "celeba":
        return is_celeba(path)
    splits = list(known.records) if split is None else [split]
    if known.name == "cifar10":
        return all((path / name).is_file() for part in splits for name in CIFAR_FILES.get(part, ()))
    images = [formats.find_idx(path, part) for part in splits]
    return all(file is not None and formats.labels_beside(file) is not None for file in images)


def _idx_files(bases: tuple[str, ...], parts: dict[str, tuple[int, str]]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{stem}.gz", tuple(f"{base}/{stem}.gz" for base in bases), length, sha256)
        for stem, (length, sha256) in parts.items()
    )


_ALL = (
    KnownDataset(
        "digits",
        "handwritten digits, 8 x 8 grey; part of scikit-learn",
        (1, 8, 8),
        10,
        {"train": 1347, "test": 450},
        "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/80",
    ),
    KnownDataset(
        "mnist",
        "handwritten digits, 28 x 28 grey",
        (1, 28, 28),
        10,
        {"train": 60_000, "test": 10_000},
        "CC BY-SA 3.0",
        "http://yann.lecun.com/exdb/mnist",
        _idx_files(
            (
                "https://storage.googleapis.com/cvdf-datasets/mnist",
                "https://ossci-datasets.s3.amazonaws.com/mnist",
            ),
            {
                "train-images-idx3-ubyte": (
                    9_912_422,
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                "train-labels-idx1-ubyte": (
                    28_881,
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                "t10k-images-idx3-ubyte": (
                    1_648_877,
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                "t10k-labels-idx1-ubyte": (
                    4_542,
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            },
        ),
        ("mnist", "MNIST/raw"),
        advice="put its four idx files (train-images-idx3-ubyte.gz and so on) into {folder}",
    ),
    KnownDataset(
        "fashion-mnist",
        "articles of clothing, 28 x 28 grey",
        (1, 28, 28),
        10,
        {"train": 60_000, "test": 10_000},
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
        _idx_files(
            ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",),
            {
                "train-images-idx3-ubyte": (
                    26_421_880,
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                "train-labels-idx1-ubyte": (
                    29_515,
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                "t10k-images-idx3-ubyte": (
                    4_422_102,
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                "t10k-labels-idx1-ubyte": (
                    5_148,
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            },
        ),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("/usr/share/datasets/fashion-mnist",),  # Debian's and Ubuntu's package dataset-fashion-mnist
        advice="on Debian `apt install dataset-fashion-mnist`, else put its four idx files into {folder}",
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
    KnownDataset(
        "cifar10",
        "ten kinds of things, 32 x 32 colour",
        (3, 32, 32),
        10,
        {"train": 50_000, "test": 10_000},
        "not stated",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (
            RemoteFile(
                "cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        ("cifar10/cifar-10-batches-bin", "cifar10", "cifar-10-batches-bin"),
        advice="unpack cifar-10-binary.tar.gz (the binary version) in {folder}",
        class_names=CIFAR_CLASSES,
    ),
    KnownDataset(
        "celeba",
        "faces of celebrities by an attribute (Male unless stated), 32 x 32 colour unless size is stated",
        (3, 32, 32),
        2,
        {"train": 162_770, "valid": 19_867, "test": 19_962},
        "research only",
        "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        (),
        ("celeba",),
        advice=(
            "accept its terms at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and put the folder "
            "img_align_celeba and the files list_attr_celeba.txt and list_eval_partition.txt into {folder}"
        ),
    ),
)

KNOWN: dict[str, KnownDataset] = {known.name: known for known in _ALL}
