// Attention over int8, int6 and int4 by AVX-512 with VNNI, in whole numbers: queries and weights are digits too, of 16
// bits. Of int4 only vectors of whole 128 numbers; others become bf16 where that has instructions, or else fp32. Of
// several queries a head of keys int8 and int6 are multiplied by tiles, where there are such (attention_amx_digits.c), with the
// same bits, and int4 by tiles of bf16 (attention_amx_int4.c); else int8 becomes bf16, too, where it can.
//
//     s   = a sum_g(k_g sum(Q K) + low_g sum(Q))    Q = round(q / a), a: one step a query and head
//     o  += b_g sum(W V) + sum(p low_g)             W = round(p v_g / b_g), b: one step a page, of int4 and a group
//
// K and V are stored digits, made unsigned, which is corrected at the end; k_g, v_g and low_g their vector's constants, g
// the groups of int4: other formats have one step a vector, and no lowest value. vpdpbusd multiplies four bytes of K or V
// by four of the signed bytes that Q and W are made of, their planes, and adds them up in each of 16 lanes.
//
// So digits become tiles: 16 lanes of four bytes. A lane of keys has four numbers of one key; four keys lie beside each
// other in each of four blocks of four lanes, whose numbers differ. A lane of values has the same number of four values.
// Nothing is added up across lanes but at the end, for 16 keys at once, in whole numbers where they have one scale.
//
// One or two rows wait for memory more than for arithmetic, which goes by vectors in the order that they lie in then: keys one
// after the other, whose lanes are added up for four at once; values two by two, as words of 16 bits, by vpdpwssd, whose
// sums need no planes and so leave registers for 128 numbers of two rows.
//
// Sums are exact: those of 256 digits of a key, or 32 of int4, and those of a page's at most 256 values stay below 2^31.

#include "attention.h"

// From here on, for such processors only. What may hold such instructions begins with `wide_attention`.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))),                 \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#endif

#include "attention_wide_digits.h"

#define ROWS 2  // that are computed at once: their sums and what they are made of fill the registers

