/* Small transport problems on a CPU, in plain C: no Python, no dependencies, one thread.
 *
 * The functions at the end are called through ctypes (native/__init__.py, which checks all sizes and types).
 * Memory belongs to the caller. A problem's state lives in one block of float64 numbers, whose parts are
 * found by dps_state_size and dps_state_start.
 */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define VERSION 2

#define LN2 0.69314718055994531
#define LEAST_EXPONENT (-1021.0) /* below, powers of two count as zero */
#define NEGLIGIBLE 1e-18         /* part of a sum below its rounding */
#define STRETCH 256              /* terms summed in the points' own type */
#define BLOCK 32                 /* rows whose columns are summed in the costs' own type */
#define CANCELLED 0.0625         /* less than this part of |x|^2 + |y|^2 left is computed pair by pair */
#define FEW 32                   /* dimensions up to which points y are laid side by side, */
#define WIDTH 64                 /*   so many at a time */
#define ROWS 16                  /* points x whose gradient is formed together */
#define TILE_BYTES 26000         /* of points y that a sweep over x goes through at a time */

/* Where the ascent of one problem stands: rows x columns costs, the variable g on the columns. Rows and
 * vectors over columns are as long as a multiple of eight, with costs that are infinite and zeros there. */
typedef struct {
    int64_t rows, columns, stride;
    double *costs, *a, *b;
    double *g, *f;                         /* the point kept */
    double *trial_g, *trial_f;             /* the point last evaluated, and what belongs to it: */
    double *shifted, *marginal, *residual; /*   exponents of the columns, P^T 1, b - P^T 1 */
    double *total, *kernel;                /*   sums of the kernel's rows, and the kernel */
    double *log2_b, *proposal, *direction; /* -inf: left out; a new direction; the one in use */
    double *matrix, *scratch;
    int32_t *index;
    uint8_t *left_out;
    /* Of a problem in the kernel domain (scaling.h) instead of costs, kernel and matrix: */
    int64_t row_stride;
    const void *outer_costs; /* rows x columns, in the type REAL, of the caller */
    void *outer_kernel;
    double *absorbed, *top, scale; /* what the kernel was formed around */
    void *v, *image, *part;        /* vectors over columns, in the type REAL */
} State;

#define STATE_NUMBERS ((int64_t)((sizeof(State) + 63) / 64 * 8))

/* log2 of weights, which are often equal. */
static void logs(const double *weights, int64_t count, double *out)
{
    for (int64_t j = 0; j < count; j++)
        out[j] = j && weights[j] == weights[j - 1] ? out[j - 1] : log2(weights[j]);
}

#define NAME(f) f##_plain
#include "loops.h"
#undef NAME

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SEVERAL 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NAME(f) f##_avx2
#include "loops.h"
#undef NAME
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
#endif
#define NAME(f) f##_avx512
#include "loops.h"
#undef NAME
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#define BEST(f) (instructions == 2 ? f##_avx512 : instructions ? f##_avx2 : f##_plain)
#else
#define BEST(f) f##_plain
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
void *PyInit__kernels(void); /* the linker asks for it; nobody calls it */
EXPORT void *PyInit__kernels(void) { return NULL; }
#else
#define EXPORT __attribute__((visibility("default")))
#endif

static int32_t instructions = 0; /* 0 plain, 1 AVX2, 2 AVX-512 */

/* Products of entries that all but vanish are subnormal, and some CPUs take a hundred times longer for them. */
#if defined(__SSE2__)
static unsigned subnormals_off(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
}
static void subnormals_back(unsigned before) { _mm_setcsr(before); }
#else
static unsigned subnormals_off(void) { return 0; }
static void subnormals_back(unsigned before) { (void)before; }
#endif

