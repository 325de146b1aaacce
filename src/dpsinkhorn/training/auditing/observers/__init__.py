"""Those who watch a training from within, step by step, and score canaries by what it releases.

An observer knows all that a worst-case adversary may know: the other records, the canaries, the generator at
every step, the rate, the noise level and all releases; not which canaries are in the data, nor what was
sampled.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from dpsinkhorn.data import Dataset
from dpsinkhorn.privacy.audit import AuditError
from dpsinkhorn.training.auditing.canaries import Canaries
from dpsinkhorn.training.auditing.observers.moments import MomentsObserver
from dpsinkhorn.training.auditing.observers.record import RecordObserver
from dpsinkhorn.training.auditing.observers.sinkhorn import SinkhornObserver
from dpsinkhorn.training.building import build_sanitizer
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.sanitizers import (
    BatchSanitizer,
    ImageSanitizer,
    Moments,
    ParameterSanitizer,
    RecordSanitizer,
    Sample,
)

__all__ = ["MomentsObserver", "Observer", "RecordObserver", "SinkhornObserver", "observe"]

Observer: TypeAlias = RecordObserver | MomentsObserver | SinkhornObserver


def observe(plan: Plan, data: Dataset, planted: Canaries) -> Observer:
    """Return who watches a training by this plan, in the place of its sanitizer."""
    others = Sample(
        data.points(),
        None if data.labels is None else torch.tensor(data.labels),
        None if data.groups is None else torch.tensor(data.groups),
    )
    canaries = Sample(planted.points, planted.labels, planted.owners)
    sanitizer = build_sanitizer(plan)
    if isinstance(sanitizer, RecordSanitizer):
        return RecordObserver(sanitizer, plan.sampling_rate, canaries, others)
    if isinstance(sanitizer, Moments):
        return MomentsObserver(sanitizer, canaries, others)
    if isinstance(sanitizer, BatchSanitizer | ImageSanitizer | ParameterSanitizer):
        return SinkhornObserver(sanitizer, canaries, others)
    raise AuditError("a training without privacy guarantees nothing that could be audited")
