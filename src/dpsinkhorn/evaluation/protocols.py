"""How thoroughly images are measured, quickly or as others measure: classifiers, and how many images."""

from __future__ import annotations

import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.architectures import authors_cnn, cnn, linear, mlp, resnet, resnext, wide_resnet
from dpsinkhorn.evaluation.networks import Lesson, Network, Report, Verdict, pixels, silent
from dpsinkhorn.generators import Variation
from dpsinkhorn.release import Release

LIKENESS = ("frechet", "precision-recall")
_TOLERANCE = 1e-4  # scikit-learn's: largest entry of the gradient of the mean loss


class Classifier(typing.Protocol):
    """What the measures know of a classifier; `Network` is one too."""

    @property
    def tried(self) -> int:
        """How many images say how long it takes."""

    def work(self, count: int) -> int:
        """How often an image of so many is looked at, as a rule: by epochs, iterations or trees."""

    def shortened(self) -> Classifier:
        """The same with a few rounds only: to see how long one takes."""

    def classify(self, lesson: Lesson, report: Report = silent) -> Verdict:
        """Learn, and judge the test images."""


@dataclass(frozen=True)
class Logistic:
    """Logistic regression with penalty C = 1 by L-BFGS: scikit-learn's, or on a GPU PyTorch's."""

    iterations: int = 5000
    """At most: the paper caps them too, and takes what there is."""
    solver: Literal["auto", "sklearn", "torch"] = "auto"
    """`auto` takes scikit-learn's on the processor."""
    tried: int = 1024

    def work(self, count: int) -> int:
        return count * min(self.iterations, 300)

    def shortened(self) -> Logistic:
        return replace(self, iterations=10)

    def classify(self, lesson: Lesson, report: Report = silent) -> Verdict:
        if self.solver == "torch" or (self.solver == "auto" and lesson.images.device.type != "cpu"):
            return Verdict(self._torch(lesson))
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

        model = LogisticRegression(solver="lbfgs", max_iter=self.iterations, random_state=lesson.seed % 2**32)
        return Verdict(_sklearn(model, lesson, report))

    def _torch(self, lesson: Lesson) -> NDArray[Any]:
        """L-BFGS on the same objective, stopped by the same rule."""
        x = pixels(lesson.images).flatten(1)
        weight = torch.zeros(lesson.classes, x.shape[1], device=x.device, requires_grad=True)
        bias = torch.zeros(lesson.classes, device=x.device, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [weight, bias],
            max_iter=self.iterations,
            max_eval=2 * self.iterations,
            history_size=10,
            tolerance_grad=_TOLERANCE,
            tolerance_change=0.0,  # in float32 the loss stands still before the gradient is small
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(x @ weight.T + bias, lesson.labels)
            loss = loss + weight.square().sum() / (2 * len(x))
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            logits = pixels(lesson.test).flatten(1) @ weight.T + bias
        return logits.double().softmax(1).numpy(force=True)


@dataclass(frozen=True)
class Forest:
    """scikit-learn's random forest. Images that lack the real ones' diversity mislead it first."""

    trees: int = 100
    tried: int = 1024

    def work(self, count: int) -> int:
        return count * self.trees

    def shortened(self) -> Forest:
        return Forest(16)

    def classify(self, lesson: Lesson, report: Report = silent) -> Verdict:
        from sklearn.ensemble import RandomForestClassifier  # type: ignore[import-untyped]

        model = RandomForestClassifier(self.trees, n_jobs=-1, random_state=lesson.seed % 2**32)
        return Verdict(_sklearn(model, lesson, report))


def _sklearn(model: Any, lesson: Lesson, report: Report) -> NDArray[Any]:
    """What a model of scikit-learn says; it knows nothing of classes that it was shown no images of."""
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]

    x, tx = (pixels(part).flatten(1).numpy(force=True) for part in (lesson.images, lesson.test))
    y = lesson.labels.numpy(force=True)
    found = np.zeros((len(tx), lesson.classes))
    if len(np.unique(y)) == 1:  # logistic regression is refused; the answer is known
        found[:, int(y[0])] = 1
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    report(1.0)
    found[:, model.classes_] = model.predict_proba(tx)
    return found


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
