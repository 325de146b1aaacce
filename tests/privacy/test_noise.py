"""Noise sources and the lattice. Statistical tests use fixed seeds; with a random seed, as the tests of the
secure source have, each would raise a false alarm with probability below one in a million (ALARM)."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.privacy import exact
from dpsinkhorn.privacy.noise import (
    NoiseSource,
    SecureNoise,
    SeededNoise,
    add_gaussian,
    add_laplace,
    gaussian_std,
    key_stream,
    laplace_cells,
    laplace_scale,
    normal_cells,
)

ALARM = 1e-6
CPU = torch.device("cpu")
SAMPLERS = {"normal": (exact.NORMAL, stats.norm, 4), "laplace": (exact.LAPLACE, stats.laplace, 8)}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED HERE: needs a CUDA device")


def fit(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value of Pearson's test; cells that expect fewer than 10 are joined."""
    order = np.argsort(expected)
    few = np.cumsum(expected[order]) < 10
    rare = order[: few.sum() + 1]
    rest = order[few.sum() + 1 :]
    seen = np.append(observed[rest], observed[rare].sum())
    want = np.append(expected[rest], expected[rare].sum())
    return float(stats.chisquare(seen, want * seen.sum() / want.sum()).pvalue)


# --- the generator --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(5)])
def test_sources_satisfy_the_interface(source: NoiseSource) -> None:
    assert isinstance(source, NoiseSource)
    assert source.description
    assert source.words(0).shape == (0,)
    assert source.words(3).dtype == torch.int64
    assert normal_cells(source, ()).shape == ()
    assert laplace_cells(source, (0, 4)).shape == (0, 4)


def test_only_the_secure_source_is_for_release() -> None:
    assert SecureNoise().secure
    assert not SeededNoise(0).secure
    assert "not for release" in SeededNoise(0).description


