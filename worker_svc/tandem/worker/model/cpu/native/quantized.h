// Products with quantized weights: what the two ways of computing them share.

#pragma once

#include "numbers.h"

#define PANEL 16
#define TOGETHER 4  // panels that are a thread's piece of work
// Input numbers between two looks at the output: a panel's part stays in the first cache for all tiles of rows, which
// meanwhile ask for the block that comes next (`ahead`).
#define BLOCK 512
// Rows of a part of them, at most: a part's integers of a block and its sums of a piece of panels stay in the second cache,
// and all of its integers in the third.
#define PART_ROWS 256
#define UNIT 256  // numbers of a row whose scales are multiples of the same number, where scales are small integers

typedef struct {
    const uint8_t *weight;  // [panels, width / 2, 16, 2] int8, or [panels, width / 4, 16, 2] of two int4 each, or
                            // [panels, groups, 3, 16, 2] words of 16 bits, see `two_of_six_bits`
    const void *scale;      // [panels, groups, 16], or [panels, 1, 16] where per_channel
    const void *least;      // [panels, groups, 16], as the scales; the same address: see `six_bits`; or 0
    // [panels, groups / (UNIT / group), 16] fp16, where `half` is 3; [panels, 16] fp32 where it is 4
    const void *scale_unit, *least_unit;
    const int16_t *table;  // [16] what numbers of 4 bits stand for; 0: themselves, or `less`
    const int32_t *x;      // of each tile of rows [words, rows], see `Rounding`
    const float *x_scale;  // of each tile of rows [groups, rows]
    const float *x_sum;    // as x_scale: sums; where `of_integers`, what a group's sums begin with
    float *out;            // [rows, panels * 16]
    int64_t rows, panels, groups;
    // half: 0 scales are fp32, 1 fp16, 2 powers of two, of which the exponent is stored + 127, 3 int8, multiples of a unit,
    // 4 e4m3, multiples of a row's
    int half, per_channel;
    int less;  // by so much numbers are less than their digits; of 8 bits, than what vpdpbusd takes
    int amx;   // whether rows lie as `amx_panels` takes them
} Product;

// By how much all numbers of a table are less than the digits that stand for them: 8, or 0 where it is another table, or
// none.
INLINE int less_than_digits(const int16_t *table) {
    if (!table) return 0;
    for (int i = 0; i < 16; i++)
        if (table[i] != i - 8) return 0;
    return 8;
}

// How much the numbers of a table are to be raised to be none below 0, where all are so small that int8 times sixteen of
// them add up in 16 bits; else 0.
INLINE int small_table(const int16_t *table) {
    int least = 0;
    for (int i = 0; table && i < 16; i++) {
        if (table[i] > 16 || table[i] < -16) return 0;
        if (table[i] < least) least = table[i];
    }
    return -least;
}

// Sixteen scales, or least numbers without their minus, of 6 bits each, where both lie at one address [panels, groups / 2,
// 3, 16]. The lower 6 bits of the three bytes are the scales of two groups and the
// first one's least number; the upper two, one behind the other, the second one's. `at` is the place among numbers that lie
// one by one.
INLINE int together(const Product *p) { return p->scale == p->least; }
INLINE __m128i six_bits(const void *numbers, int64_t at, const int least) {
    const __m128i *three = (const __m128i *)numbers + at / (2 * PANEL) * 3, low = _mm_set1_epi8(63);
    const int second = at / PANEL % 2;
    if (!least) return _mm_and_si128(_mm_loadu_si128(three + second), low);
    const __m128i third = _mm_loadu_si128(three + 2);
    if (!second) return _mm_and_si128(third, low);
    const __m128i a = _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128(three), 6), _mm_set1_epi8(3));
    const __m128i b = _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128(three + 1), 4), _mm_set1_epi8(12));
    const __m128i c = _mm_and_si128(_mm_srli_epi16(third, 2), _mm_set1_epi8(48));
    return _mm_or_si128(_mm_or_si128(a, b), c);
}

INLINE int of_bytes(const int16_t *table) {
    for (int i = 0; i < 16; i++)
        if (table[i] != (int8_t)table[i]) return 0;
    return 1;
}

