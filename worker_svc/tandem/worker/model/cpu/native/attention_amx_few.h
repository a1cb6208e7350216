// Attention by AMX of few rows, as those of a decode: up to 16. Its bits are those of many rows (attention_amx.h).
//
// Keys are the rows of a product, where they are, and queries its columns: so it is its scores that are turned, which are
// fewer than keys. What is added up is the same in the same order. Values become pairs 64 numbers at a time, which stay in
// the first cache.
//
// Memory is the limit, so that a core must have as many lines on their way as it can wait for, at all times. What comes next
// is asked for in four places at once, of which each is another 4 KiB that the processor goes on reading ahead by itself, and
// nearly evenly over the time that all takes: a line asked for while others wait holds up what stands behind it. While values
// of up to 64 numbers of bf16 become pairs, which reads the second cache as quickly as it can be read, nothing is asked for
// (benchmarks/pages/long_contexts.md).
//
// A part of attention_amx.h.

#pragma once

#include "amx_few.h"

// Vectors [keys, d] as units of bf16: where they are, if they are such and may stay there, or else in `made`.
INLINE const __m512i *units_of(const void *numbers, int64_t keys, int64_t d, int may_stay, __m512i *made) {
    if (!IN_CODES && may_stay && d % UNIT == 0 && (uintptr_t)numbers % sizeof(__m512i) == 0) return numbers;
    make_twos(numbers, keys, d, made);
    return made;
}

#define KEYS_A_TURN 8

// Codes become units; meanwhile what comes next is asked for.
INLINE const __m512i *units_of_codes(const void *codes, int64_t keys, int64_t d, __m512i *made, Asks *asks) {
    for (int64_t key = 0; key < keys; key += KEYS_A_TURN) {
        const int64_t some = keys - key < KEYS_A_TURN ? keys - key : KEYS_A_TURN;
        ask_four(asks, units_in(d) / UNITS_AT_ONCE);
        make_twos((const char *)codes + key * length_of(STORED, d), some, d, made + key * units_in(d));
    }
    return made;
}

// Values behind the last pair of keys are 0, up to whole TURNED of them.
INLINE void no_more_pairs(uint32_t *tiles, int64_t pairs, int64_t columns) {
    memset(tiles + pairs * columns, 0, (size_t)((whole(pairs, TURNED / 2) - pairs) * columns) * sizeof(uint32_t));
}

INLINE int few_rows(int64_t rows) { return rows <= FEW_COLUMNS; }

// Scores [32, columns] of 32 keys, or of 16.
INLINE void scores_of_32(const int both, const int columns, const uint32_t *q, const __m512i *k, const int64_t units,
                         float *to, Asks *asks) {
    const __m512i *second = k + 16 * units;
    _tile_zero(0);
    if (both) _tile_zero(1);
    for (int64_t unit = 0; unit < units; unit++) {
        const int times = !IN_CODES ? 2 : unit % UNITS_AT_ONCE == 0;
        ask_four(asks, times);
        _tile_loadd(2, q + unit * 16 * columns, columns * 4);
        _tile_loadd(3, k + unit, units * 64);
        _tile_dpbf16ps(0, 3, 2);
        if (!both) continue;
        ask_four(asks, times);
        _tile_loadd(4, second + unit, units * 64);
        _tile_dpbf16ps(1, 4, 2);
    }
    _tile_stored(0, to, columns * 4);
    if (both) _tile_stored(1, to + 16 * columns, columns * 4);
}

// s [rows, width], as queries q [units, 16, columns] twos look at keys, up to whole 16 of them.
INLINE void scores_of_few(const int columns, const uint32_t *q, int64_t rows, const __m512i *k, int64_t keys,
                          const int64_t units, float *s, int64_t width, Asks *asks) {
    float scores[64 * columns] __attribute__((aligned(64)));
    for (int64_t key = 0; key < keys; key += 64, k += 64 * units) {
        const int64_t left = keys - key;
        for (int64_t n = 0; n < 64 && n < left; n += 32)
            if (left - n > 16) scores_of_32(1, columns, q, k + n * units, units, scores + n * columns, asks);
            else scores_of_32(0, columns, q, k + n * units, units, scores + n * columns, asks);
        MEMORY_IS_READ;
        for (int64_t n = 0; n < 64 && n < left; n += 16) {
            const float *from = scores + n * columns;
            if (!IN_CODES) ask_four(asks, units);
            __m512i r[FEW_COLUMNS];
            for (int i = 0; i < columns; i++) r[i] = _mm512_load_si512(from + 16 * i);
            turn_scores(columns, r);
            for (int i = 0; i < columns && i < rows; i++) _mm512_store_si512(s + i * width + key + n, r[i]);
        }
    }
}

ALONE static void amx_scores_of_few(const uint32_t *q, int64_t rows, const __m512i *k, int64_t keys, int64_t units,
                                    float *s, int64_t width, Asks *asks) {
#define SCORES(COLUMNS, UNITS) scores_of_few(COLUMNS, q, rows, k, keys, UNITS, s, width, asks)
    BY_COLUMNS(SCORES, rows, units);
#undef SCORES
}

// 64 numbers from i on of codes v [keys, d] become pairs of keys, as those of pair_values.
INLINE void pair_codes(const void *v, int64_t keys, int64_t i, int64_t d, uint32_t *to, Asks *asks) {
    for (int64_t key = 0; key < keys; key += 2, to += 64) {
        if (key % KEYS_A_TURN == 0) ask_four(asks, 1);
        const __m512i first = stored_at(v, key, i, d);
        const __m512i second = key + 1 < keys ? stored_at(v, key + 1, i, d) : _mm512_setzero_si512();
        __m512i pairs[4];
        widen_codes(_mm512_unpacklo_epi8(first, second), pairs);
        widen_codes(_mm512_unpackhi_epi8(first, second), pairs + 2);
        for (int n = 0; n < 4; n++) _mm512_store_si512(to + 16 * n, pairs[n]);
    }
}

