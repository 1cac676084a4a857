/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of an im2row matrix that the DMA cannot fetch as they are: of a patch that is no solid box (padding,
 * dilation, zeros between strided gradients) the DMA has brought the box that encloses what it reads. Boxes lie one
 * behind the other, patch by patch; those that are solid are rows of the matrix already. Kernel positions are those
 * of im2row.c. */
#include "kernels.h"

/* arguments */
struct im2row_border {
    const float *X;
    float *R;
    int channels, patch_rows, patch_columns, taps_h, taps_w, height, width;
    int step_h, step_w, divisor_h, divisor_w, dilation_h, dilation_w, row_first, column_first, hwc, first_row;
};
/* end */

/* What a position reads along an axis: elements start .. stop, `solid` if that is one for each kernel position. */
struct line { int start, stop, solid; };

/* The row (column) that kernel position k of a position reads, or -1. */
PT_INLINE int row_of(const struct im2row_border *g, int h, int k)
{
    const int at = h * g->step_h + k * g->dilation_h + g->row_first;
    return at >= 0 && at % g->divisor_h == 0 && at / g->divisor_h < g->height ? at / g->divisor_h : -1;
}

PT_INLINE int column_of(const struct im2row_border *g, int w, int k)
{
    const int at = w * g->step_w + k * g->dilation_w + g->column_first;
    return at >= 0 && at % g->divisor_w == 0 && at / g->divisor_w < g->width ? at / g->divisor_w : -1;
}

PT_INLINE struct line line_of(const struct im2row_border *g, int position, int is_row)
{
    struct line line = {0, 0, 1};
    for (int k = 0; k < (is_row ? g->taps_h : g->taps_w); k++) {
        const int at = is_row ? row_of(g, position, k) : column_of(g, position, k);
        if (at >= 0) {
            if (line.stop == 0)
                line.start = at;
            line.stop = at + 1;
        }
        line.solid &= at >= 0 && at - line.start == k;
    }
    return line;
}

/* Channels over the cores. */
void im2row_border(const void *args)
{
    PT_ARGUMENTS(im2row_border, g);
    const struct pt_range own = pt_own(g->channels);
    const int window = g->taps_h * g->taps_w;
    PT_POINTER box = g->X;
    for (int h = 0; h < g->patch_rows; h++) {
        const struct line y = line_of(g, h, 1);
        for (int w = 0; w < g->patch_columns; w++) {
            const struct line x = line_of(g, w, 0);
            const int high = y.stop - y.start, wide = x.stop - x.start;
            PT_POINTER row = g->R + (h * g->patch_columns + w - g->first_row) * window * g->channels;
            for (int c = own.start; !(y.solid && x.solid) && c < own.stop; c++)
                for (int e = 0; e < window; e++) {
                    const int i = row_of(g, h, e / g->taps_w), j = column_of(g, w, e % g->taps_w);
                    const int in_plane = (i - y.start) * wide + j - x.start;
                    const int at = g->hwc ? in_plane * g->channels + c : c * high * wide + in_plane;
                    PT_STORE(row, g->hwc ? e * g->channels + c : c * window + e,
                             i >= 0 && j >= 0 ? PT_LOAD(box, at) : 0.0f);
                }
            box += g->channels * high * wide;
        }
    }
}
