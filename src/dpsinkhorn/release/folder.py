"""The release as a folder: written whole or not at all, read with suspicion. See docs/release-format.md."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from dpsinkhorn import _checks
from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.files import failing_as, new_folder, refuse_existing, write_synced
from dpsinkhorn.generators import (
    CustomConfig,
    Generator,
    GeneratorConfig,
    GeneratorError,
    ModuleClass,
    build_generator,
    config_from_json,
    config_to_json,
)
from dpsinkhorn.generators.custom import outline
from dpsinkhorn.privacy import UnsupportedEventError, format_epsilon
from dpsinkhorn.release import hub
from dpsinkhorn.release.release import Release, grid_image, printable
from dpsinkhorn.release.statement import TRUST, About, PrivacyStatement

VERSION = 2
FILES = ("README.md", "config.json", "generator.safetensors", "privacy.json", "samples.png")

_CONFIG_FORMAT, _PRIVACY_FORMAT = "dpsinkhorn-release", "dpsinkhorn-privacy"
_ABOUT_KEYS = tuple(field.name for field in dataclasses.fields(About))
_OWN_KEYS = ("label_probabilities", "label_source", "class_names", "value_range")  # fields of a Release
_CONFIG_KEYS = ("format", "version", *_ABOUT_KEYS, "generator", "generator_sha256", *_OWN_KEYS)
_SINCE_2 = {**dict.fromkeys(_ABOUT_KEYS[1:], ""), "label_source": None, "value_range": None}
_VERSIONS = {_CONFIG_FORMAT: (1, VERSION), _PRIVACY_FORMAT: (1,)}
_PRIVACY_OWN_KEYS = ("format", "version", "releasable", "warning")
_LARGEST_JSON = 2**24  # bytes; 65,536 classes with names fit
_PICTURE_ROWS, _PICTURE_COLUMNS = 20, 10


def write_release(
    folder: str | os.PathLike[str], generator: Generator, *, overwrite: bool = False, **parts: Any
) -> None:
    """Write what an analyst receives: `save_release` of what `make_release` makes of the other arguments."""
    save_release(folder, make_release(generator, **parts), overwrite=overwrite)


def make_release(
    generator: Generator,
    *,
    label_probabilities: Sequence[float] | None,
    privacy: PrivacyStatement,
    releasable: bool = True,
    about: About | None = None,
    class_names: Sequence[str] = (),
    label_source: str | None = None,
    value_range: tuple[float, float] | None = None,
) -> Release:
    """Put together a copy of a generator and what goes with it.

    Args:
        generator: With the batch statistics that it is to have: see `recompute_batch_statistics`.
        label_probabilities: The public distribution of labels; `None` is uniform. Without classes, `None`.
        privacy: What is guaranteed. Its ε is computed again from its charges; a lower one is refused.
        releasable: Whether it may leave the curator's hands. Seeded and non-private training never may,
            whatever is said here: such a release says so, loudly.
        about: Title, description, purpose and the like.
        class_names: One per class, or none. Characters that cannot be printed become question marks.
        label_source: How `label_probabilities` were set, a key of `LABEL_SOURCES`, if that is to be told.
        value_range: The public range of the original pixels, which samples show as 0 to 255.

    Raises:
        ReleaseError: Something is wrong with the arguments.
    """
    config, classes = generator.config, generator.config.classes
    try:
        network = _from_bytes(_to_bytes(generator), config, generator.module_class)
    except GeneratorError as error:
        raise ReleaseError(str(error)) from None
    if label_probabilities is None and classes:
        label_probabilities = [1 / classes] * classes
    _check_epsilon(privacy)
    return Release(
        network,
        privacy,
        releasable=releasable and not privacy.objections,
        about=about or About(),
        label_probabilities=None if label_probabilities is None else tuple(label_probabilities),
        # mended rather than refused: something was trained for hours
        class_names=tuple(printable(name) for name in class_names),
        label_source=label_source,
        value_range=value_range,
    )


def save_release(folder: str | os.PathLike[str], release: Release, *, overwrite: bool = False) -> None:
    """Write a release to a folder. The folder is there complete, or not at all.

    The same release gives the same bytes: nothing in it tells when or where it was made.

    Args:
        folder: Must not exist, or be empty; its parent folders are created.
        release: What to write.
        overwrite: Replace an existing release; any other folder is left alone all the same.

    Raises:
        ReleaseError: Something is wrong with the disk; nothing was written.
    """
    target = Path(os.path.abspath(folder))
    data = _to_bytes(release.generator)
    config = {
        "format": _CONFIG_FORMAT,
        "version": VERSION,
        **dataclasses.asdict(release.about),
        "generator": config_to_json(release.config),
        "generator_sha256": hashlib.sha256(data).hexdigest(),
        **{name: getattr(release, name) for name in _OWN_KEYS},
    }
    privacy = {
        "format": _PRIVACY_FORMAT,
        "version": _VERSIONS[_PRIVACY_FORMAT][-1],
        "releasable": release.releasable,
        "warning": warning_of(release),
        **release.privacy.to_json(),
    }
    contents = {
        "README.md": model_card(release).encode(),
        "config.json": _json_bytes(config),
        "generator.safetensors": data,
        "privacy.json": _json_bytes(privacy),
        "samples.png": _picture(release),
    }
    may_replace = is_release if overwrite else None
    with failing_as(ReleaseError, f"cannot write the release {target}"):
        refuse_existing(target, ReleaseError, may_replace)
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(target, ReleaseError, may_replace=may_replace) as draft:
            for name, content in contents.items():
                write_synced(draft / name, content, new=True)
            # what cannot be read back is not handed out
            load(draft, generator=release.generator.module_class)


def load(folder: str | os.PathLike[str], *, generator: ModuleClass | None = None) -> Release:
    """Read a release: the folder itself, or a run's folder with a `release` in it.

    Everything is checked before it is used, and nothing of the content is run. The model card and the
    picture are for people, and not read.

    Args:
        folder: Where the release is; or `hub:owner/name`, a repository of the Hugging Face Hub.
        generator: The class of modules that was trained, where it was the maker's own. Only this one is
            called, with the settings of the release; nothing is imported by a name in it.

    Raises:
        ReleaseError: What is wrong, in one line.
    """
    if isinstance(folder, str) and folder.startswith(hub.HUB):
        with hub.download(folder.removeprefix(hub.HUB), FILES) as downloaded:
            return load(downloaded, generator=generator)
    place = _find(Path(folder))
    entries = _read_json(place / "config.json", _CONFIG_FORMAT)
    if entries["version"] == 1:
        _checks.keys(entries, "config.json", ReleaseError, expected=set(_CONFIG_KEYS) - _SINCE_2.keys())
        entries |= _SINCE_2
    _checks.keys(entries, "config.json", ReleaseError, expected=_CONFIG_KEYS)
    about = About(**{name: entries[name] for name in _ABOUT_KEYS})
    try:
        config = config_from_json(entries["generator"])
        if config_to_json(config) != entries["generator"]:
            raise ReleaseError("config.json does not have every field of its generator")
        _check_module(config, generator)
        statement, releasable = _read_privacy(place / "privacy.json")
        largest = _size_limits(config, generator)[1]
        data = _read_file(place / "generator.safetensors", largest)
        if hashlib.sha256(data).hexdigest() != entries["generator_sha256"]:
            raise ReleaseError(
                "generator.safetensors is not the one that config.json was written for; get it again"
            )
        network = _from_bytes(data, config, generator)
    except GeneratorError as error:
        raise ReleaseError(f"config.json: {error}") from None
    return Release(network, statement, releasable, about, **{name: entries[name] for name in _OWN_KEYS})


def _check_module(config: GeneratorConfig, module_class: ModuleClass | None) -> None:
    """Refuse a release of its maker's own class without that class, and any other with one."""
    if isinstance(config, CustomConfig) and module_class is None:
        raise ReleaseError(
            f"the generator is {config.module!r}, a class of its maker's own: load it in Python, with that "
            "class, by dpsinkhorn.load(folder, generator=THE_CLASS)"
        )
    if not isinstance(config, CustomConfig) and module_class is not None:
        raise ReleaseError(f"the generator is a {config.kind}, which needs no class; leave generator out")


