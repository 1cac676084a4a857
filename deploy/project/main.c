/* SPDX-License-Identifier: Apache-2.0
 *
 * Carries out the iterations and holds them against what the simulator has found: the result of every op of the first
 * ones, later the losses, and what is kept at the end. After a comparison a result is the simulator's, so that every
 * op is held to what it rounds itself. Prints the cycles of every op of every iteration, if the platform has a clock.
 */
#include "network.h"
#include "network_types.h"
#include "platform.h"

#include <stdio.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__) || defined(_WIN32)
#define UNIT " host ticks" /* no cycles of a cluster: pulptrain compare refuses them */
#else
#define UNIT ""
#endif

#define TOLERANCE 1e-3f /* of a loss, relative */

enum {
    PIECE = 1024,
    WINDOW = 100 /* iterations without comparison whose mean loss is held against the simulator's */
};
#define MEAN_TOLERANCE 0.05f

static union {
    char bytes[PIECE];
    float floats[PIECE / 4];
    int32_t numbers[PIECE / 4];
    uint16_t halves[PIECE / 2];
} piece, wanted;

static int wrong, compared;
static const char *expected;

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static float size_of(float x) { return x < 0 ? -x : x; }

/* Whether a number is the expected one, within a room: NaN where NaN is expected, and an infinity where that one is. */
static int is_near(float ours, float theirs, float room) {
    if (theirs - theirs == 0) return size_of(ours - theirs) <= room;
    return ours == theirs || (ours != ours && theirs != theirs);
}

/* By format: bytes of an element, and what storing it may round here and there, a half of its last bit each. */
static const uint32_t bytes_of[] = {4, 4, 1, 2, 2};
static const float stored_of[] = {1.1920929e-7f, 0, 0, 9.765625e-4f, 7.8125e-3f};

static float float_of(int format, const void *from, uint32_t i) {
    const uint16_t half = format < AS_FP16 ? 0 : ((const uint16_t *)from)[i];
    if (format == AS_FP16) return pt_from_fp16((pt_fp16){half});
    if (format == AS_BF16) return pt_from_bf16((pt_bf16){half});
    return format == AS_FLOAT ? ((const float *)from)[i] : 0;
}

/* The platform prints text only: a float as six digits and a power of ten. */
static const char *decimal(float x, char *text) {
    int power = 0;
    float rest = size_of(x);
    if (x != x) return "nan";
    if (rest > 3e38f) return x < 0 ? "-inf" : "inf";
    for (; rest >= 10; power++) rest /= 10;
    for (; rest > 0 && rest < 1; power--) rest *= 10;
    long digits = (long)(rest * 100000 + 0.5f);
    sprintf(text, "%s%ld.%05lde%d", x < 0 ? "-" : "", digits / 100000, digits % 100000, power);
    return text;
}

/* Where the master core finds a byte of a place; in L3 it does not. */
static char *found_at(const struct place *at, uint32_t offset) {
    return at->level == IN_L1 ? L1(at->address + offset) : at->level == IN_L2 ? L2(at->address + offset) : 0;
}

void (*pt_put)(void *to, const void *from, uint32_t bytes);

static void put(const struct place *at, uint32_t offset, const char *from, uint32_t bytes) {
    char *to = found_at(at, offset);
    if (to && pt_put) {
        pt_put(to, from, bytes);
    } else if (to) {
        memcpy(to, from, bytes);
    } else {
        pt_l3_out(NETWORK_L3_TRANSFER, from, at->address + offset, bytes);
        pt_l3_wait(NETWORK_L3_TRANSFER);
    }
}

static const char *load(const struct tensor *tensors, int count, const char *from) {
    for (int i = 0; i < count; i++) {
        uint32_t bytes = tensors[i].at.bytes;
        for (uint32_t done = 0; done < bytes; done += PIECE) {
            memcpy(piece.bytes, from + done, least(PIECE, bytes - done));
            if (tensors[i].at.level != IN_L3) pt_begins(found_at(&tensors[i].at, done), least(PIECE, bytes - done));
            put(&tensors[i].at, done, piece.bytes, least(PIECE, bytes - done));
        }
        from += bytes;
    }
    return from;
}

static void get(const struct place *at, uint32_t offset, uint32_t bytes) {
    const char *from = found_at(at, offset);
    if (from) {
        memcpy(piece.bytes, from, bytes);
    } else {
        pt_l3_in(NETWORK_L3_TRANSFER, piece.bytes, at->address + offset, bytes);
        pt_l3_wait(NETWORK_L3_TRANSFER);
    }
}

/* Compares a copy of a tensor with the expected one, and makes it that one. */
static void compare(const char *op, const struct tensor *tensor) {
    const int format = tensor->format;
    const char *from = expected + tensor->expected;
    const uint32_t bytes = tensor->at.bytes, each = bytes_of[format];
    float error = 0;
    int unequal = 0;
    uint32_t off = 0;
    for (uint32_t done = 0; done < bytes; done += PIECE) {
        uint32_t some = least(PIECE, bytes - done);
        memcpy(wanted.bytes, from + done, some);
        get(&tensor->at, done, some);
        for (uint32_t i = 0; i < some / each; i++) {
            if (!memcmp(wanted.bytes + i * each, piece.bytes + i * each, each)) continue;
            float ours = float_of(format, &piece, i), theirs = float_of(format, &wanted, i);
            float stored = stored_of[format] * size_of(theirs);
            float difference = stored_of[format] ? size_of(ours - theirs) : 1;
            if (format == AS_FP16) stored += PT_SMALLEST_FP16;
            if (difference != difference && is_near(ours, theirs, 0)) continue; /* NaN, in other bits */
            unequal += !stored_of[format] || !is_near(ours, theirs, tensor->room + stored);
            if (!(difference <= error)) error = difference;
            off++;
        }
        if (off) put(&tensor->at, done, wanted.bytes, some);
    }
    if (tensor->few && off > 1 + bytes / each / 64) unequal = (int)off;
    compared++;
    wrong += unequal != 0;
#ifndef VERBOSE
    if (!unequal) return;
#endif
    char line[256], text[32], room[32];
    snprintf(line, sizeof line, "%s %s: %s, %d of %u elements wrong, largest error %s, room %s", op, tensor->name,
             unequal ? "WRONG" : error > 0 ? "right" : "equal", unequal, (unsigned)(bytes / each), decimal(error, text),
             decimal(tensor->room, room));
    pt_print(line);
}

