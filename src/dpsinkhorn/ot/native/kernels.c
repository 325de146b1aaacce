/* Small transport problems on a CPU, in plain C: no Python, no dependencies, one thread.
 *
 * The functions at the end are called through ctypes (native/__init__.py, which checks all sizes and types).
 * Memory belongs to the caller. A problem's state lives in one block of float64 numbers, whose parts are
 * found by dps_state_size and dps_state_start.
 */

#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h> /* fabs and copysign of either type */

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define VERSION 5

#define LN2 0.69314718055994531
#define LEAST_EXPONENT (-1021.0) /* below, powers of two count as zero */
#define NEGLIGIBLE 1e-18         /* part of a sum below its rounding */
#define STRETCH 256              /* terms summed in the points' own type */
#define BLOCK 32                 /* rows whose columns are summed in the costs' own type */
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
    int32_t single;
    const void *outer_costs; /* rows x columns, in the type REAL, of the caller */
    void *outer_kernel;
    double *absorbed, *top, scale; /* what the kernel was formed around */
    void *v, *image, *part;        /* vectors over columns, in the type REAL */
} State;

/* Of the type that points.h and scaling.h are included for: */
#define REAL_EPS (REAL_IS_FLOAT ? (REAL)FLT_EPSILON : (REAL)DBL_EPSILON)
#define REAL_REACH (REAL_IS_FLOAT ? 30.0 : 200.0)         /* how far from its point a kernel is used, in powers of 2 */
#define REAL_CANCELLED (REAL)(REAL_IS_FLOAT ? 0.0625 : 0.001) /* less of |x|^2 + |y|^2 left is computed pair by pair */
#define REAL_LARGEST (REAL_IS_FLOAT ? 0x1p30 : 0x1p200) /* entry of v */

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

/* A function of points or costs in float32 (`single`) or float64. */
#define EITHER(f, ...) (single ? BEST(f##_32)(__VA_ARGS__) : BEST(f##_64)(__VA_ARGS__))

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

/* With room for costs, kernel and Newton's matrix, or without. */
static int64_t lay_out(State *s, double *block, int64_t n, int64_t m, int32_t matrices)
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
    s->scratch = take(block, &at, 4 * w), s->absorbed = take(block, &at, w);
    s->top = take(block, &at, 3 * s->row_stride); /* and two more vectors over rows */
    s->v = take(block, &at, w), s->image = take(block, &at, w), s->part = take(block, &at, w);
    s->left_out = (uint8_t *)take(block, &at, w / 8);
    if (matrices) {
        s->costs = take(block, &at, n * w), s->kernel = take(block, &at, n * w);
        s->matrix = take(block, &at, m * w), s->index = (int32_t *)take(block, &at, w / 2);
    }
    return at;
}

/* Numbers (float64) in the block of a problem's state. */
EXPORT int64_t dps_state_size(int64_t n, int64_t m, int32_t matrices)
{
    State s;
    return lay_out(&s, NULL, n, m, matrices);
}

/* Start at g = 0. In the kernel domain costs and a kernel, in float32 or float64, stay with the caller; else the
 * kernel is NULL and the costs, in float64, are copied. where: places of g, f, the residual, the new direction and
 * the trial g in the block. */
EXPORT void dps_state_start(double *block, int32_t single, const void *costs, void *kernel, const double *a,
                            const double *b, int64_t n, int64_t m, int64_t *where)
{
    State *s = (State *)block;
    lay_out(s, block, n, m, !kernel);
    memset(block + STATE_NUMBERS, 0, (size_t)(dps_state_size(n, m, 0) - STATE_NUMBERS) * sizeof(double));
    memcpy(s->a, a, (size_t)n * sizeof(double));
    memcpy(s->b, b, (size_t)m * sizeof(double));
    s->outer_costs = costs, s->outer_kernel = kernel, s->single = single;
    for (int64_t i = 0; !kernel && i < n; i++)
        for (int64_t j = 0; j < s->stride; j++)
            s->costs[i * s->stride + j] = j < m ? ((const double *)costs)[i * m + j] : INFINITY;
    logs(b, m, s->log2_b);
    for (int64_t j = 0; j < m; j++)
        s->left_out[j] = b[j] <= 0.0;
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
    const int32_t single = s->single;
    const unsigned before = subnormals_off();
    for (int64_t j = 0; j < s->stride; j++)
        s->trial_g[j] = s->g[j] + step * s->direction[j];
    if (s->outer_kernel)
        EITHER(point, s, regularization, out);
    else
        BEST(evaluate)(s, regularization, out);
    subnormals_back(before);
}

