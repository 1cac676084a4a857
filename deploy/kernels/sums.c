/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over the rows or the columns of matrices, and a bias per row. */
#include "kernels.h"

/* arguments */
struct column_sum { const float *X; float *Y; int X_s[2], Y_s[1], N, M; };
struct row_sum { const float *X; float *Y; int X_s[3], Y_s[1], P, N, M; };
struct row_total { const float *X; float *Z; int X_s[2], Z_s[1], N, M; };
struct row_bias { const float *G; float *Y; int Y_s[2], G_s[1], N, M; };
/* end */

/* Columns over the cores. */
void column_sum(const void *args)
{
    PT_ARGUMENTS(column_sum, g);
    const struct pt_range own = pt_own(g->M);
    for (int j = own.start; j < own.stop; j++) {
        float sum = 0.0f;
        for (int i = 0; i < g->N; i++)
            sum += PT_LOAD(g->X, i * g->X_s[0] + j * g->X_s[1]);
        PT_STORE(g->Y, j * g->Y_s[0], sum);
    }
}

/* Row n of all P matrices; rows over the cores. */
void row_sum(const void *args)
{
    PT_ARGUMENTS(row_sum, g);
    const struct pt_range own = pt_own(g->N);
    for (int i = own.start; i < own.stop; i++) {
        float sum = 0.0f;
        for (int p = 0; p < g->P; p++)
            for (int j = 0; j < g->M; j++)
                sum += PT_LOAD(g->X, p * g->X_s[0] + i * g->X_s[1] + j * g->X_s[2]);
        PT_STORE(g->Y, i * g->Y_s[0], sum);
    }
}

/* Rows over the cores. */
void row_total(const void *args)
{
    PT_ARGUMENTS(row_total, g);
    const struct pt_range own = pt_own(g->N);
    for (int i = own.start; i < own.stop; i++) {
        float sum = 0.0f;
        for (int j = 0; j < g->M; j++)
            sum += PT_LOAD(g->X, i * g->X_s[0] + j * g->X_s[1]);
        PT_STORE(g->Z, i * g->Z_s[0], sum);
    }
}

/* Y[n,m] += G[n], rows over the cores. */
void row_bias(const void *args)
{
    PT_ARGUMENTS(row_bias, g);
    const struct pt_range own = pt_own(g->N);
    for (int i = own.start; i < own.stop; i++) {
        const float bias = PT_LOAD(g->G, i * g->G_s[0]);
        for (int j = 0; j < g->M; j++)
            PT_ADD(g->Y, i * g->Y_s[0] + j * g->Y_s[1], bias);
    }
}
