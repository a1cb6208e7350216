// What attention over pages works on.

#pragma once

#include "numbers.h"

typedef struct {
    const void *part[2][2];  // of keys, of values: [pages, kv_heads, page_size, ...]
    int format;
    const int32_t *blocks;  // [blocks, 6]: first row, tokens, first position, row of `tables`, -, -
    const int32_t *tables;  // [sequences, width] pages; where keys lie `apart`, places of single ones
    int64_t width;
    int apart;
    const float *q;  // [rows, heads, head_dim], rows `stride` apart
    int64_t stride;
    float *out;  // [rows, heads * head_dim]
    // A kv head's `shares * group` queries of a token are `shares` pieces of work. Values are `value_dim` numbers, of a
    // vector as long as a key; the rest of `out` is 0.
    int64_t kv_heads, group, shares, head_dim, value_dim, page_size, window;
    float scale, cap;    // cap 0: none
    const float *sinks;  // [heads], one more score each, of a value that is 0; or 0
    int into;            // where what is read next is asked for: INTO_FIRST, ..
} Attention;

// To the first cache, and past the others, or to the second one.
enum { INTO_FIRST, INTO_FIRST_ONLY, INTO_SECOND };

#define QUERIES 3  // with KEYS sums each
#define KEYS 4
#define OUTPUTS 6    // with 2 vectors each
#define COLUMNS 8    // vectors at most, of one row
#define TOGETHER 32  // pieces of work that are done at once, page by page
#define ROWS_TOGETHER                                                                                                  \
    17               // so many rows of each are too many for that: what is known of them would leave the second cache
#define STRETCH 512  // keys, in whole pages, that are added up by themselves
#define STRETCHES_A_THREAD 4  // at least, where threads share stretches and not heads
#define JOBS_A_THREAD 64      // then, at least if there are as many stretches: so that all end together
#define CHUNK 16  // keys that are made plain at once: with what is computed of them they stay in the first cache

// What is read next. The processor sees by itself only what follows within 4 KiB, and a head has as little of a page.
// To the second cache: the first one is full of what is computed with.
typedef struct {
    const char *next, *end;
    int64_t step;  // bytes, those of KEYS vectors
} Ahead;

INLINE void ask_for_all(const void *from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)from + i, _MM_HINT_T1);
}

INLINE void ask_for(Ahead *ahead) {
    if (ahead->next >= ahead->end) return;
    ask_for_all(ahead->next, ahead->step);
    ahead->next += ahead->step;
}

// Numbers of e4m3 become a 256th of what they are: their bits are those of fp16 but for the exponent's bias, which is 8
// less, and for NaN. Queries and what is added up are multiplied by it instead, which is exact.
#define FLOAT8_BIAS 256.0f

// Where numbers of one head and vector begin: of int4, its digits, and its steps and lowest values.
typedef struct {
    const void *numbers;
    const float *constants;
} Vector;

// Bytes of a vector's numbers.
INLINE int64_t length_of(const int format, int64_t d) {
    if (format == FP32) return 4 * d;
    if (format == BF16 || format == FP16) return 2 * d;
    return format == INT4 ? d / 2 : format == INT6 ? d / 4 * 3 : d;
}

INLINE int64_t constants_of(const int format, int64_t d) {
    if (format == INT4) return d % 32 ? 2 : d / 16;
    return format == INT8 || format == INT6;
}

INLINE Vector vector(const int format, Vector first, int64_t n, int64_t d) {
    const Vector v = {(const char *)first.numbers + n * length_of(format, d),
                      format == INT4 ? first.constants + n * constants_of(format, d) : 0};
    return v;
}

// The first key that the query at a place sees: with a window, `window - 1` keys and its own; below 0, those of its own
// chunk of so many; with 0, all.
INLINE int64_t oldest_seen(int64_t window, int64_t place) {
    if (window < 0) return place / -window * -window;
    return window && place >= window ? place - window + 1 : 0;
}

