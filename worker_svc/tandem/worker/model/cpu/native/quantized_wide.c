// Products of int16 with quantized weights by AVX-512 with VNNI (`quantized_wide.h`).

#include <float.h>

#include "quantized.h"

int wide_is_there(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#include "quantized_wide.h"

FUNCTIONS_OF(KINDS_OF_INT16, wide_quantized, panels_that_mean)

void wide_quantized_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    CALL_BY_KIND(KINDS_OF_INT16, wide_quantized, p, bits, group, first, last)
}

void wide_quantize_spans(const float *x, const Rounding *how, int32_t *q, float *scale, float *sum, int64_t first,
                         int64_t last) {
    for (int64_t place = first; place < last; place++) {
        const float *from = x + place * SPAN;
        const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + SPAN / 2);
        const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        const int broken = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) || most > FLT_MAX;
        const __m512 factor = _mm512_set1_ps(most > LEAST_LARGEST ? LARGEST_INT8 / most : 0.0f);
        const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(a, factor));
        const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(b, factor));
        __m128i *to = (__m128i *)(q + place * SPAN / 4);
        _mm_storeu_si128(to, _mm512_cvtsepi32_epi8(low));
        _mm_storeu_si128(to + 1, _mm512_cvtsepi32_epi8(high));
        const int32_t whole = broken ? 0 : _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
        scale[place] = most / LARGEST_INT8 + (broken ? NAN : 0.0f);
        sum[place] = how->of_integers ? (float)(-how->raised * whole) : (float)whole * scale[place];
    }
}

#ifdef __clang__
#pragma clang attribute pop
#endif
