/* SPDX-License-Identifier: Apache-2.0
 *
 * What network.c and data.c say to main.c.
 */
#ifndef NETWORK_TYPES_H
#define NETWORK_TYPES_H

#include <stdint.h>

enum { IN_L1 = 1, IN_L2 = 2, IN_L3 = 3 };
enum { AS_FLOAT, AS_INT32, AS_BYTE, AS_FP16, AS_BF16 };

struct place {
    int level;
    uint32_t address, bytes;
};

struct tensor {
    const char *name;
    struct place at;
    int format;
    float room; /* by how much an element may differ from the expected one, besides a last bit of its own */
    int few;    /* only one element in 64 may: a last bit of 16 is as large as an update */
};

/* A step: its function, the buffers whose life begins with it or ends with it, the tensors it has made then. */
struct op {
    const char *name;
    void (*run)(void);
    const struct place *begins, *ends;
    int begins_count, ends_count;
    const struct tensor *results;
    int results_count;
};

/* One offload to the cluster: a mini-batch, or the update after some of them. */
struct program {
    const struct op *ops;
    int count;
};

extern const struct program network_programs[];
extern const int network_programs_count; /* 1, or 2: the second runs once after all mini-batches */
extern float network_varying[];

/* data.c: what the iterations are given and what the simulator has found */
extern const int data_iterations, data_compared, data_mini_batches, data_losses, data_varying_count;
extern const struct tensor data_kept[], data_fed[], data_loss[];
extern const int data_kept_count, data_fed_count;
extern const float data_varying[];         /* [iteration][number] */
extern const float data_expected_losses[]; /* [iteration][mini-batch][loss] */
extern const char data_bin[];              /* kept tensors as they begin; per mini-batch what it is fed */
extern const char expected_bin[];          /* results of every op of the first iteration; kept tensors at the end */

#endif
