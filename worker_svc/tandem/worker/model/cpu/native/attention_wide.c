// Attention over pages by AVX-512 with VNNI: what attention.c does, 16 numbers at once. A score's sum runs over 16 lanes,
// so the bits are others.

#include "attention_digits.h"

// From here on, for such processors only. What may hold such instructions begins with `wide_attention`.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#include "attention_wide_digits.h"

#define KEPT static
WIDE_FLOATS(plain, PLAIN)
WIDE_FLOATS(fp32, FP32)
WIDE_FLOATS(bf16, BF16)
WIDE_FLOATS(fp16, FP16)
WIDE_FLOATS(int4, INT4)

static const WideFloats *const WIDE_FORMATS[INT6 + 1] = {[FP32] = &wide_attention_fp32,
                                                         [BF16] = &wide_attention_bf16,
                                                         [FP16] = &wide_attention_fp16,
                                                         [INT4] = &wide_attention_int4,
                                                         [FP8] = &wide_attention_fp8};

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

// As `soft_cap`.
INLINE void wide_soft_cap(float *s, int64_t width, float cap) {
    const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f), most = _mm512_set1_ps(cap);
    const __m512 doubled = _mm512_set1_ps(2.0f / cap);
    for (int64_t i = 0; i < width; i += 16) {
        const __m512 power = wide_exponential(_mm512_mul_ps(_mm512_load_ps(s + i), doubled));
        const __m512 tanh = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(one, power)));
        _mm512_store_ps(s + i, _mm512_mul_ps(tanh, most));
    }
}

// As `soften`; o has `wide` numbers.
INLINE void wide_soften(float *s, int64_t width, int64_t first, int64_t last, float *o, int64_t wide, float *m,
                        float *l) {
    for (int64_t i = 0; i < first && i < width; i++) s[i] = -INFINITY;
    for (int64_t i = last > 0 ? last : 0; i < width; i++) s[i] = -INFINITY;
    if (first >= last) {
        memset(s, 0, (size_t)width * sizeof(float));
        return;
    }
    __m512 most = _mm512_set1_ps(*m);
    for (int64_t i = 0; i < width; i += 16) most = _mm512_max_ps(_mm512_load_ps(s + i), most);
    const float largest = _mm512_reduce_max_ps(most);
    const __m512 shift = _mm512_set1_ps(largest);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) {
        const __m512 weight = wide_exponential(_mm512_sub_ps(_mm512_load_ps(s + i), shift));
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

static void wide_attention_begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, wide = wide_of(d);
    memset(to->q, 0, (size_t)(rows * wide) * sizeof(float));
    memset(to->o, 0, (size_t)(rows * wide) * sizeof(float));
    for (int64_t row = 0; row < rows; row++) {
        const float *from = a->q + (block[0] + row / a->group) * a->stride + (head * a->group + row % a->group) * d;
        for (int64_t i = 0; i < d; i++) to->q[row * wide + placed(a->format, i)] = from[i] * a->scale;
        if (digits_in(a)) to->q_step[row] = to_16_bits(to->q + row * wide, wide, to->few_q + row * wide);
        to->m[row] = a->sinks ? a->sinks[head * a->group + row % a->group] : -INFINITY;
        to->l[row] = a->sinks ? 1 : 0;
    }
}

static void wide_attention_look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of,
                                   int64_t start, int64_t after, float *room) {
    const int64_t d = a->head_dim, size = a->page_size, width = whole(size, 16), wide = wide_of(d);
    const int64_t tokens = block[1], position = block[2], rows = tokens * a->group;
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    const int digits = digits_in(a), few = rows <= FEW_WIDE;
    const int64_t chunk = one || few ? size : CHUNK, left = position + tokens - start, keys = left < size ? left : size;
    const int64_t looked_at = whole(keys, 16);
    const int64_t first = first_vector(a, block, kv_head, start);
    const float *k_scale = (const float *)a->part[0][1] + first, *v_scale = (const float *)a->part[1][1] + first;
    const WideFloats *stored = WIDE_FORMATS[a->format], *floats = few ? stored : &wide_attention_plain;
    const int64_t step = few ? 1 : numbers_at_once(a->format);  // what is made plain is filled up
    const int64_t columns = whole(a->value_dim, step), numbers = whole(d, step);
    float *s = room, *w_step = s + rows * width, *tiles = w_step + whole(rows, 16);
    int8_t *digits_room = (int8_t *)tiles;
    int16_t *weights = (int16_t *)(tiles + size * wide);
    const Vector plain = {tiles, 0};
    const int8_t *k_digits = 0;
    Soon soon = one ? asked_soon(a, 0, first, 0, after) : asked_soon(a, 0, first, 1, first);
    if (digits) {
        k_digits = wide_digits_of(a, 0, first, keys, digits_room);
#define SCORES(R, ...)                                                                                                 \
    wide_score_digits(R, of->few_q + row * wide, wide, of->q_step + row, k_digits, k_scale, d, keys, s + row * width,  \
                      width, &soon)
        BY_WIDE_ROWS(rows, 4, SCORES, 0)
#undef SCORES
    } else
        for (int64_t key = 0; key < keys; key += chunk) {
            const int64_t some = keys - key < chunk ? keys - key : chunk;
            const Vector k = vectors(a, 0, first + key);
            if (!few) stored->make_plain(k, d, some, tiles);
            floats->scores(of->q, few ? k : plain, numbers, rows, some, s + key, width, &soon);
        }
    for (int64_t row = 0; row < rows; row++) {
        const int64_t place = position + row / a->group, last = place + 1 - start < keys ? place + 1 - start : keys;
        const int64_t oldest_here = oldest_seen(a->window, place);
        const int64_t begins = oldest_here > start ? oldest_here - start : 0;
        float *row_s = s + row * width;
        if (a->cap > 0) wide_soft_cap(row_s, looked_at, a->cap);
        wide_soften(row_s, looked_at, begins, last, of->o + row * wide, wide, of->m + row, of->l + row);
        if (digits) w_step[row] = wide_weights(row_s, keys, looked_at, v_scale, weights + row * width);
    }
    if (!one) soon = asked_soon(a, 1, first, 0, after);
    if (digits) {
        const int8_t *v_digits = one ? k_digits : wide_digits_of(a, 1, first, keys, digits_room);
#define SUMS(R, ...)                                                                                                   \
    wide_add_digits(R, weights + row * width, width, w_step + row, v_digits, d, a->value_dim, keys,                    \
                    of->o + row * wide, &soon)
        BY_WIDE_ROWS(rows, 6, SUMS, 0)
#undef SUMS
    } else
        for (int64_t key = 0; key < keys; key += chunk) {
            const int64_t some = keys - key < chunk ? keys - key : chunk;
            const Vector v = vectors(a, 1, first + key);
            if (!few && !one) stored->make_plain(v, d, some, tiles);
            floats->outputs(s + key, width, few ? v : plain, numbers, columns, rows, some, of->o, &soon);
        }
}

static void wide_attention_end(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, heads = a->kv_heads * a->shares * a->group;
    for (int64_t row = 0; row < rows; row++) {
        float *to = a->out + ((block[0] + row / a->group) * heads + head * a->group + row % a->group) * d;
        const float *o = of->o + row * wide_of(d), all = of->l[row];
        for (int64_t i = 0; i < a->value_dim; i++) to[i] = o[placed(a->format, i)] / all;
        memset(to + a->value_dim, 0, (size_t)(d - a->value_dim) * sizeof(float));
    }
}

const Way wide_attention = {wide_attention_begin, wide_attention_look_at, wide_attention_end};

#ifdef __clang__
#pragma clang attribute pop
#endif
