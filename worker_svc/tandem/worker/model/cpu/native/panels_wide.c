// Products with bf16 and fp32 weights for processors with AVX-512: bf16 by AMX where it is there, else by vdpbf16ps.
//
// Two panels of 16 rows of W lie interleaved, so that a thread reads one stream of memory: bf16 as
// [pairs, tiles, 2, 16, 16, 2], where a tile is 32 inputs, cut into 16 twos; fp32 as [pairs, inputs, 2, 16]. Inputs are
// filled up to whole tiles and outputs to whole pairs, with zeros.
//
// A row's number is the sum over the inputs in their order, in one accumulator, whatever the other rows, the blocks and the
// threads: a sum that is put down between two blocks is taken up as it was. AMX and vdpbf16ps add up in different
// orders, so a process uses one of them for everything.
//
// What needs bf16's instructions or AMX stands in functions that are named so and never become part of another: a
// compiler may move an instruction in front of the `if` that it stands behind.

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "matrices.h"
#include "operations.h"

#define PAIR 32            // outputs of two panels
#define TILE 32            // inputs of a tile of bf16
#define ROWS 12            // of a block of activations, whose sums fill 24 of 32 registers
#define ROWS_AMX 32        // the same, in two tiles
#define CACHED (1 << 20)   // bytes of activations that stay in the second cache while weights go by
#define BLOCKS_AT_ONCE 20  // of activations for which weights are read once; 8 by AMX
#define WORTH_THREADS (1 << 18)

#define ALONE __attribute__((noinline))

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 11)
#define WITH_AMX 1
#endif

static int amx_allowed = 1;

static int fp32_is_there(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

static int bf16_is_there(void) { return fp32_is_there() && __builtin_cpu_supports("avx512bf16"); }

// Asks the system for the tiles' registers, once: it saves them for processes that have asked only.
static int amx_is_there(void) {
    static int known = -1;
    if (known < 0) {
        unsigned a, b, c, d = 0;
        const unsigned needed = 1u << 22 | 1u << 24;  // amx-bf16, amx-tile
        known = 0;
#ifdef WITH_AMX
        if (bf16_is_there() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed)
            known = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM of the tiles' data
#else
        (void)a, (void)b, (void)c, (void)d, (void)needed;
#endif
    }
    return known;
}

// What serves here: bit 0 fp32, bit 1 bf16 by vdpbf16ps, bit 2 bf16 by AMX.
int tandem_wide_serves(void) {
    return (fp32_is_there() ? 1 : 0) | (bf16_is_there() ? 2 : 0) | (amx_is_there() ? 4 : 0);
}

// Whether AMX may be used from now on, as it may at first. For comparisons; the bits differ.
void tandem_allow_amx(int allowed) { amx_allowed = allowed; }

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16"))),        \
                             apply_to = function)
#elif defined(WITH_AMX)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")
#endif

typedef struct {
    const uint8_t *weight;
    float *out;                    // [rows, outputs]
    int64_t rows, steps, outputs;  // steps: tiles of bf16, inputs of fp32
} Wide;

// The lanes of a pair's panel that are outputs.
INLINE __mmask16 lanes(const Wide *p, int64_t pair, int panel) {
    const int64_t left = p->outputs - pair * PAIR - panel * 16;
    return left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1 << left) - 1);
}

// ---------------------------------------------------------------------------------------------------- activations

// A block of `rows`, each where `x` says it is, as [tiles, rows, 32] bf16.
ALONE static void pack_bf16(const float *const *x, int64_t rows, int64_t k, uint16_t *to) {
    for (int64_t start = 0; start < k; start += TILE)
        for (int64_t r = 0; r < rows; r++, to += TILE)
            for (int h = 0; h < 2; h++) {
                const int64_t left = k - start - 16 * h;
                const __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1 << left) - 1);
                const __m512 v = _mm512_maskz_loadu_ps(mask, x[r] + start + 16 * h);
                _mm256_storeu_si256((__m256i *)(to + 16 * h), (__m256i)_mm512_cvtneps_pbh(v));
            }
}

// A block of `rows` as [k, rows].
ALONE static void pack_fp32(const float *const *x, int64_t rows, int64_t k, float *to) {
    for (int64_t first = 0; first < k; first += 16)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = first; i < first + 16 && i < k; i++) to[i * rows + r] = x[r][i];
}

// ---------------------------------------------------------------------------------------------------- AMX

