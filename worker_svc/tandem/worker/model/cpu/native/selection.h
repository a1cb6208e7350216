// What scoring tokens by their index keys works on (`selection.c`).

#pragma once

#include "numbers.h"
#include "operations.h"

#define SUMMED 16  // lanes that heads' shares of a score are added up in

INLINE int64_t filled(int64_t number, int64_t of) { return (number + of - 1) / of * of; }

// A row's queries [size, heads] and what each weighs [heads], whose heads are filled up to whole `SUMMED`; `keys`
// [tokens, size]. To total [tokens, SUMMED] goes what head h adds to a score, in lane h % SUMMED.
typedef void Scoring(const float *queries, const float *weights, int64_t heads, int64_t size, const float *keys,
                     int64_t tokens, float *total);

// By AVX-512 (selection_wide.c): the same bits.
Scoring wide_scoring;
