// Causal attention over pages, in fp32; attention_wide_twos.h has bf16, fp8 and int4 its own way.
//
// A query looks at one page of keys after the other, from the first on that it sees, with a softmax in progress:
//
//     m' = max(m, max s)    s = scale * q . k of the keys that it sees, or cap * tanh(that / cap)
//     p  = exp(s - m')
//     l  = l exp(m - m') + sum p
//     o  = o exp(m - m') + p . v         the answer is o / l
//
// So for each STRETCH of keys by itself, from -inf and zeros on; the stretches are then added up in their order by the same
// rule, whoever has looked at them.
//
// A score's sum runs over 8 lanes and then across them, o's over the keys in their order. What a query does not see in a
// page adds nothing to l and o. So its numbers are the same with any queries beside it, in a decode as in a prefill.
//
// Work comes in blocks of consecutive tokens of one sequence; a block's queries of one kv head are `rows` here.

#include "attention_digits.h"
#include "attention_floats.h"
#include "operations.h"
#include "prefetch.h"
#include "shares.h"
#include "team.h"

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
        const float *from = query_at(a, block, head, row);
        for (int64_t i = 0; i < d; i += 8)
            _mm256_storeu_ps(to->q + row * d + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), scale));
        if (digits_in(a)) {
            to->q_step[row] = to_16_bits(to->q + row * d, d, to->few_q + row * wide);
            memset(to->few_q + row * wide + d, 0, (size_t)(wide - d) * sizeof(int16_t));
        }
    }
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
        soften(s + row * width, looked_at, seen, of->sums.o + row * d, d, of->sums.m + row, of->sums.l + row * LANES);
        if (digits) w_step[row] = scaled_weights(s + row * width, keys, looked_at, v_scale, weights + row * width);
    }
    if (!one) ahead = asked(a, 0, after);
    if (digits) {
        const int8_t *few_v = one ? few_k : digits_of(a, 1, first, keys, value_digits);
#define CALL(R)                                                                                                        \
    add_digits(R, weights + row * width, width, w_step + row, few_v, d, a->value_dim, keys, of->sums.o + row * d,      \
               &ahead)
        BY_ROWS(rows, 6, CALL)
#undef CALL
    } else
        for (int64_t key = 0; key < keys; key += chunk) {
            const int64_t some = keys - key < chunk ? keys - key : chunk;
            const Vector v = vectors(a, 1, first + key);
            if (!few && !one) stored->make_plain(v, d, some, tiles);
            floats->outputs(s + key, width, few ? v : plain, d, a->value_dim, rows, some, of->sums.o, &ahead);
        }
}

static void end(const Attention *a, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group;
    for (int64_t row = 0; row < rows; row++) {
        float *to = answer_at(a, block, head, row);
        const __m256 whole = _mm256_set1_ps(of->sums.l[row * LANES] / bias_of(a));
        for (int64_t i = 0; i < d; i += 8)
            _mm256_storeu_ps(to + i, _mm256_div_ps(_mm256_loadu_ps(of->sums.o + row * d + i), whole));
    }
}

static int64_t as_they_are(int64_t d) { return d; }

static const Way narrow = {1, as_they_are, begin, look_at, end, 0, 0};

static void clear(const Way *way, int64_t rows, int64_t d, Sums to) {
    memset(to.o, 0, (size_t)(rows * way->apart(d)) * sizeof(float));
    memset(to.l, 0, (size_t)(rows * LANES) * sizeof(float));
    for (int64_t row = 0; row < rows; row++) to.m[row] = -INFINITY;
}

INLINE int saw_nothing(const float *l) {
    for (int lane = 0; lane < LANES; lane++)
        if (l[lane] != 0) return 0;  // NaN too
    return 1;
}

