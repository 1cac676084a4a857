/* SPDX-License-Identifier: Apache-2.0
 *
 * Carries out ops that are tables: transfers, waits and calls of kernels, one record after the other. Tables are
 * brought into L1 by the DMA, several small ones at a time, while the ops before them run, so that nothing of an op is
 * code. Kernels read their arguments where they lie in the table. A loop changes words of its records from turn to
 * turn.
 *
 *   WAITS                    for up to four transfers
 *   LOADS, STORES            L1, L2, bytes
 *   CALLS                    number of the kernel, the words of its arguments, a bit for each that is an address
 *   ALONE                    the same, on the master core
 *   FETCH                    L1, number of tables, bytes
 *   LINES, with INTO         L1, L2, bytes, stride and bytes of a line
 *   TURNS                    words back to the begin of the loop, turns to go, turns, n; pairs of a word and what is
 *                            added to it; n times: a word, stretch, turns of it to go, stretches, and of each its turns
 *                            and what is added
 *   VARIES                   word of the table, which of network_varying it is
 *   FAR, with INTO           L2, L3, bytes
 *   FAR_WAITS
 *
 * The upper half of the first word of a record: the identifier of a transfer; of those that are waited for, 4 bits
 * each, one more than the identifier; words of arguments and their bits; or pairs.
 */
#include "network.h"
#include "network_types.h"
#include "platform.h"

#ifdef NETWORK_TABLES
#include <string.h>

enum { WAIT = 1, CALL = 2, VARY = 3, MOVE = 4, LINE = 6, TURN = 5, RUN = 4, PAIR = 2 };

/* Of all words of a call those that are arguments; the others are a bit for each of them. */
static uint32_t arguments_of(uint32_t words) { return words - (words + 32) / 33; }

/* Where addresses are words they are put into the tables once, before the first iteration. */
#if UINTPTR_MAX == 0xffffffffu

#define NEAR(word) ((void *)(word))
#define MIDDLE(word) ((void *)(word))
#define WORDS_OF(word) ((const void *)(word))
#define CALL_BY(fork, record) fork((pt_kernel *)(record)[1], (record) + CALL)

static void locate(uint32_t *word, const char *from) { *word = *word == NOWHERE ? 0 : *word + (uint32_t)from; }

static uint32_t *behind(uint32_t *record) {
    const uint32_t what = *record, detail = what >> 16;
    if (what & (WAITS | FAR_WAITS)) return record + WAIT;
    if (what & (LOADS | STORES | FETCH | FAR)) return record + MOVE;
    if (what & LINES) return record + LINE;
    if (what & (CALLS | ALONE)) return record + CALL + detail;
    if (what & VARIES) return record + VARY;
    uint32_t *run = record + TURN + PAIR * detail;
    for (uint32_t runs = record[4]; runs; runs--) run += RUN + PAIR * run[3];
    return run;
}

void network_begin(void) {
    for (int number = 0; number < network_tables_count; number++) {
        uint32_t *record = network_tables[number].words;
        for (int left = network_tables[number].count; left; left -= !*record, record = *record ? behind(record) : record + 1) {
            const uint32_t what = *record;
            if (what & (LOADS | STORES | LINES | FETCH)) locate(&record[1], pt_l1);
            if (what & (LOADS | STORES | LINES)) locate(&record[2], pt_l2);
            if (what & FAR) locate(&record[1], pt_l2);
            if (what & FETCH) record[2] = (uint32_t)network_tables[record[2]].words;
            if (what & (CALLS | ALONE)) {
                const uint32_t words = arguments_of(what >> 16), *bits = record + CALL + words;
                record[1] = (uint32_t)network_kernels[record[1]];
                for (uint32_t i = 0; i < words; i++)
                    if (bits[i / 32] >> i % 32 & 1) locate(&record[CALL + i], pt_l1);
            }
        }
    }
}

#else /* a computer for the check: arguments are copied, with addresses as large as they are here */