// sum += a * b, of which a is unsigned. With the intrinsic, gcc 12 copies the sum before it and behind it.
INLINE void add_products(__m512i *sum, __m512i a, __m512i b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

// The same of 16 bits, two of each.
INLINE void add_word_products(__m512i *sum, __m512i a, __m512i b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

// What few rows ask for while they look at keys or values. Pages of few bytes are asked for a page ahead of the same part, or
// else nothing would be on its way while weights are computed.
INLINE Soon asked_while(const Attention *a, int which, int64_t first, int64_t after) {
    const int small = a->page_size * length_of(a->format, a->head_dim) < SOON;
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    Soon soon = small || one ? asked_soon(a, which, first, which, after)
                             : asked_soon(a, which, first, !which, which ? after : first);
    soon.constants = (const float *)a->part[which][1] + after * constants_of(a->format, a->head_dim);
    return soon;
}

// Before load `n` of vectors' units: a line, or of int6, which has three lines in four loads, most often.
INLINE void ask_before(const int format, Spread *ahead, int64_t n) {
    if (format == INT6 && n % 4 == 3) return;
    ask_next(ahead);
}

// Constants that follow, as many as the four vectors from number 4 `four` on have. A page is longer than what stays in the
// first cache if it is asked for once.
INLINE void ask_constants(const int format, const int64_t d, const Soon *soon, int64_t four) {
    const int64_t bytes = KEYS * constants_of(format, d) * (int64_t)sizeof(float);
    for (int64_t line = four * bytes / TILE; line < (four + 1) * bytes / TILE; line++)
        _mm_prefetch((const char *)soon->constants + line * TILE, _MM_HINT_T0);
}

// Groups of 32 numbers whose constants may differ, in fours.
INLINE int64_t sets_of(int64_t d) { return (d + 127) / 128; }

// In which unit a number is, and which of its bytes: with int4 a unit has the even numbers of 128, or the odd ones, so
// that a block has one group's; with int6 too, where vectors are whole 128 numbers, or else the even ones of 64 come first.
INLINE int64_t turn_of(const int format, int64_t d) {
    return format == INT8 ? 1 : format == INT6 && d % 128 ? UNIT : 2 * UNIT;
}
INLINE int64_t place_of(const int format, int64_t n, int64_t d) {
    const int64_t stretch = turn_of(format, d);
    return format == INT8 ? n : n / stretch * stretch + n % 2 * (stretch / 2) + n % stretch / 2;
}

// Units that are loaded at once: with int4 both, in the lower and the upper half of bytes.
INLINE int64_t units_of(const int format) { return format == INT4 ? 2 : 1; }
INLINE __m512i half_of(const int format, __m512i bytes, int64_t unit) {
    if (format != INT4) return bytes;
    return _mm512_and_si512(_mm512_srli_epi16(bytes, (unsigned)(unit % 2 * 4)), _mm512_set1_epi8(15));
}

// The steps and lowest values of four vectors in four groups: lane 4 g + n is that of vector n in group 4 `set` + g.
INLINE void four_constants(const float *from, const int64_t apart[4], int64_t d, int64_t set, __m512 to[2]) {
    const int64_t groups = d / 32;
    const __m512i turned = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    __m512 both[2];                    // of two vectors, their steps and lowest values
    if (d == 128 && apart[3] == 24) {  // nothing lies between
        both[0] = _mm512_loadu_ps(from), both[1] = _mm512_loadu_ps(from + 16);
    } else
        for (int n = 0; n < 2; n++) {
            const float *one = from + apart[2 * n] + 4 * set, *other = from + apart[2 * n + 1] + 4 * set;
            __m512 all = _mm512_castps128_ps512(_mm_loadu_ps(one));
            all = _mm512_insertf32x4(all, _mm_loadu_ps(one + groups), 1);
            all = _mm512_insertf32x4(all, _mm_loadu_ps(other), 2);
            both[n] = _mm512_insertf32x4(all, _mm_loadu_ps(other + groups), 3);
        }
    to[0] = _mm512_permutex2var_ps(both[0], turned, both[1]);
    to[1] = _mm512_permutex2var_ps(both[0], _mm512_add_epi32(turned, _mm512_set1_epi32(4)), both[1]);
}

// Those of all sets of four vectors, [set][2][16].
INLINE void keep_constants(const float *from, const int64_t apart[4], int64_t d, float *to) {
    for (int64_t set = 0; set < sets_of(d); set++, to += 32) {
        __m512 both[2];
        four_constants(from, apart, d, set, both);
        _mm512_store_ps(to, both[0]), _mm512_store_ps(to + 16, both[1]);
    }
}

// Those of keys: lane 4 i + n of tile t has the bytes 16 i + 4 t to 16 i + 4 t + 3 of key n.
INLINE void key_tiles(const __m512i x[4], __m512i to[4]) {
    const __m512i ab = _mm512_unpacklo_epi32(x[0], x[1]), cd = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i more = _mm512_unpackhi_epi32(x[0], x[1]), others = _mm512_unpackhi_epi32(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi64(ab, cd), to[1] = _mm512_unpackhi_epi64(ab, cd);
    to[2] = _mm512_unpacklo_epi64(more, others), to[3] = _mm512_unpackhi_epi64(more, others);
}

// Four vectors' units become four tiles.
INLINE void four_tiles(const int format, const int which, const int full, const uint8_t *from, const int64_t apart[4],
                       int64_t i, int64_t d, __m512i to[4]) {
    __m512i x[4];
    for (int n = 0; n < 4; n++) x[n] = unit_of(format, full, from + apart[n], i, d);
    if (which) value_tiles(x, to);
    else key_tiles(x, to);
}

// How far four vectors lie from the first of them, of what is `length` long; behind the last one comes that again.
INLINE void lay_apart(int64_t length, int64_t left, int64_t apart[4]) {
    for (int64_t n = 0; n < 4; n++) apart[n] = (n < left ? n : left > 0 ? left - 1 : 0) * length;
}

// Where four vectors lie, from number 4 `four` on, of `left` that are there, `all` of the four or not; behind the last one
// comes that again. Returns the number of the first.
INLINE int64_t four_of(const int all, int64_t length, int64_t four, int64_t left, int64_t apart[4]) {
    if (all) {
        for (int64_t n = 0; n < 4; n++) apart[n] = n * length;
        return 4 * four;
    }
    const int64_t at = 4 * four < left ? 4 * four : left - 1;
    lay_apart(length, left - at, apart);
    return at;
}

// Four keys' tiles, the first of which goes to `to` and the one of the next t four further; their constants [set][2][16].
INLINE void make_key_tiles(const int format, const int64_t d, const uint8_t *from, const int64_t apart[4],
                           const float *by, const int64_t few_apart[4], char *to, float *constants) {
    if (format == INT4) keep_constants(by, few_apart, d, constants);
    for (int64_t i = 0; i < d; i += units_of(format) * UNIT) {
        __m512i tile[4];
        if (i + UNIT <= d) four_tiles(format, 0, 1, from, apart, i, d, tile);
        else four_tiles(format, 0, 0, from, apart, i, d, tile);
        for (int64_t unit = 0; unit < units_of(format); unit++, to += 16 * TILE)
            for (int t = 0; t < 4; t++) _mm512_store_si512(to + 4 * t * TILE, half_of(format, tile[t], unit));
    }
}

// 16 keys become tiles [unit][t][4 keys], and their constants [4 keys][set][2][16].
INLINE void make_16_key_tiles(const int format, const int64_t d, const Attention *a, int64_t first, int64_t left,
                              char *tiles, float *constants, Soon *soon) {
    const int64_t length = length_of(format, d), few = constants_of(format, d), sets = sets_of(d);
    const uint8_t *from = (const uint8_t *)a->part[0][0] + first * length;
    const float *by = (const float *)a->part[0][1] + first * few;
    for (int64_t four = 0; four < 4; four++) {
        int64_t apart[4], few_apart[4];
        const int64_t at = four_of(left >= 16, length, four, left, apart);
        four_of(left >= 16, few, four, left, few_apart);
        if (at + KEYS <= left) ask_soon_for(soon, KEYS * length);
        make_key_tiles(format, d, from + at * length, apart, by + at * few, few_apart, tiles + four * TILE,
                       constants + four * sets * 32);
    }
}

// What is known of a row's query: planes [plane][whole units], and behind them what their sums add up to, of each group
// as floats, or of each span as whole numbers, times ZERO.
typedef struct {
    const int8_t *planes;
    const float *group_sums;
    const int32_t *span_sums;
} Query;

INLINE Query query_of(const Piece *of, int64_t row, int64_t d) {
    const int8_t *planes = planes_of(of, row, d), *sums = planes + PLANES * wide_of(d);
    const Query query = {planes, (const float *)sums, (const int32_t *)sums};
    return query;
}

// 16 keys: their tiles, [unit][t][4 keys], and constants, [4 keys][set][2][16]; or of few rows the keys themselves, of
// which `left` are there.
typedef struct {
    const char *tiles;
    const float *constants;
    const uint8_t *from;
    const float *by;
    int64_t left;
} Keys16;

INLINE void multiply_tiles(const int rows, const Query *queries, int64_t wide, int64_t unit, const char *tiles,
                           __m512i sum[ROWS][PLANES][4]){
#define TURN(T)                                                                                                        \
    {                                                                                                                  \
        __m512i tile[4];                                                                                               \
        for (int n = 0; n < 4; n++) tile[n] = _mm512_load_si512(tiles + (4 * T + n) * TILE);                           \
        for (int r = 0; r < rows; r++)                                                                                 \
            for (int p = 0; p < PLANES; p++) {                                                                         \
                const __m512i all = _mm512_load_si512(queries[r].planes + p * wide + unit * UNIT);                     \
                const __m512i q = _mm512_shuffle_epi32(all, T * 0x55);                                                 \
                for (int n = 0; n < 4; n++) add_products(&sum[r][p][n], tile[n], q);                                   \
            }                                                                                                          \
    }
    TURN(0) TURN(1) TURN(2) TURN(3)
#undef TURN
}

// The sums of the blocks of four vectors, beside each other.
#define SUMS_OF_BLOCKS(NAME, TYPE, SHUFFLE, ADD)                                                                       \
    INLINE TYPE NAME(const TYPE x[4]) {                                                                                \
        const TYPE ab = ADD(SHUFFLE(x[0], x[1], 0x44), SHUFFLE(x[0], x[1], 0xee));                                     \
        const TYPE cd = ADD(SHUFFLE(x[2], x[3], 0x44), SHUFFLE(x[2], x[3], 0xee));                                     \
        return ADD(SHUFFLE(ab, cd, 0x88), SHUFFLE(ab, cd, 0xdd));                                                      \
    }
SUMS_OF_BLOCKS(whole_sums, __m512i, _mm512_shuffle_i32x4, _mm512_add_epi32)
    SUMS_OF_BLOCKS(float_sums, __m512, _mm512_shuffle_f32x4, _mm512_add_ps)

    // The sums of each block of four vectors, beside each other as those of tiles.
    INLINE __m512i sums_in_blocks(const __m512i x[4]) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// What is loaded of a vector at once from number i on, in the order in which that is written.
INLINE __m512i next_of(const int format, const uint8_t *from, int64_t i, int64_t d) {
    return in_order(i + UNIT <= d ? unit_of(format, 1, from, i, d) : unit_of(format, 0, from, i, d));
}

// Sums of four keys from number `key` on, as they lie in memory: those of tiles.
INLINE void multiply_keys(const int format, const int64_t d, const int all, const int rows, const Query *queries,
                          const Keys16 *keys, int64_t key, const int64_t unit, const int64_t end, Spread *ahead,
                          __m512i joined[ROWS]) {
    const int64_t length = length_of(format, d), at_once = units_of(format);
    __m512i sum[ROWS][4];
    int64_t loads = 0;
#pragma GCC unroll 4
    for (int64_t n = 0; n < KEYS; n++) {
        const uint8_t *from = keys->from + (all || key + n < keys->left ? key + n : keys->left - 1) * length;
        __m512i of_plane[ROWS][PLANES];
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < PLANES; p++) of_plane[r][p] = _mm512_setzero_si512();
        for (int64_t u = unit; u < end; u += at_once) {
            ask_before(format, ahead, loads++);
            const __m512i loaded = next_of(format, from, u * UNIT, d);
            for (int64_t half = 0; half < at_once; half++) {
                const __m512i x = half_of(format, loaded, half);
                for (int r = 0; r < rows; r++)
                    for (int p = 0; p < PLANES; p++) {
                        const int8_t *q = queries[r].planes + p * wide_of(d) + (u + half) * UNIT;
                        add_products(&of_plane[r][p], x, _mm512_load_si512(q));
                    }
            }
        }
        for (int r = 0; r < rows; r++) sum[r][n] = joined_planes(of_plane[r][0], of_plane[r][1]);
    }
    for (int r = 0; r < rows; r++) joined[r] = sums_in_blocks(sum[r]);
}

// Sums of 16 keys, from unit `unit` to before `end`, in fours.
INLINE void multiply_16(const int format, const int64_t d, const int few, const int all, const int rows,
                        const Query *queries, const Keys16 *keys, int64_t unit, int64_t end, Spread *ahead,
                        __m512i joined[ROWS][4]) {
    if (few) {
        for (int64_t four = 0; four < 4; four++) {
            __m512i of_four[ROWS];
            multiply_keys(format, d, all, rows, queries, keys, four * KEYS, unit, end, ahead, of_four);
            for (int r = 0; r < rows; r++) joined[r][four] = of_four[r];
        }
        return;
    }
    __m512i sum[ROWS][PLANES][4];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PLANES; p++)
            for (int n = 0; n < 4; n++) sum[r][p][n] = _mm512_setzero_si512();
    for (; unit < end; unit++) multiply_tiles(rows, queries, wide_of(d), unit, keys->tiles + unit * 16 * TILE, sum);
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < 4; n++) joined[r][n] = joined_planes(sum[r][0][n], sum[r][1][n]);
}

