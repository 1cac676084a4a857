/* SPDX-License-Identifier: Apache-2.0
 *
 * What the network asks of the machine it runs on: memories, a team of cores, a DMA, a cycle counter.
 * One C file a target implements it (host.c, pulp_sdk.c, bare.c); everything else is the same on all.
 *
 * L1 and L2 can be addressed, from pt_l1 and pt_l2 on; L3 is known by offsets, since on most chips it is not in
 * the address space. Only the master core calls what is declared here, but for the three functions of kernel.h,
 * and never while a team is at work. The stack of the master core lies in L1: the arguments of pt_fork are on it, and
 * all cores read them.
 */
#ifndef PLATFORM_H
#define PLATFORM_H

#include <stdint.h>

#include "kernel.h"

extern char *pt_l1, *pt_l2;

#define L1(offset) ((void *)(pt_l1 + (offset)))
#define L2(offset) ((void *)(pt_l2 + (offset)))

typedef void pt_kernel(const void *arguments);

/* The memories of the plan, in bytes, and the cores of a team. `work` then runs on the master core; its result, or a
 * number below 0 if the machine has less, is returned. */
int pt_run(int cores, uint32_t l1_bytes, uint32_t l2_bytes, uint32_t l3_bytes, int (*work)(void));

/* All cores of the team execute the kernel; back when the last one has ended. pt_alone: the master core does. */
void pt_fork(pt_kernel *kernel, const void *arguments);
void pt_alone(pt_kernel *kernel, const void *arguments);

/* The DMA between L1 and L2. Several commands may be given under one identifier (0 .. PT_TRANSFERS - 1); the wait
 * is for all of them. Until then their destinations hold anything, and their sources must not change. In 2D
 * `bytes` are moved in lines of `line_bytes`, which lie behind one another in L1 and every `stride_bytes` in L2. */
void pt_dma_in(int transfer, void *l1, const void *l2, uint32_t bytes);
void pt_dma_out(int transfer, const void *l1, void *l2, uint32_t bytes);
void pt_dma_in_2d(int transfer, void *l1, const void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes);
void pt_dma_out_2d(int transfer, const void *l1, void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes);
void pt_dma_wait(int transfer);

/* The same between L2 and L3, always 1D. */
void pt_l3_in(int transfer, void *l2, uint32_t l3, uint32_t bytes);
void pt_l3_out(int transfer, const void *l2, uint32_t l3, uint32_t bytes);
void pt_l3_wait(int transfer);

/* Cycles of the cluster's clock; they may wrap around. The clock must run on while the master core sleeps in a wait: a
 * core's own counter often does not. 0 at all times if there is no clock. */
uint32_t pt_cycles(void);

/* A line of text, without its end. */
void pt_print(const char *text);

/* For machines that look for defects: these bytes hold a buffer from now on, or hold nothing of use any more. */
void pt_begins(void *buffer, uint32_t bytes);
void pt_ends(void *buffer, uint32_t bytes);

/* What main.c puts numbers into buffers with, and not a program; memcpy where a machine sets nothing. */
extern void (*pt_put)(void *to, const void *from, uint32_t bytes);

#endif
