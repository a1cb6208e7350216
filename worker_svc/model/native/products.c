// Products of activations with stored weights, for x86-64 with AVX2, FMA and F16C.
//
// Every output number is computed by the same instructions in the same order whatever the number of rows, columns and
// threads: a tile of 4 rows differs from 4 tiles of one row only in how often a weight is loaded.
//
// Quantized: activations come as int8 in groups of G along the input dimension, with one scale a group and row. Sums
// within a group are exact integers; over the groups
//
//     out = sum_g cvt(sum_i w_i x_i) * (weight scale_g * activation scale_g)  +  sum_g weight minimum_g * sum_i x_i
//
// int8 x int8 goes through |w| (unsigned) times sign(w) x: 128 * 127 * 2 fits into the 16 bits of vpmaddubsw, so nothing
// saturates. int4 is unsigned anyway.
//
// Half precision: weights lie in panels [out / 16][in][16]; a panel's 16 sums grow along the input dimension, in fp32.

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define MAX_GROUPS 8192
#define COLUMNS 32    // that a thread takes at once: their weights stay in the second cache for all rows
#define ROWS 4        // of a quantized tile
#define HALF_ROWS 6   // of a half-precision tile: 12 sums in 16 registers
#define HALF_BLOCK 512 // input numbers between two looks at the output: a panel's part stays in the first cache

INLINE float add_up(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// ---------------------------------------------------------------------------------------------------- activations

// x [rows, k] -> q [rows, groups * group] int8, scale and sum [rows, groups]. What is not finite makes its scale NaN.
void tandem_quantize_rows(const float *x, int64_t rows, int64_t k, int64_t groups, int64_t group, int8_t *q,
                          float *scale, float *sum, int threads) {
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), ones = _mm256_set1_epi16(1);
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * k > 65536)
    for (int64_t place = 0; place < rows * groups; place++) {
        const int64_t row = place / groups, first = place % groups * group;
        const float *from = x + row * k + first;
        float tail[128];
        if (first + group > k) {
            memset(tail, 0, sizeof tail);
            if (first < k) memcpy(tail, from, (size_t)(k - first) * sizeof(float));
            from = tail;
        }
        __m256 largest = _mm256_setzero_ps(), broken = _mm256_setzero_ps();
        for (int64_t i = 0; i < group; i += 8) {
            const __m256 v = _mm256_loadu_ps(from + i);
            largest = _mm256_max_ps(largest, _mm256_and_ps(v, no_sign));
            broken = _mm256_fmadd_ps(v, _mm256_setzero_ps(), broken);
        }
        float lanes[8], most = 0;
        _mm256_storeu_ps(lanes, largest);
        for (int i = 0; i < 8; i++) most = lanes[i] > most ? lanes[i] : most;
        const float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
        const __m256 factor = _mm256_set1_ps(inverse);
        __m256i total = _mm256_setzero_si256();
        for (int64_t i = 0; i < group; i += 32) {
            const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i), factor));
            const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i + 8), factor));
            const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i + 16), factor));
            const __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i + 24), factor));
            const __m256i ab = _mm256_packs_epi32(a, b), cd = _mm256_packs_epi32(c, d);
            total = _mm256_add_epi32(total, _mm256_madd_epi16(_mm256_add_epi16(ab, cd), ones));
            const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
            _mm256_storeu_si256((__m256i *)(q + row * groups * group + first + i), packed);
        }
        int32_t parts[8], whole = 0;
        _mm256_storeu_si256((__m256i *)parts, total);
        for (int i = 0; i < 8; i++) whole += parts[i];
        scale[place] = most / 127.0f + add_up(broken);
        sum[place] = (float)whole * scale[place];
    }
}

// ---------------------------------------------------------------------------------------------------- quantized weights

// `groups` numbers as floats: fp16 (half = 1) or fp32.
INLINE const float *as_floats(const void *numbers, int64_t first, int64_t groups, int half, float *room) {
    if (!half) return (const float *)numbers + first;
    const uint16_t *from = (const uint16_t *)numbers + first;
    int64_t i = 0;
    for (; i + 8 <= groups; i += 8)
        _mm256_storeu_ps(room + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < groups; i++) room[i] = _cvtsh_ss(from[i]);
    return room;
}

