"""How good synthetic images are. What is computed from private data here is not itself private."""

from dpsinkhorn.evaluation.errors import EvaluationError
from dpsinkhorn.evaluation.images import images_of
from dpsinkhorn.evaluation.utility import CLASSIFIERS, ClassifierScore, Utility, downstream_utility

__all__ = [
    "CLASSIFIERS",
    "ClassifierScore",
    "EvaluationError",
    "Utility",
    "downstream_utility",
    "images_of",
]
