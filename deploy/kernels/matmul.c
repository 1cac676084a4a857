/* SPDX-License-Identifier: Apache-2.0
 *
 * C[N,M] = A[N,K] . B[K,M], or += with `accumulate`; B is stored [M,K] if `trans_b`.
 *
 * mm_*: rows of C over the cores; mm_M_*: columns. _UxV: blocks of U rows by V columns in registers; _u2: two k a
 * turn. Every element is one sum in the order of k. Where a core would get too little, a kernel hands over to a
 * smaller one, as PULP-TrainLib's do. Runs of rows or columns are whole blocks there too, but begin where the one
 * before ends, so that no element is computed by two cores. */
#include "kernels.h"

/* arguments */
struct matmul { const float *A, *B; float *C; int A_s[2], B_s[2], C_s[2], N, K, M, trans_b, accumulate; };
/* end */

/* U x V elements of C from row i and column j on, T of k a turn. All but i and j are constants where it is used, so
 * that the loops over u, v and t disappear. */
PT_INLINE void block(const struct matmul *g, int trans_b, int i, int j, int U, int V, int T)
{
    const int K = g->K, of_i = g->A_s[0], of_k = trans_b ? 1 : g->B_s[0], of_j = trans_b ? g->B_s[1] : 1;
    PT_POINTER a = g->A + i * of_i;
    PT_POINTER b = g->B + j * of_j;
    PT_POINTER c = g->C + i * g->C_s[0] + j;
    float sum[16];
    for (int u = 0; u < U; u++)
        for (int v = 0; v < V; v++)
            sum[u * V + v] = g->accumulate ? PT_LOAD(c, u * g->C_s[0] + v) : 0.0f;
    int k = 0;
    for (; k + T <= K; k += T)
        for (int t = 0; t < T; t++, a++, b += of_k)
            for (int u = 0; u < U; u++)
                for (int v = 0; v < V; v++)
                    sum[u * V + v] = fmaf(PT_LOAD(a, u * of_i), PT_LOAD(b, v * of_j), sum[u * V + v]);
    for (; k < K; k++, a++, b += of_k)
        for (int u = 0; u < U; u++)
            for (int v = 0; v < V; v++)
                sum[u * V + v] = fmaf(PT_LOAD(a, u * of_i), PT_LOAD(b, v * of_j), sum[u * V + v]);
    for (int u = 0; u < U; u++)
        for (int v = 0; v < V; v++)
            PT_STORE(c, u * g->C_s[0] + v, sum[u * V + v]);
}

/* Elements of C one at a time: rows i0 .. i1 of columns j0 .. j1. */
PT_INLINE void singles(const struct matmul *g, int trans_b, int i0, int i1, int j0, int j1)
{
    for (int i = i0; i < i1; i++)
        for (int j = j0; j < j1; j++)
            block(g, trans_b, i, j, 1, 1, 1);
}

/* This core's of `items` rows or columns, in whole blocks of `size`, of which `items` is a multiple. */
PT_INLINE struct pt_range own_blocks(int items, int size)
{
    const struct pt_range own = pt_own(items / size);
    return (struct pt_range){own.start * size, own.stop * size};
}

/* U rows from row i on, V columns at a time, the last M % V columns alone. */
PT_INLINE void strip(const struct matmul *g, int trans_b, int i, int U, int V, int T)
{
    const int whole = g->M - g->M % V;
    for (int j = 0; j < whole; j += V)
        block(g, trans_b, i, j, U, V, T);
    if (V > 1)
        singles(g, trans_b, i, i + U, whole, g->M);
}

/* Rows over the cores; the last N % U rows are computed column by column, columns over the cores. */
PT_INLINE void rows(const struct matmul *g, int trans_b, int U, int V, int T)
{
    const int whole = g->N - g->N % U;
    const struct pt_range own = own_blocks(whole, U);
    for (int i = own.start; i < own.stop; i += U)
        strip(g, trans_b, i, U, V, T);
    if (U > 1) {
        const struct pt_range columns = pt_own(g->M);
        singles(g, trans_b, whole, g->N, columns.start, columns.stop);
    }
}

/* Rows over the cores in pairs; an odd row of a core is computed by it alone. */
PT_INLINE void pairs(const struct matmul *g, int trans_b, int V)
{
    const struct pt_range own = pt_own(g->N);
    int i = own.start;
    for (; i + 2 <= own.stop; i += 2)
        strip(g, trans_b, i, 2, V, 1);
    if (i < own.stop)
        strip(g, trans_b, i, 1, V, 1);
}

