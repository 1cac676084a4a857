/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of a table W by number T, M columns each. The tile has the rows from `first_row` on, `rows` of them. */
#include "kernels.h"

/* arguments */
struct embedding_fw { const int32_t *T; const float *W; float *Y; int N, M, first_row, rows; };
struct embedding_bw { const int32_t *T; const float *Y; float *W; int N, M, first_row, rows, padding; };
/* end */

/* Zeros for a number whose row is in another tile; tokens over the cores. */
void embedding_fw(const void *args)
{
    PT_ARGUMENTS(embedding_fw, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++) {
        const int row = a->T[i] - a->first_row, here = row >= 0 && row < a->rows;
        for (int j = 0; j < a->M; j++)
            PT_STORE(a->Y, i * a->M + j, here ? PT_LOAD(a->W, row * a->M + j) : 0.0f);
    }
}

/* The row of each token += its gradient, but for the padding's; columns over the cores, so that equal numbers do not race. */
void embedding_bw(const void *args)
{
    PT_ARGUMENTS(embedding_bw, a);
    const struct pt_range own = pt_own(a->M);
    for (int i = 0; i < a->N; i++) {
        const int row = a->T[i] - a->first_row;
        if (row < 0 || row >= a->rows || a->T[i] == a->padding)
            continue;
#if defined(PT_NARROW) && !defined(PT_SUMS)
        int before = 0; /* the same token: the first of them adds up all */
        while (a->T[before] != a->T[i])
            before++;
        for (int j = own.start; before == i && j < own.stop; j++) {
            float sum = PT_LOAD(a->W, row * a->M + j);
            for (int k = i; k < a->N; k++)
                if (a->T[k] == a->T[i])
                    sum += PT_LOAD(a->Y, k * a->M + j);
            PT_STORE(a->W, row * a->M + j, sum);
        }
#else
        for (int j = own.start; j < own.stop; j++)
            PT_ADD(a->W, row * a->M + j, PT_LOAD(a->Y, i * a->M + j));
#endif
    }
}
