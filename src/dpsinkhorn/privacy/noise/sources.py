"""Noise sources: `SecureNoise` for releases, `SeededNoise` for tests and research.

Both expand a 256-bit key with ChaCha20, and both sample exactly. They differ in
one thing only: who knows the key. The secure source takes a fresh key from the operating system for every
request for bits and forgets it, so it holds nothing that could be stored, copied, or repeated in a forked
process. The seeded one derives its key from a seed and counts its requests, so it can be replayed, by
anyone with the seed.

One (key, nonce) gives one stream of 64-bit words, the same on every device: on a GPU by a kernel, elsewhere
by the `cryptography` package. The stream is that of RFC 8439: 16 words of 32 bits per block, a 32-bit block
counter that starts at 0, and a 96-bit nonce.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dpsinkhorn.kernels.chacha import stream
from dpsinkhorn.kernels.launch import available
from dpsinkhorn.privacy.noise.exact import LAPLACE, NORMAL, Staircase, WordSource

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
