// Products of bf16 by two times two tiles of AMX: sums 0 to 3, of which two rows of tiles have two columns each; rows 4 and 5,
// columns 6 and 7.
//
// For functions that are compiled for such processors only.

#pragma once

#ifdef WITH_AMX

#define TILE_ROWS 16

// The tiles of so many rows, up to 32.
ALONE static void amx_shape(int64_t rows) {
    TileShapes shapes = {0};
    const int upper = rows < TILE_ROWS ? (int)rows : TILE_ROWS, lower = (int)rows - upper;
    for (int tile = 0; tile < 8; tile++)
        shape_tile(&shapes, tile, tile >= 6 ? 16 : tile == 4 || tile < 2 ? upper : lower, 64);
    SHAPE_TILES(shapes);
}

// Sums begin as what is `at` [rows, 32], rows `bytes` apart, or with 0 where that is null. More than 16 rows are `two` tiles.
INLINE void amx_begin(const int two, const float *at, int64_t bytes) {
    const uint8_t *upper = (const uint8_t *)at, *lower = upper + TILE_ROWS * bytes;
    if (!at) {
        _tile_zero(0);
        _tile_zero(1);
        if (two) {
            _tile_zero(2);
            _tile_zero(3);
        }
        return;
    }
    _tile_loadd(0, upper, bytes);
    _tile_loadd(1, upper + 64, bytes);
    if (two) {
        _tile_loadd(2, lower, bytes);
        _tile_loadd(3, lower + 64, bytes);
    }
}

// Adds 32 products to each sum: of rows at `upper` and `lower`, and of columns at `left` and `right`, in bytes apart each.
// What rows are read `once` leaves the first cache to others.
INLINE void amx_step(const int two, const int once, const void *upper, const void *lower, int64_t row, const void *left,
                     const void *right, int64_t pair) {
    _tile_loadd(6, left, pair);
    if (once) _tile_stream_loadd(4, upper, row);
    else _tile_loadd(4, upper, row);
    _tile_loadd(7, right, pair);
    if (two && once) _tile_stream_loadd(5, lower, row);
    else if (two) _tile_loadd(5, lower, row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// Sums go to where `amx_begin` would take them from.
INLINE void amx_end(const int two, float *at, int64_t bytes) {
    uint8_t *upper = (uint8_t *)at, *lower = upper + TILE_ROWS * bytes;
    _tile_stored(0, upper, bytes);
    _tile_stored(1, upper + 64, bytes);
    if (two) {
        _tile_stored(2, lower, bytes);
        _tile_stored(3, lower + 64, bytes);
    }
}

#endif
