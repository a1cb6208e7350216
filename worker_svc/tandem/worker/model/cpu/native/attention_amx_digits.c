// Attention over int8 and int6 of several queries a head of keys by AMX: the same sums as by VNNI (attention_wide_digits.c), and
// the same operations on each, so the same bits.
//
// Keys are the rows of a product, where they are or, of int6, once they are bytes; its columns are the two planes of eight
// queries. Weights' planes are the rows of another, eight rows' at a time, and values its columns, four of which become tiles.
//
// What comes next is asked for as in attention_amx_few.h.

#include "amx.h"
#include "attention.h"

// From here on, for such processors only. What may hold such instructions begins with `wide_attention_amx`, or `amx`.
#ifdef WITH_AMX
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-int8"))),          \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-int8")
#endif

#define FOUR_INTO _MM_HINT_T0
#include "attention_wide_digits.h"

#define EIGHT 8               // rows, whose planes a tile has
#define LINES 16              // of a tile
#define WHOLE (LINES * TILE)  // bytes of a tile

ALONE static void amx_digits_release(void) { _tile_release(); }

ALONE static void amx_digits_shape(int64_t rows) {
    TileShapes shapes = {0};
    for (int tile = 0; tile < 8; tile++) shape_tile(&shapes, tile, LINES, TILE);
    SHAPE_TILES(shapes);
    (void)rows;
}

// What is asked for, as evenly over the time that a page takes as whole numbers allow: how often at the places that differ. It
// is as often in each round: a processor guesses a count wrong that changes.
typedef struct {
    Asks asks;
    int64_t turn, weights, planes;
} Pace;

INLINE int64_t share_of(int64_t *left, int64_t places, int64_t each) {
    if (*left < places) return each;
    *left -= places;
    return each + 1;
}

INLINE Pace pace_of(const Attention *a, int64_t after, int64_t rows, int64_t keys) {
    const Asks asks = asked_in_four(a, after);
    const int64_t parts = whole(keys, 64) / 64, eights = whole(rows, EIGHT) / EIGHT;
    const int64_t units = a->head_dim / UNIT, units_of_values = whole(a->value_dim, UNIT) / UNIT;
    const int64_t once = 4 * parts * (eights * (units + units_of_values) + units_of_values);
    const int64_t turns = 4 * parts * eights, weights = parts * whole(rows, 4), planes = parts * rows;
    const int64_t all = (2 * asks.half + asks.rest) / (2 * LINE), more = all > once ? all - once : 0;
    const int64_t each = more / (turns + weights + planes);
    int64_t left = more - each * (turns + weights + planes);
    Pace pace = {asks, 0, 0, 0};
    pace.turn = share_of(&left, turns, each);
    pace.weights = share_of(&left, weights, each);
    pace.planes = share_of(&left, planes, each);
    return pace;
}

// Queries as tiles [eights of rows][unit], four numbers a line, of 16 planes each: the lower ones of eight rows, then the
// upper ones. They take the place of the numbers that they were rounded from.
static void wide_attention_amx_digits_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group;
    wide_attention_begin_digits(a, block, head, to);
    char *at = (char *)to->q;
    for (int64_t row = 0; row < rows; row += EIGHT)
        for (int64_t unit = 0; unit < d / UNIT; unit++, at += WHOLE) {
            __m512i r[LINES];
            for (int n = 0; n < LINES; n++) {
                const int64_t of = row + n % EIGHT;
                r[n] = of < rows ? _mm512_load_si512(planes_of(to, of, d) + n / EIGHT * d + unit * UNIT)
                                 : _mm512_setzero_si512();
            }
            turn(r);
            for (int n = 0; n < LINES; n++) _mm512_store_si512(at + n * TILE, r[n]);
        }
}

// 64 digits of a vector from number i on.
INLINE __m512i signed_unit(const int format, const uint8_t *from, int64_t i, int64_t d) {
    if (format == INT8) return _mm512_loadu_si512(from + i);
    return _mm512_sub_epi8(unit_of(format, 1, from, i, d), _mm512_set1_epi8((char)zero_of(format)));
}

