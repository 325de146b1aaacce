"""What all generators share: the label's embedding, checks of the input, the crop to the image's size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpsinkhorn.generators.configs import Config, NetworkConfig
from dpsinkhorn.generators.errors import GeneratorError

__all__ = ["Generator", "ModuleClass"]

ModuleClass = Callable[..., nn.Module]
"""A subclass of `nn.Module`, or a function that makes one; it is called with the settings of a config."""


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
        """The module whose tensors a release holds."""
        return self

    @property
    def products(self) -> list[str]:
        """Names of the parameters that are used in products and convolutions only, as they are.

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
        return torch.tanh(self._crop(images).to(dtype))  # never in a reduced precision, whatever layers have

    def _crop(self, images: Tensor) -> Tensor:
        """Cut out the centre of the images: networks that grow by doubling may render a border too much."""
        _, height, width = self.config.image_shape
        top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
        return images[:, :, top : top + height, left : left + width]


def activation(name: str) -> nn.Module:
    """Return the nonlinearity of a config; 0.2 is the usual slope in generators."""
    return nn.ReLU() if name == "relu" else nn.LeakyReLU(0.2)
