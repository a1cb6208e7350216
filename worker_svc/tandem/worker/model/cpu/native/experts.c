// The experts of a layer in one call.
//
// A pair is a row and one of its experts. Pairs stand in the order of their experts, and of one expert in that of the rows:
//
//     gate, up   some outputs of one expert, for all of its pairs       [pairs, 2 inner]
//     gate       a pair: activation(gate) * up, or activation(up)       [pairs, inner]
//     down       some outputs of one expert, for all of its pairs       [pairs, hidden]
//     sum        a row: the answers of its experts by their shares, in the order of their numbers
//
// Threads share the outputs (`shares.h`) and so end together whoever was chosen. An expert's matrices are read once, and only
// those of experts that somebody chose. As many pairs as there is room for are computed at once, all of an expert's among
// them. A number is computed by the same instructions in the same order whatever is computed beside it, so a row's bits
// depend neither on the others nor on how many threads there are.

#include "gates.h"
#include "matrices.h"
#include "operations.h"
#include "shares.h"
#include "team.h"

#define OUTPUTS 64          // of one expert that a thread takes at once
#define WIDE_OUTPUTS 128    // the same of wide panels
#define PAIRS_AT_ONCE 1024  // that are computed at once, or more if there are more rows
#define COLUMNS 512         // that a thread adds up at once
#define WORTH (1 << 17)     // multiplications that take about as long as it takes to wake a thread

struct Experts {
    const Matrix *gate_up, *down;  // of each expert; all are stored alike
    int64_t count, per_row, hidden, inner;
    int32_t gated;  // or else the first matrix is up alone
    Gate gate;
};

// Rows as they go into a matrix.
typedef struct {
    float *x;            // as they are
    int32_t *q;          // of quantized products, [rows, words]: see `Rounding`
    float *scale, *sum;  // [rows, groups]
    int32_t *arranged;   // of each pair `arranged_words`: an expert's rows as its kernel takes them
} Inputs;

typedef struct {
    int32_t *first;   // [count + 1] where an expert's pairs begin
    int32_t *order;   // [pairs] the row of each
    int32_t *expert;  // [pairs] the expert of each
    int32_t *places;  // [rows, per_row] which pair each choice is
    int32_t *turns;   // [rows, per_row] a row's choices in the order of their experts
    int32_t *active;  // [count] experts that somebody chose
    Inputs entering, between;
    float *gate_up, *answers;
} Room;

static int64_t quantized_words(const Matrix *m) { return rounding_for(m).words; }

// Of a row, in words of 32 bits.
static int64_t arranged_words(const Matrix *m) {
    if (is_quantized(m)) return quantized_words(m) + 2 * m->groups;
    if (m->bits == WIDE) return wide_words(m->half, m->inputs);
    return m->inputs;
}

static int64_t parts_of(const Matrix *m) {
    const int64_t part = m->bits == WIDE ? WIDE_OUTPUTS : OUTPUTS;
    return (width_of(m) + part - 1) / part;
}

// ---------------------------------------------------------------------------------------------------- room

static void *take(char **at, int64_t numbers) {
    char *here = *at;
    *at += (numbers * 4 + 63) / 64 * 64;
    return here;
}

static void take_inputs(char **at, const Matrix *m, int64_t rows, int64_t pairs, Inputs *in) {
    if (is_quantized(m)) {
        in->q = take(at, rows * quantized_words(m));
        in->scale = take(at, rows * m->groups);
        in->sum = take(at, rows * m->groups);
    }
    in->arranged = take(at, pairs * arranged_words(m));
}

static int64_t most_pairs(const Experts *e, int64_t rows) {
    const int64_t most = rows > PAIRS_AT_ONCE ? rows : PAIRS_AT_ONCE;
    return most < rows * e->per_row ? most : rows * e->per_row;
}

