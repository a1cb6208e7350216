// Causal attention over pages, in fp32; attention_wide_twos.c has bf16 its own way.
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
#include "attention_floats.h"
#include "operations.h"

static const Floats *const FORMATS[INT6 + 1] = {
    [FP32] = &fp32, [BF16] = &bf16, [FP16] = &fp16, [INT4] = &int4, [FP8] = &fp8};

// s [width] = cap * tanh(s / cap), where tanh(x) = 1 - 2 / (1 + e^2x). Of a small x that leaves few digits, and its
// series has them (https://www.netlib.org/cephes, tanhf): scores differ by little where a cap is 50.
INLINE void soft_cap(float *s, int64_t width, float cap) {
    const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f), most = _mm256_set1_ps(cap);
    const __m256 divided = _mm256_set1_ps(1.0f / cap), small = _mm256_set1_ps(0.625f * 0.625f);
    for (int64_t i = 0; i < width; i += 8) {
        const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(s + i), divided), square = _mm256_mul_ps(x, x);
        const __m256 power = exponential(_mm256_add_ps(x, x));
        const __m256 far = _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(one, power)));
        __m256 near = _mm256_set1_ps(-5.70498872745e-3f);
        near = _mm256_fmadd_ps(near, square, _mm256_set1_ps(2.06390887954e-2f));
        near = _mm256_fmadd_ps(near, square, _mm256_set1_ps(-5.37397155531e-2f));
        near = _mm256_fmadd_ps(near, square, _mm256_set1_ps(1.33314422036e-1f));
        near = _mm256_fmadd_ps(near, square, _mm256_set1_ps(-3.33332819422e-1f));
        near = _mm256_fmadd_ps(_mm256_mul_ps(near, square), x, x);
        const __m256 tanh = _mm256_blendv_ps(far, near, _mm256_cmp_ps(square, small, _CMP_LT_OQ));
        _mm256_storeu_ps(s + i, _mm256_mul_ps(tanh, most));
    }
}

// One row's scores s [width] become weights; Its sums o [d], m and l follow.
INLINE void soften(float *s, int64_t width, Seen seen, float *o, int64_t d, float *m, float *l) {
    hide(s, width, seen);
    if (seen.first >= seen.last) {
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

// `head` counts pieces of work.
static void begin(const Attention *a, const int32_t *block, int64_t head, const Piece *to) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, wide = whole(d, 16);
    const __m256 scale = _mm256_set1_ps(a->scale * bias_of(a));
    for (int64_t row = 0; row < rows; row++) {
        const float *from = a->q + (block[0] + row / a->group) * a->stride + (head * a->group + row % a->group) * d;
        for (int64_t i = 0; i < d; i += 8)
            _mm256_storeu_ps(to->q + row * d + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), scale));
        if (digits_in(a)) {
            to->q_step[row] = to_16_bits(to->q + row * d, d, to->few_q + row * wide);
            memset(to->few_q + row * wide + d, 0, (size_t)(wide - d) * sizeof(int16_t));
        }
        to->m[row] = a->sinks ? a->sinks[head * a->group + row % a->group] : -INFINITY;
        to->l[row] = a->sinks ? 1 : 0;
    }
    memset(to->o, 0, (size_t)(rows * d) * sizeof(float));
}

