/* SPDX-License-Identifier: Apache-2.0
 *
 * Losses of the class that a label names, by one core alone: value and gradient. */
#include "kernels.h"
#include "elementary.h"

/* arguments */
struct multi_margin {
    const float *X, *class_weights;
    const int32_t *T;
    float *Y;
    int samples, classes, squared, weighted;
    float margin, scale;
};
struct nll {
    const float *X, *class_weights;
    const int32_t *T;
    float *Y;
    int samples, classes, places, weighted, ignoring, counting, ignore_index;
    float scale;
};
/* end */

/* How far class c lies within the margin of the label's score. */
PT_INLINE float excess(const struct multi_margin *a, int sample, int c)
{
    const float *x = a->X + sample * a->classes;
    return c == a->T[sample] ? 0.0f : pt_maximum(a->margin - x[a->T[sample]] + x[c], 0.0f);
}

PT_INLINE float share(const struct multi_margin *a, int sample)
{
    return (a->weighted ? a->class_weights[a->T[sample]] : 1.0f) / a->classes;
}

void multi_margin_fw(const void *args)
{
    PT_ARGUMENTS(multi_margin, a);
    float sum = 0.0f;
    for (int n = 0; n < a->samples; n++) {
        float of_sample = 0.0f;
        for (int c = 0; c < a->classes; c++) {
            const float within = excess(a, n, c);
            of_sample += a->squared ? within * within : within;
        }
        sum += of_sample * share(a, n);
    }
    a->Y[0] = sum * a->scale;
}

void multi_margin_bw(const void *args)
{
    PT_ARGUMENTS(multi_margin, a);
    for (int n = 0; n < a->samples; n++) {
        float *y = a->Y + n * a->classes, sum = 0.0f;
        for (int c = 0; c < a->classes; c++) {
            const float within = excess(a, n, c), slope = a->squared ? 2.0f * within : within > 0.0f ? 1.0f : 0.0f;
            sum += slope;
            y[c] = slope * share(a, n) * a->scale;
        }
        y[a->T[n]] = -sum * share(a, n) * a->scale;
    }
}

/* What the label of a sample and place counts. */
PT_INLINE float counts(const struct nll *a, int place)
{
    if (a->ignoring && a->T[place] == a->ignore_index)
        return 0.0f;
    return a->weighted ? a->class_weights[a->T[place]] : 1.0f;
}

static float scale_of(const struct nll *a)
{
    float count = 0.0f;
    for (int place = 0; a->counting && place < a->samples * a->places; place++)
        count += counts(a, place);
    return a->counting ? a->scale / count : a->scale;
}

void nll_fw(const void *args)
{
    PT_ARGUMENTS(nll, a);
    float sum = 0.0f;
    for (int place = 0; place < a->samples * a->places; place++) {
        const int n = place / a->places, p = place % a->places;
        const float share = counts(a, place);
        if (share != 0.0f)
            sum -= share * a->X[(n * a->classes + a->T[place]) * a->places + p];
    }
    a->Y[0] = sum * scale_of(a);
}

void nll_bw(const void *args)
{
    PT_ARGUMENTS(nll, a);
    const float scale = scale_of(a);
    for (int n = 0; n < a->samples; n++)
        for (int c = 0; c < a->classes; c++)
            for (int p = 0; p < a->places; p++) {
                const int place = n * a->places + p, here = a->T[place] == c;
                a->Y[(n * a->classes + c) * a->places + p] = here ? -counts(a, place) * scale : 0.0f;
            }
}
