/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and sums along six loops, every array with strides of its own; the first loop over the cores. */
#include "kernels.h"

/* arguments */
struct copy_nd { const float *X; float *Y; int X_s[6], Y_s[6], a, b, c, d, e, m; };
struct add_nd { const float *X, *G; float *Y; int X_s[6], G_s[6], Y_s[6], a, b, c, d, e, m; };
/* end */

/* Element 0 of the innermost loop. */
#define ROW(s, i, p, q, r, t) ((i) * (s)[0] + (p) * (s)[1] + (q) * (s)[2] + (r) * (s)[3] + (t) * (s)[4])

#define FOR_EACH_ROW(g)                                                  \
    const struct pt_range own = pt_own((g)->a);                          \
    for (int i = own.start; i < own.stop; i++)                           \
        for (int p = 0; p < (g)->b; p++)                                 \
            for (int q = 0; q < (g)->c; q++)                             \
                for (int r = 0; r < (g)->d; r++)                         \
                    for (int t = 0; t < (g)->e; t++)

PT_INLINE void walk(const struct copy_nd *g)
{
    FOR_EACH_ROW(g)
    {
        const float *x = g->X + ROW(g->X_s, i, p, q, r, t);
        float *y = g->Y + ROW(g->Y_s, i, p, q, r, t);
        for (int j = 0; j < g->m; j++)
            y[j * g->Y_s[5]] = x[j * g->X_s[5]];
    }
}

void copy_nd(const void *args)
{
    PT_ARGUMENTS(copy_nd, g);
    walk(g);
}

/* The same loops; the strides of Y are permuted. */
void permute_nd(const void *args)
{
    PT_ARGUMENTS(copy_nd, g);
    walk(g);
}

/* A stride of 0 in Y adds up what lies along that loop. */
void add_nd(const void *args)
{
    PT_ARGUMENTS(add_nd, g);
    FOR_EACH_ROW(g)
    {
        const float *x = g->X + ROW(g->X_s, i, p, q, r, t), *term = g->G + ROW(g->G_s, i, p, q, r, t);
        float *y = g->Y + ROW(g->Y_s, i, p, q, r, t);
        for (int j = 0; j < g->m; j++)
            y[j * g->Y_s[5]] = x[j * g->X_s[5]] + term[j * g->G_s[5]];
    }
}