/* Steps of Sinkhorn from g, in the kernel domain. out: value and error of the last point, number of points. */
EXPORT void dps_scaling_steps(State *s, double regularization, double target, int64_t limit, int64_t patience,
                              double *out)
{
    const int32_t single = s->single;
    const unsigned before = subnormals_off();
    memcpy(s->trial_g, s->g, (size_t)s->columns * sizeof(double));
    EITHER(scale, s, regularization, target, limit, patience, out);
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

/* out: slope, whether there is a solution, length. Accuracy and limit are for the kernel domain. */
EXPORT void dps_newton(State *s, double ridge, double accuracy, int64_t limit, double *out)
{
    const int32_t single = s->single;
    const unsigned before = subnormals_off();
    if (s->outer_kernel)
        EITHER(conjugate, s, ridge, accuracy, limit, out);
    else
        BEST(newton)(s, ridge, out);
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

EXPORT void dps_plan(const void *costs, const double *f, const double *g, const double *a, const double *b,
                     double *scratch, void *out, int64_t n, int64_t m, double regularization, int32_t single)
{
    const double scale = 1.0 / (regularization * LN2);
    EITHER(plan, costs, f, g, a, b, scratch, out, n, m, scale);
}

EXPORT void dps_settle(const double *costs, const double *plan, const double *a, const double *b, double *f, double *g,
                       double *scratch, int64_t n, int64_t m, double *out)
{
    BEST(settle)(costs, plan, a, b, f, g, scratch, n, m, out);
}

EXPORT void dps_range(const double *values, int64_t count, double *out) { BEST(range_64)(values, count, out); }

EXPORT int32_t dps_finite(int32_t single, const void *values, int64_t count) { return EITHER(finite, values, count); }

EXPORT void dps_pairwise(int32_t single, const void *x, const void *y, void *out, int64_t n, int64_t m, int64_t d,
                         int32_t squared, double l1_weight)
{
    EITHER(pairwise, x, y, out, n, m, d, squared, l1_weight);
}

EXPORT void dps_finish(int32_t single, const void *x, const void *y, const void *x_squares, const void *y_squares,
                       void *costs, int64_t n, int64_t m, int64_t d)
{
    EITHER(finish, x, y, x_squares, y_squares, costs, n, m, d);
}

/* Returns 0, or 1 where there is no memory for a row. */
EXPORT int32_t dps_gradient(int32_t single, const void *x, const void *y, const void *plan, void *out, int64_t n,
                            int64_t m, int64_t d, int32_t squared, double l1_weight)
{
    int32_t *index = malloc((size_t)(m + 4) * sizeof *index);
    void *weight = malloc((size_t)(m + 4) * sizeof(double));
    const int32_t failed = !index || !weight;
    if (!failed)
        EITHER(gradient, x, y, plan, out, n, m, d, squared, l1_weight, index, weight);
    free(index), free(weight);
    return failed;
}

EXPORT void dps_centre(int32_t single, const void *x, void *y, void *centre, void *squares, int64_t n, int64_t d,
                       int32_t mean)
{
    EITHER(centre, x, y, centre, squares, n, d, mean);
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
    const int64_t state = dps_state_size(n, m, 0);
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
    else
        dps_pairwise(single, x, y, wide ? plan : costs, n, m, d, squared, l1_weight);
    for (size_t k = 0; wide && k < pairs; k++)
        costs[k] = ((float *)plan)[k];
    if (single && !wide)
        BEST(range_32)((float *)costs, n * m, ends);
    else
        BEST(range_64)(costs, n * m, ends);
    width = ends[1] - ends[0]; /* NaN where a cost is not finite */
    if (width <= settings[9] * regularization && ends[1] <= settings[10] * regularization &&
        width >= settings[11] * regularization) {
        dps_state_start(block, single && !wide, costs, kernel, a, b, n, m, where);
        for (stage = settings[3] * width;; stage *= settings[4]) {
            const int last = !(stage > regularization);
            const double target = last ? settings[2] : settings[5];
            const double limit = settings[7] - spent - (last ? 0.0 : 1.0);
            dps_scaling_steps(s, last ? regularization : stage, target,
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
        failed |= in_x && dps_gradient(single, x, y, plan, in_x, n, m, d, squared, l1_weight);
        failed |= in_y && dps_gradient(single, y, x, turned, in_y, m, n, d, squared, l1_weight);
    }
    free(block);
    return failed;
}