def _read_privacy(path: Path) -> tuple[PrivacyStatement, bool]:
    """Return the statement, and whether the release may leave the curator's hands."""
    entries = _read_json(path, _PRIVACY_FORMAT)
    if not {"releasable", "warning"} <= entries.keys():
        raise ReleaseError("privacy.json has no entry 'releasable' or 'warning'")
    own = {key: value for key, value in entries.items() if key not in _PRIVACY_OWN_KEYS}
    statement = PrivacyStatement.from_json(own)
    releasable = _checks.truth(entries["releasable"], "releasable in privacy.json", ReleaseError)
    if releasable and statement.objections:
        raise ReleaseError(
            "privacy.json contradicts itself: a seeded or non-private release is not releasable"
        )
    if entries["warning"] is not None:
        _checks.text(entries["warning"], "the warning in privacy.json", ReleaseError)
    return statement, releasable


def _find(folder: Path) -> Path:
    """Return the release itself, where a run's folder is given; say how to come to one that is not there."""
    inner = folder / "release"
    inside = not os.path.lexists(folder / "config.json") and inner.is_dir() and not inner.is_symlink()
    place = inner if inside else folder
    if os.path.lexists(place / "config.json"):
        return place
    run = place.parent if place.name == "release" and not os.path.lexists(place) else place
    if (run / "run.json").is_file():
        command = f"dpsinkhorn train --out {shlex.quote(str(run))} --resume"
        raise ReleaseError(f"the run {run} is not finished; go on with {command}")
    if not place.is_dir():
        raise ReleaseError(f"there is no release at {place}: not a folder")
    raise ReleaseError(f"{place} is not a release: it has no config.json")


def is_release(folder: Path) -> bool:
    """Say whether a folder holds a release and nothing else, so that replacing it loses nothing else."""
    names = {entry.name for entry in folder.iterdir()}
    return "config.json" in names and names <= set(FILES)