// One column and `rows` rows; `per_channel`: one weight scale for all groups.
INLINE void int8_tile(const int rows, const int group, const int8_t *w, const float *scale, int per_channel,
                      const int8_t *x, const float *x_scale, int64_t groups, float *out, int64_t columns) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int64_t width = groups * group;
    __m256 total[ROWS];
    for (int r = 0; r < rows; r++) total[r] = _mm256_setzero_ps();
    for (int64_t g = 0; g < groups; g++) {
        __m256i sum[ROWS];
        for (int r = 0; r < rows; r++) sum[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int i = 0; i < group; i += 32) {
            const __m256i b = _mm256_loadu_si256((const __m256i *)(w + g * group + i)), size = _mm256_abs_epi8(b);
            for (int r = 0; r < rows; r++) {
                const __m256i a = _mm256_loadu_si256((const __m256i *)(x + r * width + g * group + i));
                const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(a, b));
                sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, ones));
            }
        }
        const float weight_scale = per_channel ? scale[0] : scale[g];
        for (int r = 0; r < rows; r++)
            total[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), _mm256_set1_ps(weight_scale * x_scale[r * groups + g]),
                                       total[r]);
    }
    for (int r = 0; r < rows; r++) out[r * columns] = add_up(total[r]);
}

// Byte i of a 32-byte chunk holds number i in its low and number i + 32 in its high half.
INLINE void int4_tile(const int rows, const int group, const uint8_t *w, const float *scale, const float *least,
                      const int8_t *x, const float *x_scale, const float *x_sum, int64_t groups, float *out,
                      int64_t columns) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    const int64_t width = groups * group;
    __m256 total[ROWS];
    __m128 offset[ROWS];
    for (int r = 0; r < rows; r++) total[r] = _mm256_setzero_ps(), offset[r] = _mm_setzero_ps();
    const int step = group < 64 ? 64 / group : 1;  // groups that a turn finishes
    for (int64_t g = 0; g < groups; g += step) {
        __m256i pairs[2][ROWS];  // of one group each where groups are short, else of the whole group in [0]
        const uint8_t *from = w + g * group / 2;
        const int8_t *with = x + g * group;
#pragma GCC unroll 2
        for (int i = 0; i < group * step; i += 64) {
            const __m256i b = _mm256_loadu_si256((const __m256i *)(from + i / 2));
            const __m256i b0 = _mm256_and_si256(b, low), b1 = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
            for (int r = 0; r < rows; r++) {
                const __m256i p0 = _mm256_maddubs_epi16(b0, _mm256_loadu_si256((const __m256i *)(with + r * width + i)));
                const __m256i p1 = _mm256_maddubs_epi16(b1, _mm256_loadu_si256((const __m256i *)(with + r * width + i + 32)));
                if (step == 2) pairs[0][r] = p0, pairs[1][r] = p1;
                else if (i == 0) pairs[0][r] = _mm256_add_epi16(p0, p1);
                else pairs[0][r] = _mm256_add_epi16(pairs[0][r], _mm256_add_epi16(p0, p1));
            }
        }
        for (int s = 0; s < step; s++)
            for (int r = 0; r < rows; r++) {
                const __m256 sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs[s][r], ones));
                total[r] = _mm256_fmadd_ps(sum, _mm256_set1_ps(scale[g + s] * x_scale[r * groups + g + s]), total[r]);
                offset[r] = _mm_fmadd_ss(_mm_load_ss(least + g + s), _mm_load_ss(x_sum + r * groups + g + s), offset[r]);
            }
    }
    for (int r = 0; r < rows; r++) out[r * columns] = add_up(total[r]) + _mm_cvtss_f32(offset[r]);
}

typedef struct {
    const uint8_t *weight;  // [columns, width] int8, or [columns, width / 2] int4
    const void *scale;      // [columns, groups], or [columns] where per_channel
    const void *least;      // [columns, groups]; int4 only
    const int8_t *x;        // [rows, width]
    const float *x_scale, *x_sum;  // [rows, groups]
    float *out;             // [rows, columns]
    int64_t rows, columns, groups;
    int half, per_channel;
} Product;

