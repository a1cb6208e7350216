// Products with bf16, fp16 and fp32 weights for processors with AVX-512: bf16 by AMX where it is there, else by vdpbf16ps,
// else made fp32 by shifts; fp16 is made fp32 by vcvtph2ps.
//
// Two panels of 16 rows of W lie interleaved, so that a thread reads one stream of memory: bf16 as
// [pairs, tiles, 2, 16, 16, 2], where a tile is 32 inputs, cut into 16 twos; the others as [pairs, inputs, 2, 16]. Inputs of
// bf16 are filled up to whole tiles, and outputs to whole pairs, with zeros.
//
// A row's number is the sum over the inputs in their order, in one accumulator, whatever the other rows, the blocks and the
// threads: a sum that is put down between two blocks is taken up as it was. Each way of bf16 has bits of its own (AMX and
// vdpbf16ps also round activations to bf16), so a process uses one of them for everything.
//
// What needs bf16's instructions or AMX stands in functions of its own: see amx.h.

#include "amx.h"
#include "gates.h"
#include "matrices.h"
#include "operations.h"
#include "prefetch.h"
#include "shares.h"
#include "team.h"

#define TILE 32            // inputs of a tile of bf16
#define ROWS 12            // of a block of activations at most, whose sums fill 24 of 32 registers
#define ROWS_AMX 32        // the same, in two tiles
#define CACHED (1 << 20)   // bytes of activations and of two pairs' weights that stay in the second cache
#define BLOCKS_AT_ONCE 14  // of activations for which weights are read once
#define AMX_BLOCKS 8       // the same by AMX
#define WORTH_THREADS (1 << 18)
#define MOST_IN_PIECES 64  // rows of a product whose panels threads take piece by piece
#define WORTH_ROWS 65536   // numbers that one thread packs alone

// How a product is computed. The first are kinds of numbers (`numbers.h`), the others ways of bf16.
enum { BY_SHIFTS = 8, BY_TWOS = 9, BY_AMX = 10 };

static int most_allowed = BY_AMX;

static int avx512_is_there(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

static int bf16_is_there(void) { return avx512_is_there() && __builtin_cpu_supports("avx512bf16"); }

static int tiles_serve(void) { return bf16_is_there() && amx_is_there(AMX_BF16); }

// How bf16 is computed here at best: by shifts (1), by vdpbf16ps (2), by AMX (3); 0 where nothing here serves.
int tandem_wide_serves(void) { return tiles_serve() ? 3 : bf16_is_there() ? 2 : avx512_is_there() ? 1 : 0; }

// The best of these that bf16 may use from now on, 3 at first. For comparisons; the bits differ.
void tandem_limit_bf16(int most) { most_allowed = BY_SHIFTS - 1 + most; }

static int way_of(int kind) {
    if (kind != BF16) return kind;
    if (most_allowed >= BY_AMX && tiles_serve()) return BY_AMX;
    return most_allowed >= BY_TWOS && bf16_is_there() ? BY_TWOS : BY_SHIFTS;
}

int amx_serves(void) { return way_of(BF16) == BY_AMX; }

int twos_serve(void) { return way_of(BF16) != BY_SHIFTS && bf16_is_there(); }

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
    int64_t rows, steps, outputs;  // steps: tiles of bf16, inputs of the others
} Wide;

// Of a step: how often a vector of weights is read from each panel, bytes of a pair's weights, bytes of a row's activations.
#define READS(way) ((way) >= BY_SHIFTS ? TILE / 2 : 1)
#define WEIGHT_BYTES(way) ((way) >= BY_SHIFTS ? PAIR * TILE * 2 : (way) == FP16 ? PAIR * 2 : PAIR * 4)
#define ROW_BYTES(way) ((way) >= BY_TWOS ? TILE * 2 : (way) == BY_SHIFTS ? TILE * 4 : 4)

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

// A block of `rows` as [width, rows], where zeros follow k inputs.
ALONE static void pack_fp32(const float *const *x, int64_t rows, int64_t k, int64_t width, float *to) {
    for (int64_t first = 0; first < k; first += 16)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = first; i < first + 16 && i < k; i++) to[i * rows + r] = x[r][i];
    memset(to + k * rows, 0, (size_t)((width - k) * rows) * sizeof(float));
}

