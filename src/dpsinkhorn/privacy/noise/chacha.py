"""The ChaCha20 key stream as 64-bit words, on the CPU (the `cryptography` package) or on an accelerator.

One (key, nonce) gives one stream, the same on every device. The stream is that of RFC 8439: 16 words of
32 bits per block, a 32-bit block counter that starts at 0, and a 96-bit nonce.
"""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dpsinkhorn.kernels.chacha import stream
from dpsinkhorn.kernels.launch import available

__all__ = ["KEY_BYTES", "key_stream"]

KEY_BYTES = 32
_WORDS_PER_BLOCK = 8  # words of 64 bits in a block of 64 bytes
_MAX_BLOCKS = 1 << 31  # the 32-bit block counter never wraps; torch counts it with a sign
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_QUARTERS = (
    *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),  # columns
    *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),  # diagonals
)


def key_stream(key: bytes, nonce: int, words: int, device: torch.device) -> torch.Tensor:
    """The first `words` 64-bit words of the stream of `key` and `nonce`, as signed int64.

    >>> stream = key_stream(bytes(32), 0, 2, torch.device("cpu"))
    >>> stream.numpy().tobytes().hex()  # RFC 8439, appendix A.1, test vector 1
    '76b8e0ada0f13d90405d6ae55386bd28'
    """
    blocks = -(-words // _WORDS_PER_BLOCK)
    if not 0 <= blocks < _MAX_BLOCKS:
        raise ValueError(f"cannot draw {words} words from one stream; at most {_MAX_BLOCKS * 8 - 8}")
    if device.type == "cpu":
        return _on_cpu(key, nonce, words)
    setup = _initial_state(key, nonce)
    if available(device):
        return stream(setup, blocks, device)[:words]
    return _in_torch(setup, blocks, device)[:words]


def _on_cpu(key: bytes, nonce: int, words: int) -> torch.Tensor:
    counter_and_nonce = bytes(4) + nonce.to_bytes(12, "little")
    cipher = Cipher(algorithms.ChaCha20(key, counter_and_nonce), mode=None).encryptor()
    stream = bytearray(8 * words)
    cipher.update_into(bytes(8 * words), stream)
    return torch.from_numpy(np.frombuffer(stream, dtype="<i8").astype(np.int64, copy=False))


def _initial_state(key: bytes, nonce: int) -> tuple[int, ...]:
    """The 16 words of block 0, as signed 32-bit integers."""
    text = b"".join(word.to_bytes(4, "little") for word in _CONSTANTS)
    text += key + bytes(4) + nonce.to_bytes(12, "little")
    return tuple(int.from_bytes(text[i : i + 4], "little", signed=True) for i in range(0, 64, 4))


def _in_torch(setup: tuple[int, ...], blocks: int, device: torch.device) -> torch.Tensor:
    """ChaCha20 in plain tensor operations, all blocks side by side: where there is no kernel for it."""
    start = torch.tensor(setup, dtype=torch.int32, device=device)[:, None].repeat(1, blocks)  # (16, blocks)
    start[12] += torch.arange(blocks, dtype=torch.int32, device=device)
    rows = list(start.clone())

    def mix(target: int, addend: int, other: int, shift: int) -> None:
        rows[target] += rows[addend]
        mixed = rows[other] ^ rows[target]
        # >> keeps the sign, so the bits that it drags in are masked off
        rows[other] = (mixed << shift) | ((mixed >> (32 - shift)) & ((1 << shift) - 1))

    for _ in range(10):
        for a, b, c, d in _QUARTERS:
            mix(a, b, d, 16)
            mix(c, d, b, 12)
            mix(a, b, d, 8)
            mix(c, d, b, 7)
    return (torch.stack(rows) + start).t().reshape(-1).contiguous().view(torch.int64)
