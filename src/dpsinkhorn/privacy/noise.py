"""Noise: where random bits come from, and how noise is added so that floating point gives nothing away.

**Sources.** `SecureNoise` for releases, and `SeededNoise` for tests and research, share the interface
`NoiseSource`. Both expand a 256-bit key with ChaCha20, and both sample exactly. They differ in one thing
only: who knows the key. The secure source takes a fresh key from the operating system for every request for
bits and forgets it, so it holds nothing that could be stored, copied, or repeated in a forked process. The
seeded one derives its key from a seed and counts its requests, so it can be replayed, by anyone with the
seed.

One (key, nonce) gives one stream of 64-bit words, the same on every device: on a GPU by a kernel, elsewhere
by the `cryptography` package. The stream is that of RFC 8439: 16 words of 32 bits per block, a 32-bit block
counter that starts at 0, and a 96-bit nonce.

**The lattice.** Its step is g = std 2^-30. A private value v becomes the whole number u = round(v / g), the
noise is the whole number z = floor(X / g) of an exactly sampled real X, and (u + z + 1/2) g is handed back.
Since u is whole, u + z = floor((u g + X) / g): post-processing of the textbook mechanism on the query u g.
All that rounding costs is a sensitivity larger by 2 g per coordinate, and the noise here is enlarged by
just as much, so the event to charge is that of the textbook mechanism. Statement and proof:
`docs/proofs/floating-point.md`.

Private values meet randomness in three places: `add_gaussian`, `add_laplace` and `poisson_sample`. Each of
them tells an `ObservedNoise`, which is there for audits, what it was given and what it is about to hand
back, and hands back what that answers. Every other source is asked for random bits and nothing else. By
`announce` a mechanism says what else goes into a release: public state, the same whatever the records are.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from dpsinkhorn.kernels.chacha import stream
from dpsinkhorn.kernels.launch import available
from dpsinkhorn.privacy.exact import LAPLACE, NORMAL, Staircase, WordSource

# ---- where random bits come from


KEY_BYTES = 32
_WORDS_PER_BLOCK = 8  # words of 64 bits in a block of 64 bytes
_MAX_BLOCKS = 1 << 31  # the 32-bit block counter never wraps

LATTICE_BITS = 30  # noise comes in steps of its scale times 2^-30


def key_stream(key: bytes, nonce: int, words: int, device: torch.device) -> torch.Tensor:
    """Return the first `words` 64-bit words of the stream of `key` and `nonce`, as signed int64.

    >>> stream = key_stream(bytes(32), 0, 2, torch.device("cpu"))
    >>> stream.numpy().tobytes().hex()  # RFC 8439, appendix A.1, test vector 1
    '76b8e0ada0f13d90405d6ae55386bd28'
    """
    blocks = -(-words // _WORDS_PER_BLOCK)
    if not 0 <= blocks < _MAX_BLOCKS:
        raise ValueError(f"cannot draw {words} words from one stream; at most {_MAX_BLOCKS * 8 - 8}")
    if available(device):
        return stream(key, nonce, blocks, device)[:words]
    counter_and_nonce = bytes(4) + nonce.to_bytes(12, "little")
    cipher = Cipher(algorithms.ChaCha20(key, counter_and_nonce), mode=None).encryptor()
    drawn = bytearray(8 * words)
    cipher.update_into(bytes(8 * words), drawn)
    return torch.from_numpy(np.frombuffer(drawn, dtype="<i8").astype(np.int64, copy=False)).to(device)


@runtime_checkable
class NoiseSource(WordSource, Protocol):
    """Where noise and random bits come from; `add_gaussian` and `add_laplace` put it on private values."""

    @property
    def secure(self) -> bool:
        """Return whether nobody can predict the draws. Only then may a result be released."""

    @property
    def description(self) -> str:
        """Return what the source is and what it protects against, in a sentence."""


def normal_cells(
    noise: WordSource, shape: tuple[int, ...], *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Exact draws of floor(X 2^30), X standard normal: int64. May be drawn ahead, for `add_gaussian`."""
    return _cells(NORMAL, noise, shape, device)


