/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of formulas that math.h has not, with NumPy's rules for NaN and zero. */
#ifndef PT_ELEMENTARY_H
#define PT_ELEMENTARY_H

#include "kernel.h"

PT_INLINE float pt_maximum(float a, float b) { return a < b || b != b ? b : a; }
PT_INLINE float pt_minimum(float a, float b) { return a > b || b != b ? b : a; }
PT_INLINE float pt_at_least(float x, float low) { return x < low ? low : x; } /* a bound is never NaN */
PT_INLINE float pt_at_most(float x, float high) { return x > high ? high : x; }
PT_INLINE float pt_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : x; }

/* log(e^a + e^b) without overflow. */
PT_INLINE float pt_logaddexp(float a, float b) { return fmaxf(a, b) + log1pf(expf(-fabsf(a - b))); }

#endif