// s [rows, width] of 16 keys and 1 or 2 rows; `k_scale` has those of `keys`.
INLINE void score_16(const int format, const int64_t d, const int few, const int all, const int rows, const Piece *of,
                     int64_t row, const Keys16 *keys, const float *k_scale, float *s, int64_t width, Spread *ahead) {
    const int64_t units = (d + UNIT - 1) / UNIT, sets = sets_of(d);
    const int units_at_once = format == INT4 ? 2 : SPAN / UNIT;
    Query queries[2];
    for (int r = 0; r < rows; r++) queries[r] = query_of(of, row + r, d);
    __m512 scores[2], parts[2][4];
    for (int r = 0; r < rows; r++) {
        scores[r] = _mm512_setzero_ps();
        for (int n = 0; n < 4; n++) parts[r][n] = _mm512_setzero_ps();
    }
    for (int64_t unit = 0; unit < units; unit += units_at_once) {
        const int64_t end = unit + units_at_once < units ? unit + units_at_once : units;
        __m512i joined[ROWS][4];
        multiply_16(format, d, few, all, rows, queries, keys, unit, end, ahead, joined);
        if (format == INT4)
            for (int n = 0; n < 4; n++) {
                __m512 by[2];
                if (few) {
                    int64_t apart[4];
                    const int64_t at = four_of(all, constants_of(format, d), n, keys->left, apart);
                    four_constants(keys->by + at * constants_of(format, d), apart, d, unit / 2, by);
                } else
                    for (int part = 0; part < 2; part++)
                        by[part] = _mm512_load_ps(keys->constants + (n * sets + unit / 2) * 32 + part * 16);
                for (int r = 0; r < rows; r++) {
                    const __m512 sum = _mm512_load_ps(queries[r].group_sums + unit / 2 * 16);
                    parts[r][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(joined[r][n]), by[0], parts[r][n]);
                    parts[r][n] = _mm512_fmadd_ps(sum, by[1], parts[r][n]);
                }
            }
        else
            for (int r = 0; r < rows; r++) {
                const __m512i less = _mm512_set1_epi32(queries[r].span_sums[unit / units_at_once]);
                const __m512i exact = _mm512_sub_epi32(whole_sums(joined[r]), less);
                scores[r] = _mm512_add_ps(scores[r], _mm512_cvtepi32_ps(exact));
            }
    }
    for (int r = 0; r < rows; r++) {
        const __m512 step = _mm512_set1_ps(of->q_step[row + r]);
        const __mmask16 some = (__mmask16)first_of(keys->left);
        if (format == INT4) scores[r] = float_sums(parts[r]);
        else scores[r] = _mm512_mul_ps(scores[r], _mm512_maskz_loadu_ps(some, k_scale));
        _mm512_store_ps(s + r * width, _mm512_mul_ps(scores[r], step));
    }
}

