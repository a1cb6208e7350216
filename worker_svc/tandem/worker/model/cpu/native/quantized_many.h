// Products of many rows with quantized weights: a block of two panels is unpacked once for all rows, into the first cache,
// and multiplied from there; of two panels, what a row has is loaded once for both. The same operations on each output
// number as in quantized_wide.h, so the same bits.
//
// Between two blocks, sums lie in memory of their own: the rows of the output lie so far apart, often by a power of two,
// that the caches keep few of them.
//
// For functions that are compiled for such processors only.

#pragma once

// Rows from which on it is quicker.
#define MANY(BITS, MEANS, GROUP) (AS_BYTES(BITS, MEANS, GROUP) ? FEW * DIGIT_ROWS + 1 : 96)
// Inputs of a block: those of two panels are 16 KiB.
#define MANY_INPUTS(BITS, MEANS, GROUP) (AS_BYTES(BITS, MEANS, GROUP) ? 512 : 256)
// Rows of a tile that are multiplied at once: half of it.
#define MANY_HIGH(BITS, MEANS, GROUP) ((AS_BYTES(BITS, MEANS, GROUP) ? DIGIT_ROWS : WIDE_ROWS) / 2)

// A block of two panels.
typedef struct {
    __m512i words[2][128];                           // inputs of 16 columns: four of 8 bits, or two of 16
    float scale[2][32][PANEL], least[2][32][PANEL];  // of groups
} Block;

// Unpacks the groups from `first`, which begins a unit, to `last` of a panel, as the `n`th of a block.
INLINE void unpack(const Product *p, const int bits, const int means, const int group, int64_t panel, int64_t first,
                   int64_t last, const int n, Block *to) {
    const int64_t bytes = group * PANEL * bits / 8;
    const uint8_t *w = p->weight + (panel * p->groups + first) * bytes;
    const __m512i table = table_of(p, means);
    __m512i *words = to->words[n];
    if (AS_BYTES(bits, means, group)) {
        for (int64_t i = 0; i < (last - first) * group / 4; i += FOURS(bits), w += FOURS(bits) * PANEL * bits / 2)
#pragma GCC unroll 4
            for (int four = 0; four < FOURS(bits); four++) words[i + four] = four_inputs(bits, means, table, w, four);
    } else {
        for (int64_t i = 0; i < (last - first) * group / 2; i += 2, w += PANEL * bits / 2)
#pragma GCC unroll 2
            for (int pair = 0; pair < 2; pair++) words[i + pair] = two_inputs(bits, means, table, w, pair);
    }
    Constants by;
    constants(p, group, panel, first, last, &by);
    const size_t size = (size_t)(last - first) * PANEL * sizeof(float);
    memcpy(to->scale[n], by.scale, size);
    if (by.least) memcpy(to->least[n], by.least, size);
}

// Adds the sums of a group.
INLINE void add_group(const int rows, const float *scale, const float *least, const float *x_scale, const float *x_sum,
                      const __m512i *sum, __m512 *total) {
    const __m512 by = _mm512_loadu_ps(scale);
    for (int r = 0; r < rows; r++) {
        const __m512 factor = _mm512_mul_ps(by, _mm512_set1_ps(x_scale[r]));
        total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), factor, total[r]);
    }
    if (!least) return;
    const __m512 each = _mm512_loadu_ps(least);
    for (int r = 0; r < rows; r++) total[r] = _mm512_fmadd_ps(each, _mm512_set1_ps(x_sum[r]), total[r]);
}

// Where some rows' sums are, `stride` numbers apart; `first` is 0: nowhere.
typedef struct {
    float *first;
    int64_t stride;
} Sums;

