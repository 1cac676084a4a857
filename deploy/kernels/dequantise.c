/* SPDX-License-Identifier: Apache-2.0
 *
 * Y = scale G of the channel * 8-bit integer X, channels over the cores. */
#include "kernels.h"

/* arguments */
struct dequantise { const int8_t *X; const float *G; float *Y; int X_s[2], Y_s[2], N, M; };
/* end */

void dequantise(const void *args)
{
    PT_ARGUMENTS(dequantise, a);
    const struct pt_range own = pt_own(a->N);
    for (int i = own.start; i < own.stop; i++) {
        const float scale = PT_LOAD(a->G, i);
        const int8_t *x = a->X + i * a->X_s[0];
        PT_POINTER y = a->Y + i * a->Y_s[0];
        for (int j = 0; j < a->M; j++)
            PT_STORE(y, j * a->Y_s[1], (float)x[j * a->X_s[1]] * scale);
    }
}
