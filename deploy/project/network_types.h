/* SPDX-License-Identifier: Apache-2.0
 *
 * What network.c and data.c say to main.c.
 */
#ifndef NETWORK_TYPES_H
#define NETWORK_TYPES_H

#include "platform.h"

enum { IN_L1 = 1, IN_L2 = 2, IN_L3 = 3 };
enum { AS_FLOAT, AS_INT32, AS_BYTE, AS_FP16, AS_BF16 };

struct place {
    int level;
    uint32_t address, bytes;
};

struct tensor {
    const char *name;
    struct place at;
    uint32_t expected; /* where its bytes begin among those expected of a program, or of all tensors kept */
    int format;
    float room; /* by how much an element may differ from the expected one, besides a last bit of its own */
    int few;    /* only one element in 64 may: a last bit of 16 is as large as an update */
};

/* A step: its function, or 0 and where its table is then in L1; the buffers whose life begins with it or ends with it,
 * and every copy of what it has made that is complete then. */
struct op {
    const char *name;
    void (*run)(void);
    uint32_t table;
    const struct place *begins, *ends;
    int begins_count, ends_count;
    const struct tensor *results;
    int results_count;
};

/* One offload to the cluster: a mini-batch, or the update after some of them. */
struct program {
    const struct op *ops;
    int count;
    uint32_t results_bytes;
};

extern const struct program network_programs[];
extern const int network_programs_count; /* 1, or 2: the second runs once after all mini-batches */
extern float network_varying[];

/* tables.c: ops that are tables (NETWORK_TABLES: the identifier of their transfers). network_begin is called once, when
 * the memories are there. A place of a table has NETWORK_FETCHED where the transfer that brings it must be waited for. */
enum {
    WAITS = 1, LOADS = 2, STORES = 4, CALLS = 8, /* what a record is; 0 ends a table */
    TURNS = 16, VARIES = 32, FETCH = 64, LINES = 128, ALONE = 256, FAR = 512, FAR_WAITS = 1024,
    INTO = 2048, DETAIL = 1 << 16
};
#define NOWHERE 0xffffffffu /* no address */
#define NETWORK_FETCHED 1u
struct tables { /* of some ops, which are brought together */
    uint32_t *words;
    int count;
};
extern const struct tables network_tables[];
extern const int network_tables_count;
extern pt_kernel *const network_kernels[];
void network_begin(void);
void network_walk(uint32_t table);

/* data.c: what the iterations are given and what the simulator has found */
extern const int data_iterations, data_compared, data_mini_batches, data_losses, data_varying_count;
extern const struct tensor data_kept[], data_fed[], data_loss[];
extern const int data_kept_count, data_fed_count;
extern const float data_varying[];         /* [iteration][number] */
extern const float data_expected_losses[]; /* [iteration][mini-batch][loss] */
extern const char data_bin[];              /* kept tensors as they begin; per mini-batch what it is fed */
extern const char expected_bin[];          /* results of every op of the first iteration; kept tensors at the end */

#endif
