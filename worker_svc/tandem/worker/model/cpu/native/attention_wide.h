// What all of attention by AVX-512 shares: what is asked for ahead, and the softmax.

#pragma once

#include "attention.h"

// What is read next is asked for SOON bytes before it is read: first the rest of these keys or values, then the
// beginning of those that follow. Into the first cache, past the others where one block of queries looks at them; or
// into the second one, on processors that read quicker so (prefetch.h).
#define SOON 8192

typedef struct {
    const char *next, *end, *then, *then_end;
    int64_t step;  // bytes, those of KEYS vectors
    int into;
    int64_t again;           // of bf16: how far ahead lines are asked for once more; 0: they are not
    const float *constants;  // of what follows, or 0
} Soon;

INLINE Soon asked_ahead(int64_t most, const Attention *a, int which, int64_t first, int next_which, int64_t next) {
    const int64_t length = length_of(a->format, a->head_dim), bytes = a->page_size * length;
    const int64_t some = bytes < most ? bytes : most;
    const char *from = (const char *)a->part[which][0] + first * length;
    const char *then = (const char *)a->part[next_which][0] + next * length;
    const Soon soon = {from + some, from + bytes, then, then + some, KEYS * length, a->into, 0, 0};
    return soon;
}

INLINE Soon asked_soon(const Attention *a, int which, int64_t first, int next_which, int64_t next) {
    return asked_ahead(SOON, a, which, first, next_which, next);
}

// The constants of a page's keys and values, all at once.
INLINE void ask_for_constants(const Attention *a, int64_t first) {
    const int64_t constants = constants_of(a->format, a->head_dim) * 4;
    for (int part = 0; constants && part < 2; part++)
        ask_for_all((const char *)a->part[part][1] + first * constants, a->page_size * constants);
}

INLINE void ask_soon_for(Soon *soon, const int64_t step) {
    if (soon->next >= soon->end) {
        if (!soon->then) return;
        soon->next = soon->then, soon->end = soon->then_end, soon->then = 0;
    }
#define ASK(HINT)                                                                                                      \
    for (int64_t i = 0; i < step; i += LINE) _mm_prefetch(soon->next + i, HINT)
    if (soon->into == INTO_FIRST_ONLY) ASK(_MM_HINT_NTA);
    else if (soon->into == INTO_SECOND) ASK(_MM_HINT_T1);
    else ASK(_MM_HINT_T0);
#undef ASK
    soon->next += step;
}

INLINE void ask_soon(Soon *soon) { ask_soon_for(soon, soon->step); }

// One line at a time, while something else is computed, and where it stands. INTO_FIRST goes past the other caches here
// too: a third choice would cost more.
#define ASK_LINE(HINT, AT) __asm__ volatile("prefetch" HINT " %0" : : "m"(*(const char *)(AT)))
INLINE void ask_line(const void *at, int into) {
    if (into == INTO_SECOND) ASK_LINE("t1", at);
    else ASK_LINE("nta", at);
}

// What is asked for by Soon, a line at a time, and what lies AGAIN bytes behind what is looked at once more, whatever it is
// (prefetch.h).
#define AGAIN 5120
typedef struct {
    const char *next;
    int64_t step;  // bytes; 0 where nothing is left
    const char *again;
    int into;
} Spread;

// What is asked for while `bytes` at `now` are looked at.
INLINE Spread spread_over(Soon *soon, int64_t bytes, const void *now) {
    if (soon->next >= soon->end && soon->then) soon->next = soon->then, soon->end = soon->then_end, soon->then = 0;
    const Spread ahead = {soon->next, soon->next < soon->end ? LINE : 0, (const char *)now + AGAIN, soon->into};
    soon->next += bytes;
    return ahead;
}

INLINE void ask_next(Spread *ahead) {
    // One branch for both lines.
    if (ahead->into == INTO_SECOND) {
        ASK_LINE("t1", ahead->next);
        ASK_LINE("t1", ahead->again);
    } else {
        ASK_LINE("nta", ahead->next);
        ASK_LINE("nta", ahead->again);
    }
    ahead->next += ahead->step;
    ahead->again += LINE;
}

