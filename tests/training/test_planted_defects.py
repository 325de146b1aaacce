"""Defects planted in the real code, one at a time, and who notices: named tests of this suite, or an audit.

docs/audit.md has the same list, as a table; `test_the_docs_name_every_defect` keeps the two together.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import dp_accounting as dp
import pytest
import torch

from dpsinkhorn.data import load_dataset
from dpsinkhorn.mechanisms import batch, image, parameter, record
from dpsinkhorn.mechanisms.shared import base, clipping, shares
from dpsinkhorn.mechanisms.shared import sinkhorn as gradients
from dpsinkhorn.privacy import Charge, ImageMechanism, SecureNoise, SeededNoise, words
from dpsinkhorn.privacy.noise import key_stream
from dpsinkhorn.training import account, records, steps, watching
from dpsinkhorn.training.account import Account
from dpsinkhorn.training.auditing import StepAudit, StepSetting, TrainingReplay, audit_step, replay_plan
from dpsinkhorn.training.auditing.replay import first_units, worst_neighbours
from dpsinkhorn.training.auditing.search import exact_outcomes
from support import moment_defects
from support.defects import ROOT, charge_afterwards, failing, wrap

KINDS = ("record", "batch", "image", "parameter")
SANITIZERS = "tests/mechanisms/test_contract.py"
REPLAY = "tests/training/test_run_replay.py"
LEDGER = "tests/training/test_run_ledger.py::TestLedger"
STEPS = "tests/training/test_steps.py::TestTraining"
SECURE = "tests/training/test_run_secure.py"
MOMENT_STEPS = ("means", "common covariance", "centres", "covariances")
MOMENTS = "tests/mechanisms/test_moments.py"
LARGEST = "TestCoordinates::test_the_largest_deviations[(1, 28, 28)-20-"
SEEN = "tests/mechanisms/test_moment_steps.py::TestRuns::test_private_data_are_seen_through_noised_sums_only"


@dataclass(frozen=True)
class Defect:
    """What is broken, how, and who must notice."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    caught_by: tuple[str, ...]
    audited: tuple[str, ...] = ()
    """Mechanisms whose audit shows an ε beyond the claim."""
    audit_is_long: bool = False
    replayed: tuple[str, ...] = ()
    """Mechanisms whose record and replay shows that something is wrong."""


# ---- noise


def without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(base, "add_gaussian", lambda values, **_: values)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    def halved(real, values, *, noise_multiplier, **options):
        return real(values, noise_multiplier=noise_multiplier / 2, **options)

    wrap(patch, base, "add_gaussian", halved)


def secure_noise_under_one_key(patch: pytest.MonkeyPatch) -> None:
    """Every request for bits, of every step, is answered from the start of the same stream."""
    patch.setattr(
        SecureNoise,
        "words",
        lambda _self, count, *, device="cpu": key_stream(bytes(32), 0, count, torch.device(device)),
    )


def secure_noise_that_starts_again(patch: pytest.MonkeyPatch) -> None:
    """No repetition within a life of the run; the next life draws the same again."""

    def words(self, count, *, device="cpu"):
        self.asked = getattr(self, "asked", 0) + 1
        return key_stream(bytes(32), self.asked, count, torch.device(device))

    patch.setattr(SecureNoise, "words", words)


def seeded_noise_that_stands_still(patch: pytest.MonkeyPatch) -> None:

    def words(real, self, count, **where):
        return real(SeededNoise(self.state()["seed"]), count, **where)

    wrap(patch, SeededNoise, "words", words)


def seeded_noise_that_starts_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SeededNoise, "restore", lambda noted: SeededNoise(noted["seed"]))


# ---- clipping


def without_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shares.SumOfShares, "bound", lambda *_, **__: math.inf)
    for module, name in ((batch, "clip_whole"), (image, "clip_rows"), (parameter, "clip_whole")):
        patch.setattr(module, name, lambda values, _bound: values.double())


