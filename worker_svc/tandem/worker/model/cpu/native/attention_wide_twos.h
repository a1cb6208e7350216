// Attention over keys and values that are numbers of bf16, or whose codes become such, by vdpbf16ps: what attention.c does,
// with queries and weights rounded to bf16, as a matrix unit takes them. Scores are those of a softmax of base 2, a row's
// weights are added up over two keys at once, and the sum that o is divided by is that of the rounded ones, but where values
// have steps.
//
// Scores of bf16 are added up in 16 lanes of two numbers, and then across them. Keys of codes become tiles of four, as they
// are made wider: lane 4 b + n has two numbers of block b of key n, and only the four blocks are added up at the end. (Of
// bf16, tiles read 0.84 as quickly for two queries of 128 numbers where memory is the limit.) A block of many rows has its
// keys turned, so that 32 keys lie across two registers, and adds up the same in the same order.
//
// Where keys of bf16 have more than four queries, what is added up across lanes would take longer than all products. So
// queries lie beside each other: lanes 2 n and 2 n + 1 have query n's twos 2 t and 2 t + 1, a key's two twos are spread
// over all lanes, and its two sums are those of its even twos and of its odd ones.
//
// Few rows of bf16 wait for memory. A core has so many misses in flight and no more, so each key's or value's lines are
// loaded in the order that they lie in, and as many of what comes next are asked for right before: four keys' at once, in
// another order, read 61 to 63 GB/s where this reads 65 to 68, of 78 (benchmarks/pages/long_contexts.md). Keys whose queries
// lie beside each other are loaded eight at once: arithmetic is their limit.
//
// STORED is the format: BF16, or FP8, INT8 or INT4 of codes. Of 64 codes two units are made: the first has the lower half of
// each of their four blocks, the second the upper one, as they come out of their bytes; queries and what is added up have
// that order. Of int8, scores are multiplied by their key's step, and weights by their value's. Of int4, 8 is taken for a code
// of 0, as step and `zero` of each group g of 32 numbers are:
//
//     s  = sum_g(step_g sum(q (code - 8)) + zero_g sum(q))    o  += sum(p step_g (code - 8)) + sum(p zero_g)
//
// A block has the codes of one group: even ones are followed by odd ones. A page's steps and zeros are turned, so that those
// of 16 keys lie beside each other; weights times steps are two for a pair of keys, one for each group of 64 codes.

#pragma once

#include "attention_wide_base_two.h"
#include "turned_constants.h"

#define UNIT 32         // numbers of a register
#define CODES 64        // of a byte or less
#define TURNED 32       // keys of two registers
#define FEW_TWOS 8      // rows, as FEW, whose scores are computed at once
#define ROWS_TWOS 4     // the same of turned keys
#define BESIDE 8        // queries that lie beside each other
#define KEPT 16         // registers of queries at most, of few rows
#define OUTPUT_ROWS 8   // whose outputs are computed at once
#define OUTPUT_LINES 6  // the same of bf16

#define IN_CODES (STORED != BF16)
#define IN_GROUPS (STORED == INT4)  // each 32 numbers have a step and a lowest one
#define IN_STEPS (STORED == INT8)   // a vector has a step
#define ZERO_CODE 8                 // of 4 bits, taken for 0: so products are small

// Numbers that are loaded at once, and units that they become.
#define AT_ONCE (IN_CODES ? CODES : UNIT)
#define UNITS_AT_ONCE (AT_ONCE / UNIT)

INLINE int64_t units_in(int64_t d) { return whole(d, AT_ONCE) / UNIT; }

// The number that block b of unit `unit` begins with, of eight.
INLINE int64_t eight_of(int64_t unit, int64_t b) {
    return IN_CODES ? unit / 2 * CODES + 16 * b + unit % 2 * 8 : unit * UNIT + 8 * b;
}

INLINE __mmask8 eight_there(int64_t d, int64_t first) { return first < d ? (__mmask8)first_of(d - first) : 0; }

// Where a piece has its queries: of bf16 [rows, units, 16] twos; of codes [rows, units, 4, 16], two t of each of a unit's
// blocks four times.
INLINE uint32_t *twos_of(const Piece *of) { return (uint32_t *)of->q; }
INLINE int64_t row_of_twos(int64_t d) { return wide_of(d) / 2 * (IN_CODES ? 4 : 1); }

// Those that lie beside each other: [rows / BESIDE, units, 8, BESIDE, 2], and where a row's begin.
INLINE int lie_beside(const Attention *a) { return STORED == BF16 && a->group > ROWS_TWOS; }
INLINE int64_t beside_of(int64_t d, int64_t row) { return row / BESIDE * BESIDE * 16 * units_in(d) + row % BESIDE * 2; }