// Divides `room` and returns how many bytes it has to have.
static int64_t divide(const Experts *e, int64_t rows, char *room, Room *r) {
    const int64_t most = most_pairs(e, rows);
    char *at = room;
    r->first = take(&at, e->count + 1);
    r->order = take(&at, rows * e->per_row);
    r->expert = take(&at, rows * e->per_row);
    r->places = take(&at, rows * e->per_row);
    r->turns = take(&at, rows * e->per_row);
    r->active = take(&at, e->count);
    take_inputs(&at, e->gate_up, rows, most, &r->entering);
    take_inputs(&at, e->down, most, most, &r->between);
    r->between.x = take(&at, most * e->inner);
    r->gate_up = take(&at, most * width_of(e->gate_up));
    r->answers = take(&at, most * width_of(e->down));
    return at - room;
}

int64_t tandem_experts_room(const Experts *e, int64_t rows) {
    Room r;
    return divide(e, rows, 0, &r);
}

// ---------------------------------------------------------------------------------------------------- order

// Sorts pairs; returns how many experts have any.
static int64_t sort(const Experts *e, const int64_t *chosen, int64_t rows, const Room *r) {
    int64_t active = 0;
    memset(r->first, 0, (size_t)(e->count + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < rows * e->per_row; i++) r->first[chosen[i] + 1]++;
    for (int64_t n = 0; n < e->count; n++) {
        if (r->first[n + 1]) r->active[active++] = (int32_t)n;
        r->first[n + 1] += r->first[n];
    }
    for (int64_t row = 0; row < rows; row++) {
        int32_t *places = r->places + row * e->per_row, *turns = r->turns + row * e->per_row;
        for (int64_t i = 0; i < e->per_row; i++) {
            const int64_t expert = chosen[row * e->per_row + i];
            places[i] = r->first[expert]++;
            r->order[places[i]] = (int32_t)row;
            r->expert[places[i]] = (int32_t)expert;
            int64_t at = i;  // places grow with the experts' numbers
            for (; at > 0 && places[turns[at - 1]] > places[i]; at--) turns[at] = turns[at - 1];
            turns[at] = (int32_t)i;
        }
    }
    memmove(r->first + 1, r->first, (size_t)e->count * sizeof(int32_t));
    r->first[0] = 0;
    return active;
}

// ---------------------------------------------------------------------------------------------------- products

static void quantize_row(const Matrix *m, const Inputs *in, const float *x, int64_t row) {
    const Rounding how = rounding_for(m);
    quantize_groups(x, &how, in->q, in->scale, in->sum, row * m->groups, (row + 1) * m->groups);
}

// An expert's `rows` rows, those of `order` (null: one after the other from `at` on), as its kernel takes them. Of a single
// row most kernels take what is there.
static void arrange(const Matrix *m, const Inputs *in, const int32_t *order, int64_t at, int64_t rows, int32_t *to) {
    const int64_t from = order ? 0 : at;
    if (order) order += at;
    if (m->bits == WIDE) {
        const int64_t high = wide_rows(m->half, rows);
        for (int64_t row = 0; row < rows; row += high)
            wide_pack(m->half, in->x + from * m->inputs, order, row, rows - row < high ? rows - row : high, m->inputs,
                      to);
    } else if (rows > 1 && is_quantized(m)) {
        const Rounding how = rounding_for(m);
        const int64_t words = how.words, groups = m->groups;
        const int32_t *const of[3] = {in->q + from * words, (const int32_t *)in->scale + from * groups,
                                      (const int32_t *)in->sum + from * groups};
        int32_t *const scales = to + rows * words, *const into[3] = {to, scales, scales + rows * groups};
        for (int64_t row = 0, some; row < rows; row += some) {
            some = next_tile(&how, rows, row);
            into_tile(&how, of, order, into, rows, row, some, 0, groups);
        }
    } else if (rows > 1 && order) {
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * m->inputs, in->x + order[r] * m->inputs, (size_t)m->inputs * sizeof(float));
    }
}

