/* SPDX-License-Identifier: Apache-2.0
 *
 * Between a small image [channels, height, width] and a large one [channels, rows, columns], channels over the
 * cores. The boxes begin at row high and column wide of the small image, which has hi x wi pixels, and at row below
 * and column beside of the large one, which has ho x wo. */
#include "kernels.h"

/* arguments */
struct interpolation {
    const float *read_0;
    float *write_0;
    int channels, rows, columns, height, width, high, wide, below, beside, hi, wi, ho, wo;
};
/* end */

/* Two neighbours among `inputs` pixels that an output lies between, and its share of the second. */
struct between { int lower, upper; float share; };

PT_INLINE struct between place(int output, int inputs, int outputs)
{
    const int at = (2 * output + 1) * inputs - outputs, source = at > 0 ? at : 0; /* in halves of an output */
    const int lower = source / (2 * outputs), upper = lower + 1 < inputs ? lower + 1 : inputs - 1;
    return (struct between){lower, upper, (float)(source % (2 * outputs)) / (float)(2 * outputs)};
}

void interp_nearest_fw(const void *args)
{
    PT_ARGUMENTS(interpolation, g);
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->rows; h++) {
            const float *x = g->read_0 + (c * g->height + (h + g->below) * g->hi / g->ho - g->high) * g->width;
            float *y = g->write_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++)
                y[w] = x[(w + g->beside) * g->wi / g->wo - g->wide];
        }
}

/* Added to what is there, where it is in the box. */
void interp_nearest_bw(const void *args)
{
    PT_ARGUMENTS(interpolation, g);
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->rows; h++) {
            const int row = (h + g->below) * g->hi / g->ho - g->high;
            const float *dy = g->read_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++) {
                const int column = (w + g->beside) * g->wi / g->wo - g->wide;
                if (row >= 0 && row < g->height && column >= 0 && column < g->width)
                    g->write_0[(c * g->height + row) * g->width + column] += dy[w];
            }
        }
}

void interp_bilinear_fw(const void *args)
{
    PT_ARGUMENTS(interpolation, g);
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->rows; h++) {
            const struct between down = place(h + g->below, g->hi, g->ho);
            const float *upper = g->read_0 + (c * g->height + down.lower - g->high) * g->width - g->wide;
            const float *lower = g->read_0 + (c * g->height + down.upper - g->high) * g->width - g->wide;
            float *y = g->write_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++) {
                const struct between on = place(w + g->beside, g->wi, g->wo);
                const float above = upper[on.lower] + (upper[on.upper] - upper[on.lower]) * on.share;
                const float below = lower[on.lower] + (lower[on.upper] - lower[on.lower]) * on.share;
                y[w] = above + (below - above) * down.share;
            }
        }
}

/* Added to a pixel if it is in the box. */
PT_INLINE void give(const struct interpolation *g, int c, int row, int column, float value)
{
    row -= g->high;
    column -= g->wide;
    if (row >= 0 && row < g->height && column >= 0 && column < g->width)
        g->write_0[(c * g->height + row) * g->width + column] += value;
}

void interp_bilinear_bw(const void *args)
{
    PT_ARGUMENTS(interpolation, g);
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->rows; h++) {
            const struct between down = place(h + g->below, g->hi, g->ho);
            const float *dy = g->read_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++) {
                const struct between on = place(w + g->beside, g->wi, g->wo);
                const float above = dy[w] * (1.0f - down.share), below = dy[w] * down.share;
                give(g, c, down.lower, on.lower, above * (1.0f - on.share));
                give(g, c, down.lower, on.upper, above * on.share);
                give(g, c, down.upper, on.lower, below * (1.0f - on.share));
                give(g, c, down.upper, on.upper, below * on.share);
            }
        }
}
