// What the library offers.

#include <stdint.h>

enum { SILU = 0, GELU_TANH = 1 };

// Keys or values of one layer.
typedef struct {
    void *numbers;
    float *constants;  // with int8 and int4, what their numbers are to be multiplied by, and added to; with fp8, which
                       // float each byte is
} Pages;

// What becomes of a row of queries, keys and values.
typedef struct {
    const float *bias;                  // of all heads, or 0
    const float *norms[3];              // weights of queries, keys, values, each [head_dim], or 0
    const float *key_mean, *key_scale;  // [stored_heads, head_dim]: keys are stored normalized; or 0
    int64_t heads, kv_heads, head_dim;  // kv_heads: of keys in the row
    int64_t stored_heads;               // of keys that are looked at
    float eps;
    int32_t whole;  // norms are over all heads at once, and their weights of all
} Heads;

void tandem_quantized_product(int bits, const void *weight, const void *scale, const void *least, const int16_t *table,
                              int half, int per_channel, const float *x, int64_t k, int32_t *room, float *out,
                              int64_t rows, int64_t panels, int64_t groups, int64_t group, int threads);
void tandem_half_product(int bf16, const uint16_t *weight, const float *x, float *out, int64_t rows, int64_t k,
                         int64_t panels, int threads);
void tandem_float8_product(const uint8_t *weight, const float *scale, int64_t groups, const float *x, float *out,
                           int64_t rows, int64_t k, int64_t panels, int threads);
int tandem_wide_serves(void);
void tandem_wide_product(int bf16, const void *weight, const float *x, void *room, float *out, int64_t rows, int64_t k,
                         int64_t outputs, int threads);
void tandem_add_norm(float *x, const float *delta, const float *weight, float *out, int64_t rows, int64_t size,
                     float eps, int threads);
void tandem_add(float *x, const float *added, int64_t rows, int64_t size, int64_t stride, int threads);
void tandem_gate(int activation, const float *gate_up, float *out, int64_t rows, int64_t size, int64_t stride,
                 int threads);
void tandem_rotate_and_store(float *qkv, int64_t stride, const Heads *h, const float *cos, const float *sin,
                             const Pages *keys, const Pages *values, int format, const int64_t *slots, int64_t rows,
                             int64_t page_size, int threads);
void tandem_store(const float *from, const Pages *pages, int64_t place, int64_t count, int format);
int tandem_attention(const void *keys, const void *key_constants, const void *values, const void *value_constants,
                     int format, const int32_t *blocks, int64_t count, int64_t most, const int32_t *tables,
                     int64_t table_width, const float *q, int64_t stride, float *out, int64_t kv_heads, int64_t group,
                     int64_t head_dim, int64_t page_size, int64_t window, float scale, float cap, const float *sinks,
                     int threads);

// What a step of a layer with a gated delta rule reads and writes (`delta_net.c`).
typedef struct {
    const float *mixed, *gates;          // [rows, channels + heads * value_dim]: q, k, v, z; [rows, 2 heads]: b, a
    const float *filter;                 // [kernel, channels]
    const float *rate, *bias;            // [heads]
    const float *norm;                   // [value_dim]
    float *states;                       // [slots, heads, key_dim, value_dim]
    float *tails;                        // [slots, kernel - 1 + journal, channels]
    float *journals;                     // [slots, journal, 2 heads]: decay, beta
    float *room;                         // [tokens, channels + 2 heads], those of journals included
    float *out;                          // [rows, heads * value_dim]
    int64_t stride, gates_stride;        // between rows
    int64_t channels, key_heads, heads;  // channels: (2 key_heads * key_dim) + (heads * value_dim)
    int64_t key_dim, value_dim, kernel, journal;
    float eps;
    int threads;
} Delta;

// works [count, 9]: slot, fresh, row, length, replayed, commit, place, first and last of its saves [.., 2]: count, slot
void tandem_delta_net(const Delta *d, const int64_t *works, int64_t count, const int64_t *saves);
