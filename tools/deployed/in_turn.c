/* SPDX-License-Identifier: Apache-2.0
 *
 * platform/bare.c with a team: its cores execute a kernel one after the other, so that one machine in user mode counts
 * the instructions of all. Barriers do nothing: results may be wrong where a core reads what another has stored. */
#define pt_fork by_one_core
#include "platform/bare.c"
#undef pt_fork

int pt_team = 1, pt_turn;

void pt_fork(pt_kernel *kernel, const void *arguments) {
    pt_team = NETWORK_CORES;
    for (pt_turn = 0; pt_turn < pt_team; pt_turn++) kernel(arguments);
    pt_turn = 0, pt_team = 1;
}
