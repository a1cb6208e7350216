// Whole layers in one call: between two of their operations no thread has the time to fall asleep.

#include "gates.h"
#include "matrices.h"
#include "operations.h"
#include "team.h"

#define MOST_ALONE 8       // rows of latents that one thread moves
#define MOST_ROTATED 1024  // numbers of a head
#define PIECES 3           // of a matrix whose rows are not all stored alike

typedef struct {
    const float *weight, *bias;
} Norm;

// Something that mixes the tokens of a sequence: what it is given, and what its answer is multiplied by.
typedef struct {
    Matrix first[PIECES], output;  // pieces that are not there have no outputs
    float by;
} Mixing;

// Attention over latents (`latent_attention.py`) in the place of other attention, if there are heads.
typedef struct {
    Matrix query_latent, query, latent;  // the first is not there where queries are made of the stream
    const float *query_norm, *latent_norm;
    const Matrix *key_up, *value_up;  // of each head
    int64_t heads, rank, rotated, unrotated, value;
    float eps;  // of both norms
} Latents;

// What chooses the tokens that attention over latents looks at (`indexer.py`), if there are heads.
typedef struct {
    Matrix query, key, weights;
    Norm norm;
    int64_t heads, size;
    float eps, scale;  // scale: of weights
} Indexer;

// What follows what mixes tokens.
enum { NOTHING = 0, IN_THE_CALL = 1, THE_CALLERS = 2 };

typedef struct {
    Mixing attention, state;  // either, both beside each other, or neither, whose outputs are not there
    Matrix gates;             // what a state is given beside, or attention over latents is multiplied by
    Matrix gate_up[PIECES], down;
    // What comes into a part is normalized, or as it is; the same of what comes out. No weight: as it is.
    Norm enter_attention, leave_attention, enter_mlp, leave_mlp;
    Latents latents;
    Indexer indexer;
    Heads made;                          // of attention's first product; of latents, how they are stored
    const float *sinks, *query_weights;  // the latter: what each rotated query is multiplied by
    int64_t hidden, inner;
    float eps, scale, cap, gate_by,
        fed_by;  // by: what the gate, and the answer of the feed-forward part, are multiplied by
    // grows: queries are multiplied by `growth`; share_a_gate: numbers that do, behind all; 0: none; centred: norms are
    // LayerNorms; parallel: the feed-forward part is given the stream that attention is, by the same norm or one of its own;
    // stores: keys and values are the layer's own
    int32_t activation, grows, share_a_gate, centred, gated_mlp, feeds, parallel, stores, values_are_keys;
    int32_t narrow;  // numbers of a value, if it is shorter than a key
    // Where there are experts, the feed-forward part above is one that every row has beside, if it has any (`inner`).
    const Experts *experts;
    Matrix router, shared_router;         // the second: of the share of that one
    Matrix into_experts, out_of_experts;  // of rows of another width than the stream's, if they are given such
    Routing routing;
    // What a layer is given beside the stream (`per_layer_inputs.py`), from number `given_at` of a row on, and behind all
    // what x and what is to be added to it are multiplied by, if at all.
    Matrix given_gate, given_output;
    const float *given_norm;
    float given_eps;
    int64_t given_at;
    int32_t given_activation;
    const float *by;
    float logits_by;       // what the router's answer is multiplied by
    int32_t weighs_input;  // what goes into an expert is multiplied by its share, not what comes out
    float limit;           // of the activation LIMITED
    int32_t softplus;      // what attention gives is multiplied by log(1 + e^gate) instead of the sigmoid
    // By what the norms before both parts are multiplied where they take the stream's place; 0: they do not.
    float keeps_mixed, keeps_fed;
} Layer;

typedef struct {
    const float *cos, *sin, *growth;  // growth: [rows]
    const int64_t *slots;
    const int32_t *blocks, *tables;
    int64_t count, most, width, window, page_size, shares_of_heads;  // see `tandem_attention`
    float *normed, *first, *gates, *mixed, *beside, *gate_up, *inner, *piece;
    int32_t *room;
    // Of experts: the router's answer, who is chosen and by which share, what they are given if it is no row of the stream;
    // `input`: what they give if it is none
    float *logits, *shares, *given, *input;
    float *latent, *by_head, *of_head, *queries, *attended;  // of attention over latents
    int64_t *chosen;
    float *index_keys, *index_queries, *index_weights;
    void *experts_room;
    const float *inputs;  // [rows, input_stride], what layers are given beside the stream
    int64_t input_stride;
    int64_t rows, attending;
    // Of layers over chosen tokens, else 0: what is chosen for rows that do not see all before them, and their blocks; the
    // blocks above are the others'.
    const Choice *choice;
    const int32_t *far;
    int32_t format, threads, attention_threads;
} Step;

