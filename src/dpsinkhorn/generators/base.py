"""What all generators share: inputs, where they run, the steps from a network to an image; and what is done
with a trained one: fresh statistics for BatchNorm, and a faster copy to sample with."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

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


_MODULES: dict[type[Config], type[Generator]] = {}


class Generator(nn.Module):
    """A function that takes latents, and labels where it has classes, to images in [-1, 1].

    A network implements `render`; it never sees the labels, only the latents with the embedded label beside
    them. What is no network has its own `images`. A subclass names the configs
    that it is made from: `class MLP(Generator, makes=MLPConfig)`.
    """

    config: Config
    module_class: ModuleClass | None = None
    """The user's own class, of whose inside nothing is known: it is neither folded nor laid out anew."""

    def __init_subclass__(cls, makes: type[Config]) -> None:
        """Have `build_generator` make this class for configs of a kind."""
        super().__init_subclass__()
        _MODULES[makes] = cls

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


def build_generator(
    config: Config, seed: int | None = None, module_class: ModuleClass | None = None
) -> Generator:
    """Build the generator of a config, on the CPU, in training mode.

    With a seed the initial weights depend on it alone, and PyTorch's global random state stays as it was.
    For a config of kind `custom`, `module_class` is the user's own.

    >>> from dpsinkhorn.generators import MLPConfig
    >>> build_generator(MLPConfig(image_shape=(1, 8, 8), classes=10)).config.classes
    10
    """
    module: Callable[..., Generator] = _MODULES[type(config)]
    given = () if module_class is None else (module_class,)
    if seed is None:
        return module(config, *given)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return module(config, *given)


def activation(name: str) -> nn.Module:
    """Return the nonlinearity of a config; 0.2 is the usual slope in generators."""
    return nn.ReLU() if name == "relu" else nn.LeakyReLU(0.2)


# ---- what is done with a trained generator


@torch.no_grad()
def recompute_batch_statistics(
    generator: Generator, draw: Callable[[], tuple[Tensor, Tensor | None]], batches: int = 30
) -> None:
    """Replace the running statistics of every BatchNorm by plain averages over freshly generated batches.

    What training left in them lags behind the weights, and does not belong to averaged (EMA) weights at
    all. Spectral normalisation settles on the present weights in the same passes. Weights, the training
    mode and the momenta are left as they were.

    Args:
        generator: Changed in place, its buffers only.
        draw: Gives the latents and the labels of one batch, on the generator's device; two rows or more.
        batches: How many batches are averaged.

    >>> from dpsinkhorn.generators import MLPConfig, build_generator, draw_latents
    >>> generator = build_generator(MLPConfig(image_shape=(1, 8, 8), classes=0))
    >>> recompute_batch_statistics(generator, lambda: (draw_latents(32, 12), None), batches=4)
    >>> generator.eval()(draw_latents(1, 12)).shape
    torch.Size([1, 1, 8, 8])
    """
    norms = [module for module in generator.modules() if isinstance(module, _BatchNorm)]
    ours = generator.module_class is None
    if ours and not norms and not any(map(parametrize.is_parametrized, generator.modules())):
        return  # nothing to settle, and some generators take long
    momenta = [norm.momentum for norm in norms]
    modes = {module: module.training for module in generator.modules()}
    generator.train()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # PyTorch's word for a plain average over all batches
        for _ in range(batches):
            generator(*draw())
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def frozen_copy(generator: Generator) -> Generator:
    """Return a copy in eval mode without gradients, equal up to rounding.

    BatchNorm moves into the layer before it, spectral normalisation into its weights, and convolutions are
    laid out channels last, which is what CPUs and GPUs are quickest at. It lies on the CPU. Its state is not
    that of the config any more: it cannot be saved. Of a module of the user's own it is a plain copy.

    >>> from dpsinkhorn.generators import DCGANConfig, build_generator, draw_latents
    >>> generator = build_generator(DCGANConfig(image_shape=(1, 8, 8), classes=0, width=4), seed=0).eval()
    >>> latents = draw_latents(3, 12)
    >>> torch.allclose(frozen_copy(generator)(latents), generator(latents), atol=1e-5)
    True
    """
    if generator.module_class is not None:
        return copy.deepcopy(generator).eval().requires_grad_(False)
    # Built anew, not deep-copied: copies share PyTorch's classes of parametrised layers, and taking the
    # spectral norm off one would take it off the other.
    with torch.random.fork_rng(devices=[]):
        twin = type(generator)(generator.config)
    twin.load_state_dict(generator.state_dict())
    twin.eval()  # first: in training mode a spectral norm would take another step when it is taken off
    for module in list(twin.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    for name, module in list(twin.named_modules()):
        if isinstance(module, nn.Sequential):
            twin.set_submodule(name, _folded(module))
    return twin.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _folded(layers: nn.Sequential) -> nn.Sequential:
    folded: list[nn.Module] = []
    for layer in layers:
        before = folded[-1] if folded else None
        if isinstance(layer, nn.BatchNorm2d) and isinstance(before, nn.ConvTranspose2d):
            folded[-1] = fuse_conv_bn_eval(before, layer, transpose=True)
        elif isinstance(layer, nn.BatchNorm1d) and isinstance(before, nn.Linear):
            folded[-1] = fuse_linear_bn_eval(before, layer)
        else:
            folded.append(layer)
    return nn.Sequential(*folded)
