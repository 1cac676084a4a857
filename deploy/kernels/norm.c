/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms: rows of `segments` runs of `elements` that share a mean M and an inverse deviation R; rows over the cores. With
 * xhat = (x - mean) R and g = dy w: y = w xhat + b, dw = sum dy xhat, db = sum dy, dx = R (g - mean(g) - xhat mean(g xhat)).
 * A tile of a sum may hold part of a row; `mean_of` is how many elements share a mean. */
#include "kernels.h"

/* arguments */
struct norm_fw {
    const float *X, *W, *B;
    float *Y, *M, *R;
    int X_s[3], W_s[3], rows, segments, elements, has_w, has_b;
    float eps;
};
struct norm_mean { const float *X; float *M; int X_s[3], rows, segments, elements, mean_of; };
struct norm_var { const float *X, *M; float *V; int X_s[3], rows, segments, elements, has_mean, mean_of; };
struct norm_inv {
    const float *V, *M, *A, *B;
    float *R, *X, *Y;
    int elements, samples, running, mean_of, biased_kept;
    float eps, momentum;
};
struct norm_known {
    const float *read_0, *read_1;
    float *write_0, *write_1, *write_2, *write_3;
    int elements, samples;
    float eps;
};
struct norm_apply {
    const float *X, *W, *B, *M, *R;
    float *Y;
    int X_s[3], W_s[3], rows, segments, elements, has_w, has_b, has_mean;
};
struct norm_wg {
    const float *X, *G, *M, *R;
    float *V, *B, *P, *Q;
    int X_s[3], V_s[3], rows, segments, elements, has_dw, has_db, has_mean, has_mean_g, has_mean_gx, adds, mean_of;
};
struct norm_wg_columns {
    const float *X, *G, *M, *R;
    float *V, *B;
    int rows, columns, has_dw, has_db, has_mean;
};
struct norm_ig {
    const float *X, *G, *M, *R, *W;
    float *Y;
    int X_s[3], W_s[3], rows, segments, elements, has_w, has_mean;
};
struct norm_ig_sums {
    const float *X, *G, *M, *R, *W;
    float *P, *Q;
    int X_s[3], W_s[3], rows, segments, elements, has_w, has_mean, mean_of;
};
struct norm_ig_apply {
    const float *X, *G, *M, *R, *W, *P, *Q;
    float *Y;
    int X_s[3], W_s[3], rows, segments, elements, has_w, has_mean, has_mean_g, of_batch;
};
struct norm_ig_scale {
    const float *G, *R, *W;
    float *Y;
    int G_s[3], W_s[3], rows, segments, elements, has_w;
};
struct rmsnorm_sum { const float *X; float *R; int rows, elements; float eps; };
struct rmsnorm_scale { const float *X, *R, *W; float *Y; int rows, elements, has_w; };
struct running_average {
    const float *A, *B, *M, *R;
    float *X, *Y;
    int elements, samples, mean_of;
    float eps, momentum;
};
/* end */

/* Elements of a row one after the other: i counts along segment s. */
#define EACH(a) for (int s = 0; s < (a)->segments; s++) for (int i = 0; i < (a)->elements; i++)

/* Where an element lies in an array of these strides. */
PT_INLINE int at(const int *strides, int r, int s, int i) { return r * strides[0] + s * strides[1] + i * strides[2]; }

/* The parameters of a segment: w and b on, `each` apart; 0 apart they are one w0 and b0, which do nothing if there are
 * none (x + -0 is x, whatever x). */
struct parameters { const pt_W *w, *b; int each; float w0, b0; };

PT_INLINE struct parameters parameters(const pt_W *w, const pt_W *b, const int *strides, int r, int s)
{
    const int first = at(strides, r, s, 0);
    return (struct parameters){
        w ? w + first : 0, b ? b + first : 0, w || b ? strides[2] : 0, w ? PT_LOAD(w, first) : 1.0f,
        b ? PT_LOAD(b, first) : -0.0f};
}

/* A segment of y = (x - first - rest) inverse w + b. */
PT_INLINE void normalise(const pt_X *x, pt_Y *y, int elements, int step, float first, float rest, float inverse,
                         struct parameters of)
{
    if (of.each == 0) {
        for (int i = 0; i < elements; i++)
            PT_STORE(y, i * step, (PT_LOAD(x, i * step) - first - rest) * inverse * of.w0 + of.b0);
        return;
    }
    for (int i = 0; i < elements; i++) {
        const float xhat = (PT_LOAD(x, i * step) - first - rest) * inverse;
        const float scaled = of.w ? xhat * PT_LOAD(of.w, i * of.each) : xhat;
        PT_STORE(y, i * step, of.b ? scaled + PT_LOAD(of.b, i * of.each) : scaled);
    }
}