// Weights of a page times the values' scales, of 1 or 2 rows: words [width] or planes [2][width] of 16 bits, `each` bytes
// from row to row; their steps, and the sums of all.
INLINE void weights_of_16_bits(const int words, const int rows, const float *s, int64_t keys, int64_t width,
                               const float *v_scale, int8_t *to, int64_t each, float *steps, int32_t *sums) {
    __m512 most[2], scaled[2][16];
    __m512i all[2];
    __mmask16 broken[2] = {0, 0};
    for (int r = 0; r < rows; r++) most[r] = _mm512_setzero_ps(), all[r] = _mm512_setzero_si512();
    for (int64_t i = 0; i < keys; i += 16) {
        const __m512 scale = _mm512_maskz_loadu_ps((__mmask16)first_of(keys - i), v_scale + i);
        for (int r = 0; r < rows; r++) {
            const __m512 weight = _mm512_load_ps(s + r * width + i);
            const __m512 now = _mm512_maskz_mul_ps(that_weigh(weight), weight, scale);
            most[r] = _mm512_max_ps(now, most[r]);
            broken[r] |= _mm512_cmp_ps_mask(now, now, _CMP_UNORD_Q);
            scaled[r][i / 16] = now;
        }
    }
    __m512 inverse[2];
    for (int r = 0; r < rows; r++) {
        steps[r] = broken[r] ? NAN : at_least_tiny(_mm512_reduce_max_ps(most[r]) / MOST_16);
        inverse[r] = _mm512_set1_ps(1 / steps[r]);
    }
    for (int64_t i = 0; i < keys; i += 16)
        for (int r = 0; r < rows; r++) {
            const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(scaled[r][i / 16], inverse[r]));
            all[r] = _mm512_add_epi32(all[r], v);
            if (words) {
                _mm256_store_si256((__m256i *)(to + r * each + 2 * i), _mm512_cvtepi32_epi16(v));
                continue;
            }
            const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
            _mm_store_si128((__m128i *)(to + r * each + i), _mm512_cvtepi32_epi8(v));
            _mm_store_si128((__m128i *)(to + r * each + width + i), _mm512_cvtepi32_epi8(high));
        }
    for (int r = 0; r < rows; r++) sums[r] = _mm512_reduce_add_epi32(all[r]);
}

// The same of int4: [set][4 values], byte n of dword p in block g being plane p of value n in group g, or word n of block g
// of half as long ones the value's weight. To
// `steps` [set][2][16] those of each group, and then what the lowest values add, `each` bytes from row to row.
INLINE void weights_of_groups(const int words, const int rows, const float *s, int64_t keys, int64_t width,
                              int64_t sets, const float *constants, int8_t *to, float *steps, int64_t each) {
    const int64_t fours = whole(keys, 16) / 4;
    const __m512i turned = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i half = _mm512_set1_epi32(0x8080);
    for (int64_t set = 0; set < sets; set++, to += fours * TILE, steps += 32) {
        __m512 lowest[2], inverse[2];
        __m512i largest[2];  // of what is not negative the larger number has the larger bits
        for (int r = 0; r < rows; r++) lowest[r] = _mm512_setzero_ps(), largest[r] = _mm512_setzero_si512();
        for (int64_t four = 0; four < fours; four++) {
            const float *by = constants + (four * sets + set) * 32;
            const __m512 step = _mm512_load_ps(by), low = _mm512_load_ps(by + 16);
            for (int r = 0; r < rows; r++) {
                const __m512 p = _mm512_broadcast_f32x4(_mm_load_ps(s + r * width + 4 * four));
                const __mmask16 weighs = that_weigh(p);
                const __m512 scaled = _mm512_maskz_mul_ps(weighs, p, step);
                largest[r] = _mm512_max_epu32(_mm512_castps_si512(scaled), largest[r]);  // NaN stays
                lowest[r] = _mm512_mask3_fmadd_ps(p, low, lowest[r], weighs);
                _mm512_store_ps(to + r * each + four * TILE, scaled);
            }
        }
        for (int r = 0; r < rows; r++) {
            largest[r] = _mm512_max_epu32(largest[r], _mm512_shuffle_epi32(largest[r], 0x4e));
            largest[r] = _mm512_max_epu32(largest[r], _mm512_shuffle_epi32(largest[r], 0xb1));
            lowest[r] = _mm512_add_ps(lowest[r], _mm512_permute_ps(lowest[r], 0x4e));
            lowest[r] = _mm512_add_ps(lowest[r], _mm512_permute_ps(lowest[r], 0xb1));
            const __m512 tiny = _mm512_set1_ps(TINY), limit = _mm512_set1_ps(MOST_16);
            // NaN stays.
            const __m512 step = _mm512_max_ps(tiny, _mm512_div_ps(_mm512_castsi512_ps(largest[r]), limit));
            inverse[r] = _mm512_div_ps(_mm512_set1_ps(1), step);
            float *row_steps = (float *)((char *)steps + r * each);
            _mm512_store_ps(row_steps, step);
            _mm512_store_ps(row_steps + 16, lowest[r]);
        }
        for (int64_t four = 0; four < fours; four++)
            for (int r = 0; r < rows; r++) {
                int8_t *at = to + r * each + four * TILE;
                const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(at), inverse[r]));
                const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(v, half), half);
                if (words) _mm256_store_si256((__m256i *)at, _mm512_cvtepi32_epi16(v));
                else _mm512_store_si512(at, _mm512_shuffle_epi8(bytes, turned));
            }
    }
}

