// Products with quantized weights by AVX2: what one row (`single_row.c`) and several (`products.c`) share.

#pragma once

#include "quantized.h"

INLINE __m256 halves(const uint16_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

// The factors of eight rows' scales of e4m3, whose bits are widened to what is 256 times too small.
INLINE __m256 row_units(const float *from) { return _mm256_mul_ps(_mm256_loadu_ps(from), _mm256_set1_ps(256.0f)); }

// The first or second eight of sixteen bytes.
INLINE __m128i half_of(__m128i bytes, int second) { return second ? _mm_unpackhi_epi64(bytes, bytes) : bytes; }

INLINE __m256 multiples(__m128i counts, __m256 unit) {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(counts)), unit);
}

// Eight constants at a place, `half` being the product's.
INLINE __m256 eight(const int half, const void *numbers, int64_t at, __m256 unit) {
    if (half == 0) return _mm256_loadu_ps((const float *)numbers + at);
    if (half == 1) return halves((const uint16_t *)numbers + at);
    const __m128i raw = _mm_loadl_epi64((const __m128i *)((const uint8_t *)numbers + at));
    if (half == 2) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(raw), 23));
    if (half == 4) {
        const __m128i wide = _mm_cvtepu8_epi16(raw), sign = _mm_and_si128(wide, _mm_set1_epi16(0x80));
        const __m128i rest = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
        const __m128i halved = _mm_or_si128(_mm_slli_epi16(sign, 8), _mm_slli_epi16(rest, 7));
        return _mm256_mul_ps(_mm256_cvtph_ps(halved), unit);
    }
    return multiples(raw, unit);
}

// Beside DIGITS, TABLE, LESS and SMALL: a table of numbers of 8 bits, as most are.
enum { BYTES = 4 };

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

// A small table, raised.
INLINE __m256i raised_table(const int16_t *table) {
    const int raised = small_table(table);  // once: a compiler takes bytes for what may be the table
    uint8_t bytes[32];
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)(table[i % 16] + raised);
    return _mm256_loadu_si256((const __m256i *)bytes);
}

// Without this, gcc adds up products before it adds them to sums, and has to put sums on the stack.
#define ADDED(SUM) __asm__("" : "+x"(SUM))

// Sums of some rows over a span of digits less 8, four times `quads` inputs, for 16 columns; or of what they stand for by a
// raised `table`. vpmaddubsw adds two products of a digit and an int8 in 16 bits; 32 inputs times digits less 8 give
// 32 * 8 * 127 at most, 16 times numbers of a small table 16 * 16 * 127, which fits again, whatever wraps on the way.
//
// Each sum has a name: those of an array gcc leaves on the stack.
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
INLINE void digit_sums(const int rows, const int quads, const int means, __m256i table, const uint8_t *w,
                       const int32_t *x, __m256i *sums) {
    const __m256i low = _mm256_set1_epi8(15);
#define BEGIN(R) __m256i sum##R = R < rows ? _mm256_set1_epi32(x[2 * quads * rows + R]) : low;
    EACH_ROW(BEGIN)
#pragma GCC unroll 2
    for (int i = 0; i < quads; i++, w += PANEL * 2) {
        const __m256i raw = _mm256_loadu_si256((const __m256i *)w);
        for (int pair = 0; pair < 2; pair++, x += rows) {
            __m256i b = _mm256_and_si256(pair ? _mm256_srli_epi16(raw, 4) : raw, low);
            if (means == SMALL) b = _mm256_shuffle_epi8(table, b);
#define ADD(R)                                                                                                         \
    if (R < rows) {                                                                                                    \
        sum##R = _mm256_add_epi16(sum##R, _mm256_maddubs_epi16(b, _mm256_set1_epi32(x[R])));                           \
        ADDED(sum##R);                                                                                                 \
    }
            EACH_ROW(ADD)
        }
    }
#define KEEP(R)                                                                                                        \
    if (R < rows) sums[R] = sum##R;
    EACH_ROW(KEEP)
#undef BEGIN
#undef ADD
#undef KEEP
}

// A row's sums of 8 columns by 32 bits; `begin` is the word behind the span's.
INLINE __m256i widened(__m128i sums, int means, const int32_t *begin) {
    const __m256i wide = _mm256_cvtepi16_epi32(sums);
    return means != DIGITS ? wide : _mm256_sub_epi32(wide, _mm256_set1_epi32(*begin >> 16));
}

// The two inputs of a `pair`, from 0 to 7, of sixteen of 6 bits at w, for 16 columns.
//
// For each column and each input of a pair there are three words. Their lower 12 bits hold the numbers of pairs 0 and 1, 2
// and 3, 4 and 5. The four bits above hold the lower bits of pair 6, those of pair 7, and the upper two of both.
INLINE void two_of_six_bits(const uint8_t *w, const int pair, __m256i b[2]) {
    for (int h = 0; h < 2; h++) {
        const __m256i *words = (const __m256i *)w + h;
        const __m256i word = _mm256_loadu_si256(words + 2 * (pair < 6 ? pair / 2 : pair - 6));
        if (pair < 6) {
            b[h] = _mm256_and_si256(pair % 2 ? _mm256_srli_epi16(word, 6) : word, _mm256_set1_epi16(63));
            continue;
        }
        const __m256i third = _mm256_loadu_si256(words + 4);
        const __m256i upper = pair == 6 ? _mm256_srli_epi16(third, 8) : _mm256_srli_epi16(third, 10);
        b[h] = _mm256_or_si256(_mm256_srli_epi16(word, 12), _mm256_and_si256(upper, _mm256_set1_epi16(48)));
    }
}

// The two inputs of a `pair` of those that lie together at w, for 16 columns.
INLINE void two_inputs(const int bits, const int means, const __m256i table[2], const uint8_t *w, const int pair,
                       __m256i b[2]) {
    if (bits == 6) {
        two_of_six_bits(w, pair, b);
        return;
    }
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
