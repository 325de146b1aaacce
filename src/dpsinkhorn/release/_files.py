"""Folders that are there complete or not at all, and careful reading of others' files: JSON and tensors."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.files import patiently, sync_folder, umask
from dpsinkhorn.generators import CustomConfig, Generator, GeneratorConfig, ModuleClass, build_generator
from dpsinkhorn.generators.custom import outline


@contextlib.contextmanager
def new_folder(target: Path, *, may_replace: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Give a draft beside `target` to write into; it takes the target's name at the end of the block.

    When the block raises, nothing of it remains. An existing folder that is not empty is refused, unless
    `may_replace` says yes to it.
    """
    refuse_existing(target, may_replace)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        yield draft
        os.chmod(draft, 0o777 & ~umask())  # mkdtemp keeps others out
        sync_folder(draft)
        _move(draft, target, may_replace)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def refuse_existing(target: Path, may_replace: Callable[[Path], bool] | None) -> None:
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise ReleaseError(f"{target} exists and is not a folder; name another one")
    if any(target.iterdir()) and not (may_replace and may_replace(target)):
        hint = "name another one" if may_replace is None else "it holds other files; name another one"
        raise ReleaseError(f"the folder {target} exists already; {hint}")


def read_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a plain file of at most `limit` bytes. Links, pipes and devices are refused."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        if path.is_symlink():
            raise ReleaseError(f"{path} is a link; a release holds plain files only")
        handle = os.open(path, flags)
    except FileNotFoundError:
        raise ReleaseError(f"{path} is missing; is this a release, and all of it?") from None
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}") from None
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise ReleaseError(f"{path} is not a plain file; a release holds plain files only")
        if state.st_size > limit:
            raise ReleaseError(f"{path} has {state.st_size:,} bytes; at most {limit:,} are expected")
        with open(handle, "rb", closefd=False) as file:
            data = file.read(state.st_size + 1)
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(handle)
    if len(data) > state.st_size:
        raise ReleaseError(f"{path} grew while it was read; is it still being written?")
    return data


def json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def read_json_bytes(data: bytes, name: str) -> dict[str, Any]:
    """Read a JSON object in UTF-8. Keys that come twice and numbers that are none are refused."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ReleaseError(f"{name} is damaged: not valid JSON; get the release again") from None
    if not isinstance(value, dict):
        raise ReleaseError(f"{name} is damaged: not a JSON object; get the release again")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key comes twice")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def check_keys(value: Mapping[str, Any], expected: Iterable[str], name: str) -> None:
    wanted = set(expected)
    for key in value.keys() - wanted:
        raise ReleaseError(f"{name} has an unknown entry {str(key)[:40]!r}")
    for key in sorted(wanted - value.keys()):
        raise ReleaseError(f"{name} has no entry {key!r}")


def _move(draft: Path, target: Path, may_replace: Callable[[Path], bool] | None) -> None:
    """Give the draft its name. What was there before is deleted last.

    Where names cannot be exchanged it steps aside first: a kill then leaves it whole, in `.NAME.*.old`.
    """
    refuse_existing(target, may_replace)
    if target.exists() and any(target.iterdir()) and _exchange(draft, target):
        return  # the draft's name now has what was there before, and whoever made the draft deletes it
    if not target.exists() or not any(target.iterdir()):
        if target.exists():
            target.rmdir()
        patiently(lambda: os.rename(draft, target))
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    patiently(lambda: os.rename(target, aside / target.name))
    try:
        patiently(lambda: os.rename(draft, target))
    except OSError:
        os.rename(aside / target.name, target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Let two names change places in one step, so that no kill comes in between; False where it cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2  # Linux
    except (OSError, AttributeError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


_HEADER = 2**20  # bytes, ample: names, shapes and offsets of some hundred tensors
_TYPES: dict[torch.dtype, tuple[str, str]] = {torch.float32: ("F32", "<f4"), torch.int64: ("I64", "<i8")}


def size_limits(config: GeneratorConfig, module_class: ModuleClass | None = None) -> tuple[int, int]:
    """Return how small and how large the file of a config's generator can be, in bytes.

    A file within them bounds the memory that its config can make a reader take.
    """
    if isinstance(config, CustomConfig) and module_class is not None:
        state = outline(config, module_class).state_dict().values()
        least = sum(value.numel() * value.itemsize for value in state)
        return least, least + _HEADER
    return 4 * config.parameters, 8 * config.parameters + _HEADER  # with fewer buffers than parameters


def to_bytes(generator: Generator) -> bytes:
    """Return all parameters and buffers, float32 and int64, as safetensors bytes."""
    state = {}
    for name, value in generator.stored.state_dict().items():
        value = value.detach().to("cpu", torch.float32 if value.is_floating_point() else torch.int64)
        # a copy: layers may share storage or have another layout, which the format does not know
        state[name] = value.clone(memory_format=torch.contiguous_format)
    _check_values(state)
    return save(state)


def from_bytes(data: bytes, config: GeneratorConfig, module_class: ModuleClass | None = None) -> Generator:
    """Return the generator, in eval mode, without gradients.

    Names, shapes and types must be the config's own, or those of the user's module.
    """
    least, most = size_limits(config, module_class)
    if not least <= len(data) <= most:
        raise ReleaseError(f"generator.safetensors has {len(data):,} bytes; that does not fit config.json")
    try:
        found: dict[str, dict[str, Any]] = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except Exception:  # whatever the parser raises on a stranger's bytes means the same
        raise ReleaseError("generator.safetensors is damaged; get the release again") from None
    generator = build_generator(config, 0, module_class)  # with a seed, so that no random state is touched
    expected = generator.stored.state_dict()
    for name in sorted(found.keys() ^ expected.keys()):
        state = "lacks" if name in expected else "has an unknown"
        raise ReleaseError(f"generator.safetensors {state} tensor {name[:80]!r}; it does not fit config.json")
    state_dict = {}
    for name, value in expected.items():
        code, layout = _TYPES[value.dtype]
        tensor = found[name]
        if tensor["dtype"] != code or tuple(tensor["shape"]) != tuple(value.shape):
            raise ReleaseError(f"tensor {name!r} of generator.safetensors does not fit config.json")
        array = np.frombuffer(tensor["data"], dtype=layout).astype(layout[1:]).reshape(tensor["shape"])
        state_dict[name] = torch.from_numpy(array)
    _check_values(state_dict)
    generator.stored.load_state_dict(state_dict)
    return generator.eval().requires_grad_(False)


def _check_values(state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise ReleaseError(f"tensor {name!r} of the generator holds numbers that are not finite")
        if name.endswith("running_var") and (value < 0).any():
            raise ReleaseError(f"tensor {name!r} of the generator holds a negative variance")
