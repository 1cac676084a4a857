/* SPDX-License-Identifier: Apache-2.0
 *
 * exp, log, log(1 + x) and tanh in single precision, within 1.5 units in the last place. C libraries compute some of them
 * in double, which a core without doubles emulates. The polynomials are minimax fits of ours. */
#include "kernel.h"

#define LN2_HIGH 0.693145752f   /* 0x1.62e4p-1: its products with whole numbers of 9 bits are exact */
#define LN2_LOW 1.42860677e-06f /* ln 2 - LN2_HIGH */

/* 2^k of a k from -126 to 127. */
PT_INLINE float power_of_two(int k) { return pt_float_of_bits((uint32_t)(k + 127) << 23); }

float pt_expf(float x)
{
    if (!(x < 88.7228394f)) /* too large, or NaN */
        return x >= 88.7228394f ? pt_float_of_bits(0x7F800000u) : x;
    if (x < -104.0f)
        return 0.0f;
    const int k = (int)(x * 1.44269502f + (x < 0.0f ? -0.5f : 0.5f));
    const float r = fmaf((float)-k, LN2_LOW, fmaf((float)-k, LN2_HIGH, x)); /* within ln 2 / 2 */
    const float p = fmaf(fmaf(fmaf(fmaf(1.39421611e-3f, r, 8.36377614e-3f), r, 4.16663635e-2f), r, 0.166665734f), r, 0.5f);
    const float e = 1.0f + fmaf(r * r, p, r);
    const int half = k / 2; /* in two steps: 2^k may be too small or too large for one number */
    return e * power_of_two(half) * power_of_two(k - half);
}

/* log(m 2^k) + more, m > 0 and normal: log((1 + s) / (1 - s)) is 2 s + s z Q(z), z = s^2. */
PT_INLINE float log_of(float m, int k, float more)
{
    const uint32_t bits = pt_bits(m), over = bits - 0x3F3504F3u; /* sqrt(1/2) */
    k += (int)(over >> 23) - (bits < 0x3F3504F3u ? 512 : 0);
    const float f = pt_float_of_bits((over & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f;
    const float s = f / (2.0f + f), z = s * s;
    const float q = fmaf(fmaf(fmaf(0.233347209f, z, 0.285506509f), z, 0.400001235f), z, 0.666666666f);
    /* 2 s = f - s f: f is exact, so only the small part is rounded */
    const float small = fmaf(s, z * q, more) + (float)k * LN2_LOW;
    return (float)k * LN2_HIGH + (f - (s * f - small));
}

float pt_logf(float x)
{
    if (!(x > 0.0f))
        return x == 0.0f ? -pt_float_of_bits(0x7F800000u) : pt_float_of_bits(0x7FC00000u);
    if (x > 3.40282347e38f)
        return x;
    return x < 1.17549435e-38f ? log_of(x * 8388608.0f, -23, 0.0f) : log_of(x, 0, 0.0f);
}

float pt_log1pf(float x)
{
    const float size = fabsf(x);
    if (size < 5.96046448e-08f) /* 2^-24, zeros */
        return x;
    if (!(x > -1.0f))
        return x == -1.0f ? -pt_float_of_bits(0x7F800000u) : pt_float_of_bits(0x7FC00000u);
    if (x > 3.40282347e38f)
        return x;
    const float u = 1.0f + x, lost = size < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
    return log_of(u, 0, lost / u);
}

float pt_tanhf(float x)
{
    const float size = fabsf(x);
    if (size < 2.44140625e-4f) /* 2^-12, zeros */
        return x;
    if (!(size >= 0.6f)) {
        const float z = x * x;
        return fmaf(x * z, fmaf(fmaf(fmaf(fmaf(-6.22730950e-3f, z, 2.10856350e-2f), z, -5.38693594e-2f), z, 0.133328906f),
                           z, -0.333333301f), x);
    }
    const float t = size > 9.1f ? 1.0f : 1.0f - 2.0f / (pt_expf(2.0f * size) + 1.0f);
    return x < 0.0f ? -t : t;
}
