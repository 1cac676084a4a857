/* SPDX-License-Identifier: Apache-2.0
 * Prototypes of the PMSIS functions that platform/pulp_sdk.c calls, as the public API names them: to compile against,
 * where there is no SDK. They are ours, not the SDK's: that it runs there is not shown by them. */
#ifndef PMSIS_H
#define PMSIS_H
#include <stddef.h>
#include <stdint.h>

#define PI_L1 __attribute__((section(".l1")))

struct pi_device { void *data; };
struct pi_cluster_conf { int id; };
struct pi_cluster_task {
    void (*entry)(void *);
    void *arg;
    uint32_t stack_size, slave_stack_size;
};
typedef enum { PI_CL_DMA_DIR_LOC2EXT, PI_CL_DMA_DIR_EXT2LOC } pi_cl_dma_dir_e;
typedef struct { int id; } pi_cl_dma_cmd_t;
typedef struct { int id; } pi_cl_ram_req_t;
enum { PI_PERF_CYCLES };

int pi_core_id(void);
void pi_cl_team_fork(int cores, void (*entry)(void *), void *arg);
void pi_cl_team_barrier(void);
void pi_cl_dma_cmd(uint32_t ext, uint32_t loc, uint32_t size, pi_cl_dma_dir_e dir, pi_cl_dma_cmd_t *cmd);
void pi_cl_dma_cmd_2d(uint32_t ext, uint32_t loc, uint32_t size, uint32_t stride, uint32_t length, pi_cl_dma_dir_e dir,
                      pi_cl_dma_cmd_t *cmd);
void pi_cl_dma_cmd_wait(pi_cl_dma_cmd_t *cmd);
void pi_cluster_conf_init(struct pi_cluster_conf *conf);
void pi_open_from_conf(struct pi_device *device, void *conf);
int pi_cluster_open(struct pi_device *device);
int pi_cluster_close(struct pi_device *device);
struct pi_cluster_task *pi_cluster_task(struct pi_cluster_task *task, void (*entry)(void *), void *arg);
int pi_cluster_send_task_to_cl(struct pi_device *device, struct pi_cluster_task *task);
void *pi_l1_malloc(struct pi_device *device, uint32_t size);
void pi_l1_free(struct pi_device *device, void *chunk, uint32_t size);
void *pi_l2_malloc(uint32_t size);
void pi_l2_free(void *chunk, uint32_t size);
void pi_perf_conf(uint32_t events);
void pi_perf_reset(void);
void pi_perf_start(void);
void pi_perf_stop(void);
uint32_t pi_perf_read(int event);
#endif
