"""How good synthetic images are. What is computed from private data here is not itself private."""

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.evaluate import NOT_PRIVATE, PUBLIC_DATA, Evaluation, check_parts, evaluate_images
from dpsinkhorn.evaluation.features import FEATURES, FeatureNetwork, load_features
from dpsinkhorn.evaluation.images import images_of
from dpsinkhorn.evaluation.likeness import (
    FeatureStatistics,
    Likeness,
    PrecisionRecall,
    compare_images,
    feature_statistics,
    frechet_distance,
    precision_recall,
)
from dpsinkhorn.evaluation.neighbours import (
    Neighbours,
    beside_picture,
    curator_path,
    nearest_neighbours,
    neighbours_picture,
)
from dpsinkhorn.evaluation.protocols import PROTOCOLS, Protocol, draw_images, find_protocol, paper_protocol
from dpsinkhorn.evaluation.utility import ClassifierScore, Utility, downstream_utility

__all__ = [
    "FEATURES",
    "NOT_PRIVATE",
    "PROTOCOLS",
    "PUBLIC_DATA",
    "ClassifierScore",
    "Evaluation",
    "EvaluationError",
    "FeatureNetwork",
    "FeatureStatistics",
    "Likeness",
    "Neighbours",
    "PrecisionRecall",
    "Protocol",
    "Utility",
    "beside_picture",
    "check_parts",
    "compare_images",
    "curator_path",
    "downstream_utility",
    "draw_images",
    "evaluate_images",
    "feature_statistics",
    "find_protocol",
    "frechet_distance",
    "images_of",
    "load_features",
    "nearest_neighbours",
    "neighbours_picture",
    "paper_protocol",
    "precision_recall",
]
