// Queries times keys, and weights times values, of formats that become fp32, by AVX-512: as in attention_floats.h, 32
// numbers at once, of fp8 64. Those of bf16 and int4 come as 16 whose number is even and 16 whose number is odd, for two
// lie in a word or a byte, and those of fp8 in an order of their own; queries and what is added up have their order.

#pragma once

#include "attention_wide.h"

#define UNIT_OF 32  // numbers
#define FEW_WIDE 8  // as FEW
#define PLAIN (-1)  // fp32 in that order, filled up to whole units
#define WIDE_QUERIES 4
#define WIDE_OUTPUTS 6
#define WIDE_COLUMNS 8  // vectors at most
#define MOST_VECTORS 4  // that are loaded at once

INLINE int in_twos(const int format) { return format == BF16 || format == INT4; }

// Vectors that are loaded at once, and numbers.
INLINE int vectors_of(const int format) { return format == FP8 ? 4 : 2; }
INLINE int64_t numbers_at_once(const int format) { return 16 * vectors_of(format); }

// Where number i of a vector stands.
INLINE int64_t placed(const int format, int64_t i) {
    if (in_twos(format)) return i / 32 * 32 + i % 2 * 16 + i % 32 / 2;
    return format == FP8 ? i / 64 * 64 + i % 16 / 8 * 32 + i % 2 * 16 + i % 64 / 16 * 4 + i % 8 / 2 : i;
}

// Two of bf16 in each lane become two vectors.
INLINE void widen_twos(__m512i twos, __m512 to[2]) {
    to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(twos, 16));
    to[1] = _mm512_castsi512_ps(_mm512_and_si512(twos, _mm512_set1_epi32((int)0xffff0000u)));
}

// 64 numbers of e4m3 are those of bf16 that two tables hold the bytes of (attention_wide_fp8.c).
#ifdef FLOAT8_TABLES
INLINE void load_float8(const uint8_t *from, __mmask64 mask, const int full, __m512 to[4]) {
    const __m512i codes = full ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(mask, from);
    const __m512i *low = (const __m512i *)FLOAT8_TABLES[0], *high = (const __m512i *)FLOAT8_TABLES[1];
    const __m512i lows = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i highs = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i all = _mm512_ternarylogic_epi32(highs, codes, _mm512_set1_epi8((char)0x80), 0xf8);  // a | b & c
    widen_twos(_mm512_unpacklo_epi8(lows, all), to);
    widen_twos(_mm512_unpackhi_epi8(lows, all), to + 2);
}
#else
INLINE void load_float8(const uint8_t *from, __mmask64 mask, const int full, __m512 to[4]) {
    (void)from, (void)mask, (void)full, (void)to;
}
#endif

// So many numbers of a vector from number i on, as fp32. `full`: it has as many; else 0 follows.
INLINE void load_unit(const int format, const int full, Vector v, int64_t i, int64_t d, __m512 to[MOST_VECTORS]) {
    const __mmask32 mask = full ? ~(__mmask32)0 : first_of(d - i);
    if (format == PLAIN || (format == FP32 && full)) {
        to[0] = _mm512_loadu_ps((const float *)v.numbers + i);
        to[1] = _mm512_loadu_ps((const float *)v.numbers + i + 16);
    } else if (format == FP32) {
        to[0] = _mm512_maskz_loadu_ps((__mmask16)mask, (const float *)v.numbers + i);
        to[1] = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), (const float *)v.numbers + i + 16);
    } else if (format == FP8) {
        load_float8((const uint8_t *)v.numbers + i, full ? ~(__mmask64)0 : ((__mmask64)1 << (d - i)) - 1, full, to);
    } else if (format == INT4) {
        const uint8_t *from = (const uint8_t *)v.numbers + i / 2;
        const __m128i codes = full ? _mm_loadu_si128((const __m128i *)from)
                                   : _mm_maskz_loadu_epi8((__mmask16)first_of((d - i) / 2), from);
        const __m512 digits = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i wide = _mm512_cvtepu8_epi32(codes);
        const float *by = v.constants + (d % 32 ? 0 : i / 32);
        const __m512 step = _mm512_set1_ps(by[0]), low = _mm512_set1_ps(by[d % 32 ? 1 : d / 32]);
        to[0] = _mm512_fmadd_ps(_mm512_permutexvar_ps(wide, digits), step, low);
        to[1] = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), digits), step, low);
    } else {
        const uint16_t *from = (const uint16_t *)v.numbers + i;
        const __m512i raw = full ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(mask, from);
        if (format == BF16) widen_twos(raw, to);
        else {
            to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(raw));
            to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(raw, 1));
        }
    }
}