/* To be called once, first: the most of these instructions that may be used, if the CPU has them. */
EXPORT int32_t dps_start(int32_t most)
{
#if defined(SEVERAL)
    __builtin_cpu_init();
    instructions = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (instructions && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        instructions = 2;
#endif
    instructions = most < instructions ? most : instructions;
    return VERSION;
}

EXPORT int32_t dps_instructions(void) { return instructions; }

/* The next part of a block: an address where there is a block, and the place after it. */
static double *take(double *block, int64_t *at, int64_t count)
{
    double *part = block ? block + *at : NULL;
    *at += (count + 7) / 8 * 8; /* keeps every part on a cache line of its own */
    return part;
}

static int64_t lay_out(State *s, double *block, int64_t n, int64_t m)
{
    const int64_t w = (m + 7) / 8 * 8;
    int64_t at = STATE_NUMBERS;
    s->rows = n, s->columns = m, s->stride = w;
    s->costs = take(block, &at, n * w), s->a = take(block, &at, n), s->b = take(block, &at, w);
    s->g = take(block, &at, w), s->f = take(block, &at, n);
    s->trial_g = take(block, &at, w), s->trial_f = take(block, &at, n);
    s->shifted = take(block, &at, w), s->marginal = take(block, &at, w), s->residual = take(block, &at, w);
    s->total = take(block, &at, n), s->kernel = take(block, &at, n * w);
    s->log2_b = take(block, &at, w), s->proposal = take(block, &at, w), s->direction = take(block, &at, w);
    s->matrix = take(block, &at, m * w), s->scratch = take(block, &at, 4 * w);
    s->index = (int32_t *)take(block, &at, w / 2);
    s->left_out = (uint8_t *)take(block, &at, w / 8);
    return at;
}

/* Numbers (float64) in the block of a problem's state. */
EXPORT int64_t dps_state_size(int64_t n, int64_t m)
{
    State s;
    return lay_out(&s, NULL, n, m);
}

/* Start at g = 0. where: places of g, f, the residual and the new direction in the block. */
EXPORT void dps_state_start(double *block, const double *costs, const double *a, const double *b, int64_t n,
                            int64_t m, int64_t *where)
{
    State *s = (State *)block;
    const int64_t w = (lay_out(s, block, n, m), s->stride);
    double *columns[] = {s->b, s->g, s->log2_b, s->proposal, s->direction};
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
        memset(columns[k], 0, (size_t)w * sizeof(double));
    memset(s->f, 0, (size_t)n * sizeof(double));
    memcpy(s->a, a, (size_t)n * sizeof(double));
    memcpy(s->b, b, (size_t)m * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        memcpy(s->costs + i * w, costs + i * m, (size_t)m * sizeof(double));
        for (int64_t j = m; j < w; j++)
            s->costs[i * w + j] = INFINITY;
    }
    where[0] = s->g - block, where[1] = s->f - block;
    where[2] = s->residual - block, where[3] = s->proposal - block;
}

static int64_t lay_out_scaling(State *s, double *block, int64_t n, int64_t m)
{
    const int64_t w = (m + 7) / 8 * 8;
    int64_t at = STATE_NUMBERS;
    memset(s, 0, sizeof *s);
    s->rows = n, s->columns = m, s->stride = w, s->row_stride = (n + 7) / 8 * 8;
    s->a = take(block, &at, n), s->b = take(block, &at, w);
    s->g = take(block, &at, w), s->f = take(block, &at, n);
    s->trial_g = take(block, &at, w), s->trial_f = take(block, &at, n);
    s->shifted = take(block, &at, w), s->marginal = take(block, &at, w), s->residual = take(block, &at, w);
    s->total = take(block, &at, n), s->log2_b = take(block, &at, w);
    s->proposal = take(block, &at, w), s->direction = take(block, &at, w);
    s->scratch = take(block, &at, 3 * w), s->absorbed = take(block, &at, w);
    s->top = take(block, &at, 3 * s->row_stride); /* and two more vectors over rows */
    s->v = take(block, &at, w), s->image = take(block, &at, w), s->part = take(block, &at, w);
    s->left_out = (uint8_t *)take(block, &at, w / 8);
    return at;
}

EXPORT int64_t dps_scaling_size(int64_t n, int64_t m)
{
    State s;
    return lay_out_scaling(&s, NULL, n, m);
}

/* As dps_state_start, for costs and a kernel that stay with the caller, in float32 or float64. */
EXPORT void dps_scaling_start(double *block, const void *costs, void *kernel, const double *a, const double *b,
                              int64_t n, int64_t m, int64_t *where)
{
    State *s = (State *)block;
    lay_out_scaling(s, block, n, m);
    memset(block + STATE_NUMBERS, 0, (size_t)(dps_scaling_size(n, m) - STATE_NUMBERS) * sizeof(double));
    memcpy(s->a, a, (size_t)n * sizeof(double));
    memcpy(s->b, b, (size_t)m * sizeof(double));
    s->outer_costs = costs, s->outer_kernel = kernel;
    logs(b, m, s->log2_b);
    for (int64_t j = 0; j < m; j++)
        s->left_out[j] = s->b[j] <= 0.0;
    where[0] = s->g - block, where[1] = s->f - block;
    where[2] = s->residual - block, where[3] = s->proposal - block, where[4] = s->trial_g - block;
}

/* Leave columns of at most this weight out. */
EXPORT void dps_leave_out(State *s, double weight)
{
    logs(s->b, s->columns, s->log2_b);
    for (int64_t j = 0; j < s->columns; j++) {
        s->left_out[j] = s->b[j] <= weight;
        s->log2_b[j] = s->left_out[j] ? -INFINITY : s->log2_b[j];
    }
}

/* out: value, error. */
EXPORT void dps_evaluate(State *s, double step, double regularization, double *out)
{
    const unsigned before = subnormals_off();
    BEST(evaluate)(s, step, regularization, out);
    subnormals_back(before);
}

/* The same in the kernel domain. */
EXPORT void dps_scaling_evaluate(State *s, int32_t single, double step, double regularization, double *out)
{
    const unsigned before = subnormals_off();
    for (int64_t j = 0; j < s->columns; j++)
        s->trial_g[j] = s->g[j] + step * s->direction[j];
    if (single)
        BEST(point_32)(s, regularization, out);
    else
        BEST(point_64)(s, regularization, out);
    subnormals_back(before);
}

/* Steps of Sinkhorn from g. out: value and error of the last point, number of points. */
EXPORT void dps_scaling_steps(State *s, int32_t single, double regularization, double target, int64_t limit,
                              int64_t patience, double *out)
{
    const unsigned before = subnormals_off();
    memcpy(s->trial_g, s->g, (size_t)s->columns * sizeof(double));
    if (single)
        BEST(scale_32)(s, regularization, target, limit, patience, out);
    else
        BEST(scale_64)(s, regularization, target, limit, patience, out);
    subnormals_back(before);
}

EXPORT void dps_keep(State *s)
{
    memcpy(s->g, s->trial_g, (size_t)s->columns * sizeof(double));
    memcpy(s->f, s->trial_f, (size_t)s->rows * sizeof(double));
}

/* Greatest entry of the new direction, for out[2]. */
static double length(const State *s)
{
    double most = 0.0;
    for (int64_t j = 0; j < s->columns; j++)
        most = fabs(s->proposal[j]) > most ? fabs(s->proposal[j]) : most;
    return most;
}

/* out: slope, whether there is a solution, length. */
EXPORT void dps_newton(State *s, double ridge, double *out)
{
    const unsigned before = subnormals_off();
    BEST(newton)(s, ridge, out);
    subnormals_back(before);
    out[2] = length(s);
}

/* The same in the kernel domain, by conjugate gradients. */
EXPORT void dps_scaling_newton(State *s, int32_t single, double ridge, double accuracy, int64_t limit, double *out)
{
    const unsigned before = subnormals_off();
    if (single)
        BEST(conjugate_32)(s, ridge, accuracy, limit, out);
    else
        BEST(conjugate_64)(s, ridge, accuracy, limit, out);
    subnormals_back(before);
    out[2] = length(s);
}

/* Sinkhorn's step in units of λ: log b - log P^T 1. out: slope, 1, length. */
EXPORT void dps_sinkhorn(State *s, double *out)
{
    double slope = 0.0;
    for (int64_t j = 0; j < s->columns; j++) {
        double ratio = s->b[j] / (s->marginal[j] > DBL_MIN ? s->marginal[j] : DBL_MIN);
        s->proposal[j] = s->left_out[j] ? 0.0 : log(ratio > DBL_MIN ? ratio : DBL_MIN);
        slope += s->residual[j] * s->proposal[j];
    }
    out[0] = slope, out[1] = 1.0, out[2] = length(s);
}

/* The new direction, so much of it, becomes the one in use. */
EXPORT void dps_turn(State *s, double factor)
{
    for (int64_t j = 0; j < s->columns; j++)
        s->direction[j] = factor * s->proposal[j];
}

/* Columns left out get the transform of f, as the others have it. */
EXPORT void dps_extend(State *s, double regularization)
{
    for (int64_t j = 0; j < s->columns; j++) {
        double top = -INFINITY, total = 0.0;
        if (!s->left_out[j])
            continue;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < s->rows; i++) {
                const double cost = s->costs[i * s->stride + j];
                const double exponent = (s->f[i] - cost) / regularization + log(s->a[i]);
                if (pass)
                    total += exp(exponent - top);
                else
                    top = exponent > top ? exponent : top;
            }
        }
        s->g[j] = -regularization * (top + log(total));
    }
}

