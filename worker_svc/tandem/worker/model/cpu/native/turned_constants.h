// Constants of vectors, turned: those of 16 vectors lie beside each other.
//
// For functions that are compiled for processors with AVX-512 only.

#pragma once

#include "attention_wide.h"

// Of 16 vectors, of which `keys` are there, the `many` constants become as many times 16.
INLINE void turn_constants(const float *from, int64_t keys, int64_t many, float *to, int64_t width) {
    const __m512i evens = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(2));
    for (int64_t first = 0; first < many; first += 4, to += 4 * width) {
        const int64_t some = many - first < 4 ? many - first : 4;
        __m512 four[4];
        for (int64_t n = 0; n < 4; n++) {
            if (many == 4 && keys >= 16) {
                four[n] = _mm512_loadu_ps(from + 16 * n);
                continue;
            }
            __m128 one[4];
            for (int64_t key = 0; key < 4; key++)
                one[key] = _mm_maskz_loadu_ps(4 * n + key < keys ? (__mmask8)first_of(some) : 0,
                                              from + (4 * n + key) * many + first);
            four[n] = _mm512_insertf32x4(_mm512_castps128_ps512(one[0]), one[1], 1);
            four[n] = _mm512_insertf32x4(_mm512_insertf32x4(four[n], one[2], 2), one[3], 3);
        }
        for (int64_t n = 0; n < some; n += 2) {
            const __m512 low = _mm512_permutex2var_ps(four[0], n ? odds : evens, four[1]);
            const __m512 high = _mm512_permutex2var_ps(four[2], n ? odds : evens, four[3]);
            _mm512_store_ps(to + n * width, _mm512_shuffle_f32x4(low, high, 0x44));
            if (n + 1 < some) _mm512_store_ps(to + (n + 1) * width, _mm512_shuffle_f32x4(low, high, 0xee));
        }
    }
}
