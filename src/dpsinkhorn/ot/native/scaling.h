/* Sinkhorn's iteration on a stored kernel, for one floating type (REAL) and one instruction set.
 *
 * The kernel K_ij = 2^(x_j - C_ij scale - top_i), x = absorbed scale + log2 b, is formed once for many points
 * g: with v = 2^((g - absorbed) scale), row i of the plan is a_i K_ij v_j / (K v)_i. A point, a step of
 * Sinkhorn and a product with the Hessian are then one sweep over K each, without powers. Sums over rows are
 * carried on in float64 after every BLOCK of them. */

/* 2^x for x <= 0, to about the precision of a float; 0 where a float would be subnormal. */
#if REAL_IS_FLOAT
static inline float REAL_NAME(power)(double exponent)
{
    const float x = exponent < -125.0 ? -125.0f : (float)exponent;
    const float whole = x + 0x1.8p23f, r = x - (whole - 0x1.8p23f);
    int32_t bits, shift;
    float p = 1.5403530e-4f;
    p = p * r + 1.3333558e-3f;
    p = p * r + 9.6181291e-3f;
    p = p * r + 5.5504109e-2f;
    p = p * r + 2.4022651e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&shift, &whole, sizeof shift);
    bits += (int32_t)((uint32_t)shift << 23);
    memcpy(&p, &bits, sizeof p);
    return exponent < -125.0 ? 0.0f : p;
}
#else
static inline double REAL_NAME(power)(double exponent) { return NAME(power_of_two)(exponent); }
#endif

/* Least and greatest of count > 0 finite numbers; of others, some that are not finite. */
static void REAL_NAME(range)(const REAL *restrict values, int64_t count, double *out)
{
    REAL low = values[0], high = values[0], odd = 0;
#pragma omp simd reduction(min : low) reduction(max : high) reduction(+ : odd)
    for (int64_t i = 0; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
        odd += values[i] - values[i]; /* 0, or NaN where the value is NaN or infinite */
    }
    out[0] = low + odd, out[1] = high + odd;
}

/* Entries of the plan, exp((f + g - C) / λ) a b^T. */
static void REAL_NAME(plan)(const REAL *costs, const double *f, const double *g, const double *a,
                            const double *b, double *scratch, REAL *out, int64_t n, int64_t m, double scale)
{
    logs(b, m, scratch);
    for (int64_t j = 0; j < m; j++)
        scratch[j] += g[j] * scale;
    for (int64_t i = 0; i < n; i++) {
        const REAL *restrict row = costs + i * m;
        REAL *restrict plan = out + i * m;
        const double offset = f[i] * scale + log2(a[i]);
#pragma omp simd
        for (int64_t j = 0; j < m; j++) {
            const double exponent = (scratch[j] - scale * row[j]) + offset;
            plan[j] = REAL_NAME(power)(exponent < 0.0 ? exponent : 0.0);
        }
    }
}

/* Form the kernel around g. */
static void REAL_NAME(absorb)(State *s, const double *g, double scale)
{
    const int64_t n = s->rows, m = s->columns;
    const REAL *costs = s->outer_costs;
    REAL *kernel = s->outer_kernel;
    double *restrict shifted = s->shifted, *restrict exponents = s->scratch;
    for (int64_t j = 0; j < m; j++) {
        s->absorbed[j] = g[j];
        shifted[j] = g[j] * scale + s->log2_b[j];
    }
    for (int64_t i = 0; i < n; i++) {
        const REAL *restrict row = costs + i * m;
        REAL *restrict out = kernel + i * m;
        double top = -INFINITY;
#pragma omp simd reduction(max : top)
        for (int64_t j = 0; j < m; j++) {
            exponents[j] = shifted[j] - scale * row[j];
            top = exponents[j] > top ? exponents[j] : top;
        }
#pragma omp simd
        for (int64_t j = 0; j < m; j++)
            out[j] = REAL_NAME(power)(exponents[j] - top);
        s->top[i] = top;
    }
    s->scale = scale;
}