// What a page's weights become, of 1 or 2 rows.
typedef struct {
    int8_t *room;  // [rows][each]
    int64_t each;
    float step[2];
    int32_t less[2];
} Weights;

INLINE Weights weights_of(const int format, const int64_t d, const int words, const int rows, const float *s,
                          int64_t width, const float *constants, const float *v_scale, int64_t keys, int8_t *room) {
    const int64_t fours = whole(keys, 16) / 4, sets = sets_of(d);
    Weights w = {room, format == INT4 ? fours * sets * TILE + sets * 128 : whole(2 * width, 64), {0}, {0}};
    if (format == INT4)
        weights_of_groups(words, rows, s, keys, width, sets, constants, room + sets * 128, (float *)room, w.each);
    else weights_of_16_bits(words, rows, s, keys, width, v_scale, room, w.each, w.step, w.less);
    return w;
}

INLINE void add_tiles(const int format, const int rows, const Weights *weights, int64_t width, int64_t unit,
                      int64_t sets, int64_t fours, int64_t four, const __m512i tile[4], __m512i sum[ROWS][PLANES][4]) {
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PLANES; p++) {
            __m512i w;
            if (format == INT4) {
                const int8_t *from = weights->room + r * weights->each + sets * 128 + (unit / 2 * fours + four) * TILE;
                const __m512i all = _mm512_load_si512(from);
                w = p == 0 ? _mm512_shuffle_epi32(all, 0x00) : _mm512_shuffle_epi32(all, 0x55);
            } else {
                int32_t bytes;
                memcpy(&bytes, weights->room + r * weights->each + p * width + 4 * four, sizeof bytes);
                w = _mm512_set1_epi32(bytes);
            }
            for (int t = 0; t < 4; t++) add_products(&sum[r][p][t], tile[t], w);
        }
}

// o [rows, wide] += what weights times a unit of a page's values add up to.
INLINE void add_unit(const int format, const int rows, const Weights *weights, int64_t unit, int64_t wide,
                     const __m512i sum[ROWS][4], float *o) {
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < 4; t++) {
            float *to = o + r * wide + unit * UNIT + 16 * t;
            if (format == INT4) {
                const float *steps = (const float *)(weights->room + r * weights->each) + unit / 2 * 32;
                const __m512 step = _mm512_load_ps(steps), low = _mm512_load_ps(steps + 16);
                const __m512 all = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][t]), step, low);
                _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), all));
            } else {
                const __m512i less = _mm512_set1_epi32(zero_of(format) * weights->less[r]);
                const __m512 step = _mm512_set1_ps(weights->step[r]);
                const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[r][t], less));
                _mm512_store_ps(to, _mm512_fmadd_ps(exact, step, _mm512_load_ps(to)));
            }
        }
}

// o [rows, wide] += weights times a unit of the values of a page, of 1 or 2 rows, by tiles [4 values][t].
INLINE void sum_tiles(const int format, const int64_t d, const int rows, const Weights *weights, const char *tiles,
                      int64_t unit, int64_t width, int64_t keys, float *o, Soon *soon) {
    const int64_t some = KEYS * length_of(format, d) / ((d + UNIT - 1) / UNIT) / 2;  // of what is asked for
    const int64_t fours = whole(keys, 16) / 4, sets = sets_of(d);
    __m512i sum[ROWS][PLANES][4], joined[ROWS][4];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PLANES; p++)
            for (int t = 0; t < 4; t++) sum[r][p][t] = _mm512_setzero_si512();
    for (int64_t four = 0; four < fours; four++) {
        __m512i tile[4];
        for (int t = 0; t < 4; t++) tile[t] = _mm512_load_si512(tiles + (4 * four + t) * TILE);
        ask_soon_for(soon, some);
        add_tiles(format, rows, weights, width, unit, sets, fours, four, tile, sum);
    }
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < 4; t++) joined[r][t] = joined_planes(sum[r][0][t], sum[r][1][t]);
    add_unit(format, rows, weights, unit, wide_of(d), joined, o);
}

// Two values' units become four of words, two of each number, in the order of tiles.
INLINE void pair_words(__m512i first, __m512i second, __m512i to[4]) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i a = _mm512_unpacklo_epi8(first, zero), b = _mm512_unpacklo_epi8(second, zero);
    const __m512i c = _mm512_unpackhi_epi8(first, zero), e = _mm512_unpackhi_epi8(second, zero);
    to[0] = _mm512_unpacklo_epi16(a, b), to[1] = _mm512_unpackhi_epi16(a, b);
    to[2] = _mm512_unpacklo_epi16(c, e), to[3] = _mm512_unpackhi_epi16(c, e);
}

// Two weights of a row, from number `key` on, for each number of a tile.
INLINE __m512i pair_of_weights(const int format, const Weights *weights, int r, int64_t set, int64_t fours, int64_t key,
                               int64_t sets) {
    const int8_t *from = weights->room + r * weights->each;
    if (format == INT4) {
        const __m512i turned = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
        const __m256i four = _mm256_load_si256((const __m256i *)(from + sets * 128 + (set * fours + key / 4) * TILE));
        const __m512i place = key % 4 ? _mm512_add_epi32(turned, _mm512_set1_epi32(1)) : turned;
        return _mm512_permutexvar_epi32(place, _mm512_castsi256_si512(four));
    }
    int32_t two;
    memcpy(&two, from + 2 * key, sizeof two);
    return _mm512_set1_epi32(two);
}

