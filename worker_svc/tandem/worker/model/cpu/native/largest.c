// The largest numbers of each row in order, which the sampler's filters look at (`sampler/ordered.py`).
//
// Of so many groups as numbers are wanted, those with the largest maxima, each has one at least that is not below the
// least of these maxima: what is below it is none of the wanted ones. The rest is not much more than is wanted, and is
// ordered by bits. Of equal numbers the first ones are taken, and come first.

#include "largest.h"

#include "operations.h"

// `room` has 2 n numbers.
static void largest_of_row(const float *x, int64_t n, int64_t count, float *values, int64_t *places, Found *room) {
    const int64_t groups = (n + GROUP - 1) / GROUP;
    Found *maxima = room, *found = room + n;
    for (int64_t g = 0; g < groups; g++)
        maxima[g].key = key_of(largest_of(x + g * GROUP, n - g * GROUP < GROUP ? n - g * GROUP : GROUP));
    const uint32_t bound = groups > count ? nth_largest(maxima, groups, count) : 0;
    int64_t there = 0;
    for (int64_t g = 0; g < groups; g++) {
        if (maxima[g].key < bound) continue;
        const int64_t end = g * GROUP + GROUP < n ? g * GROUP + GROUP : n;
        for (int64_t i = g * GROUP; i < end; i++) {
            const uint32_t key = key_of(x[i]);
            found[there].key = key, found[there].place = (int32_t)i;
            there += key >= bound;
        }
    }
    take_largest(found, there, count, room);
    for (int64_t i = 0; i < count; i++) values[i] = number_of(found[i].key), places[i] = found[i].place;
}

// x [rows, n] -> values and places [rows, count], count <= n; returns 0, or 1 without memory.
int tandem_largest(const float *x, int64_t rows, int64_t n, int64_t count, float *values, int64_t *places,
                   int threads) {
    int failed = 0;
#pragma omp parallel num_threads(threads) if (rows > 1 && rows * n > WORTH_THREADS)
    {
        Found *room = malloc((size_t)(2 * n + GROUP) * sizeof *room);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            if (!room) {
#pragma omp atomic write
                failed = 1;
                continue;
            }
            largest_of_row(x + row * n, n, count, values + row * count, places + row * count, room);
        }
        free(room);
    }
    return failed;
}

#define STRETCH 512  // numbers of which only the largest is looked for, until it is known in which stretch it is

// The largest of x [n], a NaN before all others, which `broken` tells.
INLINE float largest_of_stretch(const float *x, int64_t n, int *broken) {
    float largest = -INFINITY;
    int64_t i = 0;
    if (n == STRETCH) {  // four at a time: one would wait for the one before it
        __m256 most[4], unordered = _mm256_setzero_ps();
        for (int k = 0; k < 4; k++) most[k] = _mm256_set1_ps(-INFINITY);
        for (; i < n; i += 32) {
            __m256 v[4];
            for (int k = 0; k < 2; k++) _mm_prefetch((const char *)(x + i + AHEAD + 16 * k), _MM_HINT_T0);
            for (int k = 0; k < 4; k++) v[k] = _mm256_loadu_ps(x + i + 8 * k);
            for (int k = 0; k < 4; k++) most[k] = _mm256_max_ps(v[k], most[k]);
            for (int k = 0; k < 4; k += 2)  // true where either is a NaN
                unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(v[k], v[k + 1], _CMP_UNORD_Q));
        }
        *broken = _mm256_movemask_ps(unordered) != 0;
        float lanes[8];
        _mm256_storeu_ps(lanes, _mm256_max_ps(_mm256_max_ps(most[0], most[1]), _mm256_max_ps(most[2], most[3])));
        for (int lane = 0; lane < 8; lane++) largest = lanes[lane] > largest ? lanes[lane] : largest;
        return largest;
    }
    for (*broken = 0; i < n; i++) *broken |= x[i] != x[i], largest = x[i] > largest ? x[i] : largest;
    return largest;
}

// Of each row of x [rows, n], rows `stride` apart: where the first NaN is, or else the first of the largest, and whether
// that one is finite.
void tandem_first_largest(const float *x, int64_t rows, int64_t n, int64_t stride, int32_t *places, uint8_t *finite) {
    for (int64_t row = 0; row < rows; row++, x += stride) {
        float largest = -INFINITY;
        int64_t first = 0;  // of the stretch that it is in
        int nan = 0;
        for (int64_t i = 0; i < n && !nan; i += STRETCH) {
            const float here = largest_of_stretch(x + i, n - i < STRETCH ? n - i : STRETCH, &nan);
            if (here > largest || nan) largest = here, first = i;
        }
        int64_t place = first;
        while (place < n - 1 && (nan ? x[place] == x[place] : x[place] != largest)) place++;
        places[row] = (int32_t)place;
        finite[row] = !nan && largest < INFINITY && largest > -INFINITY;
    }
}