INLINE void add_scaled(float *to, __m256 by, const float *from, __m256 from_by, int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 mine = _mm256_mul_ps(_mm256_loadu_ps(to + i), by);
        _mm256_storeu_ps(to + i, _mm256_fmadd_ps(_mm256_loadu_ps(from + i), from_by, mine));
    }
}

// What the next stretch has given is added.
static void join(const Way *way, int64_t rows, int64_t d, Sums to, Sums from) {
    const int64_t apart = way->apart(d);
    for (int64_t row = 0; row < rows; row++, to.o += apart, to.l += LANES, from.o += apart, from.l += LANES) {
        if (saw_nothing(from.l)) continue;
        if (saw_nothing(to.l)) {
            memcpy(to.o, from.o, (size_t)apart * sizeof(float));
            memcpy(to.l, from.l, LANES * sizeof(float));
            to.m[row] = from.m[row];
            continue;
        }
        const float most = from.m[row] > to.m[row] ? from.m[row] : to.m[row];
        const __m256 by = exponential(_mm256_set1_ps((to.m[row] - most) * way->unit));
        const __m256 from_by = exponential(_mm256_set1_ps((from.m[row] - most) * way->unit));
        add_scaled(to.o, by, from.o, from_by, apart);
        add_scaled(to.l, by, from.l, from_by, LANES);
        to.m[row] = most;
    }
}

// All that a piece's queries see is added up: one more score of a value that is 0, if there is one, and the answer.
static void finish(const Attention *a, const Way *way, const int32_t *block, int64_t head, const Piece *of) {
    const int64_t d = a->head_dim, rows = block[1] * a->group, apart = way->apart(d);
    for (int64_t row = 0; a->sinks && row < rows; row++) {
        const float sink = a->sinks[head * a->group + row % a->group] / way->unit;
        const float most = sink > of->sums.m[row] ? sink : of->sums.m[row];
        const __m256 by = exponential(_mm256_set1_ps((of->sums.m[row] - most) * way->unit)), none = _mm256_setzero_ps();
        add_scaled(of->sums.o + row * apart, by, of->sums.o + row * apart, none, apart);
        add_scaled(of->sums.l + row * LANES, by, of->sums.l + row * LANES, none, LANES);
        of->sums.l[row * LANES] += _mm256_cvtss_f32(exponential(_mm256_set1_ps((sink - most) * way->unit)));
    }
    way->end(a, block, head, of);
}

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

// Which of a block's pieces look at which stretches of keys.
typedef struct {
    const int32_t *block;
    int64_t from, to, first, last;
    float *kept;  // where the sums of each stretch of the block and piece go; or 0: these are all that it sees
} Job;

INLINE int64_t stretch_of(const Attention *a) {
    return STRETCH / a->page_size > 1 ? STRETCH / a->page_size * a->page_size : a->page_size;
}

// Those that a block sees: the first, and the one behind the last.
INLINE int64_t first_stretch(const Attention *a, const int32_t *block) {
    return oldest_seen(a->window, block[2]) / stretch_of(a);
}
INLINE int64_t last_stretch(const Attention *a, const int32_t *block) {
    return (block[2] + block[1] - 1) / stretch_of(a) + 1;
}

