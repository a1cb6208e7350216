// Products of several rows with numbers of 4 bits that are digits, less 8 or with a least number, or of a small table, for
// x86-64 with AVX2.
//
// Such numbers are some seven percent off what they stand for; activations of 8 bits, off by a 254th of the largest in
// their group at most, take half the instructions of those of 16 bits (see `digit_sums`).

#include "quantized_narrow.h"

// Functions of their own: of many in one, gcc keeps no sums in registers.
typedef void Sums(__m256i table, const uint8_t *w, const int32_t *x, __m256i *sums);
#define SUMS_OF_A_SPAN(NAME, ROWS, QUADS, MEANS)                                                                       \
    static __attribute__((noinline)) void NAME##_##ROWS(__m256i table, const uint8_t *w, const int32_t *x,             \
                                                        __m256i *sums) {                                               \
        digit_sums(ROWS, QUADS, MEANS, table, w, x, sums);                                                             \
    }
#define SUMS(ROWS)                                                                                                     \
    SUMS_OF_A_SPAN(whole, ROWS, SPAN / 4, DIGITS)                                                                      \
    SUMS_OF_A_SPAN(half, ROWS, SPAN / 8, DIGITS)                                                                       \
    SUMS_OF_A_SPAN(small, ROWS, SPAN / 8, SMALL)
// clang-format off
SUMS(1) SUMS(2) SUMS(3) SUMS(4) SUMS(5) SUMS(6) SUMS(7) SUMS(8) SUMS(9) SUMS(10) SUMS(11) SUMS(12)
#define BY_ROWS(NAME) {NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8, NAME##_9, NAME##_10, NAME##_11, NAME##_12}
static Sums *const WHOLE[DIGIT_ROWS] = BY_ROWS(whole), *const HALF[DIGIT_ROWS] = BY_ROWS(half);
static Sums *const OF_SMALL[DIGIT_ROWS] = BY_ROWS(small);
// clang-format on

// Eight columns of a row: what a group gives, added to `total`.
INLINE void add_group(float *total, __m256i sum, __m256 scale, float x_scale, const float *least, float x_sum) {
    __m256 all = _mm256_loadu_ps(total);
    all = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scale, _mm256_set1_ps(x_scale)), all);
    if (least) all = _mm256_fmadd_ps(_mm256_loadu_ps(least), _mm256_set1_ps(x_sum), all);
    _mm256_storeu_ps(total, all);
}

// `rows` rows and one panel, from `row` on; the groups from `first` to `last`.
INLINE void digits_tile(const Product *p, int64_t rows, const int means, const int group, int64_t panel, int64_t row,
                        int64_t first, int64_t last, const Constants *by, const uint8_t *ahead) {
    const int span = means == SMALL ? SPAN / 2 : group, spans = group / span;
    const int64_t bytes = group * PANEL / 2, words = group / 2 + spans, columns = p->panels * PANEL;
    const uint8_t *w = p->weight + (panel * p->groups + first) * bytes;
    const int32_t *x = p->x + (row * p->groups + first * rows) * words;
    const float *x_scale = p->x_scale + row * p->groups, *x_sum = p->x_sum + row * p->groups;
    float *out = p->out + row * columns + panel * PANEL;
    Sums *const sums_of = (means == SMALL ? OF_SMALL : group < SPAN ? HALF : WHOLE)[rows - 1];
    const __m256i table = means == SMALL ? raised_table(p->table) : _mm256_setzero_si256();
    float total[DIGIT_ROWS][PANEL];
    for (int r = 0; r < rows; r++)
        if (first == 0) memset(total[r], 0, sizeof total[r]);
        else memcpy(total[r], out + r * columns, sizeof total[r]);
    for (int64_t g = first; g < last; g++, w += bytes, x += words * rows) {
        __m256i sums[2][DIGIT_ROWS];  // of each span
        for (int64_t i = 0; i < bytes; i += 64, ahead += 64) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        for (int n = 0; n < spans; n++)
            sums_of(table, w + n * span * PANEL / 2, x + n * (span / 2 + 1) * rows, sums[n]);
        const int32_t *begin = x + span / 2 * rows;
        const float *scales = by->scale + (g - first) * PANEL, *group_scale = x_scale + g * rows;
        const float *leasts = means == DIGITS && by->least ? by->least + (g - first) * PANEL : 0;
        const __m256 scale[2] = {_mm256_loadu_ps(scales), _mm256_loadu_ps(scales + 8)};
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++) {
                __m256i sum = widened(((__m128i *)(sums[0] + r))[h], means, begin + r);
                if (spans > 1) sum = _mm256_add_epi32(sum, widened(((__m128i *)(sums[1] + r))[h], means, begin));
                const float *least = leasts ? leasts + 8 * h : 0;
                add_group(total[r] + 8 * h, sum, scale[h], group_scale[r], least, x_sum[g * rows + r]);
            }
    }
    for (int r = 0; r < rows; r++) memcpy(out + r * columns, total[r], sizeof total[r]);
}

// Panels from `first` to `last`.
void digits_panels(const Product *p, int group, int64_t first, int64_t last) {
    Constants by;
    for (int64_t start = 0; start < p->groups; start += BLOCK / group) {
        const int64_t end = start + BLOCK / group < p->groups ? start + BLOCK / group : p->groups;
        for (int64_t panel = first; panel < last; panel++) {
            constants(p, group, panel, start, end, &by);
            const uint8_t *ahead = next_weights(p, 4, group, panel, start, end, first, last);
            for (int64_t row = 0, rows; row < p->rows; row += rows) {
                rows = tile_rows(p->rows - row, DIGIT_ROWS);
#define TILE(MEANS, GROUP) digits_tile(p, rows, MEANS, GROUP, panel, row, start, end, &by, ahead)
                if (p->table && group == SPAN) TILE(SMALL, SPAN);
                else if (p->table) TILE(SMALL, SPAN / 2);
                else if (p->less && group == SPAN) TILE(LESS, SPAN);
                else if (p->less) TILE(LESS, SPAN / 2);
                else if (group == SPAN) TILE(DIGITS, SPAN);
                else TILE(DIGITS, SPAN / 2);
#undef TILE
            }
        }
    }
}
