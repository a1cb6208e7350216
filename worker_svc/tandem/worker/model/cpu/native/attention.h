// What attention over pages works on.

#pragma once

#include "numbers.h"

typedef struct {
    const void *part[2][2];  // of keys, of values: [pages, kv_heads, page_size, ...]
    int format;
    const int32_t *blocks;  // [blocks, 6]: first row, tokens, first position, row of `tables`, -, -
    const int32_t *tables;  // [sequences, width]
    int64_t width;
    const float *q;  // [rows, heads, head_dim], rows `stride` apart
    int64_t stride;
    float *out;  // [rows, heads * head_dim]
    // A kv head's `shares * group` queries of a token are `shares` pieces of work. Values are `value_dim` numbers, of a
    // vector as long as a key; the rest of `out` is 0.
    int64_t kv_heads, group, shares, head_dim, value_dim, page_size, window;
    float scale, cap;    // cap 0: none
    const float *sinks;  // [heads], one more score each, of a value that is 0; or 0
} Attention;

#define QUERIES 3  // with KEYS sums each
#define KEYS 4
#define OUTPUTS 6    // with 2 vectors each
#define COLUMNS 8    // vectors at most, of one row
#define TOGETHER 16  // pieces of work that are done at once, page by page
#define ROWS_TOGETHER                                                                                                  \
    17            // so many rows of each are too many for that: what is known of them would leave the second cache
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

// clang-format off
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