def test_secure_source_keeps_nothing_and_cannot_be_stored() -> None:
    source = SecureNoise()
    normal_cells(source, (10,))
    assert vars(source) == {}
    with pytest.raises(TypeError, match="cannot be stored"):
        pickle.dumps(source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_processes_draw_different_noise() -> None:
    """Run apart, since forking this process, which has threads, would be unsafe."""
    script = """
import os
from dpsinkhorn.privacy.noise import SecureNoise
source = SecureNoise()
source.words(8)
ends = []
for _ in range(3):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, source.words(4).numpy().tobytes())
        os._exit(0)
    ends.append(read)
drawn = [os.read(end, 32) for end in ends] + [source.words(4).numpy().tobytes()]
assert all(len(words) == 32 for words in drawn) and len(set(drawn)) == 4
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_seeded_source_replays_and_resumes_bit_for_bit() -> None:
    whole = SeededNoise(3)
    first, second = normal_cells(whole, (1000,)), normal_cells(whole, (1000,))
    half = SeededNoise(3)
    assert torch.equal(normal_cells(half, (1000,)), first)
    resumed = SeededNoise.restore(half.state())
    assert torch.equal(normal_cells(resumed, (1000,)), second)
    assert not torch.equal(normal_cells(SeededNoise(4), (1000,)), first)


@pytest.mark.parametrize("seed", [1.0, True, "1", None])
def test_seeds_are_whole_numbers(seed: object) -> None:
    with pytest.raises(TypeError, match="whole number"):
        SeededNoise(seed)  # type: ignore[arg-type]


def test_broken_state_is_refused() -> None:
    with pytest.raises(ValueError, match="not a state"):
        SeededNoise.restore({"seed": 1, "requests": -1})


# --- exact sampling -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLERS)
def test_staircase_lies_above_the_density_everywhere(name: str) -> None:
    """The premises of the proof, in exact arithmetic: acceptance is at most 1, and the same multiple of the
    density comes out of every strip."""
    sampler, _, edge = SAMPLERS[name]
    phi, height, slots = sampler._phi, sampler._height, sampler._slots
    tables = sampler._tables(CPU)
    assert sum(slots) == 2**16
    for k in range(edge * 32):
        assert Fraction(height, slots[k]) * exact.exp_bounds(phi(Fraction(k, 32)), 100)[1] <= 1
        least = Fraction(height, slots[k]) * exact.exp_bounds(phi(Fraction(k + 1, 32)), 100)[0]
        assert Fraction(int(tables.surely[k]) + 1, 2**53) <= least
    for j in range(200):
        chance = (
            Fraction(height * 32 * 2 ** (j + 1), slots[-1])
            * exact.exp_bounds(phi(Fraction(edge + j)), 100)[1]
        )
        assert chance <= 1
    assert int(tables.surely[-1]) == 0


@pytest.mark.parametrize("name", SAMPLERS)
def test_float64_is_far_closer_than_the_margin(name: str) -> None:
    """All that the fast path relies on: |float64 chance - true chance| < 2^-45 < margin = 2^-40."""
    sampler, _, edge = SAMPLERS[name]
    position = torch.from_numpy(np.random.default_rng(0).integers(0, edge << 52, 2000))
    fast = torch.exp(-sampler._phi(position.double() * 2.0**-52))
    for value, place in zip(fast.tolist(), position.tolist(), strict=True):
        low = exact.exp_bounds(sampler._phi(Fraction(place + 1, 2**52)), 120)[0]
        high = exact.exp_bounds(sampler._phi(Fraction(place, 2**52)), 120)[1]
        assert low - Fraction(1, 2**45) < Fraction(value) < high + Fraction(1, 2**45)


@pytest.mark.parametrize(("margin", "count"), [(2.0**-40, 1_000_000), (0.6, 40_000)])
@pytest.mark.parametrize("name", SAMPLERS)
def test_cells_follow_the_law(name: str, margin: float, count: int) -> None:
    """The whole law, tails included; the wide margin sends most unsure draws through decimal arithmetic."""
    sampler, law, edge = SAMPLERS[name]
    if margin != sampler._margin:
        sampler = exact.Staircase(sampler._phi, edge, margin=margin)
    cells = sampler.cells(SeededNoise(11), count, bits=30, signed=True, device=CPU).double().numpy()
    edges = np.linspace(-12, 12, 24 * 16 + 1)
    observed, _ = np.histogram(cells * 2.0**-30, edges)
    assert fit(observed, count * np.diff(law.cdf(edges))) > ALARM


@pytest.mark.parametrize("name", SAMPLERS)
def test_low_digits_are_uniform(name: str) -> None:
    """Where naive samplers have holes. The last 8 of 30 digits; their true law is uniform to 1e-6."""
    cells = SAMPLERS[name][0].cells(SeededNoise(12), 500_000, bits=30, signed=True, device=CPU)
    observed = np.bincount((cells & 255).numpy(), minlength=256)
    assert fit(observed, np.full(256, 500_000 / 256)) > ALARM


def test_tail_beyond_the_table_follows_the_law() -> None:
    """Above the edge draws come another way: 4 std for the normal (about 190 of 3 million), 8 for Laplace."""
    normal = normal_cells(SeededNoise(13), (3_000_000,)).double().abs() * 2.0**-30
    laplace = laplace_cells(SeededNoise(14), (3_000_000,)).double().abs() * 2.0**-30
    for draws, law, edge in ((normal, stats.norm, 4), (laplace, stats.laplace, 8)):
        tail = draws[draws > edge].numpy()
        assert stats.binomtest(len(tail), len(draws), 2 * law.sf(edge)).pvalue > ALARM
        assert stats.kstest(law.sf(tail) / law.sf(edge), "uniform").pvalue > ALARM


def test_counting_zeros_goes_on_past_a_word() -> None:
    class Zeros:
        """64 zeros, then a word that ends in three zeros: 67 in all."""

        def __init__(self) -> None:
            self.calls = 0

        def words(self, count: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
            self.calls += 1
            return torch.full((count,), {1: 0, 2: 0}.get(self.calls, 8), device=device)

    unit, _ = exact.NORMAL._tail_places(Zeros(), 1, CPU)
    assert unit.tolist() == [64 + 64 + 3]
    words = torch.tensor([1, 2, 12, -8, -(2**63), 0])
    assert exact._trailing_zeros(words).tolist() == [0, 1, 2, 3, 63, 64]


@pytest.mark.parametrize("zeros", [3, 64 * 31, 64 * 40])
def test_the_farthest_cells_keep_their_sign(zeros: int) -> None:
    class Tail:
        """One proposal, in the tail, as many units beyond the edge as there are zeros; its uniform is 0."""

        def __init__(self) -> None:
            self.first = [-1 << 48, *[0] * (zeros // 64), 1 << zeros % 64]  # the slot, then the coins

        def words(self, count: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
            first = self.first.pop(0) if self.first else 0
            return torch.tensor([first] + [0] * (count - 1), device=device)

    (cell,) = exact.LAPLACE._propose(Tail(), 1, 30, True, CPU).tolist()
    assert cell == min(8 + zeros, 2047) << 30


def test_open_comparisons_are_settled_right() -> None:
    """A uniform that agrees with the chance in its first 53 bits is decided by further bits, either way."""
    third = Fraction(1, 3)
    known = (2**53) // 3
    decisions = [exact.decide(SeededNoise(i), lambda _: (third, third), known, 53) for i in range(2000)]
    share = float(third * 2**53 - known)  # of the interval that lies below 1/3
    assert stats.binomtest(sum(decisions), 2000, share).pvalue > ALARM
    plain = [exact.decide(SeededNoise(i), lambda _: (third, third)) for i in range(3000)]
    assert stats.binomtest(sum(plain), 3000, 1 / 3).pvalue > ALARM


# --- variance, independence, repetition -----------------------------------------------------------


def test_variance_is_as_stated() -> None:
    draws = normal_cells(SeededNoise(20), (1_000_000,)) * 2.0**-30
    assert stats.chi2(1_000_000).cdf(float(draws.square().sum())) == pytest.approx(0.5, abs=0.5 - ALARM)
    assert abs(float(draws.mean())) < 5 / 1000
    laplace = laplace_cells(SeededNoise(21), (1_000_000,)) * 2.0**-30
    assert float(laplace.square().mean()) == pytest.approx(2, abs=5 * math.sqrt(20 / 1e6))


def test_noise_on_zeros_has_the_variance_charged_for() -> None:
    zeros = torch.zeros(1_000_000)
    noised = add_gaussian(zeros, sensitivity=0.5, noise_multiplier=3.0, noise=SeededNoise(22)).double()
    assert stats.chi2(1_000_000).cdf(float(noised.square().sum()) / 1.5**2) == pytest.approx(
        0.5, abs=0.5 - ALARM
    )


def test_steps_and_resumes_are_independent() -> None:
    """Correlations between steps, between a run and its secure resume, and between neighbours in one draw."""
    size = 200_000
    seeded, secure = SeededNoise(23), SecureNoise()
    draws = [normal_cells(seeded, (size,)) for _ in range(3)]
    resumed = SeededNoise.restore(seeded.state())
    draws += [normal_cells(source, (size,)) for source in (resumed, secure, SecureNoise())]
    draws = [draw * 2.0**-30 for draw in draws]
    draws += [draws[0].roll(1), draws[0].roll(8), draws[0].square() - 1, draws[4].roll(1)]
    table = torch.stack(draws).double().numpy()
    correlations = np.corrcoef(table) - np.eye(len(draws))
    correlations[8, 0] = correlations[0, 8] = 0  # a draw and its own square: uncorrelated, but heavier tailed
    assert np.abs(correlations).max() * math.sqrt(size) < 6.5  # 45 pairs: false alarm below 1e-8


def repeated_blocks(cells: np.ndarray, length: int = 8) -> int:
    """How many windows of `length` draws occur more than once, by a 64-bit hash of every window."""
    hashes = np.zeros(len(cells) - length + 1, dtype=np.uint64)
    for offset in range(length):
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += cells[offset : len(hashes) + offset].view(np.uint64)
        hashes ^= hashes >> np.uint64(29)
    hashes.sort()
    return int((hashes[1:] == hashes[:-1]).sum())


def test_no_block_of_eight_draws_repeats() -> None:
    """Over steps, resumes and sources together; `benchmarks/noise.py` does the same with 10^8 draws."""
    seeded, secure = SeededNoise(24), SecureNoise()
    draws = [normal_cells(source, (100_000,)) for source in [seeded, secure] * 8]
    draws.append(normal_cells(SeededNoise.restore(seeded.state()), (100_000,)))
    cells = torch.cat(draws).numpy()
    assert repeated_blocks(cells) == 0
    assert repeated_blocks(np.concatenate([cells, cells[1000:1008]])) == 1  # the check does see one


# --- the lattice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_shapes_and_types_are_kept(dtype: torch.dtype) -> None:
    values = torch.ones(3, 4, dtype=dtype)
    assert add_gaussian(values, sensitivity=1, noise_multiplier=1, noise=SeededNoise(0)).dtype == dtype
    assert add_laplace(values, sensitivity=1, epsilon=1, noise=SeededNoise(0)).shape == (3, 4)
    counts = torch.arange(5)
    assert add_laplace(counts, sensitivity=1, epsilon=1, noise=SeededNoise(0)).dtype == torch.float64


def test_noise_is_centred_on_the_values() -> None:
    values = torch.linspace(-50, 50, 100_000, dtype=torch.float64)
    error = add_laplace(values, sensitivity=1, epsilon=1e3, noise=SeededNoise(1)) - values
    assert abs(float(error.mean())) < 6 * math.sqrt(2) * float(laplace_scale(1, 1e3, 100_000)) / math.sqrt(
        1e5
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e5])
def test_rounding_moves_neighbours_apart_by_no_more_than_is_paid_for(scale: float) -> None:
    """|u g - u' g| <= |v - v'| + 2 g per coordinate, up to the clamp, and beyond it."""
    rng = np.random.default_rng(2)
    step = 2.0**-30 * 0.7
    size = 20_000
    values = torch.from_numpy(rng.normal(size=size) * scale)
    near = values + torch.from_numpy(rng.choice([0, 1e-12, 3e-10, 0.5, 1.0], size=size))
    exact_step = Fraction(step)
    zero = torch.zeros(size, dtype=torch.int64)

    def whole(v: torch.Tensor) -> list[int]:
        from dpsinkhorn.privacy.noise import _on_lattice

        return [round(x / step - 0.5) for x in _on_lattice(v, zero, step).tolist()]

    for a, b, u, w in zip(values.tolist(), near.tolist(), whole(values), whole(near), strict=True):
        moved = abs(u - w) * exact_step
        allowed = abs(Fraction(a) - Fraction(b)) + 2 * exact_step
        slack = abs(u) * exact_step * Fraction(1, 2**51)  # of reading u back from a float64, in this test
        assert moved <= allowed + 2 * slack


def test_the_same_noise_on_shifted_values_gives_the_same_lattice() -> None:
    """Every input can give every output: moving a value by whole steps moves the outcome by just as many."""
    cells = normal_cells(SeededNoise(3), (1000,))
    std = gaussian_std(1.0, 2.0, 1000)
    step = std * 2.0**-30
    base = torch.zeros(1000, dtype=torch.float64)
    noised = [
        add_gaussian(v, sensitivity=1.0, noise_multiplier=2.0, noise=SeededNoise(0), cells=cells)
        for v in (base, base + 12345 * step, base + 0.3 * step)
    ]
    whole = [(v / step - 0.5).round().long() for v in noised]
    assert torch.equal(whole[0], cells)
    assert torch.equal(whole[1], cells + 12345)
    assert torch.equal(noised[2], noised[0])  # what is below a step is gone before noise is added


def test_noise_is_enlarged_by_what_rounding_costs() -> None:
    """std / (sensitivity + 2 g sqrt(d)) >= noise multiplier, the proof's inequality, in exact numbers."""
    for sensitivity, multiplier, d in [
        (1.0, 2.0, 1),
        (0.1, 41.0, 10**6),
        (7.0, 1e-3, 64),
        (1e-9, 900.0, 4 * 10**8),
    ]:
        std = Fraction(gaussian_std(sensitivity, multiplier, d))
        root = Fraction(math.isqrt(d - 1) + 1)
        assert std >= Fraction(multiplier) * (Fraction(sensitivity) + 2 * std / 2**30 * root)
        assert std <= Fraction(multiplier) * Fraction(sensitivity) * (1 + Fraction(multiplier) * root / 10**8)
        scale = Fraction(laplace_scale(sensitivity, multiplier, min(d, 10**4)))
        assert scale * Fraction(multiplier) >= Fraction(sensitivity) + 2 * scale / 2**30 * min(d, 10**4)


def test_extreme_values_are_tamed() -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0], dtype=torch.float64)
    cells = torch.zeros(6, dtype=torch.int64)
    out = add_gaussian(values, sensitivity=1.0, noise_multiplier=1.0, noise=SeededNoise(0), cells=cells)
    assert out[:3].abs().max() < 1e-8
    assert out[3:5].tolist() == pytest.approx([2.0**20, -(2.0**20)], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sensitivity": 0.0, "noise_multiplier": 1.0}, "sensitivity must be a positive"),
        ({"sensitivity": 1.0, "noise_multiplier": math.nan}, "noise_multiplier must be a positive"),
        ({"sensitivity": 1.0, "noise_multiplier": math.inf}, "noise_multiplier must be a positive"),
        ({"sensitivity": 1e-250, "noise_multiplier": 1.0}, "outside of what float64"),
        ({"sensitivity": 1.0, "noise_multiplier": 1e6, "coordinates": 10**12}, "too many coordinates"),
        ({"sensitivity": 1.0, "noise_multiplier": 1.0, "coordinates": 2}, "less than the 3 values"),
        ({"sensitivity": 1.0, "noise_multiplier": 1.0, "cells": torch.zeros(1)}, "noise of shape"),
    ],
)
def test_bad_requests_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_gaussian(torch.zeros(3), noise=SeededNoise(0), **arguments)  # type: ignore[arg-type]


