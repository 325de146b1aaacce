/* Costs between points and their plan-weighted gradients, for one floating type (REAL) and one instruction
 * set. Distances are sums of differences, so nothing cancels; at most STRETCH terms are added up in the type
 * itself, and these sums are added in float64. */

/* Squared and absolute distances of one x to four y over one stretch of the dimensions. */
static inline void REAL_NAME(add_distances)(const REAL *restrict x, const REAL *const *y, int64_t length,
                                            int squared, int absolute, double *restrict squares,
                                            double *restrict sums)
{
    const REAL *restrict y0 = y[0], *restrict y1 = y[1], *restrict y2 = y[2], *restrict y3 = y[3];
    REAL q0 = 0, q1 = 0, q2 = 0, q3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    if (squared && absolute) {
#pragma omp simd reduction(+ : q0, q1, q2, q3, s0, s1, s2, s3)
        for (int64_t k = 0; k < length; k++) {
            const REAL d0 = x[k] - y0[k], d1 = x[k] - y1[k], d2 = x[k] - y2[k], d3 = x[k] - y3[k];
            q0 += d0 * d0, q1 += d1 * d1, q2 += d2 * d2, q3 += d3 * d3;
            s0 += REAL_ABS(d0), s1 += REAL_ABS(d1), s2 += REAL_ABS(d2), s3 += REAL_ABS(d3);
        }
    } else if (squared) {
#pragma omp simd reduction(+ : q0, q1, q2, q3)
        for (int64_t k = 0; k < length; k++) {
            const REAL d0 = x[k] - y0[k], d1 = x[k] - y1[k], d2 = x[k] - y2[k], d3 = x[k] - y3[k];
            q0 += d0 * d0, q1 += d1 * d1, q2 += d2 * d2, q3 += d3 * d3;
        }
    } else {
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (int64_t k = 0; k < length; k++) {
            const REAL d0 = x[k] - y0[k], d1 = x[k] - y1[k], d2 = x[k] - y2[k], d3 = x[k] - y3[k];
            s0 += REAL_ABS(d0), s1 += REAL_ABS(d1), s2 += REAL_ABS(d2), s3 += REAL_ABS(d3);
        }
    }
    squares[0] += q0, squares[1] += q1, squares[2] += q2, squares[3] += q3;
    sums[0] += s0, sums[1] += s1, sums[2] += s2, sums[3] += s3;
}

/* out[i, j] = squared * |x_i - y_j|^2 + l1_weight * |x_i - y_j|_1, with squared 0 or 1. */
static void REAL_NAME(pairwise)(const REAL *x, const REAL *y, REAL *out, int64_t n, int64_t m, int64_t d,
                                int squared, double l1_weight)
{
    const int64_t stretches = (d + STRETCH - 1) / STRETCH;
    const int64_t stretch = ((d + stretches - 1) / stretches + 15) / 16 * 16;
    const int64_t fit = TILE_BYTES / (d * (int64_t)sizeof(REAL)) / 4 * 4, rows_of_y = fit < 4 ? 4 : fit;
    for (int64_t tile = 0; tile < m; tile += rows_of_y) { /* they stay in the cache */
        const int64_t tile_end = tile + rows_of_y < m ? tile + rows_of_y : m;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = tile; j < tile_end; j += 4) {
                const int64_t width = j + 4 < tile_end ? 4 : tile_end - j;
                double squares[4] = {0}, sums[4] = {0};
                for (int64_t at = 0; at < d; at += stretch) {
                    const int64_t length = at + stretch < d ? stretch : d - at;
                    const REAL *rows[4];
                    for (int64_t k = 0; k < 4; k++)
                        rows[k] = y + (j + (k < width ? k : 0)) * d + at;
                    REAL_NAME(add_distances)
                    (x + i * d + at, rows, length, squared, l1_weight != 0.0, squares, sums);
                }
                for (int64_t k = 0; k < width; k++)
                    out[i * m + j + k] = (REAL)(squares[k] + l1_weight * sums[k]);
            }
        }
    }
}

#define SLOPE(v) (twice * (v) + ((v) != 0 ? REAL_COPYSIGN(up, (v)) : 0))

/* out[i] = sum_j plan[i, j] (2 squared (x_i - y_j) + l1_weight sign(x_i - y_j)), with sign(0) = 0, over the
 * entries of the plan that are not below the rounding of their row's sum. index and weight hold m + 4 each. */
static void REAL_NAME(gradient)(const REAL *x, const REAL *y, const REAL *plan, REAL *out, int64_t n,
                                int64_t m, int64_t d, int squared, double l1_weight, int32_t *index,
                                REAL *weight)
{
    const REAL twice = squared ? 2 : 0, up = (REAL)l1_weight;
    for (int64_t i = 0; i < n; i++) {
        double total = 0.0;
        REAL floor;
        int64_t count = 0;
        for (int64_t j = 0; j < m; j++)
            total += plan[i * m + j];
        floor = (REAL)(total * REAL_EPS / (double)m);
        for (int64_t j = 0; j < m; j++) {
            index[count] = (int32_t)j;
            weight[count] = plan[i * m + j];
            count += plan[i * m + j] > floor;
        }
        for (int64_t k = 0; k < 4; k++)
            index[count + k] = 0, weight[count + k] = 0;
        for (int64_t at = 0; at < d; at += STRETCH) {
            const int64_t length = at + STRETCH < d ? STRETCH : d - at;
            const REAL *restrict from = x + i * d + at;
            double sums[STRETCH] = {0};
            for (int64_t first = 0; first < count; first += 32) {
                const int64_t last = first + 32 < count ? first + 32 : count;
                REAL part[STRETCH] = {0};
                for (int64_t edge = first; edge < last; edge += 4) { /* weights beyond count are zero */
                    const REAL *restrict to0 = y + (int64_t)index[edge] * d + at;
                    const REAL *restrict to1 = y + (int64_t)index[edge + 1] * d + at;
                    const REAL *restrict to2 = y + (int64_t)index[edge + 2] * d + at;
                    const REAL *restrict to3 = y + (int64_t)index[edge + 3] * d + at;
                    const REAL w0 = weight[edge], w1 = weight[edge + 1];
                    const REAL w2 = weight[edge + 2], w3 = weight[edge + 3];
#pragma omp simd
                    for (int64_t k = 0; k < length; k++) {
                        const REAL d0 = from[k] - to0[k], d1 = from[k] - to1[k];
                        const REAL d2 = from[k] - to2[k], d3 = from[k] - to3[k];
                        part[k] += (w0 * SLOPE(d0) + w1 * SLOPE(d1)) + (w2 * SLOPE(d2) + w3 * SLOPE(d3));
                    }
                }
#pragma omp simd
                for (int64_t k = 0; k < length; k++)
                    sums[k] += part[k];
            }
#pragma omp simd
            for (int64_t k = 0; k < length; k++)
                out[i * d + at + k] = (REAL)sums[k];
        }
    }
}

#undef SLOPE
