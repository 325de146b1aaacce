"""The six GPU kernels of a fused BatchNorm and activation. Host code is in ``norm.py``.

Images are a matrix of ``count`` rows (pixels of all images) and C channels, row after row in memory. A tile
is ROWS whole rows, padded to COLUMNS channels. Partial results, ``(2, programs, C)``, are combined by a
kernel of their own in a fixed order: same input, same bits.
"""

from __future__ import annotations

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:  # torch for the CPU comes without it, and this module must import everywhere
    AVAILABLE = False
else:
    AVAILABLE = True

__all__ = ["AVAILABLE"]

if AVAILABLE:
    __all__ += [
        "apply_kernel",
        "moments_kernel",
        "norm_gradient_kernel",
        "statistics_kernel",
        "sums_kernel",
        "totals_kernel",
    ]

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _channels(at, C: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        """A number per channel, 0 where there is none."""
        c = tl.arange(0, COLUMNS)
        return tl.load(at + c, mask=c < C, other=0.0).to(tl.float32)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _row_there(tile, count, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tile * ROWS + tl.arange(0, ROWS)
        return (row >= 0) & (row < count)  # there is no tile before the first

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _at(x, tile, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
        inside = tl.arange(0, ROWS)[:, None] * C + tl.arange(0, COLUMNS)[None, :]
        return x + tile.to(tl.int64) * (ROWS * C) + inside

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _load(x, tile, count, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
        """A tile, 0 where nothing is there."""
        there = _row_there(tile, count, ROWS)[:, None] & (tl.arange(0, COLUMNS) < C)[None, :]
        return tl.load(_at(x, tile, C, COLUMNS, ROWS), mask=there, other=0.0)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _store(y, values, tile, count, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
        there = _row_there(tile, count, ROWS)[:, None] & (tl.arange(0, COLUMNS) < C)[None, :]
        tl.store(_at(y, tile, C, COLUMNS, ROWS), values.to(y.dtype.element_ty), mask=there)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def moments_kernel(  # type: ignore[no-untyped-def]
        x,
        parts,
        count,
        C: tl.constexpr,
        COLUMNS: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """Mean, and sum of squares about it, of each channel over the tiles of a program.

        Welford's recurrence runs in each place of the tile; the places are combined by Chan's formula.
        Both see differences from the program's first row: a large common offset does no harm.

        Tiles are taken from the last to the first: the last ones were written last, the first ones are read
        next, by `apply_kernel`, and both are then likely to be in the cache.
        """
        part = tl.program_id(0)
        number = tl.num_programs(0)
        tile = (count + (ROWS - 1)) // ROWS - 1 - part
        origin = _channels(x + tile.to(tl.int64) * (ROWS * C), C, COLUMNS)
        seen = tl.zeros([ROWS], dtype=tl.float32)  # rows that came by each place
        mean = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        squares = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        ahead = _load(x, tile, count, C, COLUMNS, ROWS)
        while tile >= 0:
            values = ahead.to(tl.float32)
            # Asked for a round before it is needed, so that memory always has something to do.
            ahead = _load(x, tile - number, count, C, COLUMNS, ROWS)
            there = _row_there(tile, count, ROWS)
            seen += tl.where(there, 1.0, 0.0)
            delta = tl.where(there[:, None], values - origin[None, :] - mean, 0.0)
            step = delta * (1.0 / tl.maximum(seen, 1.0))[:, None]
            mean += step
            squares += delta * (delta - step)
            tile -= number
        middle = tl.sum(seen[:, None] * mean, axis=0) / tl.sum(seen, axis=0)
        off = mean - middle[None, :]
        squares += seen[:, None] * off * off
        c = tl.arange(0, COLUMNS)
        at = parts + part * C + c
        tl.store(at, origin + middle, mask=c < C)
        tl.store(at + number * C, tl.sum(squares, axis=0), mask=c < C)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def statistics_kernel(  # type: ignore[no-untyped-def]
        parts,
        statistics,  # (2, C): mean and 1 / standard deviation
        running_mean,
        running_var,
        batches,
        count,
        number,  # of parts
        eps,
        momentum,
        TRACK: tl.constexpr,
        C: tl.constexpr,
        ROWS: tl.constexpr,  # of a tile
        PARTS: tl.constexpr,
        CHANNELS: tl.constexpr,  # of a program
    ):
        """Chan's formula over all parts at once, and the running statistics."""
        p = tl.arange(0, PARTS)
        c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        c_there = c < C
        there = (p < number)[:, None] & c_there[None, :]
        at = parts + p[:, None] * C + c[None, :]
        means = tl.load(at, mask=there, other=0.0)
        squares = tl.load(at + number * C, mask=there, other=0.0)
        origin = tl.load(parts + c, mask=c_there, other=0.0)
        tiles = (count + (ROWS - 1)) // ROWS
        rows = (tiles - p + (number - 1)) // number * ROWS  # of each part
        rows -= tl.where(p == 0, tiles * ROWS - count, 0)  # which has the last tile
        rows = tl.where(p < number, rows, 0).to(tl.float32)[:, None]
        mean = origin + tl.sum(rows * (means - origin[None, :]), axis=0) / count
        off = means - mean[None, :]
        squares = tl.sum(squares + rows * off * off, axis=0)
        tl.store(statistics + c, mean, mask=c_there)
        tl.store(statistics + C + c, tl.rsqrt(squares / count + eps), mask=c_there)
        if TRACK:
            before = tl.load(running_mean + c, mask=c_there, other=0.0)
            tl.store(running_mean + c, momentum * mean + (1.0 - momentum) * before, mask=c_there)
            before = tl.load(running_var + c, mask=c_there, other=0.0)
            var = squares / (count - 1)
            tl.store(running_var + c, momentum * var + (1.0 - momentum) * before, mask=c_there)
            if tl.program_id(0) == 0:
                tl.store(batches, tl.load(batches) + 1)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def apply_kernel(  # type: ignore[no-untyped-def]
        x,
        y,
        statistics,
        weight,
        bias,
        count,
        slope,
        C: tl.constexpr,
        COLUMNS: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """y = activation(normalised x), a tile per program."""
        tile = tl.program_id(0)
        values = _load(x, tile, count, C, COLUMNS, ROWS).to(tl.float32)
        mean = _channels(statistics, C, COLUMNS)
        scale = _channels(statistics + C, C, COLUMNS) * _channels(weight, C, COLUMNS)
        shift = _channels(bias, C, COLUMNS)
        z = (values - mean[None, :]) * scale[None, :] + shift[None, :]
        _store(y, tl.where(z > 0, z, z * slope), tile, count, C, COLUMNS, ROWS)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def sums_kernel(  # type: ignore[no-untyped-def]
        x,
        dy,
        parts,
        statistics,
        weight,
        bias,
        count,
        slope,
        C: tl.constexpr,
        COLUMNS: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """Sums of dz and of dz (x - mean) over the tiles of a program; z is before the activation.

        The order of tiles, and the loads ahead of their use, are as in `moments_kernel`.
        """
        part = tl.program_id(0)
        number = tl.num_programs(0)
        tile = (count + (ROWS - 1)) // ROWS - 1 - part
        mean = _channels(statistics, C, COLUMNS)
        scale = _channels(statistics + C, C, COLUMNS) * _channels(weight, C, COLUMNS)
        shift = _channels(bias, C, COLUMNS)
        plain = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        ahead = _load(x, tile, count, C, COLUMNS, ROWS)
        dy_ahead = _load(dy, tile, count, C, COLUMNS, ROWS)
        while tile >= 0:
            centred = ahead.to(tl.float32) - mean[None, :]
            dz = dy_ahead.to(tl.float32)  # 0 in rows that are not there
            tile -= number
            ahead = _load(x, tile, count, C, COLUMNS, ROWS)
            dy_ahead = _load(dy, tile, count, C, COLUMNS, ROWS)
            z = centred * scale[None, :] + shift[None, :]
            dz = tl.where(z > 0, dz, dz * slope)
            plain += dz
            product += dz * centred
        c = tl.arange(0, COLUMNS)
        at = parts + part * C + c
        tl.store(at, tl.sum(plain, axis=0), mask=c < C)
        tl.store(at + number * C, tl.sum(product, axis=0), mask=c < C)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def totals_kernel(  # type: ignore[no-untyped-def]
        parts,
        statistics,
        weight_gradient,
        bias_gradient,
        number,  # of parts
        C: tl.constexpr,
        PARTS: tl.constexpr,
        CHANNELS: tl.constexpr,  # of a program
    ):
        p = tl.arange(0, PARTS)
        c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        c_there = c < C
        there = (p < number)[:, None] & c_there[None, :]
        at = parts + p[:, None] * C + c[None, :]
        plain = tl.load(at, mask=there, other=0.0)
        product = tl.load(at + number * C, mask=there, other=0.0)
        inverse = tl.load(statistics + C + c, mask=c_there, other=0.0)
        tl.store(bias_gradient + c, tl.sum(plain, axis=0), mask=c_there)
        tl.store(weight_gradient + c, tl.sum(product, axis=0) * inverse, mask=c_there)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def norm_gradient_kernel(  # type: ignore[no-untyped-def]
        x,
        dy,
        dx,
        statistics,
        weight,
        bias,
        weight_gradient,
        bias_gradient,
        count,
        slope,
        C: tl.constexpr,
        COLUMNS: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """dx = scale (dz - mean of dz - x̂ mean of dz x̂), a tile per program."""
        tile = tl.program_id(0)
        values = _load(x, tile, count, C, COLUMNS, ROWS).to(tl.float32)
        dz = _load(dy, tile, count, C, COLUMNS, ROWS).to(tl.float32)
        mean = _channels(statistics, C, COLUMNS)
        inverse = _channels(statistics + C, C, COLUMNS)
        scale = inverse * _channels(weight, C, COLUMNS)
        shift = _channels(bias, C, COLUMNS)
        common = _channels(bias_gradient, C, COLUMNS) / count
        along = _channels(weight_gradient, C, COLUMNS) * inverse / count
        centred = values - mean[None, :]
        z = centred * scale[None, :] + shift[None, :]
        dz = tl.where(z > 0, dz, dz * slope)
        dz = scale[None, :] * (dz - common[None, :] - along[None, :] * centred)
        _store(dx, dz, tile, count, C, COLUMNS, ROWS)
