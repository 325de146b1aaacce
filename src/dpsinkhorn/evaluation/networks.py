"""How networks that classify images are trained.

Images stay on the device as uint8; an epoch is a permutation of row numbers there, cut into batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from dpsinkhorn.errors import EvaluationError

_BATCHES = (32, 512)  # images per step: the least and the most; in between, 64 steps an epoch
_EVALUATED = 512  # images per pass without gradients
_SMALLEST = 20  # images, so that a tenth of them says something

Build = Callable[[tuple[int, int, int], int], nn.Module]
Report = Callable[[float], object]
"""Is told the part of a training that is done, from 0 to 1."""


def silent(done: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a classifier learns from, and is judged by."""

    images: Tensor  # uint8, (n, C, H, W)
    labels: Tensor  # int64, (n,), on the same device
    classes: int
    test: Tensor  # uint8, (tests, C, H, W)
    seed: int
    sensitive: tuple[Tensor, Tensor] | None = None
    """Private images and labels, to choose a network's epoch by; others choose it by what they learn from."""


class Verdict(NamedTuple):
    """What a classifier says of the test images."""

    probabilities: NDArray[Any]
    """Of each class, (tests, classes)."""
    epochs: int = 0
    """How long it was trained for, where it is a network."""
    by_sensitive: NDArray[Any] | None = None
    """The same, of the weights that were best on `Lesson.sensitive`."""


@dataclass(frozen=True)
class Network:
    """A network, and how it is trained: as PyTorch has it, where nothing else is said."""

    build: Build
    epochs: int = 1000
    """At most."""
    patience: int | None = None
    """Epochs without a rise of held-out accuracy before it stops; `None` takes all epochs."""
    shown: int | None = None
    """Images that are shown in all, those of every epoch counted: no more epochs than that takes."""
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch: int | None = None
    """Images per step; `None`: 1/64 of them, from 32 to 512."""
    hold_out_last: bool = False
    """Whether the last images are held out, rather than random ones."""
    hold_out: int = 10
    """One image of so many is held out."""
    decay: tuple[int, float] | None = None
    """After how many epochs, each time, the learning rate is multiplied, and by what."""
    average: float | None = None
    """Of how much, in every step, the running mean of weights is kept that is judged in their place."""
    tried: int = 1024
    """Images that say how long it takes."""
    symmetric: bool = False
    """Whether pixels are in -1..1, rather than 0..1."""

    def most_epochs(self, count: int) -> int:
        """The epochs after which training ends in any case."""
        return self.epochs if self.shown is None else min(self.epochs, math.ceil(self.shown / count))

    def work(self, count: int) -> int:
        """Twice the patience is usual; see `Classifier`."""
        most = self.most_epochs(count)
        return count * (most if self.patience is None else min(most, 2 * self.patience))

    def shortened(self) -> Network:
        return replace(self, epochs=1, shown=None)

    def classify(self, lesson: Lesson, report: Report = silent) -> Verdict:
        data = lesson.images, lesson.labels, lesson.classes
        fit = fit_network(self, *data, seed=lesson.seed, report=report, sensitive=lesson.sensitive)
        chances = [
            None if network is None else probabilities(network, lesson.test, symmetric=self.symmetric)
            for network in (fit.network, fit.by_sensitive)
        ]
        assert chances[0] is not None
        return Verdict(chances[0], len(fit.history), chances[1])


@dataclass(frozen=True)
class Fit:
    """A network after training, with its best weights."""

    network: nn.Module
    history: tuple[float, ...]
    """Share of the held-out images that it got right after every epoch."""
    held_out: Tensor
    """Row numbers of the images that it was stopped by, not trained on."""
    by_sensitive: nn.Module | None = None
    """With the weights that were best on private images, where there were any."""

    @property
    def best(self) -> float:
        """The held-out accuracy of the weights that were kept."""
        return max(self.history)


