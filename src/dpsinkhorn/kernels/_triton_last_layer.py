"""The three GPU kernels of a generator's last layer and its tanh. Host code is in ``last_layer.py``.

The layer is a 3 x 3 transposed convolution of stride 1 and padding 1, from C channels to OUT, of which the
middle OUT_HEIGHT x OUT_WIDTH pixels are kept: those that begin at (TOP, LEFT). It is a product of every pixel
with 9 OUT columns of weights (column ``tap * OUT + channel``, COLUMNS with padding), and a sum of the columns
of neighbouring pixels. Products are of numbers of the images' type if REDUCED, else of float32; sums are
float32.
"""

from __future__ import annotations

from dpsinkhorn.kernels.launch import AVAILABLE

__all__: list[str] = []

if AVAILABLE:
    from dpsinkhorn.kernels.launch import tl, triton

    __all__ += ["last_gradient_kernel", "last_kernel", "last_totals_kernel"]

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _tanh(z):  # type: ignore[no-untyped-def]
        """Within 1e-6 of it, relatively: a series where 1 - e would cancel."""
        near = tl.minimum(tl.maximum(z, -0.25), 0.25)
        square = near * near
        series = 62.0 / 2835.0
        series = series * square - 17.0 / 315.0
        series = series * square + 2.0 / 15.0
        series = series * square - 1.0 / 3.0
        series = near + near * square * series
        e = tl.exp(-2.0 * tl.abs(z))
        far = (1.0 - e) / (1.0 + e)
        return tl.where(tl.abs(z) < 0.25, series, tl.where(z < 0.0, -far, far))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _factor(values, REDUCED: tl.constexpr):  # type: ignore[no-untyped-def]
        return values if REDUCED else values.to(tl.float32)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _weight_at(  # type: ignore[no-untyped-def]
        c, j, OUT: tl.constexpr, S_C: tl.constexpr, S_OUT: tl.constexpr, S_Y: tl.constexpr, S_X: tl.constexpr
    ):
        """Where the weight of a channel and a column is, by the strides of (C, OUT, 3, 3)."""
        tap = j // OUT
        return c * S_C + (j % OUT) * S_OUT + (tap // 3) * S_Y + (tap % 3) * S_X

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def last_kernel(  # type: ignore[no-untyped-def]
        images,  # (n, HEIGHT, WIDTH, C)
        weight,
        bias,
        out,  # (n, OUT, OUT_HEIGHT, OUT_WIDTH)
        HEIGHT: tl.constexpr,
        WIDTH: tl.constexpr,
        OUT_HEIGHT: tl.constexpr,
        OUT_WIDTH: tl.constexpr,
        TOP: tl.constexpr,
        LEFT: tl.constexpr,
        C: tl.constexpr,
        OUT: tl.constexpr,
        S_C: tl.constexpr,
        S_OUT: tl.constexpr,
        S_Y: tl.constexpr,
        S_X: tl.constexpr,
        COLUMNS: tl.constexpr,
        BLOCK: tl.constexpr,  # channels of a product
        SIDE: tl.constexpr,
        REDUCED: tl.constexpr,
    ):
        """out = tanh(bias + the sum of shifted columns), a square of pixels per program.

        SIDE x SIDE pixels are read; those within, whose neighbours are all there, are written.
        """
        WITHIN: tl.constexpr = SIDE - 2
        ACROSS: tl.constexpr = (OUT_WIDTH + WITHIN - 1) // WITHIN
        SQUARES: tl.constexpr = (OUT_HEIGHT + WITHIN - 1) // WITHIN * ACROSS
        image = tl.program_id(0) // SQUARES
        square = tl.program_id(0) % SQUARES
        r = tl.arange(0, SIDE * SIDE)
        out_y = square // ACROSS * WITHIN + r // SIDE - 1
        out_x = square % ACROSS * WITHIN + r % SIDE - 1
        y = out_y + TOP
        x = out_x + LEFT
        there = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        at = images + ((image * HEIGHT + y) * WIDTH + x) * C
        j = tl.arange(0, COLUMNS)
        columns = tl.zeros([SIDE * SIDE, COLUMNS], dtype=tl.float32)
        for start in range(0, C, BLOCK):
            c = start + tl.arange(0, BLOCK)
            values = tl.load(
                at[:, None] + c[None, :], mask=there[:, None] & (c < C)[None, :], other=0.0
            )  # nothing comes from beyond the border
            taps = tl.load(
                weight + _weight_at(c[:, None], j[None, :], OUT, S_C, S_OUT, S_Y, S_X),
                mask=(c < C)[:, None] & (j < 9 * OUT)[None, :],
                other=0.0,
            )
            taps = _factor(taps.to(images.dtype.element_ty), REDUCED)
            columns = tl.dot(_factor(values, REDUCED), taps, columns, input_precision="ieee")
        # Column (dy, dx) of the pixel that lies (1 - dy, 1 - dx) further; in the rim of the square there may
        # be none, and what is read in its place is not written.
        tap = j // OUT
        source = r[:, None] + ((1 - tap // 3) * SIDE + 1 - tap % 3)[None, :]
        source = tl.minimum(tl.maximum(source, 0), SIDE * SIDE - 1)
        shifted = tl.gather(columns, source, axis=0)
        inner = (r // SIDE > 0) & (r // SIDE <= WITHIN) & (r % SIDE > 0) & (r % SIDE <= WITHIN)
        inner = inner & (out_y < OUT_HEIGHT) & (out_x < OUT_WIDTH)
        for channel in tl.static_range(OUT):
            z = tl.sum(tl.where(((j % OUT == channel) & (j < 9 * OUT))[None, :], shifted, 0.0), axis=1)
            z = _tanh(z + tl.load(bias + channel))
            to = out + ((image * OUT + channel) * OUT_HEIGHT + out_y) * OUT_WIDTH + out_x
            tl.store(to, z, mask=inner)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def last_gradient_kernel(  # type: ignore[no-untyped-def]
        images,
        weight,
        out,
        gradient,  # in out
        of_images,
        parts,
        count,  # pixels of all images
        HEIGHT: tl.constexpr,
        WIDTH: tl.constexpr,
        OUT_HEIGHT: tl.constexpr,
        OUT_WIDTH: tl.constexpr,
        TOP: tl.constexpr,
        LEFT: tl.constexpr,
        C: tl.constexpr,
        OUT: tl.constexpr,
        S_C: tl.constexpr,
        S_OUT: tl.constexpr,
        S_Y: tl.constexpr,
        S_X: tl.constexpr,
        COLUMNS: tl.constexpr,
        BLOCK: tl.constexpr,
        PIXELS: tl.constexpr,
        ROUNDS: tl.constexpr,
        REDUCED: tl.constexpr,
    ):
        """The gradient in images, BLOCK channels of a program's pixels, and its parts of the others.

        Parts are ``(programs, 9 OUT C + OUT)``: of weights, channels innermost, and of the bias.
        """
        part = tl.program_id(0)
        number = tl.num_programs(0)
        c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        j = tl.arange(0, COLUMNS)
        j_there = j < 9 * OUT
        tap = j // OUT
        c_there = c < C
        taps = tl.load(
            weight + _weight_at(c[None, :], j[:, None], OUT, S_C, S_OUT, S_Y, S_X),
            mask=c_there[None, :] & j_there[:, None],
            other=0.0,
        )
        taps = _factor(taps.to(images.dtype.element_ty), REDUCED)
        of_weight = tl.zeros([COLUMNS, BLOCK], dtype=tl.float32)
        of_bias = tl.zeros([PIXELS, COLUMNS], dtype=tl.float32)
        for turn in range(ROUNDS):  # of a number known beforehand, so that loads run ahead of their use
            p = (part + turn * number) * PIXELS + tl.arange(0, PIXELS)
            image = p // (HEIGHT * WIDTH)
            out_y = (p // WIDTH % HEIGHT)[:, None] + (tap // 3 - 1 - TOP)[None, :]
            out_x = (p % WIDTH)[:, None] + (tap % 3 - 1 - LEFT)[None, :]
            there = (out_y >= 0) & (out_y < OUT_HEIGHT) & (out_x >= 0) & (out_x < OUT_WIDTH)
            there = there & (p < count)[:, None] & j_there[None, :]
            at = ((image[:, None] * OUT + (j % OUT)[None, :]) * OUT_HEIGHT + out_y) * OUT_WIDTH + out_x
            activated = tl.load(out + at, mask=there, other=0.0)
            dz = tl.load(gradient + at, mask=there, other=0.0) * (1.0 - activated * activated)
            of_bias += dz
            columns = _factor(dz.to(images.dtype.element_ty), REDUCED)
            inside = p[:, None] * C + c[None, :]
            p_there = (p < count)[:, None] & c_there[None, :]
            values = _factor(tl.load(images + inside, mask=p_there, other=0.0), REDUCED)
            of_weight = tl.dot(tl.trans(columns), values, of_weight, input_precision="ieee")
            dx = tl.dot(columns, taps, input_precision="ieee")
            tl.store(of_images + inside, dx.to(of_images.dtype.element_ty), mask=p_there)
        to = parts + part * (9 * OUT * C + OUT)
        there = c_there[None, :] & j_there[:, None]
        tl.store(to + j[:, None] * C + c[None, :], of_weight, mask=there)
        if tl.program_id(1) == 0:  # every output is the middle one of the nine of one pixel
            tl.store(to + 9 * OUT * C + j % OUT, tl.sum(of_bias, axis=0), mask=tap == 4)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def last_totals_kernel(  # type: ignore[no-untyped-def]
        parts,
        of_weight,  # laid out as the weight
        of_bias,
        number,  # of parts
        C: tl.constexpr,
        OUT: tl.constexpr,
        S_C: tl.constexpr,
        S_OUT: tl.constexpr,
        S_Y: tl.constexpr,
        S_X: tl.constexpr,
        PARTS: tl.constexpr,
        ENTRIES: tl.constexpr,  # of a program
    ):
        WEIGHTS: tl.constexpr = 9 * OUT * C
        p = tl.arange(0, PARTS)
        e = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
        there = (p < number)[:, None] & (e < WEIGHTS + OUT)[None, :]
        values = tl.load(parts + p[:, None] * (WEIGHTS + OUT) + e[None, :], mask=there, other=0.0)
        total = tl.sum(values, axis=0)
        to = of_weight + _weight_at(e % C, e // C, OUT, S_C, S_OUT, S_Y, S_X)
        tl.store(to, total.to(of_weight.dtype.element_ty), mask=e < WEIGHTS)
        tl.store(of_bias + (e - WEIGHTS), total, mask=(e >= WEIGHTS) & (e < WEIGHTS + OUT))