// Pieces of a job that are done together: page by page, whose heads lie side by side. `ready`: the room has their queries.
static void attend(const Attention *all, const Way *way, const Job *job, int64_t from, int64_t to, int ready,
                   float *room) {
    const int32_t *block = job->block;
    const int64_t size = all->page_size, d = all->head_dim, rows = block[1] * all->group, stretch = stretch_of(all);
    const int64_t oldest = oldest_seen(all->window, block[2]) / size * size, seen = block[2] + block[1];
    const int64_t beyond = job->last * stretch < seen ? job->last * stretch : seen;
    const int64_t queries = numbers_of_queries(rows, d), each = numbers_of_sums(rows, d);
    const int64_t first_kept = first_stretch(all, block), pieces_kept = all->kv_heads * all->shares;
    const int32_t *pages = all->tables + block[3] * all->width;
    float *totals = room + (to - from) * queries, *latest = totals + (to - from) * each;
    float *rest = latest + (to - from) * each;
    const Vector side_by_side = {rest, rest + whole(size * length_of(all->format, d), 64) / 4};
    const Attention *a = all;
    Attention gathered = *all;
    Piece pieces[TOGETHER];
    if (all->apart) {
        for (int n = 0; n < 2; n++)
            gathered.part[n][0] = side_by_side.numbers, gathered.part[n][1] = side_by_side.constants;
        if (all->into == INTO_FIRST_ONLY) gathered.into = INTO_FIRST;
        rest += gathered_of(all);
        a = &gathered;
    }
    for (int64_t head = from; head < to; head++) {
        pieces[head - from] = piece(room + (head - from) * queries, rows, d);
        if (!ready) way->begin(a, block, head, pieces + head - from);
    }
    if (way->prepare) way->prepare(rows);
    for (int64_t now = job->first; now < job->last; now++) {
        const int64_t begins = now * stretch > oldest ? now * stretch : oldest;
        const int64_t ends = (now + 1) * stretch < beyond ? (now + 1) * stretch : beyond;
        float *to_sums = now == job->first ? totals : latest;
        for (int64_t head = from; head < to; head++) {
            float *here = job->kept ? job->kept + ((now - first_kept) * pieces_kept + head) * each
                                    : to_sums + (head - from) * each;
            pieces[head - from].sums = sums(here, rows, d);
            clear(way, rows, d, pieces[head - from].sums);
        }
        for (int64_t start = begins; start < ends; start += size) {
            if (a->apart) gather(all, block, start, &side_by_side);
            for (int64_t head = from; head < to; head++) {
                // What comes next: the next head of this page, or the first one of the next page, which is most often
                // this thread's even if it is another job's.
                const int is_last = head + 1 == to, next = is_last && start + size < seen;
                const int64_t page = a->apart ? 0 : pages[start / size + next];
                const int64_t beside = is_last ? next ? from : head : head + 1;
                const int64_t after = a->apart ? 0 : (page * a->kv_heads + beside / a->shares) * size;
                way->look_at(a, block, head / a->shares, pieces + head - from, start, after, rest);
            }
        }
        for (int64_t head = from; !job->kept && head < to; head++) {
            const Sums total = sums(totals + (head - from) * each, rows, d);
            if (now > job->first) join(way, rows, d, total, pieces[head - from].sums);
            pieces[head - from].sums = total;
        }
    }
    if (way->release) way->release();
    for (int64_t head = from; !job->kept && head < to; head++) finish(a, way, block, head, pieces + head - from);
}

// The sums of a block's stretches become the answer of one of its pieces.
static void finish_kept(const Attention *a, const Way *way, const int32_t *block, int64_t head, float *kept) {
    const int64_t rows = block[1] * a->group, d = a->head_dim, each = numbers_of_sums(rows, d);
    const int64_t pieces = a->kv_heads * a->shares, stretches = last_stretch(a, block) - first_stretch(a, block);
    Piece of = {0};
    of.sums = sums(kept + head * each, rows, d);
    for (int64_t n = 1; n < stretches; n++)
        join(way, rows, d, of.sums, sums(kept + (n * pieces + head) * each, rows, d));
    finish(a, way, block, head, &of);
}

INLINE int64_t at_once(int64_t rows, int64_t pieces) {
    const int64_t most = rows <= ROWS_TOGETHER ? TOGETHER : 1;
    return pieces < most ? pieces : most;
}

// Numbers that a piece at work takes.
INLINE int64_t numbers_at_work(int64_t rows, int64_t d) {
    return numbers_of_queries(rows, d) + 2 * numbers_of_sums(rows, d);
}

