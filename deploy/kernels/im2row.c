/* SPDX-License-Identifier: Apache-2.0
 *
 * Patches of an image as the rows of a matrix R (im2row), or as its columns (im2col); padding gives zeros. Of several
 * groups, each of `per_group` channels, the matrices lie one behind the other.
 *
 * Kernel position (y, k) of the patch at (h, w) reads row (h * step_h + y * dilation_h + row_first) / divisor_h, if that is
 * whole: forward the step is the stride and the divisor 1, in a gradient it is the other way. */
#include "kernels.h"

/* arguments */
struct im2row {
    const float *X;
    float *R;
    int X_s[3], hk, wk, height, width, rows, columns, channels;
    int step_h, step_w, divisor_h, divisor_w, dilation_h, dilation_w, row_first, column_first;
    int per_group, first_channel, group_step, transposed, read_0_n;
};
/* end */

/* Element (y, k) of the patch at (h, w) in a plane of the image. */
PT_INLINE float element(const struct im2row *g, const float *plane, int h, int w, int y, int k, int of_row, int of_column)
{
    const int down = h * g->step_h + y * g->dilation_h + g->row_first, row = down / g->divisor_h;
    const int along = w * g->step_w + k * g->dilation_w + g->column_first, column = along / g->divisor_w;
    const int inside = down >= 0 && along >= 0 && row < g->height && column < g->width &&
                       row * g->divisor_h == down && column * g->divisor_w == along;
    return inside ? plane[row * of_row + column * of_column] : 0.0f;
}

/* CHW: channels over the cores, one kernel row after the other. */
PT_INLINE void of_planes(const struct im2row *g)
{
    const struct pt_range own = pt_own(g->channels);
    const int window = g->hk * g->wk, patch = g->per_group * window, matrix = g->rows * g->columns * patch;
    for (int h = 0; h < g->rows; h++)
        for (int w = 0; w < g->columns; w++)
            for (int c = own.start; c < own.stop; c++) {
                const int group = c / g->per_group, within = c % g->per_group;
                const float *plane = g->X + (g->first_channel + group * g->group_step + within) * g->X_s[0];
                float *row = g->R + group * matrix + (h * g->columns + w) * patch + within * window;
                for (int y = 0; y < g->hk; y++)
                    for (int k = 0; k < g->wk; k++)
                        row[y * g->wk + k] = element(g, plane, h, w, y, k, g->X_s[1], g->X_s[2]);
            }
}

/* HWC: rows of positions over the cores; the channels of a pixel are neighbours in X, and in R unless transposed. */
PT_INLINE void of_pixels(const struct im2row *g)
{
    const struct pt_range own = pt_own(g->rows);
    const int patch = g->hk * g->wk * g->per_group, positions = g->rows * g->columns;
    const int pixel = g->read_0_n / (g->height * g->width);
    const int of_position = g->transposed ? 1 : patch, of_element = g->transposed ? positions : 1;
    for (int h = own.start; h < own.stop; h++)
        for (int w = 0; w < g->columns; w++)
            for (int y = 0; y < g->hk; y++)
                for (int k = 0; k < g->wk; k++)
                    for (int c = 0; c < g->channels; c++) {
                        const int group = c / g->per_group, within = c % g->per_group;
                        const float *plane = g->X + (g->first_channel + group * g->group_step + within);
                        const int tap = (y * g->wk + k) * g->per_group + within;
                        g->R[group * positions * patch + (h * g->columns + w) * of_position + tap * of_element] =
                            element(g, plane, h, w, y, k, g->width * pixel, pixel);
                    }
}

void im2row_fw(const void *args)
{
    const struct im2row *g = args;
    of_planes(g);
}

void im2row_ig(const void *args)
{
    const struct im2row *g = args;
    of_planes(g);
}

void conv_unroll_hwc(const void *args)
{
    const struct im2row *g = args;
    of_pixels(g);
}

void im2row_hwc(const void *args)
{
    const struct im2row *g = args;
    of_pixels(g);
}

void im2col_hwc(const void *args)
{
    const struct im2row *g = args;
    of_pixels(g);
}
