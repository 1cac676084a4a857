/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows of hk x wk over images, channels over the cores. The window of output (h, w) begins at row h * step_h +
 * top and column w * step_w + left of the box of the input, which is the box from row high and column wide on of an
 * image of height x width; what lies outside of the image is padding. */
#include "kernels.h"

/* arguments */
struct avgpool_fw {
    const float *X;
    float *Y;
    int X_s[3], Y_s[3], ci, hi, wi, ho, wo, hk, wk, step_h, step_w, top, left, counted;
};
struct avgpool_bw {
    const float *Y;
    float *X;
    int X_s[3], Y_s[3], ci, hi, wi, ho, wo, hk, wk, step_h, step_w, top, left, counted, high, wide, height, width;
};
struct maxpool_fw {
    const float *X;
    float *Y;
    int X_s[3], Y_s[3], ci, hi, wi, ho, wo, hk, wk, step_h, step_w, top, left;
};
struct maxpool_fw_argmax {
    const float *X;
    float *Y;
    uint8_t *I;
    int X_s[3], Y_s[3], ci, hi, wi, ho, wo, hk, wk, step_h, step_w, top, left, place_bits;
};
struct maxpool_bw {
    const float *X, *Y;
    float *G;
    int X_s[3], G_s[3], Y_s[3], ci, hi, wi, ho, wo, hk, wk, step_h, step_w, x_top, x_left, x_rows, x_columns;
    int x_high, x_wide, high, wide;
};
struct maxpool_bw_argmax {
    const float *Y;
    const uint8_t *I;
    float *G;
    int G_s[3], Y_s[3], ci, hi, wi, ho, wo, step_h, step_w, top, left, place_bits;
};
/* end */

/* Rows (or columns) of a window from `first` on that lie within 0 .. size. */
PT_INLINE struct pt_range within(int first, int taps, int size)
{
    return (struct pt_range){first > 0 ? first : 0, first + taps < size ? first + taps : size};
}

/* The mean; `counted`: of all positions of a window, padding included, or of those in the image (0). */
void avgpool_fw(const void *args)
{
    PT_ARGUMENTS(avgpool_fw, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->ho; h++)
            for (int w = 0; w < g->wo; w++) {
                const struct pt_range y = within(h * g->step_h + g->top, g->hk, g->hi);
                const struct pt_range x = within(w * g->step_w + g->left, g->wk, g->wi);
                float sum = 0.0f;
                for (int i = y.start; i < y.stop; i++)
                    for (int j = x.start; j < x.stop; j++)
                        sum += PT_LOAD(g->X, c * g->X_s[0] + i * g->X_s[1] + j * g->X_s[2]);
                const int count = g->counted ? g->counted : (y.stop - y.start) * (x.stop - x.start);
                PT_STORE(g->Y, c * g->Y_s[0] + h * g->Y_s[1] + w * g->Y_s[2], sum / (float)count);
            }
}

/* What each position of window (h, w) gets. */
PT_INLINE float share_of(const struct avgpool_bw *g, int c, int h, int w)
{
    const struct pt_range all = within(h * g->step_h + g->top + g->high, g->hk, g->height);
    const struct pt_range across = within(w * g->step_w + g->left + g->wide, g->wk, g->width);
    const int count = g->counted ? g->counted : (all.stop - all.start) * (across.stop - across.start);
    return PT_LOAD(g->Y, c * g->Y_s[0] + h * g->Y_s[1] + w * g->Y_s[2]) / (float)count;
}

void avgpool_bw(const void *args)
{
    PT_ARGUMENTS(avgpool_bw, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++) {
        PT_POINTER dx = g->X + c * g->X_s[0];
#ifdef PT_NARROW
        for (int i = 0; i < g->hi; i++)
            for (int j = 0; j < g->wi; j++) {
                const struct pt_range y = pt_covering(i, g->top, g->hk, g->step_h, g->ho);
                const struct pt_range x = pt_covering(j, g->left, g->wk, g->step_w, g->wo);
                float sum = 0.0f;
                for (int h = y.start; h < y.stop; h++)
                    for (int w = x.start; w < x.stop; w++)
                        sum += share_of(g, c, h, w);
                PT_STORE(dx, i * g->X_s[1] + j * g->X_s[2], sum);
            }
#else
        for (int e = 0; e < g->hi * g->wi; e++)
            PT_STORE(dx, e, 0.0f);
        for (int h = 0; h < g->ho; h++)
            for (int w = 0; w < g->wo; w++) {
                const float share = share_of(g, c, h, w);
                const struct pt_range y = within(h * g->step_h + g->top, g->hk, g->hi);
                const struct pt_range x = within(w * g->step_w + g->left, g->wk, g->wi);
                for (int i = y.start; i < y.stop; i++)
                    for (int j = x.start; j < x.stop; j++)
                        PT_ADD(dx, i * g->X_s[1] + j * g->X_s[2], share);
            }
#endif
    }
}

/* Index of the first maximum of a window, which has elements, in a plane; of the first NaN if there is one. */
PT_INLINE int largest(const pt_X *plane, struct pt_range y, struct pt_range x, int of_row, int of_column)
{
    int best = y.start * of_row + x.start * of_column;
    float most = PT_LOAD(plane, best);
    for (int i = y.start; i < y.stop; i++)
        for (int j = x.start; j < x.stop; j++) {
            const int at = i * of_row + j * of_column;
            const float value = PT_LOAD(plane, at);
            if (!(value <= most) && most == most) {
                most = value;
                best = at;
            }
        }
    return best;
}