INLINE Vector wide_vector(const int format, Vector first, int64_t n, int64_t d) {
    if (format != PLAIN) return vector(format, first, n, d);
    const Vector v = {(const float *)first.numbers + n * wide_of(d), 0};
    return v;
}

// `keys` vectors as fp32, to `room`.
INLINE void make_units(const int format, Vector first, int64_t d, int64_t keys, float *room) {
    const int64_t step = numbers_at_once(format);
    for (int64_t key = 0; key < keys; key++, room += wide_of(d)) {
        const Vector v = vector(format, first, key, d);
        for (int64_t i = 0; i < d; i += step) {
            __m512 numbers[MOST_VECTORS];
            if (i + step <= d) load_unit(format, 1, v, i, d, numbers);
            else load_unit(format, 0, v, i, d, numbers);
            for (int n = 0; n < vectors_of(format); n++) _mm512_store_ps(room + i + 16 * n, numbers[n]);
        }
    }
}

INLINE void score_unit(const int format, const int full, const int rows, const int keys, const float *q, Vector k,
                       int64_t i, int64_t d, __m512 sum[WIDE_QUERIES][KEYS]) {
    const int vectors = vectors_of(format);
    __m512 query[WIDE_QUERIES][MOST_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) query[r][n] = _mm512_load_ps(q + r * wide_of(d) + i + 16 * n);
    for (int key = 0; key < keys; key++) {
        __m512 numbers[MOST_VECTORS];
        load_unit(format, full, wide_vector(format, k, key, d), i, d, numbers);
        for (int n = 0; n < vectors; n++)
            for (int r = 0; r < rows; r++) sum[r][key] = _mm512_fmadd_ps(numbers[n], query[r][n], sum[r][key]);
    }
}

INLINE void score_units(const int format, const int rows, const int keys, const float *q, Vector k, int64_t d, float *s,
                        int64_t width) {
    __m512 sum[WIDE_QUERIES][KEYS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < KEYS; n++) sum[r][n] = _mm512_setzero_ps();
    const int64_t step = numbers_at_once(format);
    int64_t i = 0;
    for (; i + step <= d; i += step) score_unit(format, 1, rows, keys, q, k, i, d, sum);
    if (i < d) score_unit(format, 0, rows, keys, q, k, i, d, sum);
    for (int r = 0; r < rows; r++) {
        const __m128 scores = wide_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        if (keys == KEYS) _mm_storeu_ps(s + r * width, scores);
        else s[r * width] = _mm_cvtss_f32(scores);
    }
}

// q [rows, wide], s [rows, width].
INLINE void wide_score_rows(const int format, const int rows, const float *q, Vector k, int64_t d, int64_t keys,
                            float *s, int64_t width, Soon *soon) {
    int64_t key = 0;
    for (; key + KEYS <= keys; key += KEYS) {
        ask_soon(soon);
        score_units(format, rows, KEYS, q, wide_vector(format, k, key, d), d, s + key, width);
    }
    for (; key < keys; key++) score_units(format, rows, 1, q, wide_vector(format, k, key, d), d, s + key, width);
}

