// Products of int16 with quantized weights by AVX-512 with VNNI (`quantized_wide.h`).

#include "quantized.h"

int wide_is_there(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#include "quantized_wide.h"

void wide_quantized_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    BY_INT16_KIND(panels_that_mean, bits, p, group, p, first, last)
}

#ifdef __clang__
#pragma clang attribute pop
#endif
