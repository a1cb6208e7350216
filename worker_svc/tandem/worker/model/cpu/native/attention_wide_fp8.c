// What attention_wide.c does with fp8, by AVX-512 with VBMI, which looks up 64 bytes in a table of 128 at once.

#include "attention.h"
#include "float8_tables.h"

int wide_fp8_is_there(void) { return wide_is_there() && __builtin_cpu_supports("avx512vbmi"); }

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi"))),      \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")
#endif

#include "attention_wide_floats.h"

#define KEPT
WIDE_FLOATS(fp8, FP8)

#ifdef __clang__
#pragma clang attribute pop
#endif