// A part of the outputs of one expert, for all of its rows.
static void multiply(const Matrix *m, const Inputs *in, const int32_t *order, int64_t at, int64_t rows,
                     const int32_t *arranged, float *out, int64_t part) {
    const int64_t row = order ? order[at] : at;  // the first
    if (m->bits == WIDE) {
        const int64_t pairs = (m->outputs + PAIR - 1) / PAIR, each = WIDE_OUTPUTS / PAIR, first = part * each;
        wide_outputs(m->half, m->numbers, arranged, out, rows, m->inputs, m->outputs, first,
                     first + each < pairs ? first + each : pairs);
        return;
    }
    const int64_t each = OUTPUTS / PANEL, first = part * each;
    const int64_t last = first + each < m->panels ? first + each : m->panels;
    if (is_quantized(m)) {
        const Rounding how = rounding_for(m);
        const int64_t words = how.words, groups = m->groups;
        const int alone = rows == 1;
        const int32_t *x = alone ? in->q + row * words : arranged;
        const float *scale = alone ? in->scale + row * groups : (const float *)arranged + rows * words;
        const float *sum = alone ? in->sum + row * groups : scale + rows * groups;
        const Product p = {.weight = m->numbers,
                           .scale = m->scale,
                           .least = m->least,
                           .scale_unit = m->scale_unit,
                           .least_unit = m->least_unit,
                           .table = how.less ? 0 : m->table,
                           .x = x,
                           .x_scale = scale,
                           .x_sum = sum,
                           .out = out,
                           .rows = rows,
                           .panels = m->panels,
                           .groups = m->groups,
                           .half = m->half,
                           .per_channel = m->per_channel,
                           .less = how.less,
                           .amx = by_amx(&how, rows)};
        const int64_t most = part_rows(&how, rows);
        for (int64_t start = 0; start < rows; start += most) {
            const Product part = part_of(&p, &how, start, rows - start < most ? rows - start : most);
            quantized_outputs(&part, m->bits, (int)m->group, first, last);
        }
        return;
    }
    const float *x = rows == 1 || !order ? in->x + row * m->inputs : (const float *)arranged;
    if (m->bits == FLOAT8)
        float8_outputs(m->numbers, m->scale, m->groups, x, out, rows, m->inputs, m->panels, first, last);
    else half_outputs(m->half, m->numbers, x, out, rows, m->inputs, m->panels, first, last);
}

// One row gate_up [2 size], or up [size] if it is not gated, -> out [size]; `bias`, of as many numbers, may be null.
static void gate_row(const Gate *how, int is_gated, const float *gate_up, const float *bias, float *out, int64_t size) {
    for (int64_t i = 0; i < size; i += 8) {
        const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(size - i)), places);
        __m256 gate = _mm256_maskload_ps(gate_up + i, there), up = _mm256_set1_ps(1.0f);
        if (bias) gate = _mm256_add_ps(gate, _mm256_maskload_ps(bias + i, there));
        if (is_gated) up = _mm256_maskload_ps(gate_up + size + i, there);
        if (is_gated && bias) up = _mm256_add_ps(up, _mm256_maskload_ps(bias + size + i, there));
        _mm256_maskstore_ps(out + i, there, gated(how, gate, up));
    }
}

// What a row's experts answer whose pairs are from `begin` to `end`, added to its `out` in some columns.
static void add_answers(const Experts *e, const Room *r, const float *shares, int64_t row, int64_t begin, int64_t end,
                        int64_t first, int64_t last, float *out) {
    const int64_t width = width_of(e->down);
    for (int64_t i = 0; i < e->per_row; i++) {
        const int64_t choice = row * e->per_row + r->turns[row * e->per_row + i], place = r->places[choice];
        if (place < begin || place >= end) continue;
        const float *answers = r->answers + (place - begin) * width, share = shares[choice];
        const float *bias = e->down[r->expert[place]].bias;
        if (bias)
            for (int64_t c = first; c < last; c++) out[c] += (answers[c] + bias[c]) * share;
        else
            for (int64_t c = first; c < last; c++) out[c] += answers[c] * share;
    }
}

// What threads share.
typedef struct {
    const Experts *e;
    const float *x, *shares;
    float *out;
    Room *room;
    int64_t rows, active, most;
    Share *up_shares, *down_shares;
} Shared;