INLINE void columns_of(const Product *p, const int bits, const int group, int64_t first, int64_t last) {
    float scale_room[MAX_GROUPS], least_room[MAX_GROUPS];
    const int64_t width = p->groups * group, scales = p->per_channel ? 1 : p->groups;
    for (int64_t row = 0; row < p->rows; row += ROWS)
        for (int64_t n = first; n < last; n++) {
            const float *scale = as_floats(p->scale, n * scales, scales, p->half, scale_room);
            const int8_t *x = p->x + row * width;
            const float *x_scale = p->x_scale + row * p->groups, *x_sum = p->x_sum + row * p->groups;
            float *out = p->out + row * p->columns + n;
            const int64_t rows = p->rows - row < ROWS ? p->rows - row : ROWS;
#define TILES(TILE)                                                                                                    \
    switch (rows) {                                                                                                    \
    case 1: TILE(1); break;                                                                                            \
    case 2: TILE(2); break;                                                                                            \
    case 3: TILE(3); break;                                                                                            \
    default: TILE(4);                                                                                                  \
    }
            if (bits == 8) {
                const int8_t *w = (const int8_t *)p->weight + n * width;
#define TILE(R) int8_tile(R, group, w, scale, p->per_channel, x, x_scale, p->groups, out, p->columns)
                TILES(TILE)
#undef TILE
            } else {
                const float *least = as_floats(p->least, n * p->groups, p->groups, p->half, least_room);
                const uint8_t *w = p->weight + n * width / 2;
#define TILE(R) int4_tile(R, group, w, scale, least, x, x_scale, x_sum, p->groups, out, p->columns)
                TILES(TILE)
#undef TILE
            }
        }
}

void tandem_quantized_product(int bits, const void *weight, const void *scale, const void *least, int half,
                              int per_channel, const int8_t *x, const float *x_scale, const float *x_sum, float *out,
                              int64_t rows, int64_t columns, int64_t groups, int64_t group, int threads) {
    const Product p = {weight, scale, least, x, x_scale, x_sum, out, rows, columns, groups, half, per_channel};
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < columns; first += COLUMNS) {
        const int64_t last = first + COLUMNS < columns ? first + COLUMNS : columns;
        switch (bits * 1000 + group) {
        case 8032: columns_of(&p, 8, 32, first, last); break;
        case 8064: columns_of(&p, 8, 64, first, last); break;
        case 8128: columns_of(&p, 8, 128, first, last); break;
        case 4032: columns_of(&p, 4, 32, first, last); break;
        case 4064: columns_of(&p, 4, 64, first, last); break;
        case 4128: columns_of(&p, 4, 128, first, last); break;
        }
    }
}

// ---------------------------------------------------------------------------------------------------- half precision

INLINE __m256 widened(const uint16_t *from, const int bf16) {
    const __m128i raw = _mm_loadu_si128((const __m128i *)from);
    return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16)) : _mm256_cvtph_ps(raw);
}

INLINE void half_tile(const int rows, const int bf16, const uint16_t *w, const float *x, int64_t k, int64_t length,
                      float *out, int64_t width, int begins) {
    __m256 sum[HALF_ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) sum[r][h] = begins ? _mm256_setzero_ps() : _mm256_loadu_ps(out + r * width + 8 * h);
    for (int64_t i = 0; i < length; i++) {
        const __m256 b0 = widened(w + 16 * i, bf16), b1 = widened(w + 16 * i + 8, bf16);
        for (int r = 0; r < rows; r++) {
            const __m256 a = _mm256_broadcast_ss(x + r * k + i);
            sum[r][0] = _mm256_fmadd_ps(a, b0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(a, b1, sum[r][1]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + r * width + 8 * h, sum[r][h]);
}

INLINE void half_panel(const int bf16, const uint16_t *w, const float *x, float *out, int64_t rows, int64_t k,
                       int64_t width) {
    for (int64_t start = 0; start < k; start += HALF_BLOCK) {
        const int64_t length = k - start < HALF_BLOCK ? k - start : HALF_BLOCK;
        for (int64_t row = 0; row < rows; row += HALF_ROWS) {
#define TILE(R) half_tile(R, bf16, w + 16 * start, x + row * k + start, k, length, out + row * width, width, start == 0)
            switch (rows - row) {
            case 1: TILE(1); break;
            case 2: TILE(2); break;
            case 3: TILE(3); break;
            case 4: TILE(4); break;
            case 5: TILE(5); break;
            default: TILE(6);
            }
#undef TILE
        }
    }
}

// weight [panels, k, 16], x [rows, k] -> out [rows, panels * 16].
void tandem_half_product(int bf16, const uint16_t *weight, const float *x, float *out, int64_t rows, int64_t k,
                         int64_t panels, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t panel = 0; panel < panels; panel++) {
        const uint16_t *w = weight + panel * k * 16;
        if (bf16) half_panel(1, w, x, out + 16 * panel, rows, k, panels * 16);
        else half_panel(0, w, x, out + 16 * panel, rows, k, panels * 16);
    }
}