void maxpool_fw(const void *args)
{
    PT_ARGUMENTS(maxpool_fw, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->ho; h++)
            for (int w = 0; w < g->wo; w++) {
                const struct pt_range y = within(h * g->step_h + g->top, g->hk, g->hi);
                const struct pt_range x = within(w * g->step_w + g->left, g->wk, g->wi);
                PT_POINTER plane = g->X + c * g->X_s[0];
                const int at = largest(plane, y, x, g->X_s[1], g->X_s[2]);
                PT_STORE(g->Y, c * g->Y_s[0] + h * g->Y_s[1] + w * g->Y_s[2], PT_LOAD(plane, at));
            }
}

/* Row and column of the maximum in its window are kept as well: in a byte, or in four if they have 16 bits each. */
void maxpool_fw_argmax(const void *args)
{
    PT_ARGUMENTS(maxpool_fw_argmax, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++)
        for (int h = 0; h < g->ho; h++)
            for (int w = 0; w < g->wo; w++) {
                const int row = h * g->step_h + g->top, column = w * g->step_w + g->left;
                const struct pt_range y = within(row, g->hk, g->hi), x = within(column, g->wk, g->wi);
                PT_POINTER plane = g->X + c * g->X_s[0];
                const int at = largest(plane, y, x, g->wi, 1), place = c * g->Y_s[0] + h * g->Y_s[1] + w * g->Y_s[2];
                PT_STORE(g->Y, place, PT_LOAD(plane, at));
                const int inside = ((at / g->wi - row) << g->place_bits) + at % g->wi - column;
                if (g->place_bits == 4)
                    g->I[place] = (uint8_t)inside;
                else
                    ((int32_t *)g->I)[place] = inside;
            }
}

/* What windows give to G: FIND has the row and column of the maximum of window (h, w) in G; `top`, `left` are where window 0
 * begins in it, `high`, `wide` its size. A sum in a narrower format is in a register, term by term in the same order. */
#ifdef PT_NARROW
#define GIVEN(g, top, left, high, wide, FIND)                                                                       \
    for (int i = 0; i < (g)->hi; i++)                                                                               \
        for (int j = 0; j < (g)->wi; j++) {                                                                         \
            const struct pt_range y = pt_covering(i, top, high, (g)->step_h, (g)->ho);                              \
            const struct pt_range x = pt_covering(j, left, wide, (g)->step_w, (g)->wo);                             \
            float sum = 0.0f;                                                                                       \
            for (int h = y.start; h < y.stop; h++)                                                                  \
                for (int w = x.start, row, column; w < x.stop; w++) {                                               \
                    FIND(g, c, h, w, &row, &column);                                                                \
                    if (row == i && column == j)                                                                    \
                        sum += PT_LOAD((g)->Y, c * (g)->Y_s[0] + h * (g)->Y_s[1] + w * (g)->Y_s[2]);                \
                }                                                                                                   \
            PT_STORE((g)->G, c * (g)->G_s[0] + i * (g)->G_s[1] + j * (g)->G_s[2], sum);                             \
        }
#else
#define GIVEN(g, top, left, high, wide, FIND)                                                                       \
    PT_POINTER dx = (g)->G + c * (g)->G_s[0];                                                                       \
    PT_POINTER dy = (g)->Y + c * (g)->Y_s[0];                                                                       \
    for (int e = 0; e < (g)->hi * (g)->wi; e++)                                                                     \
        PT_STORE(dx, e, 0.0f);                                                                                      \
    for (int h = 0; h < (g)->ho; h++)                                                                               \
        for (int w = 0, row, column; w < (g)->wo; w++) {                                                            \
            FIND(g, c, h, w, &row, &column);                                                                        \
            if (row >= 0 && row < (g)->hi && column >= 0 && column < (g)->wi)                                       \
                PT_ADD(dx, row * (g)->G_s[1] + column * (g)->G_s[2], PT_LOAD(dy, h * (g)->Y_s[1] + w * (g)->Y_s[2])); \
        }
#endif

/* Searched again in the box X of the input, which begins at row x_high and column x_wide. */
PT_INLINE void searched(const struct maxpool_bw *g, int c, int h, int w, int *row, int *column)
{
    const struct pt_range y = within(h * g->step_h + g->x_top, g->hk, g->x_rows);
    const struct pt_range x = within(w * g->step_w + g->x_left, g->wk, g->x_columns);
    const int at = largest(g->X + c * g->X_s[0], y, x, g->x_columns, 1);
    *row = at / g->x_columns + g->x_high - g->high;
    *column = at % g->x_columns + g->x_wide - g->wide;
}

void maxpool_bw(const void *args)
{
    PT_ARGUMENTS(maxpool_bw, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++) {
        GIVEN(g, g->x_top + g->x_high - g->high, g->x_left + g->x_wide - g->wide, g->hk, g->wk, searched)
    }
}

/* As it was kept. */
PT_INLINE void known(const struct maxpool_bw_argmax *g, int c, int h, int w, int *row, int *column)
{
    const int at = c * g->Y_s[0] + h * g->Y_s[1] + w * g->Y_s[2];
    const int inside = g->place_bits == 4 ? g->I[at] : ((const int32_t *)g->I)[at];
    *row = h * g->step_h + g->top + (inside >> g->place_bits);
    *column = w * g->step_w + g->left + (inside & ((1 << g->place_bits) - 1));
}

void maxpool_bw_argmax(const void *args)
{
    PT_ARGUMENTS(maxpool_bw_argmax, g);
    const struct pt_range own = pt_own(g->ci);
    for (int c = own.start; c < own.stop; c++) {
        GIVEN(g, g->top, g->left, 1 << g->place_bits, 1 << g->place_bits, known) /* the bits of its size are known */
    }
}
