// A whole layer in one call: between two of its operations no thread has the time to fall asleep.

#include "matrices.h"
#include "operations.h"

#define PIECES 3  // of a matrix whose rows are not all stored alike

typedef struct {
    const float *weight, *bias;
} Norm;

typedef struct {
    // Pieces that are not there have no outputs. `first` is what attention or a state is given, `gates` what a state is
    // given beside.
    Matrix first[PIECES], gates, output, gate_up[PIECES], down;
    // What comes into a part is normalized, or as it is; the same of what comes out. No weight: as it is.
    Norm enter_attention, leave_attention, enter_mlp, leave_mlp;
    Heads made;  // of the first product
    const float *sinks;
    int64_t hidden, inner;  // inner 0: what follows attention is the caller's
    float eps, scale, cap;
    // grows: queries are multiplied by `growth`; gated: each has a gate behind all; centred: norms are LayerNorms
    int32_t activation, grows, gated, centred, gated_mlp;
} Layer;

typedef struct {
    const float *cos, *sin, *growth;  // growth: [rows]
    const int64_t *slots;
    const int32_t *blocks, *tables;
    int64_t count, most, width, window, page_size;  // see `tandem_attention`
    float *normed, *first, *gates, *mixed, *gate_up, *inner, *piece;
    int32_t *room;
    int64_t rows, attending;
    int32_t format, threads, attention_threads;
} Step;

enum { DELTA_NET = 0, MAMBA = 1, SHORT_CONVOLUTION = 2 };

// What a layer has in the place of attention: see `tandem_delta_net`.
typedef struct {
    Recurrence r;  // but for its rows
    const int64_t *works, *saves;
    int64_t count, covered;  // rows that the works have
    int32_t rule;
} Carrying;

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

static void normalize(const Layer *l, const Step *s, float *x, const float *delta, const Norm *norm, float *out) {
    if (l->centred)
        tandem_add_layer_norm(x, delta, norm->weight, norm->bias, out, s->rows, l->hidden, l->eps, s->threads);
    else tandem_add_norm(x, delta, norm->weight, out, s->rows, l->hidden, l->eps, s->threads);
}

// Adds `delta` to x and returns what a part of the layer looks at.
static const float *enter(const Layer *l, const Step *s, float *x, const float *delta, const Norm *norm) {
    if (norm->weight) normalize(l, s, x, delta, norm, s->normed);
    else if (delta) tandem_add(x, delta, s->rows, l->hidden, l->hidden, s->threads);
    return norm->weight ? s->normed : x;
}

static void leave(const Layer *l, const Step *s, float *delta, const Norm *norm) {
    if (norm->weight) normalize(l, s, delta, 0, norm, delta);
}

static void grow(float *qkv, int64_t stride, int64_t size, const Step *s) {
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t i = 0; i < size; i++) qkv[row * stride + i] *= s->growth[row];
}

static int attend(const Layer *l, const Step *s, const float *entering, const Pages *keys, const Pages *values) {
    const Heads *h = &l->made;
    const int64_t d = h->head_dim, heads = h->heads, all = (heads + 2 * h->kv_heads) * d;
    const int64_t stride = all + (l->gated ? heads * d : 0);
    products(l->first, entering, s->first, s);
    tandem_rotate_and_store(s->first, stride, h, s->cos, s->sin, keys, values, s->format, s->slots, s->rows,
                            s->page_size, s->threads);
    if (l->grows) grow(s->first, stride, heads * d, s);
    if (s->attending != s->rows) memset(s->mixed, 0, (size_t)(s->rows * heads * d) * sizeof(float));
    const int failed = tandem_attention(keys->numbers, keys->constants, values->numbers, values->constants, s->format,
                                        s->blocks, s->count, s->most, s->tables, s->width, s->first, stride, s->mixed,
                                        h->kv_heads, heads / h->kv_heads, 1, d, d, s->page_size, s->window, l->scale,
                                        l->cap, l->sinks, s->attention_threads);
    if (l->gated) tandem_gate_by_sigmoid(s->mixed, s->first + all, s->rows, heads * d, stride, s->threads);
    return failed;
}

static void carry(const Layer *l, const Step *s, const float *entering, Carrying *c) {
    Recurrence *r = &c->r;
    products(l->first, entering, s->first, s);
    r->mixed = s->first, r->out = s->mixed, r->stride = 0;
    for (int n = 0; n < PIECES; n++) r->stride += l->first[n].outputs;
    if (c->covered != s->rows) memset(s->mixed, 0, (size_t)(s->rows * l->output.inputs) * sizeof(float));
    if (c->rule == SHORT_CONVOLUTION) {  // b, c, x: b * x is mixed, c are the gates
        r->gates = s->first + r->channels, r->gates_stride = r->stride;
        for (int64_t row = 0; row < s->rows; row++) {
            float *b = s->first + row * r->stride;
            for (int64_t i = 0; i < r->channels; i++) b[i] *= b[i + 2 * r->channels];
        }
        tandem_short_convolution(r, c->works, c->count, c->saves);
        return;
    }
    product(&l->gates, entering, s->gates, s);
    r->gates = s->gates, r->gates_stride = l->gates.outputs;
    (c->rule == MAMBA ? tandem_mamba : tandem_delta_net)(r, c->works, c->count, c->saves);
}

// x [rows, hidden] and `delta`, which is still to be added to it, before the layer (unless `begins`) and after it. Where
// `inner` is 0, it ends before the feed-forward layer, for which x and `normed` are ready. `state` is in the place of
// attention, unless it is 0.
int tandem_layer(const Layer *l, const Step *s, float *x, float *delta, int begins, const Pages *keys,
                 const Pages *values, Carrying *state) {
    const float *entering = enter(l, s, x, begins ? 0 : delta, &l->enter_attention);
    int failed = 0;
    if (state) carry(l, s, entering, state);
    else failed = attend(l, s, entering, keys, values);
    product(&l->output, s->mixed, delta, s);
    leave(l, s, delta, &l->leave_attention);
    entering = enter(l, s, x, delta, &l->enter_mlp);
    if (!l->inner) return failed;
    products(l->gate_up, entering, l->gated_mlp ? s->gate_up : s->inner, s);
    if (l->gated_mlp) tandem_gate(l->activation, s->gate_up, s->inner, s->rows, l->inner, 2 * l->inner, s->threads);
    else tandem_activate(l->activation, s->inner, s->rows * l->inner, s->threads);
    product(&l->down, s->inner, delta, s);
    leave(l, s, delta, &l->leave_mlp);
    return failed;
}