// Sums += weights times four values from number `four` on, `units` units of each from `unit` on; behind the last value comes
// that again, which weighs nothing. Of int4 the first unit's sums are those of the lower halves of bytes, the second's those
// of whole bytes.
INLINE void add_values(const int format, const int64_t d, const int all, const int64_t units, const int rows,
                       const Weights *weights, const uint8_t *values, int64_t unit, int64_t keys, int64_t four,
                       Spread *ahead, __m512i sum[ROWS][2][4]) {
    const int64_t length = length_of(format, d), loads = units / units_of(format);
#pragma GCC unroll 2
    for (int64_t key = 0; key < KEYS; key += 2) {
        __m512i x[2][2], words[4];
        for (int64_t n = 0; n < 2; n++) {
            const uint8_t *from = values + (all || four + key + n < keys ? four + key + n : keys - 1) * length;
            for (int64_t load = 0; load < loads; load++) {
                ask_before(format, ahead, (key + n) * loads + load);
                x[n][load] = next_of(format, from, (unit + load) * UNIT, d);
            }
        }
        __m512i w[ROWS];
        for (int r = 0; r < rows; r++)
            w[r] = pair_of_weights(format, weights, r, unit / 2, whole(keys, 16) / 4, four + key, sets_of(d));
        for (int64_t load = 0; load < loads; load++) {
            pair_words(x[0][load], x[1][load], words);
            for (int t = 0; t < 4; t++)
                for (int r = 0; r < rows; r++)
                    if (format == INT4) {
                        add_word_products(&sum[r][0][t], _mm512_and_si512(words[t], _mm512_set1_epi16(15)), w[r]);
                        add_word_products(&sum[r][1][t], words[t], w[r]);
                    } else add_word_products(&sum[r][load][t], words[t], w[r]);
        }
    }
}

// o [rows, wide] += weights times `units` units of the values of a page, of 1 or 2 rows, as they lie in memory.
INLINE void sum_values(const int format, const int64_t d, const int64_t units, const int rows, const Weights *weights,
                       const uint8_t *values, int64_t unit, int64_t keys, float *o, Soon *soon) {
    const int64_t bytes = KEYS * length_of(format, d) * units / ((d + UNIT - 1) / UNIT);
    __m512i sum[ROWS][2][4];
    for (int r = 0; r < rows; r++)
        for (int u = 0; u < units; u++)
            for (int t = 0; t < 4; t++) sum[r][u][t] = _mm512_setzero_si512();
    int64_t key = 0;
    for (; key + KEYS <= keys; key += KEYS) {
        Spread ahead = spread_over(soon, bytes, values + key * length_of(format, d));
        if (unit == 0) ask_constants(format, d, soon, key / 4);
        add_values(format, d, 1, units, rows, weights, values, unit, keys, key, &ahead, sum);
    }
    if (key < keys) {
        Spread none = {(const char *)values, 0, (const char *)values};
        add_values(format, d, 0, units, rows, weights, values, unit, keys, key, &none, sum);
    }
    for (int u = 0; u < units; u++) {
        __m512i of_unit[ROWS][4];
        for (int r = 0; r < rows; r++)
            for (int t = 0; t < 4; t++)
                of_unit[r][t] = format == INT4 && u ? _mm512_srli_epi32(_mm512_sub_epi32(sum[r][1][t], sum[r][0][t]), 4)
                                                    : sum[r][u][t];
        add_unit(format, rows, weights, unit + u, wide_of(d), of_unit, o);
    }
}

// A query q [d] becomes planes [plane][wide] and sums behind them; its step is given back.
static float wide_attention_planes(const int format, const float *q, int64_t d, int8_t *to) {
    const int64_t wide = wide_of(d);
    const float step = step_of(q, d, MOST_16);
    const __m512 divisor = _mm512_set1_ps(step);
    const __m512i half = _mm512_set1_epi32(0x8080);
    memset(to, 0, (size_t)(4 * wide));
    float *group_sums = (float *)(to + PLANES * wide);
    int32_t *span_sums = (int32_t *)group_sums;
    const __m128i evens_first = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (int64_t i = 0; i < d; i += 16) {
        const __mmask16 some = (__mmask16)first_of(d - i);
        const __m512i v = _mm512_maskz_cvtps_epi32(some, _mm512_div_ps(_mm512_maskz_loadu_ps(some, q + i), divisor));
        const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(v, half), half);
        for (int p = 0; p < PLANES; p++) {
            const __m128i plane = _mm512_cvtepi32_epi8(p ? _mm512_srli_epi32(bytes, 8) : bytes);
            if (format == INT8) {
                _mm_store_si128((__m128i *)(to + p * wide + i), plane);
                continue;
            }
            const __m128i halves = _mm_shuffle_epi8(plane, evens_first);
            _mm_storel_epi64((__m128i *)(to + p * wide + place_of(format, i, d)), halves);
            _mm_storel_epi64((__m128i *)(to + p * wide + place_of(format, i + 1, d)),
                             _mm_unpackhi_epi64(halves, halves));
        }
        const int32_t sum = _mm512_reduce_add_epi32(v);
        if (format == INT4)  // four lanes of a group's block
            for (int64_t n = 0; n < 4; n++) group_sums[i / 32 * 4 + n] += (float)sum;
        else span_sums[i / SPAN] += (int32_t)((uint32_t)sum * (uint32_t)zero_of(format));  // of NaN, whatever it is
    }
    return step;
}

