// Which tokens an indexer chooses (`model_parts/indexer.py`): those of the highest scores, of equal ones the first.
//
//     score = sum over heads h of weight_h max(q_h . k, 0)
//
// A product adds up over a key's numbers in their order; what heads give is added up in 16 lanes, those of heads h, h + 16,
// ... in their order, and then across them. So a score does not depend on what else is scored.

#include "selection.h"
#include "team.h"

#define LANES 8
#include "index_scores.h"

#define TOGETHER 256     // tokens that a thread scores at once
#define WORTH (1 << 17)  // multiplications that take about as long as it takes to wake a thread

static void narrow_scoring(const float *queries, const float *weights, int64_t heads, int64_t size, const float *keys,
                           int64_t tokens, float *total) {
    score_tokens(queries, weights, heads, size, keys, tokens, total);
}

static int wide_allowed = 1;

// Whether processors with AVX-512 score by it from now on, and whether this is one. The bits are the same.
int tandem_allow_wide_scores(int allowed) {
    wide_allowed = allowed;
    return wide_is_there();
}

// `count` numbers as fp32.
static void widen(int format, const void *from, int64_t count, float *to) {
    const uint16_t *half = from;
    int64_t i = 0;
    if (format == FP32) {
        memcpy(to, from, (size_t)count * sizeof(float));
        return;
    }
    for (; i < count; i += 8) {
        uint16_t last[8] = {0};
        const int whole = i + 8 <= count;
        if (!whole) memcpy(last, half + i, (size_t)(count - i) * sizeof(uint16_t));
        const __m128i eight = _mm_loadu_si128((const __m128i *)(whole ? half + i : last));
        const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16);
        const __m256 wide = format == BF16 ? _mm256_castsi256_ps(high) : _mm256_cvtph_ps(eight);
        if (whole) _mm256_storeu_ps(to + i, wide);
        else {
            float rest[8];
            _mm256_storeu_ps(rest, wide);
            memcpy(to + i, rest, (size_t)(count - i) * sizeof(float));
        }
    }
}

// A number whose order among others is that of the score. What is not finite is a broken sequence's own.
INLINE uint32_t ordered(float score) {
    const float largest = 3.40282347e38f, bounded = score > largest ? largest : score >= -largest ? score : -largest;
    const float unsigned_zero = bounded + 0.0f;
    uint32_t bits;
    memcpy(&bits, &unsigned_zero, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Scores of the tokens of pages from `first` to before `last` of a row.
static void score_pages(const Choice *c, const Scored *by, Scoring *scoring, const float *asked, const int32_t *pages,
                        int64_t first, int64_t last, float *room, uint32_t *to) {
    const int64_t size = by->size, tokens = c->page_size, bytes = tokens * size * (c->format == FP32 ? 4 : 2);
    const int64_t heads = filled(by->heads, SUMMED);
    float *total = room + filled(tokens * size, 16);
    for (int64_t page = first; page < last; page++) {
        const char *from = (const char *)by->keys + pages[page] * bytes;
        if (page + 1 < last)
            for (int64_t i = 0; i < bytes; i += 64)
                _mm_prefetch((const char *)by->keys + pages[page + 1] * bytes + i, _MM_HINT_T1);
        const float *keys = (const float *)from;
        if (c->format != FP32) {
            widen(c->format, from, tokens * size, room);
            keys = room;
        }
        scoring(asked, asked + size * heads, by->heads, size, keys, tokens, total);
        for (int64_t t = 0; t < tokens; t++) {
            const float *lanes = total + t * SUMMED;
            to[page * tokens + t] = ordered(one_sum(_mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8))));
        }
    }
}

// A row's queries and weights, as scoring takes them.
static void ask(const Choice *c, const Scored *by, int64_t n, float *to) {
    const int64_t heads = filled(by->heads, SUMMED), row = c->rows[n];
    const float *queries = by->queries + row * by->heads * by->size, *weights = by->weights + row * by->weights_stride;
    memset(to, 0, (size_t)((by->size + 1) * heads) * sizeof(float));
    for (int64_t h = 0; h < by->heads; h++) {
        for (int64_t i = 0; i < by->size; i++) to[i * heads + h] = queries[h * by->size + i];
        to[by->size * heads + h] = weights[h] * by->scale;
    }
}

