"""Classifiers that are trained on synthetic images and tested on real ones: quick, for comparisons.

Logistic regression by L-BFGS and, as `linear`, by a short run of Adam; an MLP with 100 hidden units; a CNN
with 32 and 64 filters and dropout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

_STEPS, _BATCH = 3000, 256


def accuracies(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test_images: NDArray[np.uint8],
    test_labels: NDArray[np.int64],
    wanted: Sequence[str],
    seed: int,
) -> dict[str, float]:
    """Per cent of the test images that each classifier gets right."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = _tensor(images, device), torch.tensor(labels, device=device)
    tx, ty = _tensor(test_images, device), torch.tensor(test_labels, device=device)
    classes = int(max(y.max(), ty.max())) + 1
    torch.manual_seed(seed)
    scores = {}
    for name in wanted:
        model = logistic(x, y, classes) if name == "logistic" else trained(name, x, y, classes)
        scores[name] = round(100 * _accuracy(model, tx, ty), 2)
    return scores


def logistic(x: Tensor, y: Tensor, classes: int) -> nn.Module:
    """Multinomial logistic regression with scikit-learn's default penalty (C = 1)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), classes)).to(x.device)
    linear = model[1]
    assert isinstance(linear, nn.Linear)
    nn.init.zeros_(linear.weight)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=500, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y) + linear.weight.square().sum() / (2 * len(x))
        loss.backward()
        return loss

    optimizer.step(closure)
    return model


def trained(name: str, x: Tensor, y: Tensor, classes: int) -> nn.Module:
    """A linear model, an MLP or a CNN, by Adam."""
    model = {"linear": _linear, "mlp": _mlp, "cnn": _cnn}[name](x, classes).to(x.device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(_STEPS):
        rows = torch.randint(len(x), (_BATCH,), device=x.device)
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model.eval()


def _linear(x: Tensor, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), classes))


def _mlp(x: Tensor, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 100), nn.ReLU(), nn.Linear(100, classes))


def _cnn(x: Tensor, classes: int) -> nn.Module:
    layers = [
        nn.Conv2d(x.shape[1], 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
    ]
    features = nn.Sequential(*layers).to(x.device)(x[:1]).shape[1]
    return nn.Sequential(*layers, nn.Linear(features, classes))


def _tensor(images: NDArray[np.uint8], device: torch.device) -> Tensor:
    tensor = torch.tensor(images, device=device).float().div_(255)
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.movedim(-1, 1).contiguous()


@torch.no_grad()
def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    guesses = torch.cat([model(part).argmax(1) for part in x.split(4096)])
    return float((guesses == y).double().mean())
