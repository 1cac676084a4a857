/* SPDX-License-Identifier: Apache-2.0
 *
 * PULP clusters through PMSIS (pulp-sdk, GAP SDK). L3 is the HyperRAM of the board's default driver.
 */
#include "network.h"
#include "platform.h"

#include <bsp/bsp.h>
#include <bsp/ram/hyperram.h>
#include <pmsis.h>
#include <stdio.h>

#ifndef PT_L1_DATA
#define PT_L1_DATA PI_L1 /* where the SDK's linker script leaves ordinary data, in L2, an access takes some 17 cycles */
#endif
#ifndef PT_COMMANDS
#define PT_COMMANDS 64 /* DMA commands under way at a time */
#endif
#ifndef PT_FIELD_BYTES
#define PT_FIELD_BYTES 65532u /* the size field of a 1D command has 16 bits in some SDKs; longer ones are split */
#endif

enum { TRANSFERS = 32, CLUSTER_STACK_BYTES = 2048, WORKER_STACK_BYTES = 1024 };

PT_L1_DATA char *pt_l1, *pt_l2;

static struct pi_device cluster, ram;
static uint32_t ram_base, ram_bytes;
static int (*job)(void), result;
static char *memories[2];
PT_L1_DATA int pt_team;

/* A command is in one list: of the free ones, or of those of a transfer. */
struct command {
    pi_cl_dma_cmd_t cmd;
    struct command *next;
};
static PT_L1_DATA struct command commands[PT_COMMANDS], *free_commands, *under_way[TRANSFERS];
static pi_cl_ram_req_t requests[TRANSFERS];

#ifndef PT_TEAM_IN_LINE
int pt_core(void) { return pt_team == 1 ? 0 : (int)pi_core_id(); }
int pt_cores(void) { return pt_team; }
#endif

void pt_barrier(void) {
    if (pt_team > 1) pi_cl_team_barrier();
}

struct call {
    pt_kernel *kernel;
    const void *arguments;
};

static void entry(void *given) {
    const struct call *call = given;
    call->kernel(call->arguments);
}

void pt_fork(pt_kernel *kernel, const void *arguments) {
    struct call call = {kernel, arguments};
    pt_team = NETWORK_CORES;
    pi_cl_team_fork(NETWORK_CORES, entry, &call);
    pt_team = 1;
}

void pt_alone(pt_kernel *kernel, const void *arguments) { kernel(arguments); }

static void wait_for_first(int transfer) {
    struct command *done = under_way[transfer];
    pi_cl_dma_cmd_wait(&done->cmd);
    under_way[transfer] = done->next;
    done->next = free_commands;
    free_commands = done;
}

static pi_cl_dma_cmd_t *command_for(int transfer) {
    for (int other = 0; !free_commands; other = (other + 1) % TRANSFERS) /* all are under way */
        if (under_way[other]) wait_for_first(other);
    struct command *taken = free_commands;
    free_commands = taken->next;
    taken->next = under_way[transfer];
    under_way[transfer] = taken;
    return &taken->cmd;
}

static void one_d(int transfer, const void *l1, const void *l2, uint32_t bytes, pi_cl_dma_dir_e way) {
    for (uint32_t done = 0, some; done < bytes; done += some) {
        some = bytes - done < PT_FIELD_BYTES ? bytes - done : PT_FIELD_BYTES;
        pi_cl_dma_cmd((uint32_t)(uintptr_t)l2 + done, (uint32_t)(uintptr_t)l1 + done, some, way, command_for(transfer));
    }
}

static void two_d(int transfer, const void *l1, const void *l2, uint32_t bytes, uint32_t stride, uint32_t line,
                  pi_cl_dma_dir_e way) {
    uint32_t most = PT_FIELD_BYTES / line * line;
    if (!most) { /* a line is longer than the field */
        for (uint32_t done = 0, at = 0; done < bytes; done += line, at += stride)
            one_d(transfer, (const char *)l1 + done, (const char *)l2 + at, line, way);
        return;
    }
    for (uint32_t done = 0, some; done < bytes; done += some) {
        some = bytes - done < most ? bytes - done : most;
        pi_cl_dma_cmd_2d((uint32_t)(uintptr_t)l2 + done / line * stride, (uint32_t)(uintptr_t)l1 + done, some, stride, line, way,
                         command_for(transfer));
    }
}

