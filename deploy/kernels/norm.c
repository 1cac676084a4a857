/* SPDX-License-Identifier: Apache-2.0
 *
 * What norms do to their statistics: M is the mean of a row, V its variance, R its inverse deviation. Passes over the
 * elements are made from their formulas. */
#include "kernels.h"

/* arguments */
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
struct rmsnorm_scale { const float *X, *R, *W; float *Y; int rows, elements, has_w; };
struct running_average {
    const float *A, *B, *M, *R;
    float *X, *Y;
    int elements, samples, mean_of;
    float eps, momentum;
};
/* end */

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