#ifdef WITH_AMX
#define MEMORY_IS_READ __asm__ volatile("" ::: "memory")  // and written: gcc's tile operations do not say so

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t columns[16];  // bytes of a row
    uint8_t rows[16];
} __attribute__((packed)) TileShapes;

// Sums 0 to 3, activations 4 and 5, weights 6 and 7, for blocks of `upper` and `lower` rows.
ALONE static void amx_shape(int upper, int lower) {
    TileShapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int tile = 0; tile < 8; tile++) {
        const int rows = tile >= 6 ? 16 : tile == 4 || tile < 2 ? upper : lower;
        shapes.rows[tile] = (uint8_t)rows;
        shapes.columns[tile] = rows ? 64 : 0;
    }
    _tile_loadconfig(&shapes);
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

// ---------------------------------------------------------------------------------------------------- AVX-512

// A block of `rows` with a pair of panels. Of fp32 a step is one input, of bf16 a tile. Meanwhile what
// follows at `ahead` is asked for, `pace` bytes for each input of fp32 or two of bf16.
INLINE void sums(const int rows, const int bf16, const void *x, const uint8_t *w, int64_t first, int64_t last,
                 float *out, int64_t stride, __mmask16 left, __mmask16 right, const uint8_t *ahead, int64_t pace) {
    __m512 sum[ROWS][2];
    for (int r = 0; r < rows; r++) {
        sum[r][0] = first ? _mm512_maskz_loadu_ps(left, out + r * stride) : _mm512_setzero_ps();
        sum[r][1] = first ? _mm512_maskz_loadu_ps(right, out + r * stride + 16) : _mm512_setzero_ps();
    }
    const int twos_in_step = bf16 ? TILE / 2 : 1;
    for (int64_t step = first; step < last; step++) {
        const uint8_t *here = w + step * twos_in_step * 128;
        const float *numbers = (const float *)x + step * rows * twos_in_step;
        for (int i = 0; i < twos_in_step; i++, ahead += pace) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
            _mm_prefetch((const char *)ahead + 64, _MM_HINT_T1);
            const __m512 a = _mm512_loadu_ps(here + 64 * i), b = _mm512_loadu_ps(here + (bf16 ? 1024 : 64) + 64 * i);
            for (int r = 0; r < rows; r++) {
                const __m512 v = _mm512_set1_ps(numbers[r * twos_in_step + i]);
                if (bf16) {
                    sum[r][0] = _mm512_dpbf16_ps(sum[r][0], (__m512bh)v, (__m512bh)a);
                    sum[r][1] = _mm512_dpbf16_ps(sum[r][1], (__m512bh)v, (__m512bh)b);
                } else {
                    sum[r][0] = _mm512_fmadd_ps(v, a, sum[r][0]);
                    sum[r][1] = _mm512_fmadd_ps(v, b, sum[r][1]);
                }
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        _mm512_mask_storeu_ps(out + r * stride, left, sum[r][0]);
        _mm512_mask_storeu_ps(out + r * stride + 16, right, sum[r][1]);
    }
}

#define CASE(R)                                                                                                        \
    case R: sums(R, bf16, x, w, first, last, out, p->outputs, left, right, ahead, pace); break;

// The same for any number of rows.
INLINE void block(const Wide *p, const int bf16, const void *x, int64_t row, int64_t rows, int64_t pair, int64_t first,
                  int64_t last, const uint8_t *ahead, int64_t pace) {
    const __mmask16 left = lanes(p, pair, 0), right = lanes(p, pair, 1);
    const uint8_t *w = p->weight + pair * p->steps * (bf16 ? 2048 : 128);
    float *out = p->out + row * p->outputs + pair * PAIR;
    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) }
}

// ---------------------------------------------------------------------------------------------------- the product

