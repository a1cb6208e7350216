// What a layer does row by row beside its products, in fp32. A row's numbers do not depend on the other rows.

#include "gates.h"
#include "operations.h"
#include "team.h"

// Numbers that one thread computes alone.
#define WORTH_GATES 2048
#define WORTH_EXPONENTIALS 16384
#define WORTH_NORMS 32768
#define WORTH_SUMS 65536

// Rows that become other rows, which threads may share.
typedef struct {
    float *x, *out;
    const float *added, *weight, *bias, *gates;
    int64_t rows, size, stride, together;
    float eps;
} Rows;

// here [size] += delta (where there is one), then to = here / sqrt(mean(here^2) + eps) * weight; `to` may be `here`.
INLINE void norm_row(float *here, const float *delta, const float *weight, float *to, int64_t size, float eps) {
    __m256 squares[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t start = 0; start < size; start += 32)
        for (int n = 0; n < 4; n++) {
            const int64_t i = start + 8 * n;
            if (i >= size) break;
            __m256 v = _mm256_loadu_ps(here + i);
            if (delta) {
                v = _mm256_add_ps(v, _mm256_loadu_ps(delta + i));
                _mm256_storeu_ps(here + i, v);
            }
            squares[n] = _mm256_fmadd_ps(v, v, squares[n]);
        }
    const __m256 sum = _mm256_add_ps(_mm256_add_ps(squares[0], squares[1]), _mm256_add_ps(squares[2], squares[3]));
    const __m256 factor = _mm256_set1_ps(1.0f / sqrtf(one_sum(sum) / (float)size + eps));
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(here + i), factor);
        _mm256_storeu_ps(to + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)));
    }
}

static void norm_some(const void *of) {
    const Rows *r = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < r->rows; row++)
        norm_row(r->x + row * r->size, r->added ? r->added + row * r->size : 0, r->weight, r->out + row * r->size,
                 r->size, r->eps);
}

// The same for rows x [rows, size], which may be `out`. size % 8 == 0.
void tandem_add_norm(float *x, const float *delta, const float *weight, float *out, int64_t rows, int64_t size,
                     float eps, int threads) {
    const Rows all = {.x = x, .out = out, .added = delta, .weight = weight, .rows = rows, .size = size, .eps = eps};
    tandem_together(rows * size > WORTH_NORMS ? threads : 1, norm_some, &all);
}

// here [size] += delta (where there is one), then to = (here - mean(here)) / sqrt(variance(here) + eps) * weight + bias.
INLINE void layer_norm_row(float *here, const float *delta, const float *weight, const float *bias, float *to,
                           int64_t size, float eps) {
    __m256 sum = _mm256_setzero_ps(), squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < size; i += 8) {
        __m256 v = _mm256_loadu_ps(here + i);
        if (delta) _mm256_storeu_ps(here + i, v = _mm256_add_ps(v, _mm256_loadu_ps(delta + i)));
        sum = _mm256_add_ps(sum, v);
    }
    const __m256 mean = _mm256_set1_ps(one_sum(sum) / (float)size);
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_sub_ps(_mm256_loadu_ps(here + i), mean);
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    const __m256 factor = _mm256_set1_ps(1.0f / sqrtf(one_sum(squares) / (float)size + eps));
    for (int64_t i = 0; i < size; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(here + i), mean), factor);
        const __m256 scaled = _mm256_mul_ps(v, _mm256_loadu_ps(weight + i));
        _mm256_storeu_ps(to + i, bias ? _mm256_add_ps(scaled, _mm256_loadu_ps(bias + i)) : scaled);
    }
}

static void layer_norm_some(const void *of) {
    const Rows *r = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < r->rows; row++)
        layer_norm_row(r->x + row * r->size, r->added ? r->added + row * r->size : 0, r->weight, r->bias,
                       r->out + row * r->size, r->size, r->eps);
}

// The same for rows x [rows, size], which may be `out`. size % 8 == 0.
void tandem_add_layer_norm(float *x, const float *delta, const float *weight, const float *bias, float *out,
                           int64_t rows, int64_t size, float eps, int threads) {
    const Rows all = {
        .x = x, .out = out, .added = delta, .weight = weight, .bias = bias, .rows = rows, .size = size, .eps = eps};
    tandem_together(rows * size > WORTH_NORMS ? threads : 1, layer_norm_some, &all);
}

static void add_some(const void *of) {
    const Rows *r = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < r->rows; row++)
        for (int64_t i = 0; i < r->size; i += 8) {
            float *here = r->x + row * r->size + i;
            const __m256 added = _mm256_loadu_ps(r->added + row * r->stride + i);
            _mm256_storeu_ps(here, _mm256_add_ps(_mm256_loadu_ps(here), added));
        }
}

// x [rows, size] += what is added, whose rows are `stride` apart: 0 for a bias. size % 8 == 0.
void tandem_add(float *x, const float *added, int64_t rows, int64_t size, int64_t stride, int threads) {
    const Rows all = {.x = x, .added = added, .rows = rows, .size = size, .stride = stride};
    tandem_together(rows * size > WORTH_SUMS ? threads : 1, add_some, &all);
}

