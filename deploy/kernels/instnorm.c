/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms of groups of one channel, as PULP-TrainLib's instance norm: channels of one sample over the cores. The formulas are
 * those of norm.c. */
#include "kernels.h"

/* arguments */
struct instnorm_fw { const float *X, *W, *B; float *Y, *M, *R; int channels, elements, has_w, has_b; float eps; };
struct instnorm_bw_param { const float *X, *G, *M, *R; float *W, *B; int channels, elements, has_dw, has_db, adds; };
struct instnorm_bw_input { const float *X, *G, *M, *R, *W; float *Y; int channels, elements, has_w; };
/* end */

void instnorm_fw(const void *args)
{
    PT_ARGUMENTS(instnorm_fw, a);
    const struct pt_range own = pt_own(a->channels);
    for (int c = own.start; c < own.stop; c++) {
        const float *x = a->X + c * a->elements, count = a->elements;
        float sum = 0.0f, offsets = 0.0f, squares = 0.0f;
        for (int i = 0; i < a->elements; i++)
            sum += x[i];
        const float first = sum / count;
        for (int i = 0; i < a->elements; i++) {
            offsets += x[i] - first;
            squares += (x[i] - first) * (x[i] - first);
        }
        const float rest = offsets / count, inverse = 1.0f / sqrtf((squares - offsets * rest) / count + a->eps);
        const float w = a->has_w ? a->W[c] * inverse : inverse, b = a->has_b ? a->B[c] : 0.0f;
        a->M[c] = first + rest;
        a->R[c] = inverse;
        for (int i = 0; i < a->elements; i++)
            a->Y[c * a->elements + i] = (x[i] - first - rest) * w + b;
    }
}

void instnorm_bw_param(const void *args)
{
    PT_ARGUMENTS(instnorm_bw_param, a);
    const struct pt_range own = pt_own(a->channels);
    for (int c = own.start; c < own.stop; c++) {
        float dw = 0.0f, db = 0.0f;
        for (int i = c * a->elements; i < (c + 1) * a->elements; i++) {
            dw += a->G[i] * (a->X[i] - a->M[c]);
            db += a->G[i];
        }
        if (a->has_dw)
            a->W[c] = (a->adds ? a->W[c] : 0.0f) + dw * a->R[c];
        if (a->has_db)
            a->B[c] = (a->adds ? a->B[c] : 0.0f) + db;
    }
}

void instnorm_bw_input(const void *args)
{
    PT_ARGUMENTS(instnorm_bw_input, a);
    const struct pt_range own = pt_own(a->channels);
    for (int c = own.start; c < own.stop; c++) {
        const float *x = a->X + c * a->elements, *dy = a->G + c * a->elements, mean = a->M[c], inverse = a->R[c];
        float sum = 0.0f, along = 0.0f;
        for (int i = 0; i < a->elements; i++) {
            sum += dy[i];
            along += dy[i] * (x[i] - mean);
        }
        const float of_g = sum / a->elements, of_gx = along * inverse * inverse / a->elements;
        const float factor = a->has_w ? a->W[c] * inverse : inverse;
        for (int i = 0; i < a->elements; i++)
            a->Y[c * a->elements + i] = (dy[i] - of_g - (x[i] - mean) * of_gx) * factor;
    }
}
