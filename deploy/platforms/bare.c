/* SPDX-License-Identifier: Apache-2.0
 *
 * One core without an operating system, where all memories are one: a start for a machine of your own. What has to be
 * replaced on a cluster: pt_fork and the three functions of kernel.h (all cores execute the kernel), the transfers
 * (start the DMA, return at once), pt_cycles (a counter of the core) and where the memories lie.
 */
#include "network.h"
#include "platform.h"

#include <stdio.h>
#include <string.h>

static char l1[NETWORK_L1_BYTES + 8] __attribute__((aligned(8)));
static char l2[NETWORK_L2_BYTES + 8] __attribute__((aligned(8)));
static char l3[NETWORK_L3_BYTES + 8] __attribute__((aligned(8)));

char *pt_l1 = l1, *pt_l2 = l2;

#ifndef PT_TEAM_IN_LINE
int pt_core(void) { return 0; }
int pt_cores(void) { return 1; }
#endif
void pt_barrier(void) {}
void pt_fork(pt_kernel *kernel, const void *arguments) { kernel(arguments); }
void pt_alone(pt_kernel *kernel, const void *arguments) { kernel(arguments); }

void pt_dma_in(int transfer, void *to, const void *from, uint32_t bytes) {
    (void)transfer;
    memcpy(to, from, bytes);
}
void pt_dma_out(int transfer, const void *from, void *to, uint32_t bytes) {
    (void)transfer;
    memcpy(to, from, bytes);
}
void pt_dma_in_2d(int transfer, void *to, const void *from, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    (void)transfer;
    for (uint32_t line = 0; line < bytes / line_bytes; line++)
        memcpy((char *)to + line * line_bytes, (const char *)from + line * stride_bytes, line_bytes);
}
void pt_dma_out_2d(int transfer, const void *from, void *to, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    (void)transfer;
    for (uint32_t line = 0; line < bytes / line_bytes; line++)
        memcpy((char *)to + line * stride_bytes, (const char *)from + line * line_bytes, line_bytes);
}
void pt_dma_wait(int transfer) { (void)transfer; }

void pt_l3_in(int transfer, void *to, uint32_t from, uint32_t bytes) { pt_dma_in(transfer, to, l3 + from, bytes); }
void pt_l3_out(int transfer, const void *from, uint32_t to, uint32_t bytes) { pt_dma_out(transfer, from, l3 + to, bytes); }
void pt_l3_wait(int transfer) { (void)transfer; }

uint32_t pt_cycles(void) {
#if defined(__riscv)
    uint32_t cycles;
    __asm__ volatile("csrr %0, cycle" : "=r"(cycles));
    return cycles;
#else
    return 0;
#endif
}

void pt_print(const char *text) { puts(text); }
void pt_begins(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }
void pt_ends(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }

int pt_run(int cores, uint32_t l1_bytes, uint32_t l2_bytes, uint32_t l3_bytes, int (*work)(void)) {
    (void)cores, (void)l1_bytes, (void)l2_bytes, (void)l3_bytes;
    return work();
}