// How much the numbers of a table are to be raised to be none below 0.
INLINE int raise_of(const int16_t *table) {
    int least = 0;
    for (int i = 0; i < 16; i++)
        if (table[i] < least) least = table[i];
    return -least;
}

#define SPAN 32  // inputs of digits that are added up in 16 bits; of a small table, half of them

// Whether numbers take activations of 8 bits, and not of 16: those of 4 and 6 bits in groups of `SPAN` or less, unless they
// stand for larger ones than int8; they are off what they stand for by more than such activations are. And those of 8 bits,
// without `least` numbers, where it is asked for (products.c).
int takes_int8(int bits, int64_t group, const int16_t *table, int least);

// Whether products with int8 add up in 16 bits, over a span of inputs: those of digits, these less 8, or a small table.
INLINE int fits_16_bits(int bits, int64_t group, const int16_t *table) {
    return bits == 4 && group <= SPAN && (!table || less_than_digits(table) || small_table(table));
}

// How rows of activations are rounded for a product.
typedef struct {
    int64_t k, groups, group;
    int64_t words;  // of 32 bits, that a row's integers are
    int less;
    float largest;  // integer of a group
    // Words are two int16; of 8 bits by AVX-512 four int8, by AVX2, where products fit into 16 bits, two int8 twice, and behind
    // those of each span a word of twice the int16 that is -`raised` times their sum.
    enum { AS_INT16, AS_INT8, AS_INT8_TWICE } kind;
    int crossed;  // of four int8, the second comes behind the third, as numbers of 6 bits are unpacked
    int span, raised;
    int amx;               // rows from which on they are multiplied by AMX; 0: never
    int of_integers;       // whether sums are those of the integers times -`raised`
    const int64_t *order;  // [k], which of a row's numbers comes at each place; 0: that of the place
} Rounding;

#define LARGEST_INT8 127.0f
#define LARGEST_INT16 32767.0f
#define LEAST_LARGEST 1e-30f  // a group's largest number: of less, all are 0

Rounding rounding_of(int bits, const int16_t *table, int least, const int64_t *order, int64_t k, int64_t groups,
                     int64_t group);

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

// Scales and least numbers of a panel as floats, [groups, 16] each.
typedef struct {
    const float *scale, *least;  // least: 0 where there is none
    float room[2][BLOCK];        // as many as groups of 16 have
} Constants;

// Those of the groups from `first` to `last`.
void constants(const Product *p, int group, int64_t panel, int64_t first, int64_t last, Constants *to);

// Those of a single row by AVX2 (single_row.c).
void single_row_panels(const Product *p, int bits, int group, int64_t first, int64_t last);

// Those of several rows with digits or a small table (digits.c), in tiles of as many rows.
#define DIGIT_ROWS 12
void digits_panels(const Product *p, int group, int64_t first, int64_t last);

// By AVX-512 with VNNI (quantized_wide.c), in tiles of as many rows; of what takes int8 (digits_wide.c) in tiles of
// `DIGIT_ROWS`.
#define WIDE_ROWS 8
void wide_quantized_panels(const Product *p, int bits, int group, int64_t first, int64_t last);
void wide_digits_panels(const Product *p, int bits, int group, int64_t first, int64_t last);

// By AMX (quantized_amx.c), the same bits as by VNNI, of 8 or 4 bits, in tiles of as many rows [groups, rows, integers of a
// group]: int8, or the lower bytes of int16 and behind those of all rows the upper ones.
#define AMX_ROWS 16
void amx_panels(const Product *p, int bits, int group, int64_t first, int64_t last);

// As `quantize_groups` (products.c) has it, whole spans of int8 by AVX-512: the same bits.
void wide_quantize_spans(const float *x, const Rounding *how, int32_t *q, float *scale, float *sum, int64_t first,
                         int64_t last);

// How many pairs of inputs lie together in a panel, after which the next as many begin.
#define PAIRS(BITS) ((BITS) == 6 ? 8 : 2)

// What numbers of 4 bits stand for, by `table` and `less` of a product. A small table is one of `small_table`; by AVX-512,
// one of int8.
enum { DIGITS, TABLE, LESS, SMALL };