def batch_by_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch, "clip_whole", clipping.clip_rows)


def record_by_row(patch: pytest.MonkeyPatch) -> None:
    """Every image's part of a share clipped on its own, not the share as a whole."""
    patch.setattr(shares, "_norms", lambda parts, squared_slopes: (parts * parts * squared_slopes).sqrt())


def parameter_by_tensor(patch: pytest.MonkeyPatch) -> None:
    """Every weight matrix clipped on its own, not all parameters together."""
    sizes: list[int] = []

    def noting_sizes(real, *what, **how):
        parts = real(*what, **how)
        sizes[:] = [part.numel() for part in parts]
        return parts

    def clip_each(real, whole, bound):
        return torch.cat([real(part, bound) for part in whole.split(sizes)])

    wrap(patch, parameter, "pulled_back", noting_sizes)
    wrap(patch, parameter, "clip_whole", clip_each)


def nan_in_record(patch: pytest.MonkeyPatch) -> None:
    """Records go into the sum as they are: one NaN makes all of it NaN, whatever the clip."""

    def as_it_is(points):
        return points.detach().clamp(-1, 1).double()

    for module in (clipping, gradients):
        patch.setattr(module, "tidy", as_it_is)


def nan_past_the_clip(patch: pytest.MonkeyPatch) -> None:
    """Clipping as one would write it first: a NaN norm compares as not too large."""
    patch.setattr(clipping, "_finite", lambda values: values.detach().double())


# ---- sampling, normaliser, ledger, accounting


def shuffled(patch: pytest.MonkeyPatch) -> None:
    """Batches of one size from a shuffled order, all records in turn; charged as Poisson samples."""
    left: list[int] = []

    def next_batch(count, rate, noise, *, device="cpu"):  # noqa: ARG001
        size = round(count * rate)
        if len(left) < size:
            left[:] = torch.randperm(count).tolist()
        taken, left[:] = left[:size], left[size:]
        return torch.tensor(sorted(taken), dtype=torch.int64, device=device)

    patch.setattr(records, "poisson_sample", next_batch)


def realised_normaliser(patch: pytest.MonkeyPatch) -> None:
    def backward(real, self, points, labels, sample, *rest):
        other = copy.copy(self)
        records = max(1, len(sample.points)) / self.terms.sampling_rate
        other.terms = dataclasses.replace(
            self.terms, facts=dataclasses.replace(self.terms.facts, records=records)
        )
        real(other, points, labels, sample, *rest)

    wrap(patch, record.Record, "backward", backward)


def ledger_afterwards(patch: pytest.MonkeyPatch) -> None:
    """Steps are granted at once, and charged when the next are asked for."""
    patch.setattr(Account, "reserve", charge_afterwards)


def room_of_others(patch: pytest.MonkeyPatch) -> None:
    """Steps that a crash lost are taken again for as long as the ledger, not the run, has room."""
    patch.setattr(Account, "steps_left", lambda self: self._plan.steps)


def persons_with_anyone(patch: pytest.MonkeyPatch) -> None:
    """A charge of which nobody knows whom it protects counts for persons."""

    def conflict(real, runs, unit):
        return real([name for name in runs if words._RUN_NAME.search(name)], unit)

    wrap(patch, account, "unit_conflict", conflict)


def fixed_shapes_always(patch: pytest.MonkeyPatch) -> None:
    """Samples that find no room tell of the number of records, though that is not public."""
    patch.setattr(steps, "_may_show_sizes", lambda _plan: True)


def replay_of_what_is_not_known(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Account, "settle", lambda real, *at, **how: real(*at, **{**how, "replays": True}))


def epsilon_of_the_last_look(patch: pytest.MonkeyPatch) -> None:
    def look(real, self, block):
        found = real(self, block)
        if found is not None:
            self.spent = found
        return found

    wrap(patch, watching.Pace, "look", look)


