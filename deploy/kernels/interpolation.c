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
            PT_POINTER x = g->read_0 + (c * g->height + (h + g->below) * g->hi / g->ho - g->high) * g->width;
            PT_POINTER y = g->write_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++)
                PT_STORE(y, w, PT_LOAD(x, (w + g->beside) * g->wi / g->wo - g->wide));
        }
}

/* Added to what is there, where it is in the box. */
void interp_nearest_bw(const void *args)
{
    PT_ARGUMENTS(interpolation, g);
    const struct pt_range own = pt_own(g->channels);
#ifdef PT_NARROW
    for (int at = own.start * g->height * g->width; at < own.stop * g->height * g->width; at++) {
        const int row = at / g->width % g->height, column = at % g->width, c = at / g->width / g->height;
        float sum = PT_LOAD(g->write_0, at);
        for (int h = 0; h < g->rows; h++)
            for (int w = 0; (h + g->below) * g->hi / g->ho - g->high == row && w < g->columns; w++)
                if ((w + g->beside) * g->wi / g->wo - g->wide == column)
                    sum += PT_LOAD(g->read_0, (c * g->rows + h) * g->columns + w);
        PT_STORE(g->write_0, at, sum);
    }
#else
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->rows; h++) {
            const int row = (h + g->below) * g->hi / g->ho - g->high;
            PT_POINTER dy = g->read_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++) {
                const int column = (w + g->beside) * g->wi / g->wo - g->wide;
                if (row >= 0 && row < g->height && column >= 0 && column < g->width)
                    PT_ADD(g->write_0, (c * g->height + row) * g->width + column, PT_LOAD(dy, w));
            }
        }
#endif
}

void interp_bilinear_fw(const void *args)
{
    PT_ARGUMENTS(interpolation, g);
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->rows; h++) {
            const struct between down = place(h + g->below, g->hi, g->ho);
            PT_POINTER upper = g->read_0 + (c * g->height + down.lower - g->high) * g->width - g->wide;
            PT_POINTER lower = g->read_0 + (c * g->height + down.upper - g->high) * g->width - g->wide;
            PT_POINTER y = g->write_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++) {
                const struct between on = place(w + g->beside, g->wi, g->wo);
                const float above =
                    PT_LOAD(upper, on.lower) + (PT_LOAD(upper, on.upper) - PT_LOAD(upper, on.lower)) * on.share;
                const float below =
                    PT_LOAD(lower, on.lower) + (PT_LOAD(lower, on.upper) - PT_LOAD(lower, on.lower)) * on.share;
                PT_STORE(y, w, above + (below - above) * down.share);
            }
        }
}

/* What a pixel of the large image gives to (row, column) of the small one, added to a sum. */
PT_INLINE float given(float sum, float dy, struct between down, struct between on, int row, int column)
{
    const float above = dy * (1.0f - down.share), below = dy * down.share;
    if (down.lower == row && on.lower == column)
        sum += above * (1.0f - on.share);
    if (down.lower == row && on.upper == column)
        sum += above * on.share;
    if (down.upper == row && on.lower == column)
        sum += below * (1.0f - on.share);
    if (down.upper == row && on.upper == column)
        sum += below * on.share;
    return sum;
}

/* Added to a pixel if it is in the box. */
PT_INLINE void give(const struct interpolation *g, int c, int row, int column, float value)
{
    row -= g->high;
    column -= g->wide;
    if (row >= 0 && row < g->height && column >= 0 && column < g->width)
        PT_ADD(g->write_0, (c * g->height + row) * g->width + column, value);
}

void interp_bilinear_bw(const void *args)
{
    PT_ARGUMENTS(interpolation, g);
    const struct pt_range own = pt_own(g->channels);
#ifdef PT_NARROW
    for (int at = own.start * g->height * g->width; at < own.stop * g->height * g->width; at++) {
        const int row = at / g->width % g->height + g->high, column = at % g->width + g->wide;
        float sum = PT_LOAD(g->write_0, at);
        for (int h = 0; h < g->rows; h++) {
            const struct between down = place(h + g->below, g->hi, g->ho);
            PT_POINTER dy = g->read_0 + (at / g->width / g->height * g->rows + h) * g->columns;
            for (int w = 0; (down.lower == row || down.upper == row) && w < g->columns; w++)
                sum = given(sum, PT_LOAD(dy, w), down, place(w + g->beside, g->wi, g->wo), row, column);
        }
        PT_STORE(g->write_0, at, sum);
    }
#else
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->rows; h++) {
            const struct between down = place(h + g->below, g->hi, g->ho);
            PT_POINTER dy = g->read_0 + (c * g->rows + h) * g->columns;
            for (int w = 0; w < g->columns; w++) {
                const struct between on = place(w + g->beside, g->wi, g->wo);
                const float above = PT_LOAD(dy, w) * (1.0f - down.share), below = PT_LOAD(dy, w) * down.share;
                give(g, c, down.lower, on.lower, above * (1.0f - on.share));
                give(g, c, down.lower, on.upper, above * on.share);
                give(g, c, down.upper, on.lower, below * (1.0f - on.share));
                give(g, c, down.upper, on.upper, below * on.share);
            }
        }
#endif
}