// A block's products with some of a tile's `high` rows, the first of which has its integers at x; those of a single panel,
// or of two.
INLINE void many_tile(const Product *p, const int rows, const int panels, const int bits, const int means,
                      const int group, int64_t high, int64_t groups, const int32_t *x, const float *x_scale,
                      const float *x_sum, const Block *by, const Sums from, const Sums to) {
    const int bytes = AS_BYTES(bits, means, group), begins = means == LESS || means == SMALL;
    const int has_least = means == DIGITS && p->least, words = group / (bytes ? 4 : 2);
    const __m512i *w = by->words[0], *w2 = by->words[1];
    __m512 total[DIGIT_ROWS / 2], total2[DIGIT_ROWS / 2];  // of the first and the second panel
    for (int r = 0; r < rows; r++) {
        const float *before = from.first + r * from.stride;
        total[r] = from.first ? _mm512_loadu_ps(before) : _mm512_setzero_ps();
        if (panels == 2) total2[r] = from.first ? _mm512_loadu_ps(before + PANEL) : _mm512_setzero_ps();
    }
    for (int64_t g = 0; g < groups; g++, x_scale += high, x_sum += high) {
        __m512i sum[DIGIT_ROWS / 2], sum2[DIGIT_ROWS / 2];
        for (int r = 0; r < rows; r++)
            sum2[r] = sum[r] = begins ? _mm512_cvttps_epi32(_mm512_set1_ps(x_sum[r])) : _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < words; i++, x += high, w++, w2++) {
            const __m512i b = *w, b2 = *w2;
            for (int r = 0; r < rows; r++) {
                const __m512i a = _mm512_set1_epi32(x[r]);
                sum[r] = bytes ? _mm512_dpbusd_epi32(sum[r], b, a) : _mm512_dpwssd_epi32(sum[r], a, b);
                if (panels == 2)
                    sum2[r] = bytes ? _mm512_dpbusd_epi32(sum2[r], b2, a) : _mm512_dpwssd_epi32(sum2[r], a, b2);
            }
        }
        add_group(rows, by->scale[0][g], has_least ? by->least[0][g] : 0, x_scale, x_sum, sum, total);
        if (panels == 2)
            add_group(rows, by->scale[1][g], has_least ? by->least[1][g] : 0, x_scale, x_sum, sum2, total2);
    }
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(to.first + r * to.stride, total[r]);
        if (panels == 2) _mm512_storeu_ps(to.first + r * to.stride + PANEL, total2[r]);
    }
}

// A block's products with all rows: the groups from `first` to `last` of some panels, from `panel` on. `sums` has what came
// before, and takes what is not whole yet. Two panels that begin at `ahead` are asked for meanwhile, evenly, for of lines that
// are asked for at once a core forgets most.
INLINE void all_tiles(const Product *p, const int panels, const int bits, const int means, const int group,
                      int64_t panel, int64_t first, int64_t last, const Block *by, float *sums, const uint8_t *ahead) {
    const int64_t words = group / (AS_BYTES(bits, means, group) ? 4 : 2), columns = p->panels * PANEL;
    const int64_t bytes = group * PANEL * bits / 8, lines = (last - first) * bytes / 64;
    const int most = MANY_HIGH(bits, means, group);
    for (int64_t row = 0, high, line = 0; row < p->rows; row += high) {
        high = tile_rows(p->rows - row, 2 * most);
        const int64_t at = row * p->groups + first * high;
        for (; line < lines * (row + high) / p->rows; line++)
            for (int n = 0; n < 2; n++)
                _mm_prefetch((const char *)ahead + n * p->groups * bytes + line * 64, _MM_HINT_T1);
        for (int64_t r = 0, rows; r < high; r += rows, sums += rows * 2 * PANEL) {
            rows = tile_rows(high - r, most);
            const Sums none = {0, 0}, own = {sums, 2 * PANEL};
            const Sums out = {p->out + (row + r) * columns + panel * PANEL, columns};
            const Sums from = first == 0 ? none : own, to = last == p->groups ? out : own;
#define TILE(R)                                                                                                        \
    case R:                                                                                                            \
        many_tile(p, R, panels, bits, means, group, high, last - first, p->x + at * words + r, p->x_scale + at + r,    \
                  p->x_sum + at + r, by, from, to);                                                                    \
        break;
            switch (rows) { TILE(1) TILE(2) TILE(3) TILE(4) }
            if (most > 4) switch (rows) {
                    TILE(5) TILE(6)
                }
#undef TILE
        }
    }
}

// Panels from `first` to `last`, up to `TOGETHER` of them, of up to `PART_ROWS` rows.
INLINE void panels_of_many_rows(const int bits, const int means, const int group, const Product *p, int64_t first,
                                int64_t last) {
    const int64_t block = MANY_INPUTS(bits, means, group) / group;
    float sums[TOGETHER / 2][PART_ROWS * 2 * PANEL] __attribute__((aligned(64)));
    Block by;
    for (int64_t start = 0; start < p->groups; start += block) {
        const int64_t end = start + block < p->groups ? start + block : p->groups;
        for (int64_t panel = first; panel < last; panel += 2) {
            const int panels = last - panel < 2 ? 1 : 2;
            const uint8_t *ahead = next_weights(p, bits, group, panel + panels - 1, start, end, first, last);
            float *own = sums[(panel - first) / 2];
            for (int n = 0; n < panels; n++) unpack(p, bits, means, group, panel + n, start, end, n, &by);
            if (panels == 2) all_tiles(p, 2, bits, means, group, panel, start, end, &by, own, ahead);
            else all_tiles(p, 1, bits, means, group, panel, start, end, &by, own, ahead);
        }
    }
}
