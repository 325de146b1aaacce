"""How thoroughly images are measured: quickly, or as others measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.classifiers import Classifier, Forest, Logistic
from dpsinkhorn.evaluation.networks import Network, authors_cnn, cnn, linear, mlp
from dpsinkhorn.evaluation.residual import resnet, resnext, wide_resnet
from dpsinkhorn.generators import Variation
from dpsinkhorn.release import Release

LIKENESS = ("frechet", "precision-recall")


@dataclass(frozen=True)
class Protocol:
    """The classifiers, and how many images they see. Figures of different protocols do not compare."""

    name: str
    summary: str
    """In words, without a full stop."""
    classifiers: Mapping[str, Classifier]
    count: int
    """Synthetic images in a set."""
    sets: int
    """Sets of them, drawn afresh; each trains every classifier once."""
    compared: int
    """Images at most on either side of precision and recall."""
    uniform_labels: bool = False
    """Whether synthetic labels are drawn uniformly, rather than as the release draws them."""
    blacken: bool = False
    """Whether classifiers see synthetic images with every pixel below mid-grey set to black."""
    sensitive: int = 0
    """Real training images, at most, by which each network's epoch is chosen a second time."""
    published: str = ""
    """Which generators the published figures are of, in words, without a full stop."""

    @property
    def parts(self) -> tuple[str, ...]:
        """All that can be measured."""
        return (*self.classifiers, "real", *LIKENESS)

    def set_aside(self, records: int) -> NDArray[np.int64]:
        """Rows of the real training images that choose epochs: the same always, and a twelfth at most.

        >>> [len(find_protocol("dpimagebench").set_aside(records)) for records in (60_000, 600)]
        [5000, 50]
        """
        order = np.random.default_rng(0).permutation(records)
        return np.sort(order[: min(self.sensitive, records // 12)])

    def prepare(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Synthetic images as the classifiers see them.

        >>> find_protocol("authors").prepare(np.array([0, 127, 128, 255], dtype=np.uint8)).tolist()
        [0, 0, 128, 255]
        """
        return np.where(images < 128, np.uint8(0), images) if self.blacken else images

    def to_json(self) -> dict[str, Any]:
        """Plain values; how many images and sets there were is said elsewhere."""
        return {"name": self.name, "summary": self.summary}


QUICK = Protocol(
    "quick",
    "short trainings; figures of other protocols do not compare",
    {
        "logistic": Logistic(100),
        "forest": Forest(50),
        "mlp": Network(mlp, epochs=100, shown=200_000),
        "cnn": Network(cnn, epochs=50, shown=80_000),
    },
    count=10_000,
    sets=1,
    compared=5000,
)


def paper_protocol(patience: int = 30) -> Protocol:
    """The papers' protocol (appendix D.2); the patience is 30 in the final version, and 10 in the first."""
    return Protocol(
        "paper",
        f"the papers' appendix D.2, networks stopped after {patience} epochs without improvement",
        {
            "logistic": Logistic(),
            "forest": Forest(),
            "mlp": Network(mlp, patience=patience),
            "cnn": Network(cnn, patience=patience),
        },
        count=60_000,
        sets=5,
        compared=10_000,
    )


_theirs = partial(Network, hold_out_last=True, symmetric=True)
AUTHORS = Protocol(
    "authors",
    "classifiers of the authors' released code; synthetic pixels below mid-grey are black to them",
    {
        "logistic": _theirs(linear, patience=10, learning_rate=1e-4, weight_decay=1e-6, batch=512),
        "forest": Forest(),
        "mlp": _theirs(mlp, epochs=300, patience=30, learning_rate=1e-4),
        "cnn": _theirs(authors_cnn, epochs=500, patience=60, optimizer="sgd"),
    },
    count=60_000,
    sets=5,
    compared=10_000,
    uniform_labels=True,
    blacken=True,
)

_residual = partial(
    Network,
    epochs=50,
    learning_rate=0.01,
    decay=(20, 0.2),
    average=0.9999,
    batch=256,
    hold_out=12,
    symmetric=True,
    tried=32,
)
DPIMAGEBENCH = Protocol(
    "dpimagebench",
    "DPImageBench's networks; their epochs are chosen on held-out synthetic images",
    {"resnet": _residual(resnet), "wide-resnet": _residual(wide_resnet), "resnext": _residual(resnext)},
    count=60_000,
    sets=1,
    compared=10_000,
    sensitive=5000,
    published="trained on 55,000 records at a delta of 1/(55,000 ln 55,000) = 1.7e-6, and their epochs "
    "chosen on sensitive images",
)
PROTOCOLS = {protocol.name: protocol for protocol in (QUICK, paper_protocol(), AUTHORS, DPIMAGEBENCH)}
"""How classifiers are trained and tested, by name."""


def find_protocol(protocol: Protocol | str) -> Protocol:
    """Return the protocol of that name, or the protocol itself."""
    if isinstance(protocol, Protocol):
        return protocol
    if protocol not in PROTOCOLS:
        raise EvaluationError(f"the protocol must be one of {', '.join(PROTOCOLS)}, not {protocol}")
    return PROTOCOLS[protocol]


def draw_images(
    release: Release,
    count: int,
    protocol: Protocol | str = "quick",
    *,
    seed: int = 0,
    vary: bool = False,
    device: torch.device | str | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    """Images of a release to be measured, with labels as the protocol has them.

    They are plain, as the generator renders them, unless its own variation is asked for (`vary`).
    """
    labels = None
    if find_protocol(protocol).uniform_labels and release.classes:
        labels = np.random.default_rng(seed).integers(0, release.classes, count)
    variation = release.config.variation if vary else Variation()
    return release.sample(count, labels, random_state=seed, device=device, variation=variation)
