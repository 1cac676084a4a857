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
        PT_POINTER x = a->X + c * a->elements;
        const float count = a->elements;
        float sum = 0.0f, offsets = 0.0f, squares = 0.0f;
        for (int i = 0; i < a->elements; i++)
            sum += PT_LOAD(x, i);
        const float first = sum / count;
        for (int i = 0; i < a->elements; i++) {
            offsets += PT_LOAD(x, i) - first;
            squares += (PT_LOAD(x, i) - first) * (PT_LOAD(x, i) - first);
        }
        const float rest = offsets / count, inverse = 1.0f / sqrtf((squares - offsets * rest) / count + a->eps);
        const float w = a->has_w ? PT_LOAD(a->W, c) * inverse : inverse, b = a->has_b ? PT_LOAD(a->B, c) : 0.0f;
        PT_STORE(a->M, c, first + rest);
        PT_STORE(a->R, c, inverse);
        for (int i = 0; i < a->elements; i++)
            PT_STORE(a->Y, c * a->elements + i, (PT_LOAD(x, i) - first - rest) * w + b);
    }
}

void instnorm_bw_param(const void *args)
{
    PT_ARGUMENTS(instnorm_bw_param, a);
    const struct pt_range own = pt_own(a->channels);
    for (int c = own.start; c < own.stop; c++) {
        float dw = 0.0f, db = 0.0f;
        for (int i = c * a->elements; i < (c + 1) * a->elements; i++) {
            dw += PT_LOAD(a->G, i) * (PT_LOAD(a->X, i) - PT_LOAD(a->M, c));
            db += PT_LOAD(a->G, i);
        }
        if (a->has_dw)
            PT_STORE(a->W, c, (a->adds ? PT_LOAD(a->W, c) : 0.0f) + dw * PT_LOAD(a->R, c));
        if (a->has_db)
            PT_STORE(a->B, c, (a->adds ? PT_LOAD(a->B, c) : 0.0f) + db);
    }
}

void instnorm_bw_input(const void *args)
{
    PT_ARGUMENTS(instnorm_bw_input, a);
    const struct pt_range own = pt_own(a->channels);
    for (int c = own.start; c < own.stop; c++) {
        PT_POINTER x = a->X + c * a->elements;
        PT_POINTER dy = a->G + c * a->elements;
        const float mean = PT_LOAD(a->M, c), inverse = PT_LOAD(a->R, c);
        float sum = 0.0f, along = 0.0f;
        for (int i = 0; i < a->elements; i++) {
            sum += PT_LOAD(dy, i);
            along += PT_LOAD(dy, i) * (PT_LOAD(x, i) - mean);
        }
        const float of_g = sum / a->elements, of_gx = along * inverse * inverse / a->elements;
        const float factor = a->has_w ? PT_LOAD(a->W, c) * inverse : inverse;
        for (int i = 0; i < a->elements; i++)
            PT_STORE(a->Y, c * a->elements + i, (PT_LOAD(dy, i) - of_g - (PT_LOAD(x, i) - mean) * of_gx) * factor);
    }
}
