// Attention over keys and values of bf16 by vdpbf16ps: what attention.c does, with queries and weights rounded to bf16, as
// a matrix unit takes them. Scores are those of a softmax of base 2, and their sums run over 16 lanes of two numbers, a
// row's weights over two keys at once. The sum that o is divided by is that of the rounded weights.
//
// A block of many rows has its keys turned, so that 32 keys lie across two registers: its scores are added up in the same
// order as across the lanes of one register, without shuffles.

#include "attention.h"
#include "operations.h"

int wide_twos_is_there(void) { return wide_is_there() && twos_serve() && __builtin_cpu_supports("avx512dq"); }

// From here on, for such processors only. What may hold such instructions begins with `wide_attention`.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"))),      \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")
#endif

#include "attention_wide.h"

#define UNIT 32        // numbers of a register
#define TURNED 32      // keys of two registers
#define FEW_TWOS 8     // rows, as FEW
#define ROWS_TWOS 4    // whose scores are computed at once
#define OUTPUT_ROWS 6  // whose outputs are computed at once
#define LOG2_E 1.4426950408889634f

// Where a piece has its queries [rows, wide].
INLINE uint16_t *twos_of(const Piece *of) { return (uint16_t *)of->few_q; }

INLINE __m512 add_twos(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

// Numbers i to i + 31 of a vector; behind `d`, zeros.
INLINE __m512i unit_at(const uint16_t *vector, int64_t i, int64_t d) {
    return d - i >= UNIT ? _mm512_loadu_si512(vector + i) : _mm512_maskz_loadu_epi16(first_of(d - i), vector + i);
}

// 2^x of x up to 0, to 3e-6 of itself; below 2^-126 it becomes 0 as bf16. NaN stays.
INLINE __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);  // in this order of operands NaN goes through
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_set1_ps(0.0134266848f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.0522424728f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.241280198f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693044841f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, x);
}

// One row's scores s [width] become weights of bf16, in their place. Its sums o
// [wide], m and l [16] follow.
INLINE void weigh(float *s, int64_t width, Seen seen, float *o, int64_t wide, float *m, float *l) {
    if (seen.first >= seen.last) {
        memset(s, 0, (size_t)width * sizeof(uint16_t));
        return;
    }
    hide(s, width, seen);
    __m512 most = _mm512_set1_ps(*m);
    for (int64_t i = 0; i < width; i += 16) most = _mm512_max_ps(_mm512_load_ps(s + i), most);
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 shift = _mm512_set1_ps(largest);
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_load_ps(l);
    if (largest > *m) {
        const __m512 shrink = power_of_two(_mm512_set1_ps(*m - largest));
        for (int64_t i = 0; i < wide; i += 16) _mm512_store_ps(o + i, _mm512_mul_ps(_mm512_load_ps(o + i), shrink));
        sum = _mm512_mul_ps(sum, shrink);
        *m = largest;
    }
    for (int64_t i = 0; i < width; i += UNIT) {
        const __m512 low = power_of_two(_mm512_sub_ps(_mm512_load_ps(s + i), shift));
        const __m512 high = power_of_two(_mm512_sub_ps(_mm512_load_ps(s + i + 16), shift));
        const __m512i weights = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        sum = add_twos(sum, weights, ones);
        _mm512_store_si512(s + i / 2, weights);
    }
    _mm512_store_ps(l, sum);
}

static void wide_attention_twos_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, wide = wide_of(d);
    const float base = a->cap > 0 ? 1 : LOG2_E;
    const __m512 scale = _mm512_set1_ps(a->scale * base);
    uint16_t *q = twos_of(to);
    for (int64_t row = 0; row < rows; row++, q += wide) {
        const float *from = a->q + (block[0] + row / a->group) * a->stride + (head * a->group + row % a->group) * d;
        for (int64_t i = 0; i < wide; i += 16) {
            const __mmask16 there = i < d ? (__mmask16)first_of(d - i) : 0;
            const __m512 numbers = _mm512_mul_ps(_mm512_maskz_loadu_ps(there, from + i), scale);
            _mm256_store_si256((__m256i *)(q + i), (__m256i)_mm512_cvtneps_pbh(numbers));
        }
    }
}

