"""The recorder at the barrier: what it keeps, what it hands back, and what it takes offence at."""

from __future__ import annotations

import math

import dp_accounting as dp
import pytest
import torch

from dpsinkhorn.privacy import (
    Charge,
    GaussianMechanism,
    LaplaceMechanism,
    SeededNoise,
    add_gaussian,
    add_laplace,
    compose,
    poisson_sample,
)
from dpsinkhorn.privacy.audit import Outcome, Recorder, ReplayDivergedError, Replayed, Replayer, Shared
from dpsinkhorn.privacy.noise import announce

VALUES = torch.tensor([0.5, -0.25, 4.0], dtype=torch.float64)
NOBODY = Shared.all_and(0)


def gaussian(values, noise, **options):
    given = {"sensitivity": 2.0, "noise_multiplier": 1.5, **options}
    return add_gaussian(values, noise=noise, **given)


def recorded(run):
    recorder = Recorder(SeededNoise(0))
    return run(recorder), recorder.recording


def replayed(run, recording, shared=NOBODY, turn=0):
    replayer = Replayer(recording, SeededNoise(1), shared, turn)
    return run(replayer), replayer


class TestSeam:
    def test_a_recorder_changes_nothing(self):
        found, _ = recorded(lambda noise: gaussian(VALUES, noise))
        assert torch.equal(found, gaussian(VALUES, SeededNoise(0)))
        found, _ = recorded(lambda noise: add_laplace(VALUES, sensitivity=1.0, epsilon=2.0, noise=noise))
        assert torch.equal(found, add_laplace(VALUES, sensitivity=1.0, epsilon=2.0, noise=SeededNoise(0)))
        taken, _ = recorded(lambda noise: poisson_sample(100, 0.3, noise))
        assert torch.equal(taken, poisson_sample(100, 0.3, SeededNoise(0)))

    def test_a_replayer_hands_back_what_was_recorded(self):
        first, recording = recorded(lambda noise: gaussian(VALUES, noise))
        second, replayer = replayed(lambda noise: gaussian(VALUES + 1, noise), recording)
        assert torch.equal(first, second)
        assert replayer.finish() == pytest.approx(math.sqrt(3) / 2)

    def test_neither_is_for_release(self):
        assert not Recorder(SeededNoise(0)).secure


class TestMoves:
    def test_laplace_is_measured_in_l1(self):
        def run(values):
            return lambda noise: add_laplace(values, sensitivity=2.0, epsilon=1.0, noise=noise)

        _, recording = recorded(run(VALUES))
        assert replayed(run(VALUES + 1), recording)[1].finish() == pytest.approx(1.5)

    def test_a_part_without_numbers(self):
        def run(values):
            return lambda noise: [gaussian(each, noise, coordinates=3) for each in (values, values[:0])]

        _, recording = recorded(run(VALUES))
        assert replayed(run(VALUES + 1), recording)[1].finish() == pytest.approx(math.sqrt(3) / 2)

    def test_parts_of_one_release_are_measured_together(self):
        """Relative moves add up by squares; by themselves both would be within their sensitivities."""

        def run(values, count):
            def release(noise):
                gaussian(values, noise, sensitivity=1.0, coordinates=4)
                gaussian(count, noise, sensitivity=3.0, coordinates=4)

            return release

        _, recording = recorded(run(VALUES, torch.tensor([5.0])))
        moved = VALUES + torch.tensor([0.8, 0.0, 0.0], dtype=torch.float64)
        _, replayer = replayed(run(moved, torch.tensor([8.0])), recording)
        assert replayer.finish() == pytest.approx(math.sqrt(0.64 + 1))

    def test_releases_under_charges_of_their_own_are_not(self):
        def run(values):
            return lambda noise: [gaussian(values, noise) for _ in range(3)]

        _, recording = recorded(run(VALUES))
        assert replayed(run(VALUES + 1), recording)[1].finish() == pytest.approx(math.sqrt(3) / 2)

    def test_what_is_not_finite_counts_as_the_lattice_takes_it(self):
        _, recording = recorded(lambda noise: gaussian(VALUES, noise))
        _, replayer = replayed(lambda noise: gaussian(VALUES * math.nan, noise), recording)
        assert replayer.finish() == pytest.approx(float(VALUES.norm()) / 2)


