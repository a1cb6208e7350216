// Blocks of bf16 by AMX; a part of `panels_wide.c`, whose macros and target it has.

#pragma once

#ifdef WITH_AMX

#include "amx_twos.h"

// Where sums are: [rows, 32], rows `stride` numbers apart; null: they are 0.
typedef struct {
    float *at;
    int64_t stride;
} Sums;

// One or two blocks of rows with a pair of panels, tiles from `first` to `last`. Meanwhile what follows at `ahead` is asked
// for, `pace` bytes for each tile.
INLINE void amx_sums(const int two, const uint16_t *upper, const uint16_t *lower, int64_t upper_rows,
                     int64_t lower_rows, const uint8_t *w, int64_t first, int64_t last, Sums before, Sums after,
                     const uint8_t *ahead, int64_t pace) {
    MEMORY_IS_READ;
    amx_begin(two, before.at, before.stride * 4);
    for (int64_t t = first; t < last; t++, ahead += pace) {
        const uint8_t *here = w + t * 2048;
        for (int64_t line = 0; line < pace; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
        amx_step(two, upper + t * upper_rows * TILE, lower + t * lower_rows * TILE, 64, here, here + 1024, 64);
    }
    amx_end(two, after.at, after.stride * 4);
    MEMORY_IS_READ;
}

// Some steps of a block of rows with a pair: its sums come from `before`, or those of the product, and go to `after`, or
// there. Where the pair's outputs are not all there, they go by way of a room of its own.
ALONE static void amx_block(const Wide *p, const uint16_t *x, int64_t row, int64_t rows, int64_t pair, int64_t first,
                            int64_t last, float *before, float *after, const uint8_t *ahead, int64_t pace) {
    const int64_t upper_rows = rows < 16 ? rows : 16, lower_rows = rows - upper_rows;
    const uint16_t *upper = x + row * p->steps * TILE, *lower = upper + upper_rows * p->steps * TILE;
    const uint8_t *w = p->weight + pair * p->steps * 2048;
    float room[32 * PAIR], *out = p->out + row * p->outputs + pair * PAIR;
    const int whole = p->outputs - pair * PAIR >= PAIR;
    const Sums outputs = {whole ? out : room, whole ? p->outputs : PAIR};
    const Sums from = !first ? (Sums){0, 0} : before ? (Sums){before, PAIR} : outputs;
    const Sums to = after ? (Sums){after, PAIR} : outputs;
    if (from.at == room)
        for (int64_t r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
                _mm512_storeu_ps(room + r * PAIR + 16 * h,
                                 _mm512_maskz_loadu_ps(lanes(p, pair, h), out + r * p->outputs + 16 * h));
    if (lower_rows) amx_sums(1, upper, lower, upper_rows, lower_rows, w, first, last, from, to, ahead, pace);
    else amx_sums(0, upper, lower, upper_rows, 0, w, first, last, from, to, ahead, pace);
    if (to.at == room)
        for (int64_t r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
                _mm512_mask_storeu_ps(out + r * p->outputs + 16 * h, lanes(p, pair, h),
                                      _mm512_loadu_ps(room + r * PAIR + 16 * h));
}

// Of many blocks: their weights stay in the first cache. Few take as long as weights take to come.
#define AMX_STEPS 8
#define AMX_MANY 5

// The steps from `first` to `last` of a pair with the rows from `start` to `end`.
INLINE void amx_pair(const Wide *p, const uint16_t *x, int64_t pair, int64_t start, int64_t end, int64_t first,
                     int64_t last, int64_t *shaped) {
    float kept[AMX_BLOCKS][ROWS_AMX * PAIR] __attribute__((aligned(64)));
    const int64_t blocks = (end - start + ROWS_AMX - 1) / ROWS_AMX, each = blocks < AMX_MANY ? last - first : AMX_STEPS;
    for (int64_t from = first; from < last; from += each) {
        const int64_t to = from + each < last ? from + each : last;
        for (int64_t n = 0; n < blocks; n++) {
            const int64_t row = start + n * ROWS_AMX, rows = end - row < ROWS_AMX ? end - row : ROWS_AMX;
            if (rows != *shaped) amx_shape(rows);
            *shaped = rows;
            // A single block asks for what it will need itself, several share the next pair's weights.
            const uint8_t *ahead = p->weight + ((pair + (blocks > 1)) * p->steps + from) * 2048;
            ahead += blocks > 1 ? n * (to - from) * 2048 / blocks : 8192;
            amx_block(p, x, row, rows, pair, from, to, from == first ? 0 : kept[n], to == last ? 0 : kept[n], ahead,
                      2048 / blocks);
        }
    }
}

#endif
