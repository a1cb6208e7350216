// The numbers of bf16 that those of e4m3 are: their lower and their higher bytes, without signs.

#pragma once

#include <stdint.h>

// Below 8, multiples of 2^-9.
#define AS_BF16(CODE) ((CODE) == 127 ? 0x7fc0 : 16 * (CODE) + 0x3c00)
#define EIGHT(BYTE, FIRST)                                                                                             \
    BYTE(AS_BF16(FIRST)), BYTE(AS_BF16(FIRST + 1)), BYTE(AS_BF16(FIRST + 2)), BYTE(AS_BF16(FIRST + 3)),                \
        BYTE(AS_BF16(FIRST + 4)), BYTE(AS_BF16(FIRST + 5)), BYTE(AS_BF16(FIRST + 6)), BYTE(AS_BF16(FIRST + 7))
#define ALL(BYTE)                                                                                                      \
    {BYTE(0),         BYTE(0x3b00),    BYTE(0x3b80),     BYTE(0x3bc0),     BYTE(0x3c00),    BYTE(0x3c20),              \
     BYTE(0x3c40),    BYTE(0x3c60),    EIGHT(BYTE, 8),   EIGHT(BYTE, 16),  EIGHT(BYTE, 24), EIGHT(BYTE, 32),           \
     EIGHT(BYTE, 40), EIGHT(BYTE, 48), EIGHT(BYTE, 56),  EIGHT(BYTE, 64),  EIGHT(BYTE, 72), EIGHT(BYTE, 80),           \
     EIGHT(BYTE, 88), EIGHT(BYTE, 96), EIGHT(BYTE, 104), EIGHT(BYTE, 112), EIGHT(BYTE, 120)}
#define LOW(NUMBER) (NUMBER) & 255
#define HIGH(NUMBER) (NUMBER) >> 8

static const uint8_t TABLES[2][128] __attribute__((aligned(64))) = {ALL(LOW), ALL(HIGH)};
#define FLOAT8_TABLES TABLES
