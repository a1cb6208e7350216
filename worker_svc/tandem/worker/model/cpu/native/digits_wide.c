// Products of int8 with numbers of 4 and 6 bits by AVX-512 with VNNI (`quantized_wide.h`); see digits.c.

#include "quantized.h"

// From here on, for such processors only.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#include "quantized_wide.h"

void wide_digits_panels(const Product *p, int bits, int group, int64_t first, int64_t last) {
    if (bits == 6) panels_that_mean(6, LESS, SPAN / 2, p, first, last);
    else if (p->table && group == SPAN) panels_that_mean(4, SMALL, SPAN, p, first, last);
    else if (p->table) panels_that_mean(4, SMALL, SPAN / 2, p, first, last);
    else if (p->less && group == SPAN) panels_that_mean(4, LESS, SPAN, p, first, last);
    else if (p->less) panels_that_mean(4, LESS, SPAN / 2, p, first, last);
    else if (group == SPAN) panels_that_mean(4, DIGITS, SPAN, p, first, last);
    else panels_that_mean(4, DIGITS, SPAN / 2, p, first, last);
}

#ifdef __clang__
#pragma clang attribute pop
#endif
