/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the cores of a cluster begin: core 0 is the master, the others wait for kernels. A core from CORES on sleeps. */
#ifndef NETWORK_CORES
#define NETWORK_CORES 8
#endif
#define EVENTS 0x10204000         /* the event unit's direct link */
#define CACHE_CONTROL 0x10201400  /* of the instruction cache */
#define BARRIER_AND_DISPATCH 0x50000 /* events 16 and 18 */

    .section .start, "ax"
    .globl pt_entry
pt_entry:
    csrr t0, mhartid
    andi t0, t0, 15
    li   t1, NETWORK_CORES
    bgeu t0, t1, asleep
    la   sp, pt_master_stack      /* its end; a worker's is so much further */
    slli t1, t0, 10
    add  sp, sp, t1
    li   s0, EVENTS
    li   t1, BARRIER_AND_DISPATCH
    sw   t1, 0(s0)
    bnez t0, worker

    li   t0, CACHE_CONTROL
    li   t1, -1
    sw   t1, 0(t0)                /* all banks */
    la   t0, pt_bss_begin
    la   t1, pt_bss_end
    jal  t2, clear
    la   t0, pt_l1_data
    la   t1, pt_l1_begin
    jal  t2, clear
    call pt_start
asleep:
    wfi
    j    asleep

clear:                            /* the words from t0 to t1 */
    bgeu t0, t1, cleared
    sw   zero, 0(t0)
    addi t0, t0, 4
    j    clear
cleared:
    jr   t2

worker:
    .insn i 0x03, 6, a5, s0, 0x80 /* p.elw: the kernel, when there is one */
    .insn i 0x03, 6, a0, s0, 0x80 /* its arguments */
    jalr a5
    .insn i 0x03, 6, x0, s0, 0x21C /* the barrier at the end of a fork */
    j    worker
