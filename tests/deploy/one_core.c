/* SPDX-License-Identifier: Apache-2.0
 *
 * A machine of the tests' own: one core, memories of the C library, and a DMA so lazy that it copies in the wait.
 */
#include "network.h"
#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 16 };

struct lines {
    int transfer;
    char *to;
    const char *from;
    uint32_t count, bytes, to_step, from_step;
};

char *pt_l1, *pt_l2;
static char *l3;
static struct lines queue[2][MOST];
static int queued[2];

int pt_core(void) { return 0; }
int pt_cores(void) { return 1; }
void pt_barrier(void) {}
void pt_fork(pt_kernel *kernel, const void *arguments) { kernel(arguments); }
void pt_alone(pt_kernel *kernel, const void *arguments) { kernel(arguments); }

static void ask(int engine, struct lines lines) {
    if (queued[engine] == MOST) abort();
    queue[engine][queued[engine]++] = lines;
}

static void wait_for(int engine, int transfer) {
    int left = 0;
    for (int i = 0; i < queued[engine]; i++) {
        struct lines *move = &queue[engine][i];
        if (move->transfer == transfer)
            for (uint32_t line = 0; line < move->count; line++)
                memcpy(move->to + line * move->to_step, move->from + line * move->from_step, move->bytes);
        else
            queue[engine][left++] = *move;
    }
    queued[engine] = left;
}

void pt_dma_in(int transfer, void *l1, const void *l2, uint32_t bytes) {
    ask(0, (struct lines){transfer, l1, l2, 1, bytes, 0, 0});
}
void pt_dma_out(int transfer, const void *l1, void *l2, uint32_t bytes) {
    ask(0, (struct lines){transfer, l2, l1, 1, bytes, 0, 0});
}
void pt_dma_in_2d(int transfer, void *l1, const void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    ask(0, (struct lines){transfer, l1, l2, bytes / line_bytes, line_bytes, line_bytes, stride_bytes});
}
void pt_dma_out_2d(int transfer, const void *l1, void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    ask(0, (struct lines){transfer, l2, l1, bytes / line_bytes, line_bytes, stride_bytes, line_bytes});
}
void pt_dma_wait(int transfer) { wait_for(0, transfer); }

void pt_l3_in(int transfer, void *l2, uint32_t from, uint32_t bytes) {
    ask(1, (struct lines){transfer, l2, l3 + from, 1, bytes, 0, 0});
}
void pt_l3_out(int transfer, const void *l2, uint32_t to, uint32_t bytes) {
    ask(1, (struct lines){transfer, l3 + to, l2, 1, bytes, 0, 0});
}
void pt_l3_wait(int transfer) { wait_for(1, transfer); }

uint32_t pt_cycles(void) {
    static uint32_t cycles;
    return cycles += 1000;
}

void pt_print(const char *text) { puts(text); }
void pt_begins(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }
void pt_ends(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }

int pt_run(int cores, uint32_t l1_bytes, uint32_t l2_bytes, uint32_t l3_bytes, int (*work)(void)) {
    (void)cores;
    pt_l1 = malloc(l1_bytes + 8);
    pt_l2 = malloc(l2_bytes + 8);
    l3 = malloc(l3_bytes + 8);
    return pt_l1 && pt_l2 && l3 ? work() : -1;
}