enum { DELTA_NET = 0, MAMBA = 1, SHORT_CONVOLUTION = 2, KIMI_DELTA = 3 };

// What a layer has in the place of attention: see `tandem_delta_net`.
typedef struct {
    Recurrence r;  // but for its rows
    const int64_t *works, *saves;
    int64_t count, covered;  // rows that the works have
    int32_t rule;
} Carrying;

static void add_bias(const Matrix *w, float *out, const Step *s) {
    const int64_t width = width_of(w);
    if (!w->bias) return;
    if (width == w->outputs && width % 8 == 0) tandem_add(out, w->bias, s->rows, width, 0, s->threads);
    else
        for (int64_t row = 0; row < s->rows; row++)
            for (int64_t i = 0; i < w->outputs; i++) out[row * width + i] += w->bias[i];
}

static void product(const Matrix *w, const float *x, float *out, const Step *s) {
    matrix_product(w, x, s->room, out, s->rows, s->threads);
    add_bias(w, out, s);
}

// The same, and `next`, if it is there, is read behind it, in the pieces that threads share.
static void product_before(const Matrix *w, const float *x, float *out, const Step *s, const Matrix *next) {
    if (next && is_quantized(next)) {
        const int64_t panel = next->groups * next->group * PANEL * next->bits / 8;
        tandem_read_next(next->numbers, (next->panels + TOGETHER - 1) / TOGETHER, TOGETHER * panel,
                         next->panels * panel);
    } else if (next && next->outputs && next->bits == WIDE) {
        const int64_t pairs = (next->outputs + PAIR - 1) / PAIR, pair = wide_pair(next->half, next->inputs);
        tandem_read_next(next->numbers, pairs, pair, pairs * pair);
    }
    product(w, x, out, s);
}

// The same of the pieces of a matrix, whose outputs lie side by side.
static void products(const Matrix *w, const float *x, float *out, const Step *s, const Matrix *next) {
    int64_t width = 0;
    for (int n = 0; n < PIECES; n++) width += w[n].outputs;
    if (w->outputs == width) {
        product_before(w, x, out, s, next);
        return;
    }
    for (int n = 0; n < PIECES && w[n].outputs; out += w[n++].outputs) {
        product_before(w + n, x, s->piece, s, n + 1 < PIECES && w[n + 1].outputs ? w + n + 1 : next);
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

// The stream becomes what a norm has given, multiplied, if at all.
static void keep(const Layer *l, const Step *s, float *x, const float *normed, float by) {
    for (int64_t i = 0; by && i < s->rows * l->hidden; i++) x[i] = normed[i] * by;
}

static void leave(const Layer *l, const Step *s, float *delta, const Norm *norm) {
    if (norm->weight) normalize(l, s, delta, 0, norm, delta);
}

static void scale(float *x, float by, const Step *s, int64_t size, int64_t stride) {
    if (by == 1) return;
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t i = 0; i < size; i++) x[row * stride + i] *= by;
}

static void grow(float *qkv, int64_t stride, int64_t size, const Step *s) {
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t i = 0; i < size; i++) qkv[row * stride + i] *= s->growth[row];
}

static void weigh_queries(float *qkv, int64_t stride, const Heads *h, const float *by, const Step *s) {
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t head = 0; head < h->heads; head++)
            for (int64_t i = 0; i < h->head_dim; i++) qkv[row * stride + head * h->head_dim + i] *= by[i];
}

// [rows, queries and keys] becomes [rows, queries, keys and the same again], where it is.
static void repeat_keys(const Step *s, const Heads *h, float *qkv) {
    const int64_t queries = h->heads * h->head_dim, keys = h->kv_heads * h->head_dim, stride = queries + 2 * keys;
    for (int64_t row = s->rows - 1; row >= 0; row--) {
        float *to = qkv + row * stride;
        memmove(to, qkv + row * (queries + keys), (size_t)(queries + keys) * sizeof(float));
        memcpy(to + queries + keys, to + queries, (size_t)keys * sizeof(float));
    }
}

