# The tile loop of rtl-tiled as it was run on RTL: mchan driven by bare stores, no mutex. Own code. Cut into parts in
# the order in which a tile goes through them; a line of its own names each. Behind an instruction stands what
# trainlib/kernels/assembly.py reads. `li` of a large constant is two instructions and written as such. The event load
# between `sleep` and `woken` is the event unit's and no part. The fork is called with entry in a1 and arguments in a2;
# s10 points to {entry, n, k, m, cores, block, bytes of A, B, C, tiles, double}. Its size is counted by hand, with
# compressed instructions where there is a form (loads and stores with t registers have none):
# code_bytes 306
# Behind the name of a part: how many of its jumps and taken branches go to a 32 bit instruction (of the turn that
# follows where a return comes back there), which may lie across two words, and how many return by a register that
# was loaded two instructions before.

#@ part single: begin
  bnez t0,ldouble
  lui s7,0x10002
  addi s7,s7,0x400
#@ part double: begin; wide targets 1
  bnez t0,ldouble               #@ taken 1
  lui s7,0x10002
  addi s7,s7,0x400
  li a0,0

# Inputs: into push_in, up to the identifier of A; from the last word of A to the identifier of B; and back.
#@ part single: before the inputs
  mv a0,s8
#@ part double: before the next inputs
  addi a0,s8,1
  beq a0,s9,2f
  xori s7,s7,0x40
#@ part double: no next inputs; wide targets 1
  addi a0,s8,1
  beq a0,s9,2f                  #@ taken 1
#@ part first input; wide targets 1
  call push_in
  lw t0,24(s10)
  lw t1,28(s10)
  add t2,t0,t1
  mul t2,t2,a0
  lui t3,0x1c050
  add t2,t2,t3
  lui t4,0x10204
  addi t4,t4,0x400
  lui t5,0x160
#@ part next input
  add t2,t2,t0
#@ part inputs pushed
  ret
#@ part double: next inputs pushed; wide targets 1
  xori s7,s7,0x40

# One command: identifier, then length, address in L1, address in L2.
#@ part command
  lw s0,0(t4)
  or t6,t5,t0
  sw t6,0(t4)
  lw t6,0(s7)
  sw t6,0(t4)
  sw t2,0(t4)

# The wait for both inputs.
#@ part wait for the inputs
  call wait_in
  addi sp,sp,-16
  sw ra,0(sp)
#@ part wait for one; wide targets 1
  mv a0,s0
  call dma_wait
#@ part inputs are there; wide targets 1; late returns 1
  lw ra,0(sp)
  addi sp,sp,16
  ret

# dma_wait: up to the status read that decides; over; not over, to sleep; awake again, the second look finds it over.
#@ part look
  lui t4,0x10204
  addi t4,t4,0x400
  lui t5,0x10204
  li t0,1
  sll t0,t0,a0
  li t3,256
  lw t1,4(t4)
#@ part over; wide targets 1
  and t1,t1,t0
  beqz t1,2f                    #@ taken 1
  sw t0,4(t4)
  ret
#@ part sleep
  and t1,t1,t0
  beqz t1,2f
  sw t3,8(t5)
#@ part woken; wide targets 2
  sw t3,4(t5)
  j 1b
  lw t1,4(t4)
  and t1,t1,t0
  beqz t1,2f                    #@ taken 1
  sw t0,4(t4)
  ret

# The kernel.
#@ part arguments
  lw a0,16(s10)
  lw a1,0(s10)
  mv a2,s7
#@ part return at once
  ret

# The output of the tile before, and that of this one.
#@ part double: an output is under way
  beqz s8,3f
#@ part double: no output is under way
  beqz s8,3f                    #@ taken 1
#@ part output; wide targets 1
  mv a0,s8
  call push_out
  lw t0,32(s10)
  mul t2,t0,a0
  lui t3,0x1c0c0
  add t2,t2,t3
  lui t4,0x10204
  addi t4,t4,0x400
  lui t5,0x140
#@ part output pushed
  ret

# The next tile.
#@ part single: turn
  addi s8,s8,1
  bne s8,s9,1b                  #@ taken 1
#@ part single: last turn
  addi s8,s8,1
  bne s8,s9,1b
  j lend
#@ part double: turn; wide targets 1
  xori s7,s7,0x40
  addi s8,s8,1
  bne s8,s9,1b                  #@ taken 1
#@ part double: last turn; wide targets 1
  xori s7,s7,0x40
  addi s8,s8,1
  bne s8,s9,1b
