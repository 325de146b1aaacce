/* Costs between points and their plan-weighted gradients, for one floating type (REAL) and one instruction
 * set. Distances are sums of differences, so nothing cancels; at most STRETCH terms are added up in the type
 * itself, and these sums are added in float64. */

/* Absolute, and perhaps squared, distances of one x to four y over one stretch of the dimensions. */
static inline void REAL_NAME(add_distances)(const REAL *restrict x, const REAL *const *y, int64_t length,
                                            int squared, double *restrict squares,
                                            double *restrict sums)
{
    const REAL *restrict y0 = y[0], *restrict y1 = y[1], *restrict y2 = y[2], *restrict y3 = y[3];
    REAL q0 = 0, q1 = 0, q2 = 0, q3 = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    if (squared) {
#pragma omp simd reduction(+ : q0, q1, q2, q3, s0, s1, s2, s3)
        for (int64_t k = 0; k < length; k++) {
            const REAL d0 = x[k] - y0[k], d1 = x[k] - y1[k], d2 = x[k] - y2[k], d3 = x[k] - y3[k];
            q0 += d0 * d0, q1 += d1 * d1, q2 += d2 * d2, q3 += d3 * d3;
            s0 += fabs(d0), s1 += fabs(d1), s2 += fabs(d2), s3 += fabs(d3);
        }
    } else {
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (int64_t k = 0; k < length; k++) {
            const REAL d0 = x[k] - y0[k], d1 = x[k] - y1[k], d2 = x[k] - y2[k], d3 = x[k] - y3[k];
            s0 += fabs(d0), s1 += fabs(d1), s2 += fabs(d2), s3 += fabs(d3);
        }
    }
    squares[0] += q0, squares[1] += q1, squares[2] += q2, squares[3] += q3;
    sums[0] += s0, sums[1] += s1, sums[2] += s2, sums[3] += s3;
}

/* Squared distances of four x to four y over one stretch of the dimensions. */
static inline void REAL_NAME(add_squares)(const REAL *const *x, const REAL *const *y, int64_t length,
                                          double *restrict squares)
{
    const REAL *restrict x0 = x[0], *restrict x1 = x[1], *restrict x2 = x[2], *restrict x3 = x[3];
    const REAL *restrict y0 = y[0], *restrict y1 = y[1], *restrict y2 = y[2], *restrict y3 = y[3];
#define PAIR(r, k) q##r##k += (x##r[i] - y##k[i]) * (x##r[i] - y##k[i])
#define PAIRS(r) PAIR(r, 0), PAIR(r, 1), PAIR(r, 2), PAIR(r, 3)
    REAL q00 = 0, q01 = 0, q02 = 0, q03 = 0, q10 = 0, q11 = 0, q12 = 0, q13 = 0;
    REAL q20 = 0, q21 = 0, q22 = 0, q23 = 0, q30 = 0, q31 = 0, q32 = 0, q33 = 0;
#pragma omp simd reduction(+ : q00, q01, q02, q03, q10, q11, q12, q13, q20, q21, q22, q23, q30, q31, q32, q33)
    for (int64_t i = 0; i < length; i++)
        PAIRS(0), PAIRS(1), PAIRS(2), PAIRS(3);
#undef PAIR
#undef PAIRS
    squares[0] += q00, squares[1] += q01, squares[2] += q02, squares[3] += q03;
    squares[4] += q10, squares[5] += q11, squares[6] += q12, squares[7] += q13;
    squares[8] += q20, squares[9] += q21, squares[10] += q22, squares[11] += q23;
    squares[12] += q30, squares[13] += q31, squares[14] += q32, squares[15] += q33;
}

