"""The four GPU kernels of a fused BatchNorm and activation. Host code is in ``norm.py``.

Images are a matrix of ``count`` rows (pixels of all images) and C channels, row after row in memory. A tile
is ROWS rows of COLUMNS neighbouring channels. The first axis of a grid goes over the channels, the second
over the rows: its programs take every so many-th tile.

Two kernels sum, and leave partial results, ``(2, programs of the second axis, C)``. Every program of the
kernel that comes next adds up those of its own channels, all in the same fixed order: same input, same
bits. That is less work than a launch in between, and no program waits for another.

With OVERLAP the second kernel of a pair starts while the first one runs, and waits, before it reads partial
results, until all of the first one's writes are there. What it reads before that must have been written
before the first one started; so the first one must be launched the ordinary way.
"""

from __future__ import annotations

from dpsinkhorn.kernels.launch import jit, tl


@jit
def _channels(COLUMNS: tl.constexpr):
    """Those of the program."""
    return tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)


@jit
def _per_channel(at, C: tl.constexpr, COLUMNS: tl.constexpr):
    """A number per channel of the program, 0 where there is none."""
    c = _channels(COLUMNS)
    return tl.load(at + c, mask=c < C, other=0.0).to(tl.float32)


@jit
def _keep(at, values, C: tl.constexpr, COLUMNS: tl.constexpr):
    """Store a number per channel of the program."""
    c = _channels(COLUMNS)
    tl.store(at + c, values, mask=c < C)


@jit
def _row_there(tile, count, ROWS: tl.constexpr):
    row = tile * ROWS + tl.arange(0, ROWS)
    return (row >= 0) & (row < count)  # there is no tile before the first