// Each block's pieces, `share` to a job, or its stretches, `a_job` to a job: then `kept_by` has where each block's sums are
// kept, if they are. Returns how many jobs there are.
static int64_t make_jobs(const Attention *a, int64_t count, int64_t share, int64_t a_job, float *kept, Job *jobs,
                         float **kept_by) {
    const int64_t pieces = a->kv_heads * a->shares;
    int64_t made = 0;
    for (int64_t n = 0; n < count; n++) {
        const int32_t *block = a->blocks + 6 * n;
        const int64_t first = first_stretch(a, block), last = last_stretch(a, block);
        const int cut = last - first > a_job;
        kept_by[n] = cut ? kept : 0;
        for (int64_t from = first; from < last; from += a_job)
            for (int64_t head = 0; head < pieces; head += share) {
                const int64_t to = head + share < pieces ? head + share : pieces;
                const Job job = {block, head, to, from, from + a_job < last ? from + a_job : last, kept_by[n]};
                jobs[made++] = job;
            }
        if (cut) kept += (last - first) * pieces * numbers_of_sums(block[1] * a->group, a->head_dim);
    }
    return made;
}

// What threads share.
typedef struct {
    const Attention *a;
    const Way *way;
    const Job *jobs;
    Share *shares;
    float **kept_by;
    int64_t count, share, numbers;  // numbers: of the room of each thread
    int threads, *failed;
} Shared;

