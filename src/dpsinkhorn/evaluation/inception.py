"""The Inception network that FID is defined by, with its standard weights, through torch-fidelity."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from dpsinkhorn.data import DownloadError, data_folder
from dpsinkhorn.data.named import RemoteFile, download_file
from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.files import failing_as

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
