// What the library offers.

#pragma once

#include <stdint.h>

// Keys or values of one layer.
typedef struct {
    void *numbers;
    float *constants;  // with int8, int6 and int4, what their numbers are to be multiplied by, and added to
} Pages;

// What becomes of a row of queries, keys and values.
typedef struct {
    const float *bias;                  // of all heads, or 0
    const float *norms[3];              // weights of queries, keys, values, each [head_dim], or 0
    const float *key_mean, *key_scale;  // [stored_heads, head_dim]: keys are stored normalized; or 0
    int64_t heads, kv_heads, head_dim;  // kv_heads: of keys in the row
    int64_t stored_heads;               // of keys that are looked at
    float eps, limit;                   // limit: of the size of what the norms give; 0: none
    int32_t whole;                      // norms are over all heads at once, and their weights of all
} Heads;

void tandem_quantized_product(int bits, const void *weight, const void *scale, const void *least,
                              const void *scale_unit, const void *least_unit, const int16_t *table, int half,
                              int per_channel, const float *x, const int64_t *order, int64_t k, int32_t *room,
                              float *out, int64_t rows, int64_t panels, int64_t groups, int64_t group, int threads);
void tandem_fill_panels(int size, const void *rows, void *to, int64_t panels, int64_t columns, int threads);
int tandem_quantized_rows(int bits, const void *weight, const void *scale, const void *least, const void *scale_unit,
                          const void *least_unit, const int16_t *table, int half, int64_t scales, const int64_t *order,
                          int64_t k, int64_t panels, int64_t groups, int64_t group, const int64_t *ids, int64_t count,
                          float *out, int threads);
void tandem_half_product(int bf16, const uint16_t *weight, const float *x, float *out, int64_t rows, int64_t k,
                         int64_t panels, int threads);
void tandem_float8_product(const uint8_t *weight, const float *scale, int64_t groups, const float *x, float *out,
                           int64_t rows, int64_t k, int64_t panels, int threads);
void tandem_round_to_int8(int allowed);
int tandem_wide_serves(void);
int twos_serve(void);            // whether vdpbf16ps is there and may be used
int amx_serves(void);            // the same of tiles of bf16
int amx_of_digits_serves(void);  // of those of whole numbers, whose bits are those without them
void tandem_wide_product(int kind, const void *weight, const float *x, void *room, float *out, int64_t rows, int64_t k,
                         int64_t outputs, int threads);
void tandem_float_product(const float *weight, const float *x, float *out, int64_t rows, int64_t k, int64_t outputs,
                          int threads);
void tandem_add_norm(float *x, const float *delta, const float *weight, float *out, int64_t rows, int64_t size,
                     float eps, int threads);
void tandem_add_layer_norm(float *x, const float *delta, const float *weight, const float *bias, float *out,
                           int64_t rows, int64_t size, float eps, int threads);
void tandem_add(float *x, const float *added, int64_t rows, int64_t size, int64_t stride, int threads);
void tandem_gate(int activation, float limit, const float *gate_up, float *out, int64_t rows, int64_t size,
                 int64_t stride, int threads);
void tandem_activate(int activation, float *x, int64_t count, int threads);
void tandem_add_gated(float *out, const float *added, const float *gates, int64_t rows, int64_t size, int64_t stride,
                      int threads);
void tandem_gate_by_sigmoid(float *x, const float *gates, int64_t rows, int64_t size, int64_t together, int64_t stride,
                            int threads);
void tandem_gate_by_softplus(float *x, const float *gates, int64_t rows, int64_t size, int64_t together, int64_t stride,
                             int threads);
int tandem_rotations(const float *table, int64_t count, int64_t half, const int64_t *positions, int64_t rows,
                     float *cos, float *sin);
void tandem_rotate_and_store(float *qkv, int64_t stride, const Heads *h, const float *cos, const float *sin,
                             const Pages *keys, const Pages *values, int format, const int64_t *slots, int64_t rows,
                             int64_t page_size, int threads);
void tandem_store(const float *from, const Pages *pages, int64_t place, int64_t count, int format);
int tandem_largest(const float *x, int64_t rows, int64_t n, int64_t count, float *values, int64_t *places, int threads);
int tandem_draw(const float *x, int64_t rows, int64_t n, int64_t stride, int64_t few, const double *asked, int32_t *ids,
                uint8_t *finite, double *told, int threads);