class TestSamples:
    def test_all_but_the_new_unit_are_taken_as_recorded(self):
        taken, recording = recorded(lambda noise: poisson_sample(50, 0.3, noise))
        for turn, others in enumerate([[], [50], []]):
            again, _ = replayed(
                lambda noise: poisson_sample(51, 0.3, noise), recording, Shared.all_and(50, 1), turn
            )
            assert again.tolist() == [*taken.tolist(), *others]

    def test_units_may_have_other_places(self):
        shared = Shared(torch.tensor([2, 0, -1]), 4)
        assert shared.taken(torch.tensor([0, 2]), others=True).tolist() == [1, 2, 3]
        assert shared.taken(torch.tensor([0, 2]), others=False).tolist() == [2]

    def test_nothing_moves_where_the_new_unit_is_left_out(self):
        """One of several samples is without it, turn by turn: what sampling is credited with."""

        def run(points, leak=0.0):
            def steps(noise):
                for _ in range(3):
                    rows = poisson_sample(len(points), 0.3, noise)
                    gaussian(points[rows].sum(0) + leak, noise)

            return steps

        points = torch.zeros(20, 2, dtype=torch.float64)
        more = torch.cat([points, torch.ones(1, 2, dtype=torch.float64)])
        _, recording = recorded(run(points))
        _, replayer = replayed(run(more), recording, Shared.all_and(20, 1))
        assert replayer.finish() == pytest.approx(math.sqrt(2) / 2)
        assert replayer.differences == ()
        for turn in range(3):
            _, replayer = replayed(run(more, leak=1e-9), recording, Shared.all_and(20, 1), turn)
            assert replayer.finish() < 1
            assert "where no sample has it" in replayer.differences[0]


class TestDiverged:
    @pytest.mark.parametrize(
        "other",
        [
            lambda noise: gaussian(VALUES[:2], noise),
            lambda noise: gaussian(VALUES, noise, sensitivity=2.0000001),
            lambda noise: gaussian(VALUES, noise, noise_multiplier=1.4),
            lambda noise: add_laplace(VALUES, sensitivity=2.0, epsilon=1 / 1.5, noise=noise),
            lambda noise: poisson_sample(0, 0.5, noise),
            lambda noise: [gaussian(VALUES, noise) for _ in range(2)],
        ],
        ids=["shape", "sensitivity", "multiplier", "noise", "sample", "number"],
    )
    def test_other_requests(self, other):
        _, recording = recorded(lambda noise: gaussian(VALUES, noise))
        with pytest.raises(ReplayDivergedError):
            replayed(other, recording)

    def test_requests_left_out(self):
        _, recording = recorded(lambda noise: gaussian(VALUES, noise))
        _, replayer = replayed(lambda noise: None, recording)  # noqa: ARG005
        with pytest.raises(ReplayDivergedError, match="1 times less"):
            replayer.finish()


class TestCharges:
    def run(self, noise):
        poisson_sample(10, 0.25, noise)
        gaussian(VALUES, noise)
        add_laplace(VALUES[0], sensitivity=1.0, epsilon=0.5, noise=noise)

    def charge(self, multiplier=1.5, rate=0.25):
        return compose(
            GaussianMechanism(2.0, multiplier).sampled(rate, 1), LaplaceMechanism(1.0, 2.0).charge()
        )

    def test_as_noised(self):
        assert recorded(self.run)[1].differences(self.charge()) == ()

    @pytest.mark.parametrize(
        "charge",
        [
            lambda made: made.charge(multiplier=3.0),
            lambda made: made.charge(rate=0.1),
            lambda made: compose(made.charge(), made.charge()),
            lambda made: Charge(dp.GaussianDpEvent(1.5)),  # noqa: ARG005
        ],
        ids=["multiplier", "rate", "too many", "too few"],
    )
    def test_otherwise(self, charge):
        assert len(recorded(self.run)[1].differences(charge(self))) == 1

    def test_a_part_that_is_left_out(self):
        _, recording = recorded(lambda noise: gaussian(VALUES, noise, coordinates=5))
        found = recording.differences(GaussianMechanism(2.0, 1.5).charge())
        assert found == ("5 numbers are released under one charge, and 3 of them were noised",)


def test_what_is_summed_up():
    outcomes = [
        Outcome("one", move=0.5),
        Outcome("two", refused=True),
        Outcome("three", move=1.5, differences=("a file differs",)),
    ]
    found = Replayed.of("record", outcomes)
    assert (found.neighbours, found.refused, found.move, found.farthest) == (3, 1, 1.5, "three")
    assert found.violations == (
        "three: moves what is noised by 1.5 times its sensitivity",
        "three: a file differs",
    )


class TestPublicState:
    def run(self, values, **public):
        def release(noise):
            announce(noise, **public)
            return gaussian(values, noise)

        return release

    def test_it_must_be_the_same_bit_for_bit(self):
        public = {"radius": 1.0, "centres": torch.ones(2), "coordinates": None}
        _, recording = recorded(self.run(VALUES, **public))
        assert replayed(self.run(VALUES, **public), recording)[1].finish() == 0
        for name, other in (("radius", 1 + 1e-15), ("centres", torch.zeros(2)), ("coordinates", 1.0)):
            with pytest.raises(ReplayDivergedError, match=f"must be public of a release: {name}$"):
                replayed(self.run(VALUES, **{**public, name: other}), recording)

    def test_a_release_without_it(self):
        _, recording = recorded(lambda noise: gaussian(VALUES, noise))
        with pytest.raises(ReplayDivergedError, match="a release with radius on the neighbour"):
            replayed(self.run(VALUES, radius=1.0), recording)


def test_values_that_are_not_finite_are_told_though_they_do_not_move():
    run = lambda noise: gaussian(torch.full((2,), math.nan), noise)  # noqa: E731
    _, replayer = replayed(run, recorded(run)[1])
    assert replayer.finish() == 0
    assert replayer.differences == ("asks for noise on what is not finite",)
