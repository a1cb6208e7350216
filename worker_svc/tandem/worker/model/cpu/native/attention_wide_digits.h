// What attention over int8, int6 and int4 in whole numbers has in common, by vectors and by tiles of AMX: how digits are loaded,
// and how queries are prepared and answers put in order (attention_wide_digits.c).
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

// Units of four values become four tiles: lane 4 i + n of tile t has the byte 16 i + 4 t + n of each.
INLINE void value_tiles(const __m512i x[4], __m512i to[4]) {
    const __m512i ab = _mm512_unpacklo_epi8(x[0], x[1]), cd = _mm512_unpacklo_epi8(x[2], x[3]);
    const __m512i more = _mm512_unpackhi_epi8(x[0], x[1]), others = _mm512_unpackhi_epi8(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi16(ab, cd), to[1] = _mm512_unpackhi_epi16(ab, cd);
    to[2] = _mm512_unpacklo_epi16(more, others), to[3] = _mm512_unpackhi_epi16(more, others);
}

// A query's planes [plane][whole units].
INLINE int8_t *planes_of(const Piece *of, int64_t row, int64_t d) { return (int8_t *)of->few_q + row * 4 * wide_of(d); }

// What planes add up to: the second is 256 times the first.
INLINE __m512i joined_planes(__m512i first, __m512i second) {
    return _mm512_add_epi32(_mm512_slli_epi32(second, 8), first);
}

void wide_attention_begin_digits(const Attention *a, const int32_t *block, int64_t head, const Piece *to);
void wide_attention_end_digits(const Attention *a, const int32_t *block, int64_t head, const Piece *of);
