// What the library offers.

#include <stdint.h>

void tandem_quantized_product(int bits, const void *weight, const void *scale, const void *least, int half,
                              int per_channel, const float *x, int64_t k, int32_t *room, float *out, int64_t rows,
                              int64_t panels, int64_t groups, int64_t group, int threads);
void tandem_half_product(int bf16, const uint16_t *weight, const float *x, float *out, int64_t rows, int64_t k,
                         int64_t panels, int threads);
int tandem_wide_serves(void);
void tandem_wide_product(int bf16, const void *weight, const float *x, void *room, float *out, int64_t rows, int64_t k,
                         int64_t outputs, int threads);
void tandem_add_norm(float *x, const float *delta, const float *weight, float *out, int64_t rows, int64_t size,
                     float eps, int threads);
void tandem_swiglu(const float *gate_up, float *out, int64_t rows, int64_t size, int64_t stride, int threads);
void tandem_rotate_and_store(float *qkv, int64_t stride, const float *cos, const float *sin, void *keys, void *values,
                             int format, const int64_t *slots, int64_t rows, int64_t heads, int64_t kv_heads,
                             int64_t head_dim, int64_t page_size, int threads);
int tandem_attention(const void *keys, const void *key_constants, const void *values, const void *value_constants,
                     int format, const int32_t *blocks, int64_t count, int64_t most, const int32_t *tables,
                     int64_t table_width, const float *q, int64_t stride, float *out, int64_t kv_heads, int64_t group,
                     int64_t head_dim, int64_t page_size, int64_t window, float scale, int threads);