// o [rows, wide] += p [rows, keys] times `vectors` vectors of the values from number i on.
INLINE void output_units(const int format, const int full, const int rows, const int vectors, const float *p,
                         int64_t width, Vector v, int64_t i, int64_t d, int64_t keys, float *o, Soon *soon) {
    __m512 sum[WIDE_OUTPUTS][WIDE_COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) sum[r][n] = _mm512_load_ps(o + r * wide_of(d) + i + 16 * n);
    for (int64_t key = 0; key < keys; key++) {
        const Vector value = wide_vector(format, v, key, d);
        if (key % KEYS == 0) ask_soon(soon);
        for (int n = 0; n < vectors; n += vectors_of(format)) {
            __m512 numbers[MOST_VECTORS];
            load_unit(format, full, value, i + 16 * n, d, numbers);
            for (int r = 0; r < rows; r++) {
                const __m512 weight = _mm512_set1_ps(p[r * width + key]);
                for (int part = 0; part < vectors_of(format); part++)
                    sum[r][n + part] = _mm512_fmadd_ps(weight, numbers[part], sum[r][n + part]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) _mm512_store_ps(o + r * wide_of(d) + i + 16 * n, sum[r][n]);
}

// Columns that are not asked for, of those at once with one that is, are left out behind.
INLINE void wide_output_rows(const int format, const int rows, const float *p, int64_t width, Vector v, int64_t d,
                             int64_t columns, int64_t keys, float *o, Soon *soon) {
    int64_t i = 0;
    const int64_t step = numbers_at_once(format), units = whole(columns, step), most = units < d ? units : d;
    if (rows <= 3)
        for (; i + 128 <= most; i += 128) output_units(format, 1, rows, 8, p, width, v, i, d, keys, o, soon);
    for (; i + 64 <= most; i += 64) output_units(format, 1, rows, 4, p, width, v, i, d, keys, o, soon);
    if (step == 32)
        for (; i + 32 <= most; i += 32) output_units(format, 1, rows, 2, p, width, v, i, d, keys, o, soon);
    if (i < most) output_units(format, 0, rows, vectors_of(format), p, width, v, i, d, keys, o, soon);
}

typedef struct {
    void (*scores)(const float *q, Vector k, int64_t d, int64_t rows, int64_t keys, float *s, int64_t width, Soon *);
    void (*outputs)(const float *p, int64_t width, Vector v, int64_t d, int64_t columns, int64_t rows, int64_t keys,
                    float *o, Soon *);
    void (*make_plain)(Vector first, int64_t d, int64_t keys, float *room);
} WideFloats;

extern const WideFloats wide_attention_fp8;  // where its instructions are (attention_wide_fp8.c)

// With `KEPT`: static, or nothing.
#define WIDE_FLOATS(NAME, FORMAT)                                                                                      \
    static void wide_attention_scores_##NAME(const float *q, Vector k, int64_t d, int64_t rows, int64_t keys,          \
                                             float *s, int64_t width, Soon *soon) {                                    \
        BY_WIDE_ROWS(rows, 4, WIDE_SCORES, FORMAT)                                                                     \
    }                                                                                                                  \
    static void wide_attention_outputs_##NAME(const float *p, int64_t width, Vector v, int64_t d, int64_t columns,     \
                                              int64_t rows, int64_t keys, float *o, Soon *soon) {                      \
        BY_WIDE_ROWS(rows, 6, WIDE_SUMS, FORMAT)                                                                       \
    }                                                                                                                  \
    static void wide_attention_plain_##NAME(Vector first, int64_t d, int64_t keys, float *room) {                      \
        make_units(FORMAT, first, d, keys, room);                                                                      \
    }                                                                                                                  \
    KEPT const WideFloats wide_attention_##NAME = {wide_attention_scores_##NAME, wide_attention_outputs_##NAME,        \
                                                   wide_attention_plain_##NAME};
#define WIDE_SCORES(R, FORMAT)                                                                                         \
    wide_score_rows(FORMAT, R, q + row * wide_of(d), k, d, keys, s + row * width, width, soon)
#define WIDE_SUMS(R, FORMAT)                                                                                           \
    wide_output_rows(FORMAT, R, p + row * width, width, v, d, columns, keys, o + row * wide_of(d), soon)