void pt_dma_in(int transfer, void *l1, const void *l2, uint32_t bytes) {
    one_d(transfer, l1, l2, bytes, PI_CL_DMA_DIR_EXT2LOC);
}
void pt_dma_out(int transfer, const void *l1, void *l2, uint32_t bytes) {
    one_d(transfer, l1, l2, bytes, PI_CL_DMA_DIR_LOC2EXT);
}
void pt_dma_in_2d(int transfer, void *l1, const void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    two_d(transfer, l1, l2, bytes, stride_bytes, line_bytes, PI_CL_DMA_DIR_EXT2LOC);
}
void pt_dma_out_2d(int transfer, const void *l1, void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    two_d(transfer, l1, l2, bytes, stride_bytes, line_bytes, PI_CL_DMA_DIR_LOC2EXT);
}
void pt_dma_wait(int transfer) {
    while (under_way[transfer]) wait_for_first(transfer);
}

/* A transfer between L2 and L3 has one request: a second command under its identifier waits for the first. */
static int asked[TRANSFERS];

void pt_l3_wait(int transfer) {
    if (asked[transfer]) pi_cl_ram_copy_wait(&requests[transfer]);
    asked[transfer] = 0;
}
void pt_l3_in(int transfer, void *l2, uint32_t l3, uint32_t bytes) {
    pt_l3_wait(transfer);
    pi_cl_ram_read(&ram, ram_base + l3, l2, bytes, &requests[transfer]);
    asked[transfer] = 1;
}
void pt_l3_out(int transfer, const void *l2, uint32_t l3, uint32_t bytes) {
    pt_l3_wait(transfer);
    pi_cl_ram_write(&ram, ram_base + l3, (void *)l2, bytes, &requests[transfer]);
    asked[transfer] = 1;
}

uint32_t pt_cycles(void) { return pi_perf_read(PI_PERF_CYCLES); } /* the cluster's timer, says PMSIS */
void pt_print(const char *text) { printf("%s\n", text); }
void pt_begins(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }
void pt_ends(void *buffer, uint32_t bytes) { (void)buffer, (void)bytes; }

static void on_cluster(void *unused) {
    (void)unused;
    pt_l1 = memories[0], pt_l2 = memories[1];
    pt_team = 1, free_commands = 0;
    for (int i = 0; i < TRANSFERS; i++) under_way[i] = 0; /* an L1 section is not cleared everywhere */
    for (int i = 0; i < PT_COMMANDS; i++) commands[i].next = free_commands, free_commands = &commands[i];
    pi_perf_conf(1 << PI_PERF_CYCLES);
    pi_perf_reset();
    pi_perf_start();
    result = job();
    pi_perf_stop();
}

static int open_l3(uint32_t bytes) {
    static struct pi_default_ram_conf settings;
    ram_bytes = bytes;
    if (!bytes) return 0;
    pi_default_ram_conf_init(&settings);
    pi_open_from_conf(&ram, &settings);
    return pi_ram_open(&ram) || pi_ram_alloc(&ram, &ram_base, bytes);
}

int pt_run(int cores, uint32_t l1_bytes, uint32_t l2_bytes, uint32_t l3_bytes, int (*work)(void)) {
    static struct pi_cluster_conf settings;
    static struct pi_cluster_task task;
    (void)cores;
    pi_cluster_conf_init(&settings);
    pi_open_from_conf(&cluster, &settings);
    if (pi_cluster_open(&cluster) || open_l3(l3_bytes)) return -1;
    char *l1 = pi_l1_malloc(&cluster, l1_bytes), *l2 = pi_l2_malloc(l2_bytes);
    if (!l1 || !l2) return -1;
    memories[0] = l1, memories[1] = l2;
    job = work;
    pi_cluster_task(&task, on_cluster, 0);
    task.stack_size = CLUSTER_STACK_BYTES, task.slave_stack_size = WORKER_STACK_BYTES;
    pi_cluster_send_task_to_cl(&cluster, &task);
    pi_l2_free(l2, l2_bytes);
    pi_l1_free(&cluster, l1, l1_bytes);
    pi_cluster_close(&cluster);
    return result;
}