void tandem_first_largest(const float *x, int64_t rows, int64_t n, int64_t stride, int32_t *places, uint8_t *finite);
int tandem_attention(const void *keys, const void *key_constants, const void *values, const void *value_constants,
                     int format, const int32_t *blocks, int64_t count, int64_t most, const int32_t *tables,
                     int64_t table_width, int apart, const float *q, int64_t stride, float *out, int64_t kv_heads,
                     int64_t group, int64_t shares, int64_t head_dim, int64_t value_dim, int64_t page_size,
                     int64_t window, float scale, float cap, const float *sinks, int threads);

// Tokens that are chosen for rows of a step (`cpu/selection.py`), and where they are put: their numbers in the cache.
typedef struct {
    const int64_t *rows;                // [count], of the step
    const int32_t *positions, *owners;  // [count]; owners: which row of `tables`
    const int32_t *tables;              // [sequences, width]
    int32_t *chosen;                    // [count, most]
    int64_t count, most, width, page_size;
    int64_t most_scores;  // that are kept at once, but for those of one row
    int32_t format;       // of index keys
} Choice;

// By what tokens are chosen: index keys [pages, page_size, size], and all rows' queries [rows, heads, size] and weights.
typedef struct {
    const void *keys;
    const float *queries, *weights;
    int64_t heads, size, weights_stride;
    float scale;  // what weights are multiplied by
} Scored;

int tandem_choose(const Choice *c, const Scored *by, int threads);

// What logits become: the softmax of all, sigmoids, or SparseMixer's shares (`moe.py`).
enum { BY_SOFTMAX = 0, BY_SIGMOID = 1, BY_MIXER = 2 };

// How a row's experts are chosen (`model_parts/experts.py`).
typedef struct {
    const float *bias, *weights;  // [count] of who is chosen, and what each one's share is multiplied by; or 0
    int64_t count, per_row, groups, groups_per_row, best_of_group;
    float scale, sum_offset, jitter;  // sum_offset: added to the sum of shares before they are divided by it
    int32_t score, normalized;        // normalized: shares add up to 1
} Routing;

typedef struct Experts Experts;  // experts.c

void tandem_route(const Routing *r, const float *logits, int64_t stride, float *shares, int64_t *chosen, int64_t rows,
                  int threads);
int64_t tandem_experts_room(const Experts *e, int64_t rows);
void tandem_experts(const Experts *e, const float *x, const int64_t *chosen, const float *shares, float *out,
                    void *room, int64_t rows, int threads);

// What a step of a layer with states reads and writes. By kind (null or 0 where it has none):
//
//                delta_net.c                  mamba.c                         short_convolution.c
//     mixed      q, k, v (channels), z        x, B, C (channels), z           channels
//     gates      b, a                         dt                              channels
//     groups     heads of q and k             of B and C
//     rows       numbers of q and k           numbers of B and C
//     columns    numbers of v                 numbers of x
//     factors    decay, beta of each head     decay, dt of each head
// Kimi's delta rule is as delta_net.c has it, but for decays, and a of which they are made, of each row of each head.
typedef struct {
    const float *mixed, *gates;         // [rows of the step, ..]
    const float *filter, *filter_bias;  // [kernel, channels], [channels]
    const float *rate, *bias, *skip;    // [heads]
    const float *norm;                  // [columns], or [heads, columns]
    float *states;                      // [slots, heads, rows, columns]
    float *tails;                       // [slots, kernel - 1 + journal, channels]
    float *journals;                    // [slots, journal, factors]
    float *room;                        // [tokens, channels + factors], those of journals included
    float *out;                         // [rows of the step, heads * columns]
    int64_t stride, gates_stride;       // between rows of the step
    int64_t channels, groups, heads, rows, columns, kernel, journal, factors;
    float eps, least, most, dt_by, z_by;  // dt is from least to most; what dt and z are multiplied by first
    float beta_by;                        // what a delta rule's betas are multiplied by
    int norm_kind, threads;               // see mamba.c
    int64_t norm_groups;                  // of a token's numbers, each with a norm of its own
} Recurrence;

// works [count, 9]: slot, fresh, row, length, replayed, commit, place, first and last of its saves [.., 2]: count, slot
void tandem_delta_net(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saves);
void tandem_kimi_delta(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saves);
void tandem_mamba(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saves);
void tandem_short_convolution(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saves);
