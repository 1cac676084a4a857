/* SPDX-License-Identifier: Apache-2.0
 * The binary files as two arrays, in a section that a linker script may place: DATA_SECTION. */
#ifndef DATA_SECTION
#define DATA_SECTION .rodata
#endif
    .section DATA_SECTION, "a"
    .balign 8
    .globl data_bin
data_bin:
    .incbin "data.bin"
    .byte 0
    .balign 8
    .globl expected_bin
expected_bin:
    .incbin "expected.bin"
    .byte 0
#if defined(__linux__) && defined(__ELF__)
    .section .note.GNU-stack, "", %progbits
#endif