def published_accounting(patch: pytest.MonkeyPatch) -> None:
    """Each row of a step counted as a query on a sample of its own."""

    def sampled(self, sampling_rate, steps):
        row = dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(self.row_noise_multiplier))
        return Charge(dp.SelfComposedDpEvent(row, self.rows * steps), self.adjacency)

    patch.setattr(ImageMechanism, "sampled", sampled)


def each_kind(node: str) -> tuple[str, ...]:
    return tuple(f"{SANITIZERS}::{node}[{kind}]" for kind in KINDS)


def of_moments(
    what: str, plant: Callable[[pytest.MonkeyPatch], None], tests: list[str], audited: tuple[str, ...] = ()
) -> Defect:
    """A defect of `moments`: its own tests, or those named in full, and the replay notice it."""
    nodes = (node if node.startswith("tests/") else f"{MOMENTS}::{node}" for node in tests)
    return Defect(f"{what}, `moments`", plant, tuple(nodes), audited, replayed=("moments",))


def in_two_steps(*tests: str) -> list[str]:
    return [f"{test}{step}]" for test in tests for step in ("centres", "covariances")]


DEFECTS = (
    Defect(
        "noise left out",
        without_noise,
        each_kind("TestNoise::test_zero_gradients_leave_the_stated_noise"),
        KINDS,
        replayed=KINDS,
    ),
    Defect(
        "noise of half the size",
        half_the_noise,
        each_kind("TestNoise::test_zero_gradients_leave_the_stated_noise"),
        KINDS,
        replayed=KINDS,
    ),
    Defect(
        "clipping left out",
        without_clipping,
        each_kind("TestSensitivity::test_the_bound_is_attained"),
        KINDS,
        replayed=KINDS,
    ),
    Defect(
        "clipping by row where it must be joint, `batch`",
        batch_by_row,
        (f"{SANITIZERS}::TestSensitivity::test_the_bound_is_attained[batch]",),
        ("batch",),
        replayed=("batch",),
    ),
    Defect(
        "clipping by row where it must be joint, `record`",
        record_by_row,
        (f"{SANITIZERS}::TestSensitivity::test_the_bound_is_attained[record]",),
        ("record",),
        replayed=("record",),
    ),
    Defect(
        "clipping by tensor where it must be joint, `parameter`",
        parameter_by_tensor,
        ("tests/mechanisms/test_sinkhorn.py::TestAgainstAutograd::test_parameter[0.05]",),
        replayed=("parameter",),
    ),
    Defect(
        "noise reused between steps",
        secure_noise_under_one_key,
        (f"{SECURE}::TestSecure::test_no_noise_is_drawn_twice",),
    ),
    Defect(
        "noise reused between steps of a seeded run",
        seeded_noise_that_stands_still,
        ("tests/privacy/test_noise.py::test_steps_and_resumes_are_independent",),
    ),
    Defect(
        "noise reused after a resume",
        secure_noise_that_starts_again,
        (f"{SECURE}::TestSecure::test_no_noise_is_drawn_twice",),
    ),
    Defect(
        "noise reused after a resume of a seeded run",
        seeded_noise_that_starts_again,
        (f"{REPLAY}::TestReplay::test_interrupted_equals_uninterrupted[record-options0]",),
    ),
    Defect(
        "Poisson sampling replaced by shuffling",
        shuffled,
        (
            "tests/training/test_records.py::test_units_are_taken_at_the_rate_and_independently[False]",
            "tests/training/test_records.py::test_units_are_taken_at_the_rate_and_independently[True]",
        ),
        replayed=KINDS,
    ),
    Defect(
        "the realised batch size in a normaliser",
        realised_normaliser,
        ("tests/mechanisms/test_record.py::TestSum::test_the_normaliser_is_public",),
        replayed=("record",),
    ),
    Defect(
        "the ledger written after the step",
        ledger_afterwards,
        (f"{SECURE}::TestSecure::test_what_is_used_is_on_record_and_lost_steps_are_charged[0]",),
        replayed=KINDS,
    ),
    Defect(
        "lost steps taken again, in the room that others have on a ledger",
        room_of_others,
        tuple(f"{LEDGER}::test_a_run_that_lost_steps_keeps_to_its_own_epsilon[{lost}]" for lost in (3, 7)),
    ),
    Defect(
        "charges that may protect a record alone, counted for persons",
        persons_with_anyone,
        (f"{LEDGER}::test_a_person_is_not_protected_by_charges_of_which_nobody_knows",),
    ),
    Defect(
        "steps in fixed shapes where the number of records is not public",
        fixed_shapes_always,
        (f"{STEPS}::test_not_in_fixed_shapes_where_the_number_of_records_is_not_public",),
    ),
    Defect(
        "steps of a seeded run free, though nothing tells how they were taken before",
        replay_of_what_is_not_known,
        tuple(
            f"{REPLAY}::TestReplay::test_steps_are_free_only_where_it_is_known_how_they_were_taken[{loss}]"
            for loss in ("checkpoint", "way")
        ),
    ),
    Defect(
        "ε of some time ago, shown while training",
        epsilon_of_the_last_look,
        (
            "tests/training/test_pace.py::TestLooks::test_they_take_little_time_and_never_tell_too_little[1-2.0]",
        ),
    ),
    Defect(
        "per-image accounting as published",
        published_accounting,
        (f"{SANITIZERS}::TestInterface::test_charges[image]",),
        ("image",),
        audit_is_long=True,
        replayed=("image",),
    ),
    Defect(
        "a NaN record that passes the clip, `record`",
        nan_in_record,
        (f"{SANITIZERS}::TestSensitivity::test_neighbours[record-1.0]",),
        replayed=("record",),
    ),
    Defect(
        "a NaN record that passes the clip, all others",
        nan_past_the_clip,
        ("tests/mechanisms/test_sinkhorn.py::TestClipping::test_what_is_not_finite_becomes_zero",),
    ),
    of_moments("noise left out", moment_defects.without_noise, ["TestNoise::test_variances"], ("moments",)),
    *(
        of_moments(name, plant, ["TestNoise::test_variances"])
        for name, plant in {
            "too little noise above the diagonal": moment_defects.little_noise_above_the_diagonal,
            "counts without noise": moment_defects.true_counts,
            "deviations noised as if counts were not there": moment_defects.deviations_as_if_alone,
            "counts noised as if their weight were 1": moment_defects.counts_as_heavy_as_deviations,
        }.items()
    ),
    of_moments(
        "scaled coordinates that are not on a grid",
        moment_defects.coordinates_off_the_grid,
        in_two_steps("TestCoordinates::test_sums_half_way_between_steps[", LARGEST),
    ),
    of_moments(
        "scaled coordinates of too many digits",
        moment_defects.too_many_digits_in_coordinates,
        [f"{LARGEST}centres]"],
    ),
    of_moments(
        "scaled deviations that are not on a grid",
        moment_defects.scaled_deviations_off_the_grid,
        [f"{LARGEST}centres]"],
    ),
    of_moments(
        "scaled coordinates of any length",
        moment_defects.long_coordinates,
        in_two_steps(
            "TestCoordinates::test_of_any_size[1e+306-",
            "TestCoordinates::test_a_long_one_is_shortened_and_nothing_else[",
        ),
    ),
    of_moments(
        "scaled coordinates that are not finite",
        moment_defects.coordinates_that_are_not_finite,
        in_two_steps("TestCoordinates::test_values[nan-"),
    ),
    of_moments(
        "clipping left out",
        moment_defects.without_clipping,
        [f"TestSensitivity::test_neighbours[0.3-{step}]" for step in MOMENT_STEPS],
        ("moments",),
    ),
    of_moments(
        "clipping by coordinate where it must be joint",
        moment_defects.clipped_by_coordinate,
        [f"TestSensitivity::test_neighbours[0.3-{step}]" for step in MOMENT_STEPS],
    ),
    of_moments(
        "sums that are not exact",
        moment_defects.off_the_grid,
        [f"TestExact::test_sums_do_not_depend_on_order_or_company[{step}]" for step in MOMENT_STEPS],
    ),
    of_moments("the true number of records in a normaliser", moment_defects.true_normaliser, [SEEN]),
    of_moments("the true number of records in a radius", moment_defects.records_in_a_radius, [SEEN]),
)


