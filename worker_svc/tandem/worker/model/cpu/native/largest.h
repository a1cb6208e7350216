// The largest numbers of a row: of all of them (largest.c), and those that are drawn from (draw.c).

#pragma once

#include "numbers.h"

#define GROUP 32
#define WORTH_THREADS (1 << 16)  // numbers of rows
#define AHEAD 1024  // numbers from what is looked at to what is asked for: other cores have written half of a step's

typedef struct {
    uint32_t key;
    int32_t place;
} Found;

// Whole numbers in the order of the floats, and back; -0 is 0.
INLINE uint32_t key_of(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

INLINE float number_of(uint32_t key) {
    const uint32_t bits = key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// The `count`th largest of n keys, of which there are as many: digit by digit, from the first one on.
INLINE uint32_t nth_largest(const Found *found, int64_t n, int64_t count) {
    uint32_t known = 0, mask = 0;
    for (int shift = 21; shift >= 0; shift = shift == 0 ? -1 : shift == 10 ? 0 : 10) {
        const int bits = shift ? 11 : 10;
        int32_t numbers[1 << 11] = {0};
        for (int64_t i = 0; i < n; i++)
            if ((found[i].key & mask) == known) numbers[found[i].key >> shift & ((1u << bits) - 1)]++;
        uint32_t digit = (1u << bits) - 1;
        for (; numbers[digit] < count; digit--) count -= numbers[digit];
        known |= digit << shift;
        mask |= ((1u << bits) - 1) << shift;
    }
    return known;
}

// By falling keys; equal ones stay as they are. `room` is as large.
INLINE void order(Found *found, int64_t n, Found *room) {
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t places[257] = {0};
        for (int64_t i = 0; i < n; i++) places[256 - (found[i].key >> shift & 255)]++;
        for (int i = 1; i < 257; i++) places[i] += places[i - 1];
        for (int64_t i = 0; i < n; i++) room[places[255 - (found[i].key >> shift & 255)]++] = found[i];
        Found *const other = found;
        found = room, room = other;
    }
}

// Brings the `count` largest, or all, to the beginning, in order: of equal ones those that stand first. `room` has
// `count`. Returns how many there are.
INLINE int64_t take_largest(Found *found, int64_t there, int64_t count, Found *room) {
    if (there > count) {
        const uint32_t least = nth_largest(found, there, count);
        int64_t ties = count, taken = 0;
        for (int64_t i = 0; i < there; i++) ties -= found[i].key > least;
        for (int64_t i = 0; i < there; i++) {
            if (found[i].key < least || (found[i].key == least && ties-- <= 0)) continue;
            found[taken++] = found[i];
        }
        there = count;
    }
    order(found, there, room);
    return there;
}

INLINE float largest_of_eight(__m256 all) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The largest of a group, of which the last of a row may lack some.
INLINE float largest_of(const float *x, int64_t count) {
    float most = x[0];
    if (count < GROUP) {
        for (int64_t i = 1; i < count; i++) most = x[i] > most ? x[i] : most;
        return most;
    }
    const __m256 a = _mm256_max_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8));
    const __m256 b = _mm256_max_ps(_mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24));
    const __m256 all = _mm256_max_ps(a, b);
    return largest_of_eight(all);
}