EXPORT void dps_plan(const void *costs, const double *f, const double *g, const double *a, const double *b,
                     double *scratch, void *out, int64_t n, int64_t m, double regularization, int32_t single)
{
    const double scale = 1.0 / (regularization * LN2);
    if (single)
        BEST(plan_32)(costs, f, g, a, b, scratch, out, n, m, scale);
    else
        BEST(plan_64)(costs, f, g, a, b, scratch, out, n, m, scale);
}

EXPORT void dps_range(const double *values, int64_t count, double *out) { BEST(range_64)(values, count, out); }

EXPORT int32_t dps_finite_32(const uint32_t *values, int64_t count) { return BEST(finite_32)(values, count); }

EXPORT int32_t dps_finite_64(const uint64_t *values, int64_t count) { return BEST(finite_64)(values, count); }

EXPORT void dps_pairwise_32(const float *x, const float *y, float *out, int64_t n, int64_t m, int64_t d,
                            int32_t squared, double l1_weight)
{
    BEST(pairwise_32)(x, y, out, n, m, d, squared, l1_weight);
}

EXPORT void dps_pairwise_64(const double *x, const double *y, double *out, int64_t n, int64_t m, int64_t d,
                            int32_t squared, double l1_weight)
{
    BEST(pairwise_64)(x, y, out, n, m, d, squared, l1_weight);
}

