"""Networks that turn images into features, each with a name that goes wherever its numbers go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dpsinkhorn.data import DownloadError, data_folder
from dpsinkhorn.data.named import RemoteFile, download_file
from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.architectures import cnn, load_efficientnet
from dpsinkhorn.evaluation.networks import Network, fit_network
from dpsinkhorn.files import failing_as

FEATURES = ("auto", "inception", "efficientnet-lite0", "cnn")
"""The networks that images are compared by."""
TRAINED = Network(cnn, epochs=10, shown=50_000)  # good features do not need the last per cent
TAUGHT_BY = 10_000  # images at most
_SEED = 20_210_111  # part of the measure: it does not change with the user's seed


@dataclass(frozen=True, eq=False)
class FeatureNetwork:
    """A network on a device, and what its distance is called."""

    name: str
    """`FID` for Inception with its standard weights, nothing else."""
    description: str
    network: nn.Module
    batch_size: int
    colour: bool
    """Whether it takes three channels only; grey images are then repeated."""

    @torch.no_grad()
    def batches(self, images: Tensor, progress: Callable[[int], object] | None = None) -> Iterator[Tensor]:
        """Features (k, d) of uint8 images (n, C, H, W), some at a time."""
        for start in range(0, len(images), self.batch_size):
            part = images[start : start + self.batch_size]
            if self.colour and part.shape[1] == 1:
                part = part.expand(-1, 3, -1, -1)
            yield self.network(part).float()
            if progress is not None:
                progress(len(part))

    def features(self, images: Tensor, progress: Callable[[int], object] | None = None) -> Tensor:
        """Features (n, d) of uint8 images (n, C, H, W)."""
        return torch.cat(list(self.batches(images, progress)))


def load_features(
    name: str,
    images: Tensor,
    labels: Tensor | None,
    classes: int,
    *,
    inception_weights: str | os.PathLike[str] | None = None,
) -> FeatureNetwork:
    """The feature network of that name, on the device of the images.

    Args:
        name: One of `FEATURES`. `auto` is Inception on a GPU if its weights are here, else `cnn`.
        images: Real training images, uint8 (n, C, H, W): what `cnn` is trained on.
        labels: Theirs, int64 (n,), or `None`.
        inception_weights: The file; by default looked for, and downloaded if `inception` is asked for.
    """
    device = images.device
    name = chosen_features(name, device, inception_weights)
    if name == "inception":
        path = fetch_inception_weights() if inception_weights is None else inception_weights
        network = load_inception(path).to(device)
        return FeatureNetwork("FID", "Inception v3, standard weights", network, 128, colour=True)
    if name == "efficientnet-lite0":
        network = load_efficientnet().to(device)
        about = "EfficientNet-lite0 trained on ImageNet; not comparable with FID"
        return FeatureNetwork("frechet-efficientnet-lite0", about, network, 256, colour=True)
    return classifier_features(images, labels, classes)


def chosen_features(
    name: str, device: torch.device, inception_weights: str | os.PathLike[str] | None = None
) -> str:
    """What `auto` stands for: Inception takes many minutes on a processor, and is asked for by name there."""
    if name not in FEATURES:
        raise EvaluationError(f"features must be one of {', '.join(FEATURES)}, not {name}")
    if name != "auto":
        return name
    here = inception_weights is not None or (device.type == "cuda" and find_inception_weights() is not None)
    return "inception" if here else "cnn"


def classifier_features(images: Tensor, labels: Tensor | None, classes: int) -> FeatureNetwork:
    """The CNN of the utility measure, trained on real images, without its last layer.

    Without labels its weights stay random. Either way it needs no file and no network connection, and its
    distances compare with others of the same data set only.
    """
    shape = (images.shape[1], images.shape[2], images.shape[3])
    if labels is None or classes < 2:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            network: nn.Module = cnn(shape, 2)
        name, about = "frechet-random-cnn", "a CNN with random weights; compare within this data set only"
    else:
        draws = torch.Generator().manual_seed(_SEED)
        rows = torch.randperm(len(images), generator=draws)[:TAUGHT_BY].to(images.device)
        network = fit_network(TRAINED, images[rows], labels[rows], classes, seed=_SEED).network
        name = "frechet-cnn"
        about = "a CNN trained to classify the real images; compare within this data set only"
    maps = [layer for layer in network.children() if not isinstance(layer, (nn.Flatten, nn.Linear))]
    return FeatureNetwork(
        name, about, _Headless(maps).to(images.device).eval().requires_grad_(False), 4096, colour=False
    )


class _Headless(nn.Module):
    """The convolutions alone, their maps averaged over 2 x 2 regions so that features are few."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.maps = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        return torch.flatten(self.pool(self.maps(images.float().div(255))), 1)


INCEPTION_WEIGHTS = RemoteFile(
    name="weights-inception-2015-12-05-6726825d.pth",
    urls=(
        "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/weights-inception-2015-12-05-6726825d.pth",
        "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
    ),
    length=95_628_359,
    sha256="6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
)
_NAMES = (INCEPTION_WEIGHTS.name, "pt_inception-2015-12-05-6726825d.pth")  # the same file, by two names


def find_inception_weights() -> Path | None:
    """The weights in the data folder, or where PyTorch keeps what it downloads; `None` if not here."""
    folders = (data_folder() / "inception", Path(torch.hub.get_dir()) / "checkpoints")
    return next((folder / name for folder in folders for name in _NAMES if (folder / name).is_file()), None)


def fetch_inception_weights(progress: Callable[[str, int, int], None] | None = None) -> Path:
    """The weights, downloaded (96 MB, checked by SHA-256) into the data folder unless they are here."""
    found = find_inception_weights()
    if found is not None:
        return found
    folder = data_folder() / "inception"
    with failing_as(EvaluationError, f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return download_file(INCEPTION_WEIGHTS, folder, progress=progress)
        except DownloadError as error:
            raise EvaluationError(f"{error}; put the file {INCEPTION_WEIGHTS.name} into {folder}") from error


class _Inception(nn.Module):
    def __init__(self, extractor: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.extractor(images)[0]
        return features


def load_inception(weights: str | os.PathLike[str]) -> nn.Module:
    """uint8 images (n, 3, H, W) to the 2,048 features of FID, by torch-fidelity's network."""
    path = Path(weights)
    try:
        # torch-fidelity unpickles without limits; what passes here holds nothing but tensors
        state = torch.load(path, weights_only=True, map_location="cpu", mmap=False)
    except OSError as error:
        raise EvaluationError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # the errors of damaged and of hostile files are of many kinds
        raise EvaluationError(f"{path} is not a file of weights that is safe to load") from error
    if not isinstance(state, dict) or "Mixed_7c.branch1x1.conv.weight" not in state:
        raise EvaluationError(f"{path} does not hold the Inception weights; see {INCEPTION_WEIGHTS.urls[0]}")
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import (  # type: ignore[import-not-found]
            FeatureExtractorInceptionV3,
        )
    except Exception as error:  # torchvision that does not fit torch is a RuntimeError
        reason = " ".join(str(error).split())
        raise EvaluationError(
            f"FID needs torch-fidelity and torchvision: pip install 'dpsinkhorn[eval]' ({reason})"
        ) from error
    try:
        extractor = FeatureExtractorInceptionV3("inception-v3", ["2048"], str(path))
    except (RuntimeError, KeyError) as error:
        raise EvaluationError(f"{path} does not hold the Inception weights; they do not fit") from error
    return _Inception(extractor).eval()
