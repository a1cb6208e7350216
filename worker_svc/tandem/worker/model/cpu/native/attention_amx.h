// Attention over bf16 by AMX, or over codes that become such: what attention_wide_twos.h does of many rows, by tiles, and of few
// ones too, so that a row's bits are the same with any number of them. Scores are sums over 32 numbers, and o grows by those of
// 32 keys, as tiles add up.
//
// A part of `attention_wide_twos.c` and of those of codes, behind attention_wide_twos.h. WAY_OF_TILES is what its way is called.

#pragma once

#ifdef WITH_AMX

#include "amx_twos.h"

#include "attention_amx_few.h"

// Numbers of bf16 [rows, steps], a step's 32 lie together; and as many of 32 columns, two of which are a word: [steps, 16, 32].
typedef struct {
    const uint32_t *at;
    int64_t row, step;  // words from a row to the next, and from a step to the next
} Twos;

// to [rows, 32], rows `width` apart, = x times y, or += where it `adds`. More than 16 rows are `two` tiles.
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

INLINE int64_t row_of_tiles(int64_t d) { return wide_of(d) / 2; }

// Twos [rows, units, 16], however many queries a head of keys has; of few rows [units, 16, columns], behind the last row zeros.
static void wide_attention_amx_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, units = units_in(d), columns = few_columns(rows);
    const __m256 scale = _mm256_set1_ps(a->scale * (a->cap > 0 ? 1 : LOG2_E));
    uint32_t *q = twos_of(to);
    if (few_rows(rows)) memset(q, 0, (size_t)(units * 16 * columns) * sizeof *q);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = query_at(a, block, head, row);
        for (int64_t four = 0; four < units * 4; four++) {
            const int64_t first = eight_of(four / 4, four % 4);
            const __m256 eight = _mm256_maskz_loadu_ps(eight_there(d, first), from + first);
            uint32_t twos[4] __attribute__((aligned(16)));
            __m128i *at = (__m128i *)(few_rows(rows) ? twos : q + row * row_of_tiles(d) + four * 4);
            *at = (__m128i)_mm256_cvtneps_pbh(_mm256_mul_ps(eight, scale));
            for (int n = 0; few_rows(rows) && n < 4; n++) q[(four * 4 + n) * columns + row] = twos[n];
        }
    }
}

static void wide_attention_amx_many(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                    int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, width = whole(a->page_size, TURNED), wide = wide_of(d), units = units_in(d);
    const int64_t rows = block[1] * a->group, left = block[2] + block[1] - start;
    const int64_t keys = left < a->page_size ? left : a->page_size, columns = whole(a->value_dim, AT_ONCE);
    const int64_t first = first_vector(a, block, kv_head, start), turns = (keys + TURNED - 1) / TURNED;
    float *constants = room + rows * width;
    uint32_t *tiles = (uint32_t *)(constants + room_of_constants(STORED, d, width)), *p = (uint32_t *)room;
    __m512i *made = (__m512i *)(tiles + width * wide / 2);
    int64_t shaped = 0;
    const Constants c = constants_at(a, d, first, keys, constants);
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    Soon soon = one ? asked_soon(a, 0, first, 0, after) : asked_soon(a, 0, first, 1, first);
    turn_keys(units_of(vectors(a, 0, first).numbers, keys, d, 1, made), keys, units, tiles, &soon);
    const Twos queries = {twos_of(of), row_of_tiles(d), 16}, turned = {tiles, TURNED, 16 * TURNED};
    amx_products(0, rows, &queries, &turned, turns, units * 16 * TURNED, units, room, width, &shaped, &soon);
    ask_soon_for(&soon, 16 * LINE);
    wide_attention_twos_weigh(a, block, start, keys, rows, room, width, of, wide, &c);
    if (!one) soon = asked_soon(a, 1, first, 0, after);
    pair_values(units_of(vectors(a, 1, first).numbers, keys, d, 1, made), keys, units, columns, tiles, &soon);
    no_more_pairs(tiles, (keys + 1) / 2, columns);
    const Twos weights = {p, width, 16}, values = {tiles, columns, 16 * columns};
    amx_products(1, rows, &weights, &values, columns / UNIT, UNIT, turns, of->sums.o, wide, &shaped, &soon);
}

static void wide_attention_amx_look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                       int64_t start, int64_t after, float *room) {
    if (few_rows(block[1] * a->group)) wide_attention_amx_few(a, block, kv_head, of, start, after, room);
    else wide_attention_amx_many(a, block, kv_head, of, start, after, room);
}

static void wide_attention_amx_prepare(int64_t rows) {
    if (few_rows(rows)) amx_shape_of_few(rows);
}

const Way WAY_OF_TILES = {1 / LOG2_E,
                          wide_of,
                          wide_attention_amx_begin,
                          wide_attention_amx_look_at,
                          wide_attention_twos_end,
                          wide_attention_amx_prepare,
                          amx_release};

#else

const Way WAY_OF_TILES = {0};

#endif
