// The tiles of AMX: eight matrices of up to 16 rows of 64 bytes.
//
// What uses them stands in functions that are named so and never become part of another: a compiler may move an instruction
// in front of the `if` that it stands behind.

#pragma once

#include "numbers.h"

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 11)
#define WITH_AMX 1
#endif

enum { AMX_BF16 = 1 << 22, AMX_INT8 = 1 << 25 };

// Whether this processor has such tiles, and the system lets this process have their registers.
int amx_is_there(int kind);

#define ALONE __attribute__((noinline))

#ifdef WITH_AMX

#define MEMORY_IS_READ __asm__ volatile("" ::: "memory")  // and written: gcc's tile operations do not say so

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t columns[16];  // bytes of a row
    uint8_t rows[16];
} __attribute__((packed)) TileShapes;

INLINE void shape_tile(TileShapes *shapes, int tile, int rows, int columns) {
    shapes->palette = 1;
    shapes->rows[tile] = (uint8_t)rows;
    shapes->columns[tile] = (uint16_t)(rows ? columns : 0);
}

// Instead of `_tile_loadconfig`: gcc's says that it reads eight bytes, so that the others need not be written.
#define SHAPE_TILES(SHAPES) __asm__ volatile("ldtilecfg %0" ::"m"(SHAPES))

#endif