def _picture(release: Release) -> bytes:
    """Draw images from fixed latents, so that the same generator gives the same picture."""
    count, labels = _PICTURE_ROWS * _PICTURE_COLUMNS // 2, None
    if release.classes:
        labels = np.repeat(np.arange(min(release.classes, _PICTURE_ROWS)), _PICTURE_COLUMNS)
        count = len(labels)
    images, labels = release.sample(count, labels, random_state=0, device="cpu")
    file = io.BytesIO()
    picture = grid_image(
        images, labels, columns=_PICTURE_COLUMNS, rows=_PICTURE_ROWS, class_names=release.class_names
    )
    picture.save(file, format="PNG")
    return file.getvalue()


def _check_epsilon(privacy: PrivacyStatement) -> None:
    if not privacy.private:
        return
    try:
        needed = privacy.recomputed_epsilon()
    except (UnsupportedEventError, ValueError) as error:
        raise ReleaseError(f"ε cannot be computed from the charges: {error}") from error
    if needed > privacy.epsilon * (1 + 1e-9) + 1e-12:
        raise ReleaseError(
            f"the statement claims ε = {privacy.epsilon!r}, but its charges cost "
            f"{format_epsilon(needed, digits=6)}"
        )


def _read_json(path: Path, form: str) -> dict[str, Any]:
    """Return the entries of a file that is of a format, in the version that is read here."""
    name = path.name
    value = _read_json_bytes(_read_file(path, _LARGEST_JSON), name)
    if value.get("format") != form:
        raise ReleaseError(f"{name} is not of the format {form}")
    version, known = value.get("version"), _VERSIONS[form]
    if type(version) is not int or version not in known:
        raise ReleaseError(
            f"{name} has version {version!r:.20}, this dpsinkhorn reads {known[-1]}; install a newer one"
        )
    return value


# ---- the model card: what a person who opens the folder reads first, in Hugging Face's form


def warning_of(release: Release) -> str | None:
    """Say why this must not be passed on, in a sentence, or return `None`."""
    if release.releasable:
        return None
    reasons = release.privacy.objections or ("whoever made it said so",)
    return f"NOT FOR RELEASE: {', and '.join(reasons)}."


def model_card(release: Release) -> str:
    """Return Markdown with a YAML header."""
    config, privacy = release.config, release.privacy
    channels, height, width = release.image_shape
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpsinkhorn", "release"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"text": _escaped, "code": repr, "number": lambda value: f"{value:.10g}"}
    return environment.get_template("card.md.j2").render(
        release=release,
        privacy=privacy,
        warning=warning_of(release),
        channels=channels,
        height=height,
        width=width,
        own_class=config.module.replace("`", "") if isinstance(config, CustomConfig) else "",
        variation=", ".join(f"{name} {value:g}" for name, value in config.variation.values.items()),
        epsilon=format_epsilon(privacy.epsilon),
        published=format_epsilon(privacy.published_epsilon or 0.0),
        trust=TRUST,
    )


def _escaped(text: str) -> str:
    """Escape text so that it stays text: no markup, link, HTML or formula, and within a cell of a table.

    >>> print(_escaped("<b> [x](y) | `$a$`"))
    &lt;b&gt; \\[x\\](y) \\| \\`\\$a\\$\\`
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", text)


# ---- files that may be a stranger's: bytes, JSON and tensors

_HEADER = 2**20  # bytes, ample: names, shapes and offsets of some hundred tensors
_TYPES: dict[torch.dtype, tuple[str, str]] = {torch.float32: ("F32", "<f4"), torch.int64: ("I64", "<i8")}


def _read_file(path: Path, limit: int) -> bytes:
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


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _read_json_bytes(data: bytes, name: str) -> dict[str, Any]:
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


def _size_limits(config: GeneratorConfig, module_class: ModuleClass | None = None) -> tuple[int, int]:
    """Return how small and how large the file of a config's generator can be, in bytes.

    A file within them bounds the memory that its config can make a reader take.
    """
    if isinstance(config, CustomConfig) and module_class is not None:
        state = outline(config, module_class).state_dict().values()
        least = sum(value.numel() * value.itemsize for value in state)
        return least, least + _HEADER
    return 4 * config.parameters, 8 * config.parameters + _HEADER  # with fewer buffers than parameters


def _to_bytes(generator: Generator) -> bytes:
    """Return all parameters and buffers, float32 and int64, as safetensors bytes."""
    state = {}
    for name, value in generator.stored.state_dict().items():
        value = value.detach().to("cpu", torch.float32 if value.is_floating_point() else torch.int64)
        # a copy: layers may share storage or have another layout, which the format does not know
        state[name] = value.clone(memory_format=torch.contiguous_format)
    _check_values(state)
    return save(state)


def _from_bytes(data: bytes, config: GeneratorConfig, module_class: ModuleClass | None = None) -> Generator:
    """Return the generator, in eval mode, without gradients.

    Names, shapes and types must be the config's own, or those of the user's module.
    """
    least, most = _size_limits(config, module_class)
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