def fit_network(
    spec: Network,
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    seed: int,
    report: Report = silent,
    sensitive: tuple[Tensor, Tensor] | None = None,
) -> Fit:
    """Train a network, and keep the weights that were best on a held-out part of the images.

    Args:
        images: uint8, (n, C, H, W).
        labels: int64, (n,), on the same device.
        seed: Decides on weights, order, dropout and what is held out.
        report: Called after every epoch with the part of the training that is done.
        sensitive: Private images and labels; the weights that were best on them are kept beside.
    """
    if len(images) < _SMALLEST:
        raise EvaluationError(f"a classifier needs {_SMALLEST} images at least, not {len(images)}; draw more")
    device = images.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = spec.build((images.shape[1], images.shape[2], images.shape[3]), classes).to(device)
        if device.type == "cpu":  # where convolutions take half the time that way
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if spec.hold_out_last:
            order = torch.arange(len(images), device=device).flip(0)
        else:
            order = torch.randperm(len(images), device=device)
        held_out, rows = order[: len(images) // spec.hold_out], order[len(images) // spec.hold_out :]
        # at least one full batch; what is left over by an epoch's shuffling waits for the next
        usual = min(max(len(rows) // 64, _BATCHES[0]), _BATCHES[1])
        batch_size = min(spec.batch or usual, len(rows))
        optimizer = _optimizer(spec, network)
        step = _training_step(spec, network, optimizer, images, labels, batch_size)
        mean = None if spec.average is None else _running_mean(network, spec.average)
        slower = None if spec.decay is None else StepLR(optimizer, *spec.decay)
        chosen = _Best(images[held_out], labels[held_out])
        both = [chosen] if sensitive is None else [chosen, _Best(*sensitive)]
        most, patience = spec.most_epochs(len(images)), spec.patience or math.inf
        while len(chosen.history) < most:
            network.train()
            shuffled = rows[torch.randperm(len(rows), device=device)]
            for start in range(0, len(rows) - batch_size + 1, batch_size):
                step(shuffled[start : start + batch_size])
                if mean is not None:
                    mean.update_parameters(network)
            if slower is not None:
                slower.step()
            for best in both:
                best.look(network if mean is None else mean.module, spec.symmetric)
            history = chosen.history
            since = len(history) - 1 - history.index(max(history))
            report(max(len(history) / most, since / patience))
            if since >= patience:
                break
    found = [best.restored(network) for best in both]
    return Fit(found[0], tuple(chosen.history), held_out, found[1] if sensitive is not None else None)


class _Best:
    """The weights that were best on some images."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels
        self.history: list[float] = []
        self._kept: dict[str, Tensor] = {}

    def look(self, network: nn.Module, symmetric: bool) -> None:
        guesses = _logits(network, self._images, symmetric).argmax(1)
        self.history.append(float((guesses == self._labels).double().mean()))
        if self.history[-1] > max(self.history[:-1], default=-1.0):
            self._kept = {name: value.detach().clone() for name, value in network.state_dict().items()}

    def restored(self, network: nn.Module) -> nn.Module:
        """A copy of the network, with these weights."""
        found = copy.deepcopy(network)
        found.load_state_dict(self._kept)
        return found.eval()


def _running_mean(network: nn.Module, rate: float) -> AveragedModel:
    """Weights averaged over steps: over few at first, so that the first ones are forgotten."""

    def forget(mean: Tensor, now: Tensor, steps: Tensor | int) -> Tensor:
        return mean + (now - mean) * max(1 - rate, 9 / (10 + int(steps)))

    return AveragedModel(network, avg_fn=forget)


def _optimizer(spec: Network, network: nn.Module) -> torch.optim.Optimizer:
    """On a GPU for a captured graph, which reads a learning rate that changes from a tensor there."""
    where = next(network.parameters()).device
    on_gpu = where.type == "cuda"
    rate = torch.tensor(spec.learning_rate, device=where) if on_gpu and spec.decay else spec.learning_rate
    settings: dict[str, Any] = {"lr": rate, "weight_decay": spec.weight_decay, "fused": True}
    if spec.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), capturable=on_gpu, **settings)
    return torch.optim.SGD(network.parameters(), **settings)


def _training_step(
    spec: Network,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    batch_size: int,
) -> Callable[[Tensor], object]:
    """A step on some rows; on a GPU one captured graph, since launching its kernels takes longer."""

    def step(batch: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(network(pixels(images[batch], spec.symmetric)), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    if images.device.type != "cuda":
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
                if value is not None:
                    value.zero_()

    def replay(batch: Tensor) -> None:
        rows.copy_(batch)
        graph.replay()

    return replay


@torch.no_grad()
def _logits(network: nn.Module, images: Tensor, symmetric: bool) -> Tensor:
    network.eval()
    return torch.cat([network(pixels(part, symmetric)) for part in torch.split(images, _EVALUATED)])


def probabilities(network: nn.Module, images: Tensor, *, symmetric: bool = False) -> NDArray[Any]:
    """The probability of each class, (n, classes), for uint8 images (n, C, H, W)."""
    return _logits(network, images, symmetric).double().softmax(1).numpy(force=True)


def pixels(images: Tensor, symmetric: bool = False) -> Tensor:
    """Bytes as numbers in 0..1, or in -1..1."""
    return images.float().div_(127.5).sub_(1) if symmetric else images.float().div_(255)