void wide_attention_begin_digits(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, wide = wide_of(d);
    const __m256 scale = _mm256_set1_ps(a->scale * (a->cap > 0 ? 1 : LOG2_E));
    for (int64_t row = 0; row < rows; row++) {
        const float *from = query_at(a, block, head, row);
        float *q = to->q + row * wide;
        int8_t *planes = planes_of(to, row, d);
        for (int64_t i = 0; i < d; i += 8) _mm256_storeu_ps(q + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), scale));
        to->q_step[row] = a->format == INT8   ? wide_attention_planes(INT8, q, d, planes)
                          : a->format == INT6 ? wide_attention_planes(INT6, q, d, planes)
                                              : wide_attention_planes(INT4, q, d, planes);
    }
}

// s [rows, width] of all keys of a page. Of more than few rows they become tiles 16 at a time, while those before are
// multiplied.
INLINE void all_scores(const int format, const int64_t d, const Attention *a, const Piece *of, const int64_t rows,
                       int64_t first, int64_t keys, char *tiles, float *s, int64_t width, Soon *soon) {
    const int64_t length = length_of(format, d), few = constants_of(format, d);
    float *constants = (float *)(tiles + 16 * wide_of(d));
    const float *k_scale = (const float *)a->part[0][1] + first;
    for (int64_t key = 0; key < keys; key += 16) {
        const Keys16 now = {tiles, constants, (const uint8_t *)a->part[0][0] + (first + key) * length,
                            (const float *)a->part[0][1] + (first + key) * few, keys - key};
        float *to = s + key;
        if (rows <= ROWS) {
            Spread ahead = spread_over(soon, 16 * length, now.from);
            for (int64_t four = key / 4; four < key / 4 + 4; four++) ask_constants(format, d, soon, four);
#define SCORE(ALL, ROWS) score_16(format, d, 1, ALL, ROWS, of, 0, &now, k_scale + key, to, width, &ahead)
            if (now.left >= 16 && rows == 2) SCORE(1, 2);
            else if (now.left >= 16) SCORE(1, 1);
            else if (rows == 2) SCORE(0, 2);
            else SCORE(0, 1);
#undef SCORE
            continue;
        }
        make_16_key_tiles(format, d, a, first + key, keys - key, tiles, constants, soon);
        for (int64_t row = 0; row < rows; row += ROWS, to += ROWS * width) {
            Spread none = {0};
            if (row + 1 < rows) score_16(format, d, 0, 1, 2, of, row, &now, k_scale + key, to, width, &none);
            else score_16(format, d, 0, 1, 1, of, row, &now, k_scale + key, to, width, &none);
        }
    }
}

// o [rows, wide] += weights s [rows, width] times a page's values.
INLINE void all_sums(const int format, const int64_t d, const Attention *a, const float *s, const int64_t rows,
                     int64_t width, int64_t first, int64_t keys, char *room, float *o, Soon *soon) {
    const int64_t wide = wide_of(d), sets = sets_of(d), fours = whole(keys, 16) / 4;
    const int64_t loaded = whole(a->value_dim, units_of(format) * UNIT), columns = loaded < d ? loaded : d;
    const int64_t length = length_of(format, d), few = constants_of(format, d);
    const uint8_t *from = (const uint8_t *)a->part[1][0] + first * length;
    const float *by = (const float *)a->part[1][1] + first * few;
    float *constants = (float *)room;
    char *tiles = room + width * sets * 32;
    int8_t *weights_room = (int8_t *)(tiles + width * wide);
    if (format == INT4)
        for (int64_t four = 0; four < fours; four++) {
            int64_t apart[4];
            const int64_t at = four_of(0, few, four, keys, apart);
            keep_constants(by + at * few, apart, d, constants + four * sets * 32);
        }
    const int made = rows > ROWS;
    if (made)
        for (int64_t four = 0; four < fours; four++) {
            int64_t apart[4];
            const int64_t at = four_of(0, length, four, keys, apart);
            if (at + KEYS <= keys) ask_soon_for(soon, KEYS * length / 2);
            char *to = tiles + four * 4 * TILE;
            for (int64_t i = 0; i < columns; i += units_of(format) * UNIT) {
                __m512i tile[4];
                if (i + UNIT <= d) four_tiles(format, 1, 1, from + at * length, apart, i, d, tile);
                else four_tiles(format, 1, 0, from + at * length, apart, i, d, tile);
                for (int64_t unit = 0; unit < units_of(format); unit++, to += fours * 4 * TILE)
                    for (int t = 0; t < 4; t++) _mm512_store_si512(to + t * TILE, half_of(format, tile[t], unit));
            }
        }
    for (int64_t row = 0; row < rows; row += ROWS, s += ROWS * width, o += ROWS * wide) {
        const int both = row + 1 < rows;
        const Weights w = !made  ? both ? weights_of(format, d, 1, 2, s, width, constants, by, keys, weights_room)
                                        : weights_of(format, d, 1, 1, s, width, constants, by, keys, weights_room)
                          : both ? weights_of(format, d, 0, 2, s, width, constants, by, keys, weights_room)
                                 : weights_of(format, d, 0, 1, s, width, constants, by, keys, weights_room);
        const char *of_unit = tiles;
        int64_t unit = 0;
        for (; made && unit * UNIT < columns; unit++, of_unit += fours * 4 * TILE) {
            if (both) sum_tiles(format, d, 2, &w, of_unit, unit, width, keys, o, soon);
            else sum_tiles(format, d, 1, &w, of_unit, unit, width, keys, o, soon);
        }
#define SUM(UNITS, ROWS) sum_values(format, d, UNITS, ROWS, &w, from, unit, keys, o, soon)
        for (; unit * UNIT + UNIT < columns; unit += 2) {
            if (both) SUM(2, 2);
            else SUM(2, 1);
        }
        if (unit * UNIT < columns) {
            if (both) SUM(1, 2);
            else SUM(1, 1);
        }
#undef SUM
    }
}

// How a page is looked at: a function for each format, for heads of 64 and 128 numbers and all others, and for one row, two
// and more. What is known while it is compiled stays in registers.
#define SCORES                                                                                                         \
    const Attention *a, const Piece *of, int64_t rows, int64_t first, int64_t keys, char *room, float *s,              \
        int64_t width, Soon *soon