def first_violations(kind: str) -> tuple[str, ...]:
    """What record and replay finds first: a fraction of a second, where there is something."""
    data = load_dataset("digits")
    base = first_units(data, 300)
    plan = replay_plan(base, kind)
    game = TrainingReplay(plan, base)
    outcomes = chain([game.own], exact_outcomes(plan, data), game.against(worst_neighbours(base, data)))
    return next((outcome.violations for outcome in outcomes if outcome.violations), ())


def audited(kind: str, defect: str = "") -> StepAudit:
    """A short audit: enough to tell a defect from none."""
    if defect == "per-image accounting as published":  # which is harmless unless there is sampling
        setting = StepSetting("image", 1.5, sampling_rate=0.05, rows=50)
        return audit_step(setting, delta=1e-5, repetitions=800, seed=0)
    sigma = 2.0 if kind == "image" else 1.0  # for `image` that of one of four rows
    return audit_step(StepSetting(kind, sigma), delta=1e-5, repetitions=250, seed=0)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_named_tests_fail_with_the_defect(defect: Defect, monkeypatch: pytest.MonkeyPatch):
    defect.plant(monkeypatch)
    assert failing(*defect.caught_by) == sorted(defect.caught_by)


@pytest.mark.long  # every one of them is a test of this suite, so that it runs anyway
def test_named_tests_pass_without():
    assert failing(*sorted({node for defect in DEFECTS for node in defect.caught_by})) == []


