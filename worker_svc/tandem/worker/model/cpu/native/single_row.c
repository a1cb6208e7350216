// Products of a single row with quantized weights, for x86-64 with AVX2: the same operations on each output number as in
// products.c, so the same bits.
//
// Memory decides here, and likes one stream best: panels one behind the other, each whole, and its constants widened
// where they are needed.

#include "quantized_narrow.h"

#define AHEAD 2048  // bytes from what is multiplied to what is asked for

// The sums of one group. `begin`: what they begin with, of 6 bits.
INLINE void group_sums(const int bits, const int means, const __m256i table[2], const uint8_t *w, const int32_t *x,
                       const float *begin, const int group, __m256i sum[2]) {
    sum[0] = bits == 6 ? _mm256_cvtps_epi32(_mm256_broadcast_ss(begin)) : _mm256_setzero_si256();
    sum[1] = sum[0];
#pragma GCC unroll 4
    for (int i = 0; i < group / 2; i += PAIRS(bits))
#pragma GCC unroll 8
        for (int pair = 0; pair < PAIRS(bits); pair++) {
            __m256i b[2];
            two_inputs(bits, means, table, w + i * PANEL * bits / 4, pair, b);
            const __m256i a = _mm256_set1_epi32(x[i + pair]);
            for (int h = 0; h < 2; h++) sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(a, b[h]));
        }
}

// The same of digits.
INLINE void group_digits(const int means, const int group, const uint8_t *w, const int32_t *x, __m256i sum[2]) {
    __m256i all;
    digit_sums(1, group / 4, means, _mm256_setzero_si256(), w, x, &all);
    sum[0] = widened(_mm256_castsi256_si128(all), means, x + group / 2);
    sum[1] = widened(_mm256_extracti128_si256(all, 1), means, x + group / 2);
}

// The same of a small table, span by span.
INLINE void group_small(__m256i table, const int group, const uint8_t *w, const int32_t *x, __m256i sum[2]) {
    sum[0] = sum[1] = _mm256_setzero_si256();
    for (int i = 0; i < group; i += SPAN / 2, w += SPAN / 4 * PANEL, x += SPAN / 4 + 1) {
        __m256i all;
        digit_sums(1, SPAN / 8, SMALL, table, w, x, &all);
        sum[0] = _mm256_add_epi32(sum[0], _mm256_cvtepi16_epi32(_mm256_castsi256_si128(all)));
        sum[1] = _mm256_add_epi32(sum[1], _mm256_cvtepi16_epi32(_mm256_extracti128_si256(all, 1)));
    }
}

INLINE void row_panel(const int bits, const int means, const int group, const int half, const Product *p,
                      int64_t panel) {
    const int64_t each = half == 3 ? UNIT / group : p->groups, units = (p->groups + each - 1) / each;
    const int64_t step = p->per_channel ? 0 : PANEL;
    const uint8_t *w = p->weight + panel * p->groups * group * PANEL * bits / 8;
    const int32_t *x = p->x;
    const int digits = bits == 4 && group <= SPAN && (means == DIGITS || means == LESS);
    const int as_six = half == 3 && means == DIGITS && together(p);
    const int words = group / 2 + (means == SMALL ? group / (SPAN / 2) : digits);
    int64_t at = panel * (p->per_channel ? 1 : p->groups) * PANEL;
    __m256i table[2];
    if (means == TABLE || means == BYTES) load_table(p, table);
    else if (means == SMALL) table[0] = raised_table(p->table);
    __m256 total[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t u = 0; u < units; u++) {
        const int64_t last = (u + 1) * each < p->groups ? (u + 1) * each : p->groups;
        __m256 unit[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, least_unit[2] = {unit[0], unit[0]};
        for (int h = 0; h < 2 && half == 3; h++) {
            const int64_t place = (panel * units + u) * PANEL + 8 * h;
            unit[h] = halves((const uint16_t *)p->scale_unit + place);
            if (p->least) least_unit[h] = halves((const uint16_t *)p->least_unit + place);
            if (as_six) least_unit[h] = _mm256_sub_ps(_mm256_setzero_ps(), least_unit[h]);
        }
        for (int h = 0; h < 2 && half == 4; h++)
            unit[h] = row_units((const float *)p->scale_unit + panel * PANEL + 8 * h);
        for (int64_t g = u * each; g < last; g++, at += step, w += group * PANEL * bits / 8, x += words) {
            __m256i sum[2];
            for (int i = 0; i < group * PANEL * bits / 8; i += 64)
                _mm_prefetch((const char *)w + AHEAD + i, _MM_HINT_T0);
            if (means == SMALL) group_small(table[0], group, w, x, sum);
            else if (digits) group_digits(means, group, w, x, sum);
            else group_sums(bits, means, table, w, x, p->x_sum + g, group, sum);
            for (int h = 0; h < 2; h++) {
                const __m256 scale = as_six ? multiples(half_of(six_bits(p->scale, at, 0), h), unit[h])
                                            : eight(half, p->scale, at + 8 * h, unit[h]);
                const __m256 factor = _mm256_mul_ps(scale, _mm256_broadcast_ss(p->x_scale + g));
                total[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[h]), factor, total[h]);
                if (means != DIGITS || !p->least) continue;
                const __m256 least = as_six ? multiples(half_of(six_bits(p->least, at, 1), h), least_unit[h])
                                            : eight(half, p->least, at + 8 * h, least_unit[h]);
                total[h] = _mm256_fmadd_ps(least, _mm256_broadcast_ss(p->x_sum + g), total[h]);
            }
        }
    }
    for (int h = 0; h < 2; h++) _mm256_storeu_ps(p->out + panel * PANEL + 8 * h, total[h]);
}

INLINE void panels_that_mean(const int bits, const int means, const int group, const Product *p, int64_t first,
                             int64_t last) {
    for (; first < last; first++) switch (p->half) {
        case 0: row_panel(bits, means, group, 0, p, first); break;
        case 1: row_panel(bits, means, group, 1, p, first); break;
        case 2: row_panel(bits, means, group, 2, p, first); break;
        case 4: row_panel(bits, means, group, 4, p, first); break;
        default: row_panel(bits, means, group, 3, p, first);
        }
}

INLINE void panels_of(const int bits, const int means, const int group, const Product *p, int64_t first, int64_t last) {
    if (means == TABLE && group <= SPAN && small_table(p->table)) panels_that_mean(bits, SMALL, group, p, first, last);
    else if (means == TABLE && of_bytes(p->table)) panels_that_mean(bits, BYTES, group, p, first, last);
    else panels_that_mean(bits, means, group, p, first, last);
}

FUNCTIONS_OF(ALL_KINDS, single_row, panels_of)

void single_row_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    CALL_BY_KIND(ALL_KINDS, single_row, p, bits, group, first, last)
}