// Scores of few rows: q [rows, wide], k [keys, d], s [rows, width].
INLINE void score_lines(const int rows, const int keys, const uint16_t *q, int64_t wide, const uint16_t *k, int64_t d,
                        float *s, int64_t width) {
    __m512 sum[ROWS_TWOS][KEYS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < KEYS; n++) sum[r][n] = _mm512_setzero_ps();
    for (int64_t i = 0; i < d; i += UNIT) {
        __m512i query[ROWS_TWOS];
        for (int r = 0; r < rows; r++) query[r] = _mm512_load_si512(q + r * wide + i);
        for (int n = 0; n < keys; n++) {
            const __m512i key = unit_at(k + n * d, i, d);
            for (int r = 0; r < rows; r++) sum[r][n] = add_twos(sum[r][n], key, query[r]);
        }
    }
    for (int r = 0; r < rows; r++) {
        const __m128 scores = wide_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        if (keys == KEYS) _mm_storeu_ps(s + r * width, scores);
        else s[r * width] = _mm_cvtss_f32(scores);
    }
}

INLINE void score_few(const int rows, const uint16_t *q, int64_t wide, const uint16_t *k, int64_t d, int64_t keys,
                      float *s, int64_t width, Soon *soon) {
    int64_t key = 0;
    for (; key + KEYS <= keys; key += KEYS) {
        ask_soon(soon);
        score_lines(rows, KEYS, q, wide, k + key * d, d, s + key, width);
    }
    for (; key < keys; key++) score_lines(rows, 1, q, wide, k + key * d, d, s + key, width);
}

// 16 registers of 16 twos become those of 16 keys each.
INLINE void turn(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// k [keys, d] becomes [whole units, 16 twos, TURNED keys, 2] for each TURNED keys.
INLINE void turn_keys(const uint16_t *k, int64_t keys, int64_t d, uint32_t *to) {
    const int64_t units = whole(d, UNIT) / UNIT;
    for (int64_t key = 0; key < keys; key += 16) {
        uint32_t *tile = to + key / TURNED * (units * 16 * TURNED) + key % TURNED;
        for (int64_t unit = 0; unit < units; unit++, tile += 16 * TURNED) {
            __m512i r[16];
            for (int n = 0; n < 16; n++)
                r[n] = key + n < keys ? unit_at(k + (key + n) * d, unit * UNIT, d) : _mm512_setzero_si512();
            turn(r);
            for (int n = 0; n < 16; n++) _mm512_store_si512(tile + n * TURNED, r[n]);
        }
    }
}

INLINE void score_lane(const int rows, const int columns, const uint32_t *q, int64_t stride, const uint32_t *tile,
                       int64_t units, __m512 sum[ROWS_TWOS][2]) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) sum[r][n] = _mm512_setzero_ps();
    for (int64_t unit = 0; unit < units; unit++, q += 16, tile += 16 * TURNED) {
        __m512i keys[2];
        for (int n = 0; n < columns; n++) keys[n] = _mm512_load_si512(tile + 16 * n);
        for (int r = 0; r < rows; r++) {
            const __m512i query = _mm512_set1_epi32((int)q[r * stride]);
            for (int n = 0; n < columns; n++) sum[r][n] = add_twos(sum[r][n], keys[n], query);
        }
    }
}

INLINE void add_lanes(const int rows, const int columns, __m512 to[ROWS_TWOS][2], __m512 from[ROWS_TWOS][2]) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) to[r][n] = _mm512_add_ps(to[r][n], from[r][n]);
}

// Scores of 16 or 32 turned keys, whose 16 sums are added up as `wide_sums` does.
INLINE void score_turned(const int rows, const int columns, const uint16_t *q, int64_t wide, const uint32_t *tile,
                         int64_t units, float *s, int64_t width) {
    const uint32_t *twos = (const uint32_t *)q;
    const int64_t stride = wide / 2;
    __m512 four[4][ROWS_TWOS][2];
    for (int64_t n = 0; n < 4; n++) {
        const uint32_t *from = twos + 4 * n, *keys = tile + 4 * n * TURNED;
        __m512 one[ROWS_TWOS][2], other[ROWS_TWOS][2], even[ROWS_TWOS][2];
        score_lane(rows, columns, from, stride, keys, units, even);
        score_lane(rows, columns, from + 2, stride, keys + 2 * TURNED, units, other);
        add_lanes(rows, columns, even, other);
        score_lane(rows, columns, from + 1, stride, keys + TURNED, units, one);
        score_lane(rows, columns, from + 3, stride, keys + 3 * TURNED, units, other);
        add_lanes(rows, columns, one, other);
        add_lanes(rows, columns, even, one);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) four[n][r][c] = even[r][c];
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const __m512 even = _mm512_add_ps(four[0][r][c], four[2][r][c]);
            const __m512 odd = _mm512_add_ps(four[1][r][c], four[3][r][c]);
            _mm512_store_ps(s + r * width + 16 * c, _mm512_add_ps(even, odd));
        }
}

