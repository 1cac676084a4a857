/* SPDX-License-Identifier: Apache-2.0
 *
 * X[outer, count, inner] reduced over `count`, and what becomes of its gradient; the larger of `outer` and `inner`
 * over the cores, so that one core has all of a sum. */
#include "kernels.h"

/* arguments */
struct reduce_mean_fw { const float *X; float *Y; int X_s[3], Y_s[2], outer, count, inner, divisor; };
struct reduce_mean_bw { const float *X; float *Y; int X_s[2], Y_s[3], outer, count, inner, divisor; };
struct reduce_max_fw { const float *X; float *Y; int X_s[3], Y_s[2], outer, count, inner, largest; };
struct reduce_max_bw { const float *X, *M, *G; float *Y; int X_s[3], M_s[2], G_s[2], Y_s[3], outer, count, inner; };
/* end */

#define FOR_OWN(g)                                                                        \
    const int wide = (g)->inner > (g)->outer;                                             \
    const struct pt_range own = pt_own(wide ? (g)->inner : (g)->outer);                   \
    const struct pt_range over = wide ? (struct pt_range){0, (g)->outer} : own;           \
    const struct pt_range along = wide ? own : (struct pt_range){0, (g)->inner};          \
    for (int p = over.start; p < over.stop; p++)                                          \
        for (int i = along.start; i < along.stop; i++)

void reduce_mean_fw(const void *args)
{
    PT_ARGUMENTS(reduce_mean_fw, g);
    FOR_OWN(g)
    {
        PT_POINTER x = g->X + p * g->X_s[0] + i * g->X_s[2];
        float sum = 0.0f;
        for (int r = 0; r < g->count; r++)
            sum += PT_LOAD(x, r * g->X_s[1]);
        PT_STORE(g->Y, p * g->Y_s[0] + i * g->Y_s[1], sum * (1.0f / (float)g->divisor));
    }
}

void reduce_mean_bw(const void *args)
{
    PT_ARGUMENTS(reduce_mean_bw, g);
    FOR_OWN(g)
    {
        const float value = PT_LOAD(g->X, p * g->X_s[0] + i * g->X_s[1]) * (1.0f / (float)g->divisor);
        for (int r = 0; r < g->count; r++)
            PT_STORE(g->Y, p * g->Y_s[0] + r * g->Y_s[1] + i * g->Y_s[2], value);
    }
}

/* The largest element, or the smallest; NaN where there is one. */
PT_INLINE void best_of(const struct reduce_max_fw *g, int largest)
{
    FOR_OWN(g)
    {
        PT_POINTER x = g->X + p * g->X_s[0] + i * g->X_s[2];
        float best = PT_LOAD(x, 0);
        for (int r = 1; r < g->count; r++) {
            const float value = PT_LOAD(x, r * g->X_s[1]);
            if (!(largest ? value <= best : value >= best) && best == best)
                best = value;
        }
        PT_STORE(g->Y, p * g->Y_s[0] + i * g->Y_s[1], best);
    }
}

void reduce_max_fw(const void *args)
{
    PT_ARGUMENTS(reduce_max_fw, g);
    if (g->largest)
        best_of(g, 1);
    else
        best_of(g, 0);
}

/* All elements that are the largest get a share of the gradient G. */
void reduce_max_bw(const void *args)
{
    PT_ARGUMENTS(reduce_max_bw, g);
    FOR_OWN(g)
    {
        PT_POINTER x = g->X + p * g->X_s[0] + i * g->X_s[2];
        const float best = PT_LOAD(g->M, p * g->M_s[0] + i * g->M_s[1]);
        int equal = 0;
        for (int r = 0; r < g->count; r++)
            equal += PT_LOAD(x, r * g->X_s[1]) == best;
        const float share = PT_LOAD(g->G, p * g->G_s[0] + i * g->G_s[1]) / (float)(equal > 0 ? equal : 1);
        for (int r = 0; r < g->count; r++)
            PT_STORE(g->Y, p * g->Y_s[0] + r * g->Y_s[1] + i * g->Y_s[2],
                     PT_LOAD(x, r * g->X_s[1]) == best ? share : 0.0f);
    }
}

/* The first that is the largest gets all of it. */
void reduce_max_bw_first(const void *args)
{
    PT_ARGUMENTS(reduce_max_bw, g);
    FOR_OWN(g)
    {
        PT_POINTER x = g->X + p * g->X_s[0] + i * g->X_s[2];
        const float best = PT_LOAD(g->M, p * g->M_s[0] + i * g->M_s[1]);
        int found = 0;
        for (int r = 0; r < g->count; r++) {
            const int first = !found && PT_LOAD(x, r * g->X_s[1]) == best;
            PT_STORE(g->Y, p * g->Y_s[0] + r * g->Y_s[1] + i * g->Y_s[2],
                     first ? PT_LOAD(g->G, p * g->G_s[0] + i * g->G_s[1]) : 0.0f);
            found |= first;
        }
    }
}