// A thread's pairs, with all rows.
INLINE void pairs_of(const Wide *p, const int bf16, const int amx, const void *x, int64_t from, int64_t to) {
    const int64_t bytes = bf16 ? TILE * 2 : 4, width = PAIR * bytes;  // of a row's step, and of a pair's
    const int64_t high = amx ? ROWS_AMX : ROWS, at_once = high * (amx ? 8 : BLOCKS_AT_ONCE);
#ifdef WITH_AMX
    int64_t shaped = 0;
#endif
    for (int64_t start = 0; start < p->rows; start += at_once) {
        const int64_t end = start + at_once < p->rows ? start + at_once : p->rows;
        const int64_t fitting = CACHED / ((end - start) * bytes), blocks = (end - start + high - 1) / high;
        // Of fp32, a block's activations are to stay in the first cache.
        const int64_t steps = fitting >= p->steps ? p->steps : !bf16 && end - start > ROWS ? 512 : fitting;
        for (int64_t first = 0; first < p->steps; first += steps) {
            const int64_t last = first + steps < p->steps ? first + steps : p->steps;
            for (int64_t pair = from; pair < to; pair++)
                for (int64_t row = start, rows; row < end; row += rows) {
                    rows = end - row < high ? end - row : high;
                    // A single block asks for what it will need itself, several share the next pair's weights.
                    const uint8_t *ahead = p->weight + ((pair + (blocks > 1)) * p->steps + first) * width;
                    ahead += blocks > 1 ? (row - start) / high * (last - first) * width / blocks : 8192;
#ifdef WITH_AMX
                    if (amx) {
                        if (rows != shaped) amx_shape(rows < 16 ? (int)rows : 16, rows < 16 ? 0 : (int)rows - 16);
                        shaped = rows;
                        amx_block(p, x, row, rows, pair, first, last, ahead, width / blocks);
                        continue;
                    }
#endif
                    if (bf16)
                        block(p, 1, (const uint16_t *)x + row * p->steps * TILE, row, rows, pair, first, last, ahead,
                              128 / blocks);
                    else
                        block(p, 0, (const float *)x + row * p->steps, row, rows, pair, first, last, ahead,
                              128 / blocks);
                }
        }
    }
#ifdef WITH_AMX
    if (amx) _tile_release();
#endif
}

typedef void Pairs(const Wide *p, const void *x, int64_t from, int64_t to);

ALONE static void pairs_fp32(const Wide *p, const void *x, int64_t from, int64_t to) { pairs_of(p, 0, 0, x, from, to); }

ALONE static void pairs_bf16(const Wide *p, const void *x, int64_t from, int64_t to) { pairs_of(p, 1, 0, x, from, to); }

#ifdef WITH_AMX
ALONE static void pairs_amx(const Wide *p, const void *x, int64_t from, int64_t to) { pairs_of(p, 1, 1, x, from, to); }
#endif

static int by_amx(int bf16) { return bf16 && amx_allowed && amx_is_there(); }

// Rows that are packed together.
int64_t wide_rows(int bf16) { return by_amx(bf16) ? ROWS_AMX / 2 : ROWS; }

// Rows of x [.., k] from `row` on, up to `wide_rows` of them: those of `order`, unless it is null. `room` is that of all rows.
void wide_pack(int bf16, const float *x, const int32_t *order, int64_t row, int64_t rows, int64_t k, void *room) {
    const float *of[ROWS_AMX];
    for (int64_t r = 0; r < rows; r++) of[r] = x + (order ? order[row + r] : row + r) * k;
    if (bf16) pack_bf16(of, rows, k, (uint16_t *)room + row * ((k + TILE - 1) / TILE * TILE));
    else pack_fp32(of, rows, k, (float *)room + row * k);
}

// Pairs of panels from `first` to `last`, of rows that are packed in `room`.
void wide_outputs(int bf16, const void *weight, const void *room, float *out, int64_t rows, int64_t k, int64_t outputs,
                  int64_t first, int64_t last) {
    const Wide p = {weight, out, rows, bf16 ? (k + TILE - 1) / TILE : k, outputs};
    Pairs *some_pairs = bf16 ? pairs_bf16 : pairs_fp32;
#ifdef WITH_AMX
    if (by_amx(bf16)) some_pairs = pairs_amx;
#endif
    some_pairs(&p, room, first, last);
}

// x [rows, k] -> out [rows, outputs]; `room` has rows * (k filled up to whole tiles) numbers of 4 bytes.
void tandem_wide_product(int bf16, const void *weight, const float *x, void *room, float *out, int64_t rows, int64_t k,
                         int64_t outputs, int threads) {
    const int64_t high = wide_rows(bf16), pairs = (outputs + PAIR - 1) / PAIR, blocks = (rows + high - 1) / high;
    if (rows * k * outputs < WORTH_THREADS) threads = 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && rows * k > 65536)
    for (int64_t row = 0; row < blocks * high; row += high)
        wide_pack(bf16, x, 0, row, rows - row < high ? rows - row : high, k, room);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int part = 0; part < threads; part++)
        wide_outputs(bf16, weight, room, out, rows, k, outputs, pairs * part / threads, pairs * (part + 1) / threads);
}

#ifdef __clang__
#pragma clang attribute pop
#endif
