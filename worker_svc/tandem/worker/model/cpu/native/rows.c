// What a layer does row by row beside its products, in fp32. A row's numbers do not depend on the other rows.

#include "numbers.h"
#include "operations.h"

// x [rows, size] += delta (where there is one), then out = x / sqrt(mean(x^2) + eps) * weight. size % 8 == 0.
void tandem_add_norm(float *x, const float *delta, const float *weight, float *out, int64_t rows, int64_t size,
                     float eps, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * size > 32768)
    for (int64_t row = 0; row < rows; row++) {
        float *here = x + row * size, *to = out + row * size;
        __m256 squares[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int64_t start = 0; start < size; start += 32)
            for (int n = 0; n < 4; n++) {
                const int64_t i = start + 8 * n;
                if (i >= size) break;
                __m256 v = _mm256_loadu_ps(here + i);
                if (delta) {
                    v = _mm256_add_ps(v, _mm256_loadu_ps(delta + row * size + i));
                    _mm256_storeu_ps(here + i, v);
                }
                squares[n] = _mm256_fmadd_ps(v, v, squares[n]);
            }
        const __m256 sum = _mm256_add_ps(_mm256_add_ps(squares[0], squares[1]), _mm256_add_ps(squares[2], squares[3]));
        const __m256 factor = _mm256_set1_ps(1.0f / sqrtf(one_sum(sum) / (float)size + eps));
        for (int64_t i = 0; i < size; i += 8) {
            const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(here + i), factor);
            _mm256_storeu_ps(to + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)));
        }
    }
}

// gate_up [rows, 2 size], rows `stride` apart -> out [rows, size] = gate / (1 + e^-gate) * up. size % 8 == 0.
void tandem_swiglu(const float *gate_up, float *out, int64_t rows, int64_t size, int64_t stride, int threads) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
#pragma omp parallel for schedule(static) collapse(2) num_threads(threads) if (rows * size > 8192)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t first = 0; first < size; first += 512) {
            const float *gate = gate_up + row * stride, *up = gate + size;
            const int64_t last = first + 512 < size ? first + 512 : size;
            for (int64_t i = first; i < last; i += 8) {
                const __m256 g = _mm256_loadu_ps(gate + i);
                const __m256 below = _mm256_add_ps(one, exponential(_mm256_xor_ps(g, sign)));
                const __m256 v = _mm256_mul_ps(_mm256_div_ps(g, below), _mm256_loadu_ps(up + i));
                _mm256_storeu_ps(out + row * size + i, v);
            }
        }
}

INLINE void store_numbers(const float *from, void *to, int64_t place, int64_t count, int format) {
    if (format == FP32) {
        memcpy((float *)to + place, from, (size_t)count * sizeof(float));
        return;
    }
    uint16_t *half = (uint16_t *)to + place;
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 v = _mm256_loadu_ps(from + i);
        if (format == FP16) {
            _mm_storeu_si128((__m128i *)(half + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
            continue;
        }
        const __m256i raw = _mm256_castps_si256(v);  // to nearest, ties to even, as torch does it
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(1));
        __m256i high = _mm256_add_epi32(raw, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        high = _mm256_srli_epi32(high, 16);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        high = _mm256_blendv_epi8(high, _mm256_set1_epi32(0x7fc0), nan);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8);
        _mm_storeu_si128((__m128i *)(half + i), _mm256_castsi256_si128(packed));
    }
}

// Rotates the queries and keys of qkv [rows, heads + 2 kv_heads, head_dim], rows `stride` apart, where they are, by cos and
// signed sin [rows, head_dim]; then stores keys and values, unless `keys` is null, in pages
// [pages, kv_heads, page_size, head_dim] at slots [2, rows]. head_dim % 8 == 0.
void tandem_rotate_and_store(float *qkv, int64_t stride, const float *cos, const float *sin, void *keys, void *values,
                             int format, const int64_t *slots, int64_t rows, int64_t heads, int64_t kv_heads,
                             int64_t head_dim, int64_t page_size, int threads) {
    const int64_t half = head_dim / 2;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * stride > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const float *c = cos + row * head_dim, *s = sin + row * head_dim;
        for (int64_t head = 0; head < heads + kv_heads; head++) {
            float *x = qkv + row * stride + head * head_dim;
            for (int64_t i = 0; i < half; i++) {
                const float low = x[i], high = x[i + half];
                x[i] = low * c[i] + high * s[i];
                x[i + half] = high * c[i + half] + low * s[i + half];
            }
        }
        if (!keys) continue;
        const float *k = qkv + row * stride + heads * head_dim, *v = k + kv_heads * head_dim;
        for (int64_t head = 0; head < kv_heads; head++) {
            const int64_t place = ((slots[row] * kv_heads + head) * page_size + slots[rows + row]) * head_dim;
            store_numbers(k + head * head_dim, keys, place, head_dim, format);
            store_numbers(v + head * head_dim, values, place, head_dim, format);
        }
    }
}
