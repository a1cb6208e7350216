// Attention over bf16 by AMX: what attention_wide_twos.h does of many rows, by tiles, and of few ones too, so that a row's bits
// are the same with any number of them. Scores are sums over 32 numbers, and o grows by those of 32 keys, as tiles add up.
//
// A part of `attention_wide_twos.c`.

#pragma once

#ifdef WITH_AMX

#include "amx_twos.h"

// Numbers of bf16 [rows, steps], a step's 32 lie together; and as many of 32 columns, two of which are a word: [steps, 16, 32].
typedef struct {
    const uint32_t *at;
    int64_t row, step;  // words from a row to the next, and from a step to the next
} Twos;

// to [rows, 32], rows `width` apart, = x times y, or += where it `adds`. More than 16 rows are `two` tiles. Of few rows memory
// is the limit, so some of what comes next is asked for here too.
INLINE void amx_product(const int two, const int adds, const Twos *x, const Twos *y, int64_t steps, float *to,
                        int64_t width, Soon *soon) {
    const uint32_t *rows = x->at, *columns = y->at;
    amx_begin(two, adds ? to : 0, width * 4);
    for (int64_t n = 0; n < steps; n++, rows += x->step, columns += y->step) {
        ask_soon_for(soon, 8 * LINE);
        amx_step(two, 0, rows, rows + TILE_ROWS * x->row, x->row * 4, columns, columns + 16, y->row * 4);
    }
    amx_end(two, to, width * 4);
}

// The same of any number of rows, and of `count` times 32 columns, `apart` words from one to the next. `shaped`: the rows that
// tiles have.
ALONE static void amx_products(const int adds, int64_t rows, const Twos *x, const Twos *y, int64_t count, int64_t apart,
                               int64_t steps, float *to, int64_t width, int64_t *shaped, Soon *soon) {
    MEMORY_IS_READ;
    for (int64_t row = 0; row < rows; row += 2 * TILE_ROWS) {
        const int64_t high = rows - row < 2 * TILE_ROWS ? rows - row : 2 * TILE_ROWS;
        if (high != *shaped) amx_shape(high);
        *shaped = high;
        const Twos here = {x->at + row * x->row, x->row, x->step};
        for (int64_t n = 0; n < count; n++) {
            const Twos of = {y->at + n * apart, y->row, y->step};
            float *sums = to + row * width + n * UNIT;
            if (high > TILE_ROWS) amx_product(1, adds, &here, &of, steps, sums, width, soon);
            else amx_product(0, adds, &here, &of, steps, sums, width, soon);
        }
    }
    MEMORY_IS_READ;
}

ALONE static void amx_release(void) { _tile_release(); }

// Vectors [keys, d] as units of bf16: where they are, if they may stay there, or else in `made`.
INLINE const __m512i *units_of(const void *numbers, int64_t keys, int64_t d, int may_stay, __m512i *made) {
    if (may_stay && d % UNIT == 0 && (uintptr_t)numbers % sizeof(__m512i) == 0) return numbers;
    make_twos(numbers, keys, d, made);
    return made;
}

// Of few rows, keys are the rows of a product, where they are, and queries its columns: so it is its scores that are turned,
// which are fewer than keys. What is added up is the same in the same order, so the bits are those of many rows.
#define FEW_COLUMNS 16

INLINE int few_rows(int64_t rows) { return rows <= FEW_COLUMNS; }

// Scores 0 and 1 and queries (2): [16, rows]; keys and values (3 and 4): 16 lines; sums 5 and 6 and weights (7): `rows` lines.
ALONE static void amx_shape_of_few(int64_t rows) {
    TileShapes shapes = {0};
    for (int tile = 0; tile < 8; tile++)
        shape_tile(&shapes, tile, tile < 5 ? 16 : (int)rows, tile < 3 ? (int)rows * 4 : 64);
    SHAPE_TILES(shapes);
}

// s [rows, width], as queries q [units, 16, rows] twos look at keys, up to whole 16 of them.
ALONE static void amx_scores_of_few(const uint32_t *q, int64_t rows, const __m512i *k, int64_t keys, int64_t units,
                                    float *s, int64_t width, Soon *soon) {
    float scores[2][FEW_COLUMNS * 16] __attribute__((aligned(64)));
    for (int64_t key = 0; key < keys; key += 32) {
        const int both = key + 16 < keys;
        const __m512i *first = k + key * units, *second = first + 16 * units;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t unit = 0; unit < units; unit++) {
            ask_soon_for(soon, 16 * LINE);
            _tile_loadd(2, q + unit * 16 * rows, rows * 4);
            _tile_loadd(3, first + unit, units * 64);
            if (both) _tile_loadd(4, second + unit, units * 64);
            _tile_dpbf16ps(0, 3, 2);
            if (both) _tile_dpbf16ps(1, 4, 2);
        }
        _tile_stored(0, scores[0], 64);
        if (both) _tile_stored(1, scores[1], 64);
        MEMORY_IS_READ;
        for (int n = 0; n <= both; n++) {
            __m512i r[16];
            ask_soon_for(soon, 8 * units * LINE);
            for (int i = 0; i < 16; i++) r[i] = _mm512_load_si512(scores[n] + 16 * i);
            turn(r);
            for (int i = 0; i < rows; i++) _mm512_store_si512(s + i * width + key + 16 * n, r[i]);
        }
    }
}

