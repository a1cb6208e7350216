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

// Vectors [keys, d] as units of bf16, where they are, or else in `made`.
INLINE const __m512i *units_of(const void *numbers, int64_t keys, int64_t d, __m512i *made) {
    if (d % UNIT == 0 && (uintptr_t)numbers % sizeof(__m512i) == 0) return numbers;
    make_twos(numbers, keys, d, made);
    return made;
}

// [rows, units, 16] twos: lines, however many queries a head of keys has.
static void wide_attention_amx_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group;
    const __m512 scale = _mm512_set1_ps(a->scale * (a->cap > 0 ? 1 : LOG2_E));
    for (int64_t row = 0; row < rows; row++) {
        const float *from = a->q + (block[0] + row / a->group) * a->stride + (head * a->group + row % a->group) * d;
        __m256i *q = (__m256i *)(twos_of(to) + row * row_of_twos(d));
        for (int64_t i = 0; i < units_in(d) * UNIT; i += 16) {
            const __m512 numbers = _mm512_maskz_loadu_ps(i < d ? first_of(d - i) : 0, from + i);
            *q++ = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(numbers, scale));
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
    turn_keys(units_of(vectors(a, 0, first).numbers, keys, d, made), keys, units, tiles, &soon);
    const Twos queries = {twos_of(of), row_of_twos(d), 16}, turned = {tiles, TURNED, 16 * TURNED};
    amx_products(0, rows, &queries, &turned, turns, units * 16 * TURNED, units, room, width, &shaped, &soon);
    const Constants none = {0};
    ask_soon_for(&soon, 16 * LINE);
    wide_attention_twos_weigh(a, block, start, keys, rows, room, width, of, wide, &none);
    if (!one) soon = asked_soon(a, 1, first, 0, after);
    pair_values(units_of(vectors(a, 1, first).numbers, keys, d, made), keys, units, columns, tiles, &soon);
    const int64_t paired = (keys + 1) / 2;
    memset(tiles + paired * columns, 0, (size_t)((turns * 16 - paired) * columns) * sizeof(uint32_t));
    const Twos weights = {p, width, 16}, values = {tiles, columns, 16 * columns};
    amx_products(1, rows, &weights, &values, columns / UNIT, UNIT, turns, of->sums.o, wide, &shaped, &soon);
    amx_release();
}

const Way wide_attention_amx = {1 / LOG2_E, wide_of, wide_attention_amx_begin, wide_attention_amx_look_at,
                                wide_attention_twos_end};

#else

const Way wide_attention_amx = {0};

#endif
