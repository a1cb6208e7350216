// Attention over bf16 by its instructions (attention_wide_twos.h), or by AMX (attention_amx.h).

#include "amx.h"
#include "attention.h"
#include "operations.h"

int wide_twos_is_there(void) { return wide_is_there() && twos_serve(); }
int wide_amx_is_there(void) { return wide_twos_is_there() && amx_serves(); }

// From here on, for such processors only. What may hold such instructions begins with `wide_attention`.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"))),      \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")
#endif

#define STORED BF16
#include "attention_wide_twos.h"

const Way wide_attention_twos = WAY_OF_TWOS;

#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,amx-tile,amx-bf16"))),             \
    apply_to = function)
#elif defined(WITH_AMX)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,amx-tile,amx-bf16")
#endif

#define WAY_OF_TILES wide_attention_amx
#include "attention_amx.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