# --- the attacks ----------------------------------------------------------------------------------


def share_of_fine_values(released: np.ndarray) -> tuple[int, int]:
    """Among outcomes near 0: how many are not multiples of 2^-24, and how many there are.

    1 + noise in float32 is a multiple of 2^-24 near 0, whatever the noise; 0 + noise mostly is not. So one
    fine outcome proves that the value was not 1, at any epsilon.
    """
    near = released[np.abs(released) < 1 / 8].astype(np.float64)
    return int((near * 2.0**24 % 1 != 0).sum()), len(near)


def test_last_bits_of_a_float_sum_give_the_value_away_but_not_on_the_lattice() -> None:
    size = 200_000
    generator = torch.Generator().manual_seed(0)
    naive = [(v + torch.randn(size, generator=generator)).numpy() for v in (0.0, 1.0)]
    (fine_0, near_0), (fine_1, near_1) = map(share_of_fine_values, naive)
    assert fine_0 > 0.5 * near_0 > 1000
    assert fine_1 == 0
    assert near_1 > 1000  # an event of probability 9% for one value, and impossible for the other: no epsilon

    for source in (SeededNoise(30), SecureNoise()):
        ours = [
            add_gaussian(torch.full((size,), v), sensitivity=1.0, noise_multiplier=1.0, noise=source).numpy()
            for v in (0.0, 1.0)
        ]
        table = [(fine, near - fine) for fine, near in map(share_of_fine_values, ours)]
        assert stats.fisher_exact(table).pvalue > ALARM


