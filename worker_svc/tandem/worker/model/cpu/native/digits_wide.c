// Products of int8 with numbers of 4, 6 and 8 bits by AVX-512 with VNNI (`quantized_wide.h`); see digits.c.

#include "quantized.h"

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#include "quantized_wide.h"

INLINE void digits_that_mean(const int bits, const int means, const int group, const Product *p, int64_t first,
                             int64_t last) {
    panels_that_mean(bits, means == TABLE ? SMALL : means, group, p, first, last);
}

FUNCTIONS_OF(KINDS_OF_INT8, wide_digits, digits_that_mean)

void wide_digits_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    CALL_BY_KIND(KINDS_OF_INT8, wide_digits, p, bits, group, first, last)
}

#ifdef __clang__
#pragma clang attribute pop
#endif