// One page, from position `start` on. What is at `after` is asked for meanwhile.
static void look_at(const Attention *a, const int32_t *block, int64_t kv_head, const Piece *of, int64_t start,
                    int64_t after, float *room) {
    const int64_t d = a->head_dim, size = a->page_size, width = (size + 7) / 8 * 8;
    const int64_t tokens = block[1], position = block[2], rows = tokens * a->group, wide = whole(d, 16);
    const int one = a->part[0][0] == a->part[1][0];  // keys and values are the same vectors
    const int digits = digits_in(a), few = rows <= FEW;
    const int64_t chunk = one || few ? size : CHUNK, left = position + tokens - start, keys = left < size ? left : size;
    const int64_t looked_at = (keys + 7) / 8 * 8;
    const int64_t first = first_vector(a, block, kv_head, start);
    const float *k_scale = (const float *)a->part[0][1] + first, *v_scale = (const float *)a->part[1][1] + first;
    const Floats *stored = FORMATS[a->format], *floats = few ? stored : &fp32;
    float *s = room, *w_step = s + rows * width, *tiles = w_step + whole(rows, 16);
    int8_t *key_digits = (int8_t *)tiles, *value_digits = key_digits + size * d;
    int16_t *weights = (int16_t *)(tiles + size * d);
    const Vector plain = {tiles, 0};
    const int8_t *few_k = 0;
    Ahead ahead = one ? asked(a, 0, after) : asked(a, 1, first);
    if (digits) {
        few_k = digits_of(a, 0, first, keys, key_digits);
#define CALL(R)                                                                                                        \
    score_digits(R, of->few_q + row * wide, wide, of->q_step + row, few_k, k_scale, d, keys, s + row * width, width,   \
                 &ahead)
        BY_ROWS(rows, 3, CALL)
#undef CALL
    } else
        for (int64_t key = 0; key < keys; key += chunk) {
            const int64_t some = keys - key < chunk ? keys - key : chunk;
            const Vector k = vectors(a, 0, first + key);
            if (!few) stored->make_plain(k, d, some, tiles);
            floats->scores(of->q, few ? k : plain, d, rows, some, s + key, width, &ahead);
        }
    for (int64_t row = 0; row < rows; row++) {
        const Seen seen = seen_by(a, block, row, start, keys);
        if (a->cap > 0) soft_cap(s + row * width, looked_at, a->cap);
        soften(s + row * width, looked_at, seen, of->o + row * d, d, of->m + row, of->l + row);
        if (digits) w_step[row] = scaled_weights(s + row * width, keys, looked_at, v_scale, weights + row * width);
    }
    if (!one) ahead = asked(a, 0, after);
    if (digits) {
        const int8_t *few_v = one ? few_k : digits_of(a, 1, first, keys, value_digits);
#define CALL(R)                                                                                                        \
    add_digits(R, weights + row * width, width, w_step + row, few_v, d, a->value_dim, keys, of->o + row * d, &ahead)
        BY_ROWS(rows, 6, CALL)
#undef CALL
    } else
        for (int64_t key = 0; key < keys; key += chunk) {
            const int64_t some = keys - key < chunk ? keys - key : chunk;
            const Vector v = vectors(a, 1, first + key);
            if (!few && !one) stored->make_plain(v, d, some, tiles);
            floats->outputs(s + key, width, few ? v : plain, d, a->value_dim, rows, some, of->o, &ahead);
        }
}

static void end(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, heads = a->kv_heads * a->shares * a->group;
    for (int64_t row = 0; row < rows; row++) {
        float *to = a->out + ((block[0] + row / a->group) * heads + head * a->group + row % a->group) * d;
        const __m256 whole = _mm256_set1_ps(of->l[row] / bias_of(a));
        for (int64_t i = 0; i < d; i += 8)
            _mm256_storeu_ps(to + i, _mm256_div_ps(_mm256_loadu_ps(of->o + row * d + i), whole));
    }
}

static const Way narrow = {begin, look_at, end};

// Numbers of keys that lay apart and of their constants.
INLINE int64_t gathered_of(const Attention *a) {
    const int64_t d = a->head_dim, size = a->page_size;
    return whole(size * length_of(a->format, d), 64) / 4 + whole(size * constants_of(a->format, d), 16);
}

// Puts the keys of one page of a block side by side, of which there is one head. The next ones are asked for meanwhile.
static void gather(const Attention *a, const int32_t *block, int64_t start, const Vector *to) {
    const int64_t size = a->page_size, left = block[2] + block[1] - start, keys = left < size ? left : size;
    const int64_t length = length_of(a->format, a->head_dim), constants = constants_of(a->format, a->head_dim);
    const int32_t *places = a->tables + block[3] * a->width + start;
    const char *from = a->part[0][0];
    for (int64_t key = 0; key < keys; key++) {
        if (key + size < left) ask_for_all(from + places[key + size] * length, length);
        memcpy((char *)to->numbers + key * length, from + places[key] * length, (size_t)length);
        if (constants)
            memcpy((float *)to->constants + key * constants, (const float *)a->part[0][1] + places[key] * constants,
                   (size_t)constants * sizeof(float));
    }
}