// [rows, queries, keys and values of `narrow` numbers] becomes [rows, queries, keys and values as long as keys], with
// zeros behind, where it is.
static void widen_values(const Step *s, const Heads *h, float *qkv, int64_t narrow) {
    const int64_t d = h->head_dim, before = (h->heads + h->kv_heads) * d;
    for (int64_t row = s->rows - 1; row >= 0; row--) {
        const float *from = qkv + row * (before + h->kv_heads * narrow);
        float *to = qkv + row * (before + h->kv_heads * d);
        for (int64_t head = h->kv_heads - 1; head >= 0; head--) {
            float *value = to + before + head * d;
            memmove(value, from + before + head * narrow, (size_t)narrow * sizeof(float));
            memset(value + narrow, 0, (size_t)(d - narrow) * sizeof(float));
        }
        memmove(to, from, (size_t)before * sizeof(float));
    }
}

static int attend(const Layer *l, const Step *s, const float *entering, const Pages *keys, const Pages *values) {
    const Heads *h = &l->made;
    const int64_t d = h->head_dim, heads = h->heads, all = (heads + 2 * h->kv_heads) * d;
    const int64_t stride = all + (l->share_a_gate ? heads * d / l->share_a_gate : 0);
    products(l->attention.first, entering, s->first, s, &l->attention.output);
    if (l->values_are_keys) repeat_keys(s, h, s->first);
    if (l->narrow) widen_values(s, h, s->first, l->narrow);
    tandem_rotate_and_store(s->first, stride, h, s->cos, s->sin, l->stores ? keys : 0, values, s->format, s->slots,
                            s->rows, s->page_size, s->threads);
    if (l->grows) grow(s->first, stride, heads * d, s);
    if (l->query_weights) weigh_queries(s->first, stride, h, l->query_weights, s);
    if (s->attending != s->rows) memset(s->mixed, 0, (size_t)(s->rows * heads * d) * sizeof(float));
    const int failed = tandem_attention(keys->numbers, keys->constants, values->numbers, values->constants, s->format,
                                        s->blocks, s->count, s->most, s->tables, s->width, 0, s->first, stride,
                                        s->mixed, h->stored_heads, heads / h->stored_heads, 1, d, d, s->page_size,
                                        s->window, l->scale, l->cap, l->sinks, s->attention_threads);
    for (int64_t i = 1; l->narrow && i < s->rows * heads; i++)
        memmove(s->mixed + i * l->narrow, s->mixed + i * d, (size_t)l->narrow * sizeof(float));
    if (l->share_a_gate)
        (l->softplus ? tandem_gate_by_softplus : tandem_gate_by_sigmoid)(s->mixed, s->first + all, s->rows, heads * d,
                                                                         l->share_a_gate, stride, s->threads);
    return failed;
}

// x [size] turned by cos and signed sin, to `to`.
static void turn(const float *x, const float *cos, const float *sin, float *to, int64_t size) {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        to[i] = x[i] * cos[i] + x[i + half] * sin[i];
        to[i + half] = x[i + half] * cos[i + half] + x[i] * sin[i + half];
    }
}

// What threads share of latents: heads or rows.
typedef struct {
    const Layer *l;
    const Step *s;
    const Pages *keys;
    const float *from;
    int64_t size, stride;
} Latent;

// The first `size` numbers of each head's part of x, whose parts are `stride` numbers long.
static void part_heads(const void *of) {
    const Latent *p = of;
    const Step *s = p->s;
    const int64_t count = p->l->latents.heads;
#pragma omp for schedule(static) nowait
    for (int64_t head = 0; head < count; head++)
        for (int64_t row = 0; row < s->rows; row++)
            memcpy(s->by_head + (head * s->rows + row) * p->size, p->from + (row * count + head) * p->stride,
                   (size_t)p->size * sizeof(float));
}

// The first `size` numbers of what each head gives, whose parts are `stride` numbers long, side by side.
static void join_heads(const void *of) {
    const Latent *p = of;
    const Step *s = p->s;
    const int64_t count = p->l->latents.heads;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t head = 0; head < count; head++)
            memcpy(s->mixed + (row * count + head) * p->size, s->of_head + (head * s->rows + row) * p->stride,
                   (size_t)p->size * sizeof(float));
}

