// Layers with states: what all kinds of them do, token by token.
//
// A sequence's state lies in a slot: what is carried from token to token, the last inputs of a convolution before its
// position (the *tail*), and a *journal* of the tokens behind it, which may still turn out to be wrong. A piece of work
// first repeats the `replayed` journal tokens that turned out to be right, then goes on with its own; the state after
// `commit` of them all stays in the slot, the tokens behind them become the journal. Token by token in one order, so
// that a sequence's bits depend neither on how it is cut nor on who is beside it; the columns of a state do not see
// each other, so that 32 of them stay in a core's first cache for all tokens.

#ifndef TANDEM_RECURRENCE_H
#define TANDEM_RECURRENCE_H

#include "numbers.h"
#include "operations.h"
#include "team.h"

#define COLUMNS 32
#define MOST_ROWS 256
#define BLOCK 64  // channels that one thread convolves

typedef struct {
    int64_t slot;   // -1: nothing is kept
    int64_t fresh;  // the state before is zero, whatever lies in the slot
    int64_t row, length, replayed, commit;
    int64_t place;  // of its first token in the room
    int64_t first_save, last_save;
} Work;

typedef struct {
    int64_t count, slot;  // the state after so many tokens goes to this slot, too
} Save;

INLINE __m256 silu(__m256 x) {
    const __m256 below = exponential(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), below));
}

INLINE __m256 sigmoid(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), below = exponential(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(one, _mm256_add_ps(one, below));
}

INLINE int64_t all_tokens(const Work *works, int64_t count) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) tokens += works[i].replayed + works[i].length;
    return tokens;
}

// A layer's step, which threads share.
typedef struct {
    const Recurrence *r;
    const Work *works;
    int64_t count;
    const Save *saves;
} Carried;

INLINE Carried carried(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saves) {
    const Carried c = {r, (const Work *)works, count, (const Save *)saves};
    return c;
}

// How many threads pay: a state of 256 KiB takes about as long to read and write as it takes to wake one.
INLINE int worth_threads(const Recurrence *r, int64_t tokens) {
    return tokens * r->heads * r->rows * r->columns >= 65536 ? r->threads : 1;
}

// The inputs of channel `c` and the 7 behind it, at place i of tail, journal and new rows in a line.
INLINE const float *input(const Recurrence *r, const Work *w, const float *tail, int64_t i, int64_t c) {
    const int64_t kept = r->kernel - 1 + w->replayed;
    if (i >= kept) return r->mixed + (w->row + i - kept) * r->stride + c;
    return tail && !(w->fresh && i < r->kernel - 1) ? tail + i * r->channels + c : 0;
}

// Moves the tails: those of the slots that are saved to first, for their source is overwritten.
static inline void keep_inputs(const Recurrence *r, const Work *w, const Save *saves, const float *tail, int64_t c,
                               int64_t width) {
    const int64_t line = (r->kernel - 1 + r->journal) * r->channels, all = w->replayed + w->length;
    for (int64_t n = w->first_save; n <= w->last_save; n++) {
        const int last = n == w->last_save;
        const int64_t count = last ? w->commit : saves[n].count, slot = last ? w->slot : saves[n].slot;
        const int64_t rows = r->kernel - 1 + (last ? all - w->commit : 0);
        float *to = r->tails + slot * line + c;
        for (int64_t i = 0; i < rows; i++, to += r->channels) {
            const float *from = input(r, w, tail, count + i, c);
            if (from) memmove(to, from, (size_t)width * sizeof(float));
            else memset(to, 0, (size_t)width * sizeof(float));
        }
    }
}

// The convolution of the channels of a block, into the room; `activated`: by silu.
INLINE void convolve(const Recurrence *r, const Work *w, const Save *saves, int64_t block, const int activated) {
    const int64_t c = block * BLOCK, width = r->channels - c < BLOCK ? r->channels - c : BLOCK;
    const float *tail = w->slot < 0 ? 0 : r->tails + w->slot * (r->kernel - 1 + r->journal) * r->channels;
    for (int64_t at = c; at < c + width; at += 8)
        for (int64_t t = 0; t < w->replayed + w->length; t++) {
            __m256 sum = _mm256_setzero_ps();
            for (int64_t j = 0; j < r->kernel; j++) {
                const float *x = input(r, w, tail, t + j, at);
                if (x)
                    sum = _mm256_fmadd_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(r->filter + j * r->channels + at), sum);
            }
            if (r->filter_bias) sum = _mm256_add_ps(sum, _mm256_loadu_ps(r->filter_bias + at));
            float *to = r->room + (w->place + t) * (r->channels + r->factors) + at;
            _mm256_storeu_ps(to, activated ? silu(sum) : sum);
        }
    if (w->slot >= 0) keep_inputs(r, w, saves, tail, c, width);
}

