// Attention over int4 by the instructions of bf16 (attention_wide_twos.h), and by VBMI, which looks up 64 bytes in a table
// at once: of vectors that are not whole 128 numbers, which attention_wide_digits.c serves as quickly. Of several queries a
// head of keys, AMX is quicker, where there is such (attention_amx_int4.c).

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

#define CODE_OF(PLACE) ((PLACE) % 16)  // tables are looked up by 6 bits, of which the upper ones are of the next number
#define NUMBER_OF(PLACE) (CODE_OF(PLACE) < 8 ? 0x8000 + BITS_OF(8 - CODE_OF(PLACE), 0) : BITS_OF(CODE_OF(PLACE) - 8, 0))
BYTE_TABLES_OF(TABLES, NUMBER_OF)

#define STORED INT4
#define OF_INT4
#define BYTE_TABLES TABLES
#include "attention_wide_twos.h"

const Way wide_attention_twos_int4 = WAY_OF_TWOS;

#ifdef __clang__
#pragma clang attribute pop
#endif
