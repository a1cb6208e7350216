// Layers with a gated delta rule (Yang et al. 2024, https://arxiv.org/abs/2412.06464), token by token.
//
//     x      = silu(convolution of the last `kernel` inputs q, k, v, each channel for itself)
//     q, k   = q / |q| / sqrt(key_dim), k / |k|
//     S      = decay S + k (beta (v - k (decay S)))      S [key_dim, value_dim] of each head, decay and beta by token
//     o      = q S
//     out    = o / sqrt(mean(o^2) + eps) * weight * silu(z)
//
// A sequence's state lies in a slot: S, the last inputs before its position (the convolution's *tail*), and a *journal*
// of the tokens behind it, which may still turn out to be wrong. A piece of work first repeats the `replayed` journal
// tokens that turned out to be right, then goes on with its own; the state after `commit` of them all stays in the slot,
// the tokens behind them become the journal. Token by token in one order, so that a sequence's bits depend neither on
// how it is cut nor on who is beside it; the columns of a state do not see each other, so that 32 of them stay in a
// core's first cache for all tokens.

#include "numbers.h"
#include "operations.h"

#define COLUMNS 32
#define MOST_KEYS 256

typedef struct {
    int64_t slot;   // -1: nothing is kept
    int64_t fresh;  // the state before is zero, whatever lies in the slot
    int64_t row, length, replayed, commit;
    int64_t place;  // of its first token in the room
    int64_t first_save, last_save;
} Work;

typedef struct {
    int64_t count, slot;  // the state after so many tokens goes to this slot, too
} Save;

INLINE __m256 silu(__m256 x) {
    const __m256 below = exponential(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), below));
}

// The inputs of channel `c` and the 7 behind it, at place i of tail, journal and new rows in a line.
INLINE const float *input(const Delta *d, const Work *w, const float *tail, int64_t i, int64_t c) {
    const int64_t kept = d->kernel - 1 + w->replayed;
    if (i >= kept) return d->mixed + (w->row + i - kept) * d->stride + c;
    return tail && !(w->fresh && i < d->kernel - 1) ? tail + i * d->channels + c : 0;
}

// Moves the tails: those of the slots that are saved to first, for their source is overwritten.
static void keep_inputs(const Delta *d, const Work *w, const Save *saves, const float *tail, int64_t c, int64_t width) {
    const int64_t line = (d->kernel - 1 + d->journal) * d->channels, all = w->replayed + w->length;
    for (int64_t n = w->first_save; n <= w->last_save; n++) {
        const int last = n == w->last_save;
        const int64_t count = last ? w->commit : saves[n].count, slot = last ? w->slot : saves[n].slot;
        const int64_t rows = d->kernel - 1 + (last ? all - w->commit : 0);
        float *to = d->tails + slot * line + c;
        for (int64_t i = 0; i < rows; i++, to += d->channels) {
            const float *from = input(d, w, tail, count + i, c);
            if (from) memmove(to, from, (size_t)width * sizeof(float));
            else memset(to, 0, (size_t)width * sizeof(float));
        }
    }
}

static void convolve(const Delta *d, const Work *w, const Save *saves, int64_t c, int64_t width) {
    const float *tail = w->slot < 0 ? 0 : d->tails + w->slot * (d->kernel - 1 + d->journal) * d->channels;
    for (int64_t at = c; at < c + width; at += 8)
        for (int64_t t = 0; t < w->replayed + w->length; t++) {
            __m256 sum = _mm256_setzero_ps();
            for (int64_t j = 0; j < d->kernel; j++) {
                const float *x = input(d, w, tail, t + j, at);
                if (x)
                    sum = _mm256_fmadd_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(d->filter + j * d->channels + at), sum);
            }
            _mm256_storeu_ps(d->room + (w->place + t) * (d->channels + 2 * d->heads) + at, silu(sum));
        }
    if (w->slot >= 0) keep_inputs(d, w, saves, tail, c, width);
}

