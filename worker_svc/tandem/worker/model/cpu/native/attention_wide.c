// Attention over pages by AVX-512 with VNNI: what attention.c does, 16 numbers at once. A score's sum runs over 16 lanes,
// so the bits are others. Digits: attention_wide_digits.c.

#include "attention.h"

// From here on, for such processors only. What may hold such instructions begins with `wide_attention`.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))),                 \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#endif

#include "attention_wide_floats.h"

#define KEPT static
WIDE_FLOATS(plain, PLAIN)
WIDE_FLOATS(fp32, FP32)
WIDE_FLOATS(bf16, BF16)
WIDE_FLOATS(fp16, FP16)
WIDE_FLOATS(int4, INT4)

static const WideFloats *const WIDE_FORMATS[INT6 + 1] = {[FP32] = &wide_attention_fp32,
                                                         [BF16] = &wide_attention_bf16,
                                                         [FP16] = &wide_attention_fp16,
                                                         [INT4] = &wide_attention_int4,
                                                         [FP8] = &wide_attention_fp8};

static void wide_attention_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, wide = wide_of(d);
    memset(to->q, 0, (size_t)(rows * wide) * sizeof(float));
    for (int64_t row = 0; row < rows; row++) {
        const float *from = query_at(a, block, head, row);
        for (int64_t i = 0; i < d; i++) to->q[row * wide + placed(a->format, i)] = from[i] * a->scale;
    }
}

static void wide_attention_look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                   int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, size = a->page_size, width = whole(size, 16), wide = wide_of(d);
    const int64_t tokens = block[1], position = block[2], rows = tokens * a->group;
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    const int few = rows <= FEW_WIDE;
    const int64_t chunk = one || few ? size : CHUNK, left = position + tokens - start, keys = left < size ? left : size;
    const int64_t looked_at = whole(keys, 16);
    const int64_t first = first_vector(a, block, kv_head, start);
    const WideFloats *stored = WIDE_FORMATS[a->format], *floats = few ? stored : &wide_attention_plain;
    const int64_t step = few ? 1 : numbers_at_once(a->format);  // what is made plain is filled up
    const int64_t columns = whole(a->value_dim, step), numbers = whole(d, step);
    float *s = room, *tiles = s + rows * width;
    const Vector plain = {tiles, 0};
    Soon soon = one ? asked_soon(a, 0, first, 0, after) : asked_soon(a, 0, first, 1, first);
    ask_for_constants(a, after);
    for (int64_t key = 0; key < keys; key += chunk) {
        const int64_t some = keys - key < chunk ? keys - key : chunk;
        const Vector k = vectors(a, 0, first + key);
        if (!few) stored->make_plain(k, d, some, tiles);
        floats->scores(of->q, few ? k : plain, numbers, rows, some, s + key, width, &soon);
    }
    for (int64_t row = 0; row < rows; row++) {
        const Seen seen = seen_by(a, block, row, start, keys);
        float *row_s = s + row * width;
        if (a->cap > 0) wide_soft_cap(row_s, looked_at, a->cap, 1);
        wide_soften(row_s, looked_at, seen, of->sums.o + row * wide, wide, of->sums.m + row, of->sums.l + row * LANES);
    }
    if (!one) soon = asked_soon(a, 1, first, 0, after);
    for (int64_t key = 0; key < keys; key += chunk) {
        const int64_t some = keys - key < chunk ? keys - key : chunk;
        const Vector v = vectors(a, 1, first + key);
        if (!few && !one) stored->make_plain(v, d, some, tiles);
        floats->outputs(s + key, width, few ? v : plain, numbers, columns, rows, some, of->sums.o, &soon);
    }
}

static void wide_attention_end(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group;
    for (int64_t row = 0; row < rows; row++) {
        float *to = answer_at(a, block, head, row);
        const float *o = of->sums.o + row * wide_of(d), all = of->sums.l[row * LANES];
        for (int64_t i = 0; i < a->value_dim; i++) to[i] = o[placed(a->format, i)] / all;
        memset(to + a->value_dim, 0, (size_t)(d - a->value_dim) * sizeof(float));
    }
}

const Way wide_attention = {1, wide_of, wide_attention_begin, wide_attention_look_at, wide_attention_end};

#ifdef __clang__
#pragma clang attribute pop
#endif
