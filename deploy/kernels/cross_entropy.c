/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax cross-entropy of logits X [samples, classes, places] against distributions T or class numbers, by one core
 * alone: log(sum e^x) * sum(t) - sum(t x), and softmax(x) * sum(t) - t. Targets are t = w ((1 - s) t + s / classes), as
 * torch.nn.CrossEntropyLoss has them. A largest logit gives e^0 = 1 to the sum of exponentials and is left out of `rest`, so that
 * the digits of a confident network's loss and gradient are not cancelled. */
#include "kernels.h"

/* arguments */
struct cross_entropy { const float *X, *T; const int32_t *read_1; float *Y; int elements, soft, first; float scale; };
struct cross_entropy_rows {
    const float *X, *T, *class_weights;
    const int32_t *read_1;
    float *Y;
    int samples, classes, places, soft, weighted, ignoring, smoothed, counting, first, ignore_index;
    float scale, label_smoothing;
};
/* end */

/* The logits of one sample and place, a `step` apart; `rest` is the sum of e^(x - largest) but for one largest. */
struct row { const float *x; int classes, step, at; float largest, rest; };

static struct row row_of(const float *x, int classes, int step)
{
    struct row row = {x, classes, step, 0, x[0], 0.0f};
    for (int c = 1; c < classes; c++)
        if (x[c * step] > row.largest) {
            row.largest = x[c * step];
            row.at = c;
        }
    for (int c = 0; c < classes; c++)
        if (c != row.at)
            row.rest += expf(x[c * step] - row.largest);
    return row;
}

/* The number of a row's label, -1 for one that does not count. */
PT_INLINE int label_of(const struct cross_entropy_rows *a, int place)
{
    const int label = a->read_1[place];
    return a->ignoring && label == a->ignore_index ? -1 : label;
}

/* The target of class c; `label` is that of the row, `t` its distribution if it has one. */
PT_INLINE float target(const struct cross_entropy_rows *a, const float *t, int label, int c)
{
    float share = a->soft ? t[c * a->places] : label == c ? 1.0f : 0.0f;
    if (a->smoothed)
        share = share * (1.0f - a->label_smoothing) + (a->soft || label >= 0 ? a->label_smoothing / a->classes : 0.0f);
    return a->weighted ? share * a->class_weights[c] : share;
}

PT_INLINE float total_of(const struct cross_entropy_rows *a, const float *t, int label)
{
    float total = 0.0f;
    for (int c = 0; c < a->classes; c++)
        total += target(a, t, label, c);
    return total;
}

/* What the sum is multiplied with; a mean over class numbers divides by the weights of those that count. */
static float scale_of(const struct cross_entropy_rows *a)
{
    float count = 0.0f;
    for (int place = 0; a->counting && place < a->samples * a->places; place++) {
        const int label = label_of(a, place);
        if (label >= 0)
            count += a->weighted ? a->class_weights[label] : 1.0f;
    }
    return a->counting ? a->scale / count : a->scale;
}

static void value(const struct cross_entropy_rows *a)
{
    float sum = 0.0f;
    for (int n = 0; n < a->samples; n++)
        for (int p = 0; p < a->places; p++) {
            const int first = n * a->classes * a->places + p, label = a->soft ? 0 : label_of(a, n * a->places + p);
            const struct row row = row_of(a->X + first, a->classes, a->places);
            float total = 0.0f, along = 0.0f;
            for (int c = 0; c < a->classes; c++) {
                const float t = target(a, a->T + first, label, c);
                total += t;
                along += t * (row.x[c * a->places] - row.largest);
            }
            sum += log1pf(row.rest) * total - along;
        }
    a->Y[0] = (a->first ? 0.0f : a->Y[0]) + sum * scale_of(a);
}

static void slopes(const struct cross_entropy_rows *a)
{
    const float scale = scale_of(a);
    for (int n = 0; n < a->samples; n++)
        for (int p = 0; p < a->places; p++) {
            const int first = n * a->classes * a->places + p, label = a->soft ? 0 : label_of(a, n * a->places + p);
            const struct row row = row_of(a->X + first, a->classes, a->places);
            const float total = total_of(a, a->T + first, label), below = 1.0f + row.rest;
            for (int c = 0; c < a->classes; c++) {
                const float e = c == row.at ? 1.0f : expf(row.x[c * a->places] - row.largest);
                const float t = target(a, a->T + first, label, c);
                a->Y[first + c * a->places] = ((e * total - t) - t * row.rest) / below * scale;
            }
        }
}

/* One sample of one place, as PULP-TrainLib has it. */
PT_INLINE struct cross_entropy_rows vector_of(const struct cross_entropy *a)
{
    return (struct cross_entropy_rows){
        .X = a->X, .T = a->T, .read_1 = a->read_1, .Y = a->Y, .samples = 1, .classes = a->elements, .places = 1,
        .soft = a->soft, .first = a->first, .scale = a->scale};
}

void cross_entropy_fw(const void *args)
{
    PT_ARGUMENTS(cross_entropy, a);
    const struct cross_entropy_rows rows = vector_of(a);
    value(&rows);
}

void cross_entropy_bw(const void *args)
{
    PT_ARGUMENTS(cross_entropy, a);
    const struct cross_entropy_rows rows = vector_of(a);
    slopes(&rows);
}

void cross_entropy_rows_fw(const void *args)
{
    PT_ARGUMENTS(cross_entropy_rows, a);
    value(a);
}

void cross_entropy_rows_bw(const void *args)
{
    PT_ARGUMENTS(cross_entropy_rows, a);
    slopes(a);
}
