"""Training on a GPU: the same sums as on a CPU, the same bounds, runs that resume where they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dpsinkhorn import load
from dpsinkhorn.data import from_arrays
from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.ot import L1L2
from dpsinkhorn.training import Run, Saving, choose_recipe, facts_of, make_plan
from dpsinkhorn.training.trial import try_plan
from support.barriers import mechanism_of
from support.sanitizer_oracles import COSTS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LABELS = torch.arange(20) % 10
GENERATED = torch.rand(20, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
GENERATED[:, :5] = -1.0  # saturated, as backgrounds are


def sample_of(count: int) -> Sample:
    images, labels = load_digits(return_X_y=True)
    return Sample(torch.tensor(images[:count] / 8 - 1).float(), torch.tensor(labels[:count]))


def on_gpu(sample: Sample) -> Sample:
    groups = None if sample.groups is None else sample.groups.cuda()
    return Sample(sample.points.cuda(), sample.labels.cuda(), groups)


def mechanisms():
    for cost in COSTS:
        yield f"record-{cost}", mechanism_of(Record, 3.0, 1.0, cost, batch=100, classes=10)
    yield "batch", mechanism_of(Batch, 0.5, 1.1, L1L2(1.0), 0.05, classes=10)
    yield "image", mechanism_of(Image, 0.5, 1.5, None, 5.0, classes=10, rows=20)


@pytest.mark.parametrize(("name", "barrier"), [pytest.param(*pair, id=pair[0]) for pair in mechanisms()])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_gpu_computes_the_same_and_keeps_the_bound(name: str, barrier, grouped: bool):
    sample = sample_of(200)
    if grouped:
        sample = Sample(sample.points, sample.labels, torch.arange(200) // 4)
    here = barrier.clipped(GENERATED, LABELS, sample)
    there = barrier.clipped(GENERATED.cuda(), LABELS.cuda(), on_gpu(sample)).cpu()
    apart = max(1e-6, 10 * getattr(barrier, "tolerance", 0))  # plans are solved as far as that
    assert float((here - there).norm()) <= apart * float(here.norm())

    end = 196 if grouped else 199  # the last unit is taken away
    fewer = Sample(
        sample.points[:end], sample.labels[:end], None if sample.groups is None else sample.groups[:end]
    )
    less = barrier.clipped(GENERATED.cuda(), LABELS.cuda(), on_gpu(fewer)).cpu()
    moved = float((there - less).norm())
    assert moved <= barrier.mechanism.sensitivity
    assert moved > 0, name


@pytest.mark.parametrize("mechanism", ["record", "batch", "image", "parameter", "none"])
def test_a_seeded_run_resumes_to_the_same_generator(mechanism: str, tmp_path):
    images, labels = load_digits(return_X_y=True)
    data = from_arrays(images.reshape(-1, 8, 8), labels, value_range=(0, 16))
    settings = {
        "privacy": {"steps": 12},
        "loss": {"generated": 20, "generated_per_class": 2},
        "generator": {"latent": 4},
    }
    recipe = choose_recipe(facts_of(data), mechanism=mechanism, settings=settings)
    recipe = recipe.replace(privacy={"batch": 60})
    budget = None if mechanism == "none" else 10.0
    plan = make_plan(recipe, facts_of(data), budget_epsilon=budget, seed=1)
    finished = []
    for name, stop_after in (("whole", None), ("broken", 4)):
        run = Run.create(tmp_path / name, plan)
        saving = Saving(checkpoint_seconds=0, picture_steps=5)
        stop = None if stop_after is None else (lambda now, last=stop_after: now.block.step >= last)
        if not run.train(data, device="cuda", saving=saving, watch=stop):
            run = Run.resume(tmp_path / name)
            assert run.train(data, device="cuda", saving=saving)
        finished.append(load(run.release_folder))
    first, second = (release.generator.state_dict() for release in finished)
    for key, value in first.items():
        assert torch.equal(value, second[key]), key
    sampled, kinds = finished[0].sample(30, random_state=0, device="cuda")
    assert sampled.shape == (30, 8, 8)
    assert kinds is not None
    again = finished[0].sample(30, random_state=0, device="cpu")[0]
    assert np.abs(sampled.astype(int) - again.astype(int)).max() <= 2


def digits(*, labelled: bool, persons: bool = False):
    images, labels = load_digits(return_X_y=True)
    return from_arrays(
        images.reshape(-1, 8, 8),
        labels if labelled else None,
        value_range=(0, 16),
        groups=np.arange(len(images)) // 3 if persons else None,
    )


def moments_plan(data, components: int, **options):
    settings = {"generator": {"components": components, "frequencies": 8}}
    recipe = choose_recipe(facts_of(data), mechanism="moments", settings=settings)
    return make_plan(recipe, facts_of(data), budget_epsilon=10.0, seed=1, **options)


def trained(folder, plan, data, device: str, stop_after: int | None = None, then: str | None = None):
    """The release of a run, which may be stopped after some steps, and resumed, on another device or not."""
    run = Run.create(folder, plan)
    saving = Saving(checkpoint_seconds=0, picture_steps=2)
    done = run.train(
        data,
        device=device,
        saving=saving,
        watch=lambda now: stop_after is not None and now.block.step >= stop_after,
    )
    assert done == (stop_after is None)
    if not done:
        run = Run.resume(folder)
        assert run.train(data, device=then or device, saving=saving)
    return load(run.release_folder)


@pytest.mark.parametrize("labelled", [True, False])
def test_moments_replays_and_is_drawn_from(labelled: bool, tmp_path):
    data = digits(labelled=labelled)
    plan = moments_plan(data, components=4)
    whole = trained(tmp_path / "whole", plan, data, "cuda")
    others = [trained(tmp_path / "again", plan, data, "cuda")]
    others += [trained(tmp_path / f"broken-{at}", plan, data, "cuda", stop_after=at) for at in (1, 2, 4)]
    expected = whole.generator.state_dict()
    for name, value in expected.items():
        assert bool(torch.isfinite(value).all()), name
        for other in others:
            assert torch.equal(value, other.generator.state_dict()[name]), name

    # what varies images draws its numbers on the device, so only images without it can be compared
    plain = [whole.sample(200, random_state=0, device=device) for device in ("cuda", "cpu")]
    assert np.abs(plain[0][0].astype(int) - plain[1][0].astype(int)).max() <= 2
    varied = [whole.sample(200, random_state=0, device="cuda", vary=True) for _ in range(2)]
    assert varied[0][0].shape == (200, 8, 8)
    assert (varied[0][1] is None) == (not labelled)
    assert np.array_equal(varied[0][0], varied[1][0])
    assert not np.array_equal(varied[0][0], plain[0][0])
    assert try_plan(plan, torch.device("cuda")).seconds > 0


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("labelled", [True, False])
def test_moments_has_the_bits_of_a_cpu(labelled: bool, persons: bool, tmp_path):
    """Wherever its sums are taken, and if a run moves from one device to the other."""
    data = digits(labelled=labelled, persons=persons)
    plan = moments_plan(data, components=4, labels="released" if labelled else "uniform")
    here = trained(tmp_path / "cpu", plan, data, "cpu")
    others = [
        trained(tmp_path / "cuda", plan, data, "cuda"),
        trained(tmp_path / "to-cpu", plan, data, "cuda", stop_after=3, then="cpu"),
        trained(tmp_path / "to-cuda", plan, data, "cpu", stop_after=2, then="cuda"),
    ]
    for there in others:
        assert there.label_probabilities == here.label_probabilities
        for name, value in here.generator.state_dict().items():
            assert torch.equal(value, there.generator.state_dict()[name]), name


def test_pixels_have_the_bits_of_a_cpu():
    """Of a range that is no power of two, where PyTorch divides by a number in another way on a GPU."""
    data = from_arrays(np.zeros((1, 2, 2), np.float32), value_range=(0.1, 3.2))
    values = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3.4
    there = data.scale_(values.cuda()).cpu()
    assert torch.equal(data.scale_(values), there)
