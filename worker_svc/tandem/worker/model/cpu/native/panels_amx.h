// Blocks of bf16 by AMX; a part of `panels_wide.c`, whose macros and target it has.

#pragma once

#ifdef WITH_AMX

// Sums 0 to 3, activations 4 and 5, weights 6 and 7, for blocks of `upper` and `lower` rows.
ALONE static void amx_shape(int upper, int lower) {
    TileShapes shapes = {0};
    for (int tile = 0; tile < 8; tile++)
        shape_tile(&shapes, tile, tile >= 6 ? 16 : tile == 4 || tile < 2 ? upper : lower, 64);
    SHAPE_TILES(shapes);
}

// Where sums are: [rows, 32], rows `stride` numbers apart; null: they are 0.
typedef struct {
    float *at;
    int64_t stride;
} Sums;

INLINE void amx_load(const int tile, const Sums *from, int64_t row, int column) {
    const float *at = from->at + row * from->stride + column;
    switch (tile) {
    case 0: _tile_loadd(0, at, from->stride * 4); break;
    case 1: _tile_loadd(1, at, from->stride * 4); break;
    case 2: _tile_loadd(2, at, from->stride * 4); break;
    default: _tile_loadd(3, at, from->stride * 4);
    }
}

// One or two blocks of rows with a pair of panels, tiles from `first` to `last`. Meanwhile what follows at `ahead` is asked
// for, `pace` bytes for each tile.
INLINE void amx_sums(const int two, const uint16_t *upper, const uint16_t *lower, int64_t upper_rows,
                     int64_t lower_rows, const uint8_t *w, int64_t first, int64_t last, Sums before, Sums after,
                     const uint8_t *ahead, int64_t pace) {
    MEMORY_IS_READ;
    if (before.at) {
        amx_load(0, &before, 0, 0);
        amx_load(1, &before, 0, 16);
        if (two) {
            amx_load(2, &before, upper_rows, 0);
            amx_load(3, &before, upper_rows, 16);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        if (two) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }
    for (int64_t t = first; t < last; t++) {
        const uint8_t *here = w + t * 2048;
        for (int64_t line = 0; line < pace; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
        ahead += pace;
        _tile_loadd(6, here, 64);
        _tile_loadd(4, upper + t * upper_rows * TILE, 64);
        _tile_loadd(7, here + 1024, 64);
        if (two) _tile_loadd(5, lower + t * lower_rows * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, after.at, after.stride * 4);
    _tile_stored(1, after.at + 16, after.stride * 4);
    if (two) {
        float *under = after.at + upper_rows * after.stride;
        _tile_stored(2, under, after.stride * 4);
        _tile_stored(3, under + 16, after.stride * 4);
    }
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
            if (rows != *shaped) amx_shape(rows < 16 ? (int)rows : 16, rows < 16 ? 0 : (int)rows - 16);
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
