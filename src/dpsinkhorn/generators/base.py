"""What all generators share: their inputs, where they run, and the steps from a network to an image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dpsinkhorn.errors import GeneratorError
from dpsinkhorn.generators.configs import Config, NetworkConfig

ModuleClass = Callable[..., nn.Module]
"""A subclass of `nn.Module`, or a function that makes one; it is called with the settings of a config."""


def choose_device(
    device: torch.device | str | None = None, error: type[Exception] = GeneratorError
) -> torch.device:
    """Return the device named, by default a GPU where there is one; raise `error` where there is none such.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found).cpu()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        found = torch.device("meta")
    if found.type not in ("cpu", "cuda"):
        raise error(f"there is no device {device!s} here; name cpu or cuda, or leave it out")
    return found


def draw_latents(
    count: int, latent: int, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw latents (count, latent), float32, uniform on (0, 1).

    They are drawn on the generator's device and moved, so that a seed means the same on every device.

    >>> draw_latents(2, 3, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    where = device if generator is None else generator.device
    return torch.rand(count, latent, generator=generator, device=where).to(device)


def draw_labels(
    count: int,
    probabilities: Sequence[float],
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw labels (count,), int64, of the given distribution; a class of probability 0 is never drawn.

    >>> draw_labels(4, [0.0, 1.0, 0.0]).tolist()
    [1, 1, 1, 1]
    """
    weights = torch.tensor(check_probabilities(probabilities), dtype=torch.float64)
    ends = weights.cumsum(0)
    where = device if generator is None else generator.device
    uniform = torch.rand(count, generator=generator, device=where, dtype=torch.float64)
    ends = (ends / ends[-1]).to(where)
    return torch.searchsorted(ends, uniform, right=True).to(device)


def check_probabilities(probabilities: Sequence[float], classes: int | None = None) -> tuple[float, ...]:
    """Return the probabilities as floats; refuse what is no distribution on the classes."""
    values = tuple(probabilities)
    if not values or (classes is not None and len(values) != classes):
        need = "at least one probability" if classes is None else f"{classes} probabilities, one per class"
        raise GeneratorError(f"a distribution of labels needs {need}, not {len(values)}")
    if any(isinstance(value, (bool, str)) for value in values):
        raise GeneratorError("probabilities of labels must be numbers")
    try:
        values = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise GeneratorError("probabilities of labels must be numbers") from None
    if not all(0 <= value <= 1 for value in values) or not math.isclose(math.fsum(values), 1, abs_tol=1e-6):
        raise GeneratorError("probabilities of labels must be from 0 to 1 and add up to 1")
    return values


class Generator(nn.Module):
    """A function that takes latents, and labels where it has classes, to images in [-1, 1].

    A network implements `render`; it never sees the labels, only the latents with the embedded label beside
    them. What is no network has its own `images`.
    """

    config: Config
    module_class: ModuleClass | None = None
    """The user's own class, of whose inside nothing is known: it is neither folded nor laid out anew."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding: nn.Embedding | None = None
        if isinstance(config, NetworkConfig) and config.classes:
            self.embedding = nn.Embedding(config.classes, config.embedding)

    @property
    def stored(self) -> nn.Module:
        """Return the module whose tensors a release holds."""
        return self

    @property
    def products(self) -> list[str]:
        """Return names of the parameters that are used in products and convolutions only, as they are.

        Where these compute in a reduced precision, copies in it can stand in for such parameters.
        """
        return []

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return images (n, channels, height, width) in [-1, 1] of latents (n, latent) and labels (n,)."""
        if latents.ndim != 2 or latents.shape[1] != self.config.latent:
            raise GeneratorError(
                f"latents must have shape (n, {self.config.latent}), not {tuple(latents.shape)}"
            )
        if (labels is None) == bool(self.config.classes):
            need = "needs labels" if self.config.classes else "takes no labels"
            raise GeneratorError(f"this generator has {self.config.classes} classes and {need}")
        if labels is not None and labels.shape != latents.shape[:1]:
            raise GeneratorError(
                f"labels must have shape ({len(latents)},), one per latent, not {tuple(labels.shape)}"
            )
        return self.images(latents, labels)

    def images(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        """Return what `forward` does, of latents and labels that were checked."""
        inputs = latents
        if labels is not None and self.embedding is not None:
            inputs = torch.cat([latents, self.embedding(labels).to(latents.dtype)], dim=1)
        return self.finished(inputs)

    def finished(self, inputs: Tensor) -> Tensor:
        """Return the images of inputs (n, inputs): what `render` returns, cropped, through tanh.

        A subclass that can do all of it faster has its own.
        """
        return self._cropped_tanh(self.render(inputs), inputs.dtype)

    def render(self, inputs: Tensor) -> Tensor:
        """Return images before tanh, (n, channels, height or more, width or more), of inputs (n, inputs)."""
        raise NotImplementedError

    def _cropped_tanh(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Cut out the centre of the images: networks that grow by doubling may render a border too much."""
        _, height, width = self.config.image_shape
        top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
        centre = images[:, :, top : top + height, left : left + width]
        return torch.tanh(centre.to(dtype))  # never in a reduced precision, whatever layers have


def activation(name: str) -> nn.Module:
    """Return the nonlinearity of a config; 0.2 is the usual slope in generators."""
    return nn.ReLU() if name == "relu" else nn.LeakyReLU(0.2)
