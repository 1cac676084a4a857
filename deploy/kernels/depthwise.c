/* SPDX-License-Identifier: Apache-2.0
 *
 * PULP-TrainLib's depthwise loops, CHW: channels over the cores. In its gradients every core computes all channels and
 * writes them; here each core takes its own. */
#include "kernels.h"

/* arguments */
struct dw_fw {
    const float *X, *W;
    float *Y;
    int X_s[3], W_s[3], Y_s[3], ci, hi, wi, ho, wo, hk, wk, stride, padded, row_first, column_first;
    int own_first, own_group, met_first, met_group;
};
struct dw_ig { const float *Y, *W; float *X; int X_s[3], W_s[3], Y_s[3], ci, hi, wi, ho, wo, hk, wk, row_first,
               column_first; };
struct dw_wg { const float *X, *Y; float *W; int X_s[3], W_s[3], Y_s[3], ci, ho, wo, hk, wk; };
/* end */

/* Each channel meets one of its group, which is itself where there is one to a group. */
PT_INLINE void forward(const struct dw_fw *g, int padded)
{
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++) {
        PT_POINTER plane = g->X + (g->met_first + (g->own_first + c) / g->own_group * g->met_group) * g->X_s[0];
        for (int h = 0; h < g->ho; h++)
            for (int w = 0; w < g->wo; w++) {
                float sum = 0.0f;
                for (int y = 0; y < g->hk; y++) {
                    const int row = h * g->stride + y + g->row_first;
                    PT_POINTER filter = g->W + c * g->W_s[0] + y * g->W_s[1];
                    PT_POINTER x = plane + row * g->X_s[1];
                    if (padded && (row < 0 || row >= g->hi))
                        continue;
                    for (int k = 0; k < g->wk; k++) {
                        const int column = w * g->stride + k + g->column_first;
                        if (!padded || (column >= 0 && column < g->wi))
                            sum = fmaf(PT_LOAD(filter, k), PT_LOAD(x, column), sum);
                    }
                }
                PT_STORE(g->Y, c * g->Y_s[0] + h * g->Y_s[1] + w, sum);
            }
    }
}

/* With padding every kernel position is tested. */
void dw_fw(const void *args)
{
    PT_ARGUMENTS(dw_fw, g);
    if (g->padded)
        forward(g, 1);
    else
        forward(g, 0);
}

void dw_ig(const void *args)
{
    PT_ARGUMENTS(dw_ig, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->hi; h++)
            for (int w = 0; w < g->wi; w++) {
                float sum = 0.0f;
                for (int y = 0; y < g->hk; y++) {
                    const int row = h + y + g->row_first;
                    PT_POINTER filter = g->W + c * g->W_s[0] + (g->hk - 1 - y) * g->W_s[1];
                    PT_POINTER dy = g->Y + c * g->Y_s[0] + row * g->Y_s[1];
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

void dw_wg(const void *args)
{
    PT_ARGUMENTS(dw_wg, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++)
        for (int y = 0; y < g->hk; y++)
            for (int k = 0; k < g->wk; k++) {
                float sum = 0.0f;
                for (int h = 0; h < g->ho; h++) {
                    PT_POINTER dy = g->Y + c * g->Y_s[0] + h * g->Y_s[1];
                    PT_POINTER x = g->X + c * g->X_s[0] + (h + y) * g->X_s[1] + k;
                    for (int w = 0; w < g->wo; w++)
                        sum = fmaf(PT_LOAD(dy, w), PT_LOAD(x, w), sum);
                }
                PT_STORE(g->W, c * g->W_s[0] + y * g->W_s[1] + k, sum);
            }
}
