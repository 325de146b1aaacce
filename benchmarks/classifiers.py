"""Classifiers that are trained on synthetic images and tested on real ones: quick, for comparisons.

Logistic regression by L-BFGS and, as `linear`, by a short run of Adam; an MLP with 100 hidden units; a CNN
with 32 and 64 filters and dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

_STEPS, _BATCH = 3000, 256
M = TypeVar("M", bound=nn.Module)


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
    x, y = tensor(images).to(device), torch.tensor(labels, device=device)
    tx, ty = tensor(test_images).to(device), torch.tensor(test_labels, device=device)
    classes = int(max(y.max(), ty.max())) + 1
    torch.manual_seed(seed)
    scores = {}
    for name in wanted:
        if name == "logistic":
            model = logistic(x, y, classes)
        else:
            model = trained(_BUILT[name](x, classes).to(device), x, y, _STEPS, _BATCH)
        scores[name] = round(accuracy(model, tx, ty), 2)
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


def trained(model: M, x: Tensor, y: Tensor, steps: int, batch: int, learning_rate: float = 1e-3) -> M:
    """A network after some steps of Adam, in eval mode."""
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,), device=x.device)
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


_BUILT = {"linear": _linear, "mlp": _mlp, "cnn": _cnn}


def tensor(images: NDArray[np.uint8]) -> Tensor:
    """Return images, (n, channels, height, width), from 0 to 1."""
    found = torch.tensor(images).float().div_(255)
    return found.unsqueeze(1) if found.ndim == 3 else found.movedim(-1, 1).contiguous()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Per cent of the images that a model gets right."""
    guesses = torch.cat([model(part).argmax(1) for part in x.split(4096)])
    return 100 * float((guesses == y).double().mean())