/* The costs below, squared distances alone. */
static void REAL_NAME(squares)(const REAL *x, const REAL *y, REAL *out, int64_t n, int64_t m, int64_t d,
                               int64_t stretch, int64_t rows_of_y)
{
    for (int64_t tile = 0; tile < m; tile += rows_of_y) {
        const int64_t tile_end = tile + rows_of_y < m ? tile + rows_of_y : m;
        for (int64_t i = 0; i < n; i += 4) {
            for (int64_t j = tile; j < tile_end; j += 4) {
                double squares[16] = {0};
                for (int64_t at = 0; at < d; at += stretch) {
                    const REAL *from[4], *to[4];
                    for (int64_t k = 0; k < 4; k++) {
                        from[k] = x + (i + k < n ? i + k : i) * d + at;
                        to[k] = y + (j + k < tile_end ? j + k : j) * d + at;
                    }
                    REAL_NAME(add_squares)(from, to, at + stretch < d ? stretch : d - at, squares);
                }
                for (int64_t k = 0; k < 16; k++)
                    if (i + k / 4 < n && j + k % 4 < tile_end)
                        out[(i + k / 4) * m + j + k % 4] = (REAL)squares[k];
            }
        }
    }
}

/* The costs below, of few dimensions: WIDTH points y side by side, all of them by the same operations. */
static void REAL_NAME(pairwise_flat)(const REAL *x, const REAL *y, REAL *out, int64_t n, int64_t m, int64_t d,
                                     int squared, double l1_weight)
{
    const REAL twice = squared ? 1 : 0, up = (REAL)l1_weight;
    REAL turned[FEW * WIDTH];
    for (int64_t tile = 0; tile < m; tile += WIDTH) {
        const int64_t width = tile + WIDTH < m ? WIDTH : m - tile;
        for (int64_t k = 0; k < d; k++)
            for (int64_t j = 0; j < WIDTH; j++)
                turned[k * WIDTH + j] = j < width ? y[(tile + j) * d + k] : 0;
        for (int64_t i = 0; i < n; i++) {
            REAL costs[WIDTH] = {0};
            for (int64_t k = 0; k < d; k++) {
                const REAL from = x[i * d + k];
#pragma omp simd
                for (int64_t j = 0; j < WIDTH; j++) {
                    const REAL away = from - turned[k * WIDTH + j];
                    costs[j] += twice * away * away + up * fabs(away);
                }
            }
            memcpy(out + i * m + tile, costs, (size_t)width * sizeof *out);
        }
    }
}

/* out[i, j] = squared * |x_i - y_j|^2 + l1_weight * |x_i - y_j|_1, with squared 0 or 1. */
static void REAL_NAME(pairwise)(const REAL *x, const REAL *y, REAL *out, int64_t n, int64_t m, int64_t d,
                                int squared, double l1_weight)
{
    if (d <= FEW) {
        REAL_NAME(pairwise_flat)(x, y, out, n, m, d, squared, l1_weight);
        return;
    }
    const int64_t stretches = (d + STRETCH - 1) / STRETCH;
    const int64_t stretch = ((d + stretches - 1) / stretches + 15) / 16 * 16;
    const int64_t fit = TILE_BYTES / (d * (int64_t)sizeof(REAL)) / 4 * 4, rows_of_y = fit < 4 ? 4 : fit;
    if (squared && l1_weight == 0.0) {
        REAL_NAME(squares)(x, y, out, n, m, d, sizeof *x == sizeof(float) && d <= 4 * STRETCH ? d : stretch, rows_of_y);
        return;
    }
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
                    (x + i * d + at, rows, length, squared, squares, sums);
                }
                for (int64_t k = 0; k < width; k++)
                    out[i * m + j + k] = (REAL)(squares[k] + l1_weight * sums[k]);
            }
        }
    }
}

/* Squared distances from products: costs[i, j] holds <x_i, y_j>. Where most of |x|^2 + |y|^2 cancels they
 * are sums of differences. */
