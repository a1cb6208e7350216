// Products with quantized weights by AVX2: what one row (`single_row.c`) and several (`products.c`) share.

#pragma once

#include "quantized.h"

INLINE __m256 halves(const uint16_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

// Eight constants at a place, `half` being the product's.
INLINE __m256 eight(const int half, const void *numbers, int64_t at, __m256 unit) {
    if (half == 0) return _mm256_loadu_ps((const float *)numbers + at);
    if (half == 1) return halves((const uint16_t *)numbers + at);
    const __m128i raw = _mm_loadl_epi64((const __m128i *)((const uint8_t *)numbers + at));
    if (half == 2) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(raw), 23));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(raw)), unit);
}

// Beside DIGITS, TABLE and LESS: a table of numbers of 8 bits, as most are.
enum { BYTES = 3 };

INLINE int of_bytes(const int16_t *table) {
    for (int i = 0; i < 16; i++)
        if (table[i] != (int8_t)table[i]) return 0;
    return 1;
}

// What 16 codes stand for. `table` has the low bytes of the sixteen numbers, and the high ones, each twice.
INLINE __m256i decoded(__m256i code, const __m256i table[2]) {
    const __m256i low = _mm256_shuffle_epi8(table[0], _mm256_or_si256(code, _mm256_set1_epi16((short)0x8000)));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi16(code, 8), _mm256_set1_epi16(0x80));
    return _mm256_or_si256(low, _mm256_shuffle_epi8(table[1], high));
}

INLINE void load_table(const Product *p, __m256i table[2]) {
    uint8_t bytes[2][32];
    for (int i = 0; i < 32; i++)
        bytes[0][i] = (uint8_t)p->table[i % 16], bytes[1][i] = (uint8_t)(p->table[i % 16] >> 8);
    for (int i = 0; i < 2; i++) table[i] = _mm256_loadu_si256((const __m256i *)bytes[i]);
}

// The two inputs of a `pair`, 0 or 1, of four at w, for 16 columns.
INLINE void two_inputs(const int bits, const int means, const __m256i table[2], const uint8_t *w, const int pair,
                       __m256i b[2]) {
    const __m128i *from = (const __m128i *)w + (bits == 8 ? 2 * pair : 0);
    for (int h = 0; h < 2; h++) {
        const __m128i raw = _mm_loadu_si128(from + h);
        if (means == BYTES) {
            const __m128i code = _mm_and_si128(pair ? _mm_srli_epi16(raw, 4) : raw, _mm_set1_epi8(15));
            b[h] = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(_mm256_castsi256_si128(table[0]), code));
        } else if (bits == 8) b[h] = _mm256_cvtepi8_epi16(raw);
        else if (pair == 0) b[h] = _mm256_and_si256(_mm256_cvtepu8_epi16(raw), _mm256_set1_epi16(15));
        else b[h] = _mm256_srli_epi16(_mm256_cvtepu8_epi16(raw), 4);
        if (means == TABLE) b[h] = decoded(b[h], table);
    }
}