// to[N] += keys times queries in tile 4, of 16 keys from number 16 N on, if there are so many.
#define ADD_16(N, KEYS_TILE)                                                                                           \
    if (N < blocks) {                                                                                                  \
        ask_four(&pace->asks, 1);                                                                                      \
        _tile_loadd(KEYS_TILE, keys + N * 16 * d, d);                                                                  \
        _tile_dpbssd(N, KEYS_TILE, 4);                                                                                 \
    }

// sums [blocks][16 keys][16 planes] of up to 64 keys [64, d], over the units from `unit` to before `end` of queries.
INLINE void products_of_64(const int64_t d, const int blocks, const char *keys, const char *queries, int64_t unit,
                           int64_t end, int32_t *sums, Pace *pace) {
    _tile_zero(0);
    if (blocks > 1) _tile_zero(1);
    if (blocks > 2) _tile_zero(2);
    if (blocks > 3) _tile_zero(3);
    for (keys += unit * UNIT; unit < end; unit++, keys += UNIT) {
        _tile_loadd(4, queries + unit * WHOLE, TILE);
        ADD_16(0, 5) ADD_16(1, 6) ADD_16(2, 7) ADD_16(3, 5)
    }
    _tile_stored(0, sums, TILE);
    if (blocks > 1) _tile_stored(1, sums + 256, TILE);
    if (blocks > 2) _tile_stored(2, sums + 512, TILE);
    if (blocks > 3) _tile_stored(3, sums + 768, TILE);
}

// s [rows, width] of 16 keys and up to eight rows; `first` of their spans, and `last`.
INLINE void scores_of_16(const int32_t *sums, const float *q_step, int64_t rows, const int first, const int last,
                         __m512 k_scale, float *s, int64_t width) {
    __m512i r[EIGHT];
    for (int n = 0; n < EIGHT; n++) {
        const __m256i *one = (const __m256i *)(sums + 2 * n * LINES), *other = one + 2;
        const __m512i low = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(one)), other[0], 1);
        const __m512i high = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(one + 1)), other[1], 1);
        r[n] = joined_planes(low, high);
    }
    turn_pairs(r);
    for (int n = 0; n < EIGHT && n < rows; n++, s += width) {
        __m512 score = _mm512_cvtepi32_ps(r[n]);
        if (!first) score = _mm512_add_ps(_mm512_load_ps(s), score);
        if (last) score = _mm512_mul_ps(_mm512_mul_ps(score, k_scale), _mm512_set1_ps(q_step[n]));
        _mm512_store_ps(s, score);
    }
}

// Values of a page become tiles [unit][four][t]; behind the last one comes that again, which weighs nothing.
INLINE void make_value_tiles(const int format, const int64_t d, const Attention *a, int64_t first, int64_t keys,
                             char *to, Pace *pace) {
    const int64_t columns = whole(a->value_dim, UNIT), length = length_of(format, d);
    const uint8_t *from = (const uint8_t *)a->part[1][0] + first * length;
    for (int64_t i = 0; i < columns; i += UNIT)
        for (int64_t key = 0; key < whole(keys, 64); key += KEYS, to += 4 * TILE) {
            __m512i x[4], tile[4];
            if (key + KEYS <= keys)
                for (int64_t n = 0; n < KEYS; n++) x[n] = signed_unit(format, from + (key + n) * length, i, d);
            else
                for (int64_t n = 0; n < KEYS; n++)
                    x[n] = signed_unit(format, from + (key + n < keys ? key + n : keys - 1) * length, i, d);
            value_tiles(x, tile);
            for (int t = 0; t < 4; t++) _mm512_store_si512(to + t * TILE, tile[t]);
            if (key % 16 == 0) ask_four(&pace->asks, 1);
        }
}

