// What attention_wide.c does with fp8, by AVX-512 with VBMI, which looks up 64 bytes in a table of 128 at once.

#include "attention.h"

int wide_fp8_is_there(void) { return wide_is_there() && __builtin_cpu_supports("avx512vbmi"); }

// The numbers of bf16 that those of e4m3 are, without their signs: below 8, multiples of 2^-9.
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

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi"))),               \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")
#endif

#include "attention_wide_floats.h"

#define KEPT
WIDE_FLOATS(fp8, FP8)

#ifdef __clang__
#pragma clang attribute pop
#endif