/* Mean and deviation from offsets to a first mean, which is exact where the mean is large. */
void norm_fw(const void *args)
{
    PT_ARGUMENTS(norm_fw, a);
    const struct pt_range own = pt_own(a->rows);
    const float count = a->segments * a->elements;
    for (int r = own.start; r < own.stop; r++) {
        float sum = 0.0f, offsets = 0.0f, squares = 0.0f;
        EACH(a) sum += PT_LOAD(a->X, at(a->X_s, r, s, i));
        const float first = sum / count;
        EACH(a) {
            const float offset = PT_LOAD(a->X, at(a->X_s, r, s, i)) - first;
            offsets += offset;
            squares += offset * offset;
        }
        const float rest = offsets / count, inverse = 1.0f / sqrtf((squares - offsets * rest) / count + a->eps);
        PT_STORE(a->M, r, first + rest);
        PT_STORE(a->R, r, inverse);
        for (int s = 0; s < a->segments; s++) {
            const int here = at(a->X_s, r, s, 0);
            normalise(a->X + here, a->Y + here, a->elements, a->X_s[2], first, rest, inverse,
                      parameters(a->has_w ? a->W : 0, a->has_b ? a->B : 0, a->W_s, r, s));
        }
    }
}

void norm_mean(const void *args)
{
    PT_ARGUMENTS(norm_mean, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++) {
        float sum = 0.0f;
        EACH(a) sum += PT_LOAD(a->X, at(a->X_s, r, s, i));
        PT_STORE(a->M, r, sum / a->mean_of);
    }
}

void norm_var(const void *args)
{
    PT_ARGUMENTS(norm_var, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++) {
        const float mean = a->has_mean ? PT_LOAD(a->M, r) : 0.0f;
        float squares = 0.0f;
        EACH(a) {
            const float offset = PT_LOAD(a->X, at(a->X_s, r, s, i)) - mean;
            squares += offset * offset;
        }
        PT_STORE(a->V, r, squares / a->mean_of);
    }
}

/* Running statistics: the mean over the samples moves them; the variance is unbiased, unless biased ones are kept. */
void norm_inv(const void *args)
{
    PT_ARGUMENTS(norm_inv, a);
    const struct pt_range own = pt_own(a->elements);
    const float unbiased = a->biased_kept ? 1.0f : (float)a->mean_of / (a->mean_of - 1);
    for (int i = own.start; i < own.stop; i++) {
        float mean = 0.0f, variance = 0.0f;
        for (int n = 0; n < a->samples; n++) {
            const int here = n * a->elements + i;
            PT_STORE(a->R, here, 1.0f / sqrtf(PT_LOAD(a->V, here) + a->eps));
            if (a->running) {
                mean += PT_LOAD(a->M, here);
                variance += PT_LOAD(a->V, here) * unbiased;
            }
        }
        if (a->running) {
            PT_STORE(a->X, i, PT_LOAD(a->A, i) + a->momentum * (mean / a->samples - PT_LOAD(a->A, i)));
            PT_STORE(a->Y, i, PT_LOAD(a->B, i) + a->momentum * (variance / a->samples - PT_LOAD(a->B, i)));
        }
    }
}

/* Fixed statistics: mean and inverse deviation of every sample are the running ones, which stay as they are. */
void norm_known(const void *args)
{
    PT_ARGUMENTS(norm_known, a);
    const struct pt_range own = pt_own(a->elements);
    for (int i = own.start; i < own.stop; i++) {
        const float mean = PT_LOAD(a->read_0, i), variance = PT_LOAD(a->read_1, i);
        for (int n = 0; n < a->samples; n++) {
            PT_STORE(a->write_0, n * a->elements + i, mean);
            PT_STORE(a->write_1, n * a->elements + i, 1.0f / sqrtf(variance + a->eps));
        }
        PT_STORE(a->write_2, i, mean);
        PT_STORE(a->write_3, i, variance);
    }
}

void norm_apply(const void *args)
{
    PT_ARGUMENTS(norm_apply, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++) {
        const float mean = a->has_mean ? PT_LOAD(a->M, r) : 0.0f, inverse = PT_LOAD(a->R, r);
        for (int s = 0; s < a->segments; s++) {
            const int here = at(a->X_s, r, s, 0);
            normalise(a->X + here, a->Y + here, a->elements, a->X_s[2], mean, 0.0f, inverse,
                      parameters(a->has_w ? a->W : 0, a->has_b ? a->B : 0, a->W_s, r, s));
        }
    }
}

