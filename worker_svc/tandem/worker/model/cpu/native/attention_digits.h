// Queries times keys, and weights times values, of int8 and int6: in whole numbers.
//
//     s   = a k sum(round(q / a) K)     a = max|q| / 32767 of a query and head, k and K: scale and digits of a key
//     o  += b sum(round(w / b) V)       b = max w / 32767 of a page, w = p v, v and V: scale and digits of a value
//
// Rounding to 16 bits adds a 256th of what rounding to the digits of int8 has cost. Sums are exact: of an eighth of a
// key's at most 4128 digits, which is what a lane adds up, and of a page's at most 256 values they stay below 2^31. The
// eight lanes are then added as floats.

#pragma once

#include "attention.h"

#define MOST 32767.0f

// Numbers of six bits as they are, from their lowest four bits, two a byte, and their highest two, four a byte.
INLINE void digits_of_6_bits(const uint8_t *packed, int64_t d, int8_t *to) {
    const uint8_t *low = packed, *high = packed + d / 2;
    const __m256i zero = _mm256_set1_epi8(32);
    int64_t i = 0;
    for (; i + 32 <= d; i += 32) {
        __m256i fours = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(low + i / 2)));
        fours = _mm256_and_si256(_mm256_or_si256(fours, _mm256_slli_epi16(fours, 4)), _mm256_set1_epi8(15));
        __m256i twos = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(high + i / 4)));
        twos = _mm256_or_si256(_mm256_slli_epi32(twos, 4), _mm256_slli_epi32(twos, 10));
        twos = _mm256_and_si256(_mm256_or_si256(twos, _mm256_slli_epi32(twos, 12)), _mm256_set1_epi8(48));
        _mm256_storeu_si256((__m256i *)(to + i), _mm256_sub_epi8(_mm256_or_si256(fours, twos), zero));
    }
    for (; i < d; i++) to[i] = (int8_t)((low[i / 2] >> i % 2 * 4 & 15) + (high[i / 4] >> i % 4 * 2 & 3) * 16 - 32);
}

// The digits of `keys` vectors of one page and head: where they lie, or in `room`.
INLINE const int8_t *digits_of(const Attention *a, const int which, int64_t first, int64_t keys, int8_t *room) {
    const int64_t d = a->head_dim;
    if (a->format == INT8) return (const int8_t *)a->part[which][0] + first * d;
    for (int64_t key = 0; key < keys; key++)
        digits_of_6_bits((const uint8_t *)a->part[which][0] + (first + key) * (d / 4 * 3), d, room + key * d);
    return room;
}

// `from` [count] in multiples of a step, which is given back: NaN where one of them is. count % 8 == 0.
INLINE float to_16_bits(const float *from, int64_t count, int16_t *to) {
    const float step = step_of(from, count, MOST);
    const __m256 divisor = _mm256_set1_ps(step);
    for (int64_t i = 0; i < count; i += 8) {
        const __m256i v = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(from + i), divisor));
        const __m128i both = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storeu_si128((__m128i *)(to + i), both);
    }
    return step;
}

// 16 digits; 8 and zeros.
INLINE __m256i digits16(const int8_t *from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from)); }
INLINE __m256i digits8(const int8_t *from) { return _mm256_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)from)); }