// The decay and beta of each token and head.
static void make_gates(const Delta *d, const Work *w) {
    const int64_t width = d->channels + 2 * d->heads, all = w->replayed + w->length;
    float *journal = w->slot < 0 ? 0 : d->journals + w->slot * d->journal * 2 * d->heads;
    float *first = d->room + w->place * width + d->channels;
    const size_t bytes = (size_t)(2 * d->heads) * sizeof(float);
    for (int64_t t = 0; t < w->replayed; t++) memcpy(first + t * width, journal + t * 2 * d->heads, bytes);
    for (int64_t t = w->replayed; t < all; t++) {
        const float *b = d->gates + (w->row + t - w->replayed) * d->gates_stride, *a = b + d->heads;
        float *to = first + t * width;
        for (int64_t h = 0; h < d->heads; h++) {
            const float x = a[h] + d->bias[h];
            to[h] = expf(d->rate[h] * (x > 20 ? x : log1pf(expf(x))));
            to[d->heads + h] = 1 / (1 + expf(-b[h]));
        }
    }
    if (!journal) return;
    for (int64_t t = w->commit; t < all; t++)
        memcpy(journal + (t - w->commit) * 2 * d->heads, first + t * width, bytes);
}

static void normalize(float *x, int64_t size, float factor) {
    __m256 squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    const __m256 by = _mm256_set1_ps(factor / sqrtf(one_sum(squares) + 1e-6f));
    for (int64_t i = 0; i < size; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), by));
}

// One token on `n` times 8 columns of a state s [keys, COLUMNS].
INLINE void step(const int n, float *s, int64_t keys, const float *q, const float *k, const float *v, float decay,
                 float beta, float *out) {
    __m256 even[4], odd[4], delta[4];
    for (int i = 0; i < n; i++) even[i] = odd[i] = _mm256_setzero_ps();
    for (int64_t row = 0; row < keys; row += 2) {
        const __m256 one = _mm256_set1_ps(k[row]), other = _mm256_set1_ps(k[row + 1]);
        for (int i = 0; i < n; i++) {
            even[i] = _mm256_fmadd_ps(one, _mm256_load_ps(s + row * COLUMNS + 8 * i), even[i]);
            odd[i] = _mm256_fmadd_ps(other, _mm256_load_ps(s + (row + 1) * COLUMNS + 8 * i), odd[i]);
        }
    }
    const __m256 fade = _mm256_set1_ps(decay), learn = _mm256_set1_ps(beta);
    for (int i = 0; i < n; i++) {
        const __m256 known = _mm256_mul_ps(fade, _mm256_add_ps(even[i], odd[i]));
        delta[i] = _mm256_mul_ps(learn, _mm256_sub_ps(_mm256_loadu_ps(v + 8 * i), known));
        even[i] = _mm256_setzero_ps();
    }
    for (int64_t row = 0; row < keys; row++) {
        const __m256 key = _mm256_set1_ps(k[row]), query = _mm256_set1_ps(q[row]);
        for (int i = 0; i < n; i++) {
            float *at = s + row * COLUMNS + 8 * i;
            const __m256 now = _mm256_fmadd_ps(key, delta[i], _mm256_mul_ps(fade, _mm256_load_ps(at)));
            _mm256_store_ps(at, now);
            even[i] = _mm256_fmadd_ps(query, now, even[i]);
        }
    }
    if (!out) return;
    for (int i = 0; i < n; i++) _mm256_storeu_ps(out + 8 * i, even[i]);
}

