"""Those who watch a training from within, step by step, and score canaries by what it releases.

An observer knows all that a worst-case adversary may know: the other records, the canaries, the generator at
every step, the rate, the noise level and all releases; not which canaries are in the data, nor what was
sampled.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from dpsinkhorn.data import Dataset
from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.datalens import Votes
from dpsinkhorn.mechanisms.dp_cgan import Discriminator
from dpsinkhorn.mechanisms.dp_merf import MeanEmbeddings
from dpsinkhorn.mechanisms.flow import Flow
from dpsinkhorn.mechanisms.g_pate import Ballots
from dpsinkhorn.mechanisms.gs_wgan import SecretCritic
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.moments import Moments
from dpsinkhorn.mechanisms.parameter import Parameter
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy.audit import AuditError
from dpsinkhorn.training.auditing.canaries import Canaries
from dpsinkhorn.training.auditing.observers.dp_cgan import DiscriminatorObserver
from dpsinkhorn.training.auditing.observers.dp_merf import EmbeddingsObserver
from dpsinkhorn.training.auditing.observers.flow import FlowObserver
from dpsinkhorn.training.auditing.observers.moments import MomentsObserver
from dpsinkhorn.training.auditing.observers.record import RecordObserver
from dpsinkhorn.training.auditing.observers.sinkhorn import SinkhornObserver
from dpsinkhorn.training.auditing.observers.taught import TaughtObserver
from dpsinkhorn.training.plan import Plan

__all__ = [
    "DiscriminatorObserver",
    "EmbeddingsObserver",
    "FlowObserver",
    "MomentsObserver",
    "Observer",
    "RecordObserver",
    "SinkhornObserver",
    "TaughtObserver",
    "observe",
]

Observer: TypeAlias = (
    RecordObserver
    | MomentsObserver
    | FlowObserver
    | SinkhornObserver
    | EmbeddingsObserver
    | DiscriminatorObserver
    | TaughtObserver
)


def observe(plan: Plan, data: Dataset, planted: Canaries) -> Observer:
    """Return who watches a training by this plan, in the place of its mechanism."""
    others = Sample(
        data.points(),
        None if data.labels is None else torch.tensor(data.labels),
        None if data.groups is None else torch.tensor(data.groups),
    )
    canaries = Sample(planted.points, planted.labels, planted.owners)
    mechanism = plan.build()
    if isinstance(mechanism, Record):
        return RecordObserver(mechanism, plan.sampling_rate, canaries, others)
    if isinstance(mechanism, Moments):
        return MomentsObserver(mechanism, canaries, others)
    if isinstance(mechanism, Flow):
        return FlowObserver(mechanism, canaries, others)
    if isinstance(mechanism, Batch | Image | Parameter):
        return SinkhornObserver(mechanism, canaries, others)
    if isinstance(mechanism, MeanEmbeddings):
        return EmbeddingsObserver(mechanism, canaries, others)
    if isinstance(mechanism, Discriminator):
        return DiscriminatorObserver(mechanism, canaries, others)
    if isinstance(mechanism, SecretCritic | Votes | Ballots):
        return TaughtObserver(mechanism, canaries, others)
    if not plan.private:
        raise AuditError("a training without privacy guarantees nothing that could be audited")
    raise AuditError(
        f"no one can watch a whole training by {plan.kind.name}; audit its steps (--game step), or replay it"
    )
