"""ChaCha20 as one GPU kernel: a lane keeps a whole block in registers. Used on CUDA devices only."""

from __future__ import annotations

import torch

from dpsinkhorn.kernels.launch import ceil_div, jit, on, tl

_PER_PROGRAM = 128


@jit
def _rotate(word, shift: tl.constexpr):
    return (word << shift) | (word >> (32 - shift))


@jit
def _quarter(a, b, c, d):
    a += b
    d = _rotate(d ^ a, 16)
    c += d
    b = _rotate(b ^ c, 12)
    a += b
    d = _rotate(d ^ a, 8)
    c += d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@jit
def _kernel(setup, out, blocks, size: tl.constexpr):
    block = tl.program_id(0) * size + tl.arange(0, size)
    zero = (block * 0).to(tl.uint32)
    s0 = zero + tl.load(setup + 0).to(tl.uint32, bitcast=True)
    s1 = zero + tl.load(setup + 1).to(tl.uint32, bitcast=True)
    s2 = zero + tl.load(setup + 2).to(tl.uint32, bitcast=True)
    s3 = zero + tl.load(setup + 3).to(tl.uint32, bitcast=True)
    s4 = zero + tl.load(setup + 4).to(tl.uint32, bitcast=True)
    s5 = zero + tl.load(setup + 5).to(tl.uint32, bitcast=True)
    s6 = zero + tl.load(setup + 6).to(tl.uint32, bitcast=True)
    s7 = zero + tl.load(setup + 7).to(tl.uint32, bitcast=True)
    s8 = zero + tl.load(setup + 8).to(tl.uint32, bitcast=True)
    s9 = zero + tl.load(setup + 9).to(tl.uint32, bitcast=True)
    s10 = zero + tl.load(setup + 10).to(tl.uint32, bitcast=True)
    s11 = zero + tl.load(setup + 11).to(tl.uint32, bitcast=True)
    s12 = block.to(tl.uint32) + tl.load(setup + 12).to(tl.uint32, bitcast=True)
    s13 = zero + tl.load(setup + 13).to(tl.uint32, bitcast=True)
    s14 = zero + tl.load(setup + 14).to(tl.uint32, bitcast=True)
    s15 = zero + tl.load(setup + 15).to(tl.uint32, bitcast=True)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, s14, s15
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    inside = block < blocks
    at = out + block.to(tl.int64) * 16
    tl.store(at + 0, (x0 + s0).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 1, (x1 + s1).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 2, (x2 + s2).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 3, (x3 + s3).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 4, (x4 + s4).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 5, (x5 + s5).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 6, (x6 + s6).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 7, (x7 + s7).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 8, (x8 + s8).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 9, (x9 + s9).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 10, (x10 + s10).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 11, (x11 + s11).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 12, (x12 + s12).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 13, (x13 + s13).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 14, (x14 + s14).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 15, (x15 + s15).to(tl.int32, bitcast=True), mask=inside)


def stream(key: bytes, nonce: int, blocks: int, device: torch.device) -> torch.Tensor:
    """`blocks` blocks of the key stream of `key` and `nonce`, as int64."""
    out = torch.empty(blocks * 16, dtype=torch.int32, device=device)
    if blocks:
        setup = bytearray(b"expand 32-byte k" + key + bytes(4) + nonce.to_bytes(12, "little"))
        state = torch.frombuffer(setup, dtype=torch.int32).to(device)
        with on(device):
            _kernel[(ceil_div(blocks, _PER_PROGRAM),)](state, out, blocks, size=_PER_PROGRAM)
        state.zero_()  # the key does not stay behind in freed memory
    return out.view(torch.int64)
