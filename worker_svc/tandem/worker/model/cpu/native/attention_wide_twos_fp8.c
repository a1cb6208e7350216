// Attention over fp8 by the instructions of bf16 (attention_wide_twos.h), and by VBMI, which looks up 64 bytes in a table
// of 128 at once.

#include "amx.h"
#include "attention.h"
#include "float8_tables.h"

int wide_twos_codes_are_there(void) { return wide_twos_is_there() && wide_fp8_is_there(); }

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi"))),                    \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi")
#endif

#define STORED FP8
#define BYTE_TABLES FLOAT8_TABLES
#include "attention_wide_twos.h"

const Way wide_attention_twos_fp8 = WAY_OF_TWOS;

#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi,amx-tile,amx-bf16"))),  \
    apply_to = function)
#elif defined(WITH_AMX)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi,amx-tile,amx-bf16")
#endif

#define WAY_OF_TILES wide_attention_amx_fp8
#include "attention_amx.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