// Of the `keys` of the page at position `start`, those that a block's row sees: from the first to before the last.
typedef struct {
    int64_t first, last;
} Seen;

INLINE Seen seen_by(const Attention *a, const int32_t *block, int64_t row, int64_t start, int64_t keys) {
    const int64_t place = block[2] + row / a->group, oldest = oldest_seen(a->window, place);
    const Seen seen = {oldest > start ? oldest - start : 0, place + 1 - start < keys ? place + 1 - start : keys};
    return seen;
}

// Scores s [width] that are not seen weigh nothing.
INLINE void hide(float *s, int64_t width, Seen seen) {
    for (int64_t i = 0; i < seen.first && i < width; i++) s[i] = -INFINITY;
    for (int64_t i = seen.last > 0 ? seen.last : 0; i < width; i++) s[i] = -INFINITY;
}

// Vector `first` of the pages, of keys or of values.
INLINE Vector vectors(const Attention *a, int which, int64_t first) {
    const Vector all = {a->part[which][0], a->part[which][1]};
    return vector(a->format, all, first, a->head_dim);
}

// The first vector of the page of keys that begins at position `start`. Those that lie apart were put side by side.
INLINE int64_t first_vector(const Attention *a, const int32_t *block, int64_t kv_head, int64_t start) {
    if (a->apart) return 0;
    return (a->tables[block[3] * a->width + start / a->page_size] * a->kv_heads + kv_head) * a->page_size;
}

// What is asked for while others are computed with: the numbers of a page's keys or values; their constants at once.
INLINE Ahead asked(const Attention *a, int which, int64_t first) {
    const int64_t size = a->page_size, constants = constants_of(a->format, a->head_dim) * 4;
    const char *from = (const char *)a->part[which][0];
    const int64_t length = length_of(a->format, a->head_dim);
    if (constants) ask_for_all((const char *)a->part[which][1] + first * constants, size * constants);
    const Ahead ahead = {from + first * length, from + (first + size) * length, KEYS * length};
    return ahead;
}

// What a stretch of keys has given: of each row what is added up, the sum of weights in some of LANES lanes, and the
// greatest score. LANES apart, so that all begin at whole cache lines.
typedef struct {
    float *o, *l, *m;
} Sums;

#define LANES 16

// What is known of a piece of work between two pages: its queries, and what is added up for them.
typedef struct {
    float *q, *q_step, *q_sums;
    int16_t *few_q;
    Sums sums;
} Piece;

INLINE int64_t whole(int64_t number, int64_t of) { return (number + of - 1) / of * of; }

// Numbers from a row of queries and sums to the next, at most.
INLINE int64_t wide_of(int64_t d) { return whole(d, 64); }

// Numbers of queries, of sums, and of what is only needed within a page. All begin at whole cache lines.
INLINE int64_t sums_of_groups(int64_t d) { return whole(wide_of(d) / 32, 16); }
INLINE int64_t numbers_of_queries(int64_t rows, int64_t d) {
    return rows * (2 * wide_of(d) + sums_of_groups(d)) + whole(rows, 16);
}
INLINE int64_t numbers_of_sums(int64_t rows, int64_t d) { return rows * (wide_of(d) + LANES) + whole(rows, 16); }

// Of a page's constants, side by side.
INLINE int64_t room_of_constants(int format, int64_t d, int64_t width) { return 2 * constants_of(format, d) * width; }

// Of some ways whole sixteens of rows have weights.
INLINE int64_t room_of(int format, int64_t rows, int64_t d, int64_t size) {
    const int64_t width = whole(size, 32);
    const int64_t weights = format == INT4 ? sums_of_groups(d) + wide_of(d) / 64 * width : width / 2;
    return rows * width + whole(rows, 16) * (weights + 1) + room_of_constants(format, d, width) + width * wide_of(d);
}

INLINE Sums sums(float *room, int64_t rows, int64_t d) {
    const Sums of = {room, room + rows * wide_of(d), room + rows * (wide_of(d) + LANES)};
    return of;
}