#define SCORE_TURNED(R, COLUMNS, UNITS)                                                                                \
    score_turned(R, COLUMNS, q + row * wide, wide, tile, UNITS, s + row * width + key, width)
INLINE void score_many(const uint16_t *q, int64_t wide, const uint32_t *tile, int64_t d, int64_t rows, int64_t keys,
                       float *s, int64_t width) {
    const int64_t units = whole(d, UNIT) / UNIT;
    for (int64_t key = 0; key < keys; key += TURNED, tile += units * 16 * TURNED)
        if (keys - key <= 16) {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 1, units)
        } else if (units == 2) {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 2, 2)
        } else if (units == 4) {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 2, 4)
        } else {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 2, units)
        }
}

// Twos of numbers i to i + 31 of two values; of one, and zeros, where `two` is 0.
INLINE void twos_at(const uint16_t *v, const int two, int64_t i, int64_t d, __m512i to[2]) {
    const __m512i first = unit_at(v, i, d), second = two ? unit_at(v + d, i, d) : _mm512_setzero_si512();
    to[0] = _mm512_unpacklo_epi16(first, second);
    to[1] = _mm512_unpackhi_epi16(first, second);
}

// v [keys, d] becomes [pairs of keys, units, 2, 16, 2].
INLINE void pair_values(const uint16_t *v, int64_t keys, int64_t d, int64_t columns, uint32_t *to) {
    for (int64_t key = 0; key < keys; key += 2)
        for (int64_t i = 0; i < columns; i += UNIT, to += UNIT) {
            __m512i twos[2];
            if (key + 1 < keys) twos_at(v + key * d, 1, i, d, twos);
            else twos_at(v + key * d, 0, i, d, twos);
            _mm512_store_si512(to, twos[0]);
            _mm512_store_si512(to + 16, twos[1]);
        }
}

INLINE void add_pair(const int rows, const int vectors, const int paired, const int two, const uint32_t *p,
                     int64_t width, const void *from, int64_t i, int64_t d, __m512 sum[OUTPUT_ROWS][8]) {
    for (int n = 0; n < vectors; n += 2) {
        __m512i twos[2];
        if (paired)
            for (int part = 0; part < 2; part++)
                twos[part] = _mm512_load_si512((const uint32_t *)from + i + 16 * (n + part));
        else twos_at(from, two, i + 16 * n, d, twos);
        for (int r = 0; r < rows; r++) {
            const __m512i weight = _mm512_set1_epi32((int)p[r * width]);
            for (int part = 0; part < 2; part++) sum[r][n + part] = add_twos(sum[r][n + part], twos[part], weight);
        }
    }
}

// o [rows, wide] += p [rows, pairs, 2] times 16 `vectors` numbers from i on of values: `paired` ones, or v [keys, d].
INLINE void output_columns(const int rows, const int vectors, const int paired, const uint32_t *p, int64_t width,
                           const void *v, int64_t i, int64_t d, int64_t columns, int64_t keys, float *o, int64_t wide,
                           Soon *soon) {
    __m512 sum[OUTPUT_ROWS][8];
    const int64_t step = paired ? columns * 4 : d * 4;  // bytes of two keys
    const char *from = v;
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) sum[r][n] = _mm512_load_ps(o + r * wide + i + 16 * n);
    int64_t key = 0;
    for (; key + 2 <= keys; key += 2, from += step, p++) {
        if (!paired && key % KEYS == 0) ask_soon(soon);
        add_pair(rows, vectors, paired, 1, p, width, from, i, d, sum);
    }
    if (key < keys) add_pair(rows, vectors, paired, 0, p, width, from, i, d, sum);
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) _mm512_store_ps(o + r * wide + i + 16 * n, sum[r][n]);
}

INLINE void output_rows(const int rows, const int paired, const uint32_t *p, int64_t width, const void *v, int64_t d,
                        int64_t columns, int64_t keys, float *o, int64_t wide, Soon *soon) {
    int64_t i = 0;
    if (rows <= 3)
        for (; i + 128 <= columns; i += 128)
            output_columns(rows, 8, paired, p, width, v, i, d, columns, keys, o, wide, soon);
    for (; i + 64 <= columns; i += 64) output_columns(rows, 4, paired, p, width, v, i, d, columns, keys, o, wide, soon);
    if (i < columns) output_columns(rows, 2, paired, p, width, v, i, d, columns, keys, o, wide, soon);
}