INLINE __m512 add_twos(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

#ifdef BYTE_TABLES
// 64 codes become the bytes of bf16 that two tables hold, of fp8 those of numbers without signs, and these two registers.
INLINE void widen_codes(__m512i codes, __m512i to[2]) {
    const __m512i *low = (const __m512i *)BYTE_TABLES[0], *high = (const __m512i *)BYTE_TABLES[1];
    __m512i lows, all;
    if (IN_GROUPS) lows = _mm512_permutexvar_epi8(codes, *low), all = _mm512_permutexvar_epi8(codes, *high);
    else {
        // vpabsb would take Zen 4 several turns.
        const __m512i size = IN_STEPS ? _mm512_min_epu8(codes, _mm512_sub_epi8(_mm512_setzero_si512(), codes)) : codes;
        const __m512i highs = _mm512_permutex2var_epi8(high[0], size, high[1]);
        lows = _mm512_permutex2var_epi8(low[0], size, low[1]);
        all = _mm512_ternarylogic_epi32(highs, codes, _mm512_set1_epi8((char)0x80), 0xf8);  // a | b & c
    }
    to[0] = _mm512_unpacklo_epi8(lows, all), to[1] = _mm512_unpackhi_epi8(lows, all);
}
#else
INLINE void widen_codes(__m512i codes, __m512i to[2]) { (void)codes, (void)to; }
#endif

// Of int4, numbers 2 n and 2 n + 1 are the lower and the upper half of a byte: codes are the even ones of 64, then the others.
INLINE int64_t place_of(int64_t n) { return n / CODES * CODES + n % 2 * (CODES / 2) + n % CODES / 2; }

INLINE __m512i halves(__m256i bytes) {
    const __m512i shifts =
        _mm512_setr_epi64(0, 0, 0, 0, 0x0004000400040004, 0x0004000400040004, 0x0004000400040004, 0x0004000400040004);
    return _mm512_srlv_epi16(_mm512_broadcast_i64x4(bytes), shifts);
}

// Numbers or codes from i on of vector n; behind `d`, zeros, or codes of 0. Of 4 bits' codes higher bits are set, too, which
// tables of 64 ignore.
INLINE __m512i stored_at(const void *vectors, int64_t n, int64_t i, int64_t d) {
    const uint8_t *bytes = (const uint8_t *)vectors + n * length_of(STORED, d) + length_of(STORED, i);
    if (IN_GROUPS)
        return halves(d - i >= CODES ? _mm256_loadu_si256((const __m256i *)bytes)
                                     : _mm256_maskz_loadu_epi8(first_of((d - i) / 2), bytes));
    if (IN_CODES)
        return d - i >= CODES ? _mm512_loadu_si512(bytes)
                              : _mm512_maskz_loadu_epi8(((__mmask64)1 << (d - i)) - 1, bytes);
    return d - i >= UNIT ? _mm512_loadu_si512(bytes) : _mm512_maskz_loadu_epi16(first_of(d - i), bytes);
}

// Those of four keys become tiles of what is stored, each of which becomes UNITS_AT_ONCE, in the order of their units.
INLINE void four_tiles(const __m512i x[4], __m512i to[4]) {
    const __m512i ab = _mm512_unpacklo_epi16(x[0], x[1]), cd = _mm512_unpacklo_epi16(x[2], x[3]);
    const __m512i more = _mm512_unpackhi_epi16(x[0], x[1]), others = _mm512_unpackhi_epi16(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi32(ab, cd), to[1] = _mm512_unpackhi_epi32(ab, cd);
    to[2] = _mm512_unpacklo_epi32(more, others), to[3] = _mm512_unpackhi_epi32(more, others);
}

INLINE void widen(__m512i stored, __m512i to[UNITS_AT_ONCE]) {
    if (IN_CODES) widen_codes(stored, to);
    else *to = stored;
}

// Vectors [keys, d] as units of bf16 [keys, units].
INLINE void make_twos(const void *vectors, int64_t keys, int64_t d, __m512i *to) {
    for (int64_t key = 0; key < keys; key++)
        for (int64_t i = 0; i < d; i += AT_ONCE, to += UNITS_AT_ONCE) {
            widen(stored_at(vectors, key, i, d), to);
        }
}

// The constants of a page's vectors: of each part, steps [groups, width], and then what a code of zero is; behind the last
// key 0.
typedef struct {
    float *of[2];
    int64_t groups, width;
} Constants;

INLINE int64_t groups_of(int64_t d) { return IN_GROUPS ? constants_of(INT4, d) / 2 : 1; }
INLINE const float *steps_of(const Constants *c, int which, int64_t group) {
    return c->of[which] + (group < c->groups ? group : c->groups - 1) * c->width;
}
INLINE const float *zeros_of(const Constants *c, int which, int64_t group) {
    return steps_of(c, which, group) + c->groups * c->width;
}

// Those of the page whose first vector is `first`, in `room`.
INLINE Constants constants_at(const Attention *a, const int64_t d, int64_t first, int64_t keys, float *room) {
    const int64_t width = whole(a->page_size, TURNED), many = constants_of(STORED, d);
    const Constants c = {{room, room + room_of_constants(STORED, d, width) / 2}, groups_of(d), width};
    for (int which = 0; which < 2 && many; which++) {
        const float *from = (const float *)a->part[which][1] + first * many;
        for (int64_t i = 0; i < width; i += 16) {
            float *to = c.of[which] + i;
            if (IN_STEPS) {
                const __mmask16 there = i < keys ? (__mmask16)first_of(keys - i) : 0;
                _mm512_store_ps(to, _mm512_maskz_loadu_ps(there, from + i));
                continue;
            }
            turn_constants(from + i * many, keys - i, many, to, width);
            for (int64_t g = 0; g < c.groups; g++, to += width) {
                float *lowest = to + c.groups * width;
                const __m512 zero =
                    _mm512_fmadd_ps(_mm512_load_ps(to), _mm512_set1_ps(ZERO_CODE), _mm512_load_ps(lowest));
                _mm512_store_ps(lowest, zero);
            }
        }
    }
    return c;
}

// Weights times the steps of 16 values; what is not seen weighs nothing, whatever its step is.
INLINE __m512 by_steps(__m512 weights, const float *steps) {
    return _mm512_maskz_mul_ps(that_weigh(weights), weights, _mm512_load_ps(steps));
}

// How often what comes next is asked for while four rows' scores become weights: `before` all else, and with each 32 keys, of
// each row or of the first one alone.
typedef struct {
    Asks *asks;
    int64_t before, each;
    int first_alone;
} AsksOfWeights;

// Scores become weights of bf16, in their place: times the values' steps, if there are any. `ask` may be null.
INLINE void weigh(const int rows, float *s, int64_t apart, int64_t width, float *o, int64_t wide, float *m, float *l,
                  const float *steps, const AsksOfWeights *ask) {
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    __m512 most[4], sum[4];
    if (ask) ask_four(ask->asks, ask->before);
    begin_weights(rows, s, apart, width, o, wide, m, l, most, sum);
    for (int64_t i = 0; i < width; i += UNIT)
        for (int r = 0; r < rows; r++) {
            if (ask && (r == 0 || !ask->first_alone)) ask_four(ask->asks, ask->each);
            const float *here = s + r * apart + i;
            __m512 low = power_of_two(_mm512_sub_ps(_mm512_load_ps(here), most[r]));
            __m512 high = power_of_two(_mm512_sub_ps(_mm512_load_ps(here + 16), most[r]));
            if (IN_STEPS) {
                sum[r] = _mm512_add_ps(sum[r], _mm512_add_ps(low, high));
                low = by_steps(low, steps + i), high = by_steps(high, steps + i + 16);
            }
            const __m512i weights = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            if (!IN_STEPS) sum[r] = add_twos(sum[r], weights, ones);
            _mm512_store_si512(s + r * apart + i / 2, weights);
        }
    for (int r = 0; r < rows; r++) _mm512_store_ps(l + r * LANES, sum[r]);
}

// Scores s [width] of codes become those of what they stand for. sums: of the row's query in each group.
INLINE void scale_scores(float *s, int64_t width, const Constants *c, const float *sums) {
    for (int64_t i = 0; i < width; i += 16) {
        __m512 scores = _mm512_load_ps(s + i);
        if (IN_STEPS) scores = _mm512_mul_ps(scores, _mm512_load_ps(steps_of(c, 0, 0) + i));
        else
            for (int64_t g = 0; g < c->groups; g++)
                scores = _mm512_fmadd_ps(_mm512_load_ps(zeros_of(c, 0, g) + i), _mm512_set1_ps(sums[g]), scores);
        _mm512_store_ps(s + i, scores);
    }
}

static __attribute__((noinline)) void wide_attention_twos_weigh(const Attention *a, const int32_t *block, int64_t start,
                                                                int64_t keys, int64_t rows, float *s, int64_t apart,
                                                                const Piece *of, int64_t wide, const Constants *c) {
    const int64_t width = whole(keys, UNIT);
    for (int64_t row = 0; row < rows && (IN_GROUPS || IN_STEPS); row++)
        scale_scores(s + row * apart, width, c, of->q_sums + row * sums_of_groups(a->head_dim));
#define TO_TWOS(...) weigh(__VA_ARGS__, steps_of(c, 1, 0), 0)
    if (IN_GROUPS) {
        WEIGH_ROWS(weigh_plain, sizeof(float))
    } else {
        WEIGH_ROWS(TO_TWOS, sizeof(uint16_t))
    }
#undef TO_TWOS
}

// Words from a row's weights to the next: of groups, what the zeros add [groups], and then for each two of them, those of 64
// codes, a pair of keys' two twos [pairs, 2].
INLINE int64_t row_of_weights(int64_t d, int64_t width) {
    return IN_GROUPS ? sums_of_groups(d) + wide_of(d) / CODES * width : width;
}

// Weights s [rows, width] of `keys` keys become the above.
static __attribute__((noinline)) void wide_attention_twos_weigh_groups(int64_t rows, int64_t d, int64_t keys,
                                                                       const float *s, int64_t width,
                                                                       const Constants *c, uint32_t *to) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t row = 0; row < rows; row++, s += width, to += row_of_weights(d, width)) {
        uint32_t *weights = to + sums_of_groups(d);
        for (int64_t g = 0; g < wide_of(d) / 32; g += 2, weights += width) {
            __m512 added[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            for (int64_t i = 0; i < keys; i += UNIT) {
                __m512i both[2];
                for (int64_t n = 0; n < 2; n++) {
                    __m512 scaled[2];
                    for (int64_t half = 0; half < 2; half++) {
                        const __m512 p = _mm512_load_ps(s + i + 16 * half);
                        const __m512 zero = _mm512_load_ps(zeros_of(c, 1, g + n) + i + 16 * half);
                        scaled[half] = by_steps(p, steps_of(c, 1, g + n) + i + 16 * half);
                        added[n] = _mm512_mask3_fmadd_ps(p, zero, added[n], that_weigh(p));
                    }
                    both[n] = (__m512i)_mm512_cvtne2ps_pbh(scaled[1], scaled[0]);
                }
                _mm512_store_si512(weights + i, _mm512_permutex2var_epi32(both[0], first, both[1]));
                _mm512_store_si512(weights + i + 16, _mm512_permutex2var_epi32(both[0], second, both[1]));
            }
            const __m128 sums = wide_sums(added[0], added[1], added[0], added[1]);
            _mm_storel_pi((__m64 *)(to + g), sums);
        }
    }
}

// What a query of bf16 adds up to in each group.
INLINE void sum_groups(const float *q, int64_t d, __m256 scale, float *sums) {
    for (int64_t g = 0, size = d / groups_of(d); g < groups_of(d); g++) {
        __m256 sum = _mm256_setzero_ps();
        for (int64_t i = g * size; i < (g + 1) * size; i += 8) {
            const __m128i eight = (__m128i)_mm256_cvtneps_pbh(_mm256_mul_ps(_mm256_loadu_ps(q + i), scale));
            sum = _mm256_add_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16)));
        }
        sums[g] = one_sum(sum);
    }
}

