// Layers with a gated delta rule (Yang et al. 2024, https://arxiv.org/abs/2412.06464), token by token.
//
//     x      = silu(convolution of the last `kernel` inputs q, k, v, each channel for itself)
//     q, k   = q / |q| / sqrt(rows), k / |k|
//     S      = decay S + k (beta (v - k (decay S)))      S [rows, columns] of each head, decay and beta by token
//     o      = q S
//     out    = o / sqrt(mean(o^2) + eps) * weight * silu(z)
//
// Kimi's (Kimi Team 2025, https://arxiv.org/abs/2510.26692) has a decay of each row of a state, and sigmoid(z); with a
// `least` of these logarithms a decay is exp(least sigmoid(-rate (a + bias))) instead of exp(rate softplus(a + bias)).

#include "recurrence.h"

// The decays of each token and head, one or one of each row, then its beta.
static void make_factors(const Recurrence *r, const Work *w) {
    const int64_t decays = decays_of_a_head(r);
    float *first = replay_factors(r, w);
    for (int64_t t = 0; t < w->length; t++) {
        const float *b = r->gates + (w->row + t) * r->gates_stride, *a = b + r->heads;
        float *to = first + (w->replayed + t) * (r->channels + r->factors);
        for (int64_t h = 0; h < r->heads; h++) {
            for (int64_t i = h * decays; i < (h + 1) * decays; i++)
                to[i] = r->least ? expf(r->least / (1 + expf(r->rate[h] * (a[i] + r->bias[i]))))
                                 : expf(r->rate[h] * softplus(a[i] + r->bias[i]));
            to[r->heads * decays + h] = r->beta_by / (1 + expf(-b[h]));
        }
    }
    keep_factors(r, w, first);
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

INLINE void step(const int n, float *s, int64_t rows, const float *q, const float *k, const float *v,
                 const float *decay, float beta, float skip, float *out) {
    (void)skip;
    __m256 even[4], odd[4], delta[4];
    for (int i = 0; i < n; i++) even[i] = odd[i] = _mm256_setzero_ps();
    for (int64_t row = 0; row < rows; row += 2) {
        const __m256 one = _mm256_set1_ps(k[row]), other = _mm256_set1_ps(k[row + 1]);
        for (int i = 0; i < n; i++) {
            even[i] = _mm256_fmadd_ps(one, _mm256_load_ps(s + row * COLUMNS + 8 * i), even[i]);
            odd[i] = _mm256_fmadd_ps(other, _mm256_load_ps(s + (row + 1) * COLUMNS + 8 * i), odd[i]);
        }
    }
    const __m256 fade = _mm256_set1_ps(*decay), learn = _mm256_set1_ps(beta);
    for (int i = 0; i < n; i++) {
        const __m256 known = _mm256_mul_ps(fade, _mm256_add_ps(even[i], odd[i]));
        delta[i] = _mm256_mul_ps(learn, _mm256_sub_ps(_mm256_loadu_ps(v + 8 * i), known));
        even[i] = _mm256_setzero_ps();
    }
    for (int64_t row = 0; row < rows; row++) {
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

INLINE void row_step(const int n, float *s, int64_t rows, const float *q, const float *k, const float *v,
                     const float *decay, float beta, float skip, float *out) {
    (void)skip;
    __m256 even[4], odd[4], delta[4];
    for (int i = 0; i < n; i++) even[i] = odd[i] = _mm256_setzero_ps();
    for (int64_t row = 0; row < rows; row += 2) {
        const __m256 one = _mm256_set1_ps(decay[row] * k[row]), other = _mm256_set1_ps(decay[row + 1] * k[row + 1]);
        for (int i = 0; i < n; i++) {
            even[i] = _mm256_fmadd_ps(one, _mm256_load_ps(s + row * COLUMNS + 8 * i), even[i]);
            odd[i] = _mm256_fmadd_ps(other, _mm256_load_ps(s + (row + 1) * COLUMNS + 8 * i), odd[i]);
        }
    }
    const __m256 learn = _mm256_set1_ps(beta);
    for (int i = 0; i < n; i++) {
        const __m256 known = _mm256_add_ps(even[i], odd[i]);
        delta[i] = _mm256_mul_ps(learn, _mm256_sub_ps(_mm256_loadu_ps(v + 8 * i), known));
        even[i] = _mm256_setzero_ps();
    }
    for (int64_t row = 0; row < rows; row++) {
        const __m256 key = _mm256_set1_ps(k[row]), query = _mm256_set1_ps(q[row]), fade = _mm256_set1_ps(decay[row]);
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

static void recur_head(const Recurrence *r, const Work *w, const Save *saves, int64_t head, int64_t column,
                       int by_row) {
    const int64_t keys = r->groups * r->rows, key = head / (r->heads / r->groups) * r->rows;
    if (by_row) recur(r, w, saves, head, column, key, keys + key, 2 * keys + head * r->columns, row_step);
    else recur(r, w, saves, head, column, key, keys + key, 2 * keys + head * r->columns, step);
}

// out [size] = o / sqrt(mean(o^2) + eps) * weight * silu(z), or sigmoid(z) `by_row`, in place.
static void gated_norm(float *o, const float *z, const float *weight, int64_t size, float eps, int by_row) {
    __m256 squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_loadu_ps(o + i);
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    const __m256 by = _mm256_set1_ps(1 / sqrtf(one_sum(squares) / (float)size + eps));
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(o + i), by), _mm256_loadu_ps(weight + i));
        const __m256 gate = _mm256_loadu_ps(z + i);
        _mm256_storeu_ps(o + i, _mm256_mul_ps(v, by_row ? sigmoid(gate) : silu(gate)));
    }
}

static void delta_rule(const Carried *c, int by_row) {
    const Recurrence *r = c->r;
    const Work *work = c->works;
    const Save *saves = c->saves;
    const int64_t count = c->count, tokens = all_tokens(work, count), keys = r->groups * r->rows;
    const int64_t blocks = (r->channels + BLOCK - 1) / BLOCK, parts = (r->columns + COLUMNS - 1) / COLUMNS;
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < count * (blocks + 1); i++) {
        const Work *w = work + i / (blocks + 1);
        if (i % (blocks + 1) == blocks) make_factors(r, w);
        else convolve(r, w, saves, i % (blocks + 1), 1);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tokens; i++) {
        float *x = r->room + i * (r->channels + r->factors);
        for (int64_t place = 0; place < keys; place += r->rows) {
            normalize(x + place, r->rows, 1 / sqrtf((float)r->rows));
            normalize(x + keys + place, r->rows, 1);
        }
    }
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < count * r->heads * parts; i++)
        recur_head(r, work + i / (r->heads * parts), saves, i / parts % r->heads, i % parts * COLUMNS, by_row);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        for (int64_t row = work[i].row; row < work[i].row + work[i].length; row++)
            for (int64_t head = 0; head < r->heads; head++)
                gated_norm(r->out + (row * r->heads + head) * r->columns,
                           r->mixed + row * r->stride + r->channels + head * r->columns, r->norm, r->columns, r->eps,
                           by_row);
}

static void gated_delta(const void *of) { delta_rule(of, 0); }

static void kimi_delta(const void *of) { delta_rule(of, 1); }

// One layer's step. channels, rows and columns are multiples of 8, rows are at most 256.
void tandem_delta_net(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saved) {
    const Carried c = carried(r, works, count, saved);
    tandem_together(worth_threads(r, all_tokens(c.works, count)), gated_delta, &c);
}

void tandem_kimi_delta(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saved) {
    const Carried c = carried(r, works, count, saved);
    tandem_together(worth_threads(r, all_tokens(c.works, count)), kimi_delta, &c);
}