#define PAIRED 4096  // numbers of values at most that are paired at once: they stay in the first cache

#define SCORE_FEW(R, VECTORS) score_few(R, q + row * wide, wide, VECTORS, d, keys, s + row * width, width, &soon)
#define OUTPUT(R, IN_PAIRS)                                                                                            \
    output_rows(R, IN_PAIRS, p + row * width, width, from, d, columns, some, of->sums.o + row * wide, wide, &soon)
static void wide_attention_twos_look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                        int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, size = a->page_size, width = whole(size, TURNED), wide = wide_of(d);
    const int64_t tokens = block[1], position = block[2], rows = tokens * a->group;
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    const int few = rows <= FEW_TWOS;
    const int64_t left = position + tokens - start, keys = left < size ? left : size;
    const int64_t looked_at = whole(keys, TURNED), columns = whole(a->value_dim, UNIT);
    const int64_t first = first_vector(a, block, kv_head, start);
    const uint16_t *q = twos_of(of), *keys_there = vectors(a, 0, first).numbers;
    const uint16_t *values_there = vectors(a, 1, first).numbers;
    float *s = room;
    uint32_t *tiles = (uint32_t *)(s + rows * width);
    Soon soon = one ? asked_soon(a, 0, first, 0, after) : asked_soon(a, 0, first, 1, first);
    if (few) {
        BY_WIDE_ROWS(rows, 4, SCORE_FEW, keys_there)
    } else {
        turn_keys(keys_there, keys, d, tiles);
        score_many(q, wide, tiles, d, rows, keys, s, width);
    }
    for (int64_t row = 0; row < rows; row++) {
        const Seen seen = seen_by(a, block, row, start, keys);
        float *row_s = s + row * width;
        if (a->cap > 0) wide_soft_cap(row_s, looked_at, a->cap, LOG2_E);
        weigh(row_s, looked_at, seen, of->sums.o + row * wide, wide, of->sums.m + row, of->sums.l + row * LANES);
    }
    if (!one) soon = asked_soon(a, 1, first, 0, after);
    const int64_t pairs = PAIRED / 2 / columns > 1 ? PAIRED / 2 / columns : 1, chunk = few ? keys : 2 * pairs;
    for (int64_t key = 0; key < keys; key += chunk) {
        const int64_t some = keys - key < chunk ? keys - key : chunk;
        const uint32_t *p = (const uint32_t *)s + key / 2;
        const void *from = values_there + key * d;
        if (few) {
            BY_WIDE_ROWS(rows, 6, OUTPUT, 0)
        } else {
            pair_values(from, some, d, columns, tiles);
            from = tiles;
            BY_WIDE_ROWS(rows, 6, OUTPUT, 1)
        }
    }
}

static void wide_attention_twos_end(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, heads = a->kv_heads * a->shares * a->group;
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t row = 0; row < rows; row++) {
        float *to = a->out + ((block[0] + row / a->group) * heads + head * a->group + row % a->group) * d;
        const float *o = of->sums.o + row * wide_of(d);
        const __m512 sums = _mm512_load_ps(of->sums.l + row * LANES);
        const __m512 all = _mm512_set1_ps(_mm_cvtss_f32(wide_sums(sums, sums, sums, sums)));
        for (int64_t i = 0; i < a->value_dim; i += UNIT) {
            const __m512 evens = _mm512_div_ps(_mm512_load_ps(o + i), all);
            const __m512 odds = _mm512_div_ps(_mm512_load_ps(o + i + 16), all);
            const __mmask32 there = first_of(a->value_dim - i);
            _mm512_mask_storeu_ps(to + i, (__mmask16)there, _mm512_permutex2var_ps(evens, low, odds));
            _mm512_mask_storeu_ps(to + i + 16, (__mmask16)(there >> 16), _mm512_permutex2var_ps(evens, high, odds));
        }
        memset(to + a->value_dim, 0, (size_t)(d - a->value_dim) * sizeof(float));
    }
}

const Way wide_attention_twos = {1 / LOG2_E, wide_of, wide_attention_twos_begin, wide_attention_twos_look_at,
                                 wide_attention_twos_end};

#ifdef __clang__
#pragma clang attribute pop
#endif
