// Which experts a row has (`moe.py`), and the product before it, whose matrix stays in fp32.

#include "numbers.h"
#include "operations.h"
#include "team.h"

#define TILE 4
#define MOST_EXPERTS 1024
#define WORTH (1 << 17)  // multiplications that take about as long as it takes to wake a thread
#define WORTH_SCORES 4096

// One output of `rows` rows, each by the same operations however many there are.
INLINE void float_tile(const int rows, const float *w, const float *x, int64_t k, float *out, int64_t width) {
    __m256 even[TILE], odd[TILE];
    for (int r = 0; r < rows; r++) even[r] = odd[r] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        const __m256 a = _mm256_loadu_ps(w + i), b = _mm256_loadu_ps(w + i + 8);
        for (int r = 0; r < rows; r++) {
            even[r] = _mm256_fmadd_ps(a, _mm256_loadu_ps(x + r * k + i), even[r]);
            odd[r] = _mm256_fmadd_ps(b, _mm256_loadu_ps(x + r * k + i + 8), odd[r]);
        }
    }
    for (int r = 0; r < rows; r++) {
        float sum = one_sum(_mm256_add_ps(even[r], odd[r]));
        for (int64_t rest = i; rest < k; rest++) sum += w[rest] * x[r * k + rest];
        out[r * width] = sum;
    }
}

typedef struct {
    const float *weight, *x;
    float *out;
    int64_t rows, k, outputs;
} Floats;

static void float_outputs(const void *of) {
    const Floats *p = of;
#pragma omp for schedule(static) nowait
    for (int64_t o = 0; o < p->outputs; o++)
        for (int64_t row = 0; row < p->rows; row += TILE) {
            const float *w = p->weight + o * p->k, *from = p->x + row * p->k;
            float *to = p->out + row * p->outputs + o;
            switch (p->rows - row) {
            case 1: float_tile(1, w, from, p->k, to, p->outputs); break;
            case 2: float_tile(2, w, from, p->k, to, p->outputs); break;
            case 3: float_tile(3, w, from, p->k, to, p->outputs); break;
            default: float_tile(TILE, w, from, p->k, to, p->outputs);
            }
        }
}

// weight [outputs, k], x [rows, k] -> out [rows, outputs], all fp32.
void tandem_float_product(const float *weight, const float *x, float *out, int64_t rows, int64_t k, int64_t outputs,
                          int threads) {
    const Floats p = {weight, x, out, rows, k, outputs};
    tandem_together(rows * k * outputs > WORTH ? threads : 1, float_outputs, &p);
}

// The largest of those that are not taken, the first among equals.
static int64_t largest(const float *x, const uint8_t *taken, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
    return best;
}

// Takes the experts of all groups but the best.
static void keep_groups(const Routing *r, const float *wanted, uint8_t *taken) {
    const int64_t each = r->count / r->groups;
    float sums[MOST_EXPERTS];
    uint8_t kept[MOST_EXPERTS] = {0};
    for (int64_t group = 0; group < r->groups; group++) {
        sums[group] = 0;
        for (int64_t n = 0; n < r->best_of_group; n++) {
            const int64_t best = group * each + largest(wanted + group * each, taken + group * each, each);
            sums[group] += wanted[best], taken[best] = 1;
        }
        memset(taken + group * each, 0, (size_t)each);
    }
    for (int64_t n = 0; n < r->groups_per_row; n++) kept[largest(sums, kept, r->groups)] = 1;
    for (int64_t i = 0; i < r->count; i++) taken[i] = !kept[i / each];
}

// SparseMixer's experts, one after the other: what each is chosen from are those left that are not far below it.
static void mix_row(const Routing *r, const float *logits, float *shares, int64_t *chosen) {
    uint8_t taken[MOST_EXPERTS] = {0};
    for (int64_t n = 0; n < r->per_row; n++) {
        const int64_t best = chosen[n] = largest(logits, taken, r->count);
        const float most = logits[best];
        float sum = 0;
        for (int64_t i = 0; i < r->count; i++) {
            const float size = fabsf(logits[i]) > most ? fabsf(logits[i]) : most;
            const int is_far = (most - logits[i]) / size > 2 * r->jitter;
            if (!taken[i] && !is_far) sum += expf(logits[i] - most);
        }
        shares[n] = 1 / sum;
        taken[best] = 1;
    }
}

static void route_row(const Routing *r, const float *logits, float *shares, int64_t *chosen) {
    float scores[MOST_EXPERTS], wanted[MOST_EXPERTS], most = logits[0], sum = 0;
    uint8_t taken[MOST_EXPERTS] = {0};
    for (int64_t i = 1; i < r->count; i++) most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < r->count; i++) {
        scores[i] = r->score == BY_SIGMOID ? 1 / (1 + expf(-logits[i])) : expf(logits[i] - most);
        sum += scores[i];
    }
    for (int64_t i = 0; i < r->count; i++) {
        if (r->score == BY_SOFTMAX) scores[i] /= sum;
        wanted[i] = r->bias ? scores[i] + r->bias[i] : scores[i];
    }
    if (r->groups > 1) keep_groups(r, wanted, taken);
    sum = 0;
    for (int64_t n = 0; n < r->per_row; n++) {
        chosen[n] = largest(wanted, taken, r->count);
        taken[chosen[n]] = 1;
        sum += shares[n] = scores[chosen[n]];
    }
    for (int64_t n = 0; n < r->per_row; n++) {
        if (r->normalized) shares[n] /= sum + r->sum_offset;
        shares[n] *= r->scale;
        if (r->weights) shares[n] *= r->weights[chosen[n]];
    }
}

// What threads may share.
typedef struct {
    const Routing *by;
    const float *logits;
    float *shares;
    int64_t *chosen, rows, stride;
} Routed;

static void route_some(const void *of) {
    const Routed *all = of;
    const Routing *r = all->by;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < all->rows; row++)
        (r->score == BY_MIXER ? mix_row : route_row)(r, all->logits + row * all->stride, all->shares + row * r->per_row,
                                                     all->chosen + row * r->per_row);
}

// logits [rows, count], rows `stride` apart -> shares and chosen [rows, per_row], the best first. At most 1,024 experts.
void tandem_route(const Routing *r, const float *logits, int64_t stride, float *shares, int64_t *chosen, int64_t rows,
                  int threads) {
    const Routed all = {r, logits, shares, chosen, rows, stride};
    tandem_together(rows * r->count > WORTH_SCORES ? threads : 1, route_some, &all);
}
