#include "prefetch.h"

#include <cpuid.h>

#define ZEN_5 26  // AMD's family

// By way of the second cache Zen 4 reads a cache of keys and values 1.15 to 1.4 times as quickly, and weights of one row of
// bf16 1.05 times; asked twice, it reads caches of bf16 1.04 to 1.2 times as quickly again, weights of 2 to 8 rows of bf16 1.08
// to 1.16 times, and quantized ones of 1 to 4 rows up to 1.2 times. Zen 5 reads keys and values 0.85 times as quickly so
// (benchmarks/pages/long_contexts.md, models.md). Others were not measured, and take the second one, as before Zen 5 was.
static int second_cache;
__attribute__((constructor)) static void look_at_processor(void) {
    unsigned a = 0, b, c, d;
    __builtin_cpu_init();
    __get_cpuid(1, &a, &b, &c, &d);
    const unsigned family = (a >> 8 & 15) + (a >> 20 & 255);
    second_cache = !(__builtin_cpu_is("amd") && family >= ZEN_5);
}

int by_second_cache(void) { return second_cache; }
