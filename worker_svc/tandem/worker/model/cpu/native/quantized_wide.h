// Products with quantized weights by AVX-512 with VNNI: the same integers and the same operations on each output number as
// in products.c, so the same bits, by a quarter of the instructions. vpdpwssd multiplies 32 pairs of int16 and adds them
// to the sums of a whole panel, vpdpbusd 64 numbers of 8 bits.
//
// For functions that are compiled for such processors only.

#pragma once

#include "four_of_int8.h"
#include "prefetch.h"
#include "quantized.h"

#define AHEAD 8192  // bytes from what is multiplied to what is asked for, of few rows
#define AGAIN 4096  // bytes from that back to what is asked for once more (prefetch.h)
#define FEW 4       // tiles of rows

// The two inputs of a `pair` of those that lie together at w, for 16 columns; see `two_inputs` of quantized_narrow.h.
INLINE __m512i two_inputs(const int bits, const int means, __m512i table, const uint8_t *w, const int pair) {
    const __m256i *from = (const __m256i *)w;
    __m512i b;
    if (bits == 8) b = _mm512_cvtepi8_epi16(_mm256_loadu_si256(from + pair));
    else if (pair == 0) b = _mm512_and_si512(_mm512_cvtepu8_epi16(_mm256_loadu_si256(from)), _mm512_set1_epi16(15));
    else b = _mm512_srli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256(from)), 4);
    return means == TABLE ? _mm512_permutexvar_epi16(b, table) : b;
}

// Whether numbers are multiplied by vpdpbusd, four of them with as many int8 (`Rounding`), and how many fours lie together.
#define AS_BYTES(bits, means, group)                                                                                   \
    ((bits) == 6 || ((bits) == 8 && (means) == LESS) || ((bits) == 4 && (group) <= SPAN && (means) != TABLE))
#define FOURS(bits) ((bits) == 6 ? 4 : 1)

// (a & mask) | b
INLINE __m512i masked_or(__m512i a, __m512i mask, __m512i b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xea); }

// Four of the sixteen inputs of 6 bits at w, for 16 columns; see `two_of_six_bits` of quantized_narrow.h. The second comes
// behind the third.
INLINE __m512i four_of_six_bits(const uint8_t *w, const int four) {
    const __m512i *words = (const __m512i *)w, lower = _mm512_set1_epi16(63), upper = _mm512_set1_epi16(63 << 8);
    if (four < 3) {
        const __m512i word = _mm512_loadu_si512(words + four);
        return masked_or(_mm512_slli_epi16(word, 2), upper, _mm512_and_si512(word, lower));
    }
    const __m512i first = _mm512_loadu_si512(words), second = _mm512_loadu_si512(words + 1);
    const __m512i third = _mm512_loadu_si512(words + 2);
    const __m512i low =
        masked_or(_mm512_srli_epi16(second, 4), _mm512_set1_epi16(15 << 8), _mm512_srli_epi16(first, 12));
    const __m512i high = masked_or(_mm512_srli_epi16(third, 8), _mm512_set1_epi16(48), low);
    return masked_or(_mm512_srli_epi16(third, 2), _mm512_set1_epi16(48 << 8), high);
}

// One four of the inputs that lie together at w, for 16 columns. Of 4 bits, each column has the lower ones of two bytes,
// then the upper ones. Those of 8 bits are 128 more than they stand for, so that none is below 0.
INLINE __m512i four_inputs(const int bits, const int means, __m512i table, const uint8_t *w, const int four) {
    if (bits == 8) return _mm512_xor_si512(four_of_int8(w), _mm512_set1_epi8(-128));
    if (bits == 6) return four_of_six_bits(w, four);
    const __m512i raw = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)w));
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i code = _mm512_ternarylogic_epi32(raw, _mm512_slli_epi32(raw, 12), low, 0xa8);  // (raw | ..) & low
    return means == SMALL ? _mm512_shuffle_epi8(table, code) : code;
}

INLINE __m512i table_of(const Product *p, const int means) {
    if (means == TABLE) return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p->table));
    if (means != SMALL) return _mm512_setzero_si512();
    const int raised = raise_of(p->table);
    uint8_t bytes[16];
    for (int i = 0; i < 16; i++) bytes[i] = (uint8_t)(p->table[i] + raised);
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}

