/* SPDX-License-Identifier: Apache-2.0
 *
 * Y[M,N] = X[N,M] transposed. */
#include "kernels.h"

/* arguments */
struct transpose { const float *X; float *Y; int X_s[2], Y_s[2], N, M; };
/* end */

/* Rows n0 .. n1, columns m0 .. m1 of X. */
PT_INLINE void part(const struct transpose *g, int n0, int n1, int m0, int m1)
{
    for (int n = n0; n < n1; n++)
        for (int m = m0; m < m1; m++)
            PT_STORE(g->Y, m * g->Y_s[0] + n * g->Y_s[1], PT_LOAD(g->X, n * g->X_s[0] + m * g->X_s[1]));
}

/* The larger dimension over the cores. */
void transpose_matrix(const void *args)
{
    PT_ARGUMENTS(transpose, g);
    const struct pt_range own = pt_own(g->M > g->N ? g->M : g->N);
    if (g->M > g->N)
        part(g, 0, g->N, own.start, own.stop);
    else
        part(g, own.start, own.stop, 0, g->M);
}

/* PULP-TrainLib's transposition of any number of dimensions, on a matrix: rows over the cores. */
void transpose_nd(const void *args)
{
    PT_ARGUMENTS(transpose, g);
    const struct pt_range own = pt_own(g->N);
    part(g, own.start, own.stop, 0, g->M);
}
