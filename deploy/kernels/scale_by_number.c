/* SPDX-License-Identifier: Apache-2.0
 *
 * Y = factor * X of a number that is no option of the layer, elements over the cores. */
#include "kernels.h"

/* arguments */
struct scale_by_number { const float *X; float *Y; int elements; float factor; };
/* end */

void scale_by_number(const void *args)
{
    PT_ARGUMENTS(scale_by_number, a);
    const struct pt_range own = pt_own(a->elements);
    const float factor = a->factor;
    for (int i = own.start; i < own.stop; i++)
        PT_STORE(a->Y, i, PT_LOAD(a->X, i) * factor);
}
