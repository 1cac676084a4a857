/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes of softmax and log-softmax over a matrix of N rows of M elements, rows over the cores. R and Z hold a number a
 * row: maxima and sums. */
#include "kernels.h"
#include "elementary.h"

/* arguments */
struct log_sum { const float *X, *R; float *Z; int N, M; };
struct log_softmax_bw { const float *X, *G, *Z; float *Y; int N, M; };
/* end */

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