static void by_experts(const void *of) {
    const Shared *s = of;
    const Experts *e = s->e;
    Room *r = s->room;
    const int64_t rows = s->rows, active = s->active;
    const Matrix *up = e->gate_up, *down = e->down;
    const int64_t up_words = arranged_words(up), down_words = arranged_words(down), up_width = width_of(up),
                  down_width = width_of(down), up_parts = parts_of(up), down_parts = parts_of(down);
    const int64_t columns = (e->hidden + COLUMNS - 1) / COLUMNS;
    const int there = omp_get_num_threads();
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < rows; row++) {
        if (is_quantized(up)) quantize_row(up, &r->entering, s->x, row);
        memset(s->out + row * e->hidden, 0, (size_t)e->hidden * sizeof(float));
    }
    for (int64_t from = 0, to; from < active; from = to) {  // experts whose pairs there is room for
        const int32_t begin = r->first[r->active[from]];
        for (to = from + 1; to < active && r->first[r->active[to] + 1] - begin <= s->most;) to++;
        const int64_t pairs = r->first[r->active[to - 1] + 1] - begin, here = to - from;
        give_share(s->up_shares, there, omp_get_thread_num(), here * up_parts);
        give_share(s->down_shares, there, omp_get_thread_num(), here * down_parts);
#pragma omp barrier
        if (up->bits == WIDE || pairs > here) {
#pragma omp for schedule(dynamic)
            for (int64_t i = from; i < to; i++) {
                const int64_t at = r->first[r->active[i]], own = r->first[r->active[i] + 1] - at;
                arrange(up, &r->entering, r->order, at, own, r->entering.arranged + (at - begin) * up_words);
            }
        }
        for (int64_t i; (i = take_piece(s->up_shares, there)) >= 0;) {
            const int64_t expert = r->active[from + i / up_parts], at = r->first[expert];
            multiply(up + expert, &r->entering, r->order, at, r->first[expert + 1] - at,
                     r->entering.arranged + (at - begin) * up_words, r->gate_up + (at - begin) * up_width,
                     i % up_parts);
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < pairs; i++) {
            const float *bias = up[r->expert[begin + i]].bias;
            gate_row(&e->gate, e->gated, r->gate_up + i * up_width, bias, r->between.x + i * e->inner, e->inner);
            if (is_quantized(down)) quantize_row(down, &r->between, r->between.x, i);
        }
        if (down->bits == WIDE || (is_quantized(down) && pairs > here)) {
#pragma omp for schedule(dynamic)
            for (int64_t i = from; i < to; i++) {
                const int64_t at = r->first[r->active[i]], own = r->first[r->active[i] + 1] - at;
                arrange(down, &r->between, 0, at - begin, own, r->between.arranged + (at - begin) * down_words);
            }
        }
        for (int64_t i; (i = take_piece(s->down_shares, there)) >= 0;) {
            const int64_t expert = r->active[from + i / down_parts], at = r->first[expert];
            multiply(down + expert, &r->between, 0, at - begin, r->first[expert + 1] - at,
                     r->between.arranged + (at - begin) * down_words, r->answers + (at - begin) * down_width,
                     i % down_parts);
        }
#pragma omp barrier
#pragma omp for schedule(static) collapse(2)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t n = 0; n < columns; n++) {
                const int64_t end = (n + 1) * COLUMNS;
                add_answers(e, r, s->shares, row, begin, begin + pairs, n * COLUMNS, end < e->hidden ? end : e->hidden,
                            s->out + row * e->hidden);
            }
    }
}

// x [rows, hidden] -> out [rows, hidden], by experts `chosen` [rows, per_row], each row's different ones, and their
// `shares`. `room` has as many bytes as `tandem_experts_room` says.
void tandem_experts(const Experts *e, const float *x, const int64_t *chosen, const float *shares, float *out,
                    void *room, int64_t rows, int threads) {
    Room r;
    divide(e, rows, room, &r);
    r.entering.x = (float *)x;
    Share up_shares[threads], down_shares[threads];
    const Shared s = {.e = e,
                      .x = x,
                      .shares = shares,
                      .out = out,
                      .room = &r,
                      .rows = rows,
                      .active = sort(e, chosen, rows, &r),
                      .most = most_pairs(e, rows),
                      .up_shares = up_shares,
                      .down_shares = down_shares};
    tandem_together(rows * e->per_row * e->hidden * e->inner > WORTH ? threads : 1, by_experts, &s);
}