static void REAL_NAME(finish)(const REAL *x, const REAL *y, const REAL *x_squares, const REAL *y_squares,
                              REAL *costs, int64_t n, int64_t m, int64_t d)
{
    for (int64_t i = 0; i < n; i++) {
        REAL *restrict row = costs + i * m;
        const REAL own = x_squares[i];
        int32_t near = 0;
#pragma omp simd reduction(+ : near)
        for (int64_t j = 0; j < m; j++) {
            const REAL sum = own + y_squares[j];
            row[j] = sum - 2 * row[j];
            near += row[j] < sum * REAL_CANCELLED;
        }
        for (int64_t j = 0; near && j < m; j++) {
            if (row[j] < (own + y_squares[j]) * REAL_CANCELLED)
                REAL_NAME(pairwise)(x + i * d, y + j * d, row + j, 1, 1, d, 1, 0.0);
        }
    }
}

/* y <- x - centre, the mean of x where `mean`; and |y|^2. */
static void REAL_NAME(centre)(const REAL *x, REAL *restrict y, REAL *restrict centre, REAL *restrict squares,
                              int64_t n, int64_t d, int mean)
{
    for (int64_t k = 0; mean && k < d; k += STRETCH) {
        const int64_t length = k + STRETCH < d ? STRETCH : d - k;
        double sums[STRETCH] = {0};
        for (int64_t i = 0; i < n; i++)
#pragma omp simd
            for (int64_t l = 0; l < length; l++)
                sums[l] += x[i * d + k + l];
        for (int64_t l = 0; l < length; l++)
            centre[k + l] = (REAL)(sums[l] / (double)n);
    }
    for (int64_t i = 0; i < n; i++) {
        REAL sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < d; k++) {
            y[i * d + k] = x[i * d + k] - centre[k];
            sum += y[i * d + k] * y[i * d + k];
        }
        squares[i] = sum;
    }
}

/* The gradient below, of few dimensions and squared distances alone. */
static void REAL_NAME(gradient_flat)(const REAL *x, const REAL *y, const REAL *plan, REAL *out, int64_t n,
                                     int64_t m, int64_t d)
{
    double sums[FEW];
    REAL turned[FEW * WIDTH];
    const int64_t side = FEW * WIDTH / d / 16 * 16;
    memset(out, 0, (size_t)(n * d) * sizeof *out);
    for (int64_t tile = 0; tile < m; tile += side) {
        const int64_t width = tile + side < m ? side : m - tile;
        for (int64_t k = 0; k < d; k++)
            for (int64_t j = 0; j < width; j++)
                turned[k * side + j] = y[(tile + j) * d + k];
        for (int64_t i = 0; i < n; i++) {
            const REAL *restrict row = plan + i * m + tile;
            for (int64_t k = 0; k < d; k++) {
                const REAL from = x[i * d + k], *restrict to = turned + k * side;
                REAL sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t j = 0; j < width; j++)
                    sum += row[j] * (from - to[j]);
                sums[k] = out[i * d + k] + 2.0 * (double)sum;
            }
            for (int64_t k = 0; k < d; k++)
                out[i * d + k] = (REAL)sums[k];
        }
    }
}

/* Whether more than a quarter of these entries matter. */
static int REAL_NAME(is_dense)(const REAL *plan, int64_t count)
{
    double total = 0.0;
    int64_t many = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < count; j++)
        total += plan[j];
    for (int64_t j = 0; j < count; j++)
        many += plan[j] > total * REAL_EPS / (double)count;
    return many * 4 > count;
}

/* The gradient of squared distances for up to ROWS rows, in fours: their masses times x - z, less the plan times
 * y - z, for z the first x of the four, so that little cancels wherever they lie. */