INLINE int meaning_of(const Product *p, int bits) { return bits == 4 && p->table ? TABLE : p->less ? LESS : DIGITS; }

// Kinds of products, each as KIND(bits, meaning, group, ...). Digits less 8 are a table in larger groups.
#define KINDS_OF_INT16(KIND, ...)                                                                                      \
    KIND(8, DIGITS, 16, __VA_ARGS__)                                                                                   \
    KIND(8, DIGITS, 32, __VA_ARGS__)                                                                                   \
    KIND(8, DIGITS, 64, __VA_ARGS__)                                                                                   \
    KIND(8, DIGITS, 128, __VA_ARGS__)                                                                                  \
    KIND(4, TABLE, 32, __VA_ARGS__)                                                                                    \
    KIND(4, TABLE, 64, __VA_ARGS__)                                                                                    \
    KIND(4, TABLE, 128, __VA_ARGS__)                                                                                   \
    KIND(4, DIGITS, 64, __VA_ARGS__)                                                                                   \
    KIND(4, DIGITS, 128, __VA_ARGS__)
// The same by AVX2, and what takes int8 as int16 there.
#define NARROW_KINDS(KIND, ...)                                                                                        \
    KINDS_OF_INT16(KIND, __VA_ARGS__)                                                                                  \
    KIND(6, LESS, 16, __VA_ARGS__)                                                                                     \
    KIND(4, TABLE, 16, __VA_ARGS__)
#define KINDS_OF_SMALL_DIGITS(KIND, ...)                                                                               \
    KIND(4, LESS, 16, __VA_ARGS__)                                                                                     \
    KIND(4, LESS, 32, __VA_ARGS__)                                                                                     \
    KIND(4, DIGITS, 16, __VA_ARGS__)                                                                                   \
    KIND(4, DIGITS, 32, __VA_ARGS__)
#define KINDS_OF_INT8(KIND, ...)                                                                                       \
    KIND(8, LESS, 16, __VA_ARGS__)                                                                                     \
    KIND(8, LESS, 32, __VA_ARGS__)                                                                                     \
    KIND(6, LESS, 16, __VA_ARGS__)                                                                                     \
    KIND(4, TABLE, 16, __VA_ARGS__)                                                                                    \
    KIND(4, TABLE, 32, __VA_ARGS__)                                                                                    \
    KINDS_OF_SMALL_DIGITS(KIND, __VA_ARGS__)
#define ALL_KINDS(KIND, ...)                                                                                           \
    NARROW_KINDS(KIND, __VA_ARGS__)                                                                                    \
    KINDS_OF_SMALL_DIGITS(KIND, __VA_ARGS__)

// Defines NAME_..., a function for each kind, which has PANELS(bits, meaning, group, p, first, last) with these three as
// constants: in one function of them all the compiler would take twice as long.
#define FUNCTIONS_OF(KINDS, NAME, PANELS) KINDS(FUNCTION_OF, NAME, PANELS)
#define FUNCTION_OF(BITS, MEANS, GROUP, NAME, PANELS)                                                                  \
    static __attribute__((noinline)) void NAME##_##BITS##_##MEANS##_##GROUP(const Product *p, int64_t first,           \
                                                                            int64_t last) {                            \
        PANELS(BITS, MEANS, GROUP, p, first, last);                                                                    \
    }

// Calls the one of them that is for a product.
#define CALL_BY_KIND(KINDS, NAME, P, BITS_OF_P, GROUP_OF_P, FIRST, LAST)                                               \
    const int of_bits = BITS_OF_P, of_group = GROUP_OF_P, meaning = meaning_of(P, of_bits);                            \
    KINDS(CALL_OF, NAME, P, FIRST, LAST)
#define CALL_OF(BITS, MEANS, GROUP, NAME, P, FIRST, LAST)                                                              \
    if (of_bits == BITS && meaning == MEANS && of_group == GROUP) {                                                    \
        NAME##_##BITS##_##MEANS##_##GROUP(P, FIRST, LAST);                                                             \
        return;                                                                                                        \
    }
