"""Classifiers: each learns from labelled images, and says of others how likely each class is."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.evaluation.networks import Lesson, Report, Verdict, pixels, silent

_TOLERANCE = 1e-4  # scikit-learn's: largest entry of the gradient of the mean loss


class Classifier(Protocol):
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