// A page's keys and values that are asked for in four places at once, each a half of up to 8 KiB of them, a line of each at a
// time: into the second cache, but for whole numbers (benchmarks/pages/long_contexts.md#groups-by-tiles).
#ifndef FOUR_INTO
#define FOUR_INTO _MM_HINT_T1
#endif
typedef struct {
    const char *keys, *values;
    int64_t half, now, rest;  // bytes: from place to place, what is left of a half, what is behind both
} Asks;

#define IN_FOUR 8192
INLINE Asks ask_from(Asks asks) {
    asks.half = (asks.rest < IN_FOUR ? asks.rest : IN_FOUR) / 2;
    asks.now = asks.half, asks.rest -= 2 * asks.half;
    return asks;
}

INLINE Asks asked_in_four(const Attention *a, int64_t first) {
    const int64_t length = length_of(a->format, a->head_dim), bytes = a->page_size * length;
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    const char *keys = (const char *)a->part[0][0] + first * length;
    const char *values = one ? keys + bytes / 2 : (const char *)a->part[1][0] + first * length;
    const int64_t rest = a->apart ? 0 : one ? bytes / 2 : bytes;  // those apart were put into the caches
    const Asks asks = {keys, values, 0, 0, rest};
    return ask_from(asks);
}

INLINE void ask_four(Asks *asks, int64_t times) {
    for (int64_t n = 0; n < times; n++) {
        if (asks->now <= 0) {
            if (asks->rest < 2 * LINE) return;
            asks->keys += asks->half, asks->values += asks->half;
            *asks = ask_from(*asks);
        }
        for (int which = 0; which < 2; which++) {
            const char *at = which ? asks->values : asks->keys;
            _mm_prefetch(at, FOUR_INTO);
            _mm_prefetch(at + asks->half, FOUR_INTO);
        }
        asks->keys += LINE, asks->values += LINE, asks->now -= LINE;
    }
}

// Keeps the compiler from loading what comes later before this.
INLINE __m512i in_order(__m512i loaded) {
    __asm__ volatile("" : "+v"(loaded));
    return loaded;
}

// The first `count` of 32 bits.
INLINE __mmask32 first_of(int64_t count) { return count >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << count) - 1; }

// What becomes of each of four vectors, whose lanes are always taken in one order.
#define OF_FOUR_VECTORS(NAME, OF_TWO)                                                                                  \
    INLINE __m128 NAME(__m512 a, __m512 b, __m512 c, __m512 d) {                                                       \
        const __m512 ab = _mm512_##OF_TWO(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));                         \
        const __m512 cd = _mm512_##OF_TWO(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));                         \
        const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));                            \
        const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));                           \
        const __m512 all = _mm512_##OF_TWO(_mm512_castpd_ps(low), _mm512_castpd_ps(high));                             \
        const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1));                       \
        const __m256 half = _mm256_##OF_TWO(_mm512_castps512_ps256(all), upper);                                       \
        return _mm_##OF_TWO(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));                             \
    }
OF_FOUR_VECTORS(wide_sums, add_ps)
OF_FOUR_VECTORS(wide_maxima, max_ps)  // of what has no NaN

// What a row's weights add up to, in all lanes.
INLINE __m512 weights_of_row(const Piece *of, int64_t row) {
    const __m512 sums = _mm512_load_ps(of->sums.l + row * LANES);
    return _mm512_set1_ps(_mm_cvtss_f32(wide_sums(sums, sums, sums, sums)));
}

// Of each four of `count` registers, the four words of each lane are turned.
INLINE void turn_lanes(const int count, __m512i *r) {
    for (int i = 0; i < count; i += 4) {
        const __m512i ab = _mm512_unpacklo_epi32(r[i], r[i + 1]), more = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i cd = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]),
                      others = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        r[i] = _mm512_unpacklo_epi64(ab, cd), r[i + 1] = _mm512_unpackhi_epi64(ab, cd);
        r[i + 2] = _mm512_unpacklo_epi64(more, others), r[i + 3] = _mm512_unpackhi_epi64(more, others);
    }
}

