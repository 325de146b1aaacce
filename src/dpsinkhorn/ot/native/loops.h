/* The loops of small problems on a CPU, written to be vectorised by the compiler. This file is included
 * several times, once for each instruction set; NAME(f) is the name of f for that set.
 *
 * A "simd reduction" lets the compiler reorder a sum, so results differ by rounding between instruction
 * sets; on one machine they are always the same.
 */

/* 2^x for x <= 0, to about one unit in the last place; zero from where a float64 would be subnormal. */
static inline double NAME(power_of_two)(double x)
{
    const double magic = 0x1.8p52; /* adding it rounds to a whole number, in the lowest bits */
    double bounded = x < LEAST_EXPONENT ? LEAST_EXPONENT : x;
    double whole = bounded + magic;
    double r = bounded - (whole - magic), p;
    int64_t bits, shift;
    /* Taylor series of exp(r log 2), |r| <= 1/2 */
    p = 1.3691488853904128e-12;
    p = p * r + 2.5678435993488206e-11;
    p = p * r + 4.4455382718708116e-10;
    p = p * r + 7.054911620801123e-09;
    p = p * r + 1.01780860092397e-07;
    p = p * r + 1.321548679014431e-06;
    p = p * r + 1.5252733804059841e-05;
    p = p * r + 0.0001540353039338161;
    p = p * r + 0.0013333558146428443;
    p = p * r + 0.009618129107628477;
    p = p * r + 0.05550410866482158;
    p = p * r + 0.24022650695910072;
    p = p * r + 0.6931471805599453;
    p = p * r + 1.0;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&shift, &whole, sizeof shift);
    bits += (int64_t)((uint64_t)shift << 52);
    memcpy(&p, &bits, sizeof p);
    return x < LEAST_EXPONENT ? 0.0 : p;
}

/* log2 of a positive, normal x; NaN of any other. */
static inline double NAME(log_of_two)(double x)
{
    int64_t bits, exponent;
    double m, s, p = 1.0 / 21.0;
    memcpy(&bits, &x, sizeof bits);
    exponent = (bits - 0x3fe6a09e667f3bcd) >> 52; /* so that m is from the root of 1/2 to the root of 2 */
    bits -= exponent << 52;
    memcpy(&m, &bits, sizeof m);
    s = (m - 1.0) / (m + 1.0); /* log m = 2 (s + s^3 / 3 + s^5 / 5 + ...) */
    for (double k = 19.0; k > 0.0; k -= 2.0)
        p = p * (s * s) + 1.0 / k;
    return x >= DBL_MIN && x <= DBL_MAX ? (double)exponent + 2.0 / LN2 * s * p : NAN;
}

/* The semi-dual at trial_g: value and L1 error of the column marginal into out. */
static void NAME(evaluate)(State *s, double regularization, double *out)
{
    const int64_t n = s->rows, stride = s->stride;
    const double scale = 1.0 / (regularization * LN2);
    double *restrict trial = s->trial_g, *restrict shifted = s->shifted;
    double *restrict marginal = s->marginal, *restrict residual = s->residual;
    double value = 0.0, error = 0.0;

#pragma omp simd
    for (int64_t j = 0; j < stride; j++) {
        shifted[j] = trial[j] * scale + s->log2_b[j];
        marginal[j] = 0.0;
    }
    for (int64_t i = 0; i < n; i++) {
        const double *restrict costs = s->costs + i * stride;
        double *restrict kernel = s->kernel + i * stride;
        double top = -INFINITY, total = 0.0, weight;
#pragma omp simd reduction(max : top)
        for (int64_t j = 0; j < stride; j++) {
            kernel[j] = shifted[j] - scale * costs[j];
            top = kernel[j] > top ? kernel[j] : top;
        }
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < stride; j++) {
            kernel[j] = NAME(power_of_two)(kernel[j] - top);
            total += kernel[j];
        }
        weight = s->a[i] / total;
#pragma omp simd
        for (int64_t j = 0; j < stride; j++)
            marginal[j] += weight * kernel[j];
        s->total[i] = total;
        s->trial_f[i] = -(log2(total) + top) / scale;
        value += s->a[i] * s->trial_f[i];
    }
#pragma omp simd reduction(+ : value, error)
    for (int64_t j = 0; j < stride; j++) {
        residual[j] = s->b[j] - marginal[j];
        value += s->b[j] * trial[j];
        error += fabs(residual[j]);
    }
    out[0] = value;
    out[1] = error;
}

/* An entry of the kernel counts in P^T diag(1/a) P unless it is below the rounding of its row's sum and of
 * its column's: then nothing that it adds to a row of H is above the rounding of that row's diagonal. */
#define COUNTS(entry, column_marginal) \
    (((entry) >= least) | ((entry) * weight >= NEGLIGIBLE * (column_marginal)))