/* V = dw and B = db of every segment, or of the row where segments share a parameter; P and Q are the means over dy and
 * dy xhat. With `adds` they are added to what is there. */
void norm_wg(const void *args)
{
    PT_ARGUMENTS(norm_wg, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++) {
        const float mean = a->has_mean ? PT_LOAD(a->M, r) : 0.0f, inverse = PT_LOAD(a->R, r);
        float dw = 0.0f, db = 0.0f;
        for (int s = 0; s < a->segments; s++) {
            for (int i = 0; i < a->elements; i++) {
                const int here = at(a->X_s, r, s, i);
                dw += PT_LOAD(a->G, here) * ((PT_LOAD(a->X, here) - mean) * inverse);
                db += PT_LOAD(a->G, here);
            }
            if (a->V_s[1] == 0 && s < a->segments - 1)
                continue;
            const int to = at(a->V_s, r, s, 0);
            if (a->has_dw)
                PT_STORE(a->V, to, a->adds ? PT_LOAD(a->V, to) + dw : dw);
            if (a->has_db)
                PT_STORE(a->B, to, a->adds ? PT_LOAD(a->B, to) + db : db);
            if (a->has_mean_g)
                PT_STORE(a->P, r, db / a->mean_of);
            if (a->has_mean_gx)
                PT_STORE(a->Q, r, dw / a->mean_of);
            dw = db = 0.0f;
        }
    }
}

/* dw and db of parameters that differ along a row; columns over the cores. */
void norm_wg_columns(const void *args)
{
    PT_ARGUMENTS(norm_wg_columns, a);
    const struct pt_range own = pt_own(a->columns);
    for (int i = own.start; i < own.stop; i++) {
        float dw = 0.0f, db = 0.0f;
        for (int r = 0; r < a->rows; r++) {
            const int here = r * a->columns + i;
            const float mean = a->has_mean ? PT_LOAD(a->M, r) : 0.0f;
            dw += PT_LOAD(a->G, here) * ((PT_LOAD(a->X, here) - mean) * PT_LOAD(a->R, r));
            db += PT_LOAD(a->G, here);
        }
        if (a->has_dw)
            PT_STORE(a->V, i, dw);
        if (a->has_db)
            PT_STORE(a->B, i, db);
    }
}

/* Sums of g and of g xhat over a row. */
struct sums { float g, along; };

PT_INLINE struct sums sums_of(const struct norm_ig_sums *a, int r)
{
    const float mean = a->has_mean ? PT_LOAD(a->M, r) : 0.0f, inverse = PT_LOAD(a->R, r);
    struct sums sums = {0.0f, 0.0f};
    for (int s = 0; s < a->segments; s++) {
        const struct parameters of = parameters(a->has_w ? a->W : 0, 0, a->W_s, r, s);
        for (int i = 0; i < a->elements; i++) {
            const int here = at(a->X_s, r, s, i);
            const float g = PT_LOAD(a->G, here) * (of.each ? PT_LOAD(of.w, i * of.each) : of.w0);
            sums.g += g;
            sums.along += g * ((PT_LOAD(a->X, here) - mean) * inverse);
        }
    }
    return sums;
}

void norm_ig_sums(const void *args)
{
    PT_ARGUMENTS(norm_ig_sums, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++) {
        const struct sums sums = sums_of(a, r);
        if (a->has_mean)
            PT_STORE(a->P, r, sums.g / a->mean_of);
        PT_STORE(a->Q, r, sums.along / a->mean_of);
    }
}

/* A row of dx from its two means, `g` and `along`. */
PT_INLINE void input_gradient(const struct norm_ig *a, int r, struct sums means, int of_batch)
{
    const float mean = a->has_mean ? PT_LOAD(a->M, r) : 0.0f, inverse = PT_LOAD(a->R, r);
    for (int s = 0; s < a->segments; s++) {
        const struct parameters of = parameters(a->has_w ? a->W : 0, 0, a->W_s, r, s);
        const int first = at(a->X_s, r, s, 0), step = a->X_s[2];
        PT_POINTER x = a->X + first;
        PT_POINTER dy = a->G + first;
        PT_POINTER dx = a->Y + first;
        if (of.each == 0) {
            const float factor = of_batch ? of.w0 : 1.0f, along = means.along * factor, g = means.g * factor;
            for (int i = 0; i < a->elements; i++)
                PT_STORE(dx, i * step,
                         (PT_LOAD(dy, i * step) * of.w0 - g - along * ((PT_LOAD(x, i * step) - mean) * inverse)) * inverse);
            continue;
        }
        for (int i = 0; i < a->elements; i++) {
            const float w = PT_LOAD(of.w, i * of.each), factor = of_batch ? w : 1.0f;
            const float xhat = (PT_LOAD(x, i * step) - mean) * inverse;
            PT_STORE(dx, i * step, (PT_LOAD(dy, i * step) * w - means.g * factor - means.along * factor * xhat) * inverse);
        }
    }
}

