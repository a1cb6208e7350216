// Tiles of attention by few rows at once, whose keys are the rows of a product and whose queries are its columns.
//
// For functions that are compiled for such processors only.

#pragma once

#include "amx.h"
#include "attention_wide.h"

#ifdef WITH_AMX

#define FEW_COLUMNS 16
INLINE int64_t few_columns(int64_t rows) { return rows <= 4 ? 4 : rows <= 8 ? 8 : FEW_COLUMNS; }

// Scores 0 and 1 and queries (2): [16, columns]; keys and values (3 and 4): 16 lines; sums 5 and 6 and weights (7): `rows`
// lines, or 16 of more. Of all pages of a piece of work: it takes as long as a fifth of a page.
ALONE static void amx_shape_of_few(int64_t rows) {
    TileShapes shapes = {0};
    const int lines = rows < FEW_COLUMNS ? (int)rows : FEW_COLUMNS;
    for (int tile = 0; tile < 8; tile++)
        shape_tile(&shapes, tile, tile < 5 ? 16 : lines, tile < 3 ? (int)few_columns(rows) * 4 : 64);
    SHAPE_TILES(shapes);
}

// Of sixteen keys as many scores each as there are columns, in as many registers, become those of each column.
INLINE void turn_scores(const int columns, __m512i *r) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    if (columns == 16) turn(r);
    else if (columns == 8) turn_pairs(r);
    else {
        turn_lanes(4, r);
        for (int i = 0; i < 4; i++) r[i] = _mm512_permutexvar_epi32(order, r[i]);
    }
}

// CALL of as many columns as so many rows have, and of `count` units: what is known while it is compiled stays in registers.
#define BY_COLUMNS(CALL, ROWS, COUNT)                                                                                  \
    do {                                                                                                               \
        const int64_t columns_there = few_columns(ROWS), count_there = COUNT;                                          \
        if (columns_there == 4 && count_there == 2) CALL(4, 2);                                                        \
        else if (columns_there == 4 && count_there == 4) CALL(4, 4);                                                   \
        else if (columns_there == 4) CALL(4, count_there);                                                             \
        else if (columns_there == 8 && count_there == 2) CALL(8, 2);                                                   \
        else if (columns_there == 8 && count_there == 4) CALL(8, 4);                                                   \
        else if (columns_there == 8) CALL(8, count_there);                                                             \
        else CALL(16, count_there);                                                                                    \
    } while (0)

ALONE static void amx_release(void) { _tile_release(); }

#endif
