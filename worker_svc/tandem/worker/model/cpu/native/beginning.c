// What comes before a model's first layer: the vectors of a step's tokens, and how their positions rotate.

#include "matrices.h"

// Cosines, then sines, [count, 2 half]; where there is none, `count` is 0.
typedef struct {
    const float *table;
    int64_t count, half;
} Rotary;

// One way to rotate, and where its cosines and signed sines go, [rows, 2 half].
typedef struct {
    const Rotary *rotary;
    float *cos, *sin;
} Turning;

// Of FLOATS, `half` of the embedding tells the kind of its numbers, as that of WIDE does. `x` [rows, inputs] is where
// vectors go, each multiplied `by`.
typedef struct {
    Matrix embedding;
    Turning turnings[2];
    float *x, by;
} Beginning;

enum { NO_TOKEN = 1, NO_POSITION = 2 };  // what a step may ask for that is not there

INLINE float number(int kind, const void *numbers, int64_t at) {
    if (kind == FP32) return ((const float *)numbers)[at];
    const uint16_t raw = ((const uint16_t *)numbers)[at];
    if (kind == FP16) return _cvtsh_ss(raw);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(raw << 16)));
}

// Row `id` of a matrix that is not quantized: of numbers as they are, in panels, or in pairs of them, of BF16 in words of two.
static void plain_row(const Matrix *m, int64_t id, float *out) {
    const int64_t k = m->inputs;
    if (m->bits == FLOATS) {
        for (int64_t i = 0; i < k; i++) out[i] = number(m->half, m->numbers, id * k + i);
        return;
    }
    const int pairs = m->bits == WIDE, kind = pairs ? m->half : m->half ? BF16 : FP16;
    const int64_t each = pairs && kind == BF16 ? 2 : 1, beside = pairs ? 2 : 1, words = !pairs ? k : each == 2 ? 16 : 1;
    const int64_t steps = (k + words * each - 1) / (words * each), first = first_word(id, steps, beside, words);
    for (int64_t i = 0; i < k; i++) {
        const int64_t word = i / each, at = first + (word / words * beside * words + word % words) * PANEL;
        out[i] = number(kind, m->numbers, at * each + i % each);
    }
}

// Of `ids` and `positions` [rows]. Returns 0, or what was asked for that is not there.
int tandem_begin(const Beginning *b, const int64_t *ids, const int64_t *positions, int64_t rows, int threads) {
    const Matrix *m = &b->embedding;
    for (int64_t row = 0; row < rows; row++)
        if (ids[row] < 0 || ids[row] >= m->outputs) return NO_TOKEN;
    if (is_quantized(m))
        tandem_quantized_rows(m->bits, m->numbers, m->scale, m->least, m->scale_unit, m->least_unit, m->table, m->half,
                              m->per_channel ? 1 : m->groups, m->order, m->inputs, m->panels, m->groups, m->group, ids,
                              rows, b->x, threads);
    else {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * m->inputs > 65536)
        for (int64_t row = 0; row < rows; row++) plain_row(m, ids[row], b->x + row * m->inputs);
    }
    for (int64_t i = 0; b->by != 1 && i < rows * m->inputs; i++) b->x[i] *= b->by;
    for (int n = 0; n < 2; n++) {
        const Turning *t = &b->turnings[n];
        if (t->rotary &&
            tandem_rotations(t->rotary->table, t->rotary->count, t->rotary->half, positions, rows, t->cos, t->sin))
            return NO_POSITION;
    }
    return 0;
}
