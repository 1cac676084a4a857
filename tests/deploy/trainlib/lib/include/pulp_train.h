/* SPDX-License-Identifier: Apache-2.0
 * Prototypes as PULP-TrainLib has them, for tests. */
#ifndef PULP_TRAIN_H
#define PULP_TRAIN_H
struct matMul_args {
    float *__restrict__ A, *__restrict__ B, *__restrict__ C;
    int N, M, K, trans_B;
};
void mm(void *args);
void mm_M(void *args);
#endif