// A row's part of a tile: activation(gate) * up, of 32 gates and as many others behind them.
INLINE void gate_tile(const Gate *how, const float *gate, uint16_t *to) {
    for (int i = 0; i < TILE; i += 8) {
        const __m256 v = gated(how, _mm256_load_ps(gate + i), _mm256_load_ps(gate + TILE + i));
        _mm_store_si128((__m128i *)(to + i), (__m128i)_mm256_cvtneps_pbh(v));
    }
}

// What a pair of `gates` lets through of the rows from `start` to `end`, of which `both` has gates and what they are for, goes
// where `pack_bf16` would put it in blocks of `high` rows.
INLINE void gate_pair(const Gate *how, float both[][2 * PAIR], int64_t start, int64_t end, int64_t high, int64_t gates,
                      int64_t pair, uint16_t *packed) {
    for (int64_t row = start, rows; row < end; row += rows) {
        rows = end - row < high ? end - row : high;
        uint16_t *tile = packed + (row * gates + pair * rows) * TILE;
        for (int64_t r = 0; r < rows; r++) gate_tile(how, both[row - start + r], tile + r * TILE);
    }
}

// Rows whose activations are taken at once, in blocks of up to `high`, where there may be `most` blocks. Weights are read as
// often for few blocks as for many, so none of the rounds is to have only few.
INLINE int64_t rows_at_once(int64_t rows, int64_t high, int64_t most) {
    const int64_t all = (rows + high - 1) / high, rounds = (all + most - 1) / most;
    return (all + rounds - 1) / rounds * high;
}

#include "panels_amx.h"

// ---------------------------------------------------------------------------------------------------- AVX-512

typedef struct {
    __m512 left[2], right[2];  // of the two panels, for one input, or by shifts for two
} Weights;

// What is read from both panels at once.
INLINE Weights weights_at(const int way, const uint8_t *w) {
    Weights weights = {{_mm512_setzero_ps()}};
    if (way == FP16) {
        weights.left[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w));
        weights.right[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + 32)));
        return weights;
    }
    const __m512i left = _mm512_loadu_si512(w), right = _mm512_loadu_si512(w + (way == FP32 ? 64 : 1024));
    weights.left[0] = (__m512)(way == BY_SHIFTS ? _mm512_slli_epi32(left, 16) : left);
    weights.right[0] = (__m512)(way == BY_SHIFTS ? _mm512_slli_epi32(right, 16) : right);
    if (way == BY_SHIFTS) {
        const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
        weights.left[1] = (__m512)_mm512_and_si512(left, upper);
        weights.right[1] = (__m512)_mm512_and_si512(right, upper);
    }
    return weights;
}

// Adds steps of bf16 for a single row, one panel of a step after the other: memory gives most where it is read byte for
// byte. From two rows on the order below is no slower.
INLINE void row_sums(const int second, const float *numbers, const uint8_t *w, int64_t steps, __m512 *sum) {
    for (int64_t step = 0; step < steps; step++, w += WEIGHT_BYTES(BY_TWOS), numbers += READS(BY_TWOS))
        for (int panel = 0; panel < 2; panel++)
#pragma GCC unroll 16
            for (int i = 0; i < READS(BY_TWOS); i++) {
                const uint8_t *here = w + 1024 * panel + 64 * i;
                if (second) _mm_prefetch((const char *)here + 4096, _MM_HINT_T1);
                else _mm_prefetch((const char *)here + 4096, _MM_HINT_T0);
                sum[panel] = _mm512_dpbf16_ps(sum[panel], (__m512bh)_mm512_set1_ps(numbers[i]),
                                              (__m512bh)_mm512_loadu_si512(here));
            }
}

#define AGAIN 4096  // bytes to what is asked for once more (prefetch.h)
// A single block waits for memory. Only bf16 was measured.
INLINE int asks_again(const int way, int64_t blocks) { return way == BY_TWOS && blocks == 1 && by_second_cache(); }

