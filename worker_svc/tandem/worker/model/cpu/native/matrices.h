// A stored matrix, and what one thread computes of its products: some outputs of all rows.

#include "operations.h"
#include "quantized.h"

// How numbers are stored that are not of 16, 8, 6 or 4 bits: in wide panels (`panels_wide.c`), as e4m3, as rows of fp32.
enum { WIDE = 0, FLOAT8 = -8, FLOATS = 32 };

typedef struct {
    const void *numbers, *scale, *least;
    const void *scale_unit, *least_unit;
    const int16_t *table;
    int32_t bits, half, per_channel;  // half: with 16, bf16; with WIDE, as in numbers.h; else as in `Product`
    int64_t inputs, outputs, panels, groups, group;
    const float *bias;     // [outputs], or 0
    const int64_t *order;  // as in `Rounding`
} Matrix;

// Numbers from a row of the product to the next.
INLINE int64_t width_of(const Matrix *m) {
    return m->bits == WIDE || m->bits == FLOATS ? m->outputs : m->panels * PANEL;
}

// The first of a row's words in panels [.., steps, beside, words, 16]; the next one lies PANEL further, that of the next step
// `beside * words * PANEL`.
INLINE int64_t first_word(int64_t row, int64_t steps, int64_t beside, int64_t words) {
    const int64_t panel = row / PANEL % beside;
    return ((row / PANEL - panel) * steps + panel) * words * PANEL + row % PANEL;
}

INLINE int is_quantized(const Matrix *m) { return m->bits == 8 || m->bits == 6 || m->bits == 4; }

// out [rows, width] = x [rows, inputs] times it, without its bias; `room` as its product needs it.
INLINE void matrix_product(const Matrix *m, const float *x, int32_t *room, float *out, int64_t rows, int threads) {
    if (m->bits == WIDE) tandem_wide_product(m->half, m->numbers, x, room, out, rows, m->inputs, m->outputs, threads);
    else if (m->bits == FLOAT8)
        tandem_float8_product(m->numbers, m->scale, m->groups, x, out, rows, m->inputs, m->panels, threads);
    else if (m->bits == FLOATS) tandem_float_product(m->numbers, x, out, rows, m->inputs, m->outputs, threads);
    else if (m->bits == 16) tandem_half_product(m->half, m->numbers, x, out, rows, m->inputs, m->panels, threads);
    else
        tandem_quantized_product(m->bits, m->numbers, m->scale, m->least, m->scale_unit, m->least_unit, m->table,
                                 m->half, m->per_channel, x, m->order, m->inputs, room, out, rows, m->panels, m->groups,
                                 m->group, threads);
}

INLINE Rounding rounding_for(const Matrix *m) {
    return rounding_of(m->bits, m->table, m->least != 0, m->order, m->inputs, m->groups, m->group);
}

int tandem_heads(const Matrix *heads, int64_t count, const float *x, float *out, int64_t rows, int threads);

// products.c
void quantize_groups(const float *x, const Rounding *how, int32_t *q, float *scale, float *sum, int64_t first_place,
                     int64_t last_place);
int by_amx(const Rounding *how, int64_t rows);
int64_t part_rows(const Rounding *how, int64_t rows);
Product part_of(const Product *p, const Rounding *how, int64_t first, int64_t rows);
int64_t next_tile(const Rounding *how, int64_t rows, int64_t row);
void into_tile(const Rounding *how, const int32_t *const from[3], const int32_t *order, int32_t *const to[3],
               int64_t rows, int64_t row, int64_t some, int64_t first, int64_t last);
void quantized_outputs(const Product *p, int bits, int group, int64_t first, int64_t last);
void half_outputs(int bf16, const uint16_t *weight, const float *x, float *out, int64_t rows, int64_t k, int64_t panels,
                  int64_t first, int64_t last);
void float8_outputs(const uint8_t *weight, const float *scale, int64_t groups, const float *x, float *out, int64_t rows,
                    int64_t k, int64_t panels, int64_t first, int64_t last);

// panels_wide.c
#define PAIR 32  // outputs of two panels
int64_t wide_rows(int kind, int64_t rows);
int64_t wide_words(int kind, int64_t k);
int64_t wide_pair(int kind, int64_t k);
void wide_pack(int kind, const float *x, const int32_t *order, int64_t row, int64_t rows, int64_t k, void *room);
void wide_outputs(int kind, const void *weight, const void *room, float *out, int64_t rows, int64_t k, int64_t outputs,
                  int64_t first, int64_t last);
void wide_product_of_packed(int kind, const void *weight, const void *room, float *out, int64_t rows, int64_t k,
                            int64_t outputs, int threads);
int wide_gates(int kind, int64_t rows, int64_t k, int64_t inner);
void wide_gated(int kind, const void *weight, int activation, const float *x, void *room, void *packed, int64_t rows,
                int64_t k, int64_t inner, int threads);
