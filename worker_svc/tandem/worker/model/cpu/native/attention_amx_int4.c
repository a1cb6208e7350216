// Attention over int4 of several queries a head of keys by AMX, with queries and weights of bf16.
//
// A code c becomes 128 + c, which in bf16 are the bits 0x4300 + c; what 128 adds is taken away again. The 32 numbers of a
// tile's row are a group, which has one step and a lowest number:
//
//     s  = sum_g(step_g (sum(q (128 + c)) - 128 sum(q)) + low_g sum(q))
//     o += sum(w_g (128 + c)) + sum(p zero_g - 136 w_g)      w_g = p step_g, in bf16; zero_g = low_g + 8 step_g
//
// So what rounding makes of weights is multiplied by c - 8, which is small. Numbers of keys, and of what is added up, have the
// order in which they come out of their bytes.
//
// Keys are the rows of a product and queries its columns, as in attention_amx_few.h, of any number of rows: sixteen at a time.
// A page's products begin with zero, and a row's bits are the same in any company.

#include "amx.h"
#include "attention.h"

// From here on, for such processors only.
#ifdef WITH_AMX
#ifdef __clang__
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,amx-tile,amx-bf16"))),             \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,amx-tile,amx-bf16")
#endif

#include "amx_few.h"
#include "attention_wide_base_two.h"
#include "turned_constants.h"

#define GROUP 32        // numbers that share constants
#define GROUP_BYTES 16  // of their codes
#define UNIT 64         // numbers of values that are loaded at once
#define TURNED 32       // keys that are multiplied at once
#define OFFSET 128.0f   // what is added to a code
#define ZERO_CODE 8.0f
#define HIGH_BYTE 0x4300  // of bf16 from 128 to 255

// What comes next is asked for a line of keys, of values and of the constants of either at a time: a vector has twice as many
// bytes of codes as of constants.
typedef struct {
    const char *codes[2], *constants[2];
    int64_t left;  // lines of each codes
} Next;

INLINE Next next_at(const Attention *a, int64_t first) {
    const int64_t bytes = a->page_size * length_of(INT4, a->head_dim), both = constants_of(INT4, a->head_dim) * 4;
    Next next;
    for (int part = 0; part < 2; part++) {
        next.codes[part] = (const char *)a->part[part][0] + first * length_of(INT4, a->head_dim);
        next.constants[part] = (const char *)a->part[part][1] + first * both;
    }
    next.left = a->apart ? 0 : bytes / LINE;  // those apart were put into the caches
    if (a->part[0][0] != a->part[1][0]) return next;
    next.codes[1] += bytes / 2, next.constants[1] += a->page_size * both / 2;  // keys and values are the same vectors
    next.left /= 2;
    return next;
}

INLINE void ask_lines(Next *next, int64_t times) {
    for (int64_t n = 0; n < times && next->left > 0; n++) {
        const int64_t part = next->left-- % 2;
        _mm_prefetch(next->codes[0], _MM_HINT_T1);
        _mm_prefetch(next->codes[1], _MM_HINT_T1);
        _mm_prefetch(next->constants[part], _MM_HINT_T1);
        next->codes[0] += LINE, next->codes[1] += LINE, next->constants[part] += LINE;
    }
}

// Words of codes become 128 + those of their lower four bits.
INLINE __m512i numbers_of(__m512i words) {
    return _mm512_ternarylogic_epi32(words, _mm512_set1_epi16(15), _mm512_set1_epi16(HIGH_BYTE), 0xea);  // a & b | c
}

// Where a piece has its queries: twos [sixteens of rows][groups][16][columns], and behind them, as often as
// a register has columns, what each adds up to in a group, once and OFFSET times: [sixteens][groups][2][16].
INLINE int64_t sixteens_of(int64_t rows) { return whole(rows, FEW_COLUMNS) / FEW_COLUMNS; }
INLINE uint32_t *twos_of(const Piece *of) { return (uint32_t *)of->q; }
INLINE float *query_sums_of(const Piece *of, int64_t rows, int64_t groups) {
    return (float *)(twos_of(of) + sixteens_of(rows) * groups * 16 * few_columns(rows));
}

