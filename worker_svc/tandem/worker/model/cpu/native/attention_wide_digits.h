// What attention over int8, int6 and int4 in whole numbers has in common, by vectors and by tiles of AMX: how digits are loaded,
// and what queries and weights become (attention_wide_digits.c).
//
// For functions that are compiled for processors with AVX-512 only.

#pragma once

#include "attention_wide_base_two.h"

#define UNIT 64   // numbers of a vector, that become a tile with those of three more
#define SPAN 256  // numbers whose products are added up in whole numbers
#define TILE 64   // bytes
#define PLANES 2
#define MOST_16                                                                                                        \
    32600.0f  // of two signed bytes, which hold 127 * 257, and a little room for what rounding a quotient adds

INLINE int32_t zero_of(const int format) { return format == INT8 ? 128 : format == INT6 ? 32 : 0; }

// In which unit a number is, and which of its bytes: with int4 a unit has the even numbers of 128, or the odd ones, so
// that a block has one group's; with int6 too, where vectors are whole 128 numbers, or else the even ones of 64 come first.
INLINE int64_t turn_of(const int format, int64_t d) {
    return format == INT8 ? 1 : format == INT6 && d % 128 ? UNIT : 2 * UNIT;
}
INLINE int64_t place_of(const int format, int64_t n, int64_t d) {
    const int64_t stretch = turn_of(format, d);
    return format == INT8 ? n : n / stretch * stretch + n % 2 * (stretch / 2) + n % stretch / 2;
}

// Units that are loaded at once: with int4 both, in the lower and the upper half of bytes.
INLINE int64_t units_of(const int format) { return format == INT4 ? 2 : 1; }
INLINE __m512i half_of(const int format, __m512i bytes, int64_t unit) {
    if (format != INT4) return bytes;
    return _mm512_and_si512(_mm512_srli_epi16(bytes, (unsigned)(unit % 2 * 4)), _mm512_set1_epi8(15));
}

// A unit of a vector from number i on, unsigned; 0 behind its end, if it has no `full` unit.
INLINE __m512i unit_of(const int format, const int full, const uint8_t *from, int64_t i, int64_t d) {
    if (format == INT8) {
        const __mmask64 mask = full ? ~(__mmask64)0 : ((__mmask64)1 << (d - i)) - 1;
        const __m512i raw = full ? _mm512_loadu_si512(from + i) : _mm512_maskz_loadu_epi8(mask, from + i);
        return _mm512_xor_si512(raw, _mm512_set1_epi8((char)128));
    }
    if (format == INT4) return _mm512_loadu_si512(from + i / 2);
    if (d % 128 == 0) {
        // Bytes 2 n and 2 n + 1 of the lower halves have their upper two bits in byte n of the higher ones.
        const __m512i lower = _mm512_loadu_si512(from + i / 128 * 64);
        const __m512i upper = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(from + d / 2 + i / 128 * 32)));
        const __m512i mask = _mm512_set1_epi8(0x30), low_mask = _mm512_set1_epi8(15);
        __m512i twos;  // (a | b) & c, and then a | b & c
        if (i % 128 == 0) {
            twos = _mm512_ternarylogic_epi32(_mm512_slli_epi16(upper, 4), _mm512_slli_epi16(upper, 8), mask, 0xa8);
            return _mm512_ternarylogic_epi32(twos, lower, low_mask, 0xf8);
        }
        twos = _mm512_ternarylogic_epi32(_mm512_slli_epi16(upper, 2), _mm512_slli_epi16(upper, 6), mask, 0xa8);
        return _mm512_ternarylogic_epi32(twos, _mm512_srli_epi16(lower, 4), low_mask, 0xf8);
    }
    const __m512i shifts =
        _mm512_setr_epi64(0, 0, 0, 0, 0x0004000400040004, 0x0004000400040004, 0x0004000400040004, 0x0004000400040004);
    const uint8_t *low = from + i / 2;
    const __m256i packed =
        full ? _mm256_loadu_si256((const __m256i *)low) : _mm256_maskz_loadu_epi8(first_of((d - i) / 2), low);
    const __m512i fours = _mm512_srlv_epi16(_mm512_broadcast_i64x4(packed), shifts);
    const uint8_t *high = from + d / 2 + i / 4;
    const __m128i few =
        full ? _mm_loadu_si128((const __m128i *)high) : _mm_maskz_loadu_epi8((__mmask16)first_of((d - i) / 4), high);
    __m512i twos = _mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(few));
    twos = _mm512_or_si512(twos, _mm512_slli_epi16(twos, 4));
    // What both halves are shifted by: those of even numbers by four, the others by two.
    const __m512i places =
        _mm512_setr_epi64(0x0004000400040004, 0x0004000400040004, 0x0004000400040004, 0x0004000400040004,
                          0x0002000200020002, 0x0002000200020002, 0x0002000200020002, 0x0002000200020002);
    twos = _mm512_and_si512(_mm512_sllv_epi16(twos, places), _mm512_set1_epi8(0x30));
    return _mm512_ternarylogic_epi32(twos, fours, _mm512_set1_epi8(15), 0xf8);  // a | b & c
}