EXPORT void dps_finish_32(const float *x, const float *y, const float *x_squares, const float *y_squares,
                          float *costs, int64_t n, int64_t m, int64_t d)
{
    BEST(finish_32)(x, y, x_squares, y_squares, costs, n, m, d);
}

EXPORT void dps_finish_64(const double *x, const double *y, const double *x_squares, const double *y_squares,
                          double *costs, int64_t n, int64_t m, int64_t d)
{
    BEST(finish_64)(x, y, x_squares, y_squares, costs, n, m, d);
}

/* Returns 0, or 1 where there is no memory for a row. */
EXPORT int32_t dps_gradient_32(const float *x, const float *y, const float *plan, float *out, int64_t n,
                               int64_t m, int64_t d, int32_t squared, double l1_weight)
{
    int32_t *index = malloc((size_t)(m + 4) * sizeof *index);
    float *weight = malloc((size_t)(m + 4) * sizeof *weight);
    const int32_t failed = !index || !weight;
    if (!failed)
        BEST(gradient_32)(x, y, plan, out, n, m, d, squared, l1_weight, index, weight);
    free(index), free(weight);
    return failed;
}

EXPORT int32_t dps_gradient_64(const double *x, const double *y, const double *plan, double *out, int64_t n,
                               int64_t m, int64_t d, int32_t squared, double l1_weight)
{
    int32_t *index = malloc((size_t)(m + 4) * sizeof *index);
    double *weight = malloc((size_t)(m + 4) * sizeof *weight);
    const int32_t failed = !index || !weight;
    if (!failed)
        BEST(gradient_64)(x, y, plan, out, n, m, d, squared, l1_weight, index, weight);
    free(index), free(weight);
    return failed;
}

EXPORT void dps_centre_32(const float *x, float *y, float *centre, float *squares, int64_t n, int64_t d,
                          int32_t mean)
{
    BEST(centre_32)(x, y, centre, squares, n, d, mean);
}

EXPORT void dps_centre_64(const double *x, double *y, double *centre, double *squares, int64_t n, int64_t d,
                          int32_t mean)
{
    BEST(centre_64)(x, y, centre, squares, n, d, mean);
}