/* How many multiplications the upper triangle of P^T diag(1/a) P takes over the entries that count. */
static double NAME(count_products)(const State *s)
{
    const int64_t stride = s->stride;
    const double *restrict marginal = s->marginal;
    double products = 0.0;
    for (int64_t i = 0; i < s->rows; i++) {
        const double *restrict kernel = s->kernel + i * stride;
        const double weight = s->a[i] / s->total[i], least = NEGLIGIBLE * s->total[i];
        double count = 0.0;
#pragma omp simd reduction(+ : count)
        for (int64_t j = 0; j < stride; j++)
            count += COUNTS(kernel[j], marginal[j]) ? 1.0 : 0.0;
        products += count * count / 2;
    }
    return products;
}

/* Upper triangle of -P^T diag(1/a) P, where few entries count. */
static void NAME(subtract_gram_sparse)(State *s)
{
    const int64_t m = s->columns, stride = s->stride;
    const double *restrict marginal = s->marginal;
    double *restrict value = s->scratch;
    int32_t *restrict index = s->index;
    for (int64_t i = 0; i < s->rows; i++) {
        const double *restrict kernel = s->kernel + i * stride;
        const double weight = s->a[i] / s->total[i], least = NEGLIGIBLE * s->total[i];
        const double root = sqrt(s->a[i]) / s->total[i];
        int64_t count = 0;
        for (int64_t j = 0; j < m; j++) { /* without a branch */
            index[count] = (int32_t)j;
            value[count] = kernel[j] * root;
            count += COUNTS(kernel[j], marginal[j]);
        }
        for (int64_t p = 0; p < count; p++) {
            double *restrict row = s->matrix + index[p] * stride;
            const double factor = value[p];
            for (int64_t q = p; q < count; q++)
                row[index[q]] -= factor * value[q];
        }
    }
}

/* The same where many do: four rows of the kernel at a time. */
static void NAME(subtract_gram_dense)(State *s)
{
    const int64_t n = s->rows, m = s->columns, stride = s->stride;
    double *restrict r0 = s->scratch, *restrict r1 = r0 + stride;
    double *restrict r2 = r1 + stride, *restrict r3 = r2 + stride;
    for (int64_t i = 0; i < n; i += 4) {
        double *rows[4] = {r0, r1, r2, r3};
        for (int64_t k = 0; k < 4; k++) {
            const int64_t at = i + k < n ? i + k : n - 1;
            const double *restrict kernel = s->kernel + at * stride;
            const double root = i + k < n ? sqrt(s->a[at]) / s->total[at] : 0.0;
            double *restrict row = rows[k];
#pragma omp simd
            for (int64_t j = 0; j < stride; j++)
                row[j] = kernel[j] * root;
        }
        for (int64_t j = 0; j < m; j++) {
            double *restrict out = s->matrix + j * stride;
            const double c0 = r0[j], c1 = r1[j], c2 = r2[j], c3 = r3[j];
#pragma omp simd
            for (int64_t k = j / 8 * 8; k < stride; k++)
                out[k] -= (c0 * r0[k] + c1 * r1[k]) + (c2 * r2[k] + c3 * r3[k]);
        }
    }
}

/* Cholesky's factor U, matrix = U^T U, in place in the upper triangle. Returns 0 where there is none. Loops
 * start at multiples of eight, for the sake of vectors; what lies below the diagonal is never read. */
static int NAME(factorise)(double *restrict matrix, int64_t m, int64_t stride)
{
    for (int64_t first = 0; first < m; first += 4) {
        const int64_t last = first + 4 < m ? first + 4 : m;
        for (int64_t k = first; k < last; k++) { /* a panel of four rows */
            double *restrict row = matrix + k * stride;
            double inverse;
            for (int64_t h = first; h < k; h++) {
                const double *restrict above = matrix + h * stride;
                const double factor = above[k];
                if (factor == 0.0)
                    continue;
#pragma omp simd
                for (int64_t j = k / 8 * 8; j < stride; j++)
                    row[j] -= factor * above[j];
            }
            if (!(row[k] > 0.0) || isinf(row[k]))
                return 0;
            inverse = 1.0 / sqrt(row[k]);
#pragma omp simd
            for (int64_t j = k / 8 * 8; j < stride; j++)
                row[j] *= inverse;
        }
        if (last - first < 4)
            break;
        const double *restrict u0 = matrix + first * stride, *restrict u1 = u0 + stride;
        const double *restrict u2 = u1 + stride, *restrict u3 = u2 + stride;
        for (int64_t i = last; i < m; i++) { /* what it takes from the rest */
            double *restrict row = matrix + i * stride;
            const double c0 = u0[i], c1 = u1[i], c2 = u2[i], c3 = u3[i];
            if (c0 == 0.0 && c1 == 0.0 && c2 == 0.0 && c3 == 0.0)
                continue;
#pragma omp simd
            for (int64_t j = i / 8 * 8; j < stride; j++)
                row[j] -= (c0 * u0[j] + c1 * u1[j]) + (c2 * u2[j] + c3 * u3[j]);
        }
    }
    return 1;
}

