"""Who watches a training by a system of other papers: `dp_cgan`, `dp_merf`, `gs_wgan`, `datalens`, `g_pate`.

What a canary does is known of the first two exactly: its own clipped gradient, and its own features. Those
of critics are taught with and without canaries. A record is in one part alone, so that a critic's state has
no more to do with canaries than those of its own part. Where there is one of them, the true critic is one of
two that the observer can teach as well: that of the other records, and that of these and the canary. Several
canaries of a part share what they do together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.datalens import Votes
from dpsinkhorn.mechanisms.dp_cgan import Critic, Discriminator
from dpsinkhorn.mechanisms.dp_merf import COUNT_SENSITIVITY, EMBEDDING_SENSITIVITY, Embeddings, MeanEmbeddings
from dpsinkhorn.mechanisms.g_pate import Ballots
from dpsinkhorn.mechanisms.gs_wgan import SecretCritic
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.taught import CriticSteps, PartCritics, TaughtMechanism, part_of
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import Evidence, Observer, SampledRows, rows_of


class TaughtObserver(Observer):
    """Stands in the place of a mechanism that critics teach, which does all the work, and looks on."""

    watches = (SecretCritic, Votes, Ballots)

    def __init__(self, watched: SecretCritic | Votes | Ballots, canaries: Sample, others: Sample) -> None:
        self.mechanism, self.terms = watched.mechanism, watched.terms
        self._watched, self.learns_every = watched, watched.learns_every
        labels = (
            None if others.labels is None or canaries.labels is None else (others.labels, canaries.labels)
        )
        together = torch.cat([others.points, canaries.points])
        self._worlds = (others, Sample(together, None if labels is None else torch.cat(labels)))
        self._places = part_of(canaries, watched.parts)  # of canaries
        self._evidence = Evidence(watched.parts)
        self._ratios = torch.zeros(watched.parts, dtype=torch.float64)

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far: that of its part."""
        known = isinstance(self._watched, SecretCritic)
        scores = self._ratios if known else self._evidence.scores()
        return scores[self._places]

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps:
        return CriticSteps(learner, records, self, horizon=horizon)

    def critics(self, sample: Sample, random: torch.Generator) -> PartCritics:
        """Return critics that take others along."""
        shadows = []
        for world in self._worlds:
            own = torch.Generator(random.device)
            own.set_state(random.get_state())
            shadows.append((self._watched.critics(world, own), own))
        return _Followed(self._watched.critics(sample, random), random, shadows)

    def gradient(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, learner: Learner
    ) -> Tensor:
        """Return what the watched mechanism does."""
        assert isinstance(critics, _Followed)
        watched: TaughtMechanism = self._watched
        drawn = watched.draw(points, learner.random, learner.noise)
        released = watched.released(critics, points, labels, drawn, learner.noise)
        shadows = [each for each, _ in critics.shadows]
        if isinstance(watched, SecretCritic):
            self._look_at_one(watched, shadows, points, labels, released)
        elif isinstance(watched, Votes | Ballots):
            assert isinstance(drawn, Tensor)
            self._look_at_votes(watched, shadows, points, labels, drawn, released)
        return watched.followed(released, drawn)

    def _look_at_one(
        self,
        watched: SecretCritic,
        shadows: Sequence[PartCritics],
        points: Tensor,
        labels: Tensor | None,
        released: Tensor,
    ) -> None:
        """Add, for each part, the logarithm of how much likelier a release is with its canaries than without.

        Which critic was asked is not known, and of other parts' canaries nothing is: they count as absent.
        """
        logs = [
            torch.stack(
                [
                    -(released - watched.clipped(critics, points, labels, part)).square().sum()
                    for part in range(watched.parts)
                ]
            )
            / (2 * watched.mechanism.noise_std**2)
            for critics in shadows
        ]
        without, alone = logs[0].logsumexp(0), torch.eye(watched.parts, dtype=torch.bool)
        with_canaries = torch.where(alone, logs[1][:, None], logs[0][None]).logsumexp(1)
        self._ratios += with_canaries - without

    def _look_at_votes(
        self,
        watched: Votes | Ballots,
        shadows: Sequence[PartCritics],
        points: Tensor,
        labels: Tensor | None,
        drawn: Tensor,
        released: Tensor,
    ) -> None:
        """Compare with what the votes of each part would be without its canaries, and with all of them."""
        without, with_canaries = (watched.votes(each, points, labels, drawn) for each in shadows)
        if isinstance(watched, Ballots):  # of the most votes nothing is made
            released, scale = released[..., :-1], watched.count_scale
        else:
            scale = 1
        std = watched.mechanism.noise_std / scale
        effects = (with_canaries - without).flatten(1).double() / std
        residual = (released / scale - without.sum(0)).flatten() / std
        gram = effects @ effects.T
        self._evidence.add(torch.arange(watched.parts), gram, effects @ residual - gram.sum(1) / 2)


class _Followed(PartCritics):
    """Critics, and others that learn beside them by the same draws."""

    def __init__(
        self,
        leading: PartCritics,
        random: torch.Generator,
        shadows: Sequence[tuple[PartCritics, torch.Generator]],
    ) -> None:
        self.__dict__.update(vars(leading))
        self._random, self.shadows = random, shadows

    def learn(self, points: Tensor, labels: Tensor | None) -> None:
        """Take a step with every critic, and with those that follow."""
        state = self._random.get_state()
        for critics, random in self.shadows:
            random.set_state(state)
            critics.learn(points, labels)
        super().learn(points, labels)


class DiscriminatorObserver(Observer, Discriminator):
    """Releases the noised sums of another `Discriminator`, and looks on.

    Of a released sum all is known but the noise, the sampling, and which canaries are in the data.
    """

    watches = Discriminator

    def __init__(self, watched: Discriminator, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms)
        self._evidence = SampledRows(canaries, others)

    def released(self, critic: Critic, records: Iterable[Sample], noise: NoiseSource) -> Tensor:
        released = super().released(critic, records, noise)
        self._evidence.look(
            released,
            self.terms.sampling_rate,
            self.mechanism.noise_std,
            lambda records: self.clipped(critic, [records]),
            lambda records: self.gradients.rows(critic, records.points, records.labels),
        )
        return released


class EmbeddingsObserver(Observer, MeanEmbeddings):
    """Releases the noised sums of another `MeanEmbeddings`, and looks on."""

    watches = MeanEmbeddings

    def __init__(self, watched: MeanEmbeddings, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms, features=watched.features)
        self._canaries, self._others = canaries, others
        self._evidence = Evidence(len(canaries.points))

    def embeddings(self, records: Iterable[Sample], noise: NoiseSource) -> Embeddings:
        released = super().embeddings(records, noise)
        sums, counts = self.clipped([self._others])
        residual = self._measured(released.sums * self.length - sums, released.counts - counts)
        for kind in range(self.kinds):
            labels = self._canaries.labels if self.classes else None
            rows = rows_of(labels, kind, len(self._canaries.points))
            vectors = self.vectors(self._canaries.points[rows])
            effects = self._measured(vectors, torch.ones(len(rows), dtype=torch.float64))
            gram = effects @ effects.T
            self._evidence.add(rows, gram, effects @ residual[kind] - gram.sum(1) / 2)
        return released

    def _measured(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return vectors and counts side by side, in standard deviations of their noise."""
        parts = [sums / (EMBEDDING_SENSITIVITY * self.length), counts[:, None] / COUNT_SENSITIVITY]
        return torch.cat(parts, dim=1) / float(self.mechanism.noise_std)