/* Columns over the cores; the last N % U rows of each alone; the last M % V columns row by row, rows over the cores. */
PT_INLINE void columns(const struct matmul *g, int trans_b, int U, int V, int T)
{
    const int whole = g->M - g->M % V, high = g->N - g->N % U;
    const struct pt_range own = own_blocks(whole, V);
    for (int j = own.start; j < own.stop; j += V) {
        for (int i = 0; i < high; i += U)
            block(g, trans_b, i, j, U, V, T);
        if (U > 1)
            singles(g, trans_b, high, g->N, j, j + V);
    }
    if (V > 1) {
        const struct pt_range over = pt_own(g->N);
        singles(g, trans_b, over.start, over.stop, whole, g->M);
    }
}

/* Rows of C times columns where K is 1: a row of A's column by B's row, without a sum. */
PT_INLINE void products(const struct matmul *g, struct pt_range rows, struct pt_range columns)
{
    const int of_j = g->trans_b ? g->B_s[1] : 1;
    for (int i = rows.start; i < rows.stop; i++) {
        PT_POINTER b = g->B + columns.start * of_j;
        const float a = PT_LOAD(g->A, i * g->A_s[0]);
        PT_POINTER c = g->C + i * g->C_s[0] + columns.start;
        PT_POINTER const end = c + columns.stop - columns.start;
        if (g->accumulate)
            for (; c < end; c++, b += of_j)
                PT_STORE(c, 0, fmaf(a, PT_LOAD(b, 0), PT_LOAD(c, 0)));
        else
            for (; c < end; c++, b += of_j)
                PT_STORE(c, 0, fmaf(a, PT_LOAD(b, 0), 0.0f));
    }
}

/* The loops for B as it is stored: each is written once and compiled twice. */
#define LOOPS(KIND, ...) (g->trans_b ? KIND(g, 1, __VA_ARGS__) : KIND(g, 0, __VA_ARGS__))

void mm(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->K == 1)
        products(g, pt_own(g->N), (struct pt_range){0, g->M});
    else
        LOOPS(rows, 1, 1, 1);
}

void mm_u2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->K == 1)
        products(g, pt_own(g->N), (struct pt_range){0, g->M});
    else
        LOOPS(rows, 1, 1, 2);
}

void mm_unroll_1x2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->M < 2)
        mm(args);
    else
        LOOPS(rows, 1, 2, 1);
}

void mm_unroll_1x4(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->M < 4)
        mm_unroll_1x2(args);
    else
        LOOPS(rows, 1, 4, 1);
}

void mm_unroll_1x8(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->M < 8)
        mm_unroll_1x4(args);
    else
        LOOPS(rows, 1, 8, 1);
}

void mm_unroll_2x1(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->N) < 2)
        mm(args);
    else
        LOOPS(pairs, 1);
}

void mm_unroll_2x2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->N - g->N % 2) < 2)
        mm_unroll_1x8(args);
    else
        LOOPS(rows, 2, 2, 1);
}

void mm_unroll_2x4(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->N) < 2)
        mm_unroll_1x8(args);
    else if (g->M < 4)
        mm_unroll_2x2(args);
    else
        LOOPS(pairs, 4);
}

void mm_unroll_4x1(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->N - g->N % 4) < 4)
        mm_unroll_2x1(args);
    else
        LOOPS(rows, 4, 1, 1);
}

void mm_unroll_4x2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->N - g->N % 4) < 4)
        mm_unroll_1x8(args);
    else if (g->M < 2)
        mm_unroll_2x2(args);
    else
        LOOPS(rows, 4, 2, 1);
}

void mm_unroll_4x4(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    const int each = pt_each(g->N - g->N % 4);
    if (each < 2)
        mm_unroll_1x8(args);
    else if (each < 4)
        mm_unroll_2x4(args);
    else if (g->M < 4)
        mm_unroll_2x2(args);
    else
        LOOPS(rows, 4, 4, 1);
}

void mm_unroll_8x1(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->N - g->N % 8) < 8)
        mm_unroll_4x1(args);
    else
        LOOPS(rows, 8, 1, 1);
}

void mm_M(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->K == 1)
        products(g, (struct pt_range){0, g->N}, pt_own(g->M));
    else
        LOOPS(columns, 1, 1, 1);
}

void mm_M_u2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->K == 1)
        products(g, (struct pt_range){0, g->N}, pt_own(g->M));
    else
        LOOPS(columns, 1, 1, 2);
}

void mm_M_unroll_1x2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->M - g->M % 2) < 2)
        mm_M(args);
    else
        LOOPS(columns, 1, 2, 1);
}

void mm_M_unroll_1x4(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->M - g->M % 4) < 4)
        mm_M_unroll_1x2(args);
    else
        LOOPS(columns, 1, 4, 1);
}

void mm_M_unroll_1x8(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->M - g->M % 8) < 8)
        mm_M_unroll_1x4(args);
    else
        LOOPS(columns, 1, 8, 1);
}