// s [rows, width] of all keys of a page. While the first products are on their way, values become tiles.
INLINE void all_scores(const int format, const int64_t d, const Attention *a, const Piece *of, int64_t rows,
                       int64_t first, int64_t keys, char *tiles, char *made, float *s, int64_t width, Pace *pace) {
    const int64_t units = d / UNIT, in_span = SPAN / UNIT, length = length_of(format, d);
    const float *k_scale = (const float *)a->part[0][1] + first;
    const uint8_t *from = (const uint8_t *)a->part[0][0] + first * length;
    int32_t sums[4 * LINES * LINES] __attribute__((aligned(64)));
    for (int64_t key = 0; key < keys; key += 64, from += 64 * length) {
        const int64_t blocks = keys - key < 64 ? (keys - key + 15) / 16 : 4;
        const char *now = (const char *)from;
        if (format != INT8) {
            for (int64_t n = 0; n < 16 * blocks; n++)
                for (int64_t i = 0; i < d; i += UNIT)
                    _mm512_store_si512(made + n * d + i, signed_unit(format, from + n * length, i, d));
            now = made;
            MEMORY_IS_READ;
        }
        for (int64_t row = 0; row < rows; row += EIGHT) {
            const char *queries = (const char *)of->q + row / EIGHT * units * WHOLE;
            for (int64_t unit = 0; unit < units; unit += in_span) {
                const int64_t end = unit + in_span < units ? unit + in_span : units;
#define PRODUCTS(BLOCKS) products_of_64(d, BLOCKS, now, queries, unit, end, sums, pace)
                if (blocks == 4) PRODUCTS(4);
                else if (blocks == 3) PRODUCTS(3);
                else if (blocks == 2) PRODUCTS(2);
                else PRODUCTS(1);
#undef PRODUCTS
                MEMORY_IS_READ;
                if (key + row + unit == 0) make_value_tiles(format, d, a, first, keys, tiles, pace);
                for (int64_t n = 0; n < blocks; n++) {
                    const int64_t at = key + 16 * n;
                    const __m512 scale = _mm512_maskz_loadu_ps((__mmask16)first_of(keys - at), k_scale + at);
                    ask_four(&pace->asks, pace->turn);
                    scores_of_16(sums + n * LINES * LINES, of->q_step + row, rows - row, unit == 0, end == units, scale,
                                 s + row * width + at, width);
                }
            }
        }
    }
}

