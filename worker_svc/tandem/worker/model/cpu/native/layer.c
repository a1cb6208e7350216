// A whole layer in one call: between two of its operations no thread has the time to fall asleep.

#include "numbers.h"
#include "operations.h"

typedef struct {
    const void *numbers, *scale, *least;
    const int16_t *table;
    int32_t bits, half,
        per_channel;  // bits: 16, 8, 4, or 0: wide panels; half: with 16 and 0, bf16; else as in `Product`
    int64_t inputs, outputs, panels, groups, group;
} Weight;

typedef struct {
    Weight qkv, output, gate_up, down;
    const float *attention_norm, *mlp_norm;
    int64_t hidden, inner, heads, kv_heads, head_dim;
    float eps, scale;
} Layer;

typedef struct {
    const float *cos, *sin;
    const int64_t *slots;
    const int32_t *blocks, *tables;
    int64_t count, most, width, window, page_size;  // see `tandem_attention`
    float *normed, *qkv, *attended, *gate_up, *inner;
    int32_t *room;
    int64_t rows, attending;
    int32_t format, threads, attention_threads;
} Step;

static void product(const Weight *w, const float *x, float *out, const Step *s) {
    if (w->bits == 0)
        tandem_wide_product(w->half, w->numbers, x, s->room, out, s->rows, w->inputs, w->outputs, s->threads);
    else if (w->bits == 16) tandem_half_product(w->half, w->numbers, x, out, s->rows, w->inputs, w->panels, s->threads);
    else
        tandem_quantized_product(w->bits, w->numbers, w->scale, w->least, w->table, w->half, w->per_channel, x,
                                 w->inputs, s->room, out, s->rows, w->panels, w->groups, w->group, s->threads);
}

// x [rows, hidden] and `delta`, which is still to be added to it, before the layer (unless `begins`) and after it.
int tandem_layer(const Layer *l, const Step *s, float *x, float *delta, int begins, void *keys, void *values) {
    const int64_t d = l->head_dim, heads = l->heads, stride = (heads + 2 * l->kv_heads) * d;
    tandem_add_norm(x, begins ? 0 : delta, l->attention_norm, s->normed, s->rows, l->hidden, l->eps, s->threads);
    product(&l->qkv, s->normed, s->qkv, s);
    tandem_rotate_and_store(s->qkv, stride, s->cos, s->sin, keys, values, s->format, s->slots, s->rows, heads,
                            l->kv_heads, d, s->page_size, s->threads);
    if (s->attending != s->rows) memset(s->attended, 0, (size_t)(s->rows * heads * d) * sizeof(float));
    const int failed = tandem_attention(keys, 0, values, 0, s->format, s->blocks, s->count, s->most, s->tables,
                                        s->width, s->qkv, stride, s->attended, l->kv_heads, heads / l->kv_heads, d,
                                        s->page_size, s->window, l->scale, 0, 0, s->attention_threads);
    product(&l->output, s->attended, delta, s);
    tandem_add_norm(x, delta, l->mlp_norm, s->normed, s->rows, l->hidden, l->eps, s->threads);
    product(&l->gate_up, s->normed, s->gate_up, s);
    tandem_swiglu(s->gate_up, s->inner, s->rows, l->inner, 2 * l->inner, s->threads);
    product(&l->down, s->inner, delta, s);
    return failed;
}
