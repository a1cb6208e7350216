// A whole layer in one call: between two of its operations no thread has the time to fall asleep.

#include "matrices.h"
#include "operations.h"

#define PIECES 3  // of a matrix whose rows are not all stored alike

typedef struct {
    Matrix qkv[PIECES], output, gate_up[PIECES], down;  // pieces that are not there have no outputs
    // What comes into a part is normalized, or as it is; the same of what comes out. 0: as it is.
    const float *enter_attention, *leave_attention, *enter_mlp, *leave_mlp;
    Heads made;  // of the first product
    const float *sinks;
    int64_t hidden, inner;  // inner 0: what follows attention is the caller's
    float eps, scale, cap;
    int32_t activation, grows;  // grows: queries are multiplied by `growth`
} Layer;

typedef struct {
    const float *cos, *sin, *growth;  // growth: [rows]
    const int64_t *slots;
    const int32_t *blocks, *tables;
    int64_t count, most, width, window, page_size;  // see `tandem_attention`
    float *normed, *qkv, *attended, *gate_up, *inner, *piece;
    int32_t *room;
    int64_t rows, attending;
    int32_t format, threads, attention_threads;
} Step;

static void product(const Matrix *w, const float *x, float *out, const Step *s) {
    matrix_product(w, x, s->room, out, s->rows, s->threads);
    if (w->bias) tandem_add(out, w->bias, s->rows, w->outputs, 0, s->threads);
}

// The same of the pieces of a matrix, whose outputs lie side by side.
static void products(const Matrix *w, const float *x, float *out, const Step *s) {
    int64_t width = 0;
    for (int n = 0; n < PIECES; n++) width += w[n].outputs;
    if (w->outputs == width) {
        product(w, x, out, s);
        return;
    }
    for (int n = 0; n < PIECES && w[n].outputs; out += w[n++].outputs) {
        product(w + n, x, s->piece, s);
        for (int64_t row = 0; row < s->rows; row++)
            memcpy(out + row * width, s->piece + row * w[n].outputs, (size_t)w[n].outputs * sizeof(float));
    }
}

// Adds `delta` to x and returns what a part of the layer looks at.
static const float *enter(const Layer *l, const Step *s, float *x, const float *delta, const float *norm) {
    if (norm) tandem_add_norm(x, delta, norm, s->normed, s->rows, l->hidden, l->eps, s->threads);
    else if (delta) tandem_add(x, delta, s->rows, l->hidden, l->hidden, s->threads);
    return norm ? s->normed : x;
}

static void leave(const Layer *l, const Step *s, float *delta, const float *norm) {
    if (norm) tandem_add_norm(delta, 0, norm, delta, s->rows, l->hidden, l->eps, s->threads);
}

static void grow(float *qkv, int64_t stride, int64_t size, const Step *s) {
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t i = 0; i < size; i++) qkv[row * stride + i] *= s->growth[row];
}

// x [rows, hidden] and `delta`, which is still to be added to it, before the layer (unless `begins`) and after it. Where
// `inner` is 0, it ends before the feed-forward layer, for which x and `normed` are ready.
int tandem_layer(const Layer *l, const Step *s, float *x, float *delta, int begins, const Pages *keys,
                 const Pages *values) {
    const Heads *h = &l->made;
    const int64_t d = h->head_dim, heads = h->heads, stride = (heads + 2 * h->kv_heads) * d;
    products(l->qkv, enter(l, s, x, begins ? 0 : delta, l->enter_attention), s->qkv, s);
    tandem_rotate_and_store(s->qkv, stride, h, s->cos, s->sin, keys, values, s->format, s->slots, s->rows, s->page_size,
                            s->threads);
    if (l->grows) grow(s->qkv, stride, heads * d, s);
    if (s->attending != s->rows) memset(s->attended, 0, (size_t)(s->rows * heads * d) * sizeof(float));
    const int failed = tandem_attention(keys->numbers, keys->constants, values->numbers, values->constants, s->format,
                                        s->blocks, s->count, s->most, s->tables, s->width, s->qkv, stride, s->attended,
                                        h->kv_heads, heads / h->kv_heads, 1, d, d, s->page_size, s->window, l->scale,
                                        l->cap, l->sinks, s->attention_threads);
    product(&l->output, s->attended, delta, s);
    leave(l, s, delta, l->leave_attention);
    const float *entering = enter(l, s, x, delta, l->enter_mlp);
    if (!l->inner) return failed;
    products(l->gate_up, entering, s->gate_up, s);
    tandem_gate(l->activation, s->gate_up, s->inner, s->rows, l->inner, 2 * l->inner, s->threads);
    product(&l->down, s->inner, delta, s);
    leave(l, s, delta, l->leave_mlp);
    return failed;
}