// Asks for the lines that begin among `bytes` of them, from number `first` on, a multiple of these: by way of the `second`
// cache, or into the first one, where a single row's are needed once. Where `bytes` are whole lines, the compiler knows how
// many: without that a row of Q8_0 took 1.15 times as long from the caches.
INLINE void ask_for_lines(const int rows, const int second, const uint8_t *ahead, int64_t first, const int64_t bytes) {
    for (int64_t i = bytes % 64 ? (first + 63) & ~(int64_t)63 : first; i < first + bytes; i += 64) {
        const char *line = (const char *)ahead + i;
        if (second) _mm_prefetch(line, _MM_HINT_T1), _mm_prefetch(line - AGAIN, _MM_HINT_T1);
        else if (rows == 1) _mm_prefetch(line, _MM_HINT_NTA);
        else _mm_prefetch(line, _MM_HINT_T0);
    }
}

// Keeps the compiler from unpacking what comes later first, for which sums go to memory: 1.3 to 1.6 times the time. Of a
// single row nothing is asked for earlier either: lines that are asked for in bursts hold up what stands behind them.
#define ADDED(ROWS, SUM)                                                                                               \
    if (ROWS == 1) __asm__ volatile("" : "+v"(SUM));                                                                   \
    else __asm__("" : "+v"(SUM))

// Adds one group to the sums of some rows. What is at `ahead` is asked for evenly: a core has so many misses in flight, and
// is quickest with all of them all the time.
INLINE void group_sums(const int rows, const int bits, const int means, const int group, __m512i table,
                       const uint8_t *w, const int32_t *x, __m512i *sum, const int second, const uint8_t *ahead) {
    const int64_t each = AS_BYTES(bits, means, group) ? FOURS(bits) * PANEL * bits / 2 : PANEL * bits / 2;
    int64_t at = 0;
    if (AS_BYTES(bits, means, group)) {
#pragma GCC unroll 8
        for (int i = 0; i < group / 4; i++, x += rows) {
            if (i % FOURS(bits) == 0) ask_for_lines(rows, second, ahead, at, each), at += each;
            const __m512i b = four_inputs(bits, means, table, w + i / FOURS(bits) * each, i % FOURS(bits));
            for (int r = 0; r < rows; r++) {
                sum[r] = _mm512_dpbusd_epi32(sum[r], b, _mm512_set1_epi32(x[r]));
                ADDED(rows, sum[r]);
            }
        }
        return;
    }
    for (int i = 0; i < group / 2; i += 2, w += each, at += each, x += 2 * rows) {
        ask_for_lines(rows, second, ahead, at, each);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; pair++) {
            const __m512i b = two_inputs(bits, means, table, w, pair);
            for (int r = 0; r < rows; r++) {
                sum[r] = _mm512_dpwssd_epi32(sum[r], _mm512_set1_epi32(x[pair * rows + r]), b);
                ADDED(rows, sum[r]);
            }
        }
    }
}

INLINE __m512 multiples(__m128i counts, __m512 unit) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(counts)), unit);
}

// The constants of a panel at a place.
INLINE __m512 sixteen(const int half, const void *numbers, int64_t at, __m512 unit) {
    if (half == 0) return _mm512_loadu_ps((const float *)numbers + at);
    if (half == 1) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)numbers + at)));
    const __m128i raw = _mm_loadu_si128((const __m128i *)((const uint8_t *)numbers + at));
    if (half == 2) return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(raw), 23));
    if (half == 4) {  // of e4m3, what is 256 times too small
        const __m256i wide = _mm256_cvtepu8_epi16(raw), sign = _mm256_and_si256(wide, _mm256_set1_epi16(0x80));
        const __m256i rest = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
        const __m256i halved = _mm256_or_si256(_mm256_slli_epi16(sign, 8), _mm256_slli_epi16(rest, 7));
        return _mm512_mul_ps(_mm512_cvtph_ps(halved), unit);
    }
    return multiples(raw, unit);
}

