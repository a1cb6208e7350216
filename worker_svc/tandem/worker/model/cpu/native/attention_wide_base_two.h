// A softmax of base 2, of up to four rows at once: several hide what one waits for.

#pragma once

#include "attention_wide.h"

#define LOG2_E 1.4426950408889634f

// Which 2^x are not 0: below 2^-126 they are, which bf16 makes them anyway. Computing with such small numbers takes 50 times as
// long, and a key that is not seen has one. NaN stays.
INLINE __mmask16 that_stay(__m512 x) { return _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ); }

// 2^x of x up to 0, to 3e-6 of itself, of those that stay.
INLINE __m512 powers_of_two(__m512 x, __mmask16 stays) {
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_set1_ps(0.0134266848f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.0522424728f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.241280198f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693044841f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(stays, y, x);
}
INLINE __m512 power_of_two(__m512 x) { return powers_of_two(x, that_stay(x)); }

// The largest scores of `rows` rows s [width], `apart` from one to the next, and what has been added up so far: sums o [wide],
// m and l [16] follow.
INLINE void begin_weights(const int rows, const float *s, int64_t apart, int64_t width, float *o, int64_t wide,
                          float *m, const float *l, __m512 most[4], __m512 sum[4]) {
    for (int r = 0; r < rows; r++) most[r] = _mm512_set1_ps(m[r]), sum[r] = _mm512_load_ps(l + r * LANES);
    for (int64_t i = 0; i < width; i += 16)
        for (int r = 0; r < rows; r++) most[r] = _mm512_max_ps(_mm512_load_ps(s + r * apart + i), most[r]);
    float largest[4] __attribute__((aligned(16))), shrink[16] __attribute__((aligned(64)));
    const int second = rows > 1 ? 1 : 0, third = rows > 2 ? 2 : 0, fourth = rows > 3 ? 3 : 0;
    const __m128 before = _mm_setr_ps(m[0], m[second], m[third], m[fourth]);
    const __m128 now = wide_maxima(most[0], most[second], most[third], most[fourth]);
    const int higher = _mm_movemask_ps(_mm_cmpgt_ps(now, before));
    _mm_store_ps(largest, now);
    for (int r = 0; r < rows; r++) most[r] = _mm512_set1_ps(largest[r]);
    if (!higher) return;
    _mm512_store_ps(shrink, power_of_two(_mm512_zextps128_ps512(_mm_sub_ps(before, now))));
    for (int r = 0; r < rows; r++)
        if (higher >> r & 1) {
            const __m512 by = _mm512_set1_ps(shrink[r]);
            for (int64_t i = r * wide; i < (r + 1) * wide; i += 16)
                _mm512_store_ps(o + i, _mm512_mul_ps(_mm512_load_ps(o + i), by));
            sum[r] = _mm512_mul_ps(sum[r], by);
            m[r] = largest[r];
        }
}

// Scores become weights, in their place.
INLINE void weigh_plain(const int rows, float *s, int64_t apart, int64_t width, float *o, int64_t wide, float *m,
                        float *l) {
    __m512 most[4], sum[4];
    begin_weights(rows, s, apart, width, o, wide, m, l, most, sum);
    for (int64_t i = 0; i < width; i += 16)
        for (int r = 0; r < rows; r++) {
            float *here = s + r * apart + i;
            const __m512 weights = power_of_two(_mm512_sub_ps(_mm512_load_ps(here), most[r]));
            sum[r] = _mm512_add_ps(sum[r], weights);
            _mm512_store_ps(here, weights);
        }
    for (int r = 0; r < rows; r++) _mm512_store_ps(l + r * LANES, sum[r]);
}

// Which of 16 weights weigh anything, or are NaN: what does not adds nothing, whatever it is multiplied by.
INLINE __mmask16 that_weigh(__m512 weights) { return _mm512_cmp_ps_mask(weights, _mm512_setzero_ps(), _CMP_NEQ_UQ); }

// All rows of a block. What a row does not see of the page at `start` weighs nothing; NOTHING is what is done with the scores
// `here` of a row that sees none of it.
#define WEIGH_ROWS_OR(NOTHING, WEIGH)                                                                                  \
    for (int64_t row = 0; row < rows;) {                                                                               \
        int some = 0; /* rows that see anything */                                                                     \
        for (; some < 4 && row + some < rows; some++) {                                                                \
            const Seen seen = seen_by(a, block, row + some, start, keys);                                              \
            if (seen.first >= seen.last) break;                                                                        \
            float *here = s + (row + some) * apart;                                                                    \
            if (a->cap > 0) wide_soft_cap(here, width, a->cap, LOG2_E);                                                \
            hide(here, width, seen);                                                                                   \
        }                                                                                                              \
        float *here = s + row * apart, *m = of->sums.m + row, *l = of->sums.l + row * LANES;                           \
        float *o = of->sums.o + row * wide;                                                                            \
        if (some == 4) WEIGH(4, here, apart, width, o, wide, m, l);                                                    \
        else if (some == 3) WEIGH(3, here, apart, width, o, wide, m, l);                                               \
        else if (some == 2) WEIGH(2, here, apart, width, o, wide, m, l);                                               \
        else if (some) WEIGH(1, here, apart, width, o, wide, m, l);                                                    \
        else NOTHING, some = 1;                                                                                        \
        row += some;                                                                                                   \
    }

// The same where weights take `BYTES` a key, in the place of scores.
#define WEIGH_ROWS(WEIGH, BYTES) WEIGH_ROWS_OR(memset(here, 0, (size_t)width *(BYTES)), WEIGH)