// A block of `rows` with a pair of panels. Meanwhile what follows at `ahead` is asked for, `pace` bytes for each read, and
// where the next block's sums go, a row each step: rows of `out` lie too far apart for the processor to see it coming.
INLINE void sums(const int rows, const int way, const void *x, const uint8_t *w, int64_t first, int64_t last,
                 float *out, int64_t stride, __mmask16 left, __mmask16 right, const uint8_t *ahead, int64_t pace,
                 const int again, const float *next) {
    __m512 sum[ROWS][2];
    for (int r = 0; r < rows; r++) {
        sum[r][0] = first ? _mm512_maskz_loadu_ps(left, out + r * stride) : _mm512_setzero_ps();
        sum[r][1] = first ? _mm512_maskz_loadu_ps(right, out + r * stride + 16) : _mm512_setzero_ps();
    }
    const int reads = READS(way), inputs = way == BY_SHIFTS ? 2 : 1;  // numbers of a row for a read
    const int alone = way == BY_TWOS && rows == 1;
    if (alone) {
        const float *numbers = (const float *)x + first * reads;
        if (by_second_cache()) row_sums(1, numbers, w + first * WEIGHT_BYTES(way), last - first, sum[0]);
        else row_sums(0, numbers, w + first * WEIGHT_BYTES(way), last - first, sum[0]);
    }
    for (int64_t step = first; !alone && step < last; step++) {
        const uint8_t *here = w + step * WEIGHT_BYTES(way);
        if (rows > 1 && step < first + rows) {
            _mm_prefetch((const char *)next, _MM_HINT_T0);
            _mm_prefetch((const char *)(next + 16), _MM_HINT_T0);
            next += stride;
        }
        const float *numbers = (const float *)x + step * rows * reads * inputs;
        for (int i = 0; i < reads; i++, ahead += pace) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
            if (way != FP16) _mm_prefetch((const char *)ahead + 64, _MM_HINT_T1);
            if (again) {
                _mm_prefetch((const char *)here + 64 * i + AGAIN, _MM_HINT_T1);
                _mm_prefetch((const char *)here + 64 * i + AGAIN + 1024, _MM_HINT_T1);
            }
            const Weights weights = weights_at(way, here + 64 * i);
            for (int n = 0; n < inputs; n++)
                for (int r = 0; r < rows; r++) {
                    const __m512 v =
                        _mm512_set1_ps(numbers[way == BY_TWOS ? r * reads + i : (i * inputs + n) * rows + r]);
                    if (way == BY_TWOS) {
                        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], (__m512bh)v, (__m512bh)weights.left[0]);
                        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], (__m512bh)v, (__m512bh)weights.right[0]);
                    } else {
                        sum[r][0] = _mm512_fmadd_ps(v, weights.left[n], sum[r][0]);
                        sum[r][1] = _mm512_fmadd_ps(v, weights.right[n], sum[r][1]);
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
    case R: sums(R, way, x, w, first, last, out, stride, left, right, ahead, pace, again, next); break;

// The same for any number of rows, whose sums are at `out`, `stride` numbers apart.
INLINE void block(const Wide *p, const int way, const void *x, int64_t rows, int64_t pair, int64_t first, int64_t last,
                  float *out, int64_t stride, const uint8_t *ahead, int64_t pace, const int again, const float *next) {
    const __mmask16 left = lanes(p, pair, 0), right = lanes(p, pair, 1);
    const uint8_t *w = p->weight + pair * p->steps * WEIGHT_BYTES(way);
    switch (rows) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) }
}

// ---------------------------------------------------------------------------------------------------- the product

