/* SPDX-License-Identifier: Apache-2.0
 *
 * PULP-TrainLib's direct convolution, CHW without padding, groups or bias: channels of the result over the cores. */
#include "kernels.h"

/* arguments */
struct naive_fw { const float *X, *W; float *Y; int X_s[3], W_s[4], Y_s[3], ci, co, ho, wo, hk, wk, stride; };
struct naive_ig { const float *Y, *W; float *X; int X_s[3], W_s[4], Y_s[3], ci, co, hi, wi, ho, wo, hk, wk, row_first,
                  column_first; };
struct naive_wg { const float *X, *Y; float *W; int X_s[3], W_s[4], Y_s[3], ci, co, ho, wo, hk, wk, stride; };
/* end */

void naive_fw(const void *args)
{
    PT_ARGUMENTS(naive_fw, g);
    const struct pt_range own = pt_own(g->co);
    for (int o = own.start; o < own.stop; o++)
        for (int h = 0; h < g->ho; h++)
            for (int w = 0; w < g->wo; w++) {
                float sum = 0.0f;
                for (int c = 0; c < g->ci; c++)
                    for (int y = 0; y < g->hk; y++) {
                        PT_POINTER filter = g->W + o * g->W_s[0] + c * g->W_s[1] + y * g->W_s[2];
                        PT_POINTER x = g->X + c * g->X_s[0] + (h * g->stride + y) * g->X_s[1] + w * g->stride;
                        for (int k = 0; k < g->wk; k++)
                            sum = fmaf(PT_LOAD(filter, k), PT_LOAD(x, k), sum);
                    }
                PT_STORE(g->Y, o * g->Y_s[0] + h * g->Y_s[1] + w, sum);
            }
}

/* Every kernel position is tested against the borders of dy; the window is turned round. */
void naive_ig(const void *args)
{
    PT_ARGUMENTS(naive_ig, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->hi; h++)
            for (int w = 0; w < g->wi; w++) {
                float sum = 0.0f;
                for (int o = 0; o < g->co; o++)
                    for (int y = 0; y < g->hk; y++) {
                        const int row = h + y + g->row_first;
                        PT_POINTER filter = g->W + o * g->W_s[0] + c * g->W_s[1] + (g->hk - 1 - y) * g->W_s[2];
                        PT_POINTER dy = g->Y + o * g->Y_s[0] + row * g->Y_s[1];
                        if (row < 0 || row >= g->ho)
                            continue;
                        for (int k = 0; k < g->wk; k++) {
                            const int column = w + k + g->column_first;
                            if (column >= 0 && column < g->wo)
                                sum = fmaf(PT_LOAD(filter, g->wk - 1 - k), PT_LOAD(dy, column), sum);
                        }
                    }
                PT_STORE(g->X, c * g->X_s[0] + h * g->X_s[1] + w, sum);
            }
}

void naive_wg(const void *args)
{
    PT_ARGUMENTS(naive_wg, g);
    const struct pt_range own = pt_own(g->co);
    for (int o = own.start; o < own.stop; o++)
        for (int c = 0; c < g->ci; c++)
            for (int y = 0; y < g->hk; y++)
                for (int k = 0; k < g->wk; k++) {
                    float sum = 0.0f;
                    for (int h = 0; h < g->ho; h++) {
                        PT_POINTER dy = g->Y + o * g->Y_s[0] + h * g->Y_s[1];
                        PT_POINTER x = g->X + c * g->X_s[0] + (h * g->stride + y) * g->X_s[1] + k;
                        for (int w = 0; w < g->wo; w++)
                            sum = fmaf(PT_LOAD(dy, w), PT_LOAD(x, w * g->stride), sum);
                    }
                    PT_STORE(g->W, o * g->W_s[0] + c * g->W_s[1] + y * g->W_s[2] + k, sum);
                }
}
