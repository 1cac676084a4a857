/* SPDX-License-Identifier: Apache-2.0
 *
 * ReLU with a trained slope W[channel] on [samples, channels, elements]: elements over the cores, or channels where there
 * are more of these. */
#include "kernels.h"

/* arguments */
struct prelu_fw { const float *X, *W; float *Y; int samples, channels, elements; };
struct prelu_bw { const float *X, *G, *W; float *Y; int samples, channels, elements; };
struct prelu_wg { const float *X, *G; float *Y; int samples, channels, elements; };
/* end */

/* Y = G where X > 0, else W G. */
void prelu_bw(const void *args)
{
    PT_ARGUMENTS(prelu_bw, a);
    const int wide = a->elements > a->channels;
    const struct pt_range own = pt_own(wide ? a->elements : a->channels);
    const struct pt_range channels = wide ? (struct pt_range){0, a->channels} : own;
    const struct pt_range elements = wide ? own : (struct pt_range){0, a->elements};
    for (int n = 0; n < a->samples; n++)
        for (int c = channels.start; c < channels.stop; c++) {
            const float slope = PT_LOAD(a->W, c);
            const int row = (n * a->channels + c) * a->elements;
            for (int i = row + elements.start; i < row + elements.stop; i++)
                PT_STORE(a->Y, i, PT_LOAD(a->X, i) > 0.0f ? PT_LOAD(a->G, i) : slope * PT_LOAD(a->G, i));
        }
}

void prelu_fw(const void *args)
{
    PT_ARGUMENTS(prelu_fw, a);
    const struct prelu_bw same = {a->X, a->X, a->W, a->Y, a->samples, a->channels, a->elements};
    prelu_bw(&same);
}

/* Y[c] = sum of G X where X <= 0; channels over the cores. */
void prelu_wg(const void *args)
{
    PT_ARGUMENTS(prelu_wg, a);
    const struct pt_range own = pt_own(a->channels);
    for (int c = own.start; c < own.stop; c++) {
        float sum = 0.0f;
        for (int n = 0; n < a->samples; n++) {
            const int row = (n * a->channels + c) * a->elements;
            for (int i = row; i < row + a->elements; i++)
                sum += PT_LOAD(a->X, i) > 0.0f ? 0.0f : PT_LOAD(a->X, i) * PT_LOAD(a->G, i);
        }
        PT_STORE(a->Y, c, sum);
    }
}