static void REAL_NAME(gradient_dense)(const REAL *x, const REAL *y, const REAL *plan, REAL *out, int64_t n,
                                      int64_t m, int64_t d)
{
    double masses[ROWS] = {0};
    for (int64_t r = 0; r < n; r++) {
        double mass = 0.0;
#pragma omp simd reduction(+ : mass)
        for (int64_t j = 0; j < m; j++)
            mass += plan[r * m + j];
        masses[r] = mass;
    }
    for (int64_t at = 0; at < d; at += STRETCH) {
        const int64_t length = at + STRETCH < d ? STRETCH : d - at;
        double sums[ROWS][STRETCH] = {{0}};
        for (int64_t first = 0; first < m; first += 32) { /* these y stay in the cache */
            const int64_t last = first + 32 < m ? first + 32 : m;
            for (int64_t i = 0; i < n; i += 4) {
                const REAL *restrict z = x + i * d + at;
                REAL part[4][STRETCH] = {{0}}, w[4][4];
                for (int64_t j = first; j < last; j += 4) {
                    const REAL *restrict y0 = y + j * d + at;
                    const REAL *restrict y1 = j + 1 < last ? y0 + d : y0, *restrict y2 = j + 2 < last ? y0 + 2 * d : y0;
                    const REAL *restrict y3 = j + 3 < last ? y0 + 3 * d : y0;
                    for (int64_t r = 0; r < 4; r++)
                        for (int64_t k = 0; k < 4; k++)
                            w[r][k] = i + r < n && j + k < last ? plan[(i + r) * m + j + k] : 0;
#pragma omp simd
                    for (int64_t k = 0; k < length; k++) {
                        const REAL d0 = y0[k] - z[k], d1 = y1[k] - z[k], d2 = y2[k] - z[k], d3 = y3[k] - z[k];
                        part[0][k] += (w[0][0] * d0 + w[0][1] * d1) + (w[0][2] * d2 + w[0][3] * d3);
                        part[1][k] += (w[1][0] * d0 + w[1][1] * d1) + (w[1][2] * d2 + w[1][3] * d3);
                        part[2][k] += (w[2][0] * d0 + w[2][1] * d1) + (w[2][2] * d2 + w[2][3] * d3);
                        part[3][k] += (w[3][0] * d0 + w[3][1] * d1) + (w[3][2] * d2 + w[3][3] * d3);
                    }
                }
                for (int64_t r = 0; r < 4; r++)
#pragma omp simd
                    for (int64_t k = 0; k < length; k++)
                        sums[i + r][k] += part[r][k];
            }
        }
        for (int64_t i = 0; i < n; i++) {
            const REAL *z = x + i / 4 * 4 * d + at;
#pragma omp simd
            for (int64_t k = 0; k < length; k++)
                out[i * d + at + k] = (REAL)(2.0 * (masses[i] * (x[i * d + at + k] - z[k]) - sums[i][k]));
        }
    }
}

#define SLOPE(v) (twice * (v) + ((v) != 0 ? copysign(up, (v)) : 0))

/* out[i] = sum_j plan[i, j] (2 squared (x_i - y_j) + l1_weight sign(x_i - y_j)), with sign(0) = 0, over the
 * entries of the plan that are not below the rounding of their row's sum. index and weight hold m + 4 each. */
static void REAL_NAME(gradient)(const REAL *x, const REAL *y, const REAL *plan, REAL *out, int64_t n,
                                int64_t m, int64_t d, int squared, double l1_weight, int32_t *index,
                                REAL *weight)
{
    const REAL twice = squared ? 2 : 0, up = (REAL)l1_weight;
    if (l1_weight == 0.0 && d <= FEW) {
        REAL_NAME(gradient_flat)(x, y, plan, out, n, m, d);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double total = 0.0;
        REAL floor;
        int64_t count = 0;
        const int64_t several = i + ROWS < n ? ROWS : n - i;
        if (l1_weight == 0.0 && i % ROWS == 0 && REAL_NAME(is_dense)(plan + i * m, several * m)) {
            REAL_NAME(gradient_dense)(x + i * d, y, plan + i * m, out + i * d, several, m, d);
            i += several - 1;
            continue;
        }
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
                    if (l1_weight == 0.0) {
#pragma omp simd
                        for (int64_t k = 0; k < length; k++)
                            part[k] += (w0 * (from[k] - to0[k]) + w1 * (from[k] - to1[k])) +
                                       (w2 * (from[k] - to2[k]) + w3 * (from[k] - to3[k]));
                        continue;
                    }
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
                out[i * d + at + k] = (REAL)(l1_weight == 0.0 ? twice * sums[k] : sums[k]);
        }
    }
}

#undef SLOPE
