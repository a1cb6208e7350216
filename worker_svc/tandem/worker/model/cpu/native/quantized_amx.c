// Products of several rows with quantized weights by AMX: the same sums as by VNNI, and the same operations on each output
// number, so the same bits.
//
// A block of two panels is unpacked into the first cache; a tile of up to 16 rows is multiplied with each of its groups, and
// the sums go by way of memory into registers, where those over the groups grow. These steps overlap: what is multiplied is
// stored some groups later, and taken up as many more groups later.
//
// Activations of 16 bits are two numbers of 8, the upper one signed, whose sums are put together.

#include "amx.h"
#include "quantized.h"

#ifdef WITH_AMX

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-int8"))),                   \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,amx-tile,amx-int8")
#endif

#include "four_of_int8.h"

#define AHEAD 8192  // bytes from what is unpacked to what is asked for, of a single tile of rows
#define DEEP 64     // bytes of a tile's row at most
#define TILE 1024   // bytes of a tile of sums
#define BESIDE 2    // panels of a block
// Groups until what is multiplied is stored, and until that is taken up. Sums of int8 are in four tiles by turns, and those of
// int16 in two times two.
#define LATER(two) ((two) ? 1 : 2)

// A part of some panels: their numbers as tiles have them, 4 bytes of 16 columns behind the next ones; and the constants of
// their groups.
typedef struct {
    uint8_t numbers[BESIDE * BLOCK * PANEL] __attribute__((aligned(64)));
    Constants by[BESIDE];
} Block;

// ---------------------------------------------------------------------------------------------------- weights

// What numbers of 4 bits stand for.
INLINE __m512i meanings(const Product *p) {
    int8_t numbers[16];
    for (int i = 0; i < 16; i++) numbers[i] = (int8_t)(p->table ? p->table[i] : i - p->less);
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)numbers));
}

// Four inputs at w for 16 columns. Of 4 bits, each column has the lower ones of two bytes, then the upper ones.
INLINE __m512i four_inputs(const int bits, const uint8_t *w, __m512i means) {
    if (bits == 8) return four_of_int8(w);
    const __m512i raw = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)w));
    const __m512i codes = _mm512_and_si512(_mm512_or_si512(raw, _mm512_slli_epi32(raw, 12)), _mm512_set1_epi8(15));
    return _mm512_shuffle_epi8(means, codes);
}

// Unpacks the groups from `first`, which begins a unit, to `last` of a panel, as the `n`th of a block; meanwhile what lies at
// `ahead` is asked for.
INLINE void unpack(const Product *p, const int bits, int group, int64_t panel, int64_t first, int64_t last, int64_t n,
                   Block *to, const uint8_t *ahead) {
    const int64_t fours = (last - first) * group / 4, bytes = PANEL * bits / 2;  // those of a four
    const uint8_t *w = p->weight + (panel * p->groups + first) * group * PANEL * bits / 8;
    const __m512i means = meanings(p);
    __m512i *words = (__m512i *)to->numbers + n * fours;
    for (int64_t i = 0; i < fours * bytes; i += 64) _mm_prefetch((const char *)ahead + i, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int64_t i = 0; i < fours; i++) _mm512_store_si512(words + i, four_inputs(bits, w + i * bytes, means));
    constants(p, group, panel, first, last, &to->by[n]);
}

// ---------------------------------------------------------------------------------------------------- tiles

// Sums 0 to 3; activations 4 and 5, of int16 the lower bytes and the upper ones; weights 6 and 7.
ALONE static void amx_shape(int rows, int group) {
    const int deep = group < DEEP ? group : DEEP;
    TileShapes shapes = {0};
    for (int tile = 0; tile < 4; tile++) shape_tile(&shapes, tile, rows, 64);
    for (int tile = 4; tile < 6; tile++) shape_tile(&shapes, tile, rows, deep);
    for (int tile = 6; tile < 8; tile++) shape_tile(&shapes, tile, deep / 4, 64);
    SHAPE_TILES(shapes);
}

#define OF_INT8(SUM, X, W)                                                                                             \
    do {                                                                                                               \
        _tile_zero(SUM);                                                                                               \
        for (int at = 0; at < group; at += DEEP) {                                                                     \
            _tile_loadd(W, w + at * PANEL, 64);                                                                        \
            _tile_loadd(X, x + at, group);                                                                             \
            _tile_dpbssd(SUM, X, W);                                                                                   \
        }                                                                                                              \
    } while (0)