static void wide_attention_amx_int4_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, groups = d / GROUP, columns = few_columns(rows);
    const __m512 scale = _mm512_set1_ps(a->scale * (a->cap > 0 ? 1 : LOG2_E));
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    uint32_t *q = twos_of(to);
    float *sums = query_sums_of(to, rows, groups);
    memset(q, 0, (size_t)(sixteens_of(rows) * groups * (16 * columns + 32)) * sizeof *q);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = query_at(a, block, head, row);
        const int64_t column = row % FEW_COLUMNS;
        for (int64_t g = 0; g < groups; g++, from += GROUP) {
            const int64_t at = row / FEW_COLUMNS * groups + g;
            const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
            const __m512 one = _mm512_mul_ps(_mm512_permutex2var_ps(low, first, high), scale);
            const __m512 other = _mm512_mul_ps(_mm512_permutex2var_ps(low, second, high), scale);
            const __m512bh all = _mm512_cvtne2ps_pbh(other, one);
            uint32_t twos[16] __attribute__((aligned(64)));
            _mm512_store_si512(twos, (__m512i)all);
            for (int t = 0; t < 16; t++) q[(at * 16 + t) * columns + column] = twos[t];
            const float sum = _mm512_reduce_add_ps(_mm512_dpbf16_ps(_mm512_setzero_ps(), all, (__m512bh)ones));
            for (int64_t n = column; n < 16; n += columns)
                sums[at * 32 + n] = sum, sums[at * 32 + 16 + n] = OFFSET * sum;
        }
    }
}

// 16 keys' codes become numbers [16, groups, 32].
INLINE void widen_keys(const uint8_t *from, const int64_t groups, __m512i *to, Next *next) {
    // The bit of eight bytes that each word's code begins with.
    const int64_t each = 0x000c000800040000, more = 0x0010001000100010;
    const __m512i bits = _mm512_setr_epi64(each, each, each + more, each + more, each + 2 * more, each + 2 * more,
                                           each + 3 * more, each + 3 * more);
    for (int key = 0; key < 16; key++)
        for (int64_t g = 0; g < groups; g++, from += GROUP_BYTES) {
            if (g == 0 && key % 4 == 0) ask_lines(next, groups / 2);
            const __m512i codes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)from));
            _mm512_store_si512(to++, numbers_of(_mm512_multishift_epi64_epi8(bits, codes)));
        }
}

// sums [groups][16, columns] of 16 keys, which are numbers, and of queries.
INLINE void products_of_16(const int columns, const uint32_t *q, const __m512i *keys, const int64_t groups,
                           float *sums) {
    for (int64_t g = 0; g < groups; g += 2, q += 32 * columns, keys += 2, sums += 32 * columns) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(2, q, columns * 4);
        _tile_loadd(3, keys, groups * 64);
        _tile_dpbf16ps(0, 3, 2);
        _tile_loadd(2, q + 16 * columns, columns * 4);
        _tile_loadd(4, keys + 1, groups * 64);
        _tile_dpbf16ps(1, 4, 2);
        _tile_stored(0, sums, columns * 4);
        _tile_stored(1, sums + 16 * columns, columns * 4);
    }
}

// A constant of each key of which a register has scores, for each of its rows: of the keys from `by` on, number n of each.
INLINE __m512 constants_for(const int columns, const int64_t groups, const float *by, int64_t n) {
    const int64_t apart = 2 * groups;
    if (columns == 16) return _mm512_set1_ps(by[n]);
    if (columns == 8) return _mm512_mask_broadcastss_ps(_mm512_set1_ps(by[n]), 0xff00, _mm_load_ss(by + apart + n));
    const __m512i keys = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i places =
        _mm512_add_epi32(_mm512_mullo_epi32(keys, _mm512_set1_epi32((int)apart)), _mm512_set1_epi32((int)n));
    if (groups == 2) return _mm512_permutexvar_ps(places, _mm512_loadu_ps(by));
    if (groups == 4) return _mm512_permutex2var_ps(_mm512_loadu_ps(by), places, _mm512_loadu_ps(by + 16));
    return _mm512_i32gather_ps(places, by, 4);
}