@jit
def _there(tile, count, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    there = _row_there(tile, count, ROWS)[:, None]
    if C % COLUMNS != 0:
        there = there & (_channels(COLUMNS) < C)[None, :]
    return there


@jit
def _at(x, tile, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    inside = tl.arange(0, ROWS)[:, None] * C + _channels(COLUMNS)[None, :]
    return x + tile.to(tl.int64) * (ROWS * C) + inside


@jit
def _load(x, tile, count, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """A tile, 0 where nothing is there."""
    there = _there(tile, count, C, COLUMNS, ROWS)
    return tl.load(_at(x, tile, C, COLUMNS, ROWS), mask=there, other=0.0)


@jit
def _store(y, values, tile, count, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    there = _there(tile, count, C, COLUMNS, ROWS)
    tl.store(_at(y, tile, C, COLUMNS, ROWS), values.to(y.dtype.element_ty), mask=there)


@jit
def _sum_both(one, other):
    """Sums over the rows of two matrices; together they go through shared memory once."""
    return tl.split(tl.sum(tl.join(one, other), axis=0))


@jit
def _load_parts(parts, number, C: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr):
    """Both halves of the partial results, 0 beyond the last."""
    p = tl.arange(0, PARTS)
    c = _channels(COLUMNS)
    at = parts + p[:, None] * C + c[None, :]
    there = (p < number)[:, None]
    if C % COLUMNS != 0:
        there = there & (c < C)[None, :]
    one = tl.load(at, mask=there, other=0.0)
    return one, tl.load(at + number * C, mask=there, other=0.0)


@jit
def moments_kernel(
    x, parts, count, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, OVERLAP: tl.constexpr
):
    """Mean, and sum of squares about it, of each channel over the tiles of a program.

    Each place of the tile sums differences from what the program's first tile has there, and their
    squares. Few rows come by a place, so that little cancels, even where that first one is far from the
    others. The places are combined by Chan's formula, in differences from the program's first row: a
    large common offset does no harm.

    Tiles are taken from the last to the first: the last ones were written last, the first ones are read
    next, by `apply_kernel`, and both are then likely to be in the cache. Only the very last tile can
    have rows missing, so that after a program's first tile nothing is.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(1)
    number = tl.num_programs(1)
    last = (count + (ROWS - 1)) // ROWS - 1
    tile = last - part
    first = _load(x, tile, count, C, COLUMNS, ROWS)
    # Asked for two rounds before they are needed, so that memory always has something to do.
    ahead = _load(x, tile - number, count, C, COLUMNS, ROWS)
    later = _load(x, tile - 2 * number, count, C, COLUMNS, ROWS)
    origin = _per_channel(x + tile.to(tl.int64) * (ROWS * C), C, COLUMNS)
    there = _row_there(tile, count, ROWS)
    missing = tl.maximum((tile + 1) * ROWS - count, 0)
    base = tl.where(there[:, None], first.to(tl.float32), origin[None, :])
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    rounds = tile // number  # after the first
    tile -= number
    while tile >= 0:
        off = ahead.to(tl.float32) - base
        tile -= number
        ahead = later
        later = _load(x, tile - number, count, C, COLUMNS, ROWS)
        total += off
        squares += off * off
    seen = tl.where(there, 1.0, 0.0) + rounds  # rows that came by each place
    share = total * (1.0 / tl.maximum(seen, 1.0))[:, None]
    squares -= total * share
    off = base - origin[None, :] + share  # of each place's mean
    rows = ((rounds + 1) * ROWS - missing).to(tl.float32)
    middle = tl.sum(seen[:, None] * off, axis=0) / rows
    off -= middle[None, :]
    at = parts + part * C
    _keep(at, origin + middle, C, COLUMNS)
    _keep(at + number * C, tl.sum(squares + seen[:, None] * off * off, axis=0), C, COLUMNS)


@jit
def _statistics(
    parts, number, count, C: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, SUMMED: tl.constexpr
):
    """Mean, and sum of squares about it, of each channel, from those of the parts.

    Chan's formula in differences from the last part's mean. All of that one's tiles are full, so that
    what cancels is at most about as many times the result as there are parts, and hardly ever so much.
    """
    means, squares = _load_parts(parts, number, C, COLUMNS, PARTS)
    origin = _per_channel(parts + (number - 1) * C, C, COLUMNS)
    p = tl.arange(0, PARTS)
    tiles = (count + (SUMMED - 1)) // SUMMED
    rows = (tiles // number + tl.where(p < tiles % number, 1, 0)) * SUMMED  # of each part
    rows -= tl.where(p == 0, tiles * SUMMED - count, 0)  # which has the last tile
    rows = tl.where(p < number, rows, 0).to(tl.float32)[:, None]
    off = means - origin[None, :]
    share = rows * off
    total, about = _sum_both(share, squares + share * off)
    middle = total / count
    return origin + middle, about - total * middle


@jit
def apply_kernel(
    x, y, parts,
    statistics,  # (2, C): mean and 1 / standard deviation
    weight, bias, running_mean, running_var, batches, count,
    number,  # of parts
    slope, eps, momentum, TRACK: tl.constexpr, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr,  # number, rounded up to a power of 2
    SUMMED: tl.constexpr,  # rows of a tile of `moments_kernel`
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """y = activation(normalised x). The first program of each channel keeps statistics and moves the
    running ones on."""
    tile = tl.program_id(1)
    tiles = (count + (ROWS - 1)) // ROWS
    ahead = _load(x, tile, count, C, COLUMNS, ROWS)
    scale = _per_channel(weight, C, COLUMNS)
    shift = _per_channel(bias, C, COLUMNS)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    mean, squares = _statistics(parts, number, count, C, COLUMNS, PARTS, SUMMED)
    inverse = tl.rsqrt(squares / count + eps)
    if tile == 0:
        _keep(statistics, mean, C, COLUMNS)
        _keep(statistics + C, inverse, C, COLUMNS)
        if TRACK:
            before = _per_channel(running_mean, C, COLUMNS)
            _keep(running_mean, momentum * mean + (1.0 - momentum) * before, C, COLUMNS)
            before = _per_channel(running_var, C, COLUMNS)
            var = squares / (count - 1)
            _keep(running_var, momentum * var + (1.0 - momentum) * before, C, COLUMNS)
            if tl.program_id(0) == 0:
                tl.store(batches, tl.load(batches) + 1)
    scale *= inverse
    while tile < tiles:
        z = (ahead.to(tl.float32) - mean[None, :]) * scale[None, :] + shift[None, :]
        following = tile + tl.num_programs(1)
        ahead = _load(x, following, count, C, COLUMNS, ROWS)
        _store(y, tl.where(z > 0, z, z * slope), tile, count, C, COLUMNS, ROWS)
        tile = following


@jit
def sums_kernel(
    x, dy, parts, statistics, weight, bias, count, slope, C: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Sums of dz and of dz (x - mean) over the tiles of a program; z is before the activation.

    The order of tiles, and the loads ahead of their use, are as in `moments_kernel`.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(1)
    number = tl.num_programs(1)
    tile = (count + (ROWS - 1)) // ROWS - 1 - part
    ahead = _load(x, tile, count, C, COLUMNS, ROWS)
    dy_ahead = _load(dy, tile, count, C, COLUMNS, ROWS)
    later = _load(x, tile - number, count, C, COLUMNS, ROWS)
    dy_later = _load(dy, tile - number, count, C, COLUMNS, ROWS)
    mean = _per_channel(statistics, C, COLUMNS)
    scale = _per_channel(statistics + C, C, COLUMNS) * _per_channel(weight, C, COLUMNS)
    shift = _per_channel(bias, C, COLUMNS)
    plain = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    product = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    while tile >= 0:
        centred = ahead.to(tl.float32) - mean[None, :]
        dz = dy_ahead.to(tl.float32)  # 0 in rows that are not there
        tile -= number
        ahead = later
        dy_ahead = dy_later
        later = _load(x, tile - number, count, C, COLUMNS, ROWS)
        dy_later = _load(dy, tile - number, count, C, COLUMNS, ROWS)
        z = centred * scale[None, :] + shift[None, :]
        dz = tl.where(z > 0, dz, dz * slope)
        plain += dz
        product += dz * centred
    plain, product = _sum_both(plain, product)
    at = parts + part * C
    _keep(at, plain, C, COLUMNS)
    _keep(at + number * C, product, C, COLUMNS)


@jit
def norm_gradient_kernel(
    x, dy, dx, parts, statistics, weight, bias, weight_gradient, bias_gradient, count,
    number,  # of parts
    slope, C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr,  # number, rounded up to a power of 2
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """dx = scale (dz - mean of dz - x̂ mean of dz x̂), and, by the first program of each channel, the
    gradients of weight and bias."""
    tile = tl.program_id(1)
    tiles = (count + (ROWS - 1)) // ROWS
    ahead = _load(x, tile, count, C, COLUMNS, ROWS)
    dy_ahead = _load(dy, tile, count, C, COLUMNS, ROWS)
    mean = _per_channel(statistics, C, COLUMNS)
    inverse = _per_channel(statistics + C, C, COLUMNS)
    scale = inverse * _per_channel(weight, C, COLUMNS)
    shift = _per_channel(bias, C, COLUMNS)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    plain, product = _load_parts(parts, number, C, COLUMNS, PARTS)
    plain, product = _sum_both(plain, product)
    product *= inverse
    if tile == 0:
        _keep(weight_gradient, product, C, COLUMNS)
        _keep(bias_gradient, plain, C, COLUMNS)
    common = plain / count
    along = product * inverse / count
    while tile < tiles:
        centred = ahead.to(tl.float32) - mean[None, :]
        dz = dy_ahead.to(tl.float32)
        following = tile + tl.num_programs(1)
        ahead = _load(x, following, count, C, COLUMNS, ROWS)
        dy_ahead = _load(dy, following, count, C, COLUMNS, ROWS)
        z = centred * scale[None, :] + shift[None, :]
        dz = tl.where(z > 0, dz, dz * slope)
        dz = scale[None, :] * (dz - common[None, :] - along[None, :] * centred)
        _store(dx, dz, tile, count, C, COLUMNS, ROWS)
        tile = following
