"""How long an evaluation will take: each part is tried on a few images, and the time multiplied."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dpsinkhorn.evaluation.classifiers import Classifier
from dpsinkhorn.evaluation.diversity import precision_recall
from dpsinkhorn.evaluation.features import FeatureNetwork
from dpsinkhorn.evaluation.networks import Lesson

_TRIED = 1024  # images


def seconds_of_classifiers(
    specs: Mapping[str, Classifier], images: Tensor, labels: Tensor, classes: int, counts: Sequence[int]
) -> dict[str, float]:
    """Seconds that each classifier takes to learn from so many images, one number for each training."""
    step = max(1, len(images) // _TRIED)  # they may come sorted by class
    x, y = images[::step][:_TRIED], labels[::step][:_TRIED]
    found = {}
    for name, spec in specs.items():
        short = spec.shortened()
        seconds = _timed(lambda short=short: short.classify(Lesson(x, y, classes, x[:1], 0)))  # type: ignore[misc]
        found[name] = sum(seconds * spec.work(count) / short.work(len(x)) for count in counts)
    return found


def seconds_of_features(network: FeatureNetwork, images: Tensor, count: int) -> float:
    """Seconds for the features of so many images."""
    some = images[: min(_TRIED, network.batch_size // 4)]
    return _timed(lambda: network.features(some)) * count / len(some)


def seconds_of_comparing(network: FeatureNetwork, images: Tensor, count: int) -> float:
    """Seconds for precision and recall of synthetic and of real images, so many on either side."""
    width = network.features(images[:1]).shape[1]
    points = torch.rand(2, _TRIED, width, device=images.device)
    return _timed(lambda: precision_recall(points[0], points[1])) * 2 * (count / _TRIED) ** 2


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the second time: the first one loads libraries, and chooses kernels."""
    for _ in range(2):
        started = time.perf_counter()
        work()
    return time.perf_counter() - started