static void living(const struct place *places, int count, void (*told)(void *, uint32_t)) {
    for (int i = 0; i < count; i++) {
        if (places[i].level == IN_L1) told(L1(places[i].address), places[i].bytes);
        if (places[i].level == IN_L2) told(L2(places[i].address), places[i].bytes);
    }
}

static void carry_out(const struct program *program, int iteration) {
    char line[128];
    for (const struct op *op = program->ops; op < program->ops + program->count; op++) {
        living(op->begins, op->begins_count, pt_begins);
        uint32_t begun = pt_cycles();
#ifdef NETWORK_TABLES
        if (!op->run) network_walk(op->table);
        else
#endif
            op->run();
        uint32_t cycles = pt_cycles() - begun;
        if (cycles) { /* 0: the platform has no clock */
            snprintf(line, sizeof line, "op %s %u" UNIT, op->name, (unsigned)cycles);
            pt_print(line);
        }
        if (iteration < data_compared)
            for (int i = 0; i < op->results_count; i++) compare(op->name, &op->results[i]);
        living(op->ends, op->ends_count, pt_ends);
    }
    if (iteration < data_compared) expected += program->results_bytes;
}

/* Where there are files the kept tensors can be had: -DKEEP='"trained.bin"'. */
static void keep(const struct tensor *tensors, int count) {
#ifdef KEEP
    FILE *file = fopen(KEEP, "wb");
    for (int i = 0; file && i < count; i++)
        for (uint32_t done = 0; done < tensors[i].at.bytes; done += PIECE) {
            get(&tensors[i].at, done, least(PIECE, tensors[i].at.bytes - done));
            fwrite(piece.bytes, 1, least(PIECE, tensors[i].at.bytes - done), file);
        }
    if (file) fclose(file);
#else
    (void)tensors, (void)count;
#endif
}

static int near(float ours, float theirs, float tolerance) {
    return is_near(ours, theirs, tolerance * (size_of(theirs) > 1e-6f ? size_of(theirs) : 1e-6f));
}

static float number_at(const struct place *at) {
    get(at, 0, 4);
    return piece.floats[0];
}

static int iterations(void) {
    char line[128], ours[32], theirs[32];
    const char *fed = load(data_kept, data_kept_count, data_bin);
    const float *losses = data_expected_losses;
    float sum = 0, expected_sum = 0;
    expected = expected_bin;
#ifdef NETWORK_TABLES
    network_begin();
#endif
    for (int iteration = 0; iteration < data_iterations; iteration++) {
        for (int i = 0; i < data_varying_count; i++)
            network_varying[i] = data_varying[iteration * data_varying_count + i];
        for (int batch = 0; batch < data_mini_batches; batch++) {
            fed = load(data_fed, data_fed_count, fed);
            carry_out(&network_programs[0], iteration);
            for (int i = 0; i < data_losses; i++, losses++) {
                float loss = number_at(&data_loss[i].at);
                int same = near(loss, *losses, TOLERANCE);
                if (iteration < data_compared) compared++, wrong += !same;
                if (iteration >= data_iterations - WINDOW) sum += loss, expected_sum += *losses;
                if (iteration < data_compared || iteration == data_iterations - 1) {
                    snprintf(line, sizeof line, "iteration %d %s %s, expected %s%s", iteration + 1, data_loss[i].name,
                             decimal(loss, ours), decimal(*losses, theirs), same ? "" : ": WRONG");
                    pt_print(line);
                }
            }
        }
        if (network_programs_count > 1) carry_out(&network_programs[1], iteration);
        if (iteration < data_compared) {
            for (int i = 0; i < data_kept_count; i++) compare("end", &data_kept[i]);
            for (int i = 0; i < data_kept_count; i++) expected += data_kept[i].at.bytes;
        }
    }
    if (data_iterations > data_compared) {
        compared++, wrong += !near(sum, expected_sum, MEAN_TOLERANCE);
        snprintf(line, sizeof line, "sum of the last %d iterations' losses %s, expected %s", WINDOW, decimal(sum, ours),
                 decimal(expected_sum, theirs));
        pt_print(line);
    }
    keep(data_kept, data_kept_count);
    snprintf(line, sizeof line, "%d of %d numbers and tensors wrong", wrong, compared);
    pt_print(line);
    return wrong != 0;
}

int main(void) {
    int result = pt_run(NETWORK_CORES, NETWORK_L1_BYTES, NETWORK_L2_BYTES, NETWORK_L3_BYTES, iterations);
    if (result < 0) pt_print("this machine has less memory or fewer cores than the schedule takes");
    return result < 0 ? 2 : result;
}