def reachable(released: np.ndarray, value: float, scale: float) -> np.ndarray:
    """Which outcomes textbook Laplace noise from a 53-bit uniform can turn `value` into (Mironov 2012)."""
    centre = np.round(np.exp(-np.abs(released - value) / scale) * 2.0**52)
    found = np.zeros(len(released), dtype=bool)
    for offset in range(-4, 5):
        magnitude = -scale * np.log((centre + offset) * 2.0**-52)
        for sign in (1, -1):
            found |= value + sign * magnitude == released
    return found


def accuracy(zeros: np.ndarray, ones: np.ndarray, scale: float) -> float:
    """How often the attack is right: outcomes that only one of the two values can reach name it."""
    right = 0.0
    for released, truth in ((zeros, 0.0), (ones, 1.0)):
        own = reachable(released, truth, scale)
        other = reachable(released, 1 - truth, scale)
        right += float(np.where(own == other, 0.5, own).mean()) / 2
    return right


def test_reachable_outcomes_give_the_value_away_but_not_on_the_lattice() -> None:
    """At epsilon 0.1 nobody may be right about one record more than 52.5% of the time; the attack is."""
    size, scale = 20_000, 10.0
    rng = np.random.default_rng(1)

    def textbook(value: float) -> np.ndarray:
        uniform = rng.random(size) - 0.5
        return value - scale * np.sign(uniform) * np.log(1 - 2 * np.abs(uniform))

    assert accuracy(textbook(0.0), textbook(1.0), scale) > 0.75
    own_scale = laplace_scale(1.0, 0.1, size)
    step = own_scale * 2.0**-30
    bound = math.exp(0.1) / (1 + math.exp(0.1)) + 5 * 0.5 / math.sqrt(2 * size)
    for source in (SeededNoise(31), SecureNoise()):
        zeros, ones = (
            add_laplace(torch.full((size,), v).double(), sensitivity=1.0, epsilon=0.1, noise=source).numpy()
            for v in (0.0, 1.0)
        )
        assert accuracy(zeros, ones, own_scale) < bound
        for released in (zeros, ones):  # to one who knows our sampler: both values reach the same lattice
            assert np.array_equal((np.round(released / step - 0.5) + 0.5) * step, released)


