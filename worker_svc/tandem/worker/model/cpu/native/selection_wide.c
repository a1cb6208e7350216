// Scores of tokens by AVX-512: what selection.c does, 16 heads at once.

#include "selection.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#define LANES 16
#include "index_scores.h"

void wide_scoring(const float *queries, const float *weights, int64_t heads, int64_t size, const float *keys,
                  int64_t tokens, float *total) {
    score_tokens(queries, weights, heads, size, keys, tokens, total);
}

#ifdef __clang__
#pragma clang attribute pop
#endif