// What gates let through, which threads may share.
typedef struct {
    Gate how;
    const float *gate_up;
    float *out;
    int64_t rows, size, stride;
} Gates;

static void gate_some(const void *of) {
    const Gates *g = of;
#pragma omp for schedule(static) collapse(2) nowait
    for (int64_t row = 0; row < g->rows; row++)
        for (int64_t first = 0; first < g->size; first += 512) {
            const float *gate = g->gate_up + row * g->stride, *up = gate + g->size;
            const int64_t last = first + 512 < g->size ? first + 512 : g->size;
            for (int64_t i = first; i < last; i += 8)
                _mm256_storeu_ps(g->out + row * g->size + i,
                                 gated(&g->how, _mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
        }
}

// gate_up [rows, 2 size], rows `stride` apart -> out [rows, size] = activation(gate) * up. size % 8 == 0.
void tandem_gate(int activation, float limit, const float *gate_up, float *out, int64_t rows, int64_t size,
                 int64_t stride, int threads) {
    const Gates gates = {{activation, 0, limit}, gate_up, out, rows, size, stride};
    tandem_together(rows * size > WORTH_GATES ? threads : 1, gate_some, &gates);
}

static void activate_some(const void *of) {
    const Gates *g = of;
    const __m256 one = _mm256_set1_ps(1.0f);
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < g->size; i += 8)
        _mm256_storeu_ps(g->out + i, gated(&g->how, _mm256_loadu_ps(g->out + i), one));
}

// x [count] = activation(x), in place. count % 8 == 0.
void tandem_activate(int activation, float *x, int64_t count, int threads) {
    const Gates gates = {.how = {activation, 0, 0}, .out = x, .size = count};
    tandem_together(count > WORTH_GATES ? threads : 1, activate_some, &gates);
}

// The gates of eight numbers of a row.
INLINE __m256 gates_of(const Rows *r, int64_t row, int64_t i) {
    const float *gate = r->gates + row * r->stride + i / r->together;
    return r->together == 1 ? _mm256_loadu_ps(gate) : _mm256_set1_ps(*gate);
}

static void sigmoid_some(const void *of) {
    const Rows *r = of;
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < r->rows; row++)
        for (int64_t i = 0; i < r->size; i += 8) {
            float *here = r->x + row * r->size + i;
            const __m256 power = exponential(_mm256_xor_ps(gates_of(r, row, i), sign));
            _mm256_storeu_ps(here, _mm256_div_ps(_mm256_loadu_ps(here), _mm256_add_ps(one, power)));
        }
}

static void softplus_some(const void *of) {
    const Rows *r = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < r->rows; row++)
        for (int64_t i = 0; i < r->size; i += 8) {
            float *here = r->x + row * r->size + i;
            const __m256 by = log_of_one_and_power(gates_of(r, row, i));
            _mm256_storeu_ps(here, _mm256_mul_ps(_mm256_loadu_ps(here), by));
        }
}

// x [rows, size] = x / (1 + e^-gate), gates' rows `stride` apart; `together` numbers share a gate, 1 or a multiple of 8.
// size % 8 == 0.
void tandem_gate_by_sigmoid(float *x, const float *gates, int64_t rows, int64_t size, int64_t together, int64_t stride,
                            int threads) {
    const Rows all = {.x = x, .gates = gates, .rows = rows, .size = size, .stride = stride, .together = together};
    tandem_together(rows * size > WORTH_EXPONENTIALS ? threads : 1, sigmoid_some, &all);
}

// x [rows, size] *= log(1 + e^gate), in the same way.
void tandem_gate_by_softplus(float *x, const float *gates, int64_t rows, int64_t size, int64_t together, int64_t stride,
                             int threads) {
    const Rows all = {.x = x, .gates = gates, .rows = rows, .size = size, .stride = stride, .together = together};
    tandem_together(rows * size > WORTH_EXPONENTIALS ? threads : 1, softplus_some, &all);
}

static void add_gated_some(const void *of) {
    const Rows *r = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < r->rows; row++) {
        const __m256 share = _mm256_set1_ps(1 / (1 + expf(-r->gates[row * r->stride])));
        for (int64_t i = row * r->size; i < (row + 1) * r->size; i += 8) {
            const __m256 more = _mm256_mul_ps(_mm256_loadu_ps(r->added + i), share);
            _mm256_storeu_ps(r->out + i, _mm256_add_ps(_mm256_loadu_ps(r->out + i), more));
        }
    }
}

// out [rows, size] += what one more expert says, by the sigmoid of its gate, gates `stride` apart. size % 8 == 0.
void tandem_add_gated(float *out, const float *added, const float *gates, int64_t rows, int64_t size, int64_t stride,
                      int threads) {
    const Rows all = {.out = out, .added = added, .gates = gates, .rows = rows, .size = size, .stride = stride};
    tandem_together(rows * size > WORTH_SUMS ? threads : 1, add_gated_some, &all);
}

