/* SPDX-License-Identifier: Apache-2.0
 *
 * Clipping by the norm of all gradients: square sums of their rows, and from these min(1, limit / norm). */
#include "kernels.h"
#include "elementary.h"

/* arguments */
struct square_sum { const float *X; float *Y; int rows, elements; };
struct clip_scale { const float *X, *B; float *Y; int elements, first, last; float limit; };
/* end */

/* Rows over the cores. */
void square_sum(const void *args)
{
    PT_ARGUMENTS(square_sum, a);
    const struct pt_range own = pt_own(a->rows);
    for (int r = own.start; r < own.stop; r++) {
        float sum = 0.0f;
        for (int i = r * a->elements; i < (r + 1) * a->elements; i++)
            sum += PT_LOAD(a->X, i) * PT_LOAD(a->X, i);
        PT_STORE(a->Y, r, sum);
    }
}

/* A running sum over the gradients, kept in B; the last call makes the scale. One core alone. */
void clip_scale(const void *args)
{
    PT_ARGUMENTS(clip_scale, a);
    float sum = a->first ? 0.0f : PT_LOAD(a->B, 0);
    for (int i = 0; i < a->elements; i++)
        sum += PT_LOAD(a->X, i);
    /* 1e-6 as torch.nn.utils.clip_grad_norm_ has it */
    PT_STORE(a->Y, 0, a->last ? pt_minimum(a->limit / (sqrtf(sum) + 1e-6f), 1.0f) : sum);
}