// `columns` numbers from i on of values v [keys, units of d] of bf16 become pairs.
INLINE void pair_some_values(const __m512i *v, int64_t keys, int64_t i, int64_t d, int64_t columns, uint32_t *to,
                             Asks *asks) {
    const int64_t units = units_in(d), at_once = d > 64 ? KEYS_A_TURN : whole(keys, 2);
    Soon none = {0};
    for (int64_t key = 0; key < keys; key += at_once) {
        if (d > 64) ask_four(asks, 1);
        pair_values(v + key * units + i / UNIT, keys - key < at_once ? keys - key : at_once, units, columns,
                    to + key / 2 * columns, &none);
    }
}

// o [rows, wide] += weights p [rows, turns, 16] twos, rows `width` words apart, times `columns` numbers from i on of values v
// [keys, d]: units of bf16, or codes. tiles: of pairs of these [turns, 16, columns] twos.
INLINE void sums_of_few(const int columns, const uint32_t *p, int64_t width, const void *v, int64_t keys, int64_t i,
                        int64_t d, uint32_t *tiles, float *o, int64_t wide, Asks *asks) {
    if (IN_CODES) pair_codes(v, keys, i, d, tiles, asks);
    else pair_some_values(v, keys, i, d, columns, tiles, asks);
    no_more_pairs(tiles, (keys + 1) / 2, columns);
    MEMORY_IS_READ;
    for (int64_t n = 0; n < columns; n += UNIT) {
        _tile_loadd(5, o + n, wide * 4);
        _tile_loadd(6, o + n + 16, wide * 4);
        for (int64_t turn = 0; turn < keys; turn += TURNED) {
            const uint32_t *here = tiles + turn / 2 * columns + n;
            ask_four(asks, 1);
            _tile_loadd(7, p + turn / 2, width * 4);
            _tile_loadd(3, here, columns * 4);
            _tile_dpbf16ps(5, 7, 3);
            ask_four(asks, 1);
            _tile_loadd(4, here + 16, columns * 4);
            _tile_dpbf16ps(6, 7, 4);
        }
        _tile_stored(5, o + n, wide * 4);
        _tile_stored(6, o + n + 16, wide * 4);
    }
    MEMORY_IS_READ;
}

ALONE static void amx_sums_of_few(const uint32_t *p, int64_t width, const void *v, int64_t keys, int64_t d,
                                  int64_t columns, uint32_t *tiles, float *o, int64_t wide, Asks *asks) {
    for (int64_t i = 0; i < columns; i += 64)
        if (columns - i < 64) sums_of_few(32, p, width, v, keys, i, d, tiles, o + i, wide, asks);
        else sums_of_few(64, p, width, v, keys, i, d, tiles, o + i, wide, asks);
}

// Of codes less is asked for here: it is while they become units.
INLINE AsksOfWeights asks_of_weights(int64_t d, int64_t rows, Asks *asks) {
    const int64_t units = units_in(d) / 2 > 1 ? units_in(d) / 2 : 1, each = rows <= 4 ? 2 * units : units;
    const AsksOfWeights of_numbers = {asks, 4 * each, each, 0}, of_codes = {asks, 2 * each, rows <= 8 ? each : 0, 1};
    return IN_CODES ? of_codes : of_numbers;
}

static __attribute__((noinline)) void wide_attention_amx_weigh(const Attention *a, const int32_t *block, int64_t start,
                                                               int64_t keys, int64_t rows, float *s, int64_t apart,
                                                               const Piece *of, int64_t wide, Asks *asks) {
    const int64_t width = whole(keys, UNIT);
    const AsksOfWeights ask = asks_of_weights(a->head_dim, rows, asks);
#define TO_TWOS(...) weigh(__VA_ARGS__, 0, &ask)
    WEIGH_ROWS(TO_TWOS, sizeof(uint16_t))
#undef TO_TWOS
}

static void wide_attention_amx_few(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                   int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, width = whole(a->page_size, TURNED), wide = wide_of(d), units = units_in(d);
    const int64_t rows = block[1] * a->group, left = block[2] + block[1] - start;
    const int64_t keys = left < a->page_size ? left : a->page_size, columns = whole(a->value_dim, AT_ONCE);
    const int64_t first = first_vector(a, block, kv_head, start);
    uint32_t *tiles = (uint32_t *)(room + rows * width), *p = (uint32_t *)room;
    __m512i *made = (__m512i *)(tiles + width * wide / 2);
    const int has_16 = a->page_size % 16 == 0;  // tiles read whole 16 keys
    const void *values = vectors(a, 1, first).numbers;
    const void *stored = vectors(a, 0, first).numbers;
    Asks asks = asked_in_four(a, after);
    const __m512i *k =
        IN_CODES ? units_of_codes(stored, keys, d, made, &asks) : units_of(stored, keys, d, has_16, made);
    amx_scores_of_few(twos_of(of), rows, k, keys, units, room, width, &asks);
    wide_attention_amx_weigh(a, block, start, keys, rows, room, width, of, wide, &asks);
    if (!IN_CODES) values = units_of(values, keys, d, 1, made);
    amx_sums_of_few(p, width, values, keys, d, columns, tiles, of->sums.o, wide, &asks);
}