static void wide_attention_twos_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, units = units_in(d);
    const float base = a->cap > 0 ? 1 : LOG2_E;
    const __m256 scale = _mm256_set1_ps(a->scale * base);
    if (lie_beside(a)) memset(twos_of(to), 0, (size_t)beside_of(d, whole(rows, BESIDE)) * sizeof(uint32_t));
    float placed[IN_GROUPS ? wide_of(d) : 1];
    memset(placed, 0, sizeof placed);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = query_at(a, block, head, row);
        if (IN_GROUPS) sum_groups(from, d, scale, to->q_sums + row * sums_of_groups(d));
        for (int64_t i = 0; IN_GROUPS && i < d; i++) placed[place_of(i)] = from[i];
        if (IN_GROUPS) from = placed;
        const int64_t there = IN_GROUPS ? wide_of(d) : d;
        __m512i *q = (__m512i *)(twos_of(to) + row * row_of_twos(d));
        for (int64_t unit = 0; unit < units; unit++, q += IN_CODES ? 4 : 1) {
            __m128i eights[4] __attribute__((aligned(64)));
            for (int64_t b = 0; b < 4; b++) {
                const int64_t first = eight_of(unit, b);
                const __m256 eight = _mm256_maskz_loadu_ps(eight_there(there, first), from + first);
                eights[b] = (__m128i)_mm256_cvtneps_pbh(_mm256_mul_ps(eight, scale));
            }
            const __m512i all = _mm512_load_si512(eights);
            if (lie_beside(a)) {
                uint32_t *beside = twos_of(to) + beside_of(d, row) + unit * 16 * BESIDE;
                for (int64_t t = 0; t < 8; t++) memcpy(beside + t * 2 * BESIDE, (const char *)eights + 8 * t, 8);
            } else if (IN_CODES) {
                q[0] = _mm512_shuffle_epi32(all, 0x00), q[1] = _mm512_shuffle_epi32(all, 0x55);
                q[2] = _mm512_shuffle_epi32(all, 0xaa), q[3] = _mm512_shuffle_epi32(all, 0xff);
            } else *q = all;
        }
    }
}

// Of bf16: scores of `keys` keys from number `key` on, up to four, by lines as they are: q [rows], s [rows, width]. `kept`
// has the queries if their size is known: in registers, then.
INLINE void score_lines(const int rows, const int keys, const uint32_t *q, int64_t row, const __m512i *kept,
                        const void *k, int64_t key, const int64_t d, float *s, int64_t width, Soon *soon) {
    __m512 sum[ROWS_TWOS * KEYS];
    for (int n = 0; n < ROWS_TWOS * KEYS; n++) sum[n] = _mm512_setzero_ps();
    if (kept || (d >= 128 && rows <= 2)) {
#pragma GCC unroll 4  // KEYS
        for (int n = 0; n < keys; n++) {
            ask_soon_for(soon, length_of(STORED, d));
            for (int64_t i = 0; i < d; i += UNIT) {
                const char *line = (const char *)k + length_of(STORED, (key + n) * d + i);
                if (soon->again) ask_line(line + soon->again, soon->into);
                const __m512i numbers = in_order(stored_at(k, key + n, i, d));
                for (int r = 0; r < rows; r++) {
                    const __m512i query = kept ? kept[(r * d + i) / UNIT] : _mm512_load_si512(q + r * row + i / 2);
                    sum[r * keys + n] = add_twos(sum[r * keys + n], numbers, query);
                }
            }
        }
    } else  // where loops are not unrolled, four at once hide what an addition waits for
        for (int64_t i = 0; i < d; i += UNIT) {
            ask_soon_for(soon, keys * LINE);
            __m512i query[ROWS_TWOS];
            for (int r = 0; r < rows; r++) query[r] = _mm512_load_si512(q + r * row + i / 2);
            for (int n = 0; n < keys; n++) {
                const char *line = (const char *)k + length_of(STORED, (key + n) * d + i);
                if (soon->again) ask_line(line + soon->again, soon->into);
                const __m512i numbers = stored_at(k, key + n, i, d);
                for (int r = 0; r < rows; r++) sum[r * keys + n] = add_twos(sum[r * keys + n], numbers, query[r]);
            }
        }
    for (int n = 0; n < rows * keys; n += 4) {
        const __m128 scores = wide_sums(sum[n], sum[n + 1], sum[n + 2], sum[n + 3]);
        float *to = s + n / keys * width;
        if (keys == 4) _mm_storeu_ps(to, scores);
        else if (keys == 2) _mm_storel_pi((__m64 *)to, scores), _mm_storeh_pi((__m64 *)(to + width), scores);
        else
            _mm_mask_i32scatter_ps(to, (__mmask8)first_of(rows),
                                   _mm_setr_epi32(0, (int)width, 2 * (int)width, 3 * (int)width), scores, 4);
    }
}