// s [rows, width] of 16 keys, whose constants are `by` [16, 2 groups].
INLINE void scores_of_16(const int columns, const float *sums, const float *q_sums, const float *by,
                         const int64_t groups, int64_t rows, float *s, int64_t width) {
    const int keys = 16 / columns;  // of a register
    __m512 r[16];
    for (int n = 0; n < columns; n++) r[n] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; g++, q_sums += 32, sums += 16 * columns) {
        const __m512 sum = _mm512_load_ps(q_sums), more = _mm512_load_ps(q_sums + 16);
        for (int n = 0; n < columns; n++) {
            const float *here = by + (int64_t)n * keys * 2 * groups;
            const __m512 step = constants_for(columns, groups, here, g);
            const __m512 low = constants_for(columns, groups, here, groups + g);
            r[n] = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_load_ps(sums + n * 16), more), step, r[n]);
            r[n] = _mm512_fmadd_ps(sum, low, r[n]);
        }
    }
    turn_scores(columns, (__m512i *)r);
    for (int64_t row = 0; row < columns && row < rows; row++) _mm512_store_ps(s + row * width, r[row]);
}

// 64 numbers of 16 keys' values from number i on become pairs [keys / 2][4][16]: of each of two groups the even numbers, then the
// odd ones.
INLINE void pair_some_values(const Attention *a, int64_t first, int64_t key, int64_t i, const int64_t d, __m512i *to) {
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i ones = _mm512_set1_epi32(0x010101), second = _mm512_set1_epi32(0x200000);
    const __m512i first_group = _mm512_add_epi32(_mm512_mullo_epi32(numbers, ones), second);
    const __m512i second_group = _mm512_add_epi32(first_group, _mm512_set1_epi32(0x101010));
    const uint8_t *from = (const uint8_t *)a->part[1][0] + (first + key) * d / 2 + i / 2;
    to += key * 2;
    for (int n = 0; n < 16; n += 2, from += d, to += 4) {
        const __m256i *one = (const __m256i *)from, *other = (const __m256i *)(from + d / 2);
        const __m512i both = d == UNIT ? _mm512_loadu_si512(from)
                                       : _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(one)),
                                                            _mm256_loadu_si256(other), 1);
        for (int g = 0; g < 2; g++) {
            const __m512i words = _mm512_permutexvar_epi8(g ? second_group : first_group, both);
            _mm512_store_si512(to + 2 * g, numbers_of(words));
            _mm512_store_si512(to + 2 * g + 1, numbers_of(_mm512_srli_epi16(words, 4)));
        }
    }
}

// All numbers of 16 keys' values, which are units of 64 numbers of a page.
INLINE void pair_values(const Attention *a, int64_t first, int64_t key, const int64_t d, __m512i *pairs) {
    for (int64_t i = 0; i < a->value_dim; i += UNIT)
        pair_some_values(a, first, key, i, d, pairs + a->page_size * i / 32);
}

// s [rows, width] of all keys of a page, up to whole 16 of them; and values become pairs. While products are on their way, the
// next keys become numbers and the scores before are finished: heads of 64 numbers take 0.88 to 0.94 of the time so.
INLINE void all_scores(const int columns, const int64_t groups, const Attention *a, const Piece *of, int64_t rows,
                       int64_t first, int64_t keys, __m512i *made, float *s, int64_t width, __m512i *pairs,
                       Next *next) {
    const int64_t block = 16 * groups, count = columns * block, sixteens = sixteens_of(rows);
    const int64_t d = groups * GROUP;
    const uint8_t *from = (const uint8_t *)a->part[0][0] + first * groups * GROUP_BYTES;
    const float *by = (const float *)a->part[0][1] + first * 2 * groups;
    const float *q_sums = query_sums_of(of, rows, groups);
    float sums[2 * count] __attribute__((aligned(64)));
    int64_t key = 0, sixteen = 0, last_key = -1, last_sixteen = 0;
    if (whole(keys, 16) < whole(keys, TURNED)) pair_values(a, first, whole(keys, 16), d, pairs);
    widen_keys(from, groups, made, next);
    for (int turn = 0; last_key >= 0 || key < keys; turn = !turn) {
        if (key < keys && sixteen == 0) {
            if (key + 16 < keys)
                widen_keys(from + (key + 16) * groups * GROUP_BYTES, groups, made + (key / 16 + 1) % 2 * block, next);
            pair_values(a, first, key, d, pairs);
        }
        MEMORY_IS_READ;
        if (key < keys)
            products_of_16(columns, twos_of(of) + sixteen * count, made + key / 16 % 2 * block, groups,
                           sums + turn * count);
        MEMORY_IS_READ;
        if (last_key >= 0) {
            ask_lines(next, groups / 2);
            const int64_t row = last_sixteen * FEW_COLUMNS, some = rows - row < columns ? rows - row : columns;
            scores_of_16(columns, sums + !turn * count, q_sums + last_sixteen * groups * 32, by + last_key * 2 * groups,
                         groups, some, s + row * width + last_key, width);
        }
        last_key = key < keys ? key : -1, last_sixteen = sixteen;
        if (++sixteen == sixteens) sixteen = 0, key += 16;
    }
}

