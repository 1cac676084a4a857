/* SPDX-License-Identifier: Apache-2.0
 *
 * Cores of PULP clusters, in line: a kernel that calls nothing saves no registers. */
#ifndef PT_PULP_TEAM_H
#define PT_PULP_TEAM_H

extern int pt_team; /* cores of the team; in L1 */

static inline __attribute__((always_inline, unused)) int pt_core(void)
{
    int hart;
    __asm__("csrr %0, mhartid" : "=r"(hart));
    return pt_team == 1 ? 0 : hart & 15;
}

static inline __attribute__((always_inline, unused)) int pt_cores(void) { return pt_team; }

#endif