INLINE Piece piece(float *room, int64_t rows, int64_t d) {
    float *few_q = room + rows * wide_of(d);
    float *q_step = few_q + rows * wide_of(d);
    const Piece of = {room, q_step, q_step + whole(rows, 16), (int16_t *)few_q, {0}};
    return of;
}

// A row's query, and where its answer goes. `head` counts pieces of work.
INLINE const float *query_at(const Attention *a, const int32_t *block, int64_t head, int64_t row) {
    return a->q + (block[0] + row / a->group) * a->stride + (head * a->group + row % a->group) * a->head_dim;
}
INLINE float *answer_at(const Attention *a, const int32_t *block, int64_t head, int64_t row) {
    const int64_t heads = a->kv_heads * a->shares * a->group;
    return a->out + ((block[0] + row / a->group) * heads + head * a->group + row % a->group) * a->head_dim;
}

INLINE int digits_in(const Attention *a) { return a->format == INT8 || a->format == INT6; }

INLINE float bias_of(const Attention *a) { return a->format == FP8 ? FLOAT8_BIAS : 1; }

// How a piece of work is done. What lies in its room has the same words with all ways, and an order of each one's own.
typedef struct {
    float unit;  // of scores: weights are e^(unit s)
    // Numbers from a row of `o` to the next.
    int64_t (*apart)(int64_t d);
    // Prepares queries. `head` counts pieces of work.
    void (*begin)(const Attention *a, const int32_t *block, int64_t head, const Piece *to);
    // One page, from position `start` on. What is at `after` is asked for meanwhile.
    void (*look_at)(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of, int64_t start,
                    int64_t after, float *room);
    void (*end)(const Attention *a, const int32_t *block, int64_t head, const Piece *of);
    // Before a thread's first page of pieces with so many rows, and after its last one; or 0.
    void (*prepare)(int64_t rows);
    void (*release)(void);
} Way;

// By AVX-512 with VNNI, of floats and of digits (attention_wide.c, attention_wide_digits.c), of fp8 with VBMI too, and with
// instructions of bf16 (attention_wide_twos.h), of fewer bits with VBMI too; with AMX (attention_amx.h,
// attention_amx_int4.c, attention_amx_digits.c).
extern const Way wide_attention, wide_attention_digits, wide_attention_twos, wide_attention_twos_fp8,
    wide_attention_twos_int4, wide_attention_twos_int8, wide_attention_amx, wide_attention_amx_fp8,
    wide_attention_amx_int4, wide_attention_amx_digits;
int wide_fp8_is_there(void), wide_twos_is_there(void), wide_amx_is_there(void), wide_twos_codes_are_there(void);

// clang-format off
#define BY_WIDE_ROWS(COUNT, HIGHEST, CALL, ...)                                                                        \
    for (int64_t row = 0; row < COUNT;) {                                                                              \
        const int64_t left = COUNT - row;                                                                              \
        if (HIGHEST == 6 && left >= 6 && left != 8) { CALL(6, __VA_ARGS__); row += 6; }                                \
        else if (left >= 4) { CALL(4, __VA_ARGS__); row += 4; }                                                        \
        else if (left == 3) { CALL(3, __VA_ARGS__); row += 3; }                                                        \
        else if (left == 2) { CALL(2, __VA_ARGS__); row += 2; }                                                        \
        else { CALL(1, __VA_ARGS__); row += 1; }                                                                       \
    }
#define BY_ROWS(COUNT, HIGHEST, CALL)                                                                                  \
    for (int64_t row = 0; row < COUNT;) {                                                                              \
        const int64_t left = COUNT - row;                                                                              \
        if (HIGHEST == 6 && left >= 6) { CALL(6); row += 6; }                                                          \
        else if (HIGHEST == 6 && left >= 4) { CALL(4); row += 4; }                                                     \
        else if (left >= 3) { CALL(3); row += 3; }                                                                     \
        else if (left == 2) { CALL(2); row += 2; }                                                                     \
        else { CALL(1); row += 1; }                                                                                    \
    }
// clang-format on