INLINE int threads_for_latents(const Step *s) { return s->rows > MOST_ALONE ? s->threads : 1; }

// A product of each head with the first numbers of its part of x, whose parts are `stride` numbers long: to `s->of_head`
// [heads, rows, width]. Returns 0, or 1 without memory.
static int of_heads(const Layer *l, const Step *s, const Matrix *heads, const float *x, int64_t stride) {
    const Latent parts = {.l = l, .s = s, .from = x, .size = heads->inputs, .stride = stride};
    tandem_together(threads_for_latents(s), part_heads, &parts);
    return tandem_heads(heads, l->latents.heads, s->by_head, s->of_head, s->rows, s->threads);
}

// A row's latent, normed and turned, is stored; its queries, of which `s->of_head` has the first numbers, become whole.
static void place_latent(const Layer *l, const Step *s, const Pages *keys, int64_t row) {
    const Latents *a = &l->latents;
    const Heads *h = &l->made;
    const int64_t d = a->rank + a->rotated, query = a->unrotated + a->rotated, width = width_of(a->key_up);
    const float *cos = s->cos + row * a->rotated, *sin = s->sin + row * a->rotated;
    float *latent = s->latent + row * d, turned[MOST_ROTATED];
    tandem_add_norm(latent, 0, a->latent_norm, latent, 1, a->rank, a->eps, 1);
    turn(latent + a->rank, cos, sin, turned, a->rotated);
    memcpy(latent + a->rank, turned, (size_t)a->rotated * sizeof(float));
    for (int64_t i = 0; h->key_scale && i < d; i++) latent[i] = (latent[i] - h->key_mean[i]) / h->key_scale[i];
    tandem_store(latent, keys, s->slots[row] * s->page_size + s->slots[s->rows + row], d, s->format);
    for (int64_t head = 0; head < a->heads; head++) {
        float *to = s->queries + (row * a->heads + head) * d;
        memcpy(to, s->of_head + (head * s->rows + row) * width, (size_t)a->rank * sizeof(float));
        turn(s->first + (row * a->heads + head) * query + a->unrotated, cos, sin, to + a->rank, a->rotated);
        for (int64_t i = 0; h->key_scale && i < d; i++) to[i] *= h->key_scale[i];
    }
}

static void place_latents(const void *of) {
    const Latent *p = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < p->s->rows; row++) place_latent(p->l, p->s, p->keys, row);
}

// The first `rotated` numbers of each of `count` vectors of a row are turned where they are.
static void turn_first(const Layer *l, const Step *s, float *x, int64_t count, int64_t row) {
    const int64_t rotated = l->latents.rotated, size = l->indexer.size;
    const float *cos = s->cos + row * rotated, *sin = s->sin + row * rotated;
    float turned[MOST_ROTATED];
    for (int64_t n = 0; n < count; n++) {
        float *vector = x + (row * count + n) * size;
        turn(vector, cos, sin, turned, rotated);
        memcpy(vector, turned, (size_t)rotated * sizeof(float));
    }
}

static void turn_index_queries(const void *of) {
    const Latent *p = of;
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < p->s->rows; row++)
        turn_first(p->l, p->s, p->s->index_queries, p->l->indexer.heads, row);
}

// Index keys are stored, and tokens chosen by them for this layer and those behind it that have no indexer. `from`: what
// queries are made of.
static int choose_tokens(const Layer *l, const Step *s, const float *entering, const float *from, const Pages *keys) {
    const Indexer *by = &l->indexer;
    product(&by->key, entering, s->index_keys, s);
    tandem_add_layer_norm(s->index_keys, 0, by->norm.weight, by->norm.bias, s->index_keys, s->rows, by->size, by->eps,
                          s->threads);
    for (int64_t row = 0; row < s->rows; row++) {
        turn_first(l, s, s->index_keys, 1, row);
        tandem_store(s->index_keys + row * by->size, keys, s->slots[row] * s->page_size + s->slots[s->rows + row],
                     by->size, s->choice->format);
    }
    if (!s->choice->count) return 0;
    product(&by->query, from, s->index_queries, s);
    product(&by->weights, entering, s->index_weights, s);
    const Latent queries = {.l = l, .s = s};
    tandem_together(threads_for_latents(s), turn_index_queries, &queries);
    const Scored scored = {keys->numbers, s->index_queries,       s->index_weights, by->heads,
                           by->size,      width_of(&by->weights), by->scale};
    return tandem_choose(s->choice, &scored, s->threads);
}