// Puts the factors of replayed tokens into the room, and gives where those of the first one lie.
INLINE float *replay_factors(const Recurrence *r, const Work *w) {
    const int64_t width = r->channels + r->factors;
    float *first = r->room + w->place * width + r->channels;
    for (int64_t t = 0; t < w->replayed; t++)
        memcpy(first + t * width, r->journals + (w->slot * r->journal + t) * r->factors,
               (size_t)r->factors * sizeof(float));
    return first;
}

// Makes those of the tokens behind the state the journal.
INLINE void keep_factors(const Recurrence *r, const Work *w, const float *first) {
    if (w->slot < 0) return;
    for (int64_t t = w->commit; t < w->replayed + w->length; t++)
        memcpy(r->journals + (w->slot * r->journal + t - w->commit) * r->factors,
               first + t * (r->channels + r->factors), (size_t)r->factors * sizeof(float));
}

INLINE float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// Of the factors of a token, each head has one beside them.
INLINE int64_t decays_of_a_head(const Recurrence *r) { return r->factors / r->heads - 1; }

// One token on `n` times 8 columns of a state s [rows, COLUMNS]: it is changed by `write` [rows] and what is given, v,
// then read by `read` [rows]; without `out` it is not read. Decays are one, or one of each row.
typedef void Step(int n, float *s, int64_t rows, const float *read, const float *write, const float *v,
                  const float *decay, float other, float skip, float *out);

// All tokens of some columns of a head; `read`, `write` and `v` are the places of these in a token's channels.
INLINE void recur(const Recurrence *r, const Work *w, const Save *saves, int64_t head, int64_t column, int64_t read,
                  int64_t write, int64_t v, Step step) {
    const int64_t rows = r->rows, columns = r->columns, width = r->channels + r->factors, size = rows * columns;
    const int64_t some = columns - column < COLUMNS ? columns - column : COLUMNS;
    const size_t bytes = (size_t)some * sizeof(float);
    const float skip = r->skip ? r->skip[head] : 0;
    float s[MOST_ROWS * COLUMNS] __attribute__((aligned(32)));
    float *kept = w->slot < 0 ? 0 : r->states + (w->slot * r->heads + head) * size + column;
    for (int64_t i = 0; i < rows; i++)
        if (kept && !w->fresh) memcpy(s + i * COLUMNS, kept + i * columns, bytes);
        else memset(s + i * COLUMNS, 0, bytes);
    const int64_t all = w->replayed + w->length;
    for (int64_t t = 0; t <= all; t++) {
        if (kept && t == w->commit)
            for (int64_t i = 0; i < rows; i++) memcpy(kept + i * columns, s + i * COLUMNS, bytes);
        for (int64_t n = w->first_save; n < w->last_save; n++)
            if (saves[n].count == t)
                for (int64_t i = 0; i < rows; i++)
                    memcpy(r->states + (saves[n].slot * r->heads + head) * size + column + i * columns, s + i * COLUMNS,
                           bytes);
        if (t == all) break;
        const float *x = r->room + (w->place + t) * width;
        const int64_t decays = decays_of_a_head(r);
        const float *decay = x + r->channels + head * decays, other = x[r->channels + r->heads * decays + head];
        const int64_t place = (w->row + t - w->replayed) * r->heads * columns + head * columns + column;
        float *out = t < w->replayed ? 0 : r->out + place;
        switch (some / 8) {
        case 4: step(4, s, rows, x + read, x + write, x + v + column, decay, other, skip, out); break;
        case 3: step(3, s, rows, x + read, x + write, x + v + column, decay, other, skip, out); break;
        case 2: step(2, s, rows, x + read, x + write, x + v + column, decay, other, skip, out); break;
        default: step(1, s, rows, x + read, x + write, x + v + column, decay, other, skip, out);
        }
    }
}

#endif
