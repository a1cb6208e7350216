// Queries times keys, and weights times values, of int8 and int6 by AVX-512 with VNNI: as in attention_digits.h, 32 numbers
// at once. Sums are exact, so only those of a score's lanes have another order.

#pragma once

#include "attention_wide_floats.h"

#define WIDE_UNITS 4  // at most, of one row

// 64 numbers of six bits as they are, of which each byte of `fours` has the lowest four bits of two, and each of `twos`
// the highest two of four.
INLINE __m512i wide_6_bits(__m256i fours, __m128i twos) {
    __m512i a = _mm512_cvtepu8_epi16(fours), b = _mm512_cvtepu8_epi32(twos);
    a = _mm512_and_si512(_mm512_or_si512(a, _mm512_slli_epi16(a, 4)), _mm512_set1_epi8(15));
    b = _mm512_or_si512(_mm512_slli_epi32(b, 4), _mm512_slli_epi32(b, 10));
    b = _mm512_and_si512(_mm512_or_si512(b, _mm512_slli_epi32(b, 12)), _mm512_set1_epi8(48));
    return _mm512_sub_epi8(_mm512_or_si512(a, b), _mm512_set1_epi8(32));
}

// The same of 128 numbers, of which half the instructions are enough: to `to`.
INLINE void wide_128_of_6_bits(const uint8_t *low, const uint8_t *high, int8_t *to) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i four = _mm512_set1_epi8(15), six = _mm512_set1_epi8(63), less = _mm512_set1_epi8(32);
    const __m512i fours = _mm512_loadu_si512(low);
    __m512i twos = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)high));
    twos = _mm512_or_si512(twos, _mm512_slli_epi16(twos, 4));  // of each byte: those of two whose number is even
    // `four` of the first, the rest of the second
    __m512i even = _mm512_ternarylogic_epi32(four, fours, _mm512_slli_epi16(twos, 4), 0xca);
    __m512i odd = _mm512_ternarylogic_epi32(four, _mm512_srli_epi16(fours, 4), _mm512_slli_epi16(twos, 2), 0xca);
    even = _mm512_sub_epi8(_mm512_and_si512(even, six), less);
    odd = _mm512_sub_epi8(_mm512_and_si512(odd, six), less);
    const __m512i a = _mm512_unpacklo_epi8(even, odd), b = _mm512_unpackhi_epi8(even, odd);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(a, first, b));
    _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi64(a, last, b));
}

// The digits of `keys` vectors of one page and head: where they lie, or in `room`, which has room for 64 more.
INLINE const int8_t *wide_digits_of(const Attention *a, const int which, int64_t first, int64_t keys, int8_t *room) {
    const int64_t d = a->head_dim;
    if (a->format == INT8) return (const int8_t *)a->part[which][0] + first * d;
    const uint8_t *low = (const uint8_t *)a->part[which][0] + first * (d / 4 * 3);
    for (int64_t key = 0; key < keys; key++, low += d / 4 * 3) {
        const uint8_t *high = low + d / 2;
        int8_t *to = room + key * d;
        int64_t i = 0;
        for (; i + 128 <= d; i += 128) wide_128_of_6_bits(low + i / 2, high + i / 4, to + i);
        for (; i + 64 <= d; i += 64)
            _mm512_storeu_si512(to + i, wide_6_bits(_mm256_loadu_si256((const __m256i *)(low + i / 2)),
                                                    _mm_loadu_si128((const __m128i *)(high + i / 4))));
        if (i < d)  // and, behind them, some that the next vector's take the place of
            _mm512_storeu_si512(to + i,
                                wide_6_bits(_mm256_maskz_loadu_epi8(first_of((d - i) / 2), low + i / 2),
                                            _mm_maskz_loadu_epi8((__mmask16)first_of((d - i) / 4), high + i / 4)));
    }
    return room;
}

// 32 digits; with `full` 0, the first `count` and zeros.
INLINE __m512i digits32(const int8_t *from, const int full, int64_t count) {
    return _mm512_cvtepi8_epi16(full ? _mm256_loadu_si256((const __m256i *)from)
                                     : _mm256_maskz_loadu_epi8(first_of(count), from));
}

INLINE void score_digits_unit(const int full, const int rows, const int keys, const int16_t *q, int64_t wide,
                              const int8_t *k, int64_t i, int64_t d, __m512i sum[WIDE_QUERIES][KEYS]) {
    __m512i query[WIDE_QUERIES];
    for (int r = 0; r < rows; r++) query[r] = _mm512_load_si512(q + r * wide + i);
    for (int n = 0; n < keys; n++) {
        const __m512i key = digits32(k + n * d + i, full, d - i);
        for (int r = 0; r < rows; r++) sum[r][n] = _mm512_dpwssd_epi32(sum[r][n], key, query[r]);
    }
}

INLINE void score_digits_units(const int rows, const int keys, const int16_t *q, int64_t wide, const float *q_step,
                               const int8_t *k, const float *k_scale, int64_t d, float *s, int64_t width) {
    __m512i sum[WIDE_QUERIES][KEYS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < KEYS; n++) sum[r][n] = _mm512_setzero_si512();
    int64_t i = 0;
    for (; i + UNIT_OF <= d; i += UNIT_OF) score_digits_unit(1, rows, keys, q, wide, k, i, d, sum);
    if (i < d) score_digits_unit(0, rows, keys, q, wide, k, i, d, sum);
    for (int r = 0; r < rows; r++) {
        __m512 sums[KEYS];
        for (int n = 0; n < KEYS; n++) sums[n] = _mm512_cvtepi32_ps(sum[r][n]);
        const __m128 all = wide_sums(sums[0], sums[1], sums[2], sums[3]);
        const __m128 step = _mm_set1_ps(q_step[r]), scale = keys == KEYS ? _mm_loadu_ps(k_scale) : _mm_load_ss(k_scale);
        const __m128 scores = _mm_mul_ps(_mm_mul_ps(all, scale), step);
        if (keys == KEYS) _mm_storeu_ps(s + r * width, scores);
        else s[r * width] = _mm_cvtss_f32(scores);
    }
}

