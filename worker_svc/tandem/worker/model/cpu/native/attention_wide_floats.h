// Queries times keys, and weights times values, of formats that become fp32, by AVX-512: as in attention_floats.h, 32
// numbers at once. Those of bf16 and int4 come as 16 whose number is even and 16 whose number is odd, for two lie in a word
// or a byte; queries and what is added up have their order.

#pragma once

#include "attention.h"

#define UNIT_OF 32  // numbers
#define FEW_WIDE 8  // as FEW
#define PLAIN (-1)  // fp32 in that order, filled up to whole units
#define WIDE_QUERIES 4
#define WIDE_OUTPUTS 6
#define WIDE_UNITS 4  // at most, of one row

// What is read next is asked for into the first cache, SOON bytes before it is read: first the rest of these keys or
// values, then the beginning of those that follow. Past the other caches where nobody else looks at them in this step.
#define SOON 8192

typedef struct {
    const char *next, *end, *then, *then_end;
    int64_t step;  // bytes, those of KEYS vectors at least
    int once;
} Soon;

INLINE Soon asked_soon(const Attention *a, int which, int64_t first, int next_which, int64_t next) {
    const int64_t length = length_of(a->format, a->head_dim), bytes = a->page_size * length;
    const int64_t constants = constants_of(a->format, a->head_dim) * 4, some = bytes < SOON ? bytes : SOON;
    const char *from = (const char *)a->part[which][0] + first * length;
    const char *then = (const char *)a->part[next_which][0] + next * length;
    if (constants) ask_for_all((const char *)a->part[next_which][1] + next * constants, a->page_size * constants);
    const Soon soon = {from + some, from + bytes, then, then + some, whole(KEYS * length, 256), a->once};
    return soon;
}

INLINE void ask_soon(Soon *soon) {
    if (soon->next >= soon->end) {
        if (!soon->then) return;
        soon->next = soon->then, soon->end = soon->then_end, soon->then = 0;
    }
#define FOUR_LINES(HINT)                                                                                               \
    for (const char *at = soon->next; at < soon->next + soon->step; at += 256)                                         \
        for (int line = 0; line < 4; line++) _mm_prefetch(at + 64 * line, HINT)
    if (soon->once) FOUR_LINES(_MM_HINT_NTA);
    else FOUR_LINES(_MM_HINT_T0);
#undef FOUR_LINES
    soon->next += soon->step;
}

INLINE int in_twos(const int format) { return format == BF16 || format == INT4; }

// The first `count` of 32 bits.
INLINE __mmask32 first_of(int64_t count) { return count >= UNIT_OF ? ~(__mmask32)0 : ((__mmask32)1 << count) - 1; }

// 32 numbers of a vector from number i on, as fp32. `full`: it has as many; else 0 follows.
INLINE void load_unit(const int format, const int full, Vector v, int64_t i, int64_t d, __m512 to[2]) {
    const __mmask32 mask = full ? ~(__mmask32)0 : first_of(d - i);
    if (format == PLAIN || (format == FP32 && full)) {
        to[0] = _mm512_loadu_ps((const float *)v.numbers + i);
        to[1] = _mm512_loadu_ps((const float *)v.numbers + i + 16);
    } else if (format == FP32) {
        to[0] = _mm512_maskz_loadu_ps((__mmask16)mask, (const float *)v.numbers + i);
        to[1] = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), (const float *)v.numbers + i + 16);
    } else if (format == FP8) {
        const uint8_t *from = (const uint8_t *)v.numbers + i;
        const __m256i codes = full ? _mm256_loadu_si256((const __m256i *)from) : _mm256_maskz_loadu_epi8(mask, from);
        const __m512i wide = _mm512_cvtepi8_epi16(codes), size = _mm512_set1_epi16(0x7f);
        const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(wide, size), size);
        __m512i half = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16((short)0xbfff));
        half = _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7fff));
        to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
        to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
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
        if (format == BF16) {
            to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
            to[1] = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32((int)0xffff0000u)));
        } else {
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
    for (int64_t key = 0; key < keys; key++, room += wide_of(d)) {
        const Vector v = vector(format, first, key, d);
        for (int64_t i = 0; i < d; i += UNIT_OF) {
            __m512 numbers[2];
            if (i + UNIT_OF <= d) load_unit(format, 1, v, i, d, numbers);
            else load_unit(format, 0, v, i, d, numbers);
            _mm512_store_ps(room + i, numbers[0]);
            _mm512_store_ps(room + i + 16, numbers[1]);
        }
    }
}

