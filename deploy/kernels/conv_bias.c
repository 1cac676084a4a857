/* SPDX-License-Identifier: Apache-2.0
 *
 * The bias D of a convolution, channels over the cores. */
#include "kernels.h"

/* arguments */
struct conv_bias_fw { const float *D; float *Y; int Y_s[2], channels, positions; };
struct conv_bias_wg { const float *Y; float *D; int image_s[4], channels, samples, first[3], rows, columns; };
/* end */

void conv_bias_fw(const void *args)
{
    PT_ARGUMENTS(conv_bias_fw, g);
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++) {
        PT_POINTER y = g->Y + c * g->Y_s[0];
        const float bias = PT_LOAD(g->D, c);
        for (int p = 0; p < g->positions; p++)
            PT_ADD(y, p * g->Y_s[1], bias);
    }
}

/* Sums over the samples and a box of positions, whose first element is channel, row, column `first` of each image. */
void conv_bias_wg(const void *args)
{
    PT_ARGUMENTS(conv_bias_wg, g);
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++) {
        float sum = 0.0f;
        for (int n = 0; n < g->samples; n++)
            for (int h = 0; h < g->rows; h++) {
                PT_POINTER y = g->Y + n * g->image_s[0] + (g->first[0] + c) * g->image_s[1] +
                                 (g->first[1] + h) * g->image_s[2] + g->first[2] * g->image_s[3];
                for (int w = 0; w < g->columns; w++)
                    sum += PT_LOAD(y, w * g->image_s[3]);
            }
        PT_STORE(g->D, c, sum);
    }
}