// The same of any number of keys.
INLINE void score_few_lines(const int rows, const uint32_t *q, const void *k, const int64_t d, int64_t keys, float *s,
                            int64_t width, Soon *soon) {
    const int64_t row = row_of_twos(d);
    const int known = __builtin_constant_p(d) && rows * d / UNIT <= KEPT;
    const int at_once = known && rows * d / UNIT + rows * KEYS >= 32 ? KEYS / 2 : KEYS;  // registers
    __m512i kept[KEPT];
    for (int n = 0; known && n < rows * d / UNIT; n++)
        kept[n] = _mm512_load_si512(q + n * UNIT / d * row + n * UNIT % d / 2);
    int64_t key = 0;
    for (; key + at_once <= keys; key += at_once)
        score_lines(rows, at_once, q, row, known ? kept : 0, k, key, d, s + key, width, soon);
    for (; key < keys; key++) score_lines(rows, 1, q, row, known ? kept : 0, k, key, d, s + key, width, soon);
}

// Of bf16: scores of 16 keys from number `key` on, or of `keys` of them and whatever is behind them, of queries that lie
// beside each other.
INLINE void score_sixteen(const int rows, const int all, int64_t keys, const uint32_t *q, const void *k, int64_t key,
                          const int64_t d, float *s, int64_t width, Soon *soon) {
    __m512 pairs[8];  // sums of two keys each: lane 4 i + 2 n + r is that of key n and row 2 i + r
    for (int eight = 0; eight < 16; eight += 8) {
        __m512 sum[8];
        const char *from[8];
        for (int n = 0; n < 8; n++) {
            from[n] = (const char *)k + length_of(BF16, d) * (key + (all || eight + n < keys ? eight + n : 0));
            sum[n] = _mm512_setzero_ps();
        }
        const char *again = from[0] + soon->again;
        for (int64_t t = 0; t < d / 4; t++, again += LINE) {  // of eight keys, four numbers are a line
            if (all) ask_soon_for(soon, LINE);
            if (soon->again) ask_line(again, soon->into);
            const __m512i query = _mm512_load_si512(q + t * 2 * BESIDE);
            for (int n = 0; n < 8; n++) {
                long long twos;
                memcpy(&twos, from[n] + 8 * t, 8);
                sum[n] = add_twos(sum[n], _mm512_set1_epi64(twos), query);
            }
        }
        for (int n = 0; n < 8; n += 2)
            pairs[(eight + n) / 2] =
                _mm512_add_ps(_mm512_shuffle_ps(sum[n], sum[n + 1], 0x88), _mm512_shuffle_ps(sum[n], sum[n + 1], 0xdd));
    }
    for (int odd = 0; odd < 2; odd++) {
        __m512 fours[4];  // of four keys: lanes 4 i to 4 i + 3 are those of row 2 i + odd
        for (int n = 0; n < 4; n++) {
            const __m512 one = pairs[2 * n], other = pairs[2 * n + 1];
            fours[n] = odd ? _mm512_shuffle_ps(one, other, 0xdd) : _mm512_shuffle_ps(one, other, 0x88);
        }
        for (int upper = 0; upper < 2; upper++) {
            const __m512 a =
                upper ? _mm512_shuffle_f32x4(fours[0], fours[1], 0xee) : _mm512_shuffle_f32x4(fours[0], fours[1], 0x44);
            const __m512 b =
                upper ? _mm512_shuffle_f32x4(fours[2], fours[3], 0xee) : _mm512_shuffle_f32x4(fours[2], fours[3], 0x44);
            const int row = 4 * upper + odd;
            if (row < rows) _mm512_store_ps(s + row * width, _mm512_shuffle_f32x4(a, b, 0x88));
            if (row + 2 < rows) _mm512_store_ps(s + (row + 2) * width, _mm512_shuffle_f32x4(a, b, 0xdd));
        }
    }
}

INLINE void score_few_beside(const int rows, const uint32_t *q, const void *k, const int64_t d, int64_t keys, float *s,
                             int64_t width, Soon *soon) {
    int64_t key = 0;
    for (; key + 16 <= keys; key += 16) score_sixteen(rows, 1, 16, q, k, key, d, s + key, width, soon);
    if (key < keys) score_sixteen(rows, 0, keys - key, q, k, key, d, s + key, width, soon);
}

// The steps of four keys from number `key` on in the two groups of 64 codes, as tiles have them.
INLINE __m512 steps_of_four(const Constants *c, int64_t begin, int64_t key) {
    const __m512 first = _mm512_broadcast_f32x4(_mm_load_ps(steps_of(c, 0, begin / 32) + key));
    return _mm512_mask_broadcast_f32x4(first, 0xf0f0, _mm_load_ps(steps_of(c, 0, begin / 32 + 1) + key));
}

