// Puts rows of a matrix into panels of 16, as products read them, and takes them out again, quantized ones as fp32.

#include "matrices.h"
#include "operations.h"
#include "quantized_narrow.h"

#define FILL(TYPE)                                                                                                     \
    for (int64_t panel = 0; panel < panels; panel++) {                                                                 \
        const TYPE *from = (const TYPE *)rows + panel * PANEL * columns;                                               \
        TYPE *out = (TYPE *)to + panel * columns * PANEL;                                                              \
        for (int64_t i = 0; i < columns; i++)                                                                          \
            for (int r = 0; r < PANEL; r++) out[i * PANEL + r] = from[r * columns + i];                                \
    }

// rows [panels * 16, columns] of numbers of `size` bytes -> to [panels, columns, 16].
void tandem_fill_panels(int size, const void *rows, void *to, int64_t panels, int64_t columns, int threads) {
    if (size == 1) {
#pragma omp parallel for schedule(static) num_threads(threads)
        FILL(uint8_t)
    } else if (size == 2) {
#pragma omp parallel for schedule(static) num_threads(threads)
        FILL(uint16_t)
    } else {
#pragma omp parallel for schedule(static) num_threads(threads)
        FILL(uint32_t)
    }
}

#define TAKE(TYPE)                                                                                                     \
    for (int64_t n = 0; n < count; n++) {                                                                              \
        const TYPE *from = (const TYPE *)panels + first_word(ids[n], steps, beside, words);                            \
        TYPE *out = (TYPE *)to + n * steps * words;                                                                    \
        for (int64_t step = 0; step < steps; step++, from += beside * words * PANEL)                                   \
            for (int64_t i = 0; i < words; i++) *out++ = from[i * PANEL];                                              \
    }

// Rows `ids` [count] of panels [.., steps, beside, words, 16] of numbers of `size` bytes, `all` panels in all -> to [count,
// steps * words]. Returns 0, or 1 where there is no such row.
int tandem_panel_rows(int size, const void *panels, int64_t all, int64_t steps, int64_t beside, int64_t words,
                      const int64_t *ids, int64_t count, void *to) {
    for (int64_t n = 0; n < count; n++)
        if (ids[n] < 0 || ids[n] >= all * PANEL) return 1;
    if (size == 1) {
        TAKE(uint8_t)
    } else if (size == 2) {
        TAKE(uint16_t)
    } else {
        TAKE(uint32_t)
    }
    return 0;
}

// Number `column` of a panel's row, as it is stored; those of 6 bits as `two_of_six_bits` has them.
INLINE int stored_number(const int bits, const uint8_t *w, int row, int64_t column) {
    const int64_t odd = column % 2;
    if (bits == 8) return ((const int8_t *)w)[(column / 2 * PANEL + row) * 2 + odd];
    if (bits == 4) return w[(column / 4 * PANEL + row) * 2 + odd] >> (column % 4 / 2 * 4) & 15;
    const uint16_t *words = (const uint16_t *)w + (column / 16 * 3 * PANEL + row) * 2 + odd;
    const int pair = (int)(column % 16 / 2);
    if (pair < 6) return (words[pair / 2 * 2 * PANEL] >> pair % 2 * 6 & 63) - 32;
    const int lower = words[(pair - 6) * 2 * PANEL] >> 12, upper = words[4 * PANEL] >> (pair == 6 ? 12 : 14) & 3;
    return (lower | upper << 4) - 32;
}

// Constants of a panel's row, as fp32.
INLINE float constant(int half, const void *numbers, const void *unit, int64_t at) {
    if (half == 0) return ((const float *)numbers)[at];
    if (half == 1) return _cvtsh_ss(((const uint16_t *)numbers)[at]);
    const uint32_t raw = ((const uint8_t *)numbers)[at];
    if (half == 2) return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)(raw ? raw << 23 : 1 << 22))));
    if (half == 3) return _cvtsh_ss(*(const uint16_t *)unit) * (float)(int8_t)raw;
    return _cvtsh_ss((uint16_t)((raw & 0x80) << 8 | (raw & 0x7f) << 7)) * (*(const float *)unit * 256.0f);
}

INLINE void one_row(const int bits, const Product *p, int64_t scales, int64_t group, int64_t k, const int64_t *order,
                    int64_t id, float *out) {
    const int64_t panel = id / PANEL, row = id % PANEL, each = p->half == 3 ? UNIT / group : 1;
    const int64_t units = p->half == 3 ? (p->groups + each - 1) / each : 1, unit_size = p->half == 3 ? 2 : 4;
    const uint8_t *w = p->weight + panel * p->groups * group * PANEL * bits / 8;
    for (int64_t g = 0; g < p->groups; g++) {
        int64_t at = (panel * scales + (scales > 1 ? g : 0)) * PANEL + row;
        const int64_t unit = ((panel * units + (p->half == 3 ? g / each : 0)) * PANEL + row) * unit_size;
        const void *scales_at = p->scale, *leasts_at = p->least;
        int8_t six[2][PANEL];
        if (together(p)) {
            const int64_t apart = (panel * p->groups + g) * PANEL;
            const __m128i digits = six_bits(p->scale, apart, 1);
            _mm_storeu_si128((__m128i *)six[0], six_bits(p->scale, apart, 0));
            _mm_storeu_si128((__m128i *)six[1], _mm_sub_epi8(_mm_setzero_si128(), digits));
            scales_at = six[0], leasts_at = six[1], at = row;
        }
        const float scale = constant(p->half, scales_at, (const uint8_t *)p->scale_unit + unit, at);
        const float least = p->least ? constant(p->half, leasts_at, (const uint8_t *)p->least_unit + unit, at) : 0;
        const int64_t last = (g + 1) * group < k ? (g + 1) * group : k;
        for (int64_t i = g * group; i < last; i++) {
            const int q = stored_number(bits, w, (int)row, i);
            float number = (float)(p->table ? p->table[q] : q) * scale;
            if (p->least) number += least;
            out[order ? order[i] : i] = number;
        }
    }
}

// Rows `ids` [count] of a quantized matrix of k columns -> out [count, k]; the rest as in `Product`, `scales` being how many
// a row has. Returns 0, or 1 where the panels have no such row.
int tandem_quantized_rows(int bits, const void *weight, const void *scale, const void *least, const void *scale_unit,
                          const void *least_unit, const int16_t *table, int half, int64_t scales, const int64_t *order,
                          int64_t k, int64_t panels, int64_t groups, int64_t group, const int64_t *ids, int64_t count,
                          float *out, int threads) {
    for (int64_t n = 0; n < count; n++)
        if (ids[n] < 0 || ids[n] >= panels * PANEL) return 1;
    const Product p = {.weight = weight,
                       .scale = scale,
                       .least = least,
                       .scale_unit = scale_unit,
                       .least_unit = least_unit,
                       .table = table,
                       .groups = groups,
                       .half = half};
#pragma omp parallel for schedule(static) num_threads(threads) if (count * k > 65536)
    for (int64_t n = 0; n < count; n++) {
        float *to = out + n * k;
        if (bits == 8) one_row(8, &p, scales, group, k, order, ids[n], to);
        else if (bits == 4) one_row(4, &p, scales, group, k, order, ids[n], to);
        else one_row(6, &p, scales, group, k, order, ids[n], to);
    }
    return 0;
}
