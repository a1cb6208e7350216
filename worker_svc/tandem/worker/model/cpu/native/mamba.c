// Layers with Mamba-2's state space (Dao and Gu 2024, https://arxiv.org/abs/2405.21060), token by token.
//
//     x, B, C = silu(convolution of the last `kernel` inputs, each channel for itself)
//     dt      = softplus(dt + bias), from `least` to `most`
//     S       = exp(rate dt) S + B (dt x)      S [rows, columns] of each head; heads of a group share B and C
//     y       = C S + D x
//     out     = by `norm_kind`: 0: y silu(z) * weight; 1: norm(y silu(z)) * weight; 2: norm(y) * weight * silu(z);
//               3: norm(y) * weight * sigmoid(z)
//
// Lightning attention (Qin et al. 2024, https://arxiv.org/abs/2401.04658) is the same without gates of the state, where
// there is no bias of dt: exp(rate) is the decay, and dt is 1.

#include "recurrence.h"

enum { NO_NORM, AFTER_GATE, BEFORE_GATE, BEFORE_SIGMOID };

// The decay and dt of each token and head.
static void make_factors(const Recurrence *r, const Work *w) {
    float *first = replay_factors(r, w);
    for (int64_t t = 0; t < w->length; t++) {
        const float *given = r->gates + (w->row + t) * r->gates_stride;
        float *to = first + (w->replayed + t) * (r->channels + r->factors);
        for (int64_t h = 0; !r->bias && h < r->heads; h++) to[h] = expf(r->rate[h]), to[r->heads + h] = 1;
        for (int64_t h = 0; r->bias && h < r->heads; h++) {
            const float dt = fminf(fmaxf(softplus(given[h] * r->dt_by + r->bias[h]), r->least), r->most);
            to[h] = expf(r->rate[h] * dt);
            to[r->heads + h] = dt;
        }
    }
    keep_factors(r, w, first);
}

INLINE void step(const int n, float *s, int64_t rows, const float *c, const float *b, const float *x,
                 const float *decay, float dt, float skip, float *out) {
    __m256 given[4], sum[4];
    for (int i = 0; i < n; i++) {
        given[i] = _mm256_mul_ps(_mm256_set1_ps(dt), _mm256_loadu_ps(x + 8 * i));
        sum[i] = _mm256_setzero_ps();
    }
    const __m256 fade = _mm256_set1_ps(*decay);
    for (int64_t row = 0; row < rows; row++) {
        const __m256 write = _mm256_set1_ps(b[row]), read = _mm256_set1_ps(c[row]);
        for (int i = 0; i < n; i++) {
            float *at = s + row * COLUMNS + 8 * i;
            const __m256 now = _mm256_fmadd_ps(write, given[i], _mm256_mul_ps(fade, _mm256_load_ps(at)));
            _mm256_store_ps(at, now);
            sum[i] = _mm256_fmadd_ps(read, now, sum[i]);
        }
    }
    if (!out) return;
    for (int i = 0; i < n; i++)
        _mm256_storeu_ps(out + 8 * i, _mm256_fmadd_ps(_mm256_set1_ps(skip), _mm256_loadu_ps(x + 8 * i), sum[i]));
}

static void recur_head(const Recurrence *r, const Work *w, const Save *saves, int64_t head, int64_t column) {
    const int64_t size = r->heads * r->columns, group = head / (r->heads / r->groups) * r->rows;
    recur(r, w, saves, head, column, size + r->groups * r->rows + group, size + group, head * r->columns, step);
}

// A group of `size` numbers of a token, in place.
static void leave(const Recurrence *r, float *y, const float *z, const float *weight, int64_t size) {
    const __m256 z_by = _mm256_set1_ps(r->z_by);
    __m256 squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < size; i += 8) {
        __m256 v = _mm256_loadu_ps(y + i);
        if (r->norm_kind < BEFORE_GATE) {
            v = _mm256_mul_ps(v, silu(_mm256_mul_ps(_mm256_loadu_ps(z + i), z_by)));
            _mm256_storeu_ps(y + i, v);
        }
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    const float scale = r->norm_kind == NO_NORM ? 1 : 1 / sqrtf(one_sum(squares) / (float)size + r->eps);
    for (int64_t i = 0; i < size; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(scale));
        v = _mm256_mul_ps(v, _mm256_loadu_ps(weight + i));
        if (r->norm_kind == BEFORE_GATE) v = _mm256_mul_ps(v, silu(_mm256_mul_ps(_mm256_loadu_ps(z + i), z_by)));
        if (r->norm_kind == BEFORE_SIGMOID) v = _mm256_mul_ps(v, sigmoid(_mm256_loadu_ps(z + i)));
        _mm256_storeu_ps(y + i, v);
    }
}

static void mamba(const void *of) {
    const Carried *c = of;
    const Recurrence *r = c->r;
    const Work *work = c->works;
    const Save *saves = c->saves;
    const int64_t blocks = (r->channels + BLOCK - 1) / BLOCK, parts = (r->columns + COLUMNS - 1) / COLUMNS;
    const int64_t size = r->heads * r->columns, group = size / r->norm_groups, count = c->count;
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < count * (blocks + 1); i++) {
        const Work *w = work + i / (blocks + 1);
        if (i % (blocks + 1) == blocks) make_factors(r, w);
        else convolve(r, w, saves, i % (blocks + 1), 1);
    }
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < count * r->heads * parts; i++)
        recur_head(r, work + i / (r->heads * parts), saves, i / parts % r->heads, i % parts * COLUMNS);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        for (int64_t row = work[i].row; row < work[i].row + work[i].length; row++)
            for (int64_t place = 0; place < size; place += group)
                leave(r, r->out + row * size + place, r->mixed + row * r->stride + r->channels + place, r->norm + place,
                      group);
}

// One layer's step. channels, columns and what a norm is of are multiples of 8, rows are at most 256.
void tandem_mamba(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saved) {
    const Carried c = carried(r, works, count, saved);
    tandem_together(worth_threads(r, all_tokens(c.works, count)), mamba, &c);
}