static int attend_latents(const Layer *l, const Step *s, const float *entering, const Pages *keys,
                          const Pages *index_keys) {
    const Latents *a = &l->latents;
    const Heads *h = &l->made;
    const int64_t d = a->rank + a->rotated, group = a->heads / s->shares_of_heads, width = width_of(a->value_up);
    const float *from = entering;
    if (a->query_latent.outputs) {
        product(&a->query_latent, entering, s->gates, s);
        tandem_add_norm(s->gates, 0, a->query_norm, s->gates, s->rows, a->query_latent.outputs, a->eps, s->threads);
        from = s->gates;
    }
    product(&a->query, from, s->first, s);
    if (l->grows) grow(s->first, a->heads * (a->unrotated + a->rotated), a->heads * (a->unrotated + a->rotated), s);
    product(&a->latent, entering, s->latent, s);
    int failed = of_heads(l, s, a->key_up, s->first, a->unrotated + a->rotated);
    if (failed) return failed;
    const Latent placed = {.l = l, .s = s, .keys = keys};
    tandem_together(threads_for_latents(s), place_latents, &placed);
    if (l->indexer.heads) failed |= choose_tokens(l, s, entering, from, index_keys);
    if (failed) return failed;
    if (s->attending != s->rows) memset(s->attended, 0, (size_t)(s->rows * a->heads * d) * sizeof(float));
    failed = tandem_attention(keys->numbers, keys->constants, keys->numbers, keys->constants, s->format, s->blocks,
                              s->count, s->most, s->tables, s->width, 0, s->queries, a->heads * d, s->attended, 1,
                              group, s->shares_of_heads, d, a->rank, s->page_size, s->window, l->scale, l->cap, 0,
                              s->attention_threads);
    if (s->choice && s->choice->count)
        failed |= tandem_attention(keys->numbers, keys->constants, keys->numbers, keys->constants, s->format, s->far,
                                   s->choice->count, 1, s->choice->chosen, s->choice->most, 1, s->queries, a->heads * d,
                                   s->attended, 1, group, s->shares_of_heads, d, a->rank, s->page_size, s->window,
                                   l->scale, l->cap, 0, s->attention_threads);
    for (int64_t i = 0; h->key_scale && i < s->rows * a->heads; i++)
        for (int64_t n = 0; n < a->rank; n++)
            s->attended[i * d + n] = s->attended[i * d + n] * h->key_scale[n] + h->key_mean[n];
    failed |= of_heads(l, s, a->value_up, s->attended, d);
    const Latent given = {.l = l, .s = s, .size = a->value, .stride = width};
    tandem_together(threads_for_latents(s), join_heads, &given);
    if (l->share_a_gate) {
        product(&l->gates, entering, s->gates, s);
        tandem_gate_by_sigmoid(s->mixed, s->gates, s->rows, a->heads * a->value, l->share_a_gate, width_of(&l->gates),
                               s->threads);
    }
    return failed;
}

static void carry(const Layer *l, const Step *s, const float *entering, Carrying *c) {
    Recurrence *r = &c->r;
    products(l->state.first, entering, s->first, s, 0);
    r->mixed = s->first, r->out = s->mixed, r->stride = 0;
    for (int n = 0; n < PIECES; n++) r->stride += l->state.first[n].outputs;
    if (c->covered != s->rows) memset(s->mixed, 0, (size_t)(s->rows * l->state.output.inputs) * sizeof(float));
    if (c->rule == SHORT_CONVOLUTION) {  // b, c, x: b * x is mixed, c are the gates
        r->gates = s->first + r->channels, r->gates_stride = r->stride;
        for (int64_t row = 0; row < s->rows; row++) {
            float *b = s->first + row * r->stride;
            for (int64_t i = 0; i < r->channels; i++) b[i] *= b[i + 2 * r->channels];
        }
        tandem_short_convolution(r, c->works, c->count, c->saves);
        return;
    }
    if (l->gates.outputs) {
        product(&l->gates, entering, s->gates, s);
        r->gates = s->gates, r->gates_stride = width_of(&l->gates);
    }
    if (c->rule == KIMI_DELTA) tandem_kimi_delta(r, c->works, c->count, c->saves);
    else (c->rule == MAMBA ? tandem_mamba : tandem_delta_net)(r, c->works, c->count, c->saves);
}