ALONE static void amx_int4_scores(const Attention *a, const Piece *of, int64_t rows, int64_t first, int64_t keys,
                                  __m512i *made, float *s, int64_t width, __m512i *pairs, Next *next) {
#define SCORES(COLUMNS, GROUPS) all_scores(COLUMNS, GROUPS, a, of, rows, first, keys, made, s, width, pairs, next)
    BY_COLUMNS(SCORES, rows, a->head_dim / GROUP);
#undef SCORES
}

// What weights of values become: twos [groups][padded rows][width / 2] with their steps, groups `apart` words from each other,
// and what is added to all of a group's numbers [rows, groups].
typedef struct {
    const float *steps, *zeros;  // [groups, width]
    uint32_t *twos;
    float *added;
    int64_t width, apart, groups;
} Weights;

INLINE Weights behind(Weights w, int64_t row, int64_t group) {
    w.steps += group * w.width, w.zeros += group * w.width;
    w.twos += group * w.apart + row * w.width / 2;
    w.added += row * w.groups + group;
    return w;
}

// Those of two groups and some rows s, which are weights already or, with `most` and `sum`, scores, of which weights are `kept`.
INLINE void weigh_two_groups(const int rows, const int kept, float *s, int64_t keys, const __m512 *most, __m512 *sum,
                             const Weights *to) {
    const __m512bh offset = (__m512bh)_mm512_set1_epi16((short)0xc308);  // -136
    const int64_t width = to->width;
    __m512 added[8];
    for (int n = 0; n < 8; n++) added[n] = _mm512_setzero_ps();
    for (int64_t i = 0; i < keys; i += TURNED)
        for (int r = 0; r < rows; r++) {
            float *here = s + r * width + i;
            __m512 low = _mm512_load_ps(here), high = _mm512_load_ps(here + 16);
            __mmask16 first, second;
            if (most) {
                low = _mm512_sub_ps(low, most[r]), high = _mm512_sub_ps(high, most[r]);
                first = that_stay(low), second = that_stay(high);
                low = powers_of_two(low, first), high = powers_of_two(high, second);
                sum[r] = _mm512_add_ps(_mm512_add_ps(sum[r], low), high);
                if (kept) _mm512_store_ps(here, low), _mm512_store_ps(here + 16, high);
            } else first = that_weigh(low), second = that_weigh(high);
            for (int g = 0; g < 2; g++) {
                const float *step = to->steps + g * width + i, *zero = to->zeros + g * width + i;
                const __m512 x = _mm512_maskz_mul_ps(first, low, _mm512_load_ps(step));
                const __m512 y = _mm512_maskz_mul_ps(second, high, _mm512_load_ps(step + 16));
                const __m512bh w = _mm512_cvtne2ps_pbh(y, x);
                __m512 *all = added + 2 * r + g;
                *all = _mm512_mask3_fmadd_ps(low, _mm512_load_ps(zero), *all, first);
                *all = _mm512_mask3_fmadd_ps(high, _mm512_load_ps(zero + 16), *all, second);
                *all = _mm512_dpbf16_ps(*all, w, offset);
                _mm512_store_si512(to->twos + g * to->apart + (r * width + i) / 2, (__m512i)w);
            }
        }
    for (int r = 0; r < rows; r += 2) {
        const __m128 all = wide_sums(added[2 * r], added[2 * r + 1], added[2 * r + 2], added[2 * r + 3]);
        _mm_storel_pi((__m64 *)(to->added + r * to->groups), all);
        if (r + 1 < rows) _mm_storeh_pi((__m64 *)(to->added + (r + 1) * to->groups), all);
    }
}

// Scores become weights, of the first two groups.
INLINE void weigh(const int rows, float *s, int64_t apart, int64_t keys, float *o, int64_t wide, float *m, float *l,
                  const Weights *to) {
    __m512 most[4], sum[4];
    begin_weights(rows, s, apart, keys, o, wide, m, l, most, sum);
    if (to->groups > 2) weigh_two_groups(rows, 1, s, keys, most, sum, to);
    else weigh_two_groups(rows, 0, s, keys, most, sum, to);
    for (int r = 0; r < rows; r++) _mm512_store_ps(l + r * LANES, sum[r]);
}

