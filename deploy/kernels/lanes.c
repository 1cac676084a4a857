/* SPDX-License-Identifier: Apache-2.0
 *
 * C[N,M] = A[N,K] . B[M,K]: elements of the first paired_rows rows and paired_columns columns have a sum of the even k and one
 * of the odd k. A last even k is added to the first, or apart at the end (tail_apart). Elements over the cores. */
#include "kernels.h"

/* arguments */
struct lanes { const float *A, *B; float *C; int A_s[2], B_s[2], C_s[2], N, K, M,
               paired_rows, paired_columns, tail_apart; };
/* end */

void mm_lanes(const void *args)
{
    PT_ARGUMENTS(lanes, g);
    const struct pt_range own = pt_own(g->N * g->M);
    for (int at = own.start; at < own.stop; at++) {
        const int i = at / g->M, j = at % g->M, paired = i < g->paired_rows && j < g->paired_columns;
        PT_POINTER a = g->A + i * g->A_s[0];
        PT_POINTER b = g->B + j * g->B_s[1];
        const int whole = paired && g->tail_apart ? g->K / 2 * 2 : g->K;
        float sum[2] = {0.0f, 0.0f};
        for (int k = 0; k < whole; k++)
            sum[paired & k] = fmaf(PT_LOAD(a, k), PT_LOAD(b, k), sum[paired & k]);
        sum[0] = fmaf(1.0f, sum[1], sum[0]);
        if (whole < g->K)
            sum[0] = fmaf(1.0f, sum[0], fmaf(PT_LOAD(a, whole), PT_LOAD(b, whole), 0.0f));
        PT_STORE(g->C, i * g->C_s[0] + j, sum[0]);
    }
}
