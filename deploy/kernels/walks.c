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
        PT_POINTER x = g->X + ROW(g->X_s, i, p, q, r, t);
        PT_POINTER y = g->Y + ROW(g->Y_s, i, p, q, r, t);
        for (int j = 0; j < g->m; j++)
            PT_STORE(y, j * g->Y_s[5], PT_LOAD(x, j * g->X_s[5]));
    }
}

PT_KERNEL(copy_nd, copy_nd, walk(g))

/* The same loops; the strides of Y are permuted. */
PT_KERNEL(permute_nd, copy_nd, walk(g))

/* A stride of 0 in Y adds up what lies along that loop. */
void add_nd(const void *args)
{
    PT_ARGUMENTS(add_nd, g);
#ifdef PT_NARROW
    const int counts[6] = {g->a, g->b, g->c, g->d, g->e, g->m};
    int sums = 1, terms = 1;
    for (int n = 0; n < 6; n++)
        *(g->Y_s[n] || counts[n] == 1 ? &sums : &terms) *= counts[n];
    const struct pt_range own = pt_own(sums);
    for (int s = own.start; s < own.stop; s++) {
        float sum = 0.0f;
        int y = 0;
        for (int i = 0; i < terms; i++) {
            int x = 0, term = 0, of_sum = s, of_term = i;
            y = 0;
            for (int n = 5; n >= 0; n--) {
                int *const rest = g->Y_s[n] || counts[n] == 1 ? &of_sum : &of_term;
                const int at = *rest % counts[n];
                *rest /= counts[n];
                x += at * g->X_s[n], y += at * g->Y_s[n], term += at * g->G_s[n];
            }
            sum = (i ? sum : PT_LOAD(g->X, x)) + PT_LOAD(g->G, term);
        }
        PT_STORE(g->Y, y, sum);
    }
#else
    FOR_EACH_ROW(g)
    {
        PT_POINTER x = g->X + ROW(g->X_s, i, p, q, r, t);
        PT_POINTER term = g->G + ROW(g->G_s, i, p, q, r, t);
        PT_POINTER y = g->Y + ROW(g->Y_s, i, p, q, r, t);
        for (int j = 0; j < g->m; j++)
            PT_STORE(y, j * g->Y_s[5], PT_LOAD(x, j * g->X_s[5]) + PT_LOAD(term, j * g->G_s[5]));
    }
#endif
}