// o [rows, wide] += weights [rows, turns, 16] twos, rows `width` words apart, times values [turns, 16, columns] twos.
ALONE static void amx_sums_of_few(const uint32_t *p, int64_t width, const uint32_t *values, int64_t turns,
                                  int64_t columns, float *o, int64_t wide, Soon *soon) {
    MEMORY_IS_READ;
    for (int64_t n = 0; n < columns; n += UNIT) {
        _tile_loadd(5, o + n, wide * 4);
        _tile_loadd(6, o + n + 16, wide * 4);
        for (int64_t turn = 0; turn < turns; turn++) {
            const uint32_t *here = values + turn * 16 * columns + n;
            ask_soon_for(soon, 8 * LINE);
            _tile_loadd(7, p + turn * 16, width * 4);
            _tile_loadd(3, here, columns * 4);
            _tile_loadd(4, here + 16, columns * 4);
            _tile_dpbf16ps(5, 7, 3);
            _tile_dpbf16ps(6, 7, 4);
        }
        _tile_stored(5, o + n, wide * 4);
        _tile_stored(6, o + n + 16, wide * 4);
    }
    MEMORY_IS_READ;
}

// Twos [rows, units, 16]: lines, however many queries a head of keys has; of few rows [units, 16, rows].
static void wide_attention_amx_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, count = units_in(d) * 16;
    const __m512 scale = _mm512_set1_ps(a->scale * (a->cap > 0 ? 1 : LOG2_E));
    uint32_t *q = twos_of(to);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = a->q + (block[0] + row / a->group) * a->stride + (head * a->group + row % a->group) * d;
        for (int64_t i = 0; i < count; i += 8) {
            uint32_t twos[8] __attribute__((aligned(32)));
            const __m512 numbers = _mm512_maskz_loadu_ps(2 * i < d ? first_of(d - 2 * i) : 0, from + 2 * i);
            __m256i *at = few_rows(rows) ? (__m256i *)twos : (__m256i *)(q + row * row_of_twos(d) + i);
            *at = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(numbers, scale));
            for (int n = 0; few_rows(rows) && n < 8; n++) q[(i + n) * rows + row] = twos[n];
        }
    }
}

static void wide_attention_amx_look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                       int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, width = whole(a->page_size, TURNED), wide = wide_of(d), units = units_in(d);
    const int64_t rows = block[1] * a->group, left = block[2] + block[1] - start;
    const int64_t keys = left < a->page_size ? left : a->page_size, columns = whole(a->value_dim, UNIT);
    const int64_t first = first_vector(a, block, kv_head, start), turns = (keys + TURNED - 1) / TURNED;
    uint32_t *tiles = (uint32_t *)(room + rows * width), *p = (uint32_t *)room;
    __m512i *made = (__m512i *)(tiles + width * wide / 2);
    int64_t shaped = 0;
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    Soon soon = one ? asked_soon(a, 0, first, 0, after) : asked_soon(a, 0, first, 1, first);
    if (few_rows(rows)) {
        amx_shape_of_few(rows);
        const int has_16 = a->page_size % 16 == 0;  // tiles read whole 16 keys
        amx_scores_of_few(twos_of(of), rows, units_of(vectors(a, 0, first).numbers, keys, d, has_16, made), keys, units,
                          room, width, &soon);
    } else {
        turn_keys(units_of(vectors(a, 0, first).numbers, keys, d, 1, made), keys, units, tiles, &soon);
        const Twos queries = {twos_of(of), row_of_twos(d), 16}, turned = {tiles, TURNED, 16 * TURNED};
        amx_products(0, rows, &queries, &turned, turns, units * 16 * TURNED, units, room, width, &shaped, &soon);
    }
    const Constants none = {0};
    ask_soon_for(&soon, 16 * LINE);
    wide_attention_twos_weigh(a, block, start, keys, rows, room, width, of, wide, &none);
    if (!one) soon = asked_soon(a, 1, first, 0, after);
    pair_values(units_of(vectors(a, 1, first).numbers, keys, d, 1, made), keys, units, columns, tiles, &soon);
    const int64_t paired = (keys + 1) / 2;
    memset(tiles + paired * columns, 0, (size_t)((turns * 16 - paired) * columns) * sizeof(uint32_t));
    const Twos weights = {p, width, 16}, values = {tiles, columns, 16 * columns};
    if (few_rows(rows)) amx_sums_of_few(p, width, tiles, turns, columns, of->sums.o, wide, &soon);
    else amx_products(1, rows, &weights, &values, columns / UNIT, UNIT, turns, of->sums.o, wide, &shaped, &soon);
    amx_release();
}

const Way wide_attention_amx = {1 / LOG2_E, wide_of, wide_attention_amx_begin, wide_attention_amx_look_at,
                                wide_attention_twos_end};

#else

const Way wide_attention_amx = {0};

#endif