// A thread's pairs, with all rows.
INLINE void pairs_of(const Wide *p, const int way, const uint8_t *x, int64_t from, int64_t to) {
    const int amx = way == BY_AMX;
    const int64_t bytes = ROW_BYTES(way), width = WEIGHT_BYTES(way), high = amx ? ROWS_AMX : tile_rows(p->rows, ROWS);
    const int64_t at_once = rows_at_once(p->rows, high, amx ? AMX_BLOCKS : BLOCKS_AT_ONCE), stride = p->outputs;
    const int64_t few = way == BY_SHIFTS ? 512 / TILE : 512;
#ifdef WITH_AMX
    int64_t shaped = 0;
#endif
    for (int64_t start = 0; start < p->rows; start += at_once) {
        const int64_t end = start + at_once < p->rows ? start + at_once : p->rows;
        const int64_t blocks = (end - start + high - 1) / high;
        const int again = asks_again(way, blocks);
        // Several blocks read the weights of a pair again, which are to stay there too, beside the next pair's.
        const int64_t weights = blocks > 1 ? 2 * width + width / 2 : 0,
                      pace = (width / READS(way) + blocks - 1) / blocks;
        const int64_t fitting = CACHED / ((end - start) * bytes + weights), parts = (p->steps + fitting - 1) / fitting;
        // A block's activations of fp32 are to stay in the first cache.
        const int64_t steps = parts <= 1                            ? p->steps
                              : way < BY_TWOS && end - start > ROWS ? few
                                                                    : (p->steps + parts - 1) / parts;
        for (int64_t first = 0; first < p->steps; first += steps) {
            const int64_t last = first + steps < p->steps ? first + steps : p->steps;
            for (int64_t pair = from; pair < to; pair++) {
#ifdef WITH_AMX
                if (amx) {
                    const Sums out = {p->out + start * stride + pair * PAIR, stride};
                    amx_pair(p, (const uint16_t *)x, pair, pair + 1, start, end, first, last, out, &shaped);
                    continue;
                }
#endif
                for (int64_t row = start, rows; row < end; row += rows) {
                    rows = end - row < high ? end - row : high;
                    // A single block asks for what it will need itself, several share the next pair's weights.
                    const uint8_t *ahead = p->weight + ((pair + (blocks > 1)) * p->steps + first) * width;
                    ahead += blocks > 1 ? (row - start) / high * (last - first) * width / blocks : 8192;
                    const int64_t down = row + rows < end;  // the next block is of this pair
                    const float *next = p->out + (down ? row + rows : start) * stride + (pair + !down) * PAIR;
                    block(p, way, x + row * p->steps * bytes, rows, pair, first, last,
                          p->out + row * stride + pair * PAIR, stride, ahead, pace, again, next);
                }
            }
        }
    }
#ifdef WITH_AMX
    if (amx) _tile_release();
#endif
}

typedef void Pairs(const Wide *p, const uint8_t *x, int64_t from, int64_t to);

ALONE static void pairs_fp32(const Wide *p, const uint8_t *x, int64_t from, int64_t to) {
    pairs_of(p, FP32, x, from, to);
}

ALONE static void pairs_fp16(const Wide *p, const uint8_t *x, int64_t from, int64_t to) {
    pairs_of(p, FP16, x, from, to);
}

ALONE static void pairs_shifted(const Wide *p, const uint8_t *x, int64_t from, int64_t to) {
    pairs_of(p, BY_SHIFTS, x, from, to);
}

ALONE static void pairs_bf16(const Wide *p, const uint8_t *x, int64_t from, int64_t to) {
    pairs_of(p, BY_TWOS, x, from, to);
}

#ifdef WITH_AMX
ALONE static void pairs_amx(const Wide *p, const uint8_t *x, int64_t from, int64_t to) {
    pairs_of(p, BY_AMX, x, from, to);
}
#endif

// A thread's pairs of gates, with all rows: activation(gate) * up, where up's pairs lie behind all gates'. A pair's are a
// tile of what the next product is given, and go where `pack_bf16` would put them.
ALONE static void gated_bf16(const Wide *p, const Gate *how, const uint8_t *x, uint16_t *packed, int64_t from,
                             int64_t to) {
    const int64_t gates = p->outputs / 2 / PAIR, bytes = p->steps * ROW_BYTES(BY_TWOS);
    const int64_t width = p->steps * WEIGHT_BYTES(BY_TWOS), high = tile_rows(p->rows, ROWS);
    const int64_t at_once = rows_at_once(p->rows, high, BLOCKS_AT_ONCE);
    float both[BLOCKS_AT_ONCE * ROWS][2 * PAIR] __attribute__((aligned(64)));
    for (int64_t start = 0; start < p->rows; start += at_once) {
        const int64_t end = start + at_once < p->rows ? start + at_once : p->rows;
        const int64_t blocks = (end - start + high - 1) / high;
        const int again = asks_again(BY_TWOS, blocks);
        const int64_t pace = (WEIGHT_BYTES(BY_TWOS) / READS(BY_TWOS) + blocks - 1) / blocks;
        for (int64_t pair = from; pair < to; pair++) {
            for (int up = 0; up < 2; up++)
                for (int64_t row = start, rows; row < end; row += rows) {
                    rows = end - row < high ? end - row : high;
                    const uint8_t *ahead = p->weight + (up ? pair + 1 : pair + gates) * width;
                    float *out = both[row - start] + up * PAIR;
                    block(p, BY_TWOS, x + row * bytes, rows, pair + up * gates, 0, p->steps, out, 2 * PAIR,
                          ahead + (row - start) / high * width / blocks, pace, again, out);
                }
            gate_pair(how, both, start, end, high, gates, pair, packed);
        }
    }
}

