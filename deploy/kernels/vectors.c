/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies, values and sums of vectors, elements over the cores. */
#include "kernels.h"

/* arguments */
struct copy { const float *X; float *Y; int X_s[1], Y_s[1], elements; };
struct set_to_value { float *Y; float value; int elements; };
struct vect_sum { const float *X, *G; float *Y; int elements, G_n; };
/* end */

void copy(const void *args)
{
    PT_ARGUMENTS(copy, g);
    const struct pt_range own = pt_own(g->elements);
    for (int i = own.start; i < own.stop; i++)
        PT_STORE(g->Y, i * g->Y_s[0], PT_LOAD(g->X, i * g->X_s[0]));
}

void set_to_value(const void *args)
{
    PT_ARGUMENTS(set_to_value, g);
    const struct pt_range own = pt_own(g->elements);
    for (int i = own.start; i < own.stop; i++)
        PT_STORE(g->Y, i, g->value);
}

/* Y = X + G; a shorter G repeats, as the bias of each row does. */
PT_INLINE void sum(const struct vect_sum *g)
{
    const struct pt_range own = pt_own(g->elements);
    if (g->G_n >= g->elements) {
        for (int i = own.start; i < own.stop; i++)
            PT_STORE(g->Y, i, PT_LOAD(g->X, i) + PT_LOAD(g->G, i));
        return;
    }
    int at = own.start % g->G_n;
    for (int i = own.start; i < own.stop; i++) {
        PT_STORE(g->Y, i, PT_LOAD(g->X, i) + PT_LOAD(g->G, at));
        at = at + 1 == g->G_n ? 0 : at + 1;
    }
}

PT_KERNEL(vect_sum, vect_sum, sum(g))

/* PULP-TrainLib's sum of tensors of any shapes, called with two vectors only. */
PT_KERNEL(broadcast_sum, vect_sum, sum(g))
