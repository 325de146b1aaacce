"""The GPU kernels of a step's costs and gradient. Plans are in ``_triton_plans.py``.

Everything that depends on the data (the number of real columns, when to stop) is decided on the device.
Buffers: ``costs`` and ``plans`` are ``(2, n, width)``; entry 0 is the cross problem, entry 1 the self
problem. Columns from the number of real ones on are neither written nor read.
"""

from __future__ import annotations

from dpsinkhorn.kernels.launch import AVAILABLE

__all__: list[str] = []

if AVAILABLE:
    from dpsinkhorn.kernels.launch import tl, triton

    __all__ += ["costs_kernel", "gradient_kernel"]

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _tidy(pixels):  # type: ignore[no-untyped-def]
        """NaN to 0, everything else into [-1, 1]."""
        pixels = tl.where(pixels == pixels, pixels, 0.0)
        return tl.minimum(tl.maximum(pixels, -1.0), 1.0)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _label_differences(first, second, classes):  # type: ignore[no-untyped-def]
        """In how many entries the one-hot labels differ; a label that is no class has none set."""
        first_set = (first >= 0) & (first < classes)
        second_set = (second >= 0) & (second < classes)
        both = first_set & second_set & (first == second)
        return tl.where(both, 0.0, first_set.to(tl.float32) + second_set.to(tl.float32))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def costs_kernel(  # type: ignore[no-untyped-def]
        x,
        y,
        x_labels,
        y_labels,
        count,
        costs,
        l1_weight,
        label_cost,  # cost of one differing entry of the one-hot labels
        CLASSES: tl.constexpr,
        SQUARED: tl.constexpr,
        N: tl.constexpr,
        RESAMPLED: tl.constexpr,
        CAPACITY: tl.constexpr,
        WIDTH: tl.constexpr,
        D: tl.constexpr,
        ROWS: tl.constexpr,  # of a tile
        COLUMNS: tl.constexpr,  # of a tile
        PIXELS: tl.constexpr,  # taken at a time
    ):
        """A program per tile of a cost matrix; its last grid axis is the problem."""
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        own = tl.program_id(2)  # 0 or 1
        cross_columns = tl.minimum(tl.load(count).to(tl.int32), CAPACITY) * (1 - own)
        own_columns = N * own
        columns = cross_columns + own_columns
        if tl.program_id(1) * COLUMNS < columns:
            row_there = i < N
            cross_there = j < cross_columns
            own_there = j < own_columns
            total = tl.zeros([ROWS, COLUMNS, PIXELS], dtype=tl.float32)
            for start in tl.static_range(0, D, PIXELS):
                k = start + tl.arange(0, PIXELS)
                k_there = (k < D)[None, None, :]
                a = tl.load(
                    x + i[:, None, None] * D + k[None, None, :],
                    mask=row_there[:, None, None] & k_there,
                    other=0.0,
                )
                # One of the two loads is masked off as a whole: cheaper than a branch.
                b = tl.load(
                    y + j[None, :, None] * D + k[None, None, :],
                    mask=cross_there[None, :, None] & k_there,
                    other=0.0,
                ) + tl.load(
                    x + (j + RESAMPLED)[None, :, None] * D + k[None, None, :],
                    mask=own_there[None, :, None] & k_there,
                    other=0.0,
                )
                difference = _tidy(a) - _tidy(b)
                if SQUARED:
                    total += difference * difference
                total += l1_weight * tl.abs(difference)
            cost = tl.sum(total, axis=2)
            if CLASSES > 0:
                first = tl.load(x_labels + i, mask=row_there, other=0)
                second = tl.load(y_labels + j, mask=cross_there, other=0)
                second += tl.load(x_labels + j + RESAMPLED, mask=own_there, other=0)
                cost += label_cost * _label_differences(first[:, None], second[None, :], CLASSES)
            at = costs + own * N * WIDTH + i[:, None] * WIDTH + j[None, :]
            tl.store(at, cost, mask=row_there[:, None] & (j < columns)[None, :])

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _weighted(here, points, weights, k, k_there, l1_weight, SQUARED: tl.constexpr):  # type: ignore[no-untyped-def]
        """Terms w_j * grad c(here, point_j) of a block of points. Points of no weight are not read."""
        there = (weights != 0.0)[:, None] & k_there[None, :]
        other = _tidy(tl.load(points + k[None, :], mask=there, other=0.0))
        difference = here[None, :] - other
        slope = tl.where(difference > 0, l1_weight, tl.where(difference < 0, -l1_weight, 0.0))
        if SQUARED:
            slope += 2.0 * difference
        return weights[:, None] * slope

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def gradient_kernel(  # type: ignore[no-untyped-def]
        x,
        y,
        plans,
        again,  # the self problem's plan once more, or another one, for the gradient in its second points
        count,
        out,
        l1_weight,
        SQUARED: tl.constexpr,
        N: tl.constexpr,
        RESAMPLED: tl.constexpr,
        CAPACITY: tl.constexpr,
        WIDTH: tl.constexpr,
        D: tl.constexpr,
        POINTS: tl.constexpr,  # taken at a time
        PIXELS: tl.constexpr,  # of a program
    ):
        """A program per row of the gradient and block of pixels.

        Row i has 2 Σ_j P_ij ∇c(x_i, y_j), less Σ_j Q_ij ∇c(x_i, b_j), where i < n, and less
        Σ_l R_lk ∇c(b_k, a_l) with k = i - n', where that is not negative; Q and R are mostly the same.
        """
        i = tl.program_id(0)
        k = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
        k_there = k < D
        columns = tl.minimum(tl.load(count).to(tl.int32), CAPACITY)
        here = _tidy(tl.load(x + i * D + k, mask=k_there, other=0.0))
        own = plans + N * WIDTH
        total = tl.zeros([POINTS, PIXELS], dtype=tl.float32)
        for start in range(0, WIDTH, POINTS):
            j = start + tl.arange(0, POINTS)
            cross = 2.0 * tl.load(plans + i * WIDTH + j, mask=(j < columns) & (i < N), other=0.0)
            total += _weighted(here, y + j[:, None] * D, cross, k, k_there, l1_weight, SQUARED)
            if start < N:
                first = tl.load(own + i * WIDTH + j, mask=(j < N) & (i < N), other=0.0)
                second = tl.load(
                    again + j * WIDTH + (i - RESAMPLED), mask=(j < N) & (i >= RESAMPLED), other=0.0
                )
                b = x + (j + RESAMPLED)[:, None] * D
                a = x + j[:, None] * D
                total -= _weighted(here, b, first, k, k_there, l1_weight, SQUARED)
                total -= _weighted(here, a, second, k, k_there, l1_weight, SQUARED)
        gradient = tl.sum(total, axis=0)
        gradient = tl.where(tl.abs(gradient) < float("inf"), gradient, 0.0)  # NaN is not below infinity
        tl.store(out + i * D + k, gradient, mask=k_there)
