"""A release as one ONNX file: an analyst then needs neither this package nor PyTorch."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.files import new_file
from dpsinkhorn.generators import Mixture, frozen_copy
from dpsinkhorn.release.release import Release

_ENDING = ".onnx"

# Giles, "Approximating the erfinv function", 2010: for w = -log(1 - x²) below 5, and for sqrt(w) above.
_CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def write_onnx(release: Release, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the generator as an ONNX model that takes numbers from 0 to 1, and labels, to images.

    Its inputs are `latents` (n, latent), float32, drawn uniformly from 0 to 1, and, where there are classes,
    `labels` (n,), int64. Its output `images`, uint8, is (n, height, width) or (n, height, width, 3).
    The model's metadata are `release.statement`: each entry as JSON, or as the text that it is.

    Raises:
        ReleaseError: The packages `onnx` and `onnxscript` are not there, or the file is.
    """
    target = Path(path)
    if target.suffix != _ENDING:
        raise ReleaseError(f"{target} must end in {_ENDING}")
    if target.exists() and not overwrite:
        raise ReleaseError(f"{target} exists already; name another file")
    try:
        import onnx
        import onnxscript  # noqa: F401
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    except ImportError as error:
        raise ReleaseError(f"{error.name} is missing: pip install 'dpsinkhorn[onnx]'") from error
    network = frozen_copy(release.generator)
    drawn = _MixtureGraph(network) if isinstance(network, Mixture) else network
    whole = _Bytes(drawn, release.image_shape[0] == 1).eval()
    given: dict[str, Tensor] = {"latents": torch.rand(2, release.config.latent)}
    if release.classes:
        given["labels"] = torch.zeros(2, dtype=torch.int64)
    with _quiet_exporter():
        many = tuple({0: torch.export.Dim("images", min=1)} for _ in given)
        traced = torch.export.export(whole, tuple(given.values()), dynamic_shapes=many)
        table = torch.export.default_decompositions()
        table[torch.ops.aten.erfinv.default] = _inverse_error  # which ONNX does not have
        program = torch.onnx.export(
            traced.run_decompositions(table),
            input_names=list(given),
            output_names=["images"],
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    ClearMetadataAndDocStringPass()(program.model)  # traces of the source: lines of it, and where it lies
    model = program.model_proto
    for key, value in release.statement.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    onnx.checker.check_model(model)
    with new_file(target) as draft:
        draft.write_bytes(model.SerializeToString())


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep back what the exporter says about itself, and about packages that nobody needs here."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


class _Bytes(nn.Module):
    """Images of a generator, as bytes: what `to_uint8` does."""

    def __init__(self, generator: nn.Module, grey: bool) -> None:
        super().__init__()
        self.generator, self.grey = generator, grey

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        images: Tensor = self.generator(latents, labels)
        pixels = images.add(1).mul(127.5).round().clamp(0, 255).to(torch.uint8)
        return pixels[:, 0] if self.grey else pixels.permute(0, 2, 3, 1)


class _MixtureGraph(nn.Module):
    """A mixture, in operations that ONNX has; equal up to rounding."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.shape, self.components = mixture.config.image_shape, mixture.config.components
        starts, scales = mixture.pixel_maps()
        ends = mixture.weights.detach().double().clamp(min=0).cumsum(1)
        ends = (ends / ends[:, -1:].clamp(min=torch.finfo(torch.float64).tiny)).float()
        # what a normal vector of a class becomes, in pixels: (kinds, k, points)
        factors = torch.stack([mixture.to_pixels(factor.T).flatten(1) for factor in mixture.factors.detach()])
        for name, value in {"starts": starts, "scales": scales, "ends": ends, "factors": factors}.items():
            self.register_buffer(name, value.detach().clone())

    starts: Tensor
    scales: Tensor
    ends: Tensor
    factors: Tensor

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            labels = torch.zeros_like(latents[:, 0], dtype=torch.int64)
        passed = (self.ends[labels] <= latents[:, :1]).sum(1).clamp(max=self.components - 1)
        rows = labels * self.components + passed
        normal = 2**0.5 * _inverse_error(2 * latents[:, 1:].clamp(2.0**-24, 1 - 2.0**-24) - 1)
        # one class after the other: a gathered matrix for each image would take far more memory
        deviations = torch.zeros_like(self.starts[rows])
        for kind in range(len(self.factors)):
            own = (labels == kind).unsqueeze(1)
            deviations = torch.where(own, normal @ self.factors[kind], deviations)
        pixels = self.starts[rows] + self.scales[rows] * deviations
        return (2 * pixels.clamp(0, 1) - 1).view(-1, *self.shape)


def _inverse_error(x: Tensor) -> Tensor:
    w = -torch.log((1 - x) * (1 + x))
    central = _polynomial(_CENTRAL, w - 2.5)
    tail = _polynomial(_TAIL, w.clamp(min=1e-12).sqrt() - 3)
    return x * torch.where(w < 5, central, tail)


def _polynomial(coefficients: tuple[float, ...], at: Tensor) -> Tensor:
    total = torch.full_like(at, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * at + coefficient
    return total
