// Weights of 8 bits as tiles and vpdpbusd take them, for functions that are compiled for AVX-512 only.

#pragma once

#include "numbers.h"

// Four inputs at w for 16 columns: each column has two, then all have two more; now each has its four.
INLINE __m512i four_of_int8(const uint8_t *w) {
    const __m512i pairs =
        _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a, 0x190009, 0x180008, 0x170007,
                         0x160006, 0x150005, 0x140004, 0x130003, 0x120002, 0x110001, 0x100000);
    return _mm512_permutexvar_epi16(pairs, _mm512_loadu_si512(w));
}
