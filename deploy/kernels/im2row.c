/* SPDX-License-Identifier: Apache-2.0
 *
 * Patches of an image as the rows of a matrix R (im2row), or as its columns (im2col); padding gives zeros. Of several
 * groups, each of `per_group` channels, the matrices lie one behind the other.
 *
 * Kernel position (y, k) of the patch at (h, w) reads row (h * step_h + y * dilation_h + row_first) / divisor_h, if
 * that is whole: forward the step is the stride and the divisor 1, in a gradient it is the other way. */
#include "kernels.h"

/* arguments */
struct im2row {
    const float *X;
    float *R;
    int X_s[3], hk, wk, height, width, rows, columns, channels, padded;
    int step_h, step_w, divisor_h, divisor_w, dilation_h, dilation_w, row_first, column_first;
    int per_group, first_channel, group_step, transposed, read_0_n;
};
/* end */

/* The row (column) of the image that is read at `at`, or -1. What is not `tested` is inside, and not divided. */
PT_INLINE int place(int at, int tested, int divisor, int size)
{
    if (!tested)
        return at;
    return at >= 0 && at % divisor == 0 && at / divisor < size ? at / divisor : -1;
}

/* CHW: channels over the cores, one kernel row after the other. */
PT_INLINE void of_planes(const struct im2row *g, int tested, int divisor_h, int divisor_w)
{
    const struct pt_range own = pt_own(g->channels);
    const int window = g->hk * g->wk, patch = g->per_group * window, matrix = g->rows * g->columns * patch;
    const int first_group = own.start / g->per_group, first = own.start % g->per_group;
    for (int h = 0; h < g->rows; h++)
        for (int w = 0; w < g->columns; w++) {
            int group = first_group, within = first;
            for (int c = own.start; c < own.stop; c++) {
                PT_POINTER plane = g->X + (g->first_channel + group * g->group_step + within) * g->X_s[0];
                PT_POINTER to = g->R + group * matrix + (h * g->columns + w) * patch + within * window;
                for (int y = 0; y < g->hk; y++) {
                    const int down = h * g->step_h + y * g->dilation_h + g->row_first;
                    const int row = place(down, tested, divisor_h, g->height);
                    PT_POINTER from = plane + row * g->X_s[1];
                    for (int k = 0; k < g->wk; k++, to++) {
                        const int along = w * g->step_w + k * g->dilation_w + g->column_first;
                        const int column = place(along, tested, divisor_w, g->width);
                        PT_STORE(to, 0, tested && (row < 0 || column < 0) ? 0.0f : PT_LOAD(from, column));
                    }
                }
                if (++within == g->per_group) {
                    within = 0;
                    group++;
                }
            }
        }
}

/* HWC: rows of positions over the cores; the channels of a pixel are neighbours in X, and in R unless transposed. */
PT_INLINE void of_pixels(const struct im2row *g, int tested, int divisor_h, int divisor_w)
{
    const struct pt_range own = pt_own(g->rows);
    const int patch = g->hk * g->wk * g->per_group, positions = g->rows * g->columns;
    const int pixel = g->read_0_n / (g->height * g->width), groups = g->channels / g->per_group;
    const int of_position = g->transposed ? 1 : patch, of_element = g->transposed ? positions : 1;
    for (int h = own.start; h < own.stop; h++)
        for (int w = 0; w < g->columns; w++)
            for (int y = 0; y < g->hk; y++) {
                const int down = h * g->step_h + y * g->dilation_h + g->row_first;
                const int row = place(down, tested, divisor_h, g->height);
                for (int k = 0; k < g->wk; k++) {
                    const int along = w * g->step_w + k * g->dilation_w + g->column_first;
                    const int column = place(along, tested, divisor_w, g->width);
                    for (int group = 0; group < groups; group++) {
                        PT_POINTER from = g->X + (row * g->width + column) * pixel + g->first_channel +
                                            group * g->group_step;
                        PT_POINTER to = g->R + group * positions * patch + (h * g->columns + w) * of_position +
                                    (y * g->wk + k) * g->per_group * of_element;
                        for (int c = 0; c < g->per_group; c++)
                            PT_STORE(to, c * of_element, tested && (row < 0 || column < 0) ? 0.0f : PT_LOAD(from, c));
                    }
                }
            }
}

/* Without padding nothing is tested; of a gradient all is, which divides where it has a stride. */
void im2row_fw(const void *args)
{
    PT_ARGUMENTS(im2row, g);
    if (g->padded)
        of_planes(g, 1, 1, 1);
    else
        of_planes(g, 0, 1, 1);
}

void im2row_ig(const void *args)
{
    PT_ARGUMENTS(im2row, g);
    if (g->divisor_h == 1 && g->divisor_w == 1)
        of_planes(g, 1, 1, 1);
    else
        of_planes(g, 1, g->divisor_h, g->divisor_w);
}

void conv_unroll_hwc(const void *args)
{
    PT_ARGUMENTS(im2row, g);
    if (g->divisor_h != 1 || g->divisor_w != 1)
        of_pixels(g, 1, g->divisor_h, g->divisor_w);
    else if (g->padded)
        of_pixels(g, 1, 1, 1);
    else
        of_pixels(g, 0, 1, 1);
}

PT_KERNEL(im2row_hwc, im2row, of_pixels(g, 0, 1, 1))
PT_KERNEL(im2col_hwc, im2row, of_pixels(g, 0, 1, 1))