def test_places_on_the_lattice_go_by_the_reciprocal() -> None:
    """As PyTorch divides by a number on a GPU, so that all devices find the same."""
    values = np.random.default_rng(0).random(100_000) * 2e5
    step = gaussian_std(0.3, 1.0, len(values)) * 2.0**-30
    none = torch.zeros(len(values), dtype=torch.int64)
    found = add_gaussian(torch.from_numpy(values), sensitivity=0.3, noise_multiplier=1.0, cells=none).numpy()
    places = np.round(values * (1 / step))
    assert (places != np.round(values / step)).any()
    assert np.array_equal((places + 0.5) * step, found)


# --- CUDA -----------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("words", [0, 1, 8, 1000, 300_000])
def test_cuda_key_stream_equals_the_cpu(words: int) -> None:
    key = bytes(range(32))
    assert torch.equal(key_stream(key, 7, words, torch.device("cuda")).cpu(), key_stream(key, 7, words, CPU))


@needs_cuda
def test_cuda_draws_the_same_seeded_noise() -> None:
    on_cpu, on_cuda = (normal_cells(SeededNoise(5), (1_000_000,), device=d).cpu() for d in ("cpu", "cuda"))
    assert torch.equal(on_cpu, on_cuda)
    values = torch.linspace(-3, 3, 1000)
    noised = [
        add_gaussian(values.to(d), sensitivity=1, noise_multiplier=2, noise=SeededNoise(6)).cpu()
        for d in ("cpu", "cuda")
    ]
    assert torch.equal(*noised)


@needs_cuda
def test_cuda_finds_the_same_places_on_the_lattice() -> None:
    """Of values so large that the last bit of a quotient decides on some of them."""
    values = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2e5
    for times in (0.3, 1.0, 7.0):
        here, there = (
            add_gaussian(values.to(d), sensitivity=times, noise_multiplier=1, noise=SeededNoise(6)).cpu()
            for d in ("cpu", "cuda")
        )
        assert torch.equal(here, there)


@needs_cuda
def test_cuda_secure_noise_has_the_stated_law() -> None:
    cells = normal_cells(SecureNoise(), (2_000_000,), device="cuda").double().cpu().numpy() * 2.0**-30
    edges = np.linspace(-12, 12, 24 * 16 + 1)
    observed, _ = np.histogram(cells, edges)
    assert fit(observed, len(cells) * np.diff(stats.norm.cdf(edges))) > ALARM
