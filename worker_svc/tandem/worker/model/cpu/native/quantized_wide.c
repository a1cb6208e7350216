// Products with quantized weights by AVX-512 with VNNI: the same integers and the same operations on each output number as
// in products.c, so the same bits, by a quarter of the instructions. vpdpwssd multiplies 32 pairs of int16 and adds them
// to the sums of a whole panel.

#include "quantized.h"

int wide_is_there(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

// The two inputs of a `pair` of those that lie together at w, for 16 columns; see `two_inputs` of quantized_narrow.h.
INLINE __m512i two_inputs(const int bits, const int means, __m512i table, const uint8_t *w, const int pair) {
    const __m256i *from = (const __m256i *)w;
    __m512i b;
    if (bits == 6) {
        const __m512i *words = (const __m512i *)w;
        const __m512i word = _mm512_loadu_si512(words + (pair < 6 ? pair / 2 : pair - 6));
        if (pair < 6) return _mm512_and_si512(pair % 2 ? _mm512_srli_epi16(word, 6) : word, _mm512_set1_epi16(63));
        const __m512i third = _mm512_loadu_si512(words + 2);
        const __m512i upper = pair == 6 ? _mm512_srli_epi16(third, 8) : _mm512_srli_epi16(third, 10);
        return _mm512_or_si512(_mm512_srli_epi16(word, 12), _mm512_and_si512(upper, _mm512_set1_epi16(48)));
    }
    if (bits == 8) b = _mm512_cvtepi8_epi16(_mm256_loadu_si256(from + pair));
    else if (pair == 0) b = _mm512_and_si512(_mm512_cvtepu8_epi16(_mm256_loadu_si256(from)), _mm512_set1_epi16(15));
    else b = _mm512_srli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256(from)), 4);
    return means == TABLE ? _mm512_permutexvar_epi16(b, table) : b;
}

// As `quantized_tile` of products.c.
INLINE void tile(const Product *p, const int rows, const int panels, const int bits, const int means, const int group,
                 int64_t panel, int64_t row, int64_t first, int64_t last, const Constants *by, const uint8_t *ahead) {
    const int64_t width = p->groups * group, columns = p->panels * PANEL, stride = width * PANEL * bits / 8;
    const uint8_t *w = p->weight + panel * stride;
    const int32_t *x = p->x + row * (width / 2);
    const float *x_scale = p->x_scale + row * p->groups, *x_sum = p->x_sum + row * p->groups;
    float *out = p->out + row * columns + panel * PANEL;
    __m512i table = _mm512_setzero_si512();
    if (means == TABLE) table = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p->table));
    __m512 total[WIDE_ROWS];  // by panel and row
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < panels; n++)
            total[n * rows + r] = first == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + r * columns + n * PANEL);
    for (int64_t g = first; g < last; g++) {
        __m512i sum[WIDE_ROWS];
        const uint8_t *group_w = w + g * group * PANEL * bits / 8;
        if (rows > 1)
            for (int64_t i = 0; i < group * PANEL * bits / 8; i += 64, ahead += 64)
                _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        const int32_t *group_x = x + g * (group / 2) * rows;
        for (int r = 0; r < rows; r++) {
            const int start = means == LESS ? (int)x_sum[g * rows + r] : 0;
            for (int n = 0; n < panels; n++) sum[n * rows + r] = _mm512_set1_epi32(start);
        }
        for (int i = 0; i < group / 2; i += PAIRS(bits)) {
            for (int n = 0; n < panels; n++)
#pragma GCC unroll 8
                for (int pair = 0; pair < PAIRS(bits); pair++) {
                    const __m512i b = two_inputs(bits, means, table, group_w + n * stride, pair);
                    for (int r = 0; r < rows; r++) {
                        __m512i *to = sum + n * rows + r;
                        *to = _mm512_dpwssd_epi32(*to, _mm512_set1_epi32(group_x[pair * rows + r]), b);
                    }
                }
            group_w += PAIRS(bits) * PANEL * bits / 4, group_x += PAIRS(bits) * rows;
        }
        for (int n = 0; n < panels; n++) {
            const int64_t at = (g - first) * PANEL;
            const __m512 scale = _mm512_loadu_ps(by->scale[n] + at);
            for (int r = 0; r < rows; r++) {
                const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x_scale[g * rows + r]));
                __m512 *to = total + n * rows + r;
                *to = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[n * rows + r]), factor, *to);
            }
            if (means != DIGITS || !by->least[n]) continue;
            const __m512 least = _mm512_loadu_ps(by->least[n] + at);
            for (int r = 0; r < rows; r++) {
                __m512 *to = total + n * rows + r;
                *to = _mm512_fmadd_ps(least, _mm512_set1_ps(x_sum[g * rows + r]), *to);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < panels; n++) _mm512_storeu_ps(out + r * columns + n * PANEL, total[n * rows + r]);
}

INLINE void panels_of(const int bits, const int means, const int group, const Product *p, int64_t first, int64_t last) {
    const int together = p->rows == 1 && last - first == TOGETHER ? TOGETHER : 1;
    Constants by;
    for (int64_t start = 0; start < p->groups; start += BLOCK / group) {
        const int64_t end = start + BLOCK / group < p->groups ? start + BLOCK / group : p->groups;
        for (int64_t panel = first; panel < last; panel += together) {
            constants(p, group, panel, together, start, end, &by);
            if (together > 1) {
                tile(p, 1, TOGETHER, bits, means, group, panel, 0, start, end, &by, p->weight);
                continue;
            }
            const uint8_t *ahead = next_weights(p, bits, group, panel, start, end, first, last);
            for (int64_t row = 0, rows; row < p->rows; row += rows) {
                rows = tile_rows(p->rows - row, WIDE_ROWS);
#define TILE(R)                                                                                                        \
    case R: tile(p, R, 1, bits, means, group, panel, row, start, end, &by, ahead); break;
                switch (rows) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) }
#undef TILE
            }
        }
    }
}

void wide_quantized_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    BY_KIND(panels_of, bits, p, group, p, first, last)
}

#ifdef __clang__
#pragma clang attribute pop
#endif