@pytest.mark.parametrize(
    ("defect", "kind"),
    [
        pytest.param(each, kind, id=f"{each.name}-{kind}", marks=[pytest.mark.long] * each.audit_is_long)
        for each in DEFECTS
        for kind in each.audited
    ],
)
def test_the_audit_exceeds_the_claim_with_the_defect(
    defect: Defect, kind: str, monkeypatch: pytest.MonkeyPatch
):
    defect.plant(monkeypatch)
    found = audited(kind, defect.name)
    assert found.bound > found.claimed


@pytest.mark.parametrize("kind", [*KINDS, "moments"])
def test_the_audit_stays_within_the_claim_without(kind: str):
    found = audited(kind)
    assert 0 < found.bound < found.claimed


@pytest.mark.parametrize(
    ("defect", "kind"),
    [pytest.param(each, kind, id=f"{each.name}-{kind}") for each in DEFECTS for kind in each.replayed],
)
def test_the_replay_finds_the_defect(defect: Defect, kind: str, monkeypatch: pytest.MonkeyPatch):
    defect.plant(monkeypatch)
    assert first_violations(kind)


@pytest.mark.long  # `test_replay_game.py` has shorter ones
@pytest.mark.parametrize("kind", [*KINDS, "moments"])
def test_the_replay_finds_nothing_without(kind: str):
    assert not first_violations(kind)


def test_the_docs_name_every_defect():
    lines = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8").splitlines()
    rows = {cells[0]: cells[1:] for line in lines if len(cells := _cells(line)) == 4}
    for defect in DEFECTS:
        tests, by_audit, by_replay = rows[defect.name]
        for node in defect.caught_by:
            assert node.removeprefix("tests/").partition("[")[0] in tests, node
        assert by_audit == (", ".join(f"`{kind}`" for kind in defect.audited) or "no")
        assert by_replay == (", ".join(f"`{kind}`" for kind in defect.replayed) or "no")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