// 16 registers of 16 words become those of the first, second, .. word of each.
INLINE void turn(__m512i r[16]) {
    __m512i t[16];
    turn_lanes(16, r);
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// Eight registers of two keys' eight words become those of 16 keys each.
INLINE void turn_pairs(__m512i r[8]) {
    const __m512i upper = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    const __m512i lower = _mm512_add_epi32(upper, _mm512_set1_epi32(4));
    turn_lanes(8, r);
    for (int i = 0; i < 4; i++) {
        const __m512i first = r[i], second = r[i + 4];
        r[i] = _mm512_permutex2var_epi32(first, upper, second);
        r[i + 4] = _mm512_permutex2var_epi32(first, lower, second);
    }
}

// As `exponential`.
INLINE __m512 wide_exponential(__m512 x) {
    const __m512 least = _mm512_set1_ps(-87.3f), most = _mm512_set1_ps(88.37f), one = _mm512_set1_ps(1.0f);
    const __mmask16 stays = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
    x = _mm512_min_ps(most, _mm512_max_ps(least, x));  // in this order of operands NaN goes through
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(r, r), _mm512_add_ps(r, one));
    return _mm512_maskz_scalef_ps(stays, y, n);
}

// As `soft_cap`, times `unit`.
INLINE void wide_soft_cap(float *s, int64_t width, float cap, float unit) {
    const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f), most = _mm512_set1_ps(cap * unit);
    const __m512 divided = _mm512_set1_ps(1.0f / cap), small = _mm512_set1_ps(0.625f * 0.625f);
    for (int64_t i = 0; i < width; i += 16) {
        const __m512 x = _mm512_mul_ps(_mm512_load_ps(s + i), divided), square = _mm512_mul_ps(x, x);
        const __m512 power = wide_exponential(_mm512_add_ps(x, x));
        const __m512 far = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(one, power)));
        __m512 near = _mm512_set1_ps(-5.70498872745e-3f);
        near = _mm512_fmadd_ps(near, square, _mm512_set1_ps(2.06390887954e-2f));
        near = _mm512_fmadd_ps(near, square, _mm512_set1_ps(-5.37397155531e-2f));
        near = _mm512_fmadd_ps(near, square, _mm512_set1_ps(1.33314422036e-1f));
        near = _mm512_fmadd_ps(near, square, _mm512_set1_ps(-3.33332819422e-1f));
        near = _mm512_fmadd_ps(_mm512_mul_ps(near, square), x, x);
        const __m512 tanh = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(square, small, _CMP_LT_OQ), far, near);
        _mm512_store_ps(s + i, _mm512_mul_ps(tanh, most));
    }
}

// As `soften`: s [width], o [wide].
INLINE void wide_soften(float *s, int64_t width, Seen seen, float *o, int64_t wide, float *m, float *l) {
    hide(s, width, seen);
    if (seen.first >= seen.last) {
        memset(s, 0, (size_t)width * sizeof(float));
        return;
    }
    __m512 most = _mm512_set1_ps(*m), sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) most = _mm512_max_ps(_mm512_load_ps(s + i), most);
    const float largest = _mm512_reduce_max_ps(most);
    for (int64_t i = 0; i < width; i += 16) {
        const __m512 weight = wide_exponential(_mm512_sub_ps(_mm512_load_ps(s + i), _mm512_set1_ps(largest)));
        sum = _mm512_add_ps(sum, weight);
        _mm512_store_ps(s + i, weight);
    }
    if (largest > *m) {
        const __m512 shrink = wide_exponential(_mm512_set1_ps(*m - largest));
        for (int64_t i = 0; i < wide; i += 16) _mm512_store_ps(o + i, _mm512_mul_ps(_mm512_load_ps(o + i), shrink));
        *l *= _mm512_cvtss_f32(shrink);
        *m = largest;
    }
    *l += _mm_cvtss_f32(wide_sums(sum, sum, sum, sum));
}