// Of a table [count, 2 half], cosines, then sines, at `positions` [rows] -> cos and signed sin [rows, 2 half], as the
// function below takes them. Returns 0, or 1 where the table has no such position.
int tandem_rotations(const float *table, int64_t count, int64_t half, const int64_t *positions, int64_t rows,
                     float *cos, float *sin) {
    for (int64_t row = 0; row < rows; row++, cos += 2 * half, sin += 2 * half) {
        if (positions[row] < 0 || positions[row] >= count) return 1;
        const float *from = table + positions[row] * 2 * half;
        memcpy(cos, from, (size_t)half * sizeof(float));
        memcpy(cos + half, from, (size_t)half * sizeof(float));
        for (int64_t i = 0; i < half; i++) sin[i] = -from[half + i], sin[half + i] = from[half + i];
    }
    return 0;
}

INLINE void multiply(float *x, const float *factors, int64_t size) {
    for (int64_t i = 0; i < size; i += 8)
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(factors + i)));
}

// NaN stays.
INLINE void limit_row(float *x, float limit, int64_t size) {
    const __m256 most = _mm256_set1_ps(limit), least = _mm256_set1_ps(-limit);
    for (int64_t i = 0; i < size; i += 8)
        _mm256_storeu_ps(x + i, _mm256_min_ps(most, _mm256_max_ps(least, _mm256_loadu_ps(x + i))));
}

// Queries, keys and values, of which threads may finish some rows each.
typedef struct {
    float *qkv;
    const Heads *heads;
    const float *cos, *sin;
    const Pages *keys, *values;
    const int64_t *slots;
    int64_t stride, rows, page_size;
    int format;
} Finished;

static void finish_row(const Finished *f, int64_t row) {
    const Heads *h = f->heads;
    const int64_t d = h->head_dim, half = d / 2, counts[3] = {h->heads, h->kv_heads, h->kv_heads};
    float *all = f->qkv + row * f->stride, *part = all;
    if (h->bias) {
        const int64_t size = (h->heads + 2 * h->kv_heads) * d;
        for (int64_t i = 0; i < size; i += 8)
            _mm256_storeu_ps(all + i, _mm256_add_ps(_mm256_loadu_ps(all + i), _mm256_loadu_ps(h->bias + i)));
    }
    for (int which = 0; which < 3; part += counts[which++] * d) {
        if (!h->norms[which]) continue;
        const int64_t size = h->whole ? counts[which] * d : d;
        for (int64_t i = 0; i < counts[which] * d; i += size)
            norm_row(part + i, 0, h->norms[which], part + i, size, h->eps);
    }
    if (h->limit) limit_row(all, h->limit, (h->heads + 2 * h->kv_heads) * d);
    const float *c = f->cos + row * d, *s = f->sin + row * d;
    for (int64_t head = 0; head < h->heads + h->kv_heads; head++) {
        float *x = all + head * d;
        for (int64_t i = 0; i < half; i++) {
            const float low = x[i], high = x[i + half];
            x[i] = low * c[i] + high * s[i];
            x[i + half] = high * c[i + half] + low * s[i + half];
        }
    }
    if (h->key_scale)
        for (int64_t head = 0; head < h->heads; head++)
            multiply(all + head * d, h->key_scale + head / (h->heads / h->stored_heads) * d, d);
    if (!f->keys) return;
    float *k = all + h->heads * d, *v = k + h->kv_heads * d;
    if (h->key_scale)
        for (int64_t i = 0; i < h->kv_heads * d; i += 8) {
            const __m256 centred = _mm256_sub_ps(_mm256_loadu_ps(k + i), _mm256_loadu_ps(h->key_mean + i));
            _mm256_storeu_ps(k + i, _mm256_div_ps(centred, _mm256_loadu_ps(h->key_scale + i)));
        }
    for (int64_t head = 0; head < h->kv_heads; head++) {
        const int64_t place = (f->slots[row] * h->kv_heads + head) * f->page_size + f->slots[f->rows + row];
        tandem_store(k + head * d, f->keys, place, d, f->format);
        tandem_store(v + head * d, f->values, place, d, f->format);
    }
}

static void finish_some(const void *of) {
    const Finished *f = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < f->rows; row++) finish_row(f, row);
}

// Finishes qkv [rows, heads + 2 kv_heads, head_dim], rows `stride` apart, where they are: a bias, norms and a limit
// (`Heads`), the rotation of queries and keys by cos and signed sin [rows, head_dim]; then stores keys and values, unless
// `keys` is null, at slots [2, rows] in pages [pages, kv_heads, page_size, ...]. head_dim % 8 == 0.
void tandem_rotate_and_store(float *qkv, int64_t stride, const Heads *h, const float *cos, const float *sin,
                             const Pages *keys, const Pages *values, int format, const int64_t *slots, int64_t rows,
                             int64_t page_size, int threads) {
    const Finished all = {qkv, h, cos, sin, keys, values, slots, stride, rows, page_size, format};
    tandem_together(rows * stride > WORTH_NORMS ? threads : 1, finish_some, &all);
}
