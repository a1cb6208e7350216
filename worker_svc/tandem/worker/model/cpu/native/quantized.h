// Products with quantized weights: what the two ways of computing them share.

#include "numbers.h"

#define PANEL 16
#define TOGETHER 4  // panels that a thread takes at once
// Input numbers between two looks at the output: a panel's part stays in the first cache for all tiles of rows, which
// meanwhile ask for the block that comes next (`ahead`).
#define BLOCK 512

typedef struct {
    const uint8_t *weight;  // [panels, width / 2, 16, 2] int8, or [panels, width / 4, 16, 2] of two int4 each
    const void *scale;      // [panels, groups, 16], or [panels, 1, 16] where per_channel
    const void *least;      // [panels, groups, 16], fp16 or fp32, or 0
    const int16_t *table;   // [16] what the numbers of an int4 stand for; else 0
    const int32_t *x;       // of each tile of rows [width / 2, rows]: two inputs
    const float *x_scale;   // of each tile of rows [groups, rows]
    const float *x_sum;     // as x_scale
    float *out;             // [rows, panels * 16]
    int64_t rows, panels, groups;
    int half, per_channel;  // half: 0 scales are fp32, 1 fp16, 2 powers of two, of which the exponent is stored + 127
} Product;

// Rows of the next tile, `left` being still to do: as many tiles as are needed, equally high.
INLINE int64_t tile_rows(int64_t left, int64_t most) {
    const int64_t tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

// Where the memory is that the next panel or block of groups begins with, while `panel` and the groups from `start` to
// `end` are computed.
INLINE const uint8_t *next_weights(const Product *p, const int bits, const int group, int64_t panel, int64_t start,
                                   int64_t end, int64_t first, int64_t last) {
    const int64_t next = panel + 1 < last ? panel + 1 : end < p->groups ? first : last;
    const int64_t next_start = panel + 1 < last ? start : end < p->groups ? end : 0;
    return p->weight + (next * p->groups + next_start) * group * PANEL * bits / 8;
}

// By AVX-512 with VNNI (quantized_wide.c), in tiles of as many rows.
#define WIDE_ROWS 8
int wide_is_there(void);
void wide_quantized_panels(const Product *p, int bits, int group, int64_t first, int64_t last);

// Calls PANELS(bits, coded, group, ...) with these three as constants.
// clang-format off
#define BY_KIND(PANELS, BITS, CODED, GROUP, ...)                                                                       \
    switch ((BITS) * 1000 + (GROUP)) {                                                                                 \
    case 8016: PANELS(8, 0, 16, __VA_ARGS__); break;                                                                   \
    case 8032: PANELS(8, 0, 32, __VA_ARGS__); break;                                                                   \
    case 8064: PANELS(8, 0, 64, __VA_ARGS__); break;                                                                   \
    case 8128: PANELS(8, 0, 128, __VA_ARGS__); break;                                                                  \
    case 4016: PANELS(4, 0, 16, __VA_ARGS__); break;                                                                   \
    case 4032: if (CODED) PANELS(4, 1, 32, __VA_ARGS__); else PANELS(4, 0, 32, __VA_ARGS__); break;                    \
    case 4064: if (CODED) PANELS(4, 1, 64, __VA_ARGS__); else PANELS(4, 0, 64, __VA_ARGS__); break;                    \
    case 4128: if (CODED) PANELS(4, 1, 128, __VA_ARGS__); else PANELS(4, 0, 128, __VA_ARGS__); break;                  \
    }
// clang-format on