#define OF_INT16(LOW, HIGH)                                                                                            \
    do {                                                                                                               \
        _tile_zero(LOW);                                                                                               \
        _tile_zero(HIGH);                                                                                              \
        for (int at = 0; at < group; at += DEEP) {                                                                     \
            _tile_loadd(6, w + at * PANEL, 64);                                                                        \
            _tile_loadd(4, x + at, group);                                                                             \
            _tile_dpbusd(LOW, 4, 6);                                                                                   \
            _tile_loadd(5, x + rows * group + at, group);                                                              \
            _tile_dpbssd(HIGH, 5, 6);                                                                                  \
        }                                                                                                              \
    } while (0)

// Multiplies the `g`th group's w with x [rows, group], behind which the upper bytes of int16 lie.
INLINE void multiply(const int two, int64_t g, int rows, int group, const uint8_t *x, const uint8_t *w) {
    if (!two) switch (g % 4) {
        case 0: OF_INT8(0, 4, 6); break;
        case 1: OF_INT8(1, 5, 7); break;
        case 2: OF_INT8(2, 4, 6); break;
        default: OF_INT8(3, 5, 7);
        }
    else if (g % 2) OF_INT16(2, 3);
    else OF_INT16(0, 1);
}

// Stores the sums of the `g`th group, of which `to` has four tiles.
INLINE void store(const int two, int64_t g, int32_t *to) {
    if (!two) switch (g % 4) {
        case 0: _tile_stored(0, to, 64); break;
        case 1: _tile_stored(1, to + TILE / 4, 64); break;
        case 2: _tile_stored(2, to + TILE / 2, 64); break;
        default: _tile_stored(3, to + TILE * 3 / 4, 64);
        }
    else if (g % 2) {
        _tile_stored(2, to + TILE / 2, 64);
        _tile_stored(3, to + TILE * 3 / 4, 64);
    } else {
        _tile_stored(0, to, 64);
        _tile_stored(1, to + TILE / 4, 64);
    }
}

// Adds the sums of a group.
INLINE void add_group(const int rows, const int two, const int32_t *from, const float *scale, const float *least,
                      const float *x_scale, const float *x_sum, __m512 *total) {
    const __m512 by = _mm512_loadu_ps(scale);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        __m512i sum = _mm512_load_si512(from + r * PANEL);
        if (two) sum = _mm512_add_epi32(sum, _mm512_slli_epi32(_mm512_load_si512(from + TILE / 4 + r * PANEL), 8));
        const __m512 factor = _mm512_mul_ps(by, _mm512_set1_ps(x_scale[r]));
        total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, total[r]);
    }
    if (!least) return;
    const __m512 each = _mm512_loadu_ps(least);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) total[r] = _mm512_fmadd_ps(each, _mm512_set1_ps(x_sum[r]), total[r]);
}

// A tile of rows whose groups begin at x.
typedef struct {
    const uint8_t *x;
    const float *x_scale, *x_sum;
    float *out;
    int64_t columns;
    int group, anew;
} Rows;

// `panels` of a block with a tile of rows, `groups` of each.
INLINE void amx_tile(const int rows, const int two, const Rows *of, const Block *block, int64_t panels,
                     int64_t groups) {
    int32_t sums[TILE] __attribute__((aligned(64)));
    const int group = of->group;
    const int64_t columns = of->columns, x_bytes = (int64_t)rows * group * (two ? 2 : 1);
    const int64_t all = panels * groups, later = LATER(two);
    const uint8_t *x = of->x, *x_end = x + groups * x_bytes, *w = block->numbers;
    int64_t g = -2 * later, ahead = 0;  // of all groups, which is added, and which is multiplied
    MEMORY_IS_READ;
    for (int64_t panel = 0; panel < panels; panel++) {
        const float *scale = block->by[panel].scale, *least = block->by[panel].least;
        const float *x_scale = of->x_scale, *x_sum = of->x_sum;
        float *out = of->out + panel * PANEL;
        __m512 total[AMX_ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) total[r] = of->anew ? _mm512_setzero_ps() : _mm512_loadu_ps(out + r * columns);
        for (const int64_t end = (panel + 1) * groups; g < end; g++, ahead++) {
            if (ahead < all) {
                multiply(two, ahead, rows, group, x, w);
                x += x_bytes, w += group * PANEL;
                if (x == x_end) x = of->x;
            }
            if (ahead >= later && ahead < all + later) store(two, ahead - later, sums);
            if (g < 0) continue;
            add_group(rows, two, sums + g % (2 * later) * (TILE / (2 * later)), scale, least, x_scale, x_sum, total);
            scale += PANEL, x_scale += rows, x_sum += rows;
            if (least) least += PANEL;
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) _mm512_storeu_ps(out + r * columns, total[r]);
    }
}