def laplace_cells(
    noise: WordSource, shape: tuple[int, ...], *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Exact draws of floor(X 2^30), X Laplace of scale 1: int64. May be drawn ahead, for `add_laplace`."""
    return _cells(LAPLACE, noise, shape, device)


def _cells(
    density: Staircase, noise: WordSource, shape: tuple[int, ...], device: torch.device | str
) -> torch.Tensor:
    count = math.prod(shape)
    cells = density.cells(noise, count, bits=LATTICE_BITS, signed=True, device=torch.device(device))
    return cells.reshape(shape)


class SecureNoise:
    """Noise that nobody can predict or replay: the source for releases.

    Every request for bits is ChaCha20 under a fresh 256-bit key from the operating system. The key is used
    once and dropped, so there is no state: nothing to save, and a forked process shares nothing with its
    parent.

    >>> noise = SecureNoise()
    >>> noise.secure
    True
    >>> bool((noise.words(4) == noise.words(4)).any())
    False
    """

    secure = True
    description = (
        "ChaCha20 under a fresh key from the operating system for every request; exact sampling. "
        "Secure against anyone who cannot read this machine's memory or time its draws. On a GPU the same "
        "generator runs there, and the key passes through the GPU's memory."
    )

    def words(self, count: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return `count` uniform 64-bit words as signed int64."""
        return key_stream(os.urandom(KEY_BYTES), 0, count, torch.device(device))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secure noise source cannot be stored or sent: make a new one where it is needed")


class SeededNoise:
    """Noise that replays, for tests and research. Who knows the seed knows the noise: not for release.

    All sources of a seed draw the same, whatever for: the difference of two runs can be free of noise.

    `state()` is plain JSON; a source made by `SeededNoise.restore(state)` goes on bit for bit where this
    one is.

    >>> noise = SeededNoise(0)
    >>> _ = noise.words(3)
    >>> resumed = SeededNoise.restore(noise.state())
    >>> bool((resumed.words(3) == noise.words(3)).all())
    True
    """

    secure = False
    description = (
        "ChaCha20 under a key derived from a seed; replayable by anyone with the seed: not for release."
    )

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"a seed is a whole number, not {seed!r}")
        self._seed = seed
        self._requests = 0
        self._key = hashlib.sha256(f"dpsinkhorn seeded noise, version 1: {seed}".encode()).digest()

    def words(self, count: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return `count` uniform 64-bit words as signed int64, the same ones on every device."""
        stream = key_stream(self._key, self._requests, count, torch.device(device))
        self._requests += 1
        return stream

    def state(self) -> dict[str, int]:
        """Return what `restore` needs, as JSON values."""
        return {"seed": self._seed, "requests": self._requests}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> SeededNoise:
        """Return a source that continues from a `state()`."""
        source = cls(state["seed"])
        requests = state["requests"]
        if isinstance(requests, bool) or not isinstance(requests, int) or not 0 <= requests < 2**96:
            raise ValueError(f"not a state of a seeded source: {dict(state)!r}")
        source._requests = requests
        return source


# ---- noise on a public lattice


_STEP = 2.0**-LATTICE_BITS  # lattice step / std
_ROUNDING = 2.0  # by how many steps rounding can move two neighbours apart, per coordinate
_LARGEST = 2.0**50  # lattice values are clamped to this: below it `values / step` errs by less than 1/2
_UP = 1 + 2.0**-40  # more than all rounding errors in computing a scale


@dataclass(frozen=True)
class Query:
    """What noise was asked for: all of it must be public."""

    # `gaussian`, where the sensitivity is in Euclidean norm, or `laplace`, where it is in L1
    noise: Literal["gaussian", "laplace"]
    shape: tuple[int, ...]  # of the values
    sensitivity: float  # what one unit moves the values by, at most
    multiplier: float  # noise over sensitivity
    together: int  # how many numbers, these among them, are released under one bound and one charge


class ObservedNoise(ABC):
    """A source of noise that stands at the barrier. It sees private values: for audits, never for release."""

    secure = False
    description = "Noise that is recorded at the barrier, for an audit: not for release."

    def __init__(self, source: NoiseSource) -> None:
        self.words = source.words

    @abstractmethod
    def public(self, arguments: dict[str, Tensor | float | None]) -> None:
        """Take note of what the next release is computed from besides private records."""

    @abstractmethod
    def release(self, query: Query, values: Tensor, noised: Tensor) -> Tensor:
        """Return what is released for these private values; `noised` is what would be."""

    @abstractmethod
    def sample(self, units: int, rate: float, taken: Tensor) -> Tensor:
        """Return the indices of the Poisson sample of so many units; `taken` is what would be."""


def announce(noise: object, **public: Tensor | float | None) -> None:
    """Tell an audit, where one looks on, what the next release is computed from besides private records."""
    if isinstance(noise, ObservedNoise):
        noise.public(public)


def gaussian_std(sensitivity: float, noise_multiplier: float, coordinates: int) -> float:
    """The standard deviation of `add_gaussian`: noise_multiplier * sensitivity and a trifle for rounding.

    >>> gaussian_std(1.0, 2.0, 1_000_000) / 2.0
    1.0000037...
    """
    _check_positive(sensitivity=sensitivity, noise_multiplier=noise_multiplier)
    lost = _ROUNDING * _STEP * math.sqrt(coordinates) * noise_multiplier
    return _enlarged(sensitivity * noise_multiplier, lost)


def laplace_scale(sensitivity: float, epsilon: float, coordinates: int) -> float:
    """Return the Laplace scale that `add_laplace` uses: sensitivity / epsilon and a trifle for rounding."""
    _check_positive(sensitivity=sensitivity, epsilon=epsilon)
    return _enlarged(sensitivity / epsilon, _ROUNDING * _STEP * coordinates / epsilon)


def add_gaussian(
    values: torch.Tensor,
    *,
    sensitivity: float,
    noise_multiplier: float,
    noise: NoiseSource | None = None,
    coordinates: int | None = None,
    cells: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply the Gaussian mechanism: charge it as `Gaussian(noise_multiplier)`.

    `sensitivity` bounds the Euclidean distance of `values`, *as computed*, between neighbouring data sets.
    `coordinates` is the number of values released together under that bound, where `values` is only a part
    of them. `cells` are draws of `normal_cells` made beforehand and used for nothing else; with them no
    source of noise is needed, and nothing here waits for the device. Values beyond 2^20 standard deviations
    are clamped; what is not finite becomes 0.

    >>> from dpsinkhorn.privacy.noise import SeededNoise
    >>> gradient = torch.tensor([1.0, -1.0])
    >>> add_gaussian(gradient, sensitivity=1.0, noise_multiplier=0.5, noise=SeededNoise(7))
    tensor([...])
    """
    together = _count(values, coordinates)
    std = gaussian_std(sensitivity, noise_multiplier, together)
    query = Query("gaussian", tuple(values.shape), sensitivity, noise_multiplier, together)
    return _released(values, std, query, noise, cells, normal_cells)


def add_laplace(
    values: torch.Tensor,
    *,
    sensitivity: float,
    epsilon: float,
    noise: NoiseSource | None = None,
    coordinates: int | None = None,
    cells: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply the Laplace mechanism, epsilon-DP: charge it as `Laplace(1 / epsilon)`.

    As `add_gaussian`, but `sensitivity` is in the sum of absolute differences. For counts, round the result:
    that is post-processing.

    >>> from dpsinkhorn.privacy.noise import SeededNoise
    >>> add_laplace(torch.tensor(120.0), sensitivity=1.0, epsilon=1.0, noise=SeededNoise(7))
    tensor(...)
    """
    together = _count(values, coordinates)
    scale = laplace_scale(sensitivity, epsilon, together)
    query = Query("laplace", tuple(values.shape), sensitivity, 1 / epsilon, together)
    return _released(values, scale, query, noise, cells, laplace_cells)


def _released(
    values: torch.Tensor,
    scale: float,
    query: Query,
    noise: NoiseSource | None,
    cells: torch.Tensor | None,
    draw: Callable[..., torch.Tensor],
) -> torch.Tensor:
    if cells is None:
        if noise is None:
            raise TypeError("a source of noise, or cells drawn from one, must be given")
        cells = draw(noise, query.shape, device=values.device)
    released = _on_lattice(values, cells, scale * _STEP)
    return noise.release(query, values, released) if isinstance(noise, ObservedNoise) else released


def _on_lattice(values: torch.Tensor, cells: torch.Tensor, step: float) -> torch.Tensor:
    """(round(values / step) + cells + 1/2) * step: whole numbers until both are added."""
    if cells.shape != values.shape:
        raise ValueError(f"noise of shape {tuple(cells.shape)} for values of shape {tuple(values.shape)}")
    finite = torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0)
    # by the reciprocal, since PyTorch divides by a number in this way on a GPU, and otherwise on a CPU
    whole = (finite * (1 / step)).round_().clamp_(-_LARGEST, _LARGEST)
    # Whole numbers below 2^52, which float64 holds: sums are exact, with the half too. From here on the data
    # are seen through a whole number plus noise only: rounding is post-processing.
    released = whole.add_(cells).add_(0.5).mul_(step)
    return released.to(values.dtype if values.dtype.is_floating_point else torch.float64)


def _count(values: torch.Tensor, coordinates: int | None) -> int:
    if values.is_complex():
        raise TypeError("noise is added to real values only")
    if coordinates is None:
        return values.numel()
    if coordinates < values.numel():
        raise ValueError(f"coordinates={coordinates} is less than the {values.numel()} values given")
    return coordinates


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not (0 < value < math.inf):
            raise ValueError(f"{name} must be a positive number, not {value}")


def _enlarged(scale: float, lost: float) -> float:
    """Return the least scale s with s (1 - lost) >= `scale`."""
    if not lost <= 0.1:
        raise ValueError("too many coordinates for so much noise: the lattice would cost over a tenth of it")
    if not 1e-200 < scale < 1e200:
        raise ValueError(f"a noise scale of {scale} is outside of what float64 can hold with its lattice")
    return scale / (1 - lost) * _UP