// Units of four values become four tiles: byte 16 i + 4 t + n of each value n is in lane 4 i + n of tile t.
INLINE void value_tiles(const __m512i x[4], __m512i to[4]) {
    const __m512i ab = _mm512_unpacklo_epi8(x[0], x[1]), cd = _mm512_unpacklo_epi8(x[2], x[3]);
    const __m512i more = _mm512_unpackhi_epi8(x[0], x[1]), others = _mm512_unpackhi_epi8(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi16(ab, cd), to[1] = _mm512_unpackhi_epi16(ab, cd);
    to[2] = _mm512_unpacklo_epi16(more, others), to[3] = _mm512_unpackhi_epi16(more, others);
}

// Those of keys: lane 4 i + n of tile t has the bytes 16 i + 4 t to 16 i + 4 t + 3 of key n.
INLINE void key_tiles(const __m512i x[4], __m512i to[4]) {
    const __m512i ab = _mm512_unpacklo_epi32(x[0], x[1]), cd = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i more = _mm512_unpackhi_epi32(x[0], x[1]), others = _mm512_unpackhi_epi32(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi64(ab, cd), to[1] = _mm512_unpackhi_epi64(ab, cd);
    to[2] = _mm512_unpacklo_epi64(more, others), to[3] = _mm512_unpackhi_epi64(more, others);
}

// Four vectors' units become four tiles.
INLINE void four_tiles(const int format, const int which, const int full, const uint8_t *from, const int64_t apart[4],
                       int64_t i, int64_t d, __m512i to[4]) {
    __m512i x[4];
    for (int n = 0; n < 4; n++) x[n] = unit_of(format, full, from + apart[n], i, d);
    if (which) value_tiles(x, to);
    else key_tiles(x, to);
}

// How far four vectors lie from the first of them, of what is `length` long; behind the last one comes that again.
INLINE void lay_apart(int64_t length, int64_t left, int64_t apart[4]) {
    for (int64_t n = 0; n < 4; n++) apart[n] = (n < left ? n : left > 0 ? left - 1 : 0) * length;
}

// Where four vectors lie, from number 4 `four` on, of `left` that are there, `all` of the four or not; behind the last one
// comes that again. Returns the number of the first.
INLINE int64_t four_of(const int all, int64_t length, int64_t four, int64_t left, int64_t apart[4]) {
    if (all) {
        for (int64_t n = 0; n < 4; n++) apart[n] = n * length;
        return 4 * four;
    }
    const int64_t at = 4 * four < left ? 4 * four : left - 1;
    lay_apart(length, left - at, apart);
    return at;
}

// What is known of a row's query: planes [plane][whole units], and behind them what their sums add up to, of each group
// as floats, or of each span as whole numbers, times ZERO.
typedef struct {
    const int8_t *planes;
    const float *group_sums;
    const int32_t *span_sums;
} Query;

INLINE int8_t *planes_of(const Piece *of, int64_t row, int64_t d) { return (int8_t *)of->few_q + row * 4 * wide_of(d); }

INLINE Query query_of(const Piece *of, int64_t row, int64_t d) {
    const int8_t *planes = planes_of(of, row, d), *sums = planes + PLANES * wide_of(d);
    const Query query = {planes, (const float *)sums, (const int32_t *)sums};
    return query;
}

// What planes add up to: the second is 256 times the first.
INLINE __m512i joined_planes(__m512i first, __m512i second) {
    return _mm512_add_epi32(_mm512_slli_epi32(second, 8), first);
}

// Weights of a page times the values' scales, of 1 or 2 rows: words [width] or planes [2][width] of 16 bits, `each` bytes
// from row to row; their steps, and the sums of all.
INLINE void weights_of_16_bits(const int words, const int rows, const float *s, int64_t keys, int64_t width,
                               const float *v_scale, int8_t *to, int64_t each, float *steps, int32_t *sums) {
    __m512 most[2], scaled[2][16];
    __m512i all[2];
    __mmask16 broken[2] = {0, 0};
    for (int r = 0; r < rows; r++) most[r] = _mm512_setzero_ps(), all[r] = _mm512_setzero_si512();
    for (int64_t i = 0; i < keys; i += 16) {
        const __m512 scale = _mm512_maskz_loadu_ps((__mmask16)first_of(keys - i), v_scale + i);
        for (int r = 0; r < rows; r++) {
            const __m512 weight = _mm512_load_ps(s + r * width + i);
            const __mmask16 weighs = _mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_UQ);
            const __m512 now = _mm512_maskz_mul_ps(weighs, weight, scale);
            most[r] = _mm512_max_ps(now, most[r]);
            broken[r] |= _mm512_cmp_ps_mask(now, now, _CMP_UNORD_Q);
            scaled[r][i / 16] = now;
        }
    }
    __m512 inverse[2];
    for (int r = 0; r < rows; r++) {
        steps[r] = broken[r] ? NAN : at_least_tiny(_mm512_reduce_max_ps(most[r]) / MOST_16);
        inverse[r] = _mm512_set1_ps(1 / steps[r]);
    }
    for (int64_t i = 0; i < keys; i += 16)
        for (int r = 0; r < rows; r++) {
            const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(scaled[r][i / 16], inverse[r]));
            all[r] = _mm512_add_epi32(all[r], v);
            if (words) {
                _mm256_store_si256((__m256i *)(to + r * each + 2 * i), _mm512_cvtepi32_epi16(v));
                continue;
            }
            const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
            _mm_store_si128((__m128i *)(to + r * each + i), _mm512_cvtepi32_epi8(v));
            _mm_store_si128((__m128i *)(to + r * each + width + i), _mm512_cvtepi32_epi8(high));
        }
    for (int r = 0; r < rows; r++) sums[r] = _mm512_reduce_add_epi32(all[r]);
}

void wide_attention_begin_digits(const Attention *a, const int32_t *block, int64_t head, const Piece *to);
void wide_attention_end_digits(const Attention *a, const int32_t *block, int64_t head, const Piece *of);