typedef void Tile(const Rows *of, const Block *block, int64_t panels, int64_t groups);

#define OF_ROWS(R, TWO)                                                                                                \
    ALONE static void amx_tile_##R##_##TWO(const Rows *of, const Block *block, int64_t panels, int64_t groups) {       \
        amx_tile(R, TWO, of, block, panels, groups);                                                                   \
    }
// clang-format off
#define EACH(DO, TWO)                                                                                                  \
    DO(1, TWO) DO(2, TWO) DO(3, TWO) DO(4, TWO) DO(5, TWO) DO(6, TWO) DO(7, TWO) DO(8, TWO)                            \
    DO(9, TWO) DO(10, TWO) DO(11, TWO) DO(12, TWO) DO(13, TWO) DO(14, TWO) DO(15, TWO) DO(16, TWO)
// clang-format on
EACH(OF_ROWS, 0)
EACH(OF_ROWS, 1)
#define NAME(R, TWO) amx_tile_##R##_##TWO,
static Tile *const tiles[2][AMX_ROWS] = {{EACH(NAME, 0)}, {EACH(NAME, 1)}};

// ---------------------------------------------------------------------------------------------------- products

// The groups from `first` to `last` of some panels, which `block` has, with all rows. `shaped`: the rows that tiles have.
INLINE void all_tiles(const Product *p, int two, int group, int64_t panel, int64_t panels, int64_t first, int64_t last,
                      const Block *block, int *shaped) {
    const int64_t columns = p->panels * PANEL, row_bytes = group * (two ? 2 : 1);
    for (int64_t row = 0, rows; row < p->rows; row += rows) {
        rows = tile_rows(p->rows - row, AMX_ROWS);
        if (rows != *shaped) amx_shape((int)rows, group);
        *shaped = (int)rows;
        const int64_t at = row * p->groups + first * rows;
        const Rows of = {.x = (const uint8_t *)p->x + at * row_bytes,
                         .x_scale = p->x_scale + at,
                         .x_sum = p->x_sum + at,
                         .out = p->out + row * columns + panel * PANEL,
                         .columns = columns,
                         .group = group,
                         .anew = first == 0};
        // The next rows' sums are asked for: they lie far apart.
        for (int64_t r = rows; r < 2 * rows && row + r < p->rows; r++)
            for (int64_t n = 0; n < panels; n++)
                _mm_prefetch((const char *)(of.out + r * columns + n * PANEL), _MM_HINT_T0);
        tiles[two][rows - 1](&of, block, panels, last - first);
    }
}

// Panels from `first` to `last`. A single tile of rows waits for memory, which likes one stream best: panels that follow each
// other are whole then.
INLINE void panels_of(const Product *p, const int bits, const int two, int group, int64_t first, int64_t last) {
    const int whole = p->rows <= AMX_ROWS;
    const int64_t each = BLOCK / group, blocks = (p->groups + each - 1) / each;
    const int64_t pairs = (last - first + BESIDE - 1) / BESIDE;
    int shaped = 0;
    Block block;
    for (int64_t i = 0; i < blocks * pairs; i++) {
        const int64_t panel = first + (whole ? i / blocks : i % pairs) * BESIDE;
        const int64_t panels = last - panel < BESIDE ? last - panel : BESIDE;
        const int64_t start = (whole ? i % blocks : i / pairs) * each;
        const int64_t end = start + each < p->groups ? start + each : p->groups;
        for (int64_t n = 0; n < panels; n++) {
            const uint8_t *ahead = p->weight + ((panel + n) * p->groups + start) * group * PANEL * bits / 8 + AHEAD;
            if (!whole) ahead = next_weights(p, bits, group, panel + n, start, end, first, last);
            unpack(p, bits, group, panel + n, start, end, n, &block, ahead);
        }
        all_tiles(p, two, group, panel, panels, start, end, &block, &shaped);
    }
    _tile_release();
}

ALONE static void amx_panels_8(const Product *p, int two, int group, int64_t first, int64_t last) {
    panels_of(p, 8, two, group, first, last);
}

ALONE static void amx_panels_4(const Product *p, int two, int group, int64_t first, int64_t last) {
    panels_of(p, 4, two, group, first, last);
}

void amx_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    const int two = !takes_int8(bits, group, p->table, p->least != 0);
    if (bits == 8) amx_panels_8(p, two, group, first, last);
    else amx_panels_4(p, two, group, first, last);
}

#ifdef __clang__
#pragma clang attribute pop
#endif

#else

void amx_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    (void)p, (void)bits, (void)group, (void)first, (void)last;
}

#endif
