"""The three classifiers of the paper's appendix D.2: logistic regression, an MLP and a CNN.

Images stay on the device as uint8; an epoch is a permutation of row numbers there, cut into batches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.errors import EvaluationError

__all__ = ["Fit", "cnn", "fit_network", "logistic_sklearn", "logistic_torch", "mlp", "predict"]

MAX_ITERATIONS = 5000  # of logistic regression
_TOLERANCE = 1e-4  # scikit-learn's: largest entry of the gradient of the mean loss
_BATCHES = (32, 512)  # images per step: the least and the most; in between, 64 steps an epoch
_EVALUATED = 8192  # images per pass without gradients
_MAX_EPOCHS = 1000
_SMALLEST = 20  # images, so that a tenth of them says something


@dataclass(frozen=True)
class Fit:
    """A network after early stopping, with its best weights."""

    network: nn.Module
    history: tuple[float, ...]
    """Share of the held-out images that it got right after every epoch."""
    held_out: Tensor
    """Row numbers of the images that it was stopped by, not trained on."""

    @property
    def best(self) -> float:
        """The held-out accuracy of the weights that were kept."""
        return max(self.history)


def mlp(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """One hidden layer of 100 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(image_shape), 100), nn.ReLU(), nn.Linear(100, classes)
    )


def cnn(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Two convolutions with 32 and 64 filters; dropout of one half after each.

    >>> cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, height, width = image_shape
    # strides of 2 rather than pooling, which the paper does not mention
    quarter = ((height + 3) // 4, (width + 3) // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64 * math.prod(quarter), classes),
    )


def fit_network(
    build: Callable[[tuple[int, int, int], int], nn.Module],
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    seed: int,
    patience: int = 30,
    progress: Callable[[int], object] | None = None,
) -> Fit:
    """Train by Adam, as PyTorch has it, until held-out accuracy has not risen for `patience` epochs.

    Args:
        build: `mlp`, `cnn`, or the like: makes a network of an image shape and a number of classes.
        images: uint8, (n, C, H, W); a random tenth of them is held out.
        labels: int64, (n,), on the same device.
        classes: How many there are.
        seed: Decides on weights, order, dropout and what is held out.
        patience: 30 in the paper's final version, 10 in its first.
        progress: Called with the number of finished epochs.
    """
    if len(images) < _SMALLEST:
        raise EvaluationError(f"a classifier needs {_SMALLEST} images at least, not {len(images)}; draw more")
    device = images.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = build((images.shape[1], images.shape[2], images.shape[3]), classes).to(device)
        order = torch.randperm(len(images), device=device)
        held_out, rows = order[: len(images) // 10], order[len(images) // 10 :]
        # at least one full batch; what is left over by an epoch's shuffling waits for the next
        batch_size = min(max(len(rows) // 64, _BATCHES[0]), _BATCHES[1], len(rows))
        step = _training_step(network, images, labels, batch_size)
        history: list[float] = []
        best, kept = -1.0, network.state_dict()
        while len(history) < _MAX_EPOCHS:
            network.train()
            shuffled = rows[torch.randperm(len(rows), device=device)]
            for start in range(0, len(rows) - batch_size + 1, batch_size):
                step(shuffled[start : start + batch_size])
            guesses = predict(network, images[held_out])
            history.append(float((guesses == labels[held_out]).double().mean()))
            if history[-1] > best:
                best = history[-1]
                kept = {name: value.detach().clone() for name, value in network.state_dict().items()}
            if progress is not None:
                progress(len(history))
            if len(history) - 1 - history.index(best) >= patience:
                break
    network.load_state_dict(kept)
    return Fit(network.eval(), tuple(history), held_out)


def _training_step(
    network: nn.Module, images: Tensor, labels: Tensor, batch_size: int
) -> Callable[[Tensor], object]:
    """A step of Adam on some rows; on a GPU one captured graph, since launching its kernels takes longer."""
    on_gpu = images.device.type == "cuda"
    optimizer = torch.optim.Adam(network.parameters(), fused=True, capturable=on_gpu)

    def step(batch: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(network(_pixels(images[batch])), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    if not on_gpu:
        return step
    rows = torch.arange(batch_size, device=images.device) % len(images)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels and memory are chosen before the capture
        for _ in range(3):
            step(rows)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(rows)
    with torch.no_grad():  # as if nothing had been trained yet
        network.load_state_dict(before)
        for entry in optimizer.state.values():
            for value in entry.values():
                value.zero_()

    def replay(batch: Tensor) -> None:
        rows.copy_(batch)
        graph.replay()

    return replay


@torch.no_grad()
def predict(network: nn.Module, images: Tensor) -> Tensor:
    """The most likely class of each of the uint8 images (n, C, H, W)."""
    network.eval()
    return torch.cat(
        [
            network(_pixels(images[start : start + _EVALUATED])).argmax(1)
            for start in range(0, len(images), _EVALUATED)
        ]
    )


def logistic_sklearn(images: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """What scikit-learn's logistic regression says the test images are: the reference."""
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    x, y, tx = (_flat(images).numpy(force=True), labels.numpy(force=True), _flat(test).numpy(force=True))
    if len(np.unique(y)) == 1:  # scikit-learn refuses; the answer is known
        return torch.full((len(test),), int(y[0]), dtype=torch.int64)
    with warnings.catch_warnings():
        # the paper caps the iterations too, and takes what there is
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(solver="lbfgs", max_iter=MAX_ITERATIONS).fit(x, y)
    return torch.from_numpy(model.predict(tx).astype(np.int64))


def logistic_torch(images: Tensor, labels: Tensor, classes: int, test: Tensor) -> Tensor:
    """The same on any device: L-BFGS on the same objective (penalty C = 1), stopped by the same rule."""
    x = _flat(images)
    weight = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
    bias = torch.zeros(classes, device=x.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        max_eval=2 * MAX_ITERATIONS,
        history_size=10,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,  # in float32 the loss stands still before the gradient is small
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(x @ weight.T + bias, labels) + weight.square().sum() / (2 * len(x))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return (_flat(test) @ weight.T + bias).argmax(1)


def _pixels(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _flat(images: Tensor) -> Tensor:
    return _pixels(images).flatten(1)
