// Queries times keys, and weights times values, of formats that become fp32: where they are multiplied, if few queries
// look at them, or before that, once for all. Both have the same bits: what a number becomes is exact, or computed alike.

#pragma once

#include "attention.h"

#define FEW                                                                                                            \
    4  // rows for which it costs less to make numbers fp32 each time they are loaded than to store and load them

INLINE __m256i halves_of_float8(__m256i wide) {
    const __m256i size = _mm256_set1_epi16(0x7f);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(wide, size), size);
    return _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff)), nan);
}

// `count` (8 or 16) numbers of a vector from number i on, as fp32. `d` is what int4 is grouped by.
INLINE void load(const int format, const int count, Vector v, int64_t i, int64_t d, __m256 *to) {
    if (format == FP8) {
        const uint8_t *from = (const uint8_t *)v.numbers + i;
        const __m128i codes =
            count == 16 ? _mm_loadu_si128((const __m128i *)from) : _mm_loadl_epi64((const __m128i *)from);
        const __m256i half = halves_of_float8(_mm256_cvtepi8_epi16(codes));
        to[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
        if (count == 16) to[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
        return;
    }
    for (int n = 0; n < count / 8; n++) {
        const int64_t at = i + 8 * n;
        if (format == FP32) to[n] = _mm256_loadu_ps((const float *)v.numbers + at);
        else if (format == INT4) {
            const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), digit = _mm256_set1_epi32(15);
            const float *step = v.constants + (d % 32 ? 0 : at / 32);
            int32_t eight;
            memcpy(&eight, (const uint8_t *)v.numbers + at / 2, sizeof eight);
            const __m256i wide = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(eight), shifts), digit);
            const __m256 low = _mm256_broadcast_ss(step + (d % 32 ? 1 : d / 32));
            to[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), _mm256_broadcast_ss(step), low);
        } else {
            const __m128i raw = _mm_loadu_si128((const __m128i *)((const uint16_t *)v.numbers + at));
            const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16);
            to[n] = format == BF16 ? _mm256_castsi256_ps(wide) : _mm256_cvtph_ps(raw);
        }
    }
}

// `keys` vectors as fp32, to `room`.
INLINE void make_plain(const int format, Vector first, int64_t d, int64_t keys, float *room) {
    for (int64_t key = 0; key < keys; key++) {
        const Vector v = vector(format, first, key, d);
        __m256 numbers[2];
        int64_t i = 0;
        for (; i + 16 <= d; i += 16) {
            load(format, 16, v, i, d, numbers);
            _mm256_storeu_ps(room + key * d + i, numbers[0]);
            _mm256_storeu_ps(room + key * d + i + 8, numbers[1]);
        }
        if (i < d) {
            load(format, 8, v, i, d, numbers);
            _mm256_storeu_ps(room + key * d + i, numbers[0]);
        }
    }
}

INLINE void score_step(const int format, const int rows, const int keys, const int count, const float *q, Vector k,
                       int64_t i, int64_t d, __m256 sum[QUERIES][KEYS]) {
    __m256 query[QUERIES][2];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < count / 8; n++) query[r][n] = _mm256_loadu_ps(q + r * d + i + 8 * n);
    for (int key = 0; key < keys; key++) {
        __m256 numbers[2];
        load(format, count, vector(format, k, key, d), i, d, numbers);
        for (int n = 0; n < count / 8; n++)
            for (int r = 0; r < rows; r++) sum[r][key] = _mm256_fmadd_ps(numbers[n], query[r][n], sum[r][key]);
    }
}

INLINE void score_tile(const int format, const int rows, const int keys, const float *q, Vector k, int64_t d, float *s,
                       int64_t width) {
    __m256 sum[QUERIES][KEYS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < KEYS; n++) sum[r][n] = _mm256_setzero_ps();
    int64_t i = 0;
    if (format == FP8)
        for (; i + 16 <= d; i += 16) score_step(format, rows, keys, 16, q, k, i, d, sum);
    for (; i < d; i += 8) score_step(format, rows, keys, 8, q, k, i, d, sum);
    for (int r = 0; r < rows; r++) {
        const __m128 scores = four_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        if (keys == KEYS) _mm_storeu_ps(s + r * width, scores);
        else s[r * width] = _mm_cvtss_f32(scores);
    }
}

// q [rows, d], s [rows, width]. What will be read next is asked for in passing.
INLINE void score_rows(const int format, const int rows, const float *q, Vector k, int64_t d, int64_t keys, float *s,
                       int64_t width, Ahead *ahead) {
    int64_t key = 0;
    for (; key + KEYS <= keys; key += KEYS) {
        ask_for(ahead);
        score_tile(format, rows, KEYS, q, vector(format, k, key, d), d, s + key, width);
    }
    for (; key < keys; key++) score_tile(format, rows, 1, q, vector(format, k, key, d), d, s + key, width);
}

