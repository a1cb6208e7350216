// Scores of tokens by LANES heads at a time, as selection.h says. A lane is a head: its product with a key adds up over the
// key's numbers in their order, whatever is beside it, so the bits do not depend on how many lanes there are.

#if LANES == 16
typedef __m512 Lanes;
#define OF_LANES(NAME) _mm512_##NAME
#define VECTORS 4  // heads at once
#else
typedef __m256 Lanes;
#define OF_LANES(NAME) _mm256_##NAME
#define VECTORS 2
#endif
#define FEW_VECTORS (VECTORS / 2)
#define TOKENS 4       // at once
#define MANY_TOKENS 8  // with fewer heads

INLINE void score_some(const int vectors, const int tokens, const float *queries, int64_t stride, const float *weights,
                       int64_t size, const float *keys, float *total) {
    Lanes sum[MANY_TOKENS][VECTORS];
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < vectors; v++) sum[t][v] = OF_LANES(setzero_ps)();
    for (int64_t i = 0; i < size; i++) {
        Lanes query[VECTORS];
        for (int v = 0; v < vectors; v++) query[v] = OF_LANES(loadu_ps)(queries + i * stride + v * LANES);
        for (int t = 0; t < tokens; t++) {
            const Lanes key = OF_LANES(set1_ps)(keys[t * size + i]);
            for (int v = 0; v < vectors; v++) sum[t][v] = OF_LANES(fmadd_ps)(query[v], key, sum[t][v]);
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < vectors; v++) {
            float *to = total + t * SUMMED + v * LANES % SUMMED;
            const Lanes seen = OF_LANES(max_ps)(OF_LANES(setzero_ps)(), sum[t][v]);  // NaN stays
            const Lanes weight = OF_LANES(loadu_ps)(weights + v * LANES);
            OF_LANES(storeu_ps)(to, OF_LANES(fmadd_ps)(seen, weight, OF_LANES(loadu_ps)(to)));
        }
}

// All tokens by so many heads.
INLINE void score_all(const int vectors, const int together, const float *queries, int64_t stride, const float *weights,
                      int64_t size, const float *keys, int64_t tokens, float *total) {
    int64_t t = 0;
    for (; t + together <= tokens; t += together)
        score_some(vectors, together, queries, stride, weights, size, keys + t * size, total + t * SUMMED);
    for (; t < tokens; t++) score_some(vectors, 1, queries, stride, weights, size, keys + t * size, total + t * SUMMED);
}

INLINE void score_tokens(const float *queries, const float *weights, int64_t heads, int64_t size, const float *keys,
                         int64_t tokens, float *total) {
    const int64_t all = filled(heads, SUMMED);
    int64_t head = 0;
    memset(total, 0, (size_t)(tokens * SUMMED) * sizeof(float));
    for (; head + VECTORS * LANES <= all; head += VECTORS * LANES)
        score_all(VECTORS, TOKENS, queries + head, all, weights + head, size, keys, tokens, total);
    for (; head + FEW_VECTORS * LANES <= all; head += FEW_VECTORS * LANES)
        score_all(FEW_VECTORS, MANY_TOKENS, queries + head, all, weights + head, size, keys, tokens, total);
    for (; head < all; head += LANES)
        score_all(1, MANY_TOKENS, queries + head, all, weights + head, size, keys, tokens, total);
}