static void do_jobs(const void *of) {
    const Shared *s = of;
    float *room = aligned_alloc(64, (size_t)whole(s->numbers, 16) * sizeof(float));
    if (!room) {
        __atomic_store_n(s->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const Job *before = 0;
    for (int64_t n; (n = take_piece(s->shares, s->threads)) >= 0;) {
        const Job *job = s->jobs + n;
        const int64_t step = at_once(job->block[1] * s->a->group, s->share);
        const int same = before && before->block == job->block && before->from == job->from && before->to == job->to;
        const int ready = same && job->from + step >= job->to;
        for (int64_t head = job->from; head < job->to; head += step)
            attend(s->a, s->way, job, head, head + step < job->to ? head + step : job->to, ready, room);
        before = job;
    }
    free(room);
}

static void finish_all(const void *of) {
    const Shared *s = of;
    const int64_t pieces = s->a->kv_heads * s->a->shares, all = s->count * pieces;
#pragma omp for schedule(static) nowait
    for (int64_t n = 0; n < all; n++) {
        const int64_t block = n / pieces;
        if (s->kept_by[block]) finish_kept(s->a, s->way, s->a->blocks + 6 * block, n % pieces, s->kept_by[block]);
    }
}

static int wide_allowed = 1;

// Whether processors with AVX-512 and VNNI attend by it from now on, and whether this is one. The bits differ.
int tandem_allow_wide_attention(int allowed) {
    wide_allowed = allowed;
    return wide_is_there();
}

// Queries of a head of keys from which int8 is quicker as bf16 (benchmarks/pages/long_contexts.md).
#define TWOS_OF_INT8 3

// The same, from which what is bf16, or becomes it, or is whole numbers, is multiplied by AMX: with fewer, a decode over a long
// context would take longer.
#define AMX_QUERIES 4

// Of int4, and with vectors of whole 128 numbers, which are also served in whole numbers.
#define AMX_QUERIES_OF_INT4 2
#define AMX_QUERIES_OF_WHOLE_INT4 3

INLINE int in_whole_tiles(const Attention *a) { return a->head_dim % 64 == 0 && a->page_size % 64 == 0; }

// With AVX-512: the same way with any number of tokens, since the bits differ.
static const Way *wide_way(const Attention *a) {
    const int codes = wide_twos_codes_are_there(), tiles = wide_amx_is_there() && a->group >= AMX_QUERIES;
    const int of_digits = amx_of_digits_serves() && a->group >= AMX_QUERIES && in_whole_tiles(a);
    const Way *digits = of_digits ? &wide_attention_amx_digits : &wide_attention_digits;
    const int whole_int4 = a->head_dim % 128 == 0;
    const int64_t least_of_int4 = whole_int4 ? AMX_QUERIES_OF_WHOLE_INT4 : AMX_QUERIES_OF_INT4;
    switch (a->format) {
    case BF16:
        if (tiles) return &wide_attention_amx;
        return wide_twos_is_there() ? &wide_attention_twos : &wide_attention;
    case FP8:
        if (codes && tiles) return &wide_attention_amx_fp8;
        return codes ? &wide_attention_twos_fp8 : wide_fp8_is_there() ? &wide_attention : &narrow;
    case INT8:
        if (codes && a->group >= TWOS_OF_INT8 && !of_digits) return &wide_attention_twos_int8;
        return digits;
    case INT6: return digits;
    case INT4:
        if (codes && wide_amx_is_there() && in_whole_tiles(a) && a->group >= least_of_int4)
            return &wide_attention_amx_int4;
        if (whole_int4) return &wide_attention_digits;
        return codes ? &wide_attention_twos_int4 : &wide_attention;
    default: return &wide_attention;
    }
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
                         by_second_cache() ? INTO_SECOND
                         : count == 1      ? INTO_FIRST_ONLY
                                           : INTO_FIRST};
    const int64_t rows = most * group, pieces = kv_heads * shares;
    int64_t stretches = 0;
    for (int64_t n = 0; n < count; n++)
        stretches += last_stretch(&a, blocks + 6 * n) - first_stretch(&a, blocks + 6 * n);
    // Few rows look at much memory for each. A thread reads whole pages quicker than some heads of them, if there are
    // enough stretches for all; and each thread that has pieces of a block whose keys lie apart puts these side by side.
    const int by_stretches = threads > 1 && rows <= ROWS_TOGETHER && stretches >= STRETCHES_A_THREAD * threads;
    const int whole_blocks = by_stretches || (apart && count >= 2 * threads);
    const int64_t share = whole_blocks ? pieces : (pieces + threads - 1) / threads,
                  parts = (pieces + share - 1) / share;
    const int64_t a_job = !by_stretches                         ? stretches
                          : stretches > JOBS_A_THREAD * threads ? stretches / (JOBS_A_THREAD * threads)
                                                                : 1;
    const int64_t few_rows = rows < ROWS_TOGETHER ? rows : ROWS_TOGETHER;
    const int64_t several = at_once(few_rows, share) * numbers_at_work(few_rows, head_dim);
    const int64_t many = numbers_at_work(rows, head_dim);
    const int64_t numbers =
        (several > many ? several : many) + room_of(format, rows, head_dim, page_size) + (apart ? gathered_of(&a) : 0);
    const Way *way = wide_allowed && wide_is_there() ? wide_way(&a) : &narrow;
    const int64_t most_jobs = count * parts + (by_stretches ? stretches / a_job : 0);
    Job *jobs = malloc((size_t)most_jobs * sizeof(Job));
    float **kept_by = malloc((size_t)count * sizeof(float *));
    const int64_t each = numbers_of_sums(rows, head_dim);
    float *kept = by_stretches ? aligned_alloc(64, (size_t)(stretches * pieces * each) * sizeof(float)) : 0;
    int failed = !jobs || !kept_by || (by_stretches && !kept);
    const int64_t count_of_jobs = failed ? 0 : make_jobs(&a, count, share, a_job, kept, jobs, kept_by);
    Share shares_of_jobs[threads];
    give_shares(shares_of_jobs, threads, count_of_jobs);
    const Shared shared = {&a, way, jobs, shares_of_jobs, kept_by, count, share, numbers, threads, &failed};
    if (!failed) tandem_together(threads, do_jobs, &shared);
    if (!failed && by_stretches) tandem_together(threads, finish_all, &shared);
    free(jobs);
    free(kept_by);
    free(kept);
    return failed;
}
