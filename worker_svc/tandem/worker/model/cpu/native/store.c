// How one key or value of a head goes into its page: what `kv_formats.py` says, number for number.

#include "numbers.h"
#include "operations.h"

INLINE __m256i rounded(__m256 v) { return _mm256_cvtps_epi32(v); }  // to nearest, ties to even

// The low bytes of eight numbers.
INLINE int64_t bytes(__m256i v) {
    const __m256i first = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                           -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i packed = _mm256_shuffle_epi8(v, first);
    const uint32_t low = (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(packed));
    const uint32_t high = (uint32_t)_mm_cvtsi128_si32(_mm256_extracti128_si256(packed, 1));
    return (int64_t)((uint64_t)high << 32 | low);
}

// e4m3, to nearest, ties to even; beyond +-448 the largest, NaN stays.
INLINE __m256i float8(__m256 v) {
    const __m256 largest = _mm256_set1_ps(448.0f), smallest = _mm256_set1_ps(-448.0f);
    const __m256i raw = _mm256_castps_si256(_mm256_min_ps(largest, _mm256_max_ps(smallest, v)));
    const __m256i size = _mm256_and_si256(raw, _mm256_set1_epi32(0x7fffffff));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(size, 20), _mm256_set1_epi32(1));
    __m256i normal = _mm256_add_epi32(size, _mm256_set1_epi32((int)0xc407ffffu));  // the exponent's bias is 7, not 127
    normal = _mm256_srli_epi32(_mm256_add_epi32(normal, odd), 20);
    // Below 2^-6 numbers are multiples of 2^-9: the last bits of a float of 2^14.
    const __m256i lift = _mm256_set1_epi32(141 << 23);
    const __m256 lifted = _mm256_add_ps(_mm256_castsi256_ps(size), _mm256_castsi256_ps(lift));
    const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(lifted), lift);
    __m256i code = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(121 << 23), size));
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
    return _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(raw, 24), _mm256_set1_epi32(0x80)));
}

INLINE void store_half(const float *from, uint16_t *half, int64_t count, int format) {
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

INLINE void store_int8(const float *from, int8_t *to, float *constant, int64_t count) {
    const float scale = step_of(from, count, 127.0f);
    const __m256 divisor = _mm256_set1_ps(scale);
    for (int64_t i = 0; i < count; i += 8) {
        const int64_t eight = bytes(rounded(_mm256_div_ps(_mm256_loadu_ps(from + i), divisor)));
        memcpy(to + i, &eight, sizeof eight);
    }
    *constant = scale;
}

// Eight numbers, each shifted to its place, in one.
INLINE int32_t joined(__m256i v, __m256i places) {
    const __m256i shifted = _mm256_sllv_epi32(v, places);
    __m128i both = _mm_or_si128(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
    both = _mm_or_si128(both, _mm_shuffle_epi32(both, 0x4e));
    return _mm_cvtsi128_si32(_mm_or_si128(both, _mm_shuffle_epi32(both, 0xb1)));
}

INLINE void store_int6(const float *from, uint8_t *to, float *constant, int64_t count) {
    const float scale = step_of(from, count, 31.0f);
    const __m256 divisor = _mm256_set1_ps(scale);
    const __m256i fours = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i twos = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    for (int64_t i = 0; i < count; i += 8) {
        __m256i q = rounded(_mm256_div_ps(_mm256_loadu_ps(from + i), divisor));
        q = _mm256_and_si256(_mm256_add_epi32(q, _mm256_set1_epi32(32)), _mm256_set1_epi32(63));
        const int32_t low = joined(_mm256_and_si256(q, _mm256_set1_epi32(15)), fours);
        const uint16_t high = (uint16_t)joined(_mm256_srli_epi32(q, 4), twos);
        memcpy(to + i / 2, &low, sizeof low);
        memcpy(to + count / 2 + i / 4, &high, sizeof high);
    }
    *constant = scale;
}

INLINE void store_int4(const float *from, uint8_t *to, float *constants, int64_t count) {
    const int64_t group = count % 32 ? count : 32, groups = count / group;
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    for (int64_t g = 0; g < groups; g++) {
        float most;
        const __m256 low = range(from + g * group, group, &most);
        const float scale = at_least_tiny((most - _mm256_cvtss_f32(low)) / 15.0f);
        const __m256 divisor = _mm256_set1_ps(scale);
        for (int64_t i = g * group; i < (g + 1) * group; i += 8) {
            const __m256i q = rounded(_mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(from + i), low), divisor));
            const int32_t eight = joined(_mm256_and_si256(q, _mm256_set1_epi32(15)), shifts);
            memcpy(to + i / 2, &eight, sizeof eight);
        }
        constants[g] = scale, constants[groups + g] = _mm256_cvtss_f32(low);
    }
}

// `from` [count] becomes vector number `place` of the pages. count % 8 == 0.
void tandem_store(const float *from, const Pages *pages, int64_t place, int64_t count, int format) {
    const int64_t at = place * count;
    if (format == FP32) memcpy((float *)pages->numbers + at, from, (size_t)count * sizeof(float));
    else if (format == BF16 || format == FP16) store_half(from, (uint16_t *)pages->numbers + at, count, format);
    else if (format == INT8) store_int8(from, (int8_t *)pages->numbers + at, pages->constants + place, count);
    else if (format == INT6) store_int6(from, (uint8_t *)pages->numbers + at * 3 / 4, pages->constants + place, count);
    else if (format == INT4)
        store_int4(from, (uint8_t *)pages->numbers + at / 2,
                   pages->constants + place * 2 * (count % 32 ? 1 : count / 32), count);
    else
        for (int64_t i = 0; i < count; i += 8) {
            const int64_t eight = bytes(float8(_mm256_loadu_ps(from + i)));
            memcpy((uint8_t *)pages->numbers + at + i, &eight, sizeof eight);
        }
}