/* Solves U^T U x = x in place. */
static void NAME(substitute)(const double *restrict matrix, double *restrict x, int64_t m, int64_t stride)
{
    for (int64_t i = 0; i < m; i++) {
        const double *restrict row = matrix + i * stride;
        const double known = x[i] / row[i];
        x[i] = known;
#pragma omp simd
        for (int64_t j = i + 1; j < stride; j++)
            x[j] -= known * row[j];
    }
    for (int64_t i = m - 1; i >= 0; i--) {
        const double *restrict row = matrix + i * stride;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = i + 1; j < m; j++)
            sum += row[j] * x[j];
        x[i] = (x[i] - sum) / row[i];
    }
}

/* Takes its weighted mean from a proposal, which is 0 for columns left out; returns its slope. */
static double NAME(centre_proposal)(State *s)
{
    double *restrict d = s->proposal, mean = 0.0, slope = 0.0;
#pragma omp simd reduction(+ : mean)
    for (int64_t j = 0; j < s->columns; j++)
        mean += s->b[j] * d[j];
    for (int64_t j = 0; j < s->columns; j++) {
        d[j] = s->left_out[j] ? 0.0 : d[j] - mean;
        slope += s->residual[j] * d[j];
    }
    return slope;
}

/* Newton's direction of the last evaluated point, in units of λ: its slope and whether it was solved. */
static void NAME(newton)(State *s, double ridge, double *out)
{
    const int64_t m = s->columns, stride = s->stride;
    double *restrict d = s->proposal;
    memset(s->matrix, 0, (size_t)(m * stride) * sizeof(double));
    if (NAME(count_products)(s) * 8 < (double)(s->rows * m * m / 2))
        NAME(subtract_gram_sparse)(s);
    else
        NAME(subtract_gram_dense)(s);
    for (int64_t j = 0; j < m; j++) { /* columns left out are decoupled: their row and column are zero */
        s->matrix[j * stride + j] += s->marginal[j] * (1.0 + ridge) + (s->left_out[j] ? 1.0 : 0.0);
        d[j] = s->residual[j];
    }
    out[0] = 0.0;
    out[1] = NAME(factorise)(s->matrix, m, stride);
    if (out[1] == 0.0)
        return;
    NAME(substitute)(s->matrix, d, m, stride);
    out[0] = NAME(centre_proposal)(s);
}

/* Potentials of an exact plan made feasible whatever rounding did: f is the transform of g, where b is positive, and
 * g becomes that of f. scratch: two vectors over columns. out: the dual value, and the L1 error of the plan's
 * marginals. */
static void NAME(settle)(const double *costs, const double *plan, const double *a, const double *b, double *restrict f,
                         double *restrict g, double *scratch, int64_t n, int64_t m, double *out)
{
    double value = 0.0, error = 0.0, *restrict residual = scratch, *restrict from = scratch + m;
    for (int64_t j = 0; j < m; j++)
        from[j] = b[j] > 0.0 ? g[j] : -INFINITY, g[j] = INFINITY, residual[j] = -b[j];
    for (int64_t i = 0; i < n; i++) {
        const double *restrict row = costs + i * m, *restrict flow = plan + i * m;
        double least = INFINITY, mass = -a[i];
#pragma omp simd reduction(min : least) reduction(+ : mass)
        for (int64_t j = 0; j < m; j++) {
            const double left = row[j] - from[j];
            least = left < least ? left : least;
            mass += flow[j];
        }
#pragma omp simd
        for (int64_t j = 0; j < m; j++) {
            const double left = row[j] - least;
            g[j] = left < g[j] ? left : g[j];
            residual[j] += flow[j];
        }
        f[i] = least, value += a[i] * least, error += fabs(mass);
    }
    for (int64_t j = 0; j < m; j++)
        value += b[j] * g[j], error += fabs(residual[j]);
    out[0] = value, out[1] = error;
}

static int NAME(finite_32)(const uint32_t *restrict bits, int64_t count)
{
    int bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++)
        bad |= (bits[i] & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

static int NAME(finite_64)(const uint64_t *restrict bits, int64_t count)
{
    int bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++)
        bad |= (bits[i] & 0x7ff0000000000000u) == 0x7ff0000000000000u;
    return !bad;
}

#define REAL float
#define REAL_IS_FLOAT 1
#define REAL_NAME(f) NAME(f##_32)
#include "points.h"
#include "scaling.h"
#undef REAL
#undef REAL_IS_FLOAT
#undef REAL_NAME

#define REAL double
#define REAL_IS_FLOAT 0
#define REAL_NAME(f) NAME(f##_64)
#include "points.h"
#include "scaling.h"
#undef REAL
#undef REAL_IS_FLOAT
#undef REAL_NAME