typedef void Gates(const Wide *p, const Gate *how, const uint8_t *x, uint16_t *packed, int64_t from, int64_t to);

static Gates *gates_by(int way) {
#ifdef WITH_AMX
    if (way == BY_AMX) return gated_amx;
#endif
    return way == BY_TWOS ? gated_bf16 : 0;
}

static Pairs *pairs_by(int way) {
#ifdef WITH_AMX
    if (way == BY_AMX) return pairs_amx;
#endif
    return way == BY_TWOS ? pairs_bf16 : way == BY_SHIFTS ? pairs_shifted : way == FP16 ? pairs_fp16 : pairs_fp32;
}

static int64_t filled_up(int kind, int64_t k) { return kind == BF16 ? (k + TILE - 1) / TILE * TILE : k; }

// Rows of a product that are packed together, the last ones may be fewer. Blocks are of equal height: sums of few rows wait
// for each other, so that 12 and 4 rows take longer than 8 and 8.
int64_t wide_rows(int kind, int64_t rows) { return way_of(kind) == BY_AMX ? ROWS_AMX / 2 : tile_rows(rows, ROWS); }

// Words of 32 bits of a packed row.
int64_t wide_words(int kind, int64_t k) { return filled_up(kind, k) / (way_of(kind) >= BY_TWOS ? 2 : 1); }

// Rows of x [.., k] from `row` on, up to `wide_rows` of them: those of `order`, unless it is null. `room` is that of all rows.
void wide_pack(int kind, const float *x, const int32_t *order, int64_t row, int64_t rows, int64_t k, void *room) {
    const float *of[ROWS_AMX];
    float *to = (float *)room + row * wide_words(kind, k);
    for (int64_t r = 0; r < rows; r++) of[r] = x + (order ? order[row + r] : row + r) * k;
    if (way_of(kind) >= BY_TWOS) pack_bf16(of, rows, k, (uint16_t *)to);
    else pack_fp32(of, rows, k, filled_up(kind, k), to);
}

// Bytes of a pair of panels.
int64_t wide_pair(int kind, int64_t k) {
    return kind == BF16 ? (k + TILE - 1) / TILE * WEIGHT_BYTES(BY_TWOS) : k * WEIGHT_BYTES(way_of(kind));
}

// Pairs of panels from `first` to `last`, of rows that are packed in `room`.
void wide_outputs(int kind, const void *weight, const void *room, float *out, int64_t rows, int64_t k, int64_t outputs,
                  int64_t first, int64_t last) {
    const Wide p = {weight, out, rows, kind == BF16 ? (k + TILE - 1) / TILE : k, outputs};
    pairs_by(way_of(kind))(&p, room, first, last);
}

// Rows that threads pack.
typedef struct {
    int kind;
    const float *x;
    void *room;
    int64_t rows, k;
} Rows;

static void pack_some(const void *of) {
    const Rows *r = of;
    const int64_t high = wide_rows(r->kind, r->rows);
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < r->rows; row += high)
        wide_pack(r->kind, r->x, 0, row, r->rows - row < high ? r->rows - row : high, r->k, r->room);
}

// All rows x [rows, k] to `room`, which has rows * (k filled up to whole tiles) numbers of 4 bytes.
static void pack_all(int kind, const float *x, void *room, int64_t rows, int64_t k, int threads) {
    const Rows all = {kind, x, room, rows, k};
    tandem_together(rows * k > WORTH_ROWS ? threads : 1, pack_some, &all);
}