// Of codes: scores of `fours` times four keys from number `key` on, or of `keys` of them and whatever is behind them: q
// [rows], s [rows, width]. They are loaded in the order that they lie in, and become tiles of four then; twice four hide what
// an addition waits for.
INLINE void score_fours(const int rows, const int fours, const int all, int64_t keys, const uint32_t *q, const void *k,
                        int64_t key, const int64_t d, const Constants *c, float *s, int64_t width, Spread *ahead) {
    const int64_t row = row_of_twos(d);
    const int64_t at_once = !IN_GROUPS && rows <= 3 && __builtin_constant_p(d) ? d : AT_ONCE;
    __m512 sum[FEW_TWOS][2], scaled[FEW_TWOS][2];
    for (int r = 0; r < rows; r++)
        for (int four = 0; four < fours; four++) sum[r][four] = scaled[r][four] = _mm512_setzero_ps();
    for (int64_t begin = 0; begin < d; begin += at_once) {
        __m512i tiles[2][4 * 2];
        for (int four = 0; four < fours; four++) {
            __m512i x[2][4];
            int64_t loads = 0;
            for (int n = 0; n < 4; n++)
                for (int64_t i = 0; i < at_once; i += AT_ONCE, loads++) {
                    if (!IN_GROUPS || loads % 2 == 0) ask_next(ahead);  // two of int4 are a line
                    const int64_t place = all || 4 * four + n < keys ? 4 * four + n : 0;
                    x[i / AT_ONCE][n] = in_order(stored_at(k, key + place, begin + i, d));
                }
            for (int64_t i = 0; i < at_once / AT_ONCE; i++) four_tiles(x[i], tiles[four] + 4 * i);
        }
        for (int64_t t = 0; t < 4 * at_once / AT_ONCE; t++) {
            __m512i units[2][UNITS_AT_ONCE];
            for (int four = 0; four < fours; four++) widen(tiles[four][t], units[four]);
            for (int n = 0; n < UNITS_AT_ONCE; n++, q += 16)
                for (int r = 0; r < rows; r++) {
                    const __m512i query = _mm512_load_si512(q + r * row);
                    for (int four = 0; four < fours; four++)
                        sum[r][four] = add_twos(sum[r][four], units[four][n], query);
                }
        }
        for (int four = 0; IN_GROUPS && four < fours; four++) {
            const __m512 steps = steps_of_four(c, begin, key + 4 * four);
            for (int r = 0; r < rows; r++) {
                scaled[r][four] = _mm512_fmadd_ps(sum[r][four], steps, scaled[r][four]);
                sum[r][four] = _mm512_setzero_ps();
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int four = 0; four < fours; four++) {
            const __m512 blocks = IN_GROUPS ? scaled[r][four] : sum[r][four];
            const __m256 two = _mm256_add_ps(_mm512_castps512_ps256(blocks), _mm512_extractf32x8_ps(blocks, 1));
            const __m128 one = _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
            _mm_store_ps(s + r * width + 4 * four, one);
        }
}

INLINE void score_few_tiles(const int rows, const uint32_t *q, const void *k, const int64_t d, int64_t keys,
                            const Constants *c, float *s, int64_t width, Soon *soon) {
    const int fours = IN_GROUPS && rows > ROWS_TWOS ? 1 : 2;  // sums and what becomes of them fill the registers
    const int64_t some = 4 * fours, length = length_of(STORED, d);
    int64_t key = 0;
    for (; key + some <= keys; key += some) {
        Spread ahead = spread_over(soon, some * length, (const char *)k + key * length);
        score_fours(rows, fours, 1, some, q, k, key, d, c, s + key, width, &ahead);
    }
    if (key < keys) {
        Spread none = {k, 0, k};
        score_fours(rows, fours, 0, keys - key, q, k, key, d, c, s + key, width, &none);
    }
}

// Few rows of bf16 are computed as many at once as the registers have room for.
INLINE void score_few(const int rows, const int beside, const uint32_t *q, const void *k, const int64_t d, int64_t keys,
                      const Constants *c, float *s, int64_t width, Soon *soon) {
    if (IN_CODES) score_few_tiles(rows, q, k, d, keys, c, s, width, soon);
    else if (beside) score_few_beside(rows, q, k, d, keys, s, width, soon);
    else if (rows <= ROWS_TWOS) score_few_lines(rows, q, k, d, keys, s, width, soon);
    else {
        score_few_lines(ROWS_TWOS, q, k, d, keys, s, width, soon);
        score_few_lines(rows - ROWS_TWOS, q + ROWS_TWOS * row_of_twos(d), k, d, keys, s + ROWS_TWOS * width, width,
                        soon);
    }
}

// k [keys, units] becomes [units, 16 twos, TURNED keys, 2] for each TURNED keys. For four lines that are loaded, here and in
// `pair_values`, three are asked for: products ask for the others (attention_amx.h).
INLINE void turn_keys(const __m512i *k, int64_t keys, int64_t units, uint32_t *to, Soon *soon) {
    for (int64_t key = 0; key < keys; key += 16) {
        uint32_t *tile = to + key / TURNED * (units * 16 * TURNED) + key % TURNED;
        for (int64_t unit = 0; unit < units; unit++, tile += 16 * TURNED) {
            __m512i r[16];
            ask_soon_for(soon, 12 * LINE);
            for (int n = 0; n < 16; n++) r[n] = key + n < keys ? k[(key + n) * units + unit] : _mm512_setzero_si512();
            turn(r);
            for (int n = 0; n < 16; n++) _mm512_store_si512(tile + n * TURNED, r[n]);
        }
    }
}

// Sums += those of block b of `units` units.
INLINE void score_block(const int rows, const int columns, const uint32_t *q, int64_t row, int64_t b,
                        const uint32_t *tile, int64_t units, __m512 sum[ROWS_TWOS][2]) {
    q += 4 * b, tile += 4 * b * TURNED;
    for (int64_t unit = 0; unit < units; unit++, q += 64, tile += 16 * TURNED)
        for (int t = 0; t < 4; t++) {
            __m512i keys[2];
            for (int n = 0; n < columns; n++) keys[n] = _mm512_load_si512(tile + t * TURNED + 16 * n);
            for (int r = 0; r < rows; r++) {
                const __m512i query = _mm512_set1_epi32((int)q[r * row + 16 * t]);
                for (int n = 0; n < columns; n++) sum[r][n] = add_twos(sum[r][n], keys[n], query);
            }
        }
}

INLINE void no_sums(const int rows, const int columns, __m512 sum[ROWS_TWOS][2]) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) sum[r][n] = _mm512_setzero_ps();
}

// Block b of all units of keys from number `key` on, as `score_fours` has it: of groups, scaled.
INLINE void score_blocks(const int rows, const int columns, const uint32_t *q, int64_t row, int64_t b,
                         const uint32_t *tile, int64_t units, const Constants *c, int64_t key,
                         __m512 to[ROWS_TWOS][2]) {
    no_sums(rows, columns, to);
    if (!IN_GROUPS) {
        score_block(rows, columns, q, row, b, tile, units, to);
        return;
    }
    for (int64_t unit = 0; unit < units; unit += 2, q += 128, tile += 2 * 16 * TURNED) {
        __m512 sum[ROWS_TWOS][2];
        no_sums(rows, columns, sum);
        score_block(rows, columns, q, row, b, tile, 2, sum);
        for (int n = 0; n < columns; n++) {
            const __m512 steps = _mm512_load_ps(steps_of(c, 0, unit + b % 2) + key + 16 * n);
            for (int r = 0; r < rows; r++) to[r][n] = _mm512_fmadd_ps(sum[r][n], steps, to[r][n]);
        }
    }
}

// Of codes: scores of 16 or 32 turned keys, whose blocks are added up as `score_fours` does.
INLINE void score_turned_blocks(const int rows, const int columns, const uint32_t *q, int64_t row, const uint32_t *tile,
                                int64_t units, const Constants *c, int64_t key, float *s, int64_t width) {
    __m512 sum[4][ROWS_TWOS][2];
    for (int64_t b = 0; b < 4; b++) score_blocks(rows, columns, q, row, b, tile, units, c, key, sum[b]);
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) {
            const __m512 even = _mm512_add_ps(sum[0][r][n], sum[2][r][n]);
            const __m512 odd = _mm512_add_ps(sum[1][r][n], sum[3][r][n]);
            _mm512_store_ps(s + r * width + 16 * n, _mm512_add_ps(even, odd));
        }
}

INLINE void score_lane(const int rows, const int columns, const uint32_t *q, int64_t stride, const uint32_t *tile,
                       int64_t units, __m512 sum[ROWS_TWOS][2]) {
    no_sums(rows, columns, sum);
    for (int64_t unit = 0; unit < units; unit++, q += 16, tile += 16 * TURNED) {
        __m512i keys[2];
        for (int n = 0; n < columns; n++) keys[n] = _mm512_load_si512(tile + 16 * n);
        for (int r = 0; r < rows; r++) {
            const __m512i query = _mm512_set1_epi32((int)q[r * stride]);
            for (int n = 0; n < columns; n++) sum[r][n] = add_twos(sum[r][n], keys[n], query);
        }
    }
}

INLINE void add_lanes(const int rows, const int columns, __m512 to[ROWS_TWOS][2], __m512 from[ROWS_TWOS][2]) {
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++) to[r][n] = _mm512_add_ps(to[r][n], from[r][n]);
}

// Of bf16: scores of 16 or 32 turned keys, whose 16 sums are added up as `wide_sums` does.
INLINE void score_turned_lines(const int rows, const int columns, const uint32_t *q, int64_t stride,
                               const uint32_t *tile, int64_t units, float *s, int64_t width) {
    __m512 four[4][ROWS_TWOS][2];
    for (int64_t n = 0; n < 4; n++) {
        const uint32_t *from = q + 4 * n, *keys = tile + 4 * n * TURNED;
        __m512 one[ROWS_TWOS][2], other[ROWS_TWOS][2], even[ROWS_TWOS][2];
        score_lane(rows, columns, from, stride, keys, units, even);
        score_lane(rows, columns, from + 2, stride, keys + 2 * TURNED, units, other);
        add_lanes(rows, columns, even, other);
        score_lane(rows, columns, from + 1, stride, keys + TURNED, units, one);
        score_lane(rows, columns, from + 3, stride, keys + 3 * TURNED, units, other);
        add_lanes(rows, columns, one, other);
        add_lanes(rows, columns, even, one);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) four[n][r][c] = even[r][c];
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const __m512 even = _mm512_add_ps(four[0][r][c], four[2][r][c]);
            const __m512 odd = _mm512_add_ps(four[1][r][c], four[3][r][c]);
            _mm512_store_ps(s + r * width + 16 * c, _mm512_add_ps(even, odd));
        }
}

