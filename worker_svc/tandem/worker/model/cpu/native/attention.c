// Causal attention over pages, in fp32.
//
// A query looks at one page of keys after the other, from the first on that it sees, with a softmax in progress:
//
//     m' = max(m, max s)    s = scale * q . k of the keys that it sees, or cap * tanh(that / cap)
//     p  = exp(s - m')
//     l  = l exp(m - m') + sum p
//     o  = o exp(m - m') + p . v         the answer is o / l
//
// A score's sum runs over 8 lanes and then across them, o's over the keys in their order. What a query does not see in a
// page adds nothing to l and o. So its numbers are the same with any queries beside it, in a decode as in a prefill.
//
// Work comes in blocks of consecutive tokens of one sequence; a block's queries of one kv head are `rows` here.

#include "attention_digits.h"
#include "operations.h"

// Sixteen e4m3, the last eight of which may be none, as fp32. Their bits are those of fp16 but for the exponent's bias,
// which is 8 less, and for NaN.
INLINE void from_float8(const uint8_t *from, const int whole, float *to) {
    const __m128i codes = whole ? _mm_loadu_si128((const __m128i *)from) : _mm_loadl_epi64((const __m128i *)from);
    const __m256i wide = _mm256_cvtepi8_epi16(codes), size = _mm256_set1_epi16(0x7f);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(wide, size), size);
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
    const __m256i all = _mm256_or_si256(half, nan);
    const __m256 bias = _mm256_set1_ps(256.0f);
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(all)), bias));
    if (whole) _mm256_storeu_ps(to + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(all, 1)), bias));
}

// `keys` vectors of one page and head, from number `first` of the pages on, as fp32: where they lie, or in `room`.
INLINE const float *vectors(const Attention *a, const int which, int64_t first, int64_t keys, float *room) {
    const int64_t d = a->head_dim;
    const void *numbers = a->part[which][0], *constants = a->part[which][1];
    if (a->format == FP32) return (const float *)numbers + first * d;
    if (a->format == BF16 || a->format == FP16) {
        const uint16_t *from = (const uint16_t *)numbers + first * d;
        for (int64_t i = 0; i < keys * d; i += 8) {
            const __m128i raw = _mm_loadu_si128((const __m128i *)(from + i));
            const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16);
            _mm256_storeu_ps(room + i, a->format == BF16 ? _mm256_castsi256_ps(wide) : _mm256_cvtph_ps(raw));
        }
    } else if (a->format == FP8) {
        const uint8_t *from = (const uint8_t *)numbers + first * d;
        int64_t i = 0;
        for (; i + 16 <= keys * d; i += 16) from_float8(from + i, 1, room + i);
        if (i < keys * d) from_float8(from + i, 0, room + i);
    } else {
        const int64_t group = d % 32 ? d : 32, groups = d / group;
        const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), digit = _mm256_set1_epi32(15);
        for (int64_t part = 0; part < keys * groups; part++) {
            const uint8_t *from = (const uint8_t *)numbers + (first * groups + part) * group / 2;
            const float *scale = (const float *)constants + (first + part / groups) * 2 * groups + part % groups;
            const __m256 step = _mm256_set1_ps(scale[0]), low = _mm256_set1_ps(scale[groups]);
            for (int64_t i = 0; i < group; i += 8) {
                int32_t four;
                memcpy(&four, from + i / 2, sizeof four);
                const __m256i wide = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(four), shifts), digit);
                const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(wide), step);
                _mm256_storeu_ps(room + part * group + i, _mm256_add_ps(scaled, low));
            }
        }
    }
    return room;
}

INLINE void score_tile(const int rows, const int keys, const float *q, const float *k, int64_t d, float *s,
                       int64_t width) {
    __m256 sum[QUERIES][KEYS];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < KEYS; n++) sum[r][n] = _mm256_setzero_ps();
    for (int64_t i = 0; i < d; i += 8) {
        __m256 key[KEYS];
        for (int n = 0; n < keys; n++) key[n] = _mm256_loadu_ps(k + n * d + i);
        for (int r = 0; r < rows; r++)
            for (int n = 0; n < keys; n++)
                sum[r][n] = _mm256_fmadd_ps(key[n], _mm256_loadu_ps(q + r * d + i), sum[r][n]);
    }
    for (int r = 0; r < rows; r++) {
        const __m128 scores = four_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        if (keys == KEYS) _mm_storeu_ps(s + r * width, scores);
        else s[r * width] = _mm_cvtss_f32(scores);
    }
}

INLINE void score_rows(const int rows, const float *q, const float *k, int64_t d, int64_t keys, float *s,
                       int64_t width) {
    int64_t key = 0;
    for (; key + KEYS <= keys; key += KEYS) score_tile(rows, KEYS, q, k + key * d, d, s + key, width);
    for (; key < keys; key++) score_tile(rows, 1, q, k + key * d, d, s + key, width);
}