INLINE void wide_score_digits(const int rows, const int16_t *q, int64_t wide, const float *q_step, const int8_t *k,
                              const float *k_scale, int64_t d, int64_t keys, float *s, int64_t width, Soon *soon) {
    int64_t key = 0;
    for (; key + KEYS <= keys; key += KEYS) {
        ask_soon(soon);
        score_digits_units(rows, KEYS, q, wide, q_step, k + key * d, k_scale + key, d, s + key, width);
    }
    for (; key < keys; key++)
        score_digits_units(rows, 1, q, wide, q_step, k + key * d, k_scale + key, d, s + key, width);
}

// One row's weights s [width] of a page, times the values' scales, in 16 bits; see `scaled_weights`.
INLINE float wide_weights(float *s, int64_t keys, int64_t width, const float *v_scale, int16_t *to) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 broken = 0;
    for (int64_t i = 0; i < width; i += 16) {
        const __m512 weight = _mm512_load_ps(s + i);
        const __mmask16 weighs = _mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        const __m512 scale = _mm512_maskz_loadu_ps((__mmask16)first_of(keys > i ? keys - i : 0), v_scale + i);
        const __m512 scaled = _mm512_maskz_mul_ps(weighs, weight, scale);
        most = _mm512_max_ps(scaled, most);
        broken |= _mm512_cmp_ps_mask(scaled, scaled, _CMP_UNORD_Q);
        _mm512_store_ps(s + i, scaled);
    }
    const float step = broken ? NAN : at_least_tiny(_mm512_reduce_max_ps(most) / MOST);
    const __m512 divisor = _mm512_set1_ps(step);
    for (int64_t i = 0; i < width; i += 16) {
        const __m512i v = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_load_ps(s + i), divisor));
        _mm256_store_si256((__m256i *)(to + i), _mm512_cvtsepi32_epi16(v));
    }
    return step;
}

// o [rows, wide] += w [rows, keys] times `units` units of values, numbers of two keys being multiplied at once.
INLINE void add_digits_units(const int full, const int rows, const int units, const int16_t *w, int64_t width,
                             const float *w_step, const int8_t *v, int64_t count, int64_t d, int64_t keys, float *o,
                             Soon *soon) {
    __m512i sum[WIDE_OUTPUTS][2 * WIDE_UNITS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < 2 * units; n++) sum[r][n] = _mm512_setzero_si512();
    for (int64_t key = 0; key < keys; key += 2) {
        if (key % KEYS == 0) ask_soon(soon);
        const int8_t *first = v + key * d, *second = key + 1 < keys ? first + d : first;  // which weighs nothing
        for (int n = 0; n < units; n++) {
            const __m512i a = digits32(first + UNIT_OF * n, full, count),
                          b = digits32(second + UNIT_OF * n, full, count);
            const __m512i some = _mm512_unpacklo_epi16(a, b), others = _mm512_unpackhi_epi16(a, b);
            for (int r = 0; r < rows; r++) {
                int32_t two;
                memcpy(&two, w + r * width + key, sizeof two);
                const __m512i weights = _mm512_set1_epi32(two);
                sum[r][2 * n] = _mm512_dpwssd_epi32(sum[r][2 * n], some, weights);
                sum[r][2 * n + 1] = _mm512_dpwssd_epi32(sum[r][2 * n + 1], others, weights);
            }
        }
    }
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int r = 0; r < rows; r++) {
        const __m512 step = _mm512_set1_ps(w_step[r]);
        for (int n = 0; n < units; n++) {
            float *to = o + r * wide_of(d) + UNIT_OF * n;
            const __m512i a = sum[r][2 * n], b = sum[r][2 * n + 1];
            const __m512 some = _mm512_cvtepi32_ps(_mm512_permutex2var_epi64(a, low, b));
            const __m512 others = _mm512_cvtepi32_ps(_mm512_permutex2var_epi64(a, high, b));
            _mm512_store_ps(to, _mm512_fmadd_ps(some, step, _mm512_load_ps(to)));
            _mm512_store_ps(to + 16, _mm512_fmadd_ps(others, step, _mm512_load_ps(to + 16)));
        }
    }
}

INLINE void wide_add_digits(const int rows, const int16_t *w, int64_t width, const float *w_step, const int8_t *v,
                            int64_t d, int64_t columns, int64_t keys, float *o, Soon *soon) {
    int64_t i = 0;
    const int64_t units = whole(columns, UNIT_OF), most = units < d ? units : d;
#define ADD(FULL, UNITS) add_digits_units(FULL, rows, UNITS, w, width, w_step, v + i, most - i, d, keys, o + i, soon)
    if (rows <= 3)
        for (; i + 4 * UNIT_OF <= most; i += 4 * UNIT_OF) ADD(1, 4);
    for (; i + 2 * UNIT_OF <= most; i += 2 * UNIT_OF) ADD(1, 2);
    for (; i + UNIT_OF <= most; i += UNIT_OF) ADD(1, 1);
    if (i < most) ADD(0, 1);
#undef ADD
}