static void recur(const Delta *d, const Work *w, const Save *saves, int64_t head, int64_t column) {
    const int64_t keys = d->key_dim, values = d->value_dim, width = d->channels + 2 * d->heads;
    const int64_t some = values - column < COLUMNS ? values - column : COLUMNS, size = keys * values;
    const size_t bytes = (size_t)some * sizeof(float);
    float s[MOST_KEYS * COLUMNS] __attribute__((aligned(32)));
    float *kept = w->slot < 0 ? 0 : d->states + (w->slot * d->heads + head) * size + column;
    for (int64_t i = 0; i < keys; i++)
        if (kept && !w->fresh) memcpy(s + i * COLUMNS, kept + i * values, bytes);
        else memset(s + i * COLUMNS, 0, bytes);
    const int64_t all = w->replayed + w->length, key_head = head / (d->heads / d->key_heads);
    for (int64_t t = 0; t <= all; t++) {
        if (kept && t == w->commit)
            for (int64_t i = 0; i < keys; i++) memcpy(kept + i * values, s + i * COLUMNS, bytes);
        for (int64_t n = w->first_save; n < w->last_save; n++)
            if (saves[n].count == t)
                for (int64_t i = 0; i < keys; i++)
                    memcpy(d->states + (saves[n].slot * d->heads + head) * size + column + i * values, s + i * COLUMNS,
                           bytes);
        if (t == all) break;
        const float *x = d->room + (w->place + t) * width;
        const float *q = x + key_head * keys, *k = q + d->key_heads * keys;
        const float *v = x + 2 * d->key_heads * keys + head * values + column;
        const float decay = x[d->channels + head], beta = x[d->channels + d->heads + head];
        float *out =
            t < w->replayed ? 0 : d->out + (w->row + t - w->replayed) * d->heads * values + head * values + column;
        switch (some / 8) {
        case 4: step(4, s, keys, q, k, v, decay, beta, out); break;
        case 3: step(3, s, keys, q, k, v, decay, beta, out); break;
        case 2: step(2, s, keys, q, k, v, decay, beta, out); break;
        default: step(1, s, keys, q, k, v, decay, beta, out);
        }
    }
}

// out [size] = o / sqrt(mean(o^2) + eps) * weight * silu(z), in place.
static void gated_norm(float *o, const float *z, const float *weight, int64_t size, float eps) {
    __m256 squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_loadu_ps(o + i);
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    const __m256 by = _mm256_set1_ps(1 / sqrtf(one_sum(squares) / (float)size + eps));
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(o + i), by), _mm256_loadu_ps(weight + i));
        _mm256_storeu_ps(o + i, _mm256_mul_ps(v, silu(_mm256_loadu_ps(z + i))));
    }
}

// One layer's step. channels, key_dim and value_dim are multiples of 8, key_dim is at most 256.
void tandem_delta_net(const Delta *d, const int64_t *works, int64_t count, const int64_t *saved) {
    const Work *work = (const Work *)works;
    const Save *saves = (const Save *)saved;
    const int64_t width = 64, blocks = (d->channels + width - 1) / width;
    const int64_t parts = (d->value_dim + COLUMNS - 1) / COLUMNS;
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) tokens += work[i].replayed + work[i].length;
    const int threads = tokens * d->channels > 32768 ? d->threads : 1;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count * (blocks + 1); i++) {
            const Work *w = work + i / (blocks + 1);
            const int64_t block = i % (blocks + 1), c = block * width;
            if (block == blocks) make_gates(d, w);
            else convolve(d, w, saves, c, d->channels - c < width ? d->channels - c : width);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tokens; i++) {
            float *x = d->room + i * (d->channels + 2 * d->heads);
            for (int64_t head = 0; head < d->key_heads; head++) {
                normalize(x + head * d->key_dim, d->key_dim, 1 / sqrtf((float)d->key_dim));
                normalize(x + (d->key_heads + head) * d->key_dim, d->key_dim, 1);
            }
        }
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count * d->heads * parts; i++)
            recur(d, work + i / (d->heads * parts), saves, i / parts % d->heads, i % parts * COLUMNS);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; i++)
            for (int64_t row = work[i].row; row < work[i].row + work[i].length; row++)
                for (int64_t head = 0; head < d->heads; head++)
                    gated_norm(d->out + (row * d->heads + head) * d->value_dim,
                               d->mixed + row * d->stride + d->channels + head * d->value_dim, d->norm, d->value_dim,
                               d->eps);
    }
}
