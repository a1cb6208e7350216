// Blocks of bf16 by AMX; a part of `panels_wide.c`, whose macros and target it has.

#pragma once

#ifdef WITH_AMX

#include "amx_twos.h"

// Where sums are: [rows, 32], rows `stride` numbers apart; null: they are 0.
typedef struct {
    float *at;
    int64_t stride;
} Sums;

INLINE Sums at_row(Sums sums, int64_t row) {
    const Sums there = {sums.at + row * sums.stride, sums.stride};
    return there;
}

// What is asked for while a block is computed, `pace` bytes for each tile.
typedef struct {
    const uint8_t *at;
    int64_t pace;
} Asked;

// One or two blocks of rows with a pair of panels, tiles from `first` to `last`. Of many rows, a pair's weights are read again
// at once, and activations later.
INLINE void amx_sums(const int two, const int many, const uint16_t *upper, const uint16_t *lower, int64_t upper_rows,
                     int64_t lower_rows, const uint8_t *w, int64_t first, int64_t last, Sums before, Sums after,
                     Asked ahead) {
    MEMORY_IS_READ;
    amx_begin(two, before.at, before.stride * 4);
    for (int64_t t = first; t < last; t++, ahead.at += ahead.pace) {
        const uint8_t *here = w + t * 2048;
        for (int64_t line = 0; line < ahead.pace; line += 64) _mm_prefetch((const char *)ahead.at + line, _MM_HINT_T1);
        amx_step(two, many, upper + t * upper_rows * TILE, lower + t * lower_rows * TILE, 64, here, here + 1024, 64);
    }
    amx_end(two, after.at, after.stride * 4);
    MEMORY_IS_READ;
}

// Some steps of a block of rows with a pair: its sums come from `before`, or those of `out`, and go to `after`, or there.
// Where the pair's outputs are not all there, they go by way of a room of its own.
ALONE static void amx_block(const Wide *p, const uint16_t *x, int64_t row, int64_t rows, int64_t pair, int64_t first,
                            int64_t last, Sums out, float *before, float *after, int many, Asked ahead) {
    const int64_t upper_rows = rows < 16 ? rows : 16, lower_rows = rows - upper_rows;
    const uint16_t *upper = x + row * p->steps * TILE, *lower = upper + upper_rows * p->steps * TILE;
    const uint8_t *w = p->weight + pair * p->steps * 2048;
    float room[32 * PAIR];
    const int whole = p->outputs - pair * PAIR >= PAIR;
    const Sums outputs = whole ? out : (Sums){room, PAIR};
    const Sums from = !first ? (Sums){0, 0} : before ? (Sums){before, PAIR} : outputs;
    const Sums to = after ? (Sums){after, PAIR} : outputs;
    if (from.at == room)
        for (int64_t r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
                _mm512_storeu_ps(room + r * PAIR + 16 * h,
                                 _mm512_maskz_loadu_ps(lanes(p, pair, h), out.at + r * out.stride + 16 * h));
    if (lower_rows && many) amx_sums(1, 1, upper, lower, upper_rows, lower_rows, w, first, last, from, to, ahead);
    else if (lower_rows) amx_sums(1, 0, upper, lower, upper_rows, lower_rows, w, first, last, from, to, ahead);
    else amx_sums(0, 0, upper, lower, upper_rows, 0, w, first, last, from, to, ahead);
    if (to.at == room)
        for (int64_t r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
                _mm512_mask_storeu_ps(out.at + r * out.stride + 16 * h, lanes(p, pair, h),
                                      _mm512_loadu_ps(room + r * PAIR + 16 * h));
}

// Of many blocks, some steps' weights stay in the first cache. Few take no longer than weights take to come.
#define AMX_STEPS 8
#define AMX_MANY 3

// The steps from `first` to `last` of a pair with the rows from `start` to `end`, whose sums are `out`. The pair `next` is
// computed behind it.
INLINE void amx_pair(const Wide *p, const uint16_t *x, int64_t pair, int64_t next, int64_t start, int64_t end,
                     int64_t first, int64_t last, Sums out, int64_t *shaped) {
    float kept[AMX_BLOCKS][ROWS_AMX * PAIR] __attribute__((aligned(64)));
    const int64_t blocks = (end - start + ROWS_AMX - 1) / ROWS_AMX;
    const int many = blocks >= AMX_MANY;
    const int64_t each = many ? AMX_STEPS : last - first;
    for (int64_t from = first; from < last; from += each) {
        const int64_t to = from + each < last ? from + each : last;
        const int64_t behind = to < last ? pair * p->steps + to : next * p->steps + first;
        for (int64_t n = 0; n < blocks; n++) {
            const int64_t row = start + n * ROWS_AMX, rows = end - row < ROWS_AMX ? end - row : ROWS_AMX;
            if (rows != *shaped) amx_shape(rows);
            *shaped = rows;
            // Many blocks share the weights that come next. Of few, the first one asks for what it will need itself.
            const int64_t share = (to - from) * 2048 / blocks;
            const Asked ahead = many ? (Asked){p->weight + behind * 2048 + n * share, 2048 / blocks}
                                     : (Asked){p->weight + (pair * p->steps + from) * 2048 + 8192, n ? 0 : 2048};
            amx_block(p, x, row, rows, pair, from, to, at_row(out, row - start), from == first ? 0 : kept[n],
                      to == last ? 0 : kept[n], many, ahead);
        }
    }
}

// Bytes of activations that stay in the second cache, beside a pair of gates' weights and sums.
#define AMX_CACHED (5 << 18)

// Blocks of activations of so many tiles that are taken at once, where all their tiles are to stay in the second cache.
INLINE int64_t amx_blocks(int64_t steps) {
    const int64_t fitting = AMX_CACHED / (ROWS_AMX * TILE * 2) / steps;
    return fitting < 1 ? 1 : fitting < AMX_BLOCKS ? fitting : AMX_BLOCKS;
}

// For so few at once, weights would be read too often.
#define AMX_GATED 5

INLINE int amx_gates_serve(int64_t rows, int64_t steps) {
    return amx_blocks(steps) >= AMX_GATED || rows <= amx_blocks(steps) * ROWS_AMX;
}

// A thread's pairs of gates, as `gated_bf16` has them.
ALONE static void gated_amx(const Wide *p, const Gate *how, const uint8_t *x, uint16_t *packed, int64_t from,
                            int64_t to) {
    const int64_t gates = p->outputs / 2 / PAIR;
    const int64_t at_once = rows_at_once(p->rows, ROWS_AMX, amx_blocks(p->steps));
    float both[AMX_BLOCKS * ROWS_AMX][2 * PAIR] __attribute__((aligned(64)));
    int64_t shaped = 0;
    for (int64_t start = 0; start < p->rows; start += at_once) {
        const int64_t end = start + at_once < p->rows ? start + at_once : p->rows;
        for (int64_t pair = from; pair < to; pair++) {
            for (int up = 0; up < 2; up++) {
                const Sums out = {both[0] + up * PAIR, 2 * PAIR};
                amx_pair(p, (const uint16_t *)x, pair + up * gates, up ? pair + 1 : pair + gates, start, end, 0,
                         p->steps, out, &shaped);
            }
            gate_pair(how, both, start, end, TILE_ROWS, gates, pair, packed);
        }
    }
    _tile_release();
}

#endif