// Whether what gates let through is packed for the next product as it is computed, and is never anywhere else.
static int packs_gated(const Layer *l, const Step *s) {
    const Matrix *up = l->gate_up, *down = &l->down;
    return l->gated_mlp && l->gate_by == 1 && l->activation != LIMITED && up->bits == WIDE &&
           up->outputs == 2 * l->inner && !up->bias && down->bits == WIDE && up->half == down->half &&
           wide_gates(up->half, s->rows, up->inputs, l->inner);
}

static void feed_all(const Layer *l, const Step *s, const float *entering, float *out, const Matrix *behind) {
    const Matrix *up = l->gate_up, *down = &l->down;
    if (packs_gated(l, s)) {
        wide_gated(up->half, up->numbers, l->activation, entering, s->room, s->inner, s->rows, up->inputs, l->inner,
                   s->threads);
        wide_product_of_packed(down->half, down->numbers, s->inner, out, s->rows, l->inner, down->outputs, s->threads);
        add_bias(down, out, s);
        scale(out, l->fed_by, s, l->hidden, l->hidden);
        return;
    }
    products(l->gate_up, entering, l->gated_mlp ? s->gate_up : s->inner, s, down);
    if (l->gated_mlp) {
        scale(s->gate_up, l->gate_by, s, l->inner, 2 * l->inner);
        tandem_gate(l->activation, l->limit, s->gate_up, s->inner, s->rows, l->inner, 2 * l->inner, s->threads);
    } else tandem_activate(l->activation, s->inner, s->rows * l->inner, s->threads);
    product_before(down, s->inner, out, s, behind);
    scale(out, l->fed_by, s, l->hidden, l->hidden);
}

// `behind`: what is read behind it.
static void feed(const Layer *l, const Step *s, const float *entering, float *out, const Matrix *behind) {
    if (!l->experts) {
        feed_all(l, s, entering, out, behind);
        return;
    }
    const int64_t width = width_of(&l->router);
    const float *given = entering;
    product(&l->router, entering, s->logits, s);
    scale(s->logits, l->logits_by, s, l->router.outputs, width);
    tandem_route(&l->routing, s->logits, width, s->shares, s->chosen, s->rows, s->threads);
    if (l->weighs_input) {  // of the one expert
        given = s->given;
        for (int64_t row = 0; row < s->rows; row++) {
            for (int64_t i = row * l->hidden; i < (row + 1) * l->hidden; i++)
                s->given[i] = entering[i] * s->shares[row];
            s->shares[row] = 1;
        }
    }
    if (l->into_experts.outputs) {
        product(&l->into_experts, entering, s->given, s);
        tandem_experts(l->experts, s->given, s->chosen, s->shares, s->input, s->experts_room, s->rows, s->threads);
        product(&l->out_of_experts, s->input, out, s);
    } else tandem_experts(l->experts, given, s->chosen, s->shares, out, s->experts_room, s->rows, s->threads);
    if (!l->inner) return;
    feed_all(l, s, entering, s->beside, 0);
    if (l->shared_router.outputs) {
        product(&l->shared_router, entering, s->logits, s);
        tandem_add_gated(out, s->beside, s->logits, s->rows, l->hidden, width_of(&l->shared_router), s->threads);
    } else tandem_add(out, s->beside, s->rows, l->hidden, l->hidden, s->threads);
}

// What a layer does behind its parts.
static void finish(const Layer *l, const Step *s, float *x, float *delta) {
    const int64_t size = l->given_gate.outputs;
    if (size) {
        tandem_add(x, delta, s->rows, l->hidden, l->hidden, s->threads);
        product(&l->given_gate, x, s->input, s);
        tandem_activate(l->given_activation, s->input, s->rows * size, s->threads);
        for (int64_t row = 0; row < s->rows; row++)
            for (int64_t i = 0; i < size; i++)
                s->input[row * size + i] *= s->inputs[row * s->input_stride + l->given_at + i];
        product(&l->given_output, s->input, delta, s);
        tandem_add_norm(delta, 0, l->given_norm, delta, s->rows, l->hidden, l->given_eps, s->threads);
    }
    if (!l->by) return;
    scale(x, *l->by, s, l->hidden, l->hidden);
    scale(delta, *l->by, s, l->hidden, l->hidden);
}

