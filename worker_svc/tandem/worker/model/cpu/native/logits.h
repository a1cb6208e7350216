// A row of logits in groups, whose maxima tell which of them have anything to look at: what is drawn from it (draw.c), and
// what is told of it (report.c). Sums are of groups, and of these one after the other in fp64: they do not depend on threads.

#pragma once

#include <float.h>

#include "largest.h"
#include "operations.h"

typedef struct {
    const float *x;
    int64_t n, groups, possible;  // possible: those that are not -inf
    float *maxima;                // [groups]
    double *sums;                 // [groups]
    Found *found;                 // [n]
    Found *room;                  // [few]
    float *weights;               // [n]
    float top;
    float last[GROUP];  // of the row, filled up
} Row;

INLINE const float *group_of(const Row *row, int64_t g) { return g < row->n / GROUP ? row->x + g * GROUP : row->last; }

// Takes the maxima of all groups, and counts what is possible; returns whether the largest is a number, and finite.
INLINE int survey(Row *row) {
    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t place = row->n / GROUP * GROUP + i;
        row->last[i] = place < row->n ? row->x[place] : -INFINITY;
    }
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 most = none, unordered = _mm256_setzero_ps();
    __m256i possible = _mm256_setzero_si256();
    for (int64_t g = 0; g < row->groups; g++) {
        const float *x = group_of(row, g);
        const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
        const __m256 c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
        for (int k = 0; k < 2; k++) _mm_prefetch((const char *)(x + AHEAD + 16 * k), _MM_HINT_T0);
        unordered = _mm256_or_ps(unordered, _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),  // true where one is a NaN
                                                         _mm256_cmp_ps(c, d, _CMP_UNORD_Q)));
        const __m256 all = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
        most = _mm256_max_ps(most, all);
        row->maxima[g] = largest_of_eight(all);
#define COUNT_OF(V) possible = _mm256_sub_epi32(possible, _mm256_castps_si256(_mm256_cmp_ps(V, none, _CMP_GT_OQ)))
        COUNT_OF(a), COUNT_OF(b), COUNT_OF(c), COUNT_OF(d);
#undef COUNT_OF
    }
    row->top = largest_of_eight(most);
    int32_t lanes[8];
    _mm256_storeu_si256((__m256i *)lanes, possible);
    row->possible = 0;
    for (int lane = 0; lane < 8; lane++) row->possible += lanes[lane];
    return !_mm256_movemask_ps(unordered) && row->top < INFINITY && row->top > -INFINITY;
}

// Bytes that a row needs, of which at most `few` are put in order.
INLINE size_t room_of_row(int64_t n, int64_t few) {
    const int64_t groups = (n + GROUP - 1) / GROUP;
    return (size_t)groups * (sizeof(double) + sizeof(float)) + (size_t)(n + GROUP + few) * sizeof(Found) +
           (size_t)(n + GROUP) * sizeof(float);
}

INLINE Row row_in(char *room, const float *x, int64_t n, int64_t few) {
    Row row = {.x = x, .n = n, .groups = (n + GROUP - 1) / GROUP, .sums = (double *)room};
    row.found = (Found *)(row.sums + row.groups), row.room = row.found + n + GROUP;
    row.maxima = (float *)(row.room + few), row.weights = row.maxima + row.groups;
    return row;
}

// Does something with each of the rows, whose rooms each thread has one of; returns 0, or 1 without memory.
typedef void WithRoom(const void *of, int64_t row, char *room);
INLINE int with_rooms(WithRoom *each, const void *of, int64_t rows, int64_t n, int64_t few, int threads) {
    int failed = 0;
#pragma omp parallel num_threads(threads) if (rows > 1 && rows * n > WORTH_THREADS)
    {
        char *room = malloc(room_of_row(n, few));
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            if (room) each(of, row, room);
            else {
#pragma omp atomic write
                failed = 1;
            }
        }
        free(room);
    }
    return failed;
}

// Finds all that are possible from `low` on; returns how many there are.
INLINE int64_t find(Row *row, float low) {
    int64_t there = 0;
    if (low < -FLT_MAX) low = -FLT_MAX;
    for (int64_t g = 0; g < row->groups; g++) {
        if (row->maxima[g] < low) continue;
        const int64_t end = g * GROUP + GROUP < row->n ? g * GROUP + GROUP : row->n;
        for (int64_t i = g * GROUP; i < end; i++) {
            row->found[there].key = key_of(row->x[i]), row->found[there].place = (int32_t)i;
            there += row->x[i] >= low;
        }
    }
    return there;
}

// Not above the `count`th largest: so many groups have one at least that is not below it.
INLINE float low_of_groups(Row *row, int64_t count) {
    if (row->groups <= count) return -INFINITY;
    for (int64_t g = 0; g < row->groups; g++) row->found[g].key = key_of(row->maxima[g]);
    return number_of(nth_largest(row->found, row->groups, count));
}

// e^((x - top) inverse) of eight, those from `low` on.
INLINE __m256 weights_of(const float *x, __m256 low, __m256 top, __m256 inverse) {
    const __m256 v = _mm256_loadu_ps(x);
    const __m256 weight = exponential(_mm256_mul_ps(_mm256_sub_ps(v, top), inverse));
    return _mm256_and_ps(weight, _mm256_cmp_ps(v, low, _CMP_GE_OQ));
}

// The weights of all from `low` on, added up: of each group, and of all groups up to it, to `sums`; returns that of all.
INLINE double weigh(Row *row, float low, double inverse) {
    const __m256 lows = _mm256_set1_ps(low), tops = _mm256_set1_ps(row->top), by = _mm256_set1_ps((float)inverse);
    double all = 0;
    for (int64_t g = 0; g < row->groups; g++) {
        if (row->maxima[g] >= low) {
            const float *x = group_of(row, g);
            const __m256 ab = _mm256_add_ps(weights_of(x, lows, tops, by), weights_of(x + 8, lows, tops, by));
            const __m256 cd = _mm256_add_ps(weights_of(x + 16, lows, tops, by), weights_of(x + 24, lows, tops, by));
            all += (double)one_sum(_mm256_add_ps(ab, cd));
        }
        row->sums[g] = all;
    }
    return all;
}