#define NEAR(word) L1(word)
#define MIDDLE(word) L2(word)
#define WORDS_OF(word) network_tables[word].words
#define CALL_BY(fork, record) call(fork, record)

void network_begin(void) {}

static void call(void (*fork)(pt_kernel *, const void *), const uint32_t *record) {
    const uint32_t words = arguments_of(*record >> 16), *word = record + CALL, *bits = word + words;
    union {
        void *aligned;
        char bytes[8 * 256];
    } arguments;
    char *to = arguments.bytes;
    for (uint32_t i = 0; i < words; i++)
        if (bits[i / 32] >> i % 32 & 1) {
            void *address = word[i] == NOWHERE ? 0 : L1(word[i]);
            to += -(to - arguments.bytes) & (sizeof address - 1);
            memcpy(to, &address, sizeof address);
            to += sizeof address;
        } else {
            memcpy(to, &word[i], sizeof word[i]);
            to += sizeof word[i];
        }
    fork(network_kernels[record[1]], &arguments);
}

#endif

/* What an op seldom has; the record behind, 0 at the end of the table. */
static uint32_t *walk_other(uint32_t *table, uint32_t *record) {
    const uint32_t what = *record, detail = what >> 16;
    const int id = (int)detail;
    if (!what) return 0;
    if (what & TURNS) {
        uint32_t *pair = record + TURN;
        for (uint32_t pairs = detail; pairs; pairs--, pair += PAIR) table[pair[0]] += pair[1];
        for (uint32_t runs = record[4]; runs; runs--, pair += RUN + PAIR * pair[3]) {
            table[pair[0]] += pair[RUN + PAIR * pair[1] + 1];
            if (--pair[2]) continue;
            pair[1] = pair[1] + 1 < pair[3] ? pair[1] + 1 : 0;
            pair[2] = pair[RUN + PAIR * pair[1]];
        }
        if (--record[2]) return record - record[1];
        record[2] = record[3];
        return pair;
    }
    if (what & VARIES) {
        memcpy(&table[record[1]], &network_varying[record[2]], sizeof *table);
        return record + VARY;
    }
    if (what & FETCH) {
        pt_dma_in(NETWORK_TABLES, NEAR(record[1]), WORDS_OF(record[2]), record[3]);
        return record + MOVE;
    }
    if (what & LINES) {
        if (what & INTO) pt_dma_in_2d(id, NEAR(record[1]), MIDDLE(record[2]), record[3], record[4], record[5]);
        else pt_dma_out_2d(id, NEAR(record[1]), MIDDLE(record[2]), record[3], record[4], record[5]);
        return record + LINE;
    }
    if (what & ALONE) {
        CALL_BY(pt_alone, record);
        return record + CALL + detail;
    }
    if (what & FAR) {
        if (what & INTO) pt_l3_in(id, MIDDLE(record[1]), record[2], record[3]);
        else pt_l3_out(id, MIDDLE(record[1]), record[2], record[3]);
        return record + MOVE;
    }
    pt_l3_wait(id);
    return record + WAIT;
}

void network_walk(uint32_t at) {
    uint32_t *table = L1(at & ~NETWORK_FETCHED), *record = table;
    if (at & NETWORK_FETCHED) pt_dma_wait(NETWORK_TABLES);
    do {
        const uint32_t what = *record;
        uint32_t detail = what >> 16;
        if (what & WAITS) {
            record += WAIT;
            do pt_dma_wait((int)(detail & 15) - 1);
            while (detail >>= 4);
        } else if (what & LOADS) {
            record += MOVE;
            pt_dma_in((int)detail, NEAR(record[1 - MOVE]), MIDDLE(record[2 - MOVE]), record[3 - MOVE]);
        } else if (what & STORES) {
            record += MOVE;
            pt_dma_out((int)detail, NEAR(record[1 - MOVE]), MIDDLE(record[2 - MOVE]), record[3 - MOVE]);
        } else if (what & CALLS) {
            CALL_BY(pt_fork, record);
            record += CALL + detail;
        } else {
            record = walk_other(table, record);
        }
    } while (record);
}
#endif
