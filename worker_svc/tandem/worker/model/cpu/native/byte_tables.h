// Tables of the numbers of bf16 that 128 codes of a byte are: of their lower and of their higher bytes.

#pragma once

#include <stdint.h>

// The bits of n 2^e, of n from 0 to 127.
#define HIGHEST_BIT(N) (((N) > 1) + ((N) > 3) + ((N) > 7) + ((N) > 15) + ((N) > 31) + ((N) > 63))
#define BITS_OF(N, E) ((N) ? ((127 + (E) + HIGHEST_BIT(N)) << 7) + (((N) << (7 - HIGHEST_BIT(N))) & 127) : 0)

#define EIGHT(BYTE, OF, FIRST)                                                                                         \
    BYTE(OF(FIRST)), BYTE(OF(FIRST + 1)), BYTE(OF(FIRST + 2)), BYTE(OF(FIRST + 3)), BYTE(OF(FIRST + 4)),               \
        BYTE(OF(FIRST + 5)), BYTE(OF(FIRST + 6)), BYTE(OF(FIRST + 7))
#define ALL(BYTE, OF)                                                                                                  \
    {EIGHT(BYTE, OF, 0),  EIGHT(BYTE, OF, 8),   EIGHT(BYTE, OF, 16),  EIGHT(BYTE, OF, 24),                             \
     EIGHT(BYTE, OF, 32), EIGHT(BYTE, OF, 40),  EIGHT(BYTE, OF, 48),  EIGHT(BYTE, OF, 56),                             \
     EIGHT(BYTE, OF, 64), EIGHT(BYTE, OF, 72),  EIGHT(BYTE, OF, 80),  EIGHT(BYTE, OF, 88),                             \
     EIGHT(BYTE, OF, 96), EIGHT(BYTE, OF, 104), EIGHT(BYTE, OF, 112), EIGHT(BYTE, OF, 120)}
#define LOW_BYTE(NUMBER) ((NUMBER) & 255)
#define HIGH_BYTE(NUMBER) ((NUMBER) >> 8)

// `OF` is the number of a code, without its sign.
#define BYTE_TABLES_OF(NAME, OF)                                                                                       \
    static const uint8_t NAME[2][128] __attribute__((aligned(64))) = {ALL(LOW_BYTE, OF), ALL(HIGH_BYTE, OF)};