// The same of queries that lie beside each other, whose two sums are added up as `score_sixteen` does.
INLINE void score_turned_beside(const int rows, const int columns, const uint32_t *q, const uint32_t *tile,
                                int64_t units, float *s, int64_t width) {
    __m512 sum[2][ROWS_TWOS][2];
    for (int odd = 0; odd < 2; odd++) no_sums(rows, columns, sum[odd]);
    for (int64_t t = 0; t < 8 * units; t++, q += 2 * BESIDE)
        for (int odd = 0; odd < 2; odd++, tile += TURNED)
            for (int r = 0; r < rows; r++) {
                const __m512i query = _mm512_set1_epi32((int)q[2 * r + odd]);
                for (int n = 0; n < columns; n++)
                    sum[odd][r][n] = add_twos(sum[odd][r][n], _mm512_load_si512(tile + 16 * n), query);
            }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < columns; n++)
            _mm512_store_ps(s + r * width + 16 * n, _mm512_add_ps(sum[0][r][n], sum[1][r][n]));
}

INLINE void score_turned(const int rows, const int columns, const int beside, const uint32_t *q, int64_t row, int64_t d,
                         const uint32_t *tile, int64_t units, const Constants *c, int64_t key, float *s,
                         int64_t width) {
    const int64_t apart = row_of_twos(d);
    q += beside ? beside_of(d, row) : row * apart, s += row * width;
    if (IN_CODES) score_turned_blocks(rows, columns, q, apart, tile, units, c, key, s, width);
    else if (beside) score_turned_beside(rows, columns, q, tile, units, s, width);
    else score_turned_lines(rows, columns, q, apart, tile, units, s, width);
}

#define SCORE_TURNED(R, COLUMNS, UNITS) score_turned(R, COLUMNS, beside, q, row, d, tile, UNITS, c, key, s + key, width)
INLINE void score_many(const int beside, const uint32_t *q, const uint32_t *tile, int64_t d, int64_t rows, int64_t keys,
                       const Constants *c, float *s, int64_t width) {
    const int64_t units = units_in(d);
    for (int64_t key = 0; key < keys; key += TURNED, tile += units * 16 * TURNED)
        if (keys - key <= 16) {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 1, units)
        } else if (units == 2) {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 2, 2)
        } else if (units == 4) {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 2, 4)
        } else {
            BY_WIDE_ROWS(rows, 4, SCORE_TURNED, 2, units)
        }
}

// v [keys, units] becomes [pairs of keys, units, 2, 16, 2]; the last one may be alone.
INLINE void pair_values(const __m512i *v, int64_t keys, int64_t units, int64_t columns, uint32_t *to, Soon *soon) {
    for (int64_t key = 0; key < keys; key += 2)
        for (int64_t unit = 0; unit < columns / UNIT; unit++, to += UNIT) {
            ask_soon_for(soon, (1 + key / 2 % 2) * LINE);
            const __m512i first = v[key * units + unit];
            const __m512i second = key + 1 < keys ? v[(key + 1) * units + unit] : _mm512_setzero_si512();
            _mm512_store_si512(to, _mm512_unpacklo_epi16(first, second));
            _mm512_store_si512(to + 16, _mm512_unpackhi_epi16(first, second));
        }
}

// Numbers from i on of a value, `loads` times AT_ONCE of them.
INLINE void value_at(const int loads, const void *v, int64_t key, int64_t i, int64_t d, const Soon *soon, __m512i *to) {
    const char *from = (const char *)v + key * length_of(STORED, d) + length_of(STORED, i);
    for (int n = 0; n < loads; n++) {
        if (soon->again) ask_line(from + n * LINE + soon->again, soon->into);
        to[n] = in_order(stored_at(v, key, i + n * AT_ONCE, d));
    }
}

// The same of 16 `vectors` numbers from i on of two values, or of one. What comes next is asked for as lines are loaded: as
// many, or half. Two vectors of codes are the lower or the `upper` half of what is loaded.
INLINE void pair_at(const int vectors, const int upper, const int two, const int half, const void *v, int64_t key,
                    int64_t i, int64_t d, Soon *soon, __m512i *to) {
    __m512i stored[2][4] = {{{0}}};
    const int loads = vectors < 2 * UNITS_AT_ONCE ? 1 : vectors / (2 * UNITS_AT_ONCE);
    if (!IN_GROUPS) ask_soon_for(soon, loads * LINE);
    else if (!upper) ask_soon_for(soon, 2 * loads * length_of(STORED, AT_ONCE));
    value_at(loads, v, key, i, d, soon, stored[0]);
    if (two && !half && !IN_GROUPS) ask_soon_for(soon, loads * LINE);
    if (two) value_at(loads, v, key + 1, i, d, soon, stored[1]);
    for (int n = 0; n < loads; n++, to += 2 * UNITS_AT_ONCE) {
        const __m512i first = stored[0][n], second = stored[1][n];
        if (!IN_CODES) {
            to[0] = _mm512_unpacklo_epi16(first, second);
            to[1] = _mm512_unpackhi_epi16(first, second);
        } else if (vectors == 2) {
            widen_codes(upper ? _mm512_unpackhi_epi8(first, second) : _mm512_unpacklo_epi8(first, second), to);
        } else {
            widen_codes(_mm512_unpacklo_epi8(first, second), to);
            widen_codes(_mm512_unpackhi_epi8(first, second), to + 2);
        }
    }
}

// The weights p of two keys for 16 twos of their values: of groups, those of each of four blocks, of codes from i on.
INLINE __m512i weights_of_pair(const uint32_t *p, int64_t i, int64_t width) {
    if (!IN_GROUPS) return _mm512_set1_epi32((int)*p);
    long long both;
    memcpy(&both, p + i / CODES * width, 8);
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1),
                                    _mm512_set1_epi64(both));
}

// Sums += weights p [rows, apart] of two keys times `vectors` vectors of their values: `paired` ones, or v [keys, d].
INLINE void add_pair(const int rows, const int vectors, const int upper, const int paired, const int two,
                     const int half, const uint32_t *p, int64_t apart, int64_t width, const void *v, int64_t key,
                     int64_t i, int64_t d, int64_t columns, __m512 sum[OUTPUT_ROWS][8], Soon *soon) {
    __m512i twos[8], weights[OUTPUT_ROWS];
    if (!paired) pair_at(vectors, upper, two, half, v, key, i, d, soon, twos);
    for (int n = 0; n < vectors; n++) {
        const uint32_t *from = (const uint32_t *)v + key / 2 * columns + i + 16 * n;
        const __m512i pairs = paired ? _mm512_load_si512(from) : twos[n];
        for (int r = 0; r < rows; r++) {
            if (!IN_GROUPS || n % 4 == 0) weights[r] = weights_of_pair(p + r * apart, i + 16 * n, width);
            sum[r][n] = add_twos(sum[r][n], pairs, weights[r]);
        }
    }
}