// Pieces from `from` to `to` of a block, together: page by page, whose heads lie side by side.
static void attend(const Attention *all, const Way *way, const int32_t *block, int64_t from, int64_t to, float *room) {
    const int64_t size = all->page_size, rows = block[1] * all->group, beyond = block[2] + block[1];
    const int32_t *pages = all->tables + block[3] * all->width;
    float *rest = room + (to - from) * numbers_of(rows, all->head_dim);
    const Vector side_by_side = {rest, rest + whole(size * length_of(all->format, all->head_dim), 64) / 4};
    const Attention *a = all;
    Attention gathered = *all;
    Piece pieces[TOGETHER];
    if (all->apart) {
        for (int n = 0; n < 2; n++)
            gathered.part[n][0] = side_by_side.numbers, gathered.part[n][1] = side_by_side.constants;
        gathered.once = 0;
        rest += gathered_of(all);
        a = &gathered;
    }
    for (int64_t head = from; head < to; head++) {
        pieces[head - from] = piece(room + (head - from) * numbers_of(rows, a->head_dim), rows, a->head_dim);
        way->begin(a, block, head, pieces + head - from);
    }
    for (int64_t start = oldest_seen(a->window, block[2]) / size * size; start < beyond; start += size) {
        if (a->apart) gather(all, block, start, &side_by_side);
        for (int64_t head = from; head < to; head++) {
            // What comes next: the next head of this page, or the first one of the next page.
            const int ends = head + 1 == to, next = ends && start + size < beyond;
            const int64_t page = a->apart ? 0 : pages[start / size + next],
                          beside = ends ? next ? from : head : head + 1;
            const int64_t after = a->apart ? 0 : (page * a->kv_heads + beside / a->shares) * size;
            way->look_at(a, block, head / a->shares, pieces + head - from, start, after, rest);
        }
    }
    for (int64_t head = from; head < to; head++) way->end(a, block, head, pieces + head - from);
}

INLINE int64_t at_once(int64_t rows, int64_t pieces) {
    const int64_t most = rows <= ROWS_TOGETHER ? TOGETHER : 1;
    return pieces < most ? pieces : most;
}

static int wide_allowed = 1;

// Whether processors with AVX-512 and VNNI attend by it from now on, and whether this is one. The bits differ.
int tandem_allow_wide_attention(int allowed) {
    wide_allowed = allowed;
    return wide_is_there();
}

// `most` is the largest number of tokens in a block. Keys that lie `apart` have one head and are values too. Returns 0, or
// 1 without memory.
int tandem_attention(const void *keys, const void *key_constants, const void *values, const void *value_constants,
                     int format, const int32_t *blocks, int64_t count, int64_t most, const int32_t *tables,
                     int64_t table_width, int apart, const float *q, int64_t stride, float *out, int64_t kv_heads,
                     int64_t group, int64_t shares, int64_t head_dim, int64_t value_dim, int64_t page_size,
                     int64_t window, float scale, float cap, const float *sinks, int threads) {
    const Attention a = {{{keys, key_constants}, {values, value_constants}},
                         format,
                         blocks,
                         tables,
                         table_width,
                         apart,
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
                         sinks,
                         count == 1};
    // Each thread that has pieces of a block puts the block's keys side by side for itself.
    const int whole_blocks = apart && count >= 2 * threads;
    const int64_t rows = most * group, pieces = kv_heads * shares;
    const int64_t share = whole_blocks ? pieces : (pieces + threads - 1) / threads;
    const int64_t few = numbers_of(rows < ROWS_TOGETHER ? rows : ROWS_TOGETHER, head_dim);
    const int64_t several = at_once(ROWS_TOGETHER, share) * few, many = numbers_of(rows, head_dim);
    const int64_t numbers =
        (several > many ? several : many) + room_of(rows, head_dim, page_size) + (apart ? gathered_of(&a) : 0);
    const int64_t parts = (pieces + share - 1) / share;
    const int there = format == FP8 ? wide_fp8_is_there() : wide_is_there();
    // The same with any number of queries: their bits differ.
    const Way *wide = digits_in(&a) || (format == INT4 && head_dim % 128 == 0) ? &wide_attention_digits
                      : format == BF16 && wide_twos_is_there()                 ? &wide_attention_twos
                                                                               : &wide_attention;
    const Way *way = wide_allowed && there ? wide : &narrow;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *room = aligned_alloc(64, (size_t)whole(numbers, 16) * sizeof(float));
        if (!room) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t job = 0; job < count * parts; job++) {
            const int32_t *block = blocks + job / parts * 6;
            const int64_t first = job % parts * share, last = first + share < pieces ? first + share : pieces;
            const int64_t step = at_once(block[1] * group, share);
            for (int64_t head = first; room && head < last; head += step)
                attend(&a, way, block, head, head + step < last ? head + step : last, room);
        }
        free(room);
    }
    return failed;
}
