"""Those who watch a training from within, step by step, and score canaries by what it releases.

An observer knows all that a worst-case adversary may know: the other records, the canaries, the generator at
every step, the rate, the noise level and all releases; not which canaries are in the data, nor what was
sampled.
"""

from __future__ import annotations

from typing import Any

import torch

from dpsinkhorn.data import Dataset
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy.audit import AuditError
from dpsinkhorn.training.auditing.canaries import Canaries
from dpsinkhorn.training.auditing.observers.evidence import Observer
from dpsinkhorn.training.auditing.observers.sinkhorn import SinkhornObserver
from dpsinkhorn.training.auditing.observers.sums import FlowObserver, MomentsObserver, RecordObserver
from dpsinkhorn.training.auditing.observers.systems import (
    DiscriminatorObserver,
    EmbeddingsObserver,
    TaughtObserver,
)
from dpsinkhorn.training.plan import Plan

_OBSERVERS: tuple[Any, ...] = (
    *(RecordObserver, MomentsObserver, FlowObserver, SinkhornObserver),
    *(EmbeddingsObserver, DiscriminatorObserver, TaughtObserver),
)
__all__ = [*(each.__name__ for each in _OBSERVERS), "Observer", "observe"]


def observe(plan: Plan, data: Dataset, planted: Canaries) -> Observer:
    """Return who watches a training by this plan, in the place of its mechanism."""
    others = Sample(
        data.points(),
        None if data.labels is None else torch.tensor(data.labels),
        None if data.groups is None else torch.tensor(data.groups),
    )
    canaries = Sample(planted.points, planted.labels, planted.owners)
    mechanism = plan.build()
    for observer in _OBSERVERS:
        if isinstance(mechanism, observer.watches):
            found: Observer = observer(mechanism, canaries, others)
            return found
    if not plan.private:
        raise AuditError("a training without privacy guarantees nothing that could be audited")
    raise AuditError(
        f"no one can watch a whole training by {plan.kind.name}; audit its steps (--game step), or replay it"
    )
