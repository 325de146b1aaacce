"""Gradients of each record by the kernel, and sums on a grid, against plain arithmetic."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.kernels import record_sums
from dpsinkhorn.kernels.record_sums import add_on_grid, products
from support.kernels import DEVICE, compile_for_a_gpu, needs_compiler, runs_kernels


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(record_sums, "available", lambda device: True)  # noqa: ARG005


def made_up(*shape, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random).to(DEVICE)


SHAPES = [  # images, height, width, channels, outputs, records, side
    (6, 5, 4, 3, 2, 2, 3),
    (4, 1, 1, 70, 20, 2, 1),
    (3, 7, 7, 16, 80, 3, 3),
    (2, 9, 9, 5, 4, 1, 1),
]


@runs_kernels
class TestProducts:
    @pytest.mark.usefixtures("kernels")
    @pytest.mark.parametrize("shape", SHAPES)
    def test_against_autograd(self, shape):
        images, height, width, channels, outputs, records, side = shape
        inputs, slopes = (
            made_up(images, height, width, channels),
            made_up(images, height, width, outputs, seed=1),
        )
        found, squares = products(inputs, slopes, records, side)
        for record in range(records):
            own = slice(record * images // records, (record + 1) * images // records)
            weight = torch.zeros(outputs, channels, side, side, device=DEVICE, requires_grad=True)
            out = torch.nn.functional.conv2d(inputs[own].permute(0, 3, 1, 2), weight, padding=side // 2)
            (wanted,) = torch.autograd.grad(out, weight, slopes[own].permute(0, 3, 1, 2))
            wanted = wanted.permute(0, 2, 3, 1).flatten()
            torch.testing.assert_close(found[record], wanted, rtol=1e-4, atol=1e-4)
            assert float(squares[record]) == pytest.approx(
                float(found[record].double().square().sum()), rel=1e-12
            )

    def test_as_without_kernels(self, monkeypatch):
        inputs, slopes = made_up(4, 6, 6, 8), made_up(4, 6, 6, 8, seed=1)
        monkeypatch.setattr(record_sums, "available", lambda device: False)  # noqa: ARG005
        plain = products(inputs, slopes, 2, 3)
        monkeypatch.setattr(record_sums, "available", lambda device: True)  # noqa: ARG005
        for one, other in zip(plain, products(inputs, slopes, 2, 3), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@runs_kernels
class TestSums:
    @pytest.mark.usefixtures("kernels")
    def test_the_same_in_any_order_to_the_bit(self):
        rows, factors = made_up(200, 70), made_up(200, seed=1).abs().double()
        order = torch.randperm(200, generator=torch.Generator().manual_seed(0)).to(DEVICE)
        sums = [torch.zeros(70, dtype=torch.float64, device=DEVICE) for _ in range(3)]
        add_on_grid(sums[0], rows, factors, 2.0**-30)
        add_on_grid(sums[1], rows[order], factors[order], 2.0**-30)
        for part in range(0, 200, 50):
            add_on_grid(sums[2], rows[part : part + 50], factors[part : part + 50], 2.0**-30)
        assert torch.equal(sums[0], sums[1])
        assert torch.equal(sums[0], sums[2])
        torch.testing.assert_close(
            sums[0], (rows.double() * factors[:, None]).sum(0), rtol=0, atol=200 * 2.0**-31
        )

    @pytest.mark.usefixtures("kernels")
    def test_each_product_is_rounded_to_the_grid(self):
        step, whole = 2.0**-20, 2.0**23 + 1
        row = torch.tensor([[0.3, -0.7, 2.5, whole, -whole, 1e-30]], device=DEVICE)
        for times in (1, 2**27 + 1):  # products of up to 2^51 steps
            total = torch.zeros(6, dtype=torch.float64, device=DEVICE)
            add_on_grid(total, row, torch.tensor([times * step], dtype=torch.float64, device=DEVICE), step)
            steps, exact = total / step, row[0].double() * times
            assert torch.equal(steps, steps.round())
            assert float((steps - exact).abs().max()) <= 0.5
            assert steps[3] == -steps[4] == whole * times

    @pytest.mark.usefixtures("kernels")
    def test_rows_left_out_add_nothing(self):
        rows = made_up(3, 5)
        rows[1] = torch.nan
        total = torch.zeros(5, dtype=torch.float64, device=DEVICE)
        add_on_grid(total, rows, torch.tensor([1.0, 0.0, 1.0], device=DEVICE).double(), 2.0**-20)
        torch.testing.assert_close(total, (rows[0] + rows[2]).double(), rtol=0, atol=2.0**-20)


@needs_compiler
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_compiles(kind):
    sizes = dict.fromkeys(("pixels", "channels", "outputs"), "i32")
    constants = {"HEIGHT": 14, "WIDTH": 14, "SIDE": 3, "OUTPUTS": 64, "CHANNELS": 64, "PIXELS": 64}
    constants["EXACT"] = kind == "fp32"
    pointers = dict.fromkeys(("inputs", "slopes", "out"), f"*{kind}")
    compile_for_a_gpu(record_sums._products_kernel, {**pointers, "squares": "*fp64", **sizes}, constants)
    types = {
        "total": "*fp64",
        "values": f"*{kind}",
        "factors": "*fp64",
        "step": "fp32",  # as numbers of Python come in
        "rows": "i32",
        "columns": "i32",
    }
    constants = {"ROWS": 128, "TOGETHER": 8, "COLUMNS": 512, "STAGES": 4, "WHOLE": record_sums._WHOLE}
    compile_for_a_gpu(record_sums._sum_kernel, types, constants)
