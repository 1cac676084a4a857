/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel may ask of the platform. A kernel is one function that every core of the team runs; its
 * arguments are a struct in L1 or constant memory, the same for all cores. */
#ifndef PT_KERNEL_H
#define PT_KERNEL_H

#include <math.h>
#include <stdint.h>

#ifdef PT_TEAM_IN_LINE
#include "pulp_team.h"
#else
int pt_core(void);     /* 0 .. pt_cores() - 1 */
int pt_cores(void);    /* cores of this team; 1 where the master runs a kernel alone */
#endif
void pt_barrier(void); /* waits for all cores of the team */

#ifndef PT_LIBM /* functions of the C library instead of those of elementary.c */
float pt_expf(float x);
float pt_logf(float x);
float pt_log1pf(float x);
float pt_tanhf(float x);
#define expf pt_expf
#define logf pt_logf
#define log1pf pt_log1pf
#define tanhf pt_tanhf
#endif

#define PT_INLINE static inline __attribute__((always_inline, unused))

PT_INLINE uint32_t pt_bits(float x)
{
    const union { float value; uint32_t bits; } both = {.value = x};
    return both.bits;
}

PT_INLINE float pt_float_of_bits(uint32_t bits)
{
    const union { uint32_t bits; float value; } both = {.bits = bits};
    return both.value;
}

#include "narrow.h"

/* A kernel's arguments, copied: what the kernel stores cannot change them, so they stay in registers. */
#define PT_ARGUMENTS(type, name) const struct type name##_copy = *(const struct type *)args, *const name = &name##_copy

/* Cores of a team, as a constant where the compiler is told: no core divides then. */
#ifdef PT_CORES
#define PT_TEAM(cores) ((uint32_t)PT_CORES)
#else
#define PT_TEAM(cores) ((uint32_t)(cores))
#endif

/* What each core gets of a number of items, less the rest. */
PT_INLINE int pt_each(int items)
{
    const int cores = pt_cores();
    return cores == 1 ? items : (int)((uint32_t)items / PT_TEAM(cores));
}

/* What is this core's of a number of items cut into runs of one length, the last of them shorter: start <= i < stop. */
struct pt_range { int start, stop; };

PT_INLINE struct pt_range pt_own(int items)
{
    const int cores = pt_cores();
    if (cores == 1)
        return (struct pt_range){0, items};
    const int block = (int)(((uint32_t)items + PT_TEAM(cores) - 1) / PT_TEAM(cores));
    const int start = pt_core() * block, stop = start + block;
    return (struct pt_range){start < items ? start : items, stop < items ? stop : items};
}

/* Which i of 0 .. count have windows, from i * step + first on, of so many positions that cover position `at`. */
PT_INLINE struct pt_range pt_covering(int at, int first, int positions, int step, int count)
{
    const int over = at - first, below = over - positions + step, stop = over < 0 ? 0 : over / step + 1;
    return (struct pt_range){below < 0 ? 0 : below / step, stop < count ? stop : count};
}

#endif
