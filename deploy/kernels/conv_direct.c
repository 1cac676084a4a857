/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct convolutions with padding, strides, dilation, groups and bias; `channels` of the result over the cores, each
 * from the `depth` channels its group meets. Sums run over these channels, kernel rows, kernel columns.
 *
 * A kernel position reads row h * stride_h + y * dilation_h + row_first of the image; a gradient row (h + y *
 * dilation_h + row_first) / stride_h, if that is whole, with the window turned round. Columns alike. What lies
 * outside is padding. */
#include "kernels.h"

/* arguments */
struct conv_direct_fw {
    const float *X, *W, *D;
    float *Y;
    int X_s[3], filter_s[3], Y_s[2];
    int channels, depth, bias, ho, wo, hk, wk, height, width, padded;
    int stride_h, stride_w, dilation_h, dilation_w, row_first, column_first;
    int own_first, own_group, met_first, met_group;
};
struct conv_direct_ig {
    const float *Y, *W;
    float *X;
    int X_s[2], filter_s[3], Y_s[3];
    int channels, depth, hi, wi, hk, wk, height, width, strided;
    int stride_h, stride_w, dilation_h, dilation_w, row_first, column_first;
    int own_first, own_group, met_first, met_group, fetched;
};
struct conv_direct_wg {
    const float *X, *Y;
    float *W;
    int X_s[3], W_s[3], Y_s[2];
    int channels, depth, ho, wo, hk, wk, height, width;
    int stride_h, stride_w, dilation_h, dilation_w, row_first, column_first;
    int own_first, own_group, met_first, met_group;
};
struct conv_scatter_fw {
    const float *X, *W, *D;
    float *Y;
    int X_s[3], filter_s[3], Y_s[2];
    int channels, depth, bias, ho, wo, hi, wi, hk, wk;
    int stride_h, stride_w, dilation_h, dilation_w, row_first, column_first;
    int own_first, own_group, met_first, met_group, fetched;
};
/* end */

/* The first channel met by channel c of the result: that of its group. */
#define MET(g, c) ((g)->met_first + ((g)->own_first + (c)) / (g)->own_group * (g)->met_group)

/* With padding every kernel position is tested. */
PT_INLINE void forward(const struct conv_direct_fw *g, int padded)
{
    const struct pt_range own = pt_own(g->channels);
    for (int o = own.start; o < own.stop; o++) {
        PT_POINTER met = g->X + MET(g, o) * g->X_s[0];
        for (int h = 0; h < g->ho; h++)
            for (int w = 0; w < g->wo; w++) {
                float sum = 0.0f;
                for (int c = 0; c < g->depth; c++) {
                    PT_POINTER filter = g->W + o * g->filter_s[0] + c * g->filter_s[1];
                    for (int y = 0; y < g->hk; y++) {
                        const int row = h * g->stride_h + y * g->dilation_h + g->row_first;
                        PT_POINTER x = met + c * g->X_s[0] + row * g->X_s[1];
                        if (padded && (row < 0 || row >= g->height))
                            continue;
                        for (int k = 0; k < g->wk; k++) {
                            const int column = w * g->stride_w + k * g->dilation_w + g->column_first;
                            if (!padded || (column >= 0 && column < g->width))
                                sum = fmaf(PT_LOAD(filter, (y * g->wk + k) * g->filter_s[2]),
                                           PT_LOAD(x, column * g->X_s[2]), sum);
                        }
                    }
                }
                if (g->bias)
                    sum += PT_LOAD(g->D, o);
                PT_STORE(g->Y, o * g->Y_s[0] + (h * g->wo + w) * g->Y_s[1], sum);
            }
    }
}

void conv_direct_fw(const void *args)
{
    PT_ARGUMENTS(conv_direct_fw, g);
    if (g->padded)
        forward(g, 1);
    else
        forward(g, 0);
}

/* Every kernel position is tested, with a stride also for the remainder. */
PT_INLINE void gather(const struct conv_direct_ig *g, int stride_h, int stride_w)
{
    const struct pt_range own = pt_own(g->channels);
    for (int c = own.start; c < own.stop; c++) {
        const int of_filter = (g->own_first + c) % g->own_group - g->fetched, met = MET(g, c);
        for (int h = 0; h < g->hi; h++)
            for (int w = 0; w < g->wi; w++) {
                float sum = 0.0f;
                for (int o = met; o < met + g->depth; o++) {
                    PT_POINTER dy = g->Y + o * g->Y_s[0];
                    PT_POINTER filter = g->W + o * g->filter_s[0] + of_filter * g->filter_s[1];
                    for (int y = 0; y < g->hk; y++) {
                        const int down = h + y * g->dilation_h + g->row_first, row = down / stride_h;
                        if (down < 0 || row >= g->height || row * stride_h != down)
                            continue;
                        for (int k = 0; k < g->wk; k++) {
                            const int along = w + k * g->dilation_w + g->column_first, column = along / stride_w;
                            const int turned = (g->hk - 1 - y) * g->wk + g->wk - 1 - k;
                            if (along >= 0 && column < g->width && column * stride_w == along)
                                sum = fmaf(PT_LOAD(filter, turned * g->filter_s[2]),
                                           PT_LOAD(dy, row * g->Y_s[1] + column * g->Y_s[2]), sum);
                        }
                    }
                }
                PT_STORE(g->X, c * g->X_s[0] + (h * g->wi + w) * g->X_s[1], sum);
            }
    }
}

void conv_direct_ig(const void *args)
{
    PT_ARGUMENTS(conv_direct_ig, g);
    if (g->strided)
        gather(g, g->stride_h, g->stride_w);
    else
        gather(g, 1, 1);
}