/* Row sums t = K v into sums, and columns K^T w with w_i = a_i / t_i, or weights_i t_i where there are. */
static void REAL_NAME(sweep)(State *s, const REAL *restrict v, const double *weights, double *restrict sums,
                             double *restrict columns)
{
    const int64_t n = s->rows, m = s->columns;
    const REAL *kernel = s->outer_kernel;
    REAL *restrict part = s->part;
    for (int64_t j = 0; j < m; j++)
        columns[j] = 0.0, part[j] = 0;
    for (int64_t i = 0; i < n; i += 4) {
        const REAL *restrict k0 = kernel + i * m;
        const REAL *restrict k1 = i + 1 < n ? k0 + m : k0, *restrict k2 = i + 2 < n ? k0 + 2 * m : k0;
        const REAL *restrict k3 = i + 3 < n ? k0 + 3 * m : k0;
        REAL t0 = 0, t1 = 0, t2 = 0, t3 = 0, w[4];
#pragma omp simd reduction(+ : t0, t1, t2, t3)
        for (int64_t j = 0; j < m; j++) {
            t0 += k0[j] * v[j], t1 += k1[j] * v[j];
            t2 += k2[j] * v[j], t3 += k3[j] * v[j];
        }
        const double t[4] = {t0, t1, t2, t3};
        for (int64_t k = 0; k < 4; k++) {
            w[k] = 0;
            if (i + k >= n)
                continue;
            sums[i + k] = t[k];
            w[k] = (REAL)(weights ? weights[i + k] * t[k] : s->a[i + k] / t[k]);
        }
        const REAL w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
#pragma omp simd
        for (int64_t j = 0; j < m; j++)
            part[j] += (w0 * k0[j] + w1 * k1[j]) + (w2 * k2[j] + w3 * k3[j]);
        if (i % BLOCK == BLOCK - 4 || i + 4 >= n) {
#pragma omp simd
            for (int64_t j = 0; j < m; j++)
                columns[j] += part[j], part[j] = 0;
        }
    }
}

/* Row sums, marginal and residual at v; returns the error. */
static double REAL_NAME(marginals)(State *s)
{
    const REAL *restrict v = s->v;
    double *restrict marginal = s->marginal, *restrict residual = s->residual, error = 0.0;
    REAL_NAME(sweep)(s, v, NULL, s->total, marginal);
#pragma omp simd reduction(+ : error)
    for (int64_t j = 0; j < s->columns; j++) {
        marginal[j] *= v[j];
        residual[j] = s->b[j] - marginal[j];
        error += fabs(residual[j]);
    }
    return error;
}

/* f at the point whose row sums are known; returns the value there. */
static double REAL_NAME(value)(State *s, double scale)
{
    double *restrict f = s->trial_f, value = 0.0;
#pragma omp simd reduction(+ : value)
    for (int64_t i = 0; i < s->rows; i++) {
        f[i] = -(NAME(log_of_two)(s->total[i]) + s->top[i]) / scale;
        value += s->a[i] * f[i];
    }
#pragma omp simd reduction(+ : value)
    for (int64_t j = 0; j < s->columns; j++)
        value += s->b[j] * s->trial_g[j];
    return value;
}

/* The semi-dual at trial_g: f, marginal, residual; value and error into out. */
static void REAL_NAME(point)(State *s, double regularization, double *out)
{
    const int64_t m = s->columns;
    const double scale = 1.0 / (regularization * LN2);
    REAL *v = s->v;
    double farthest = s->scale == scale ? 0.0 : INFINITY;
#pragma omp simd reduction(max : farthest)
    for (int64_t j = 0; j < m; j++) {
        const double away = fabs(s->trial_g[j] - s->absorbed[j]) * scale;
        farthest = away > farthest ? away : farthest;
    }
    if (!(farthest <= REAL_REACH))
        REAL_NAME(absorb)(s, s->trial_g, scale);
#pragma omp simd
    for (int64_t j = 0; j < m; j++)
        v[j] = (REAL)NAME(power_of_two)((s->trial_g[j] - s->absorbed[j]) * scale);
    out[1] = REAL_NAME(marginals)(s);
    out[0] = REAL_NAME(value)(s, scale);
}

/* Sinkhorn's steps from trial_g until the error is at most target, as long as the rate measured over four of
 * them promises that within so many more (patience). out: value, error, points. */
