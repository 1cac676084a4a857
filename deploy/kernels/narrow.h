/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays of fp16 (IEEE binary16) and bf16 (the upper half of a float) for kernels that compute in float. Compilers need
 * neither format: conversions are integer arithmetic, bit for bit those of the simulator, NaN with any payload. */
#ifndef PT_NARROW_H
#define PT_NARROW_H

typedef struct { uint16_t bits; } pt_fp16;
typedef struct { uint16_t bits; } pt_bf16;

PT_INLINE float pt_from_bf16(pt_bf16 x) { return pt_float_of_bits((uint32_t)x.bits << 16); }

PT_INLINE pt_bf16 pt_to_bf16(float x)
{
    const uint32_t bits = pt_bits(x), kept = x == x ? bits + 0x7FFFu + (bits >> 16 & 1) : bits | 0x400000u;
    return (pt_bf16){(uint16_t)(kept >> 16)};
}

/* In line, tutorial-cnn in fp16 has 1.8 times the bytes of kernels and executes 1.6 times the instructions (clang for RV32). */
#define PT_CALLED static __attribute__((noinline, unused))
#define PT_SMALLEST_FP16 5.96046448e-8f /* 2^-24 */

PT_CALLED float pt_from_fp16(pt_fp16 x)
{
    const uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, size = x.bits & 0x7FFFu;
    if (size < 0x400u) /* zero, subnormal */
        return pt_float_of_bits(sign | pt_bits((float)size * PT_SMALLEST_FP16));
    return pt_float_of_bits(sign | ((size << 13) + (size < 0x7C00u ? 112u << 23 : 224u << 23)));
}

PT_CALLED pt_fp16 pt_to_fp16(float x)
{
    const uint32_t bits = pt_bits(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size >= 0x477FF000u) /* 65,520 and more is infinite */
        return (pt_fp16){(uint16_t)(sign | (x == x ? 0x7C00u : 0x7E00u | (size >> 13 & 0x1FFu)))};
    if (size < 0x38800000u) /* below 2^-14: the last bit of the sum with 1/2 is 2^-24 */
        return (pt_fp16){(uint16_t)(sign | (pt_bits(pt_float_of_bits(size) + 0.5f) - 0x3F000000u))};
    return (pt_fp16){(uint16_t)(sign | (((size + 0xFFFu + (size >> 13 & 1)) >> 13) - (112u << 10)))};
}

/* Elements of arrays: i of p, which PT_STORE makes x and PT_ADD larger by x. Arithmetic is in float; an array of a narrower
 * format rounds what is stored, to nearest even. PT_POINTER declares a pointer into an array of any format. In parameters
 * and structs of a kernel's own, pt_NAME is an element of the argument NAME: deploy writes the format there. */
#define PT_POINTER __auto_type
#define PT_ADD(p, i, x) PT_STORE(p, i, PT_LOAD(p, i) + (x))

/* PT_NARROW is defined where an array is not fp32. A sum that fp32 kernels keep in their result is in a register there, term
 * by term in the same order, and so is rounded once. */
#ifndef PT_NARROW
#define PT_LOAD(p, i) ((p)[i])
#define PT_STORE(p, i, x) ((p)[i] = (x))
#else
PT_INLINE float pt_load_float(const float *p, int i) { return p[i]; }
PT_INLINE float pt_load_fp16(const pt_fp16 *p, int i) { return pt_from_fp16(p[i]); }
PT_INLINE float pt_load_int8(const int8_t *p, int i) { return (float)p[i]; }
PT_INLINE float pt_load_int32(const int32_t *p, int i) { return (float)p[i]; }
PT_INLINE float pt_load_bf16(const pt_bf16 *p, int i) { return pt_from_bf16(p[i]); }
PT_INLINE void pt_store_float(float *p, int i, float x) { p[i] = x; }
PT_INLINE void pt_store_fp16(pt_fp16 *p, int i, float x) { p[i] = pt_to_fp16(x); }
PT_INLINE void pt_store_bf16(pt_bf16 *p, int i, float x) { p[i] = pt_to_bf16(x); }

#define PT_LOAD(p, i)                                                                                               \
    _Generic((p) + 0, const float *: pt_load_float, float *: pt_load_float, const pt_fp16 *: pt_load_fp16,           \
             pt_fp16 *: pt_load_fp16, const int8_t *: pt_load_int8, const int32_t *: pt_load_int32,                   \
             const pt_bf16 *: pt_load_bf16, pt_bf16 *: pt_load_bf16)(p, i)
#define PT_STORE(p, i, x)                                                                                           \
    _Generic((p) + 0, float *: pt_store_float, pt_fp16 *: pt_store_fp16, pt_bf16 *: pt_store_bf16)(p, i, x)
#endif

/* PT_SUMS(x) is defined where terms are added in the format that it rounds x to. The product is exact in double; the sum goes
 * through double and float rounded to odd (an inexact even number moves towards the truth), so it is rounded once. */
#ifdef PT_SUMS
PT_INLINE float pt_term(float a, float b, float sum)
{
    const double term = (double)a * b, total = sum, close = total + term, back = close - total;
    const double lost = (total - (close - back)) + (term - back);
    union { double value; uint64_t bits; } odd = {.value = close};
    if ((lost > 0 || lost < 0) && !(odd.bits & 1))
        odd.bits += (lost > 0) == (close > 0) ? 1 : -1;
    const float single = (float)odd.value;
    const double rest = odd.value - single;
    uint32_t bits = pt_bits(single);
    if ((rest > 0 || rest < 0) && !(bits & 1))
        bits += (rest > 0) != bits >> 31 ? 1 : -1;
    return PT_SUMS(pt_float_of_bits(bits));
}
#define fmaf pt_term
#endif

#endif
