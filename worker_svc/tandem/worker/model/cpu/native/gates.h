// What stands between the two products of a feed-forward layer.

#include "numbers.h"

enum { SILU = 0, GELU_TANH = 1, RELU2 = 2, CLAMPED = 3, RELU = 4, GELU = 5, LIMITED = 6 };

typedef struct {
    int32_t kind;
    float alpha, limit;  // alpha: of CLAMPED; limit: of LIMITED too
} Gate;

// gate / (1 + e^-gate)
INLINE __m256 silu(__m256 gate) {
    const __m256 power = exponential(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), power));
}

// gate / 2 (1 + tanh(u)), which is gate / (1 + e^-2u), with u = sqrt(2 / pi) (gate + 0.044715 gate^3)
INLINE __m256 gelu_tanh(__m256 gate) {
    const __m256 one = _mm256_set1_ps(1.0f), cubic = _mm256_set1_ps(0.044715f);
    const __m256 u = _mm256_mul_ps(gate, _mm256_fmadd_ps(cubic, _mm256_mul_ps(gate, gate), one));
    const __m256 power = exponential(_mm256_mul_ps(u, _mm256_set1_ps(-1.5957691f)));
    return _mm256_div_ps(gate, _mm256_add_ps(one, power));
}

// gate / 2 (1 + erf(gate / sqrt(2))), as the larger of gate and 0 less size / 2 erfc(z), with z = size / sqrt(2):
// erfc(z) = t e^(-z^2 + p(t)), t = 2 / (2 + z), off by 1.2e-7 of itself at most (Press et al., Numerical Recipes, 6.2.2).
INLINE __m256 gelu(__m256 gate) {
    static const float p[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                              -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
    const __m256 sign = _mm256_set1_ps(-0.0f), two = _mm256_set1_ps(2.0f), half = _mm256_set1_ps(0.5f);
    const __m256 most = _mm256_set1_ps(20.0f), size = _mm256_min_ps(most, _mm256_andnot_ps(sign, gate));
    const __m256 z = _mm256_mul_ps(size, _mm256_set1_ps(0.70710678f));
    const __m256 t = _mm256_div_ps(two, _mm256_add_ps(two, z));
    __m256 power = _mm256_set1_ps(p[0]);
    for (int n = 1; n < 10; n++) power = _mm256_fmadd_ps(power, t, _mm256_set1_ps(p[n]));
    const __m256 erfc = _mm256_mul_ps(t, exponential(_mm256_fnmadd_ps(z, z, power)));
    const __m256 less = _mm256_mul_ps(_mm256_mul_ps(half, size), erfc);
    return _mm256_sub_ps(_mm256_max_ps(_mm256_setzero_ps(), gate), less);
}

// log(1 + e^x), as activations.py has it.
INLINE __m256 log_of_one_and_power(__m256 x) {
    static const float odd[] = {1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f};
    const __m256 t = exponential(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
    const __m256 z = _mm256_div_ps(t, _mm256_add_ps(t, _mm256_set1_ps(2.0f))), square = _mm256_mul_ps(z, z);
    __m256 series = _mm256_set1_ps(1.0f / 13);
    for (int n = 0; n < 6; n++) series = _mm256_fmadd_ps(series, square, _mm256_set1_ps(odd[n]));
    const __m256 above = _mm256_max_ps(_mm256_setzero_ps(), x);
    return _mm256_fmadd_ps(series, _mm256_add_ps(z, z), above);
}

// activation(gate) * up, as feed_forward.py has it. NaN goes through: of two, the operand that stands last.
INLINE __m256 gated(const Gate *how, __m256 gate, __m256 up) {
    const __m256 one = _mm256_set1_ps(1.0f), most = _mm256_set1_ps(how->limit);
    switch (how->kind) {
    case SILU: return _mm256_mul_ps(silu(gate), up);
    case GELU_TANH: return _mm256_mul_ps(gelu_tanh(gate), up);
    case GELU: return _mm256_mul_ps(gelu(gate), up);
    case RELU: return _mm256_mul_ps(_mm256_max_ps(_mm256_setzero_ps(), gate), up);
    case RELU2: gate = _mm256_max_ps(_mm256_setzero_ps(), gate); return _mm256_mul_ps(_mm256_mul_ps(gate, gate), up);
    case LIMITED:
        up = _mm256_min_ps(most, _mm256_max_ps(_mm256_set1_ps(-how->limit), up));
        return _mm256_mul_ps(_mm256_min_ps(most, silu(gate)), up);
    default:
        gate = _mm256_min_ps(most, gate);
        up = _mm256_min_ps(most, _mm256_max_ps(_mm256_set1_ps(-how->limit), up));
        const __m256 power = exponential(_mm256_mul_ps(gate, _mm256_set1_ps(-how->alpha)));
        return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(one, power)), _mm256_add_ps(up, one));
    }
}