// The sums of four vectors, their lanes always added in one order.
INLINE __m128 wide_sums(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(all), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1)));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE void score_unit(const int format, const int full, const int rows, const int keys, const float *q, Vector k,
                       int64_t i, int64_t d, __m512 sum[WIDE_QUERIES][KEYS]) {
    __m512 query[WIDE_QUERIES][2];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < 2; n++) query[r][n] = _mm512_load_ps(q + r * wide_of(d) + i + 16 * n);
    for (int key = 0; key < keys; key++) {
        __m512 numbers[2];
        load_unit(format, full, wide_vector(format, k, key, d), i, d, numbers);
        for (int n = 0; n < 2; n++)
            for (int r = 0; r < rows; r++) sum[r][key] = _mm512_fmadd_ps(numbers[n], query[r][n], sum[r][key]);
    }
}

INLINE void score_units(const int format, const int rows, const int keys, const float *q, Vector k, int64_t d, float *s,
                        int64_t width) {
    __m512 sum[WIDE_QUERIES][KEYS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < KEYS; n++) sum[r][n] = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + UNIT_OF <= d; i += UNIT_OF) score_unit(format, 1, rows, keys, q, k, i, d, sum);
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

// o [rows, wide] += p [rows, keys] times `units` units of the values from number i on.
INLINE void output_units(const int format, const int full, const int rows, const int units, const float *p,
                         int64_t width, Vector v, int64_t i, int64_t d, int64_t keys, float *o, Soon *soon) {
    __m512 sum[WIDE_OUTPUTS][2 * WIDE_UNITS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < 2 * units; n++) sum[r][n] = _mm512_load_ps(o + r * wide_of(d) + i + 16 * n);
    for (int64_t key = 0; key < keys; key++) {
        const Vector value = wide_vector(format, v, key, d);
        if (key % KEYS == 0) ask_soon(soon);
        for (int n = 0; n < units; n++) {
            __m512 numbers[2];
            load_unit(format, full, value, i + UNIT_OF * n, d, numbers);
            for (int r = 0; r < rows; r++) {
                const __m512 weight = _mm512_set1_ps(p[r * width + key]);
                sum[r][2 * n] = _mm512_fmadd_ps(weight, numbers[0], sum[r][2 * n]);
                sum[r][2 * n + 1] = _mm512_fmadd_ps(weight, numbers[1], sum[r][2 * n + 1]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < 2 * units; n++) _mm512_store_ps(o + r * wide_of(d) + i + 16 * n, sum[r][n]);
}

INLINE void wide_output_rows(const int format, const int rows, const float *p, int64_t width, Vector v, int64_t d,
                             int64_t columns, int64_t keys, float *o, Soon *soon) {
    int64_t i = 0;
    const int64_t units = whole(columns, UNIT_OF), most = units < d ? units : d;  // more than columns: left out later
    if (rows <= 3)
        for (; i + 4 * UNIT_OF <= most; i += 4 * UNIT_OF)
            output_units(format, 1, rows, 4, p, width, v, i, d, keys, o, soon);
    for (; i + 2 * UNIT_OF <= most; i += 2 * UNIT_OF)
        output_units(format, 1, rows, 2, p, width, v, i, d, keys, o, soon);
    for (; i + UNIT_OF <= most; i += UNIT_OF) output_units(format, 1, rows, 1, p, width, v, i, d, keys, o, soon);
    if (i < most) output_units(format, 0, rows, 1, p, width, v, i, d, keys, o, soon);
}

typedef struct {
    void (*scores)(const float *q, Vector k, int64_t d, int64_t rows, int64_t keys, float *s, int64_t width, Soon *);
    void (*outputs)(const float *p, int64_t width, Vector v, int64_t d, int64_t columns, int64_t rows, int64_t keys,
                    float *o, Soon *);
    void (*make_plain)(Vector first, int64_t d, int64_t keys, float *room);
} WideFloats;

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
    static const WideFloats wide_##NAME = {wide_attention_scores_##NAME, wide_attention_outputs_##NAME,                \
                                           wide_attention_plain_##NAME};
#define WIDE_SCORES(R, FORMAT)                                                                                         \
    wide_score_rows(FORMAT, R, q + row * wide_of(d), k, d, keys, s + row * width, width, soon)
#define WIDE_SUMS(R, FORMAT)                                                                                           \
    wide_output_rows(FORMAT, R, p + row * width, width, v, d, columns, keys, o + row * wide_of(d), soon)
