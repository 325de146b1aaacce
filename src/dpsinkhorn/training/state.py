"""Everything that changes while a generator is trained, and how it is stored: without pickle.

A checkpoint is one safetensors file: tensors by name, and a line of JSON in its header. It is the
curator's: it holds the optimizer's state and, in a seeded run, where the noise is.

Assumption A2 of docs/proofs/record-rounding.md is looked at here, too: the products of a sum are added in
some order, each addition correctly rounded. Libraries can be told to emulate float64 with narrower types,
which is faster where a GPU has few units for it; then a number that is small beside others of its row may
be lost. What is asked here finds an emulation out where it is used; a library that emulates some shapes
only may still pass, so the switch that asks for it is refused, too.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.files import replace_file
from dpsinkhorn.generators import Generator, build_generator
from dpsinkhorn.kernels.adam import FlatAdam
from dpsinkhorn.kernels.launch import available
from dpsinkhorn.privacy import SecureNoise, SeededNoise
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.plan import Plan, refused
from dpsinkhorn.training.recipe import OptimizerSettings

_VERSION = "1"


class TrainingState:
    """Generator, average, optimizer and random states after `step` steps.

    >>> from dpsinkhorn.training import Facts, load_recipe, make_plan
    >>> plan = make_plan(load_recipe("digits"), Facts((1, 8, 8), 10, 1347, 1347), budget_epsilon=10.0, seed=0)
    >>> TrainingState(plan, torch.device("cpu")).step
    0
    """

    def __init__(self, plan: Plan, device: torch.device, noise: NoiseSource | None = None) -> None:
        settings = plan.recipe.optimizer
        self.step = 0
        self.updates = 0
        """Made before the first step, by what was released already."""
        self.how_taken: str | None = None
        """How steps were taken so far, in words; none before the first."""
        self.horizon: int | None = None
        """After how many steps the run is to end, where that is known."""
        self.device = device
        self._settings = settings
        self._begun = False  # the average: it begins with the weights after the first step
        with refused():
            self.generator = build_generator(plan.generator_config, plan.seed).to(device)
        config = plan.kind.companion(plan.terms)
        self.companion: nn.Module | None = (
            None if config is None else build_generator(config, plan.seed).to(device)
        )
        """What was released before the first step, where the mechanism has such a thing."""
        own = self.generator.module_class is not None
        if device.type == "cuda" and not own:  # what its convolutions work in anyway
            self.generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.averaged: AveragedModel | None = None
        if settings.ema is not None:
            self.averaged = AveragedModel(self.generator)
        self.optimizer = _optimizer(self.generator, settings, device)
        self.gradients: list[Tensor] = []
        """Those of the last step, one for each parameter."""
        # latents and labels are public in the analysis; they only must not repeat
        self.random = torch.Generator(plan.kind.learns_on(device))
        seed = int.from_bytes(os.urandom(7), "little") if plan.seed is None else plan.seed
        self.random.manual_seed(seed)
        if noise is not None and plan.seed is None:
            raise TrainingError("a source of noise is given to audits of seeded plans alone")
        self.noise: NoiseSource = noise or (SecureNoise() if plan.seed is None else SeededNoise(plan.seed))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return list(self.generator.parameters())

    @property
    def best(self) -> Generator:
        """What is released: the averaged generator where there is one."""
        if self.averaged is None or not self.step:
            return self.generator
        return cast(Generator, self.averaged.module)

    @property
    def capturable(self) -> bool:
        """Whether `update` can be captured in a graph."""
        ours = self.generator.module_class is None  # what others do in theirs may need the host
        return ours and isinstance(self.optimizer, torch.optim.Adam) and self.device.type == "cuda"

    @property
    def reduced(self) -> bool:
        """Whether the generator computes in bfloat16: the recipe wants it, and the device is fast at it."""
        return self._settings.precision == "bfloat16" and _has_bfloat16(self.device)

    def precision(self) -> torch.autocast:
        """Within it the generator computes in what the recipe asks for, if the device is fast at it."""
        # No cache: a cast weight that a captured graph found there would never be cast again.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.reduced, cache_enabled=False)

    def weights(self) -> dict[str, Tensor]:
        """The parameters as a step may use them: those that layers would cast one by one, cast at once.

        A step that uses them takes its gradients in them, and hands these to `update`.
        """
        named: dict[str, Tensor] = dict(self.generator.named_parameters())
        if self.reduced and isinstance(self.optimizer, FlatAdam):
            named.update(zip(self.generator.products, self.optimizer.cast(torch.bfloat16), strict=True))
        return named

    def rate_at(self, step: int, horizon: int) -> float:
        """The learning rate of a step of a run that ends after `horizon` steps."""
        rate = self._settings.learning_rate * min(1.0, (step + 1) / (self._settings.warm_up + 1))
        if self._settings.schedule == "constant":
            return rate
        return rate * 0.5 * (1 + math.cos(math.pi * step / horizon))

    def restart_optimizer(self) -> None:
        self.optimizer = _optimizer(self.generator, self._settings, self.device)

    def update(self, rate: float | Tensor, gradients: Sequence[Tensor] | None = None) -> None:
        """A step of the optimizer and the average, by the parameters' own gradients or by those given."""
        if gradients is None:
            gradients = [cast(Tensor, parameter.grad) for parameter in self.parameters]
        # both optimizers want all of a parameter's tensors laid out alike
        self.gradients = [
            _as_laid_out(gradient, parameter)
            for gradient, parameter in zip(gradients, self.parameters, strict=True)
        ]
        if isinstance(self.optimizer, FlatAdam):
            self.optimizer.take(self.gradients, torch.as_tensor(rate, device=self.device))
        else:
            self._plain_update(rate)
        if self.averaged is not None:
            self._average()

    def _plain_update(self, rate: float | Tensor) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(torch.as_tensor(rate))
            else:
                group["lr"] = float(rate)
        self.optimizer.step()

    def _average(self) -> None:
        """As `AveragedModel.update_parameters`, without asking the device how many steps there were."""
        assert self.averaged is not None
        source, target = self.generator, self.averaged.module
        mine, theirs = [p.detach() for p in target.parameters()], [p.detach() for p in source.parameters()]
        if self._begun:
            torch._foreach_lerp_(mine, theirs, 1 - cast(float, self._settings.ema))
        else:
            torch._foreach_copy_(mine, theirs)
            self._begun = True
        self.averaged.n_averaged += 1
        buffers: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, other in zip(target.buffers(), source.buffers(), strict=True):
            owns, others = buffers.setdefault(own.dtype, ([], []))
            owns.append(own)
            others.append(other)
        for owns, others in buffers.values():
            torch._foreach_copy_(owns, others)

    def save(self, path: Path, extra: dict[str, Any]) -> None:
        """Write a checkpoint, with some JSON beside it: all of it, or nothing."""
        header: dict[str, Any] = {
            "step": self.step,
            "updates": self.updates,
            "way": self.how_taken,
            "horizon": self.horizon,
            "extra": extra,
        }
        tensors = {"random": self.random.get_state()}
        if isinstance(self.noise, SeededNoise):
            header["noise"] = self.noise.state()
        for prefix, module in self._modules().items():
            tensors.update({f"{prefix}.{name}": value for name, value in module.state_dict().items()})
        for index, entry in self.optimizer.state_dict()["state"].items():
            kept = {name: value for name, value in entry.items() if value is not None}
            tensors.update({f"adam.{index}.{name}": value for name, value in kept.items()})
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        replace_file(path, save(plain, {"version": _VERSION, "state": json.dumps(header)}))

    def load(self, path: Path) -> dict[str, Any]:
        """Take over a checkpoint, and return the JSON that was put beside it.

        A secure source of noise has no state: it draws afresh. So do latents and labels then.
        """
        header, tensors = _read(path)
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            prefix, _, rest = name.partition(".")
            parts.setdefault(prefix, {})[rest] = value
        try:
            for prefix, module in self._modules().items():
                module.load_state_dict(parts[prefix])
            self._load_optimizer(parts.get("adam", {}))
            if isinstance(self.noise, SeededNoise):
                self.noise = SeededNoise.restore(header["noise"])
                self.random.set_state(tensors["random"])
            self.step, self.updates = int(header["step"]), int(header.get("updates", 0))
            self.how_taken = None if header.get("way") is None else str(header["way"])
            self.horizon = None if header.get("horizon") is None else int(header["horizon"])
            self._begun = self.averaged is not None and int(self.averaged.n_averaged) > 0
            extra: dict[str, Any] = header["extra"]
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:120]
            raise TrainingError(f"{path} does not fit this run: {reason}; was it moved or edited?") from error
        return extra

    def _modules(self) -> dict[str, nn.Module]:
        parts = {"generator": self.generator, "averaged": self.averaged, "companion": self.companion}
        return {name: part for name, part in parts.items() if part is not None}

    def _load_optimizer(self, entries: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in entries.items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        for parameter, entry in self.optimizer.state.items():
            entry.update({key: _as_laid_out(value, parameter) for key, value in entry.items()})


def _optimizer(
    generator: Generator, settings: OptimizerSettings, device: torch.device
) -> torch.optim.Optimizer:
    parameters = list(generator.parameters())
    if settings.algorithm == "sgd":
        return torch.optim.SGD(
            parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, foreach=True
        )
    options: dict[str, Any] = {"betas": settings.betas, "weight_decay": settings.weight_decay}
    if device.type != "cuda":
        return torch.optim.Adam(parameters, lr=settings.learning_rate, foreach=True, **options)
    # On a GPU it can be captured in a graph, and its rate is on the device.
    rate = torch.tensor(settings.learning_rate, device=device)
    if not available(device):
        return torch.optim.Adam(parameters, lr=rate, fused=True, capturable=True, **options)
    leading = [generator.get_parameter(name) for name in generator.products]
    return FlatAdam(parameters, rate, leading, **options)


def _has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16; other processors emulate it, which takes far longer."""
    if device.type != "cpu":
        return True
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch has no public name for them
    return any(bool(getattr(torch.cpu, name, bool)()) for name in checks)


def _as_laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """The values in the same order in memory as the parameter's, where they are not a single number."""
    if value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def read_extra(path: Path) -> dict[str, Any]:
    """The JSON that was put beside a checkpoint; its tensors are not read."""
    return dict(_read(path, tensors=False)[0]["extra"])


def _read(path: Path, *, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("version") != _VERSION:
                raise TrainingError(
                    f"{path} is a checkpoint of version {metadata.get('version')}, not {_VERSION}: "
                    "resume it with the version of dpsinkhorn that wrote it"
                )
            header = json.loads(metadata["state"])
            if not isinstance(header, dict) or not isinstance(header.get("extra"), dict):
                raise KeyError("state")
            names = file.keys() if tensors else ()
            return header, {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise TrainingError(f"{path} is not a checkpoint that can be read: {error}") from error


# ---- whether a device multiplies matrices in float64 as the proofs take for granted


_SWITCH = "CUBLAS_EMULATE_DOUBLE_PRECISION"
_ROWS = 128
_TERMS = 512  # of a sum
_SIZES = {"cpu": (512,), "cuda": (512, 2048)}  # where emulation pays, products are large
_SPANS = (200, 60, 40)  # binary orders of magnitude between numbers of a row
_BATCHES: tuple[tuple[int, ...], ...] = ((), (2,))


def check_float64(device: torch.device) -> None:
    """Refuse a device that emulates float64. Nothing private is needed for it.

    Raises:
        TrainingError: Products that should be exact are not, or emulation was asked for.
    """
    if device.type == "cuda" and os.environ.get(_SWITCH, "0") not in ("", "0"):
        raise TrainingError(
            f"{_SWITCH} is set, and the guarantee needs float64 as it is: unset it, or train on the CPU"
        )
    if not multiplies_float64(device):
        raise TrainingError(
            f"{device} does not multiply in float64 as the guarantee needs it: products that should be exact "
            f"are not. Is emulation switched on ({_SWITCH})? Switch it off, or train on the CPU"
        )


def computed_by(device: torch.device) -> str:
    """Return what decides on the last bits here: the version of PyTorch, and the kind of device."""
    kind, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    on_cpu = f"{device.type} ({kind}, threads: {threads})"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu
    return f"torch {torch.__version__} on {name}"


def multiplies_float64(
    device: torch.device, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> bool:
    """Whether products come out to the last bit where they must: public matrices, alone and in a batch.

    >>> multiplies_float64(torch.device("cpu"))
    True
    """
    draws = torch.Generator().manual_seed(0)
    sizes = _SIZES.get(device.type, _SIZES["cuda"])
    questions = itertools.chain(
        (_of_all_digits(draws, batch) for batch in _BATCHES),
        (_of_many_sizes(draws, *asked) for asked in itertools.product(_BATCHES, sizes, _SPANS)),
    )
    for left, right, expected in questions:
        right = right.to(device)
        right = right.diag_embed() if right.ndim < left.ndim else right
        if not torch.equal(product(left.to(device), right), expected.to(device)):
            return False
    return True


def _of_many_sizes(
    draws: torch.Generator, batch: tuple[int, ...], size: int, span: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of large and small numbers, and a diagonal: as many products, of which none may be lost."""
    numbers = torch.randint(2**25, 2**26, (*batch, _ROWS, size), generator=draws).double()
    scales = torch.exp2(-torch.linspace(0, span, size).round().double())
    left = numbers * scales[torch.randperm(size, generator=draws)]
    factors = torch.randint(2**25, 2**26, (*batch, size), generator=draws).double()
    return left, factors, left * factors.unsqueeze(-2)


def _of_all_digits(draws: torch.Generator, batch: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers whose sums of products take up all 53 binary digits."""
    left = torch.randint(-(2**22), 2**22, (*batch, _ROWS, _TERMS), generator=draws)
    right = torch.randint(-(2**22), 2**22, (*batch, _TERMS, _ROWS), generator=draws)
    return left.double(), right.double(), (left @ right).double()