#define PAIRS_AT_ONCE 4

// Pairs of panels that threads share, `each` at once: few, so that all end together; of many rows a thread's whole share,
// since activations come to its second cache for each piece.
typedef struct {
    int64_t pairs, each;
    int threads;
    Share *shares;
} Pieces;

static Pieces in_pieces(int64_t rows, int64_t pairs, int threads, Share *shares) {
    const int64_t each = rows <= MOST_IN_PIECES ? PAIRS_AT_ONCE : (pairs + threads - 1) / threads;
    give_shares(shares, threads, (pairs + each - 1) / each);
    const Pieces pieces = {pairs, each, threads, shares};
    return pieces;
}

// The pairs of the next piece, from the first to before the last; 0 if none is left.
static int take_pairs(const Pieces *p, int64_t *first, int64_t *last) {
    const int64_t piece = take_piece(p->shares, p->threads);
    *first = piece * p->each, *last = *first + p->each < p->pairs ? *first + p->each : p->pairs;
    return piece >= 0;
}

// A product of packed rows that threads share.
typedef struct {
    int kind;
    const void *weight, *room;
    float *out;
    int64_t rows, k, outputs;
    Pieces pieces;
} Packed;

static void of_packed(const void *of) {
    const Packed *p = of;
    for (int64_t first, last; take_pairs(&p->pieces, &first, &last);)
        wide_outputs(p->kind, p->weight, p->room, p->out, p->rows, p->k, p->outputs, first, last);
}

// Of rows that are packed in `room`.
void wide_product_of_packed(int kind, const void *weight, const void *room, float *out, int64_t rows, int64_t k,
                            int64_t outputs, int threads) {
    Share shares[threads];
    const Pieces pieces = in_pieces(rows, (outputs + PAIR - 1) / PAIR, threads, shares);
    const Packed p = {kind, weight, room, out, rows, k, outputs, pieces};
    tandem_together(threads, of_packed, &p);
}

// x [rows, k] -> out [rows, outputs]; `kind` of weights; `room` as `pack_all` needs it.
void tandem_wide_product(int kind, const void *weight, const float *x, void *room, float *out, int64_t rows, int64_t k,
                         int64_t outputs, int threads) {
    if (!rows) return;
    if (rows * k * outputs < WORTH_THREADS) threads = 1;
    pack_all(kind, x, room, rows, k, threads);
    wide_product_of_packed(kind, weight, room, out, rows, k, outputs, threads);
}

// Not where so few activations of AMX stay in the second cache that weights are read too often.
int wide_gates(int kind, int64_t rows, int64_t k, int64_t inner) {
    const int way = way_of(kind);
    if (!gates_by(way) || rows <= ROWS || inner % PAIR) return 0;
#ifdef WITH_AMX
    if (way == BY_AMX) return amx_gates_serve(rows, filled_up(kind, k) / TILE);
#endif
    return 1;
}

// Gates that threads share.
typedef struct {
    Wide p;
    Gate how;
    Gates *by;
    const void *room;
    uint16_t *packed;
    Pieces pieces;
} Gated;

static void gate_packed(const void *of) {
    const Gated *g = of;
    for (int64_t first, last; take_pairs(&g->pieces, &first, &last);)
        g->by(&g->p, &g->how, g->room, g->packed, first, last);
}

// x [rows, k] times gates and what they are for, [2 inner, k] -> activation(gate) * up, packed for the next product of this
// kind; `room` as `pack_all` needs it. Only where `wide_gates` says so.
void wide_gated(int kind, const void *weight, int activation, const float *x, void *room, void *packed, int64_t rows,
                int64_t k, int64_t inner, int threads) {
    Share shares[threads];
    const Gated gated = {.p = {weight, 0, rows, filled_up(kind, k) / TILE, 2 * inner},
                         .how = {activation, 0, 0},
                         .by = gates_by(way_of(kind)),
                         .room = room,
                         .packed = packed,
                         .pieces = in_pieces(rows, inner / PAIR, threads, shares)};
    pack_all(kind, x, room, rows, k, threads);
    tandem_together(threads, gate_packed, &gated);
}

#ifdef __clang__
#pragma clang attribute pop
#endif