// The largest of each of four registers, by their bits: of what is not negative the larger number has the larger ones, and
// NaN the largest.
INLINE __m128 largest_of_4(const __m512i x[4]) {
    const __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    const __m512i all = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_castsi128_ps(_mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

// Scores s [rows, apart] of a page become weights, and these times the values' scales planes [rows][2][width], with zeros up to
// whole 64 keys; their steps. Sums o, m and l follow.
INLINE void weigh(const int rows, float *s, int64_t apart, int64_t keys, float *o, int64_t wide, float *m, float *l,
                  const float *v_scale, int8_t *planes, float *steps, Pace *pace) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low_byte = _mm512_set1_epi16(255), half = _mm512_set1_epi16(128);
    __m512 most[4], sum[4];
    __m512i largest[4];
    float inverse[4] __attribute__((aligned(16)));
    begin_weights(rows, s, apart, whole(keys, 16), o, wide, m, l, most, sum);
    for (int r = 0; r < 4; r++) largest[r] = _mm512_setzero_si512();
    for (int64_t i = 0; i < keys; i += 16) {
        const __m512 scale = _mm512_maskz_loadu_ps((__mmask16)first_of(keys - i), v_scale + i);
        ask_four(&pace->asks, pace->weights);
        for (int r = 0; r < rows; r++) {
            float *here = s + r * apart + i;
            const __m512 weight = power_of_two(_mm512_sub_ps(_mm512_load_ps(here), most[r]));
            const __m512 scaled = _mm512_maskz_mul_ps(that_weigh(weight), weight, scale);
            sum[r] = _mm512_add_ps(sum[r], weight);
            largest[r] = _mm512_max_epu32(_mm512_castps_si512(scaled), largest[r]);
            _mm512_store_ps(here, scaled);
        }
    }
    for (int r = 0; r < rows; r++) _mm512_store_ps(l + r * LANES, sum[r]);
    const __m128 tiny = _mm_set1_ps(TINY);  // NaN stays
    const __m128 step = _mm_max_ps(tiny, _mm_div_ps(largest_of_4(largest), _mm_set1_ps(MOST_16)));
    _mm_mask_storeu_ps(steps, (__mmask8)((1 << rows) - 1), step);
    _mm_store_ps(inverse, _mm_div_ps(_mm_set1_ps(1), step));
    for (int64_t i = whole(keys, 16); i < whole(keys, 64); i += 16)
        for (int r = 0; r < rows; r++) _mm512_store_ps(s + r * apart + i, _mm512_setzero_ps());
    for (int64_t i = 0; i < keys; i += 64)
        for (int r = 0; r < rows; r++) {
            const __m512 by = _mm512_set1_ps(inverse[r]);
            int8_t *to = planes + r * PLANES * apart + i;
            __m512i v[4];
            for (int n = 0; n < 4; n++)
                v[n] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(s + r * apart + i + 16 * n), by));
            ask_four(&pace->asks, pace->planes);
            const __m512i a = _mm512_packs_epi32(v[0], v[1]), b = _mm512_packs_epi32(v[2], v[3]);
            const __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, low_byte), _mm512_and_si512(b, low_byte));
            const __m512i high = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8),
                                                    _mm512_srai_epi16(_mm512_add_epi16(b, half), 8));
            _mm512_store_si512(to, _mm512_permutexvar_epi32(order, low));
            _mm512_store_si512(to + apart, _mm512_permutexvar_epi32(order, high));
        }
}

// o [rows, wide] += weights times a unit of a page's values, eight rows at a time.
INLINE void add_unit(const int8_t *planes, int64_t rows, int64_t keys, int64_t width, const char *tiles,
                     const float *steps, float *o, int64_t wide, Pace *pace) {
    int32_t sums[4 * LINES * LINES] __attribute__((aligned(64)));
    for (int64_t row = 0; row < rows; row += EIGHT, planes += EIGHT * PLANES * width) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t key = 0; key < keys; key += 64) {
            const char *here = tiles + key * 4 * LINES;
#define ADD_TILE(N, VALUES_TILE)                                                                                       \
    ask_four(&pace->asks, 1);                                                                                          \
    _tile_loadd(VALUES_TILE, here + N * TILE, 4 * TILE);                                                               \
    _tile_dpbssd(N, 4, VALUES_TILE);
            _tile_loadd(4, planes + key, width);
            ADD_TILE(0, 5) ADD_TILE(1, 6) ADD_TILE(2, 7) ADD_TILE(3, 5)
#undef ADD_TILE
        }
        _tile_stored(0, sums, TILE);
        _tile_stored(1, sums + 256, TILE);
        _tile_stored(2, sums + 512, TILE);
        _tile_stored(3, sums + 768, TILE);
        MEMORY_IS_READ;
        for (int64_t n = 0; n < EIGHT && row + n < rows; n++) {
            const __m512 step = _mm512_set1_ps(steps[row + n]);
            for (int t = 0; t < 4; t++) {
                const int32_t *from = sums + t * 256 + 2 * n * LINES;
                float *to = o + (row + n) * wide + t * LINES;
                const __m512i all = joined_planes(_mm512_load_si512(from), _mm512_load_si512(from + LINES));
                _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(all), step, _mm512_load_ps(to)));
            }
        }
    }
}

// How scores are computed: what is known while it is compiled stays in registers.
#define SCORES                                                                                                         \
    const Attention *a, const Piece *of, int64_t rows, int64_t first, int64_t keys, char *tiles, char *made, float *s, \
        int64_t width, Pace *pace