// The places of the `most` highest of so many scores, in order. The least of them is found digit by digit.
static void choose(const uint32_t *scores, int64_t tokens, int64_t most, const int32_t *pages, int64_t page_size,
                   int32_t *to) {
    static const int first_bits[3] = {21, 10, 0};
    uint32_t least = 0, known = 0;
    int64_t equal = most;  // that are chosen of those that agree so far
    for (int n = 0; n < 3; n++) {
        const uint32_t digits = n == 2 ? 1024 : 2048;
        uint32_t counts[2048] = {0}, digit = digits - 1;
        for (int64_t i = 0; i < tokens; i++)
            counts[(scores[i] >> first_bits[n]) & (digits - 1)] += (scores[i] & known) == least;
        for (; equal > counts[digit]; digit--) equal -= counts[digit];
        least |= digit << first_bits[n], known |= (digits - 1) << first_bits[n];
    }
    int64_t chosen = 0;
    for (int64_t start = 0; chosen < most; start += page_size) {
        const int64_t left = tokens - start, here = left < page_size ? left : page_size;
        for (int64_t i = 0; i < here && chosen < most; i++) {
            const uint32_t score = scores[start + i];
            if (score < least || (score == least && !equal)) continue;
            equal -= score == least;
            to[chosen++] = (int32_t)(pages[start / page_size] * page_size + i);
        }
    }
}

// What threads share: `rows` at a time, of `steps` pieces of work at most.
typedef struct {
    const Choice *c;
    const Scored *by;
    Scoring *scoring;
    uint32_t *scores;
    float *asked;
    int64_t rows, width, step, steps, asked_size, room_size;
    int *failed;
} Shared;

static void choose_some(const void *of) {
    const Shared *s = of;
    const Choice *c = s->c;
    const int64_t rows = s->rows, step = s->step, size = c->page_size;
    float *room = aligned_alloc(64, (size_t)filled(s->room_size, 16) * sizeof(float));
    if (!room) __atomic_store_n(s->failed, 1, __ATOMIC_RELAXED);
    for (int64_t first = 0; first < c->count; first += rows) {
        const int64_t here = c->count - first < rows ? c->count - first : rows;
#pragma omp for schedule(static)
        for (int64_t n = 0; n < here; n++) ask(c, s->by, first + n, s->asked + n * s->asked_size);
        // Rows of a sequence look at the same pages one after the other.
#pragma omp for schedule(dynamic, 1)
        for (int64_t job = 0; job < here * s->steps; job++) {
            const int64_t n = job % here, begins = job / here * step, row = first + n;
            const int64_t its = c->positions[row] / size + 1, ends = begins + step < its ? begins + step : its;
            if (room)
                score_pages(c, s->by, s->scoring, s->asked + n * s->asked_size, c->tables + c->owners[row] * c->width,
                            begins, ends, room, s->scores + n * s->width);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < here; n++) {
            const int64_t row = first + n;
            if (room)
                choose(s->scores + n * s->width, c->positions[row] + 1, c->most, c->tables + c->owners[row] * c->width,
                       size, c->chosen + row * c->most);
        }
    }
    free(room);
}

// Fills in what is chosen for each row. Returns 0, or 1 without memory.
int tandem_choose(const Choice *c, const Scored *by, int threads) {
    const int64_t size = c->page_size, heads = filled(by->heads, SUMMED), asked_size = (by->size + 1) * heads;
    int64_t pages = 0, all = 0;
    for (int64_t n = 0; n < c->count; n++) {
        const int64_t here = c->positions[n] / size + 1;
        pages = here > pages ? here : pages, all += here;
    }
    const int64_t width = pages * size;
    const int64_t most_rows = c->most_scores / (width ? width : 1) > 0 ? c->most_scores / (width ? width : 1) : 1;
    const int64_t rows = most_rows < c->count ? most_rows : c->count;
    const int64_t step = TOGETHER / size > 0 ? TOGETHER / size : 1;
    int failed = 0;
    const Shared s = {.c = c,
                      .by = by,
                      .scoring = wide_allowed && wide_is_there() ? wide_scoring : narrow_scoring,
                      .scores = malloc((size_t)(rows * width + 1) * sizeof(uint32_t)),
                      .asked = aligned_alloc(64, (size_t)filled(rows * asked_size + 1, 16) * sizeof(float)),
                      .rows = rows,
                      .width = width,
                      .step = step,
                      .steps = (pages + step - 1) / step,
                      .asked_size = asked_size,
                      .room_size = filled(size * by->size, 16) + size * SUMMED,
                      .failed = &failed};
    if (!s.scores || !s.asked) failed = 1;
    else tandem_together(all * size * by->heads * by->size > WORTH ? threads : 1, choose_some, &s);
    free(s.scores);
    free(s.asked);
    return failed;
}
