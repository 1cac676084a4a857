/* SPDX-License-Identifier: Apache-2.0
 *
 * This computer, made as unforgiving as can be: a core is a thread, a barrier is one, and the DMA is a thread that
 * copies at a random moment between a command and the wait for it. Till then the destination is poison (NaN), so that a
 * missing wait, an overlap or a race shows as a wrong number, and the thread sanitizer sees it without luck.
 * PT_SEED in the environment gives other moments.
 */
#define _POSIX_C_SOURCE 200809L
#include "platform.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

enum { MOST_CORES = 64, MOST_COMMANDS = 1 << 16, TRANSFERS = 64, POISON = 0xFF };

char *pt_l1, *pt_l2;
static char *l3;

/* The team */

static int cores;
static pthread_t workers[MOST_CORES];
static pthread_barrier_t begin, middle, end;
static pt_kernel *job; /* NULL: go home */
static const void *job_arguments;
static _Thread_local int my_core, alone = 1;

int pt_core(void) { return my_core; }
int pt_cores(void) { return alone ? 1 : cores; }
void pt_barrier(void) {
    if (!alone) pthread_barrier_wait(&middle);
}

static void *worker(void *number) {
    my_core = (int)(intptr_t)number;
    alone = 0;
    for (;;) {
        pthread_barrier_wait(&begin);
        if (!job) return NULL;
        job(job_arguments);
        pthread_barrier_wait(&end);
    }
}

void pt_fork(pt_kernel *kernel, const void *arguments) {
    job = kernel, job_arguments = arguments;
    pthread_barrier_wait(&begin);
    alone = 0;
    kernel(arguments);
    alone = 1;
    pthread_barrier_wait(&end);
}

void pt_alone(pt_kernel *kernel, const void *arguments) { kernel(arguments); }

/* The DMA, and the one of L3: the same thread copies for both */

struct command {
    int transfer, late;
    char *to;
    const char *from;
    uint32_t bytes, to_stride, from_stride, line_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER, copied = PTHREAD_COND_INITIALIZER;
static pthread_t dma;
static struct command queue[MOST_COMMANDS];
static int queued, pending[TRANSFERS], awaited[TRANSFERS], closing;
static uint32_t state = 1;

static uint32_t drawn(void) { /* xorshift32 (Marsaglia, Xorshift RNGs, 2003) */
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}

static void fill(char *to, uint32_t bytes, uint32_t stride, uint32_t line_bytes) {
    for (uint32_t done = 0; done < bytes; done += line_bytes, to += stride) memset(to, POISON, line_bytes);
}

static void copy(const struct command *one) {
    char *to = one->to;
    const char *from = one->from;
    for (uint32_t done = 0; done < one->bytes; done += one->line_bytes) {
        memcpy(to, from, one->line_bytes);
        to += one->to_stride, from += one->from_stride;
    }
}

/* One that may be copied now: any that is not late, or whose transfer is waited for; -1 if there is none. */
static int next_command(void) {
    int first = queued ? (int)(drawn() % (uint32_t)queued) : 0;
    for (int i = 0; i < queued; i++) {
        int number = (first + i) % queued;
        if (!queue[number].late || awaited[queue[number].transfer]) return number;
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
        copy(&one);
        pthread_mutex_lock(&lock);
        if (!--pending[one.transfer]) pthread_cond_broadcast(&copied);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void stop(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(3);
}

static void start(int transfer, void *to, const void *from, uint32_t bytes, uint32_t to_stride, uint32_t from_stride,
                  uint32_t line_bytes) {
    fill(to, bytes, to_stride, line_bytes);
    pthread_mutex_lock(&lock);
    if (queued == MOST_COMMANDS) stop("host.c: more commands at a time than MOST_COMMANDS");
    queue[queued++] = (struct command){transfer, drawn() % 2, to, from, bytes, to_stride, from_stride, line_bytes};
    pending[transfer]++;
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

void pt_dma_in(int transfer, void *l1, const void *l2, uint32_t bytes) {
    start(transfer, l1, l2, bytes, bytes, bytes, bytes);
}
void pt_dma_out(int transfer, const void *l1, void *l2, uint32_t bytes) {
    start(transfer, l2, l1, bytes, bytes, bytes, bytes);
}
void pt_dma_in_2d(int transfer, void *l1, const void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    start(transfer, l1, l2, bytes, line_bytes, stride_bytes, line_bytes);
}
void pt_dma_out_2d(int transfer, const void *l1, void *l2, uint32_t bytes, uint32_t stride_bytes, uint32_t line_bytes) {
    start(transfer, l2, l1, bytes, stride_bytes, line_bytes, line_bytes);
}
void pt_dma_wait(int transfer) { wait_for(transfer); }

void pt_l3_in(int transfer, void *l2, uint32_t l3_offset, uint32_t bytes) {
    start(TRANSFERS / 2 + transfer, l2, l3 + l3_offset, bytes, bytes, bytes, bytes);
}
void pt_l3_out(int transfer, const void *l2, uint32_t l3_offset, uint32_t bytes) {
    start(TRANSFERS / 2 + transfer, l3 + l3_offset, l2, bytes, bytes, bytes, bytes);
}
void pt_l3_wait(int transfer) { wait_for(TRANSFERS / 2 + transfer); }

/* The rest */

void pt_begins(void *buffer, uint32_t bytes) { ASAN_UNPOISON_MEMORY_REGION(buffer, bytes); }
void pt_ends(void *buffer, uint32_t bytes) {
    memset(buffer, POISON, bytes);
    ASAN_POISON_MEMORY_REGION(buffer, bytes);
}

uint32_t pt_cycles(void) { /* nanoseconds: there is no clock of a cluster here */
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)now.tv_sec * 1000000000u + (uint32_t)now.tv_nsec;
}

void pt_print(const char *text) { puts(text); }

static char *memory(uint32_t bytes) {
    char *address = NULL;
    if (posix_memalign((void **)&address, 64, bytes ? bytes : 1)) stop("host.c: no memory");
    memset(address, POISON, bytes);
    return address;
}

int pt_run(int team, uint32_t l1_bytes, uint32_t l2_bytes, uint32_t l3_bytes, int (*work)(void)) {
    if (team > MOST_CORES) return -1;
    const char *seed = getenv("PT_SEED");
    state = 2654435761u * (seed ? (uint32_t)atoi(seed) + 1 : 1);
    cores = team;
    pt_l1 = memory(l1_bytes), pt_l2 = memory(l2_bytes), l3 = memory(l3_bytes);
    ASAN_POISON_MEMORY_REGION(pt_l1, l1_bytes);
    pthread_barrier_init(&begin, NULL, (unsigned)team);
    pthread_barrier_init(&middle, NULL, (unsigned)team);
    pthread_barrier_init(&end, NULL, (unsigned)team);
    for (int core = 1; core < team; core++) pthread_create(&workers[core], NULL, worker, (void *)(intptr_t)core);
    pthread_create(&dma, NULL, copies, NULL);
    int result = work();
    job = NULL;
    pthread_barrier_wait(&begin);
    for (int core = 1; core < team; core++) pthread_join(workers[core], NULL);
    pthread_mutex_lock(&lock);
    closing = 1;
    pthread_cond_signal(&told);
    pthread_mutex_unlock(&lock);
    pthread_join(dma, NULL);
    ASAN_UNPOISON_MEMORY_REGION(pt_l1, l1_bytes);
    free(pt_l1), free(pt_l2), free(l3);
    return result;
}
