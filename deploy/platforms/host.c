/* SPDX-License-Identifier: Apache-2.0
 *
 * This computer, made as unforgiving as can be. PT_SEED in the environment says how, and the same seed does the same:
 *
 * - The DMA copies a transfer at once, as late as its wait, or in between, piece by piece. Seeds below FIXED have all
 *   transfers of one direction either at once or late, every two directions in all four ways; others draw. Till it is
 *   copied the destination is poison (NaN).
 *   Its source is sampled when it is ordered, and must be the same in the wait.
 * - Cores take turns: one runs up to the next barrier before another begins, and the DMA copies between them. Seed 0 goes
 *   up, seed 1 down, others draw the order anew at every barrier. With seed TOGETHER no core sees what another has
 *   written since the barrier, and no two write one byte.
 *
 * So a missing wait, an overlap, a wrong order of statements shows as a wrong number, or ends the program. Under the thread sanitizer, which
 * needs no luck, cores and DMA are threads that run freely.
 */
#define _POSIX_C_SOURCE 200809L
#include "platform.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

enum { MOST_CORES = 64, MOST_COMMANDS = 1 << 16, TRANSFERS = 64, POISON = 0xFF };

char *pt_l1, *pt_l2;
static char *l3;

static void stop(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(3);
}

static char *memory(uint32_t bytes) {
    char *address = NULL;
    if (posix_memalign((void **)&address, 64, bytes ? bytes : 1)) stop("host.c: no memory");
    memset(address, POISON, bytes);
    return address;
}

static uint32_t seed, state, l1_size;

static uint32_t drawn(void) { /* xorshift32 (Marsaglia, Xorshift RNGs, 2003) */
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}

/* Transfers: those of L1 and of L3 alike */

enum way { L1_IN, L1_OUT, L3_IN, L3_OUT };
enum moment { AT_ONCE, BETWEEN, AT_ITS_WAIT };

struct command {
    int transfer;
    enum way way;
    enum moment moment;
    char *to;
    const char *from;
    uint32_t bytes, to_stride, from_stride, line_bytes, done;
    char *sample; /* the source when it was ordered */
};

static struct command queue[MOST_COMMANDS];
static int queued;

static void fill(char *to, uint32_t bytes, uint32_t stride, uint32_t line_bytes) {
    for (uint32_t done = 0; done < bytes; done += line_bytes, to += stride) memset(to, POISON, line_bytes);
}

/* Copies what is left of the first `bytes`. */
static void copy(struct command *one, uint32_t bytes) {
    while (one->done < bytes) {
        uint32_t line = one->done / one->line_bytes, in_line = one->done % one->line_bytes;
        uint32_t some = one->line_bytes - in_line < bytes - one->done ? one->line_bytes - in_line : bytes - one->done;
        memcpy(one->to + line * one->to_stride + in_line, one->from + line * one->from_stride + in_line, some);
        one->done += some;
    }
}

#if defined(__SANITIZE_THREAD__)

/* Cores and DMA run freely */

static pthread_t workers[MOST_CORES], dma;
static pthread_barrier_t begin, middle, end;
static pt_kernel *job; /* NULL: go home */
static const void *job_arguments;
static int cores;
static _Thread_local int my_core, alone = 1;
static _Thread_local uint32_t my_state;

int pt_core(void) { return my_core; }
int pt_cores(void) { return alone ? 1 : cores; }

static void enter(void) { /* later than others */
    my_state = my_state * 1664525u + 1013904223u; /* Numerical Recipes */
    for (uint32_t turns = my_state >> 29; turns; turns--) sched_yield();
}

void pt_barrier(void) {
    if (alone) return;
    pthread_barrier_wait(&middle);
    enter();
}

static void *worker(void *number) {
    my_core = (int)(intptr_t)number;
    my_state = seed + (uint32_t)my_core;
    alone = 0;
    for (;;) {
        pthread_barrier_wait(&begin);
        if (!job) return NULL;
        enter();
        job(job_arguments);
        pthread_barrier_wait(&end);
    }
}

