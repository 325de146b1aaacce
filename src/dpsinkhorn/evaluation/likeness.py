"""How like real images the synthetic ones are: by a distance, and by precision and recall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.diversity import PrecisionRecall, precision_recall
from dpsinkhorn.evaluation.features import FeatureNetwork
from dpsinkhorn.evaluation.frechet import feature_statistics, frechet_distance

Progress = Callable[[str, float], object]


@dataclass(frozen=True)
class Likeness:
    """How like the real images the synthetic ones are, beside real images measured in the same way."""

    name: str
    """What the distance is called: `FID` only with Inception's standard weights."""
    features: str
    floor_from: str
    """Which real images are measured beside."""
    frechet: float | None = None
    """`None` where it was left out, and so for all that follow."""
    floor: float | None = None
    """The distance of real images to the test images: what a perfect generator would have."""
    diversity: PrecisionRecall | None = None
    real_diversity: PrecisionRecall | None = None
    """Precision and recall of those real images."""
    compared: int | None = None
    """Images on either side of precision and recall, of both kinds: with more of them manifolds shrink."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        ours, real = self.diversity, self.real_diversity
        return {
            "name": self.name,
            "features": self.features,
            "frechet": self.frechet,
            "floor": self.floor,
            "floor_from": self.floor_from,
            "precision": None if ours is None else ours.precision,
            "recall": None if ours is None else ours.recall,
            "neighbours": None if ours is None else ours.neighbours,
            "real_precision": None if real is None else real.precision,
            "real_recall": None if real is None else real.recall,
            "compared": self.compared,
        }


def compare_images(
    network: FeatureNetwork,
    synthetic: Tensor,
    test: Tensor,
    training: Tensor | None,
    *,
    measures: Sequence[str] = ("frechet", "precision-recall"),
    compared: int = 10_000,
    progress: Progress = lambda *_: None,
) -> Likeness:
    """Distance, precision and recall of uint8 images (n, C, H, W) on one device, beside the real ones'."""
    if len(test) < 8:
        raise EvaluationError(f"{len(test)} real images are too few to measure anything by; give more")
    # a fixed order: a subset is a random one, and the same in every evaluation
    draws = torch.Generator().manual_seed(0)
    shuffled = test[torch.randperm(len(test), generator=draws).to(test.device)]
    if training is None:
        half = len(test) // 2
        others, reference = shuffled[:half], shuffled[half:]
        source = "one half of the test images against the other"
    else:
        chosen = torch.randperm(len(training), generator=draws)[: max(len(synthetic), 8)].to(training.device)
        others, reference = training[chosen], shuffled
        source = f"{len(others):,} training images against the test images"
    done, total = 0, len(synthetic) + len(others) + len(reference)

    def features(images: Tensor) -> Tensor:
        nonlocal done
        found = []
        for part in network.batches(images):
            found.append(part)
            done += len(part)
            progress("features", done / total)
        return torch.cat(found)

    ours, theirs, floor = features(synthetic), features(reference), features(others)
    likeness = Likeness(network.name, network.description, source)
    if "frechet" in measures:
        # where the real images are halves, the synthetic ones are held against both
        whole = theirs if training is not None else torch.cat([floor, theirs])
        likeness = replace(
            likeness,
            frechet=frechet_distance(feature_statistics(ours), feature_statistics(whole)),
            floor=frechet_distance(feature_statistics(floor), feature_statistics(theirs)),
        )
    if "precision-recall" in measures:
        # Balls shrink as points are added: as many on either side, and in either column, or recall would fall
        # with every synthetic image more. Images may come sorted, so these are chosen at random too.
        count = min(len(ours), len(floor), len(theirs), compared)
        some = ours[torch.randperm(len(ours), generator=draws)[:count].to(ours.device)]
        diversity = []
        for k, points in enumerate((some, floor[:count])):
            progress("precision-recall", k / 2)
            diversity.append(precision_recall(theirs[:count], points))
        likeness = replace(likeness, diversity=diversity[0], real_diversity=diversity[1], compared=count)
        progress("precision-recall", 1.0)
    return likeness