INLINE void output_tile(const int rows, const int vectors, const float *p, int64_t width, const float *v, int64_t d,
                        int64_t keys, float *o) {
    __m256 sum[OUTPUTS][2];
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) sum[r][n] = _mm256_loadu_ps(o + r * d + 8 * n);
    for (int64_t key = 0; key < keys; key++) {
        __m256 value[2];
        for (int n = 0; n < vectors; n++) value[n] = _mm256_loadu_ps(v + key * d + 8 * n);
        for (int r = 0; r < rows; r++) {
            const __m256 weight = _mm256_broadcast_ss(p + r * width + key);
            for (int n = 0; n < vectors; n++) sum[r][n] = _mm256_fmadd_ps(weight, value[n], sum[r][n]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) _mm256_storeu_ps(o + r * d + 8 * n, sum[r][n]);
}

INLINE void output_rows(const int rows, const float *p, int64_t width, const float *v, int64_t d, int64_t columns,
                        int64_t keys, float *o) {
    int64_t i = 0;
    for (; i + 16 <= columns; i += 16) output_tile(rows, 2, p, width, v + i, d, keys, o + i);
    if (i < columns) output_tile(rows, 1, p, width, v + i, d, keys, o + i);
}

// s [width] = cap * tanh(s / cap), where tanh(x) = 1 - 2 / (1 + e^2x).
INLINE void soft_cap(float *s, int64_t width, float cap) {
    const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f), most = _mm256_set1_ps(cap);
    const __m256 doubled = _mm256_set1_ps(2.0f / cap);
    for (int64_t i = 0; i < width; i += 8) {
        const __m256 power = exponential(_mm256_mul_ps(_mm256_loadu_ps(s + i), doubled));
        const __m256 tanh = _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(one, power)));
        _mm256_storeu_ps(s + i, _mm256_mul_ps(tanh, most));
    }
}

// One row's scores s [width] become weights; keys from `first` to before `last` are seen. Its sums o [d], m and l follow.
INLINE void soften(float *s, int64_t width, int64_t first, int64_t last, float *o, int64_t d, float *m, float *l) {
    for (int64_t i = 0; i < first && i < width; i++) s[i] = -INFINITY;
    for (int64_t i = last > 0 ? last : 0; i < width; i++) s[i] = -INFINITY;
    if (first >= last) {
        memset(s, 0, (size_t)width * sizeof(float));
        return;
    }
    __m256 most = _mm256_set1_ps(*m);
    for (int64_t i = 0; i < width; i += 8) most = _mm256_max_ps(_mm256_loadu_ps(s + i), most);
    float lanes[8], largest;
    _mm256_storeu_ps(lanes, most);
    largest = lanes[0];
    for (int i = 1; i < 8; i++) largest = lanes[i] > largest ? lanes[i] : largest;
    const __m256 shift = _mm256_set1_ps(largest);
    __m256 sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < width; i += 8) {
        const __m256 weight = exponential(_mm256_sub_ps(_mm256_loadu_ps(s + i), shift));
        sum = _mm256_add_ps(sum, weight);
        _mm256_storeu_ps(s + i, weight);
    }
    if (largest > *m) {
        const __m256 shrink = exponential(_mm256_set1_ps(*m - largest));
        for (int64_t i = 0; i < d; i += 8) _mm256_storeu_ps(o + i, _mm256_mul_ps(_mm256_loadu_ps(o + i), shrink));
        *l *= _mm256_cvtss_f32(shrink);
        *m = largest;
    }
    *l += one_sum(sum);
}

// The first key that the query at a place sees: with a window, `window - 1` keys and its own; below 0, those of its own
// chunk of so many; with 0, all.
INLINE int64_t oldest_seen(int64_t window, int64_t place) {
    if (window < 0) return place / -window * -window;
    return window && place >= window ? place - window + 1 : 0;
}

