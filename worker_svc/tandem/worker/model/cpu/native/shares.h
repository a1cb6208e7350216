// Work in pieces that threads share.
//
// A thread has pieces that lie behind each other and takes them in their order: memory is read quickest in one stream. Where
// it is done before the others, it takes the last ones of theirs, so that all end together: cores do not get memory equally
// quickly, nor does each have its core for itself.

#pragma once

#include <omp.h>
#include <stdint.h>

#include "numbers.h"

// The pieces that a thread has left: from the lower 32 bits of `left` to before the upper ones.
typedef struct {
    uint64_t left;
    char apart[56];  // so that threads write to different lines of the cache
} Share;

// Gives one of `threads` its share of `pieces`.
INLINE void give_share(Share *shares, int threads, int own, int64_t pieces) {
    const uint64_t first = (uint64_t)(pieces * own / threads), last = (uint64_t)(pieces * (own + 1) / threads);
    __atomic_store_n(&shares[own].left, last << 32 | first, __ATOMIC_RELAXED);
}

INLINE void give_shares(Share *shares, int threads, int64_t pieces) {
    for (int own = 0; own < threads; own++) give_share(shares, threads, own, pieces);
}

// The next piece of this thread's share, or the last one of another's; -1 if none is left.
INLINE int64_t take_piece(Share *shares, int threads) {
    const int own = omp_get_thread_num();
    for (int n = 0; n < threads; n++) {
        uint64_t *of = &shares[(own + n) % threads].left, left = __atomic_load_n(of, __ATOMIC_RELAXED), rest;
        while ((uint32_t)left < left >> 32) {
            rest = n ? left - (1ull << 32) : left + 1;
            if (__atomic_compare_exchange_n(of, &left, rest, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                return n ? (int64_t)(rest >> 32) : (int64_t)(uint32_t)left;
        }
    }
    return -1;
}
