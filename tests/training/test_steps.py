"""Steps in fixed shapes are the same steps: same gradients, same bound, no sample cut to fit."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from scipy.stats import binom

from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import on_grid
from dpsinkhorn.mechanisms.shared.steps import Setting
from dpsinkhorn.ot import L1L2, Cityblock, SquaredEuclidean
from dpsinkhorn.privacy import SeededNoise, _pld, poisson_sample
from dpsinkhorn.privacy.noise import normal_cells
from dpsinkhorn.training import TrainingError
from dpsinkhorn.training.records import Records, StoredRecords
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import FixedSteps, PlainSteps, captured, make_steps
from dpsinkhorn.training.trainer import Trainer
from support.barriers import mechanism_of
from support.runs import DATA, Everything, tiny_data, tiny_plan

CPU = torch.device("cpu")
DEVICES = [
    CPU,
    pytest.param(
        torch.device("cuda"),
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ),
]
CLASSES, PIXELS = 3, 16


def held_records(count: int, classes: int, device: torch.device) -> StoredRecords:
    random = torch.Generator().manual_seed(5)
    points = on_grid(torch.rand(count, PIXELS, generator=random) * 2 - 1).float()
    kinds = torch.randint(max(1, classes), (count,), generator=random).sort().values
    return StoredRecords(points.to(device), kinds.to(device), torch.float64)


def generated_points(count: int, device: torch.device) -> torch.Tensor:
    return (torch.rand(count, PIXELS, generator=torch.Generator().manual_seed(6)) * 2 - 1).to(device)


def record_sanitizer(cost, classes: int, *, batch: float = 40.0, self_weight: float = 0.5) -> Record:
    return mechanism_of(Record, 0.3, 1.5, cost, 0.7, batch=batch, own=self_weight, classes=classes)


def sample_of(held: StoredRecords, drawn, step: int, classes: int) -> Sample:
    rows = drawn.rows[drawn.step == step]
    return Sample(held.read(rows), held.kinds[rows] if classes else None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [0, CLASSES])
@pytest.mark.parametrize("cost", [SquaredEuclidean(), Cityblock(), L1L2(2.0)], ids=["l2", "l1", "mixed"])
@pytest.mark.parametrize("self_weight", [0.0, 0.5])
def test_record_has_the_same_gradient_in_fixed_shapes(cost, classes, self_weight, device):
    n, steps = 9, 4
    barrier = record_sanitizer(cost, classes, self_weight=self_weight)
    extra = barrier.resampled(n)
    held = held_records(90, classes, device)
    labels = (torch.arange(n) % classes).to(device) if classes else None
    every = None if labels is None else torch.cat([labels, labels[:extra]])
    fixed = barrier.fixed(Setting(n, every, barrier.terms.expected_batch, held))
    assert fixed is not None
    drawn = held.drawn(poisson_sample(steps * held.count, 0.4, SeededNoise(1), device=device), steps)
    inputs, fits = fixed.inputs_of(drawn)
    assert fits.all()
    points = generated_points(n + extra, device)
    cells = normal_cells(SeededNoise(2), (n, PIXELS), device=device)
    for step in range(steps):
        sample = sample_of(held, drawn, step, classes)
        expected = barrier._released(*barrier.clipped_sums(points, every, sample), cells=cells)
        found = fixed.gradient(points, every, {name: value[step] for name, value in inputs.items()}, cells)
        torch.testing.assert_close(found[:n].double(), expected, rtol=1e-5, atol=1e-6)
        assert not found[n:].any()


@pytest.mark.parametrize("device", DEVICES)
def test_every_record_is_laid_out_once(device):
    """Uneven classes, an empty step and a full one; rows that stand for no record are marked."""
    barrier = record_sanitizer(SquaredEuclidean(), CLASSES, batch=200.0)
    held = held_records(400, CLASSES, device)
    chosen = [torch.arange(0), torch.arange(400)[::3], torch.arange(150), torch.tensor([399])]
    indices = torch.cat([rows + step * 400 for step, rows in enumerate(chosen)]).to(device)
    fixed = barrier.fixed(
        Setting(6, torch.arange(12, device=device) % CLASSES, barrier.terms.expected_batch, held)
    )
    inputs, fits = fixed.inputs_of(held.drawn(indices, len(chosen)))
    assert fits.all()
    for step, rows in enumerate(chosen):
        there = inputs["filled"][step]
        assert inputs["rows"][step][there].sort().values.tolist() == rows.tolist()
        kinds = inputs["kinds"][step][:, None].expand_as(there)[there]
        assert torch.equal(kinds, held.kinds[inputs["rows"][step][there]])


@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_sample_leaves_the_stated_noise(device):
    n, steps = 12, 200
    barrier = record_sanitizer(SquaredEuclidean(), 0, self_weight=0.0)
    fixed = barrier.fixed(Setting(n, None, 40.0, held_records(90, 0, device)))
    nothing = held_records(90, 0, device).drawn(torch.empty(0, dtype=torch.int64, device=device), steps)
    inputs, fits = fixed.inputs_of(nothing)
    assert fits.all()
    cells = normal_cells(SeededNoise(4), (steps, n, PIXELS), device=device)
    points = generated_points(n, device)
    released = torch.stack(
        [
            fixed.gradient(points, None, {name: value[step] for name, value in inputs.items()}, cells[step])
            for step in range(steps)
        ]
    )
    stated = 1.5 * 0.3 / 40  # σ C / B
    deviation = 1 / math.sqrt(2 * released.numel())  # of an estimated standard deviation, relatively
    assert abs(float(released.double().std()) / stated - 1) < 5 * deviation
    assert abs(float(released.double().mean())) < 5 * stated / math.sqrt(released.numel())


@pytest.mark.parametrize("bad", [-1, CLASSES, 2**40])
def test_labels_that_are_no_class_have_no_place_in_fixed_shapes(bad):
    """Such a record must not move others: where there is one, steps are taken one by one."""
    good = Records(DATA, CPU)
    assert good.stored(CLASSES, on_the_grid=True) is not None
    assert good.stored(CLASSES - 1, on_the_grid=True) is None
    labels = DATA.labels.copy()
    labels[7] = bad
    assert Records(dataclasses.replace(DATA, labels=labels), CPU).stored(CLASSES, on_the_grid=True) is None
    ignored = good.stored(0, on_the_grid=True)
    assert ignored is not None
    assert not ignored.kinds.any()


def test_a_sample_beyond_what_rounding_is_bounded_for_does_not_fit():
    barrier = mechanism_of(Record, 0.3, 1.5, regularization=0.7, batch=2.0, most=10)
    held = held_records(50, 0, CPU)
    fixed = barrier.fixed(Setting(6, None, 40.0, held))
    _, fits = fixed.inputs_of(held.drawn(torch.cat([torch.arange(10), 50 + torch.arange(11)]), 2))
    assert fits.tolist() == [True, False]


def test_a_sample_that_is_too_large_is_said_not_to_fit():
    barrier = record_sanitizer(SquaredEuclidean(), 0, batch=1.0)
    held = held_records(9000, 0, CPU)
    fixed = barrier.fixed(Setting(6, None, barrier.terms.expected_batch, held))
    indices = torch.cat([torch.arange(5), 9000 + torch.arange(9000)])
    _, fits = fixed.inputs_of(held.drawn(indices, 2))
    assert fits.tolist() == [True, False]


@pytest.mark.parametrize("cost", [SquaredEuclidean(), L1L2(2.0)], ids=["l2", "mixed"])
def test_neighbours_stay_within_the_sensitivity(cost):
    """In fixed shapes one record more moves what is noised by no more than C, and by C if it is far."""
    n = 6
    barrier = record_sanitizer(cost, 0, self_weight=0.0)
    held = held_records(50, 0, CPU)
    held.points[7] = 1.0  # far from everything
    fixed = barrier.fixed(Setting(n, None, barrier.terms.expected_batch, held))
    points = generated_points(n, CPU) * 0.1 - 0.9
    sums = []
    for rows in (torch.arange(50), torch.cat([torch.arange(7), torch.arange(8, 50)])):
        inputs, _ = fixed.inputs_of(held.drawn(rows, 1))
        at = {name: value[0] for name, value in inputs.items()}
        gradient = fixed.gradient(points.double(), None, at, torch.zeros(n, PIXELS, dtype=torch.int64))
        sums.append(gradient * barrier.terms.expected_batch)
    moved = float((sums[0] - sums[1]).norm())
    step = 2.0**-30 * 0.3 * 1.5 * (n * PIXELS) ** 0.5  # what the lattice of the noise adds
    assert 0.29 < moved <= 0.3 + step


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mechanism", ["batch", "image"])
@pytest.mark.parametrize("classes", [0, CLASSES])
def test_rows_by_fused_kernels_are_the_same_gradient(mechanism, classes):
    """Beside the ordinary solver, on samples of several sizes, an empty one too; never above the bound."""
    device, n, extra, steps = torch.device("cuda"), 20, 8, 5
    options = (SquaredEuclidean(), 1.0, extra / n, classes)
    made = {
        "batch": mechanism_of(Batch, 0.5, 1.1, *options),
        "image": mechanism_of(Image, 0.5, 1.5, *options, rows=n),
    }
    barrier = made[mechanism]
    held = held_records(100, classes, device)
    labels = (torch.arange(n) % classes).to(device) if classes else None
    every = None if labels is None else torch.cat([labels, labels[:extra]])
    fixed = barrier.fixed(Setting(n, None, 20.0, held))
    assert fixed is not None
    indices = poisson_sample(steps * held.count, 0.2, SeededNoise(1), device=device)
    drawn = held.drawn(indices[indices // held.count != 2], steps)  # the third is empty
    inputs, fits = fixed.inputs_of(drawn)
    assert fits.all()
    points = generated_points(n + extra, device)
    for step in range(steps):
        sample = sample_of(held, drawn, step, classes)
        assert (len(sample.points) == 0) == (step == 2)
        cells = normal_cells(SeededNoise(step), (n, PIXELS), device=device)
        at = {name: value[step] for name, value in inputs.items()}
        found = fixed.gradient(points, every, at, cells)
        expected = barrier._released(barrier._gradient(points, every, sample), cells=cells)
        quiet = barrier._released(barrier._gradient(points, every, sample), cells=torch.zeros_like(cells))
        assert float((found - expected).norm()) <= 0.05 * float(quiet.norm())
        silent = fixed.gradient(points, every, at, torch.zeros_like(cells))[:n]
        norms = silent.norm()[None] if mechanism == "batch" else silent.norm(dim=1)
        assert (norms <= 0.5 + 1e-6).all()  # and half a step of the lattice


class TestTraining:
    def steps_of(self, *, mechanism="record", steps=24, device=CPU, capture=False, **changes):
        plan = tiny_plan(DATA, mechanism, steps=steps, **changes)
        state, records = TrainingState(plan, device), Records(DATA, device)
        made = make_steps(plan, state, records, plan.build(), (1 / 3,) * 3, horizon=steps, capture=capture)
        return state, made

    def test_not_in_fixed_shapes_where_the_number_of_records_is_not_public(self):
        """How often a sample has no room would tell of it, in the rounding of public numbers."""
        assert isinstance(self.steps_of()[1], FixedSteps)
        assert isinstance(self.steps_of(records=30)[1], PlainSteps)

    @pytest.mark.parametrize("records", [1_000, 60_000, 6_000_000])
    @pytest.mark.parametrize("batch", [1, 50, 200, 0.2])
    def test_whether_a_sample_fits_is_within_what_the_accountant_sets_aside(self, records, batch):
        rate = batch if batch < 1 else batch / records
        room = Setting(1, None, rate * records, held_records(1, 0, CPU)).capacity
        assert 0 < rate * binom.pmf(room, records - 1, rate) < _pld._ROUNDING / 100

    def weights(self, state):
        return torch.cat([parameter.detach().flatten() for parameter in state.best.parameters()])

    def test_broken_up_elsewhere_it_ends_at_the_same_bits(self):
        ends = []
        for parts in ([24], [8, 16], [16, 8], [8, 8, 8]):
            state, steps = self.steps_of()
            assert isinstance(steps, FixedSteps)
            steps.multiple = 8
            for part in parts:
                steps.take(part)
            assert state.step == 24
            ends.append(self.weights(state))
        assert all(torch.equal(ends[0], end) for end in ends[1:])

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_replayed_they_end_at_the_same_bits(self, monkeypatch):
        """One at a time and several in a row, with steps in between that find no room."""
        ends, norms = [], []
        for capture in (False, True):
            state, steps = self.steps_of(steps=90, device=torch.device("cuda"), capture=capture)
            steps.multiple = 45
            lay = type(steps._fixed).inputs_of
            with monkeypatch.context() as patch:
                patch.setattr(
                    type(steps._fixed),
                    "inputs_of",
                    lambda own, drawn, lay=lay: (
                        lay(own, drawn)[0],
                        ~torch.isin(torch.arange(drawn.steps), torch.tensor([5, 23, 40])),
                    ),
                )
                steps.take(90)
            assert state.step == 90
            assert not capture or len(steps._captured) == 2
            ends.append(self.weights(state))
            norms.append(torch.stack([gradient.float().norm() for gradient in state.gradients]))
        assert torch.equal(*ends)
        assert torch.equal(*norms)

    def test_a_seeded_run_is_not_resumed_in_another_way(self):
        """Steps already paid for are free only where they are the same: other threads round otherwise."""
        plan = tiny_plan(DATA, "record", steps=6)
        trainer = Trainer(plan, DATA, CPU, Everything(6))
        state = trainer.state
        next(trainer.blocks())
        way = state.how_taken
        assert way.startswith(f"one by one, by torch {torch.__version__} on cpu (")
        next(trainer.blocks())
        for other in (
            way.replace("one by one", "64 at a time"),
            way.replace(torch.__version__, "2.0.1"),
            f"{way[:-1]}1)",  # 11 threads in place of one
        ):
            state.how_taken = other
            with pytest.raises(TrainingError, match="would not replay") as caught:
                trainer.blocks()
            assert f"took its steps {other}, and here they would be taken {way}" in str(caught.value)

    def test_it_learns_as_single_steps_do(self):
        """Not the same draws, but the same training: both move the weights by about as much."""
        moved = []
        for capture in (False, None):
            data = tiny_data()
            plan = tiny_plan(data, "record", steps=40)
            state = TrainingState(plan, CPU)
            before = self.weights(state)
            steps = make_steps(
                plan, state, Records(data, CPU), plan.build(), (1 / 3,) * 3, horizon=40, capture=capture
            )
            assert isinstance(steps, FixedSteps if capture is False else PlainSteps)
            steps.take(40)
            moved.append(float((self.weights(state) - before).norm()))
        assert 0.7 < moved[0] / moved[1] < 1.4

    @pytest.mark.parametrize("mechanism", ["batch", "image", "none"])
    @pytest.mark.parametrize("loss", [{}, {"iterations": 13}, {"marginals": "classes"}, {"marginals": 9.0}])
    def test_the_sinkhorn_mechanisms_learn_as_in_single_steps(self, mechanism, loss):
        moved = []
        for capture in (False, None):
            state, steps = self.steps_of(mechanism=mechanism, capture=capture, loss=loss)
            before = self.weights(state)
            assert isinstance(steps, FixedSteps if capture is False else PlainSteps)
            steps.take(24)
            assert state.step == 24
            moved.append(float((self.weights(state) - before).norm()))
        assert 0.7 < moved[0] / moved[1] < 1.4

    def test_parameter_gradients_are_taken_one_by_one(self):
        assert isinstance(self.steps_of(mechanism="parameter")[1], PlainSteps)

    def test_no_noise_and_no_latents_are_used_twice(self, monkeypatch):
        """Over blocks of which the last is shorter, with steps in between that find no room."""
        state, steps = self.steps_of(steps=29)
        steps.multiple = 8
        used, rendered = [], []
        real, render = steps._fixed.gradient, captured.render
        inputs_of = steps._fixed.inputs_of
        monkeypatch.setattr(
            type(steps._fixed),
            "inputs_of",
            lambda _, drawn: (inputs_of(drawn)[0], torch.arange(drawn.steps) != 5),
        )

        def gradient(_, points, labels, inputs, cells):
            used.append(cells.clone())
            return real(points, labels, inputs, cells)

        def remember(*given):
            rendered.append(given[3].clone())
            return render(*given)

        monkeypatch.setattr(type(steps._fixed), "gradient", gradient)
        monkeypatch.setattr(captured, "render", remember)
        steps.take(16)
        steps.take(13)
        assert state.step == len(rendered) == 29
        assert len(used) == 29 - 3
        for draws in (used, rendered):
            every = torch.stack(draws).flatten(1)
            assert len(every.unique(dim=0)) == len(every)
            assert all(part.any() for part in every)

    def test_steps_without_room_are_taken_in_the_ordinary_way(self, monkeypatch):
        state, steps = self.steps_of()
        plain = []
        inputs_of, real = steps._fixed.inputs_of, steps._barrier.backward
        monkeypatch.setattr(
            type(steps._fixed),
            "inputs_of",
            lambda _, drawn: (inputs_of(drawn)[0], torch.arange(drawn.steps) % 3 > 0),
        )
        monkeypatch.setattr(
            steps._barrier, "backward", lambda *given: (plain.append(given[2]), real(*given))[1]
        )
        steps.take(24)
        assert state.step == 24
        assert len(plain) == 8
        assert any(len(sample.points) for sample in plain)
