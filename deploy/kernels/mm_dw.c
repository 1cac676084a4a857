/* SPDX-License-Identifier: Apache-2.0
 *
 * Depthwise matmuls C(n,m) = sum over k of A(n,k) B(m,n,k): N channels over the cores, K taps, M positions; B are
 * the rows of im2row. _in_grad: with the taps of A turned round. _1xV: V positions at once, the last M % V alone;
 * _uT: T taps a turn. No layer of pulptrain calls them; they are PULP-TrainLib's. */
#include "kernels.h"

/* arguments */
struct depthwise { const float *A, *B; float *C; int A_s[2], B_s[3], C_s[2], N, K, M, accumulate; };
/* end */

/* V positions from j on of channel n, T taps a turn. */
PT_INLINE void taps(const struct depthwise *g, int turned, int n, int j, int V, int T)
{
    PT_POINTER a = g->A + n * g->A_s[0] + (turned ? (g->K - 1) * g->A_s[1] : 0);
    PT_POINTER b = g->B + n * g->B_s[1] + j * g->B_s[2];
    PT_POINTER c = g->C + n * g->C_s[0] + j * g->C_s[1];
    float sum[4];
    const int next = turned ? -g->A_s[1] : g->A_s[1];
    for (int v = 0; v < V; v++)
        sum[v] = g->accumulate ? PT_LOAD(c, v * g->C_s[1]) : 0.0f;
    int k = 0;
    for (; k + T <= g->K; k += T)
        for (int t = 0; t < T; t++, a += next, b += g->B_s[0])
            for (int v = 0; v < V; v++)
                sum[v] = fmaf(PT_LOAD(a, 0), PT_LOAD(b, v * g->B_s[2]), sum[v]);
    for (; k < g->K; k++, a += next, b += g->B_s[0])
        for (int v = 0; v < V; v++)
            sum[v] = fmaf(PT_LOAD(a, 0), PT_LOAD(b, v * g->B_s[2]), sum[v]);
    for (int v = 0; v < V; v++)
        PT_STORE(c, v * g->C_s[1], sum[v]);
}

/* All positions of this core's channels; fewer positions than V one at a time. */
PT_INLINE void channels(const struct depthwise *g, int turned, int V, int T)
{
    const struct pt_range own = pt_own(g->N);
    const int whole = g->M - g->M % V;
    for (int j = 0; j < whole; j += V)
        for (int n = own.start; n < own.stop; n++)
            taps(g, turned, n, j, V, T);
    for (int n = own.start; n < own.stop; n++)
        for (int j = whole; j < g->M; j++)
            taps(g, turned, n, j, 1, T);
}

PT_KERNEL(mm_dw, depthwise, channels(g, 0, 1, 1))
PT_KERNEL(mm_dw_u2, depthwise, channels(g, 0, 1, 2))
PT_KERNEL(mm_dw_u3, depthwise, channels(g, 0, 1, 3))
PT_KERNEL(mm_dw_unroll_1x2, depthwise, channels(g, 0, 2, 1))
PT_KERNEL(mm_dw_unroll_1x2_u2, depthwise, channels(g, 0, 2, 2))
PT_KERNEL(mm_dw_unroll_1x4, depthwise, channels(g, 0, 4, 1))
PT_KERNEL(mm_dw_unroll_1x4_u2, depthwise, channels(g, 0, 4, 2))
PT_KERNEL(mm_dw_in_grad, depthwise, channels(g, 1, 1, 1))
PT_KERNEL(mm_dw_in_grad_u2, depthwise, channels(g, 1, 1, 2))
PT_KERNEL(mm_dw_in_grad_u3, depthwise, channels(g, 1, 1, 3))
PT_KERNEL(mm_dw_in_grad_unroll_1x2, depthwise, channels(g, 1, 2, 1))
PT_KERNEL(mm_dw_in_grad_unroll_1x2_u2, depthwise, channels(g, 1, 2, 2))
PT_KERNEL(mm_dw_in_grad_unroll_1x4, depthwise, channels(g, 1, 4, 1))
PT_KERNEL(mm_dw_in_grad_unroll_1x4_u2, depthwise, channels(g, 1, 4, 2))