// o [rows, d] += p [rows, keys] times `vectors` times 8 columns of the values from column i on.
INLINE void output_tile(const int format, const int rows, const int vectors, const float *p, int64_t width, Vector v,
                        int64_t i, int64_t d, int64_t keys, float *o, Ahead *ahead) {
    __m256 sum[OUTPUTS][COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) sum[r][n] = _mm256_loadu_ps(o + r * d + i + 8 * n);
    for (int64_t key = 0; key < keys; key++) {
        const Vector value = vector(format, v, key, d);
        if (key % KEYS == 0) ask_for(ahead);
        for (int n = 0; n < vectors; n += 2) {
            __m256 numbers[2];
            load(format, vectors > 1 ? 16 : 8, value, i + 8 * n, d, numbers);
            for (int r = 0; r < rows; r++) {
                const __m256 weight = _mm256_broadcast_ss(p + r * width + key);
                sum[r][n] = _mm256_fmadd_ps(weight, numbers[0], sum[r][n]);
                if (vectors > 1) sum[r][n + 1] = _mm256_fmadd_ps(weight, numbers[1], sum[r][n + 1]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) _mm256_storeu_ps(o + r * d + i + 8 * n, sum[r][n]);
}

// As many columns at once as hide what an addition waits for.
INLINE void output_rows(const int format, const int rows, const float *p, int64_t width, Vector v, int64_t d,
                        int64_t columns, int64_t keys, float *o, Ahead *ahead) {
    int64_t i = 0;
    if (rows == 1)
        for (; i + 64 <= columns; i += 64) output_tile(format, rows, 8, p, width, v, i, d, keys, o, ahead);
    if (rows <= 3)
        for (; i + 32 <= columns; i += 32) output_tile(format, rows, 4, p, width, v, i, d, keys, o, ahead);
    for (; i + 16 <= columns; i += 16) output_tile(format, rows, 2, p, width, v, i, d, keys, o, ahead);
    if (i < columns) output_tile(format, rows, 1, p, width, v, i, d, keys, o, ahead);
}

// The same for any number of rows.
INLINE void all_scores(const int format, const float *q, Vector k, int64_t d, int64_t rows, int64_t keys, float *s,
                       int64_t width, Ahead *ahead){
#define CALL(R) score_rows(format, R, q + row * d, k, d, keys, s + row * width, width, ahead)
    BY_ROWS(rows, 3, CALL)
#undef CALL
}

INLINE void all_outputs(const int format, const float *p, int64_t width, Vector v, int64_t d, int64_t columns,
                        int64_t rows, int64_t keys, float *o, Ahead *ahead) {
#define CALL(R) output_rows(format, R, p + row * width, width, v, d, columns, keys, o + row * d, ahead)
    BY_ROWS(rows, 6, CALL)
#undef CALL
}

typedef struct {
    void (*scores)(const float *q, Vector k, int64_t d, int64_t rows, int64_t keys, float *s, int64_t width, Ahead *);
    void (*outputs)(const float *p, int64_t width, Vector v, int64_t d, int64_t columns, int64_t rows, int64_t keys,
                    float *o, Ahead *);
    void (*make_plain)(Vector first, int64_t d, int64_t keys, float *room);
} Floats;

#define FLOATS(NAME, FORMAT)                                                                                           \
    static void scores_of_##NAME(const float *q, Vector k, int64_t d, int64_t rows, int64_t keys, float *s,            \
                                 int64_t width, Ahead *ahead) {                                                        \
        all_scores(FORMAT, q, k, d, rows, keys, s, width, ahead);                                                      \
    }                                                                                                                  \
    static void outputs_of_##NAME(const float *p, int64_t width, Vector v, int64_t d, int64_t columns, int64_t rows,   \
                                  int64_t keys, float *o, Ahead *ahead) {                                              \
        all_outputs(FORMAT, p, width, v, d, columns, rows, keys, o, ahead);                                            \
    }                                                                                                                  \
    static void make_plain_of_##NAME(Vector first, int64_t d, int64_t keys, float *room) {                             \
        make_plain(FORMAT, first, d, keys, room);                                                                      \
    }                                                                                                                  \
    static const Floats NAME = {scores_of_##NAME, outputs_of_##NAME, make_plain_of_##NAME};

FLOATS(fp32, FP32)
FLOATS(bf16, BF16)
FLOATS(fp16, FP16)
FLOATS(fp8, FP8)
FLOATS(int4, INT4)
