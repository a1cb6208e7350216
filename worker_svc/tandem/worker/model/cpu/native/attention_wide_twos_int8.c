// Attention over int8 by the instructions of bf16 (attention_wide_twos.h), and by VBMI, which looks up 64 bytes in a table
// of 128 at once: of three queries a head of keys and more. Of fewer, whole numbers are quicker (attention_wide_digits.c);
// of more, where there is AMX, too (attention_amx_digits.c).

#include "attention.h"
#include "byte_tables.h"

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi"))),                    \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi")
#endif

#define NUMBER_OF(CODE) BITS_OF(CODE, 0)
BYTE_TABLES_OF(TABLES, NUMBER_OF)

#define STORED INT8
#define BYTE_TABLES TABLES
#include "attention_wide_twos.h"

const Way wide_attention_twos_int8 = WAY_OF_TWOS;

#ifdef __clang__
#pragma clang attribute pop
#endif
