// What the sources here share.

#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64  // bytes of the caches
#define INLINE static inline __attribute__((always_inline))

// The sum of each of four vectors, its eight numbers always added as ((0+1)+(2+3)) + ((4+5)+(6+7)).
INLINE __m128 four_sums(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

INLINE float one_sum(__m256 a) { return _mm_cvtss_f32(four_sums(a, a, a, a)); }

// e^x within 2 units of the last place; 0 below -87.3, 2.4e38 above 88.37, NaN stays. After Cephes' expf.
INLINE __m256 exponential(__m256 x) {
    const __m256 least = _mm256_set1_ps(-87.3f), most = _mm256_set1_ps(88.37f), one = _mm256_set1_ps(1.0f);
    const __m256 vanishes = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
    x = _mm256_min_ps(most, _mm256_max_ps(least, x));  // in this order of operands NaN goes through
    const __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_fmadd_ps(y, _mm256_mul_ps(r, r), _mm256_add_ps(r, one));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(vanishes, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
}

INLINE __m256 least_and_most(__m256 low, __m256 high, float *most) {
    float lows[8], highs[8];
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    for (int i = 1; i < 8; i++) {
        lows[0] = lows[i] < lows[0] ? lows[i] : lows[0];
        highs[0] = highs[i] > highs[0] ? highs[i] : highs[0];
    }
    *most = highs[0];
    return _mm256_set1_ps(lows[0]);
}

// The smallest of `count` numbers in every lane, and the largest; both NaN where one of them is.
INLINE __m256 range(const float *from, int64_t count, float *most) {
    __m256 low = _mm256_loadu_ps(from), high = low, broken = _mm256_cmp_ps(low, low, _CMP_UNORD_Q);
    for (int64_t i = 8; i < count; i += 8) {
        const __m256 v = _mm256_loadu_ps(from + i);
        low = _mm256_min_ps(low, v), high = _mm256_max_ps(high, v);
        broken = _mm256_or_ps(broken, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    if (!_mm256_movemask_ps(broken)) return least_and_most(low, high, most);
    *most = NAN;
    return _mm256_set1_ps(NAN);
}

#define TINY 1.17549435e-38f                                                     // the least number with all its digits
INLINE float at_least_tiny(float scale) { return scale < TINY ? TINY : scale; }  // NaN stays

// One of `steps` from zero to the largest of `count` numbers.
INLINE float step_of(const float *from, int64_t count, float steps) {
    float most;
    const float least = _mm256_cvtss_f32(range(from, count, &most));
    return at_least_tiny((-least > most ? -least : most) / steps);
}

// Whether the processor has AVX-512 and VNNI, for what is compiled for such.
int wide_is_there(void);

// How numbers of the key and value cache are stored.
enum { FP32 = 0, BF16 = 1, FP16 = 2, INT8 = 3, INT4 = 4, FP8 = 5, INT6 = 6 };
