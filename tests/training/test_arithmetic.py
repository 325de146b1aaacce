"""A device that emulates float64 is refused before anything is spent."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.training import Run, state
from dpsinkhorn.training.state import check_float64, multiplies_float64
from support.devices import each_device
from support.runs import DATA, tiny_plan

CPU = torch.device("cpu")


def sliced(slices: int, bits: int = 7):
    """A product in fixed point: rows and columns in units of their largest numbers, in narrow slices."""

    def cut(values, dim):
        largest = values.abs().amax(dim, keepdim=True)
        unit = torch.exp2(torch.ceil(torch.log2(largest)).clamp(min=-1000) - slices * bits)
        return (values / unit).trunc() * unit

    return lambda left, right: cut(left, -1) @ cut(right, -2)


class TestProducts:
    @each_device
    def test_real_ones_are_exact(self, device):
        assert multiplies_float64(torch.device(device))

    @pytest.mark.parametrize("slices", [3, 5, 7, 8, 12])
    def test_emulated_ones_are_not(self, slices):
        assert not multiplies_float64(CPU, sliced(slices))

    def test_nor_are_narrower_ones(self):
        assert not multiplies_float64(CPU, lambda left, right: (left.float() @ right.float()).double())

    @pytest.mark.parametrize("dimensions", [2, 3])
    def test_alone_and_in_a_batch(self, dimensions):
        def product(left, right):
            return sliced(8)(left, right) if left.ndim == dimensions else left @ right

        assert not multiplies_float64(CPU, product)

    @pytest.mark.parametrize("slices", [4, 5, 6, 7])
    def test_numbers_not_too_far_apart(self, slices):
        """Emulated only where rows span so little that it pays, as a library might do."""

        def product(left, right):
            sizes = left.abs().clamp(min=1e-300).log2()
            near = float((sizes.amax(-1) - sizes.amin(-1)).max()) < 70
            return sliced(slices)(left, right) if near else left @ right

        assert not multiplies_float64(CPU, product)

    def test_sums_that_keep_too_few_digits(self):
        """Numbers whole, what they add up to not: as by a sum of 48 binary digits."""

        def product(left, right):
            total = left @ right
            fraction, exponent = torch.frexp(total)
            return torch.ldexp((fraction * 2**48).round() / 2**48, exponent)

        assert not multiplies_float64(CPU, product)


class TestSwitch:
    """A library may emulate some shapes only: so that it is asked to is enough."""

    @pytest.mark.parametrize("value", ["1", "true"])
    def test_it_is_refused_on_a_gpu(self, value, monkeypatch):
        monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", value)
        with pytest.raises(TrainingError, match="CUBLAS_EMULATE_DOUBLE_PRECISION is set"):
            check_float64(torch.device("cuda"))
        check_float64(CPU)

    @pytest.mark.parametrize("value", ["", "0"])
    def test_off_is_off(self, value, monkeypatch):
        monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", value)
        monkeypatch.setattr(state, "multiplies_float64", lambda _: True)
        check_float64(torch.device("cuda"))


def test_a_run_on_such_a_device_spends_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "multiplies_float64", lambda _: False)
    run = Run.create(tmp_path / "run", tiny_plan(DATA))
    with pytest.raises(TrainingError, match="does not multiply in float64 as the guarantee needs it"):
        run.train(DATA)
    monkeypatch.undo()
    assert run.ledger_path.read_text().count('"spend"') == 0
    assert run.train(DATA)