// `head` counts pieces of work.
static void attend(const Attention *a, const int32_t *block, int64_t head, float *room) {
    const int64_t d = a->head_dim, kv_head = head / a->shares, size = a->page_size, width = (size + 7) / 8 * 8;
    const int64_t tokens = block[1], position = block[2], rows = tokens * a->group, wide = (d + 15) / 16 * 16;
    const int64_t heads = a->kv_heads * a->shares * a->group;
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    const int digits = a->format == INT8 || a->format == INT6;
    const int64_t chunk = one ? size : CHUNK;
    const int32_t *pages = a->tables + block[3] * a->width;
    float *q = room, *o = q + rows * d, *s = o + rows * d, *m = s + rows * width, *l = m + rows;
    float *q_step = l + rows, *w_step = q_step + rows, *tiles = w_step + rows;
    int8_t *key_digits = (int8_t *)tiles, *value_digits = key_digits + size * d;
    int16_t *few = (int16_t *)(tiles + size * d), *weights = few + rows * wide;
    const __m256 scale = _mm256_set1_ps(a->scale);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = a->q + (block[0] + row / a->group) * a->stride + (head * a->group + row % a->group) * d;
        for (int64_t i = 0; i < d; i += 8)
            _mm256_storeu_ps(q + row * d + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), scale));
        if (digits) {
            q_step[row] = to_16_bits(q + row * d, d, few + row * wide);
            memset(few + row * wide + d, 0, (size_t)(wide - d) * sizeof(int16_t));
        }
        m[row] = a->sinks ? a->sinks[head * a->group + row % a->group] : -INFINITY, l[row] = a->sinks ? 1 : 0;
    }
    memset(o, 0, (size_t)(rows * d) * sizeof(float));
    const int64_t oldest = oldest_seen(a->window, position);
    for (int64_t start = oldest / size * size; start < position + tokens; start += size) {
        const int64_t left = position + tokens - start, keys = left < size ? left : size;
        const int64_t looked_at = (keys + 7) / 8 * 8, first = (pages[start / size] * a->kv_heads + kv_head) * size;
        const float *k_scale = (const float *)a->part[0][1] + first, *v_scale = (const float *)a->part[1][1] + first;
        const int8_t *few_k = 0;
        const float *k = 0;
        if (digits) {
            few_k = digits_of(a, 0, first, keys, key_digits);
#define CALL(R) score_digits(R, few + row * wide, wide, q_step + row, few_k, k_scale, d, keys, s + row * width, width)
            BY_ROWS(rows, 3, CALL)
#undef CALL
        } else
            for (int64_t key = 0; key < keys; key += chunk) {
                const int64_t some = keys - key < chunk ? keys - key : chunk;
                k = vectors(a, 0, first + key, some, tiles);
#define CALL(R) score_rows(R, q + row * d, k, d, some, s + row * width + key, width)
                BY_ROWS(rows, 3, CALL)
#undef CALL
            }
        for (int64_t row = 0; row < rows; row++) {
            const int64_t place = position + row / a->group, last = place + 1 - start < keys ? place + 1 - start : keys;
            const int64_t oldest_here = oldest_seen(a->window, place);
            const int64_t begin = oldest_here > start ? oldest_here - start : 0;
            if (a->cap > 0) soft_cap(s + row * width, looked_at, a->cap);
            soften(s + row * width, looked_at, begin, last, o + row * d, d, m + row, l + row);
            if (digits) w_step[row] = scaled_weights(s + row * width, keys, looked_at, v_scale, weights + row * width);
        }
        if (digits) {
            const int8_t *few_v = one ? few_k : digits_of(a, 1, first, keys, value_digits);
#define CALL(R) add_digits(R, weights + row * width, width, w_step + row, few_v, d, a->value_dim, keys, o + row * d)
            BY_ROWS(rows, 6, CALL)
#undef CALL
        } else
            for (int64_t key = 0; key < keys; key += chunk) {
                const int64_t some = keys - key < chunk ? keys - key : chunk;
                const float *v = one ? k : vectors(a, 1, first + key, some, tiles);
#define CALL(R) output_rows(R, s + row * width + key, width, v, d, a->value_dim, some, o + row * d)
                BY_ROWS(rows, 6, CALL)
#undef CALL
            }
    }
    for (int64_t row = 0; row < rows; row++) {
        float *to = a->out + ((block[0] + row / a->group) * heads + head * a->group + row % a->group) * d;
        const __m256 whole = _mm256_set1_ps(l[row]);
        for (int64_t i = 0; i < d; i += 8)
            _mm256_storeu_ps(to + i, _mm256_div_ps(_mm256_loadu_ps(o + row * d + i), whole));
    }
}

// `most` is the largest number of tokens in a block. Returns 0, or 1 without memory.
int tandem_attention(const void *keys, const void *key_constants, const void *values, const void *value_constants,
                     int format, const int32_t *blocks, int64_t count, int64_t most, const int32_t *tables,
                     int64_t table_width, const float *q, int64_t stride, float *out, int64_t kv_heads, int64_t group,
                     int64_t shares, int64_t head_dim, int64_t value_dim, int64_t page_size, int64_t window,
                     float scale, float cap, const float *sinks, int threads) {
    const Attention a = {{{keys, key_constants}, {values, value_constants}},
                         format,
                         blocks,
                         tables,
                         table_width,
                         q,
                         stride,
                         out,
                         kv_heads,
                         group,
                         shares,
                         head_dim,
                         value_dim,
                         page_size,
                         window,
                         scale,
                         cap,
                         sinks};
    const int64_t rows = most * group, width = (page_size + 7) / 8 * 8, wide = (head_dim + 15) / 16 * 16;
    const int64_t numbers = rows * (2 * head_dim + width + 4 + (wide + width) / 2) + page_size * head_dim;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *room = malloc((size_t)numbers * sizeof(float));
        if (!room) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t job = 0; job < count * kv_heads * shares; job++)
            if (room) attend(&a, blocks + job / (kv_heads * shares) * 6, job % (kv_heads * shares), room);
        free(room);
    }
    return failed;
}