void norm_ig(const void *args)
{
    PT_ARGUMENTS(norm_ig, a);
    const struct norm_ig_sums row = {
        .X = a->X, .G = a->G, .M = a->M, .R = a->R, .W = a->W, .segments = a->segments, .elements = a->elements,
        .X_s = {a->X_s[0], a->X_s[1], a->X_s[2]}, .W_s = {a->W_s[0], a->W_s[1], a->W_s[2]}, .has_w = a->has_w,
        .has_mean = a->has_mean};
    const struct pt_range own = pt_own(a->rows);
    const float count = a->segments * a->elements;
    for (int r = own.start; r < own.stop; r++) {
        const struct sums sums = sums_of(&row, r);
        input_gradient(a, r, (struct sums){a->has_mean ? sums.g / count : 0.0f, sums.along / count}, 0);
    }
}

/* With the means given; those of batch norm come from dw and db and know no w, a factor of the whole row. */
void norm_ig_apply(const void *args)
{
    PT_ARGUMENTS(norm_ig_apply, a);
    const struct norm_ig row = {
        .X = a->X, .G = a->G, .M = a->M, .R = a->R, .W = a->W, .Y = a->Y, .segments = a->segments,
        .elements = a->elements, .X_s = {a->X_s[0], a->X_s[1], a->X_s[2]},
        .W_s = {a->W_s[0], a->W_s[1], a->W_s[2]}, .has_w = a->has_w, .has_mean = a->has_mean};
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++)
        input_gradient(&row, r, (struct sums){a->has_mean_g ? PT_LOAD(a->P, r) : 0.0f, PT_LOAD(a->Q, r)}, a->of_batch);
}

void norm_ig_scale(const void *args)
{
    PT_ARGUMENTS(norm_ig_scale, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++)
        for (int s = 0; s < a->segments; s++) {
            const struct parameters of = parameters(a->has_w ? a->W : 0, 0, a->W_s, r, s);
            const float inverse = PT_LOAD(a->R, r);
            for (int i = 0; i < a->elements; i++) {
                const int here = at(a->G_s, r, s, i);
                PT_STORE(a->Y, here, PT_LOAD(a->G, here) * (of.each ? PT_LOAD(of.w, i * of.each) : of.w0) * inverse);
            }
        }
}

/* 1 / sqrt(mean of squares + eps). Rows over the cores: the nest, as PULP-TrainLib, splits elements and adds nothing up. */
void rmsnorm_sum(const void *args)
{
    PT_ARGUMENTS(rmsnorm_sum, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++) {
        float squares = 0.0f;
        for (int i = r * a->elements; i < (r + 1) * a->elements; i++)
            squares += PT_LOAD(a->X, i) * PT_LOAD(a->X, i);
        PT_STORE(a->R, r, 1.0f / sqrtf(squares / a->elements + a->eps));
    }
}

/* Y = X R W, elements of every row over the cores. */
void rmsnorm_scale(const void *args)
{
    PT_ARGUMENTS(rmsnorm_scale, a);
    const struct pt_range own = pt_own(a->elements);
    for (int r = 0; r < a->rows; r++)
        for (int i = own.start; i < own.stop; i++) {
            const float scaled = PT_LOAD(a->X, r * a->elements + i) * PT_LOAD(a->R, r);
            PT_STORE(a->Y, r * a->elements + i, a->has_w ? scaled * PT_LOAD(a->W, i) : scaled);
        }
}

/* Mean A and variance B move to those of all samples, the variance unbiased, found from its inverse root R. */
void running_average(const void *args)
{
    PT_ARGUMENTS(running_average, a);
    const struct pt_range own = pt_own(a->elements);
    for (int i = own.start; i < own.stop; i++) {
        float mean = 0.0f, variance = 0.0f;
        for (int n = 0; n < a->samples; n++) {
            const float inverse = PT_LOAD(a->R, n * a->elements + i);
            mean += PT_LOAD(a->M, n * a->elements + i);
            variance += (1.0f / (inverse * inverse) - a->eps) * ((float)a->mean_of / (a->mean_of - 1));
        }
        PT_STORE(a->X, i, PT_LOAD(a->A, i) + a->momentum * (mean / a->samples - PT_LOAD(a->A, i)));
        PT_STORE(a->Y, i, PT_LOAD(a->B, i) + a->momentum * (variance / a->samples - PT_LOAD(a->B, i)));
    }
}
