/* SPDX-License-Identifier: Apache-2.0
 *
 * A PULP cluster without an SDK: event unit and mchan by their registers, pulp_cluster.S and pulp_cluster.ld begin it.
 * All that is touched between two kernels lies in L1. There is no L3, and no output but what PT_STDOUT says: the
 * address of a register that takes characters. Without it the lines are in pt_log, for a debugger. pt_result is
 * 0x100 + the result of main when it has ended.
 */
#include "network.h"
#include "platform.h"

#if NETWORK_CORES > 8
#error "pulp_cluster.ld has stacks for 8 cores: make room for more there"
#endif

#define IN_L1_MEMORY __attribute__((section(".l1")))

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define MCHAN 0x10204400u  /* the core's own port; + 4: its status */
#define EVENTS 0x10204000u /* the event unit's direct link of a core */
#define TIMER 0x10200400u  /* of the cluster: it runs on while cores sleep */

enum { TRANSFERS = 64, LOG_BYTES = 4096, DMA_EVENT = 1 << 8 };
enum { MASK_SET = 0x08, MASK_CLEAR = 0x04, DISPATCH = 0x80, TEAM = 0x84, BARRIER_OF = 0x200, BARRIER_FOR = 0x20C };
enum { INTO_L1 = 1 << 17, INCREMENTS = 1 << 18, LINES = 1 << 19, TELLS = 1 << 20 }; /* of a command */

char *pt_l1 IN_L1_MEMORY, *pt_l2 IN_L1_MEMORY;
int pt_team IN_L1_MEMORY;
static uint32_t under_way[TRANSFERS] IN_L1_MEMORY; /* identifiers of the DMA by transfer, a bit each */

char pt_log[LOG_BYTES];
volatile int pt_result;

extern char pt_l1_begin[], pt_l1_end[], pt_l2_begin[], pt_l2_end[]; /* what the linker leaves */
int main(void);
void pt_start(void);

#ifndef PT_TEAM_IN_LINE
int pt_core(void) {
    int hart;
    __asm__("csrr %0, mhartid" : "=r"(hart));
    return pt_team == 1 ? 0 : hart & 15;
}
int pt_cores(void) { return pt_team; }
#endif

/* p.elw: the core sleeps till the event has come. */
#define EVENT_LOAD(offset) __asm__ volatile(".insn i 0x03, 6, t0, %0, " #offset : : "r"(EVENTS) : "t0", "memory")

void pt_barrier(void) {
    if (pt_team > 1) EVENT_LOAD(0x21C);
}

void pt_fork(pt_kernel *kernel, const void *arguments) {
    const uint32_t all = (1u << NETWORK_CORES) - 1;
    pt_team = NETWORK_CORES;
    REGISTER(EVENTS + TEAM) = all;
    REGISTER(EVENTS + BARRIER_OF) = all;
    REGISTER(EVENTS + BARRIER_FOR) = all;
    __asm__ volatile("" ::: "memory");
    REGISTER(EVENTS + DISPATCH) = (uint32_t)(uintptr_t)kernel;
    REGISTER(EVENTS + DISPATCH) = (uint32_t)(uintptr_t)arguments;
    kernel(arguments);
    EVENT_LOAD(0x21C);
    pt_team = 1;
}

void pt_alone(pt_kernel *kernel, const void *arguments) { kernel(arguments); }

/* L1 has less than the 17 bits of a command's bytes can say, so no transfer is cut. */
static void command(int transfer, uint32_t what, const void *l1, const void *l2) {
    __asm__ volatile("" ::: "memory");
    under_way[transfer] |= 1u << REGISTER(MCHAN);
    REGISTER(MCHAN) = what | INCREMENTS | TELLS;
    REGISTER(MCHAN) = (uint32_t)(uintptr_t)l1;
    REGISTER(MCHAN) = (uint32_t)(uintptr_t)l2;
}

void pt_dma_in(int transfer, void *l1, const void *l2, uint32_t bytes) { command(transfer, bytes | INTO_L1, l1, l2); }
void pt_dma_out(int transfer, const void *l1, void *l2, uint32_t bytes) { command(transfer, bytes, l1, l2); }
void pt_dma_in_2d(int transfer, void *l1, const void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    command(transfer, bytes | INTO_L1 | LINES, l1, l2);
    REGISTER(MCHAN) = line_bytes;
    REGISTER(MCHAN) = stride_bytes;
}
void pt_dma_out_2d(int transfer, const void *l1, void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    command(transfer, bytes | LINES, l1, l2);
    REGISTER(MCHAN) = line_bytes;
    REGISTER(MCHAN) = stride_bytes;
}
void pt_dma_wait(int transfer) {
    const uint32_t mine = under_way[transfer];
    if (!mine) return;
    while (REGISTER(MCHAN + 4) & mine) {
        REGISTER(EVENTS + MASK_SET) = DMA_EVENT;
        EVENT_LOAD(0x3C);
        REGISTER(EVENTS + MASK_CLEAR) = DMA_EVENT;
    }
    REGISTER(MCHAN + 4) = mine;
    under_way[transfer] = 0;
    __asm__ volatile("" ::: "memory");
}

void pt_l3_in(int transfer, void *l2, uint32_t l3, uint32_t bytes) { (void)transfer, (void)l2, (void)l3, (void)bytes; }
void pt_l3_out(int transfer, const void *l2, uint32_t l3, uint32_t bytes) {
    (void)transfer, (void)l2, (void)l3, (void)bytes;
}
void pt_l3_wait(int transfer) { (void)transfer; }

uint32_t pt_cycles(void) { return REGISTER(TIMER + 8); }

static void print(char character) {
#ifdef PT_STDOUT
    REGISTER(PT_STDOUT) = (uint32_t)character;
#else
    static uint32_t printed;
    pt_log[printed++ % LOG_BYTES] = character;
#endif
}

void pt_print(const char *text) {
    while (*text) print(*text++);
    print('\n');
}

void pt_begins(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }
void pt_ends(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }

int pt_run(int cores, uint32_t l1_bytes, uint32_t l2_bytes, uint32_t l3_bytes, int (*work)(void)) {
    pt_l1 = pt_l1_begin, pt_l2 = pt_l2_begin;
    pt_team = 1;
    REGISTER(TIMER + 0x18) = 1; /* runs */
    if (cores != NETWORK_CORES || l3_bytes || l1_bytes > (uint32_t)(pt_l1_end - pt_l1_begin)) return -1;
    return l2_bytes > (uint32_t)(pt_l2_end - pt_l2_begin) ? -1 : work();
}

/* The master core, from pulp_cluster.S. */
void pt_start(void) { pt_result = 0x100 + main(); }
