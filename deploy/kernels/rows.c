/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes of softmax and log-softmax over a matrix of N rows of M elements, rows over the cores. R and Z hold a number a
 * row: maxima and sums. */
#include "kernels.h"
#include "elementary.h"

/* arguments */
struct row_max { const float *X; float *R; int N, M; };
struct exp_sum { const float *X, *R; float *Y, *Z; int N, M; };
struct row_div { float *X; const float *Z; int N, M; };
struct softmax_bw_sum { const float *X, *G; float *Z; int N, M; };
struct softmax_bw_scale { const float *X, *G, *Z; float *Y; int N, M; };
struct log_sum { const float *X, *R; float *Z; int N, M; };
struct log_shift { const float *X, *R, *Z; float *Y; int N, M; };
struct log_softmax_bw { const float *X, *G, *Z; float *Y; int N, M; };
/* end */

void row_max(const void *args)
{
    PT_ARGUMENTS(row_max, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++) {
        PT_POINTER x = a->X + i * a->M;
        float largest = PT_LOAD(x, 0);
        for (int j = 1; j < a->M; j++)
            largest = pt_maximum(largest, PT_LOAD(x, j));
        PT_STORE(a->R, i, largest);
    }
}

/* e^x by N. Schraudolph's bit trick (1999) with PULP-TrainLib's constants. */
PT_INLINE float schraudolph(float x)
{
    const float bits = 12102203.17133801f * x + 1064986823.010288f;
    return bits < 8388608.0f ? 0.0f : pt_float_of_bits((uint32_t)pt_minimum(bits, 2139095040.0f));
}

/* e^x for x <= 0 by PULP-TrainLib's polynomial for 2^-d; 0 for d >= 3.14. */
PT_INLINE float taylor(float x)
{
    const float y = -x;
    const float series = ((((-0.008f * y + 0.0416f) * y - 0.16f) * y + 0.5f) * y - 1.0f) * y + 1.0f;
    return y * 1.44269504f < 3.14f ? series : 0.0f;
}

/* Y = exponential(X - R), and the sums of its rows. */
PT_INLINE void exp_sums(const struct exp_sum *a, float (*exponential)(float))
{
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++) {
        PT_POINTER x = a->X + i * a->M;
        const float largest = PT_LOAD(a->R, i);
        PT_POINTER y = a->Y + i * a->M;
        float sum = 0.0f;
        for (int j = 0; j < a->M; j++) {
            const float e = exponential(PT_LOAD(x, j) - largest);
            PT_STORE(y, j, e);
            sum += e;
        }
        PT_STORE(a->Z, i, sum);
    }
}

void exp_sum(const void *args)
{
    PT_ARGUMENTS(exp_sum, a);
    exp_sums(a, schraudolph);
}

void exp_sum_exact(const void *args)
{
    PT_ARGUMENTS(exp_sum, a);
    exp_sums(a, expf);
}

void exp_sum_taylor(const void *args)
{
    PT_ARGUMENTS(exp_sum, a);
    exp_sums(a, taylor);
}

void row_div(const void *args)
{
    PT_ARGUMENTS(row_div, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++)
        for (int j = 0; j < a->M; j++)
            PT_STORE(a->X, i * a->M + j, PT_LOAD(a->X, i * a->M + j) / PT_LOAD(a->Z, i));
}

/* Z = sum of G * X of every row: of dy * y. */
void softmax_bw_sum(const void *args)
{
    PT_ARGUMENTS(softmax_bw_sum, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++) {
        float sum = 0.0f;
        for (int j = i * a->M; j < (i + 1) * a->M; j++)
            sum += PT_LOAD(a->X, j) * PT_LOAD(a->G, j);
        PT_STORE(a->Z, i, sum);
    }
}

void softmax_bw_scale(const void *args)
{
    PT_ARGUMENTS(softmax_bw_scale, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++)
        for (int j = i * a->M; j < (i + 1) * a->M; j++)
            PT_STORE(a->Y, j, (PT_LOAD(a->G, j) - PT_LOAD(a->Z, i)) * PT_LOAD(a->X, j));
}

/* Z = log of the sum of e^(X - R): of 1, which a largest element gives, and the rest, so that a sum near 1 keeps its
 * digits. */
void log_sum(const void *args)
{
    PT_ARGUMENTS(log_sum, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++) {
        PT_POINTER x = a->X + i * a->M;
        const float largest = PT_LOAD(a->R, i);
        float rest = 0.0f;
        int left_out = 0;
        for (int j = 0; j < a->M; j++) {
            if (!left_out && PT_LOAD(x, j) == largest)
                left_out = 1;
            else
                rest += expf(PT_LOAD(x, j) - largest);
        }
        PT_STORE(a->Z, i, log1pf(rest));
    }
}

void log_shift(const void *args)
{
    PT_ARGUMENTS(log_shift, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++)
        for (int j = i * a->M; j < (i + 1) * a->M; j++)
            PT_STORE(a->Y, j, PT_LOAD(a->X, j) - PT_LOAD(a->R, i) - PT_LOAD(a->Z, i));
}

/* dx = dy - e^y * sum(dy); near y = 0, where both nearly cancel, (dy - sum) - (e^y - 1) * sum. */
void log_softmax_bw(const void *args)
{
    PT_ARGUMENTS(log_softmax_bw, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++) {
        const float sum = PT_LOAD(a->Z, i);
        for (int j = i * a->M; j < (i + 1) * a->M; j++) {
            const float y = PT_LOAD(a->X, j), dy = PT_LOAD(a->G, j);
            PT_STORE(a->Y, j, y > -0.7f ? (dy - sum) - expm1f(y) * sum : dy - expf(y) * sum);
        }
    }
}