// o [rows, wide] += p [rows, apart] times 16 `vectors` numbers from i on of values. Of groups, `zeros` has what their zeros
// add.
INLINE void output_columns(const int rows, const int vectors, const int upper, const int paired, const int half,
                           const uint32_t *p, int64_t apart, int64_t width, const void *v, int64_t i, const int64_t d,
                           int64_t columns, int64_t keys, float *o, int64_t wide, const uint32_t *zeros, Soon *soon) {
    __m512 sum[OUTPUT_ROWS][8];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) {
            sum[r][n] = _mm512_load_ps(o + r * wide + i + 32 * upper + 16 * n);
            if (zeros)
                sum[r][n] = _mm512_add_ps(sum[r][n],
                                          (__m512)weights_of_pair(zeros + r * apart + (i + 16 * n) / CODES * 2, 0, 0));
        }
    int64_t key = 0;
    for (; key + 2 <= keys; key += 2, p += IN_GROUPS ? 2 : 1)
        add_pair(rows, vectors, upper, paired, 1, half, p, apart, width, v, key, i, d, columns, sum, soon);
    if (key < keys) add_pair(rows, vectors, upper, paired, 0, half, p, apart, width, v, key, i, d, columns, sum, soon);
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) _mm512_store_ps(o + r * wide + i + 32 * upper + 16 * n, sum[r][n]);
}

// `half` as above.
INLINE void output_rows(const int rows, const int paired, const int half, const uint32_t *p, int64_t apart,
                        int64_t width, const void *v, const int64_t d, int64_t columns, int64_t keys, float *o,
                        int64_t wide, const uint32_t *zeros, Soon *soon) {
#define COLUMNS_OF(VECTORS, UPPER, HALF)                                                                               \
    output_columns(rows, VECTORS, UPPER, paired, HALF, p, apart, width, v, i, d, columns, keys, o, wide, zeros, soon)
    int64_t i = 0;
    if (IN_CODES && rows > ROWS_TWOS && !paired)  // half of the numbers at a time: they are widened once for all rows
        for (; i < columns; i += CODES) {
            COLUMNS_OF(2, 0, 1);
            COLUMNS_OF(2, 1, 1);
        }
    if (rows <= 3)
        for (; i + 128 <= columns; i += 128) COLUMNS_OF(8, 0, 0);
    for (; i + 64 <= columns; i += 64) COLUMNS_OF(4, 0, half);
    if (i < columns) COLUMNS_OF(2, 0, 0);
#undef COLUMNS_OF
}

#define PAIRED 4096  // numbers of values at most that are paired at once: they stay in the first cache

// One page: `keys` keys from number `first` on, at position `start`.
#define PAGE                                                                                                           \
    const Attention *a, const int32_t *block, const Piece *of, int64_t first, int64_t start, int64_t keys,             \
        int64_t after, float *room

#define OUTPUT(R, IN_PAIRS, HALF)                                                                                      \
    output_rows(R, IN_PAIRS, HALF, p + row * apart, apart, width, from, d, columns, some, of->sums.o + row * wide,     \
                wide, zeros ? zeros + row * apart : 0, &soon)

// What few rows ask for. Of fp8, which has more arithmetic, lines are always asked for once more, as by Spread. Of bf16 only
// into the second cache, and four rows and more further ahead: weights take longer, meanwhile nothing is asked for. Into the
// first one nothing is gained.
#define SOON_OF_SEVERAL 14336
#define AGAIN_OF_SEVERAL 12288
INLINE Soon asked_by(const int rows, const int into, const Attention *a, int which, int64_t first, int next_which,
                     int64_t next) {
    const int several = STORED == BF16 && into == INTO_SECOND && rows > 3;
    Soon soon = asked_ahead(several ? SOON_OF_SEVERAL : SOON, a, which, first, next_which, next);
    soon.into = into;
    soon.again = STORED == BF16 && into != INTO_SECOND ? 0 : several && a->head_dim > 64 ? AGAIN_OF_SEVERAL : AGAIN;
    return soon;
}

// Where rows' weights are within `room`, which has their scores [rows, width], and then begins what else is needed.
INLINE uint32_t *weights_in(float *room, int64_t rows, int64_t width) {
    return (uint32_t *)(IN_GROUPS ? room + rows * width : room);
}
INLINE float *behind_weights(float *room, int64_t rows, int64_t d, int64_t width) {
    return room + rows * (width + (IN_GROUPS ? row_of_weights(d, width) : 0));
}

INLINE void look_by_few(const int64_t d, const int rows, const int beside, const int into, PAGE) {
    const int64_t width = whole(a->page_size, TURNED), wide = wide_of(d), some = keys;
    const int64_t columns = whole(a->value_dim, AT_ONCE), apart = row_of_weights(d, width);
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    uint32_t *weights = weights_in(room, rows, width);
    const uint32_t *p = weights + (IN_GROUPS ? sums_of_groups(d) : 0), *zeros = IN_GROUPS ? weights : 0;
    const void *from = vectors(a, 1, first).numbers;
    const Constants c = constants_at(a, d, first, keys, behind_weights(room, rows, d, width));
    ask_for_constants(a, after);
    Soon soon = one ? asked_by(rows, into, a, 0, first, 0, after) : asked_by(rows, into, a, 0, first, 1, first);
    score_few(rows, beside, twos_of(of), vectors(a, 0, first).numbers, d, keys, &c, room, width, &soon);
    wide_attention_twos_weigh(a, block, start, keys, rows, room, width, of, wide, &c);
    if (IN_GROUPS) wide_attention_twos_weigh_groups(rows, d, keys, room, width, &c, weights);
    if (!one) soon = asked_by(rows, into, a, 1, first, 0, after);
    // More rows of bf16 take two turns, each of which asks for half of what comes next.
    const int turn = !IN_CODES && (rows > OUTPUT_LINES || rows == 5) ? 4 : rows, more = rows - turn;
    int row = 0;
    OUTPUT(turn, 0, more > 0);
    row = turn;
    if (more) OUTPUT(more, 0, 1);
}

INLINE void look_by_many(const int64_t d, PAGE) {
    const int64_t width = whole(a->page_size, TURNED), wide = wide_of(d), columns = whole(a->value_dim, AT_ONCE);
    const int64_t rows = block[1] * a->group, units = units_in(d), apart = row_of_weights(d, width);
    float *s = room, *constants = behind_weights(room, rows, d, width);
    uint32_t *weights = weights_in(room, rows, width),
             *tiles = (uint32_t *)(constants + room_of_constants(STORED, d, width));
    __m512i *made = (__m512i *)(tiles + width * wide / 2);  // units [keys, units]
    const uint32_t *zeros = IN_GROUPS ? weights : 0;
    const Constants c = constants_at(a, d, first, keys, constants);
    Soon soon = {0};
    (void)after;
    make_twos(vectors(a, 0, first).numbers, keys, d, made);
    turn_keys(made, keys, units, tiles, &soon);
    if (lie_beside(a)) score_many(1, twos_of(of), tiles, d, rows, keys, &c, s, width);
    else score_many(0, twos_of(of), tiles, d, rows, keys, &c, s, width);
    wide_attention_twos_weigh(a, block, start, keys, rows, s, width, of, wide, &c);
    if (IN_GROUPS) wide_attention_twos_weigh_groups(rows, d, keys, s, width, &c, weights);
    const int64_t pairs = PAIRED / 2 / columns > 1 ? PAIRED / 2 / columns : 1, chunk = 2 * pairs;
    for (int64_t key = 0; key < keys; key += chunk, zeros = 0) {
        const int64_t some = keys - key < chunk ? keys - key : chunk;
        const uint32_t *p = weights + (IN_GROUPS ? sums_of_groups(d) : 0) + key / (IN_GROUPS ? 1 : 2), *from = tiles;
        make_twos(vectors(a, 1, first + key).numbers, some, d, made);
        pair_values(made, some, units, columns, tiles, &soon);
        BY_WIDE_ROWS(rows, 6, OUTPUT, 1, 0)
    }
}