// Some rows and one panel, from `row` on; the groups from `first`, which begins a unit, to `last`. What is asked for comes by
// way of the `second` cache, or not.
INLINE void tile(const Product *p, const int rows, const int bits, const int means, const int group, int64_t panel,
                 int64_t row, int64_t first, int64_t last, const uint8_t *ahead, const int second) {
    const int64_t columns = p->panels * PANEL, bytes = group * PANEL * bits / 8;
    const int64_t words = group / (AS_BYTES(bits, means, group) ? 4 : 2);
    const int64_t each = p->half == 3 ? UNIT / group : p->groups, units = (p->groups + each - 1) / each;
    const int64_t step = p->per_channel ? 0 : PANEL;
    const uint8_t *w = p->weight + (panel * p->groups + first) * bytes;
    const int32_t *x = p->x + (row * p->groups + first * rows) * words;
    const float *x_scale = p->x_scale + row * p->groups, *x_sum = p->x_sum + row * p->groups;
    const __m512i table = table_of(p, means);
    const int begins = means == LESS || means == SMALL, as_six = means == DIGITS && together(p);
    const void *const least_of = means == DIGITS ? p->least : 0;
    const int64_t constant = p->half == 0 ? 4 : p->half == 1 ? 2 : 1;  // bytes
    const uint8_t *soon = (const uint8_t *)p->scale + AHEAD / bytes * PANEL * constant;
    float *out = p->out + row * columns + panel * PANEL;
    int64_t at = (p->per_channel ? panel : panel * p->groups + first) * PANEL;
    __m512 total[DIGIT_ROWS];
    for (int r = 0; r < rows; r++) total[r] = first == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + r * columns);
    for (int64_t u = first / each, g = first; g < last; u++) {
        const int64_t end = (u + 1) * each < last ? (u + 1) * each : last;
        __m512 unit = _mm512_setzero_ps(), least_unit = unit;
        if (p->half == 4) unit = _mm512_mul_ps(sixteen(0, p->scale_unit, panel * PANEL, unit), _mm512_set1_ps(256.0f));
        if (p->half == 3) {
            unit = sixteen(1, p->scale_unit, (panel * units + u) * PANEL, unit);
            if (least_of) least_unit = sixteen(1, p->least_unit, (panel * units + u) * PANEL, unit);
            if (as_six) least_unit = _mm512_sub_ps(_mm512_setzero_ps(), least_unit);
        }
        for (; g < end; g++, at += step, w += bytes, x += words * rows) {
            __m512i sum[DIGIT_ROWS];
            if (rows == 1 && step && !as_six) ask_for_lines(1, second, soon, at * constant, PANEL * constant);
            for (int r = 0; r < rows; r++)
                sum[r] = begins ? _mm512_cvttps_epi32(_mm512_set1_ps(x_sum[g * rows + r])) : _mm512_setzero_si512();
            group_sums(rows, bits, means, group, table, w, x, sum, second, ahead);
            ahead += bytes;
            const __m512 scale =
                as_six ? multiples(six_bits(p->scale, at, 0), unit) : sixteen(p->half, p->scale, at, unit);
            for (int r = 0; r < rows; r++) {
                const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x_scale[g * rows + r]));
                total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), factor, total[r]);
            }
            if (!least_of) continue;
            const __m512 least =
                as_six ? multiples(six_bits(least_of, at, 1), least_unit) : sixteen(p->half, least_of, at, least_unit);
            for (int r = 0; r < rows; r++)
                total[r] = _mm512_fmadd_ps(least, _mm512_set1_ps(x_sum[g * rows + r]), total[r]);
        }
    }
    for (int r = 0; r < rows; r++) _mm512_storeu_ps(out + r * columns, total[r]);
}

#include "quantized_many.h"

// Panels from `first` to `last`. Of few tiles of rows, memory decides, and likes one stream best: panels one behind the
// other, each whole.
INLINE void panels_that_mean(const int bits, const int means, const int group, const Product *p, int64_t first,
                             int64_t last) {
    if (p->rows >= MANY(bits, means, group)) {
        panels_of_many_rows(bits, means, group, p, first, last);
        return;
    }
    const int64_t most = AS_BYTES(bits, means, group) ? DIGIT_ROWS : WIDE_ROWS, bytes = group * PANEL * bits / 8;
    const int whole = p->rows <= FEW * most;
    const int64_t block = whole ? p->groups : BLOCK / group;
    for (int64_t start = 0; start < p->groups; start += block) {
        const int64_t end = start + block < p->groups ? start + block : p->groups;
        const int second = by_second_cache() && end - start == p->groups;  // of a part, the next panel's is asked for
        for (int64_t panel = first; panel < last; panel++) {
            const uint8_t *ahead = whole ? p->weight + panel * p->groups * bytes + AHEAD
                                         : next_weights(p, bits, group, panel, start, end, first, last);
            for (int64_t row = 0, rows; row < p->rows; row += rows) {
                rows = tile_rows(p->rows - row, most);
#define TILE(R)                                                                                                        \
    case R: tile(p, R, bits, means, group, panel, row, start, end, ahead, second); break;
                switch (rows) {
                case 1:  // asks without asking each time how
                    if (second) tile(p, 1, bits, means, group, panel, row, start, end, ahead, 1);
                    else tile(p, 1, bits, means, group, panel, row, start, end, ahead, 0);
                    break;
                    TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8)
                }
                if (AS_BYTES(bits, means, group)) switch (rows) {
                        TILE(9) TILE(10) TILE(11) TILE(12)
                    }
#undef TILE
            }
        }
    }
}