static void REAL_NAME(scale)(State *s, double regularization, double target, int64_t limit, int64_t patience,
                             double *out)
{
    const int64_t m = s->columns;
    const double scale = 1.0 / (regularization * LN2), *b = s->b, *marginal = s->marginal;
    REAL *v = s->v, *next = s->image;
    double *g = s->trial_g, *ratios = s->proposal;
    double errors[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    int64_t count = 1;
    REAL_NAME(point)(s, regularization, out);
    while (count < limit && (count == 1 || out[1] > target)) {
        const double rate = pow(out[1] / errors[count % 4], 0.25);
        double least = 1.0, most = 1.0;
        errors[count % 4] = out[1];
        if (count > 6 && !(out[1] * pow(rate, (double)patience) < target))
            break;
#pragma omp simd reduction(min : least) reduction(max : most)
        for (int64_t j = 0; j < m; j++) {
            ratios[j] = marginal[j] > 0.0 ? b[j] / marginal[j] : 1.0; /* of a column left out it is 0 */
            next[j] = (REAL)(v[j] * ratios[j]);
            least = next[j] < least ? next[j] : least;
            most = next[j] > most ? next[j] : most;
        }
        count++;
        if (most > REAL_LARGEST || least < 1 / REAL_LARGEST) { /* the potentials take it in */
            for (int64_t j = 0; j < m; j++)
                g[j] = s->absorbed[j] + (log2((double)v[j]) + log2(ratios[j])) / scale;
            s->scale = 0.0;
            REAL_NAME(point)(s, regularization, out);
            continue;
        }
        memcpy(v, next, (size_t)m * sizeof *v);
        out[1] = REAL_NAME(marginals)(s);
    }
#pragma omp simd
    for (int64_t j = 0; j < m; j++)
        g[j] = s->absorbed[j] + NAME(log_of_two)(v[j]) / scale;
    out[0] = REAL_NAME(value)(s, scale), out[2] = (double)count;
}

/* Newton's direction at the trial point, in units of λ, by conjugate gradients with the column marginal as
 * preconditioner. out: slope, whether the accuracy was reached. */
static void REAL_NAME(conjugate)(State *s, double ridge, double accuracy, int64_t limit, double *out)
{
    const int64_t n = s->rows, m = s->columns;
    const REAL *restrict v = s->v;
    REAL *restrict image = s->image;
    double *restrict d = s->proposal, *restrict rest = s->scratch, *restrict search = rest + s->stride;
    double *restrict product = search + s->stride, *restrict weights = s->top + s->row_stride;
    double *restrict sums = weights + s->row_stride;
    double energy = 0.0, goal;
    for (int64_t i = 0; i < n; i++)
        weights[i] = s->a[i] / (s->total[i] * s->total[i]);
    for (int64_t j = 0; j < m; j++) {
        const double inverse = s->marginal[j] > DBL_MIN ? 1.0 / s->marginal[j] : 0.0;
        d[j] = 0.0, rest[j] = s->residual[j], search[j] = rest[j] * inverse;
        energy += rest[j] * search[j];
    }
    goal = energy * accuracy * accuracy;
    out[1] = 1.0;
    for (int64_t k = 0; energy > goal; k++) {
        double bend = 0.0, left = 0.0;
        if (k == limit) {
            out[1] = 0.0;
            break;
        }
        for (int64_t j = 0; j < m; j++)
            image[j] = (REAL)(v[j] * search[j]);
        REAL_NAME(sweep)(s, image, weights, sums, product);
        for (int64_t j = 0; j < m; j++) {
            product[j] = s->marginal[j] * (1.0 + ridge) * search[j] - v[j] * product[j];
            bend += search[j] * product[j];
        }
        if (!(bend > 0.0))
            break;
        for (int64_t j = 0; j < m; j++) {
            d[j] += energy / bend * search[j];
            rest[j] -= energy / bend * product[j];
            left += s->marginal[j] > DBL_MIN ? rest[j] * rest[j] / s->marginal[j] : 0.0;
        }
        for (int64_t j = 0; j < m; j++)
            search[j] = left / energy * search[j] + (s->marginal[j] > DBL_MIN ? rest[j] / s->marginal[j] : 0.0);
        energy = left;
    }
    out[0] = NAME(centre_proposal)(s);
}