INLINE __m256i add_products(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

// q [rows, wide] is filled up with zeros to whole 16.
INLINE void score_digits_tile(const int rows, const int keys, const int16_t *q, int64_t wide, const float *q_step,
                              const int8_t *k, const float *k_scale, int64_t d, float *s, int64_t width) {
    __m256i sum[QUERIES][KEYS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < KEYS; n++) sum[r][n] = _mm256_setzero_si256();
    for (int64_t i = 0; i < d; i += 16)
        for (int n = 0; n < keys; n++) {
            const __m256i key = i + 16 <= d ? digits16(k + n * d + i) : digits8(k + n * d + i);
            for (int r = 0; r < rows; r++)
                sum[r][n] = add_products(sum[r][n], key, _mm256_loadu_si256((const __m256i *)(q + r * wide + i)));
        }
    for (int r = 0; r < rows; r++) {
        __m256 sums[KEYS];
        for (int n = 0; n < KEYS; n++) sums[n] = _mm256_cvtepi32_ps(sum[r][n]);
        const __m128 all = four_sums(sums[0], sums[1], sums[2], sums[3]);
        const __m128 step = _mm_set1_ps(q_step[r]), scale = keys == KEYS ? _mm_loadu_ps(k_scale) : _mm_load_ss(k_scale);
        const __m128 scores = _mm_mul_ps(_mm_mul_ps(all, scale), step);
        if (keys == KEYS) _mm_storeu_ps(s + r * width, scores);
        else s[r * width] = _mm_cvtss_f32(scores);
    }
}

INLINE void score_digits(const int rows, const int16_t *q, int64_t wide, const float *q_step, const int8_t *k,
                         const float *k_scale, int64_t d, int64_t keys, float *s, int64_t width, Ahead *ahead) {
    int64_t key = 0;
    for (; key + KEYS <= keys; key += KEYS) {
        ask_for(ahead);
        score_digits_tile(rows, KEYS, q, wide, q_step, k + key * d, k_scale + key, d, s + key, width);
    }
    for (; key < keys; key++)
        score_digits_tile(rows, 1, q, wide, q_step, k + key * d, k_scale + key, d, s + key, width);
}

// One row's weights s [width] of a page, times the values' scales, in 16 bits; the step is given back. What weighs
// nothing adds nothing, whatever it is multiplied by.
INLINE float scaled_weights(float *s, int64_t keys, int64_t width, const float *v_scale, int16_t *to) {
    for (int64_t key = 0; key < keys; key++) s[key] = s[key] == 0 ? 0 : s[key] * v_scale[key];
    return to_16_bits(s, width, to);
}

// Columns from 0 to 8 or 16 of values, whose numbers of two keys are multiplied at once.
INLINE void add_digits_tile(const int rows, const int whole, const int16_t *w, int64_t width, const float *w_step,
                            const int8_t *v, int64_t d, int64_t keys, float *o, Ahead *ahead) {
    __m256i low[OUTPUTS], high[OUTPUTS];
    for (int r = 0; r < rows; r++) low[r] = high[r] = _mm256_setzero_si256();
    for (int64_t key = 0; key < keys; key += 2) {
        if (key % KEYS == 0) ask_for(ahead);
        const int8_t *first = v + key * d, *second = key + 1 < keys ? first + d : first;  // which weighs nothing
        const __m256i a = whole ? digits16(first) : digits8(first), b = whole ? digits16(second) : digits8(second);
        const __m256i some = _mm256_unpacklo_epi16(a, b), others = _mm256_unpackhi_epi16(a, b);
        for (int r = 0; r < rows; r++) {
            int32_t two;
            memcpy(&two, w + r * width + key, sizeof two);
            low[r] = add_products(low[r], some, _mm256_set1_epi32(two));
            high[r] = add_products(high[r], others, _mm256_set1_epi32(two));
        }
    }
    for (int r = 0; r < rows; r++) {
        const __m256 step = _mm256_set1_ps(w_step[r]);
        const __m256i sums[2] = {_mm256_permute2x128_si256(low[r], high[r], 0x20),
                                 _mm256_permute2x128_si256(low[r], high[r], 0x31)};
        for (int n = 0; n <= whole; n++) {
            float *to = o + r * d + 8 * n;
            _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[n]), step, _mm256_loadu_ps(to)));
        }
    }
}

INLINE void add_digits(const int rows, const int16_t *w, int64_t width, const float *w_step, const int8_t *v, int64_t d,
                       int64_t columns, int64_t keys, float *o, Ahead *ahead) {
    int64_t i = 0;
    for (; i + 16 <= columns; i += 16) add_digits_tile(rows, 1, w, width, w_step, v + i, d, keys, o + i, ahead);
    if (i < columns) add_digits_tile(rows, 0, w, width, w_step, v + i, d, keys, o + i, ahead);
}