/* The i of 0 .. count for which i * step + first is one of 0 .. size. */
PT_INLINE struct pt_range inside(int first, int step, int count, int size)
{
    const int stop = first < size ? (size - 1 - first) / step + 1 : 0;
    return (struct pt_range){first < 0 ? (step - 1 - first) / step : 0, stop < count ? stop : count};
}

/* Padding is left out by ranges of positions. */
void conv_direct_wg(const void *args)
{
    PT_ARGUMENTS(conv_direct_wg, g);
    const struct pt_range own = pt_own(g->channels);
    for (int o = own.start; o < own.stop; o++) {
        PT_POINTER met = g->X + MET(g, o) * g->X_s[0];
        PT_POINTER dy = g->Y + o * g->Y_s[0];
        for (int c = 0; c < g->depth; c++) {
            PT_POINTER x = met + c * g->X_s[0];
            for (int y = 0; y < g->hk; y++)
                for (int k = 0; k < g->wk; k++) {
                    const int down = y * g->dilation_h + g->row_first, along = k * g->dilation_w + g->column_first;
                    const struct pt_range high = inside(down, g->stride_h, g->ho, g->height);
                    const struct pt_range wide = inside(along, g->stride_w, g->wo, g->width);
                    float sum = 0.0f;
                    for (int h = high.start; h < high.stop; h++) {
                        PT_POINTER row = x + (h * g->stride_h + down) * g->X_s[1] + along * g->X_s[2];
                        PT_POINTER gradient = dy + h * g->wo * g->Y_s[1];
                        for (int w = wide.start; w < wide.stop; w++)
                            sum = fmaf(PT_LOAD(gradient, w * g->Y_s[1]), PT_LOAD(row, w * g->stride_w * g->X_s[2]),
                                       sum);
                    }
                    PT_STORE(g->W, o * g->W_s[0] + c * g->W_s[1] + (y * g->wk + k) * g->W_s[2], sum);
                }
        }
    }
}

/* As conv_direct_ig, but that each product is added to the result in memory; then the bias. */
void conv_scatter_fw(const void *args)
{
    PT_ARGUMENTS(conv_scatter_fw, g);
    const struct pt_range own = pt_own(g->channels);
    for (int o = own.start; o < own.stop; o++) {
        const int of_filter = (g->own_first + o) % g->own_group - g->fetched;
        const int met = MET(g, o);
        PT_POINTER result = g->Y + o * g->Y_s[0];
#ifdef PT_NARROW
        for (int p = 0; p < g->hi * g->wi; p++) {
            const int down = p / g->wi + (g->hk - 1) * g->dilation_h + g->row_first;
            const int along = p % g->wi + (g->wk - 1) * g->dilation_w + g->column_first;
            const struct pt_range high = pt_covering(down, 0, (g->hk - 1) * g->dilation_h + 1, g->stride_h, g->ho);
            const struct pt_range wide = pt_covering(along, 0, (g->wk - 1) * g->dilation_w + 1, g->stride_w, g->wo);
            float sum = 0.0f;
            for (int c = met; c < met + g->depth; c++)
                for (int h = high.start; h < high.stop; h++)
                    for (int w = wide.start; w < wide.stop; w++) {
                        const int y = down - h * g->stride_h, k = along - w * g->stride_w;
                        if (y % g->dilation_h || k % g->dilation_w)
                            continue;
                        const int tap = y / g->dilation_h * g->wk + k / g->dilation_w;
                        sum = fmaf(PT_LOAD(g->W, c * g->filter_s[0] + of_filter * g->filter_s[1] + tap * g->filter_s[2]),
                                   PT_LOAD(g->X, c * g->X_s[0] + h * g->X_s[1] + w * g->X_s[2]), sum);
                    }
            PT_STORE(result, p * g->Y_s[1], g->bias ? sum + PT_LOAD(g->D, o) : sum);
        }
#else
        for (int p = 0; p < g->hi * g->wi; p++)
            PT_STORE(result, p * g->Y_s[1], 0.0f);
        for (int c = met; c < met + g->depth; c++) {
            PT_POINTER filter = g->W + c * g->filter_s[0] + of_filter * g->filter_s[1];
            for (int h = 0; h < g->ho; h++)
                for (int w = 0; w < g->wo; w++) {
                    const float value = PT_LOAD(g->X, c * g->X_s[0] + h * g->X_s[1] + w * g->X_s[2]);
                    const int down = h * g->stride_h - (g->hk - 1) * g->dilation_h - g->row_first;
                    const int along = w * g->stride_w - (g->wk - 1) * g->dilation_w - g->column_first;
                    const struct pt_range high = inside(down, g->dilation_h, g->hk, g->hi);
                    const struct pt_range wide = inside(along, g->dilation_w, g->wk, g->wi);
                    for (int y = high.start; y < high.stop; y++)
                        for (int k = wide.start; k < wide.stop; k++) {
                            const int row = down + y * g->dilation_h, column = along + k * g->dilation_w;
                            PT_POINTER at = result + (row * g->wi + column) * g->Y_s[1];
                            PT_STORE(at, 0, fmaf(PT_LOAD(filter, (y * g->wk + k) * g->filter_s[2]), value,
                                                 PT_LOAD(at, 0)));
                        }
                }
        }
        for (int p = 0; g->bias && p < g->hi * g->wi; p++)
            PT_ADD(result, p * g->Y_s[1], PT_LOAD(g->D, o));
#endif
    }
}