#define BY_TILES(NAME, FORMAT, D)                                                                                      \
    ALONE static void amx_scores_##NAME(SCORES) {                                                                      \
        all_scores(FORMAT, D, a, of, rows, first, keys, tiles, made, s, width, pace);                                  \
    }
#define BY_SIZE(NAME, FORMAT)                                                                                          \
    BY_TILES(NAME##_any, FORMAT, a->head_dim)                                                                          \
    BY_TILES(NAME##_64, FORMAT, 64)                                                                                    \
    BY_TILES(NAME##_128, FORMAT, 128)
BY_SIZE(int8, INT8)
BY_SIZE(int6, INT6)

#define NAMED_BY_SIZE(NAME) {amx_scores_##NAME##_any, amx_scores_##NAME##_64, amx_scores_##NAME##_128}
static void (*const SCORES_OF[INT6 + 1][3])(SCORES) = {[INT8] = NAMED_BY_SIZE(int8), [INT6] = NAMED_BY_SIZE(int6)};

// o [rows, wide] += weights' planes times a page's values.
ALONE static void amx_sums_of_digits(const Attention *a, const int8_t *planes, const float *steps, int64_t rows,
                                     int64_t width, int64_t keys, const char *tiles, float *o, Pace *pace) {
    const int64_t wide = wide_of(a->head_dim);
    for (int64_t i = 0; i < a->value_dim; i += UNIT, tiles += whole(keys, 64) * UNIT)
        add_unit(planes, rows, keys, width, tiles, steps, o + i, wide, pace);
}

static __attribute__((noinline)) void wide_attention_amx_digits_weigh(const Attention *a, const int32_t *block,
                                                                      int64_t start, int64_t keys, int64_t rows,
                                                                      float *s, int64_t apart, const Piece *of,
                                                                      const float *v_scale, int8_t *planes,
                                                                      float *steps, Pace *pace) {
    const int64_t width = whole(keys, 16), wide = wide_of(a->head_dim);
#define TO_PLANES(ROWS, S, APART, WIDTH, ...)                                                                          \
    weigh(ROWS, S, APART, keys, __VA_ARGS__, v_scale, planes + row * PLANES * apart, steps + row, pace)
    WEIGH_ROWS(TO_PLANES, sizeof(float))
#undef TO_PLANES
}

static void wide_attention_amx_digits_look_at(const Attention *a, const int32_t *block, int64_t kv_head,
                                              const Piece *of, int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, width = a->page_size, rows = block[1] * a->group, padded = whole(rows, EIGHT);
    const int64_t left = block[2] + block[1] - start, keys = left < width ? left : width;
    const int64_t first = first_vector(a, block, kv_head, start);
    float *s = room, steps[padded];
    memset(steps, 0, sizeof steps);  // of rows that see nothing of a page: what their planes are does not matter
    int8_t *planes = (int8_t *)(s + rows * width);
    char *tiles = (char *)(planes + padded * PLANES * width), *made = tiles + width * whole(a->value_dim, UNIT);
    Pace pace = pace_of(a, after, rows, keys);
    if (!a->apart) ask_for_constants(a, after);
    SCORES_OF[a->format][d == 64 ? 1 : d == 128 ? 2 : 0](a, of, rows, first, keys, tiles, made, s, width, &pace);
    wide_attention_amx_digits_weigh(a, block, start, keys, rows, s, width, of, (const float *)a->part[1][1] + first,
                                    planes, steps, &pace);
    amx_sums_of_digits(a, planes, steps, rows, width, keys, tiles, of->sums.o, &pace);
}

const Way wide_attention_amx_digits = {1 / LOG2_E,
                                       wide_of,
                                       wide_attention_amx_digits_begin,
                                       wide_attention_amx_digits_look_at,
                                       wide_attention_end_digits,
                                       amx_digits_shape,
                                       amx_digits_release};

#ifdef __clang__
#pragma clang attribute pop
#endif

#else

const Way wide_attention_amx_digits = {0};

#endif