// A function for each number of rows, few ones, and for heads of 64 and 128 numbers and all others: what is known while it
// is compiled stays in registers. So it is with where is asked to, if that is the second cache, but for rows of several
// tokens, and for one or two of bf16: without that branch they read 0.90 to 0.99 as quickly. Of int4, heads of whole 128
// numbers go another way.
typedef void (*Look)(PAGE);
#define LOOK(NAME, CALL, ...)                                                                                          \
    static __attribute__((noinline)) void wide_attention_twos_##NAME(PAGE) {                                           \
        CALL(__VA_ARGS__, a, block, of, first, start, keys, after, room);                                              \
    }
#define FOUR_LOOKS(NAME, NUMBERS, MORE, BESIDE_EACH_OTHER, INTO)                                                       \
    LOOK(NAME##_1, look_by_few, NUMBERS, MORE + 1, BESIDE_EACH_OTHER, INTO)                                            \
    LOOK(NAME##_2, look_by_few, NUMBERS, MORE + 2, BESIDE_EACH_OTHER, INTO)                                            \
    LOOK(NAME##_3, look_by_few, NUMBERS, MORE + 3, BESIDE_EACH_OTHER, INTO)                                            \
    LOOK(NAME##_4, look_by_few, NUMBERS, MORE + 4, BESIDE_EACH_OTHER, INTO)
#define FEW_LOOKS(D, NUMBERS, INTO)                                                                                    \
    FOUR_LOOKS(few_##D, NUMBERS, 0, 0, INTO)                                                                           \
    FOUR_LOOKS(beside_##D, NUMBERS, 4, STORED == BF16, INTO)
#define LOOKS(D, NUMBERS)                                                                                              \
    FEW_LOOKS(D, NUMBERS, a->into)                                                                                     \
    FOUR_LOOKS(more_##D, NUMBERS, 4, 0, a->into)                                                                       \
    LOOK(many_##D, look_by_many, NUMBERS)
LOOKS(any, a->head_dim)
LOOKS(64, 64)
FEW_LOOKS(64_second, 64, INTO_SECOND)
#ifndef OF_INT4
LOOKS(128, 128)
FEW_LOOKS(128_second, 128, INTO_SECOND)
#endif

#define NAMED(NAME) wide_attention_twos_##NAME
#define FOUR(NAME) {NAMED(NAME##_1), NAMED(NAME##_2), NAMED(NAME##_3), NAMED(NAME##_4)}
#define EITHER(OF_CODES, OF_LINES) IN_CODES ? NAMED(OF_CODES) : NAMED(OF_LINES)
// One to four rows are `few`; five to eight are `beside`, of one token, or `more`, of several. Of codes nothing lies beside
// anything: there it is known where is asked to, no more.
typedef struct {
    Look few[2][ROWS_TWOS], beside[2][ROWS_TWOS], more[ROWS_TWOS], many;  // [2]: whether to the second cache
} Looks;
#define LOOKS_OF(D, SECOND)                                                                                            \
    {{FOUR(few_##D),                                                                                                   \
      {EITHER(few_##SECOND##_1, few_##D##_1), EITHER(few_##SECOND##_2, few_##D##_2), NAMED(few_##SECOND##_3),          \
       NAMED(few_##SECOND##_4)}},                                                                                      \
     {FOUR(beside_##D), FOUR(beside_##SECOND)},                                                                        \
     {EITHER(beside_##D##_1, more_##D##_1), EITHER(beside_##D##_2, more_##D##_2),                                      \
      EITHER(beside_##D##_3, more_##D##_3), EITHER(beside_##D##_4, more_##D##_4)},                                     \
     NAMED(many_##D)}
static const Looks LOOKS_BY_SIZE[] = {LOOKS_OF(any, any), LOOKS_OF(64, 64_second),
#ifndef OF_INT4
                                      LOOKS_OF(128, 128_second)
#endif
};

static void wide_attention_twos_look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                        int64_t start, int64_t after, float *room) {
    const int64_t rows = block[1] * a->group, left = block[2] + block[1] - start;
    const int64_t keys = left < a->page_size ? left : a->page_size;
    const int64_t size = a->head_dim;
    const Looks *looks = LOOKS_BY_SIZE + (size == 64 ? 1 : size == 128 ? 2 : 0);
    const int second = a->into == INTO_SECOND;
    const Look look = rows > FEW_TWOS        ? looks->many
                      : rows <= ROWS_TWOS    ? looks->few[second][rows - 1]
                      : a->group > ROWS_TWOS ? looks->beside[second][rows - ROWS_TWOS - 1]
                                             : looks->more[rows - ROWS_TWOS - 1];
    look(a, block, of, first_vector(a, block, kv_head, start), start, keys, after, room);
}

static void wide_attention_twos_end(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group;
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t row = 0; row < rows; row++) {
        float *to = answer_at(a, block, head, row);
        const float *o = of->sums.o + row * wide_of(d);
        const __m512 all = weights_of_row(of, row);
        float placed[IN_GROUPS ? wide_of(d) : 1];
        for (int64_t i = 0; i < whole(a->value_dim, AT_ONCE); i += UNIT) {
            const __m512 evens = _mm512_div_ps(_mm512_load_ps(o + i), all);
            const __m512 odds = _mm512_div_ps(_mm512_load_ps(o + i + 16), all);
            float unit[UNIT] __attribute__((aligned(64)));
            _mm512_store_ps(unit, _mm512_permutex2var_ps(evens, low, odds));
            _mm512_store_ps(unit + 16, _mm512_permutex2var_ps(evens, high, odds));
            for (int64_t b = 0; b < 4; b++) {
                const int64_t n = eight_of(i / UNIT, b);
                if (IN_GROUPS) _mm256_storeu_ps(placed + n, _mm256_load_ps(unit + 8 * b));
                else if (n < a->value_dim)
                    _mm256_mask_storeu_ps(to + n, eight_there(a->value_dim, n), _mm256_load_ps(unit + 8 * b));
            }
        }
        for (int64_t i = 0; IN_GROUPS && i < a->value_dim; i++) to[i] = placed[place_of(i)];
        memset(to + a->value_dim, 0, (size_t)(d - a->value_dim) * sizeof(float));
    }
}

#define WAY_OF_TWOS                                                                                                    \
    {1 / LOG2_E, wide_of, wide_attention_twos_begin, wide_attention_twos_look_at, wide_attention_twos_end}