// Row number `row` sees nothing of a page.
INLINE void weigh_nothing(float *s, int64_t keys, const Weights *all, int64_t row) {
    const Weights to = behind(*all, row, 0);
    const size_t bytes = (size_t)keys * sizeof(float);
    if (to.groups > 2) memset(s, 0, bytes);
    for (int g = 0; g < 2; g++) memset(to.twos + g * to.apart, 0, bytes / 2), to.added[g] = 0;
}

// Constants of values [2 groups, width]: steps, and what a code of 8 stands for.
INLINE void constants_of_values(const Attention *a, int64_t first, int64_t keys, float *to) {
    const int64_t groups = a->head_dim / GROUP, width = a->page_size;
    const float *from = (const float *)a->part[1][1] + first * 2 * groups;
    for (int64_t key = 0; key < keys; key += 16) {
        turn_constants(from + key * 2 * groups, 16, 2 * groups, to + key, width);
        for (int64_t g = 0; g < groups; g++) {
            float *step = to + g * width + key, *zero = step + groups * width;
            _mm512_store_ps(zero,
                            _mm512_fmadd_ps(_mm512_load_ps(step), _mm512_set1_ps(ZERO_CODE), _mm512_load_ps(zero)));
        }
    }
}

static __attribute__((noinline)) void wide_attention_amx_int4_weigh(const Attention *a, const int32_t *block,
                                                                    int64_t start, int64_t keys, int64_t rows, float *s,
                                                                    const Piece *of, const Weights *to, Next *next) {
    const int64_t wide = wide_of(a->head_dim), used = whole(a->value_dim, UNIT) / GROUP, apart = to->width;
    const int64_t width = whole(keys, TURNED);
#define TO_TWOS(...)                                                                                                   \
    do {                                                                                                               \
        const Weights first = behind(*to, row, 0);                                                                     \
        ask_lines(next, to->groups);                                                                                   \
        weigh(__VA_ARGS__, &first);                                                                                    \
    } while (0)
#define NOTHING weigh_nothing(here, width, to, row)
    WEIGH_ROWS_OR(NOTHING, TO_TWOS)
#undef NOTHING
#undef TO_TWOS
    for (int64_t g = 2; g < used; g += 2)
        for (int64_t row = 0; row < rows; row += 4) {
            const Weights here = behind(*to, row, g);
            ask_lines(next, 2);
#define WEIGH(ROWS) weigh_two_groups(ROWS, 0, s + row * apart, width, 0, 0, &here)
            if (rows - row >= 4) WEIGH(4);
            else if (rows - row == 3) WEIGH(3);
            else if (rows - row == 2) WEIGH(2);
            else WEIGH(1);
#undef WEIGH
        }
}

// sums [2][rows, 16] of up to 16 rows of weights and a group's numbers.
INLINE void products_of_group(const uint32_t *weights, int64_t width, const __m512i *pairs, int64_t keys, float *sums) {
    _tile_zero(5);
    _tile_zero(6);
    for (int64_t key = 0; key < keys; key += TURNED) {
        _tile_loadd(7, weights + key / 2, width * 2);
        _tile_loadd(3, pairs + key * 2, 256);
        _tile_dpbf16ps(5, 7, 3);
        _tile_loadd(4, pairs + key * 2 + 1, 256);
        _tile_dpbf16ps(6, 7, 4);
    }
    _tile_stored(5, sums, 64);
    _tile_stored(6, sums + FEW_COLUMNS * 16, 64);
}

// o [rows, wide] += these, and what is added to all of a group.
INLINE void add_sums(int64_t rows, const float *sums, const float *added, int64_t groups, float *o, int64_t wide) {
    for (int64_t row = 0; row < rows; row++, sums += 16, added += groups, o += wide) {
        const __m512 more = _mm512_set1_ps(*added);
        const __m512 even = _mm512_add_ps(_mm512_load_ps(sums), more);
        const __m512 odd = _mm512_add_ps(_mm512_load_ps(sums + FEW_COLUMNS * 16), more);
        _mm512_store_ps(o, _mm512_add_ps(_mm512_load_ps(o), even));
        _mm512_store_ps(o + 16, _mm512_add_ps(_mm512_load_ps(o + 16), odd));
    }
}

