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

// One or two blocks of rows with a pair of panels, tiles from `first` to `last`. Meanwhile what follows at `ahead` is asked
// for, `pace` bytes for each tile.
INLINE void amx_sums(const int two, const uint16_t *upper, const uint16_t *lower, int64_t upper_rows,
                     int64_t lower_rows, const uint8_t *w, int64_t first, int64_t last, float *out, int64_t stride,
                     const uint8_t *ahead, int64_t pace) {
    float *under = out + upper_rows * stride;
    MEMORY_IS_READ;
    if (first == 0) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, out, stride * 4);
        _tile_loadd(1, out + 16, stride * 4);
    }
    if (two && first == 0) {
        _tile_zero(2);
        _tile_zero(3);
    } else if (two) {
        _tile_loadd(2, under, stride * 4);
        _tile_loadd(3, under + 16, stride * 4);
    }
    for (int64_t t = first; t < last; t++) {
        const uint8_t *here = w + t * 2048;
        for (int64_t line = 0; line < pace; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
        ahead += pace;
        _tile_loadd(6, here, 64);
        _tile_loadd(4, upper + t * upper_rows * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, here + 1024, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_loadd(5, lower + t * lower_rows * TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out, stride * 4);
    _tile_stored(1, out + 16, stride * 4);
    if (two) {
        _tile_stored(2, under, stride * 4);
        _tile_stored(3, under + 16, stride * 4);
    }
    MEMORY_IS_READ;
}

// As above; where the pair's outputs are not all there, by way of a room of its own.
ALONE static void amx_block(const Wide *p, const uint16_t *x, int64_t row, int64_t rows, int64_t pair, int64_t first,
                            int64_t last, const uint8_t *ahead, int64_t pace) {
    const int64_t upper_rows = rows < 16 ? rows : 16, lower_rows = rows - upper_rows;
    const uint16_t *upper = x + row * p->steps * TILE, *lower = upper + upper_rows * p->steps * TILE;
    const uint8_t *w = p->weight + pair * p->steps * 2048;
    float room[32 * PAIR], *out = p->out + row * p->outputs + pair * PAIR;
    const int whole = p->outputs - pair * PAIR >= PAIR;
    const int64_t stride = whole ? p->outputs : PAIR;
    if (!whole)
        for (int64_t r = 0; r < rows && first; r++)
            for (int h = 0; h < 2; h++)
                _mm512_storeu_ps(room + r * PAIR + 16 * h,
                                 _mm512_maskz_loadu_ps(lanes(p, pair, h), out + r * p->outputs + 16 * h));
    float *to = whole ? out : room;
    if (lower_rows) amx_sums(1, upper, lower, upper_rows, lower_rows, w, first, last, to, stride, ahead, pace);
    else amx_sums(0, upper, lower, upper_rows, 0, w, first, last, to, stride, ahead, pace);
    if (!whole)
        for (int64_t r = 0; r < rows; r++)
            for (int h = 0; h < 2; h++)
                _mm512_mask_storeu_ps(out + r * p->outputs + 16 * h, lanes(p, pair, h),
                                      _mm512_loadu_ps(room + r * PAIR + 16 * h));
}

#endif