void pt_fork(pt_kernel *kernel, const void *arguments) {
    job = kernel, job_arguments = arguments;
    pthread_barrier_wait(&begin);
    alone = 0;
    enter();
    kernel(arguments);
    alone = 1;
    pthread_barrier_wait(&end);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER, copied = PTHREAD_COND_INITIALIZER;
static int pending[TRANSFERS], awaited[TRANSFERS], closing;

/* One that may be copied now: any that is not late, or whose transfer is waited for; -1 if there is none. */
static int next_command(void) {
    int first = queued ? (int)(drawn() % (uint32_t)queued) : 0;
    for (int i = 0; i < queued; i++) {
        int number = (first + i) % queued;
        if (queue[number].moment != AT_ITS_WAIT || awaited[queue[number].transfer]) return number;
    }
    return -1;
}

static void *copies(void *unused) {
    pthread_mutex_lock(&lock);
    for (int number;;) {
        while ((number = next_command()) < 0 && !closing) pthread_cond_wait(&told, &lock);
        if (number < 0) break;
        struct command one = queue[number];
        queue[number] = queue[--queued];
        uint32_t turns = drawn() % 4;
        pthread_mutex_unlock(&lock);
        while (turns--) sched_yield();
        copy(&one, one.bytes);
        pthread_mutex_lock(&lock);
        if (!--pending[one.transfer]) pthread_cond_broadcast(&copied);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void give(struct command command) {
    pthread_mutex_lock(&lock);
    if (queued == MOST_COMMANDS) stop("host.c: more commands at a time than MOST_COMMANDS");
    command.moment = (enum moment)(drawn() % 3);
    queue[queued++] = command;
    pending[command.transfer]++;
    pthread_cond_signal(&told);
    pthread_mutex_unlock(&lock);
}

static void wait_for(int transfer) {
    pthread_mutex_lock(&lock);
    awaited[transfer] = 1;
    pthread_cond_signal(&told);
    while (pending[transfer]) pthread_cond_wait(&copied, &lock);
    awaited[transfer] = 0;
    pthread_mutex_unlock(&lock);
}

static void open_machine(void) {
    pthread_barrier_init(&begin, NULL, (unsigned)cores);
    pthread_barrier_init(&middle, NULL, (unsigned)cores);
    pthread_barrier_init(&end, NULL, (unsigned)cores);
    for (int core = 1; core < cores; core++) pthread_create(&workers[core], NULL, worker, (void *)(intptr_t)core);
    pthread_create(&dma, NULL, copies, NULL);
}

static void close_machine(void) {
    job = NULL;
    pthread_barrier_wait(&begin);
    for (int core = 1; core < cores; core++) pthread_join(workers[core], NULL);
    pthread_mutex_lock(&lock);
    closing = 1;
    pthread_cond_signal(&told);
    pthread_mutex_unlock(&lock);
    pthread_join(dma, NULL);
}

#else

/* Cores take turns, and the DMA copies where one ends: who runs has the lock */

enum { NONE = -1 };

static pthread_t workers[MOST_CORES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turns[MOST_CORES];
static pt_kernel *job; /* NULL: go home */
static const void *job_arguments;
static int cores, order[MOST_CORES], place, running = NONE, ended;
static int my_cores = 1; /* of who runs */
static _Thread_local int my_core;

/* Of seed TOGETHER: L1 as it was at the barrier, with all that was written since, and which bytes these are. The address
 * sanitizer forbids to copy dead buffers. */
static char *before, *after, *written;

static void all_begin(void) {
    if (before) memcpy(before, pt_l1, l1_size), memcpy(after, pt_l1, l1_size), memset(written, 0, l1_size);
}

static void one_ends(void) {
    enum { LINE = 64 };
    for (uint32_t at = 0, stop_at; before && at < l1_size; at = stop_at) {
        stop_at = l1_size - at < LINE ? l1_size : at + LINE;
        if (!memcmp(pt_l1 + at, before + at, stop_at - at)) continue;
        for (uint32_t i = at; i < stop_at; i++) {
            if (pt_l1[i] == before[i]) continue;
            if (written[i]) stop("host.c: two cores write one byte of L1 between two barriers");
            written[i] = 1, after[i] = pt_l1[i];
        }
        memcpy(pt_l1 + at, before + at, stop_at - at);
    }
}

static void all_end(void) {
    if (before) memcpy(pt_l1, after, l1_size);
}

static void between(void) {
    for (int i = 0; i < queued; i++) {
        struct command *one = &queue[i];
        if (one->moment != BETWEEN || drawn() % 4) continue;
        uint32_t left = one->bytes - one->done;
        copy(one, drawn() % 2 ? one->bytes : one->done + left / 8 * 4);
    }
}

/* The bytes of a source in a sample; their first difference from it ends the program. */
static void sample(struct command *one) {
    uint32_t lines = one->bytes / one->line_bytes, line_bytes = one->line_bytes;
    int first = !one->sample;
    if (first && !(one->sample = malloc(one->bytes + 1))) stop("host.c: no memory");
    for (uint32_t line = 0; line < lines; line++) {
        char *taken = one->sample + line * line_bytes;
        const char *from = one->from + line * one->from_stride;
        if (first) memcpy(taken, from, line_bytes);
        if (memcmp(taken, from, line_bytes)) stop("host.c: the source of a transfer changed before its wait");
    }
}

/* By seed the directions that are late, a bit each. */
static const unsigned char late[] = {0x0, 0xF, 0xE, 0xD, 0xB, 0x7};
enum { FIXED = sizeof late, TOGETHER = FIXED - 1 };

static enum moment moment_of(enum way way) {
    if (seed < FIXED) return late[seed] >> way & 1 ? AT_ITS_WAIT : AT_ONCE;
    return (enum moment)(drawn() % 3);
}

static void give(struct command command) {
    command.moment = moment_of(command.way);
    sample(&command);
    copy(&command, command.moment == AT_ONCE ? command.bytes : 0);
    if (queued == MOST_COMMANDS) stop("host.c: more commands at a time than MOST_COMMANDS");
    queue[queued++] = command;
    between();
}

static void wait_for(int transfer) {
    between();
    int left = 0, first = queued ? (int)(drawn() % (uint32_t)queued) : 0;
    for (int i = 0; i < queued; i++) {
        struct command *one = &queue[(first + i) % queued];
        if (one->transfer != transfer) continue;
        sample(one);
        free(one->sample);
        copy(one, one->bytes);
    }
    for (int i = 0; i < queued; i++)
        if (queue[i].transfer != transfer) queue[left++] = queue[i];
    if (left == queued && transfer < TRANSFERS / 2) stop("host.c: a wait for a transfer that was not ordered");
    queued = left;
}

/* A source that main.c makes the expected one is another for the transfers that are under way. */
static void put(void *to, const void *from, uint32_t bytes) {
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < queued; i++) {
            const uint32_t lines = queue[i].bytes / queue[i].line_bytes;
            const char *end = queue[i].from + (lines - 1) * queue[i].from_stride + queue[i].line_bytes;
            if (end <= (char *)to || queue[i].from >= (char *)to + bytes) continue;
            if (again) free(queue[i].sample), queue[i].sample = NULL;
            sample(&queue[i]);
        }
        if (!again) memcpy(to, from, bytes);
    }
}

int pt_core(void) { return my_core; }
int pt_cores(void) { return my_cores; }

static void draw_order(void) {
    for (int core = 0; core < cores; core++) order[core] = seed == 1 ? cores - 1 - core : core;
    for (int last = cores - 1; seed > 1 && last > 0; last--) {
        int other = (int)(drawn() % (uint32_t)(last + 1)), core = order[last];
        order[last] = order[other], order[other] = core;
    }
    place = 0;
}

static void let_run(int core) {
    running = core;
    pthread_cond_signal(&turns[core]);
}

static void my_turn(void) {
    while (running != my_core) pthread_cond_wait(&turns[my_core], &lock);
}

static void hand_over(void) {
    one_ends();
    if (!before) between();
    if (++place == cores) {
        all_end();
        if (ended && ended < cores) stop("host.c: a barrier that some cores do not come to");
        if (ended) {
            ended = 0, running = NONE;
            pthread_cond_signal(&turns[0]);
            return;
        }
        draw_order();
        all_begin();
    }
    let_run(order[place]);
}

void pt_barrier(void) {
    if (my_cores == 1) return;
    hand_over();
    my_turn();
}

static void *worker(void *number) {
    my_core = (int)(intptr_t)number;
    pthread_mutex_lock(&lock);
    for (;;) {
        my_turn();
        if (!job) break;
        job(job_arguments);
        ended++;
        hand_over();
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

void pt_fork(pt_kernel *kernel, const void *arguments) {
    job = kernel, job_arguments = arguments, my_cores = cores;
    between();
    draw_order();
    all_begin();
    let_run(order[0]);
    my_turn();
    kernel(arguments);
    ended++;
    hand_over();
    while (running != NONE) pthread_cond_wait(&turns[0], &lock);
    my_cores = 1;
}

static void open_machine(void) {
#if !defined(__SANITIZE_ADDRESS__)
    if (seed == TOGETHER) before = memory(l1_size), after = memory(l1_size), written = memory(l1_size);
#endif
    pt_put = put;
    pthread_mutex_lock(&lock);
    for (int core = 0; core < cores; core++) pthread_cond_init(&turns[core], NULL);
    for (int core = 1; core < cores; core++) pthread_create(&workers[core], NULL, worker, (void *)(intptr_t)core);
}

static void close_machine(void) {
    job = NULL;
    for (int core = 1; core < cores; core++) {
        let_run(core);
        pthread_mutex_unlock(&lock);
        pthread_join(workers[core], NULL);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    free(before), free(after), free(written);
}

#endif

void pt_alone(pt_kernel *kernel, const void *arguments) { kernel(arguments); }

static void start(enum way way, int transfer, void *to, const void *from, uint32_t bytes, uint32_t to_stride,
                  uint32_t from_stride, uint32_t line_bytes) {
    fill(to, bytes, to_stride, line_bytes);
    give((struct command){transfer, way, AT_ONCE, to, from, bytes, to_stride, from_stride, line_bytes, 0, NULL});
}

void pt_dma_in(int transfer, void *l1, const void *l2, uint32_t bytes) {
    start(L1_IN, transfer, l1, l2, bytes, bytes, bytes, bytes);
}
void pt_dma_out(int transfer, const void *l1, void *l2, uint32_t bytes) {
    start(L1_OUT, transfer, l2, l1, bytes, bytes, bytes, bytes);
}
void pt_dma_in_2d(int transfer, void *l1, const void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    start(L1_IN, transfer, l1, l2, bytes, line_bytes, stride_bytes, line_bytes);
}
void pt_dma_out_2d(int transfer, const void *l1, void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    start(L1_OUT, transfer, l2, l1, bytes, stride_bytes, line_bytes, line_bytes);
}
void pt_dma_wait(int transfer) { wait_for(transfer); }

void pt_l3_in(int transfer, void *l2, uint32_t l3_offset, uint32_t bytes) {
    start(L3_IN, TRANSFERS / 2 + transfer, l2, l3 + l3_offset, bytes, bytes, bytes, bytes);
}
void pt_l3_out(int transfer, const void *l2, uint32_t l3_offset, uint32_t bytes) {
    start(L3_OUT, TRANSFERS / 2 + transfer, l3 + l3_offset, l2, bytes, bytes, bytes, bytes);
}
void pt_l3_wait(int transfer) { wait_for(TRANSFERS / 2 + transfer); }

/* The rest */

void pt_begins(void *buffer, uint32_t bytes) { ASAN_UNPOISON_MEMORY_REGION(buffer, bytes); }
void pt_ends(void *buffer, uint32_t bytes) {
    memset(buffer, POISON, bytes);
    ASAN_POISON_MEMORY_REGION(buffer, bytes);
}

uint32_t pt_cycles(void) { return 0; } /* there is no clock of a cluster here */

void pt_print(const char *text) { puts(text); }

int pt_run(int team, uint32_t l1_bytes, uint32_t l2_bytes, uint32_t l3_bytes, int (*work)(void)) {
    if (team > MOST_CORES) return -1;
    const char *text = getenv("PT_SEED");
    seed = text ? (uint32_t)atoi(text) : 0;
    state = 2654435761u * (seed + 1); /* Knuth's multiplier spreads small seeds */
    if (!state) state = 1;
    cores = team, l1_size = l1_bytes;
    pt_l1 = memory(l1_bytes), pt_l2 = memory(l2_bytes), l3 = memory(l3_bytes);
    ASAN_POISON_MEMORY_REGION(pt_l1, l1_bytes);
    open_machine();
    int result = work();
    close_machine();
    if (queued) stop("host.c: a transfer that was never waited for");
    ASAN_UNPOISON_MEMORY_REGION(pt_l1, l1_bytes);
    free(pt_l1), free(pt_l2), free(l3);
    return result;
}