// o [rows, wide] += weights times values. While products are on their way, those before are added.
ALONE static void amx_int4_sums(const Attention *a, int64_t rows, const uint32_t *weights, int64_t width, int64_t keys,
                                const __m512i *pairs, const float *added, float *o, Next *next) {
    const int64_t groups = a->head_dim / GROUP, used = whole(a->value_dim, UNIT) / GROUP, wide = wide_of(a->head_dim);
    const int64_t sixteens = sixteens_of(rows), of_sixteen = FEW_COLUMNS * width / 2, count = 2 * FEW_COLUMNS * 16;
    float sums[2 * count] __attribute__((aligned(64)));
    int64_t group = 0, sixteen = 0, last_group = -1, last_sixteen = 0;
    for (int turn = 0; last_group >= 0 || group < used; turn = !turn) {
        MEMORY_IS_READ;
        ask_lines(next, 1);
        if (group < used)
            products_of_group(weights + (group * sixteens + sixteen) * of_sixteen, width,
                              pairs + group / 2 * 2 * width + group % 2 * 2, keys, sums + turn * count);
        MEMORY_IS_READ;
        if (last_group >= 0) {
            const int64_t row = last_sixteen * FEW_COLUMNS, some = rows - row < FEW_COLUMNS ? rows - row : FEW_COLUMNS;
            add_sums(some, sums + !turn * count, added + row * groups + last_group, groups,
                     o + row * wide + last_group * GROUP, wide);
        }
        last_group = group < used ? group : -1, last_sixteen = sixteen;
        if (++sixteen == sixteens) sixteen = 0, group++;
    }
}

// A page's keys are read in whole sixteens and its values in whole 32: there are as many, and codes are numbers whatever they
// are, which weigh nothing.
static void wide_attention_amx_int4_look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                            int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, width = a->page_size, groups = d / GROUP, rows = block[1] * a->group;
    const int64_t padded = whole(rows, FEW_COLUMNS), left = block[2] + block[1] - start;
    const int64_t keys = left < width ? left : width, first = first_vector(a, block, kv_head, start);
    float *constants = room + rows * width, *added = constants + 2 * groups * width;
    uint32_t *weights = (uint32_t *)(added + whole(rows * groups, 16));
    __m512i *made = (__m512i *)(weights + padded * groups * width / 2);
    __m512i *pairs = made + 2 * 16 * groups;
    Next next = next_at(a, after);
    amx_int4_scores(a, of, rows, first, keys, made, room, width, pairs, &next);
    constants_of_values(a, first, keys, constants);
    const Weights of_values = {constants, constants + groups * width, weights, added,
                               width,     padded * width / 2,         groups};
    wide_attention_amx_int4_weigh(a, block, start, keys, rows, room, of, &of_values, &next);
    amx_int4_sums(a, rows, weights, width, keys, pairs, added, of->sums.o, &next);
    ask_lines(&next, next.left);
}

static void wide_attention_amx_int4_end(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group;
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t row = 0; row < rows; row++) {
        float *to = answer_at(a, block, head, row);
        const float *o = of->sums.o + row * wide_of(d);
        const __m512 all = weights_of_row(of, row);
        for (int64_t i = 0; i < a->value_dim; i += GROUP) {
            const __m512 even = _mm512_div_ps(_mm512_load_ps(o + i), all);
            const __m512 odd = _mm512_div_ps(_mm512_load_ps(o + i + 16), all);
            const int64_t there = a->value_dim - i;
            _mm512_mask_storeu_ps(to + i, (__mmask16)first_of(there), _mm512_permutex2var_ps(even, low, odd));
            if (there > 16)
                _mm512_mask_storeu_ps(to + i + 16, (__mmask16)first_of(there - 16),
                                      _mm512_permutex2var_ps(even, high, odd));
        }
        memset(to + a->value_dim, 0, (size_t)(d - a->value_dim) * sizeof(float));
    }
}

const Way wide_attention_amx_int4 = {1 / LOG2_E,
                                     wide_of,
                                     wide_attention_amx_int4_begin,
                                     wide_attention_amx_int4_look_at,
                                     wide_attention_amx_int4_end,
                                     amx_shape_of_few,
                                     amx_release};

#ifdef __clang__
#pragma clang attribute pop
#endif

#else

const Way wide_attention_amx_int4 = {0};

#endif