/* A small problem, from points to gradients, in the order of the solver's loop (ascent.py), as far as the
 * kernel domain goes. settings: l1_weight, λ, tolerance, and the loop's start, shrink, stage_error, limit of a
 * stage, limit, patience; and bounds outside of which it is declined: of the costs' range over λ, of the costs
 * over λ, and of their range from below. Returns 0 where it is solved, else it is to be solved in another way. out: value, points. Gradients that are NULL are not wanted. */
EXPORT int32_t dps_transport(int32_t single, int32_t wide, const void *x, const void *y, const double *a,
                             const double *b, int64_t n, int64_t m, int64_t d, int32_t squared,
                             const double *settings, double *f, double *g, void *in_x, void *in_y, double *out)
{
    const double l1_weight = settings[0], regularization = settings[1];
    const size_t pairs = (size_t)(n * m), size = single ? sizeof(float) : sizeof(double);
    const int64_t state = dps_scaling_size(n, m);
    double *block = malloc(((size_t)state + 4 * pairs) * sizeof *block), ends[3];
    double *costs = block + state, *kernel = costs + pairs, *plan = kernel + pairs, *turned = plan + pairs;
    double spent = 0.0, stage, width;
    int64_t where[5];
    int32_t failed = 1;
    State *s = (State *)block;
    if (!block)
        return 1;
    if (!d)
        memcpy(wide ? plan : costs, x, pairs * size);
    else if (single)
        BEST(pairwise_32)(x, y, (float *)(wide ? plan : costs), n, m, d, squared, l1_weight);
    else
        BEST(pairwise_64)(x, y, costs, n, m, d, squared, l1_weight);
    for (size_t k = 0; wide && k < pairs; k++)
        costs[k] = ((float *)plan)[k];
    if (single && !wide)
        BEST(range_32)((float *)costs, n * m, ends);
    else
        BEST(range_64)(costs, n * m, ends);
    width = ends[1] - ends[0]; /* NaN where a cost is not finite */
    if (width <= settings[9] * regularization && ends[1] <= settings[10] * regularization &&
        width >= settings[11] * regularization) {
        dps_scaling_start(block, costs, kernel, a, b, n, m, where);
        for (stage = settings[3] * width;; stage *= settings[4]) {
            const int last = !(stage > regularization);
            const double target = last ? settings[2] : settings[5];
            const double limit = settings[7] - spent - (last ? 0.0 : 1.0);
            dps_scaling_steps(s, single && !wide, last ? regularization : stage, target,
                              (int64_t)(last || limit < settings[6] ? limit : settings[6]), (int64_t)settings[8], ends);
            spent += ends[2];
            dps_keep(s);
            failed = !(ends[1] <= target);
            if (last || failed)
                break;
        }
    }
    if (!failed) {
        memcpy(f, s->f, (size_t)n * sizeof *f), memcpy(g, s->g, (size_t)m * sizeof *g);
        out[0] = ends[0], out[1] = spent;
        if (in_x || in_y)
            dps_plan(costs, f, g, a, b, kernel, plan, n, m, regularization, single && !wide);
        for (size_t k = 0; wide && k < pairs; k++)
            ((float *)kernel)[k] = (float)plan[k];
        plan = wide ? kernel : plan;
        if (!d && in_x)
            memcpy(in_x, plan, pairs * size), in_x = NULL;
        for (int64_t i = 0; in_y && i < n; i++)
            for (int64_t j = 0; j < m; j++)
                memcpy((char *)turned + size * (size_t)(j * n + i), (char *)plan + size * (size_t)(i * m + j), size);
        if (single) {
            failed |= in_x && dps_gradient_32(x, y, (float *)plan, in_x, n, m, d, squared, l1_weight);
            failed |= in_y && dps_gradient_32(y, x, (float *)turned, in_y, m, n, d, squared, l1_weight);
        } else {
            failed |= in_x && dps_gradient_64(x, y, plan, in_x, n, m, d, squared, l1_weight);
            failed |= in_y && dps_gradient_64(y, x, turned, in_y, m, n, d, squared, l1_weight);
        }
    }
    free(block);
    return failed;
}
