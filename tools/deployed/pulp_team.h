/* SPDX-License-Identifier: Apache-2.0
 *
 * That of PULP clusters where a variable says which core it is: as many instructions, and no privilege. */
extern int pt_team, pt_turn;

static inline __attribute__((always_inline, unused)) int pt_core(void) { return pt_turn; }
static inline __attribute__((always_inline, unused)) int pt_cores(void) { return pt_team; }