#define SUMS                                                                                                           \
    const Attention *a, const float *s, int64_t rows, int64_t width, int64_t first, int64_t keys, char *room,          \
        float *o, Soon *soon
typedef struct {
    void (*scores)(SCORES);
    void (*sums)(SUMS);
} WideDigits;

#define WIDE_DIGITS(NAME, FORMAT, D, ROWS_THERE)                                                                       \
    static void wide_attention_scores_##NAME(SCORES) {                                                                 \
        all_scores(FORMAT, D, a, of, ROWS_THERE, first, keys, room, s, width, soon);                                   \
        (void)rows;                                                                                                    \
    }                                                                                                                  \
    static void wide_attention_sums_##NAME(SUMS) {                                                                     \
        all_sums(FORMAT, D, a, s, ROWS_THERE, width, first, keys, room, o, soon);                                      \
        (void)rows;                                                                                                    \
    }
#define FUNCTIONS_BY_ROWS(NAME, FORMAT, D)                                                                             \
    WIDE_DIGITS(NAME##_1, FORMAT, D, 1)                                                                                \
    WIDE_DIGITS(NAME##_2, FORMAT, D, 2)                                                                                \
    WIDE_DIGITS(NAME##_many, FORMAT, D, rows)
#define FUNCTIONS_BY_SIZE(NAME, FORMAT)                                                                                \
    FUNCTIONS_BY_ROWS(NAME##_any, FORMAT, a->head_dim)                                                                 \
    FUNCTIONS_BY_ROWS(NAME##_64, FORMAT, 64)                                                                           \
    FUNCTIONS_BY_ROWS(NAME##_128, FORMAT, 128)
FUNCTIONS_BY_SIZE(int8, INT8)
FUNCTIONS_BY_SIZE(int6, INT6)
FUNCTIONS_BY_SIZE(int4, INT4)

#define NAMED(NAME) {wide_attention_scores_##NAME, wide_attention_sums_##NAME}
#define NAMED_BY_ROWS(NAME) {NAMED(NAME##_many), NAMED(NAME##_1), NAMED(NAME##_2)}
#define NAMED_BY_SIZE(NAME) {NAMED_BY_ROWS(NAME##_any), NAMED_BY_ROWS(NAME##_64), NAMED_BY_ROWS(NAME##_128)}
static const WideDigits WIDE_DIGITS[INT6 + 1][3][ROWS + 1] = {
    [INT8] = NAMED_BY_SIZE(int8), [INT6] = NAMED_BY_SIZE(int6), [INT4] = NAMED_BY_SIZE(int4)};

static __attribute__((noinline)) void wide_attention_weigh_digits(const Attention *a, const int32_t *block,
                                                                  int64_t start, int64_t keys, int64_t rows, float *s,
                                                                  int64_t apart, const Piece *of, int64_t wide) {
    const int64_t width = whole(keys, 16);
    WEIGH_ROWS(weigh_plain, sizeof(float))
}

static void wide_attention_look_at_digits(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                          int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, size = a->page_size, width = whole(size, 16), wide = wide_of(d);
    const int64_t tokens = block[1], position = block[2], rows = tokens * a->group;
    const int one = a->part[0][0] == a->part[1][0];
    const int64_t left = position + tokens - start, keys = left < size ? left : size;
    const int64_t first = first_vector(a, block, kv_head, start);
    const WideDigits *way = &WIDE_DIGITS[a->format][d == 64 ? 1 : d == 128 ? 2 : 0][rows <= ROWS ? rows : 0];
    float *s = room;
    char *rest = (char *)(s + rows * width);
    Soon soon = asked_while(a, 0, first, after);
    if (rows > ROWS) ask_for_constants(a, after);
    way->scores(a, of, rows, first, keys, rest, s, width, &soon);
    wide_attention_weigh_digits(a, block, start, keys, rows, s, width, of, wide);
    if (!one) soon = asked_while(a, 1, first, after);
    way->sums(a, s, rows, width, first, keys, rest, of->sums.o, &soon);
}

void wide_attention_end_digits(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group;
    // Numbers whose places are a stretch, of which the even ones come first.
    const int64_t stretch = a->format == INT8 ? 16 : turn_of(a->format, d);
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t row = 0; row < rows; row++) {
        float *to = answer_at(a, block, head, row);
        const float *o = of->sums.o + row * wide_of(d);
        const __m512 all = weights_of_row(of, row);
        for (int64_t i = 0; i < a->value_dim; i += stretch) {
            __m512 placed[8];  // 16 numbers each, in the order of their bytes
            for (int64_t n = 0; n < stretch; n += 16) {
                const float *from = o + (i + n) / UNIT * UNIT + (i + n) % UNIT / 4;
                __m512 x = _mm512_castps128_ps512(_mm_load_ps(from));
                x = _mm512_insertf32x4(x, _mm_load_ps(from + 16), 1);
                x = _mm512_insertf32x4(x, _mm_load_ps(from + 32), 2);
                placed[n / 16] = _mm512_div_ps(_mm512_insertf32x4(x, _mm_load_ps(from + 48), 3), all);
            }
            for (int64_t n = 0; n < stretch && i + n < a->value_dim; n += 16) {
                const __m512 even = placed[n / 32], odd = placed[stretch / 32 + n / 32];
                const __m512 x = a->format == INT8 ? placed[0] : _mm512_permutex2var_ps(even, n % 32 ? high : low, odd);
                _mm512_mask_storeu_ps(to + i + n, (__mmask16)first_of(a->value_dim - i - n), x);
            }
        }
        memset(to + a->value_dim, 0, (size_t)(d - a->value_dim) * sizeof(float));
    }
}

const Way wide_attention_digits = {1 / LOG2_E, wide_of, wide_attention_begin_digits, wide_attention_look_at_digits,
                                   wide_attention_end_digits};

#ifdef __clang__
#pragma clang attribute pop
#endif
