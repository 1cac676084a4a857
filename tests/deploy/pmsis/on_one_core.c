/* SPDX-License-Identifier: Apache-2.0
 *
 * platform/pulp_sdk.c over functions of PMSIS that are the tests' own: the cores of a team take turns, a DMA command
 * copies when it is waited for. Not the SDK: what is shown is the platform's own bookkeeping. */
#define PT_COMMANDS 2
#include "platform/pulp_sdk.c"

#include <stdlib.h>
#include <string.h>

static int core;
int pi_core_id(void) { return core; }
void pi_cl_team_fork(int cores, void (*entry_)(void *), void *arg) {
    for (core = 0; core < cores; core++) entry_(arg);
    core = 0;
}
void pi_cl_team_barrier(void) {}

static struct { char *to, *from; uint32_t bytes, to_step, from_step, line; } copies[1 << 20];
static int count;

static void ask(pi_cl_dma_cmd_t *cmd, uint32_t ext, uint32_t loc, uint32_t bytes, uint32_t stride, uint32_t line,
                pi_cl_dma_dir_e dir) {
    char *outside = (char *)(uintptr_t)ext, *inside = (char *)(uintptr_t)loc;
    const int in = dir == PI_CL_DMA_DIR_EXT2LOC;
    if (count == 1 << 20) abort();
    cmd->id = count++;
    copies[cmd->id].to = in ? inside : outside, copies[cmd->id].from = in ? outside : inside;
    copies[cmd->id].to_step = in ? line : stride, copies[cmd->id].from_step = in ? stride : line;
    copies[cmd->id].bytes = bytes, copies[cmd->id].line = line;
}
void pi_cl_dma_cmd(uint32_t ext, uint32_t loc, uint32_t size, pi_cl_dma_dir_e dir, pi_cl_dma_cmd_t *cmd) {
    ask(cmd, ext, loc, size, size, size, dir);
}
void pi_cl_dma_cmd_2d(uint32_t ext, uint32_t loc, uint32_t size, uint32_t stride, uint32_t length, pi_cl_dma_dir_e dir,
                      pi_cl_dma_cmd_t *cmd) {
    ask(cmd, ext, loc, size, stride, length, dir);
}
void pi_cl_dma_cmd_wait(pi_cl_dma_cmd_t *cmd) {
    const int id = cmd->id;
    if (!copies[id].to) abort(); /* waited for twice */
    for (uint32_t done = 0; done < copies[id].bytes; done += copies[id].line) {
        memcpy(copies[id].to, copies[id].from, copies[id].line);
        copies[id].to += copies[id].to_step, copies[id].from += copies[id].from_step;
    }
    copies[id].to = 0;
}

void pi_cluster_conf_init(struct pi_cluster_conf *conf) { (void)conf; }
void pi_open_from_conf(struct pi_device *device, void *conf) { (void)device, (void)conf; }
int pi_cluster_open(struct pi_device *device) { return (void)device, 0; }
int pi_cluster_close(struct pi_device *device) { return (void)device, 0; }
struct pi_cluster_task *pi_cluster_task(struct pi_cluster_task *task, void (*entry_)(void *), void *arg) {
    task->entry = entry_, task->arg = arg;
    return task;
}
int pi_cluster_send_task_to_cl(struct pi_device *device, struct pi_cluster_task *task) {
    task->entry(task->arg);
    return (void)device, 0;
}
void *pi_l1_malloc(struct pi_device *device, uint32_t size) { return (void)device, malloc(size + 8); }
void pi_l1_free(struct pi_device *device, void *chunk, uint32_t size) { (void)device, (void)size, free(chunk); }
void *pi_l2_malloc(uint32_t size) { return malloc(size + 8); }
void pi_l2_free(void *chunk, uint32_t size) { (void)size, free(chunk); }
void pi_perf_conf(uint32_t events) { (void)events; }
void pi_perf_reset(void) {}
void pi_perf_start(void) {}
void pi_perf_stop(void) {}
uint32_t pi_perf_read(int event) { return (void)event, (uint32_t)count + 1; }

void pi_default_ram_conf_init(struct pi_default_ram_conf *conf) { (void)conf; }
int pi_ram_open(struct pi_device *device) { return (void)device, 1; }
int pi_ram_alloc(struct pi_device *device, uint32_t *address, uint32_t size) {
    return (void)device, (void)address, (void)size, 1;
}
void pi_cl_ram_read(struct pi_device *device, uint32_t address, void *data, uint32_t size, pi_cl_ram_req_t *request) {
    (void)device, (void)address, (void)data, (void)size, (void)request;
}
void pi_cl_ram_write(struct pi_device *device, uint32_t address, void *data, uint32_t size, pi_cl_ram_req_t *request) {
    (void)device, (void)address, (void)data, (void)size, (void)request;
}
void pi_cl_ram_copy_wait(pi_cl_ram_req_t *request) { (void)request; }
