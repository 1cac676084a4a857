/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel may ask of the platform. A kernel is one function that every core of the team runs; its
 * arguments are a struct in L1 or constant memory, the same for all cores. */
#ifndef PT_KERNEL_H
#define PT_KERNEL_H

#include <math.h>
#include <stdint.h>

int pt_core(void);     /* 0 .. pt_cores() - 1 */
int pt_cores(void);    /* cores of this team; 1 where the master runs a kernel alone */
void pt_barrier(void); /* waits for all cores of the team */

#define PT_INLINE static inline __attribute__((always_inline, unused))

/* What is this core's of a number of items cut into runs of one length, the last of them shorter: start <= i < stop. */
struct pt_range { int start, stop; };

PT_INLINE struct pt_range pt_own(int items)
{
    const int block = (items + pt_cores() - 1) / pt_cores();
    const int start = pt_core() * block, stop = start + block;
    return (struct pt_range){start < items ? start : items, stop < items ? stop : items};
}

#endif
