"""Sanitizers: where the privacy barrier stands."""

from dpsinkhorn.training.sanitizers.base import Sample, Sanitizer
from dpsinkhorn.training.sanitizers.class_counts import release_label_frequencies
from dpsinkhorn.training.sanitizers.gradients import BatchSanitizer, ImageSanitizer
from dpsinkhorn.training.sanitizers.moments import Moments
from dpsinkhorn.training.sanitizers.nonprivate import NonPrivateSanitizer
from dpsinkhorn.training.sanitizers.parameter import ParameterSanitizer
from dpsinkhorn.training.sanitizers.record import RecordSanitizer

__all__ = [
    "BatchSanitizer",
    "ImageSanitizer",
    "Moments",
    "NonPrivateSanitizer",
    "ParameterSanitizer",
    "RecordSanitizer",
    "Sample",
    "Sanitizer",
    "release_label_frequencies",
]