void mm_M_unroll_2x1(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->N < 2)
        mm_M(args);
    else
        LOOPS(columns, 2, 1, 1);
}

void mm_M_unroll_4x1(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->N < 4)
        mm_M_unroll_2x1(args);
    else
        LOOPS(columns, 4, 1, 1);
}

void mm_M_unroll_8x1(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (g->N < 8)
        mm_M_unroll_4x1(args);
    else
        LOOPS(columns, 8, 1, 1);
}

void mm_M_unroll_2x2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->M - g->M % 2) < 2)
        mm_M_unroll_8x1(args);
    else
        LOOPS(columns, 2, 2, 1);
}

void mm_M_unroll_2x4(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->M - g->M % 4) < 4)
        mm_M_unroll_8x1(args);
    else if (g->N < 2)
        mm_M_unroll_2x2(args);
    else
        LOOPS(columns, 2, 4, 1);
}

void mm_M_unroll_4x2(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    if (pt_each(g->M - g->M % 2) < 2)
        mm_M_unroll_8x1(args);
    else if (g->N < 4)
        mm_M_unroll_2x2(args);
    else
        LOOPS(columns, 4, 2, 1);
}

void mm_M_unroll_4x4(const void *args)
{
    PT_ARGUMENTS(matmul, g);
    const int each = pt_each(g->M - g->M % 4);
    if (each < 2)
        mm_M_unroll_8x1(args);
    else if (each < 4)
        mm_M_unroll_4x2(args);
    else if (g->N < 4)
        mm_M_unroll_2x2(args);
    else
        LOOPS(columns, 4, 4, 1);
}

/*
 * The loops of the hand-scheduled kernels of PULP-TrainLib, whose schedule is the compiler's here: this core's rows
 * (asm_M_: columns), all that is left over of blocks alone; an s says that it is scheduled in another way. B is
 * never transposed.
 */
PT_INLINE void area(const struct matmul *g, struct pt_range over, struct pt_range along, int U, int V)
{
    int i = over.start;
    const int whole = along.stop - (along.stop - along.start) % V;
    for (; i + U <= over.stop; i += U) {
        for (int j = along.start; j < whole; j += V)
            block(g, 0, i, j, U, V, 1);
        singles(g, 0, i, i + U, whole, along.stop);
    }
    for (; U > 1 && i < over.stop; i++) {
        for (int j = along.start; j < whole; j += V)
            block(g, 0, i, j, 1, V, 1);
        singles(g, 0, i, i + 1, whole, along.stop);
    }
}

#define BY_ROWS(U, V) area(g, pt_own(g->N), (struct pt_range){0, g->M}, U, V)
#define BY_COLUMNS(U, V) area(g, (struct pt_range){0, g->N}, pt_own(g->M), U, V)

PT_KERNEL(asm_1x1, matmul, BY_ROWS(1, 1))
PT_KERNEL(asm_1x2, matmul, BY_ROWS(1, 2))
PT_KERNEL(asm_1x4, matmul, BY_ROWS(1, 4))
PT_KERNEL(asm_2x1, matmul, BY_ROWS(2, 1))
PT_KERNEL(asm_2x1s, matmul, BY_ROWS(2, 1))
PT_KERNEL(asm_2x2, matmul, BY_ROWS(2, 2))
PT_KERNEL(asm_2x4, matmul, BY_ROWS(2, 4))
PT_KERNEL(asm_4x1, matmul, BY_ROWS(4, 1))
PT_KERNEL(asm_4x1s, matmul, BY_ROWS(4, 1))
PT_KERNEL(asm_4x2, matmul, BY_ROWS(4, 2))
PT_KERNEL(asm_4x4, matmul, BY_ROWS(4, 4))
PT_KERNEL(asm_M_1x1, matmul, BY_COLUMNS(1, 1))
PT_KERNEL(asm_M_1x2, matmul, BY_COLUMNS(1, 2))
PT_KERNEL(asm_M_1x4, matmul, BY_COLUMNS(1, 4))
PT_KERNEL(asm_M_2x1, matmul, BY_COLUMNS(2, 1))
PT_KERNEL(asm_M_2x1s, matmul, BY_COLUMNS(2, 1))
PT_KERNEL(asm_M_2x2, matmul, BY_COLUMNS(2, 2))
PT_KERNEL(asm_M_2x4, matmul, BY_COLUMNS(2, 4))
PT_KERNEL(asm_M_4x1, matmul, BY_COLUMNS(4, 1))
PT_KERNEL(asm_M_4x1s, matmul, BY_COLUMNS(4, 1))
PT_KERNEL(asm_M_4x2, matmul, BY_COLUMNS(4, 2))
PT_KERNEL(asm_M_4x4, matmul, BY_COLUMNS(4, 4))