// What attention gives, or a state, or the sum of both.
static int mix(const Layer *l, const Step *s, const float *entering, float *out, const Pages *keys, const Pages *values,
               const Pages *index_keys, Carrying *state) {
    const int attends = l->attention.output.outputs > 0;
    int failed = 0;
    if (attends) {
        failed =
            l->latents.heads ? attend_latents(l, s, entering, keys, index_keys) : attend(l, s, entering, keys, values);
        product_before(&l->attention.output, s->mixed, out, s, l->gate_up);
        scale(out, l->attention.by, s, l->hidden, l->hidden);
    }
    if (state) {
        float *to = attends ? s->beside : out;
        carry(l, s, entering, state);
        product(&l->state.output, s->mixed, to, s);
        scale(to, l->state.by, s, l->hidden, l->hidden);
        if (attends) tandem_add(out, to, s->rows, l->hidden, l->hidden, s->threads);
    }
    return failed;
}

// A layer in a step, and what it keeps. `state`: unless the layer has one, 0.
typedef struct {
    const Layer *layer;
    const Step *step;
    const Pages *keys, *values;
    Carrying *state;
    const Pages *index_keys;
} Turn;

// x [rows, hidden] and `delta`, which is still to be added to it, before the layer (unless `begins`) and after it.
// `behind`: what is read behind the layer.
static int compute(const Turn *turn, float *x, float *delta, int begins, const Matrix *behind) {
    const Layer *l = turn->layer;
    const Step *s = turn->step;
    const float *entering = enter(l, s, x, begins ? 0 : delta, &l->enter_attention);
    int failed = 0;
    if (turn->state || l->attention.output.outputs) {
        keep(l, s, x, entering, l->keeps_mixed);
        failed = mix(l, s, entering, delta, turn->keys, turn->values, turn->index_keys, turn->state);
        leave(l, s, delta, &l->leave_attention);
        if (l->feeds == NOTHING) return failed;
        if (l->parallel) {
            if (l->enter_mlp.weight) entering = enter(l, s, x, 0, &l->enter_mlp);
            feed(l, s, entering, s->beside, behind);
            tandem_add(delta, s->beside, s->rows, l->hidden, l->hidden, s->threads);
            return failed;
        }
        entering = enter(l, s, x, delta, &l->enter_mlp);
        keep(l, s, x, entering, l->keeps_fed);
    }
    if (l->feeds == THE_CALLERS) return failed;
    feed(l, s, entering, delta, behind);
    leave(l, s, delta, &l->leave_mlp);
    finish(l, s, x, delta);
    return failed;
}

// What follows the last layer, and where its answer [rows, width] goes.
typedef struct {
    Norm norm;
    Matrix output;
    int64_t hidden;
    float eps;
    int32_t centred;
    float *logits;
} Ending;

// x + delta are normed, and multiplied by the output.
static void end(const Ending *e, const Step *s, float *x, const float *delta) {
    const Layer like = {.hidden = e->hidden, .eps = e->eps, .centred = e->centred};
    normalize(&like, s, x, delta, &e->norm, s->normed);
    product(&e->output, s->normed, e->logits, s);
}

typedef struct {
    const Turn *const *turns;
    int64_t count;
    float *x, *delta;
    int begins;
    const Ending *ending;
    int *failed;
} Layers;

static void compute_all(const void *of) {
    const Layers *all = of;
    for (int64_t n = 0; n < all->count; n++) {
        const Matrix *behind = n + 1 < all->count ? all->turns[n + 1]->layer->attention.first
                               : all->ending      ? &all->ending->output
                                                  : 0;
        *all->failed |= compute(all->turns[n], all->x, all->delta, all->begins && n == 0, behind);
    }
    if (all->ending) end(all->ending, all->turns[all->count - 1]->step, all->x, all->delta);
}

// Layers one after the other, and what follows them, unless it is 0. Where the feed-forward part of the last one is the
// caller's, x and `normed` are ready for it; of the others it is not. Returns 0, or 1 without memory.
int tandem_layers(const Turn *const *turns, int64_t count, float *x, float *delta, int begins, const Ending *ending) {
    int failed = 0;
    const Layers all = {turns, count, x, delta, begins, ending, &failed};
    const Step *s = turns[0]->step;
    if (s->threads > 1) tandem_lead(s->threads, compute_all, &all);
    else compute_all(&all);
    return failed;
}
