// Tells logprobs and ranks of each row of logits: of some ids, and of the most probable ones. A rank of 1 is the most
// probable; equal ones share a rank, and of these the first come first.

#include "logits.h"

// What a row's logprobs are by, a column a row: those of logits from LOW to HIGH are (logit - HIGH) / TEMPERATURE less the
// logarithm of MASS, all others are impossible. Without them, logits are as the model gave them.
enum { LOW, HIGH, TEMPERATURE, MASS };

typedef struct {
    Row row;
    float low, high;
    double temperature, log_mass;
} Told;

static int possible(const Told *told, float x) { return x >= told->low && x <= told->high && x > -INFINITY; }

static float logprob(const Told *told, float x) {
    if (!possible(told, x)) return -INFINITY;
    return (float)(((double)x - (double)told->high) / told->temperature - told->log_mass);
}

// One more than there are of larger ones that are possible.
static int32_t rank(const Told *told, float x) {
    const Row *row = &told->row;
    if (!possible(told, x)) x = nextafterf(told->low > -FLT_MAX ? told->low : -FLT_MAX, -INFINITY);
    const __m256 least = _mm256_set1_ps(x), most = _mm256_set1_ps(told->high);
    __m256i larger = _mm256_setzero_si256();
    for (int64_t g = 0; g < row->groups; g++) {
        if (row->maxima[g] <= x) continue;
        const float *numbers = group_of(row, g);
        for (int k = 0; k < GROUP; k += 8) {
            const __m256 v = _mm256_loadu_ps(numbers + k);
            const __m256 is = _mm256_and_ps(_mm256_cmp_ps(v, least, _CMP_GT_OQ), _mm256_cmp_ps(v, most, _CMP_LE_OQ));
            larger = _mm256_sub_epi32(larger, _mm256_castps_si256(is));
        }
    }
    int32_t lanes[8], all = 1;
    _mm256_storeu_si256((__m256i *)lanes, larger);
    for (int lane = 0; lane < 8; lane++) all += lanes[lane];
    return all;
}

// The `count` most probable, in order; returns how many there are.
static int64_t most_probable(Told *told, int64_t count, int32_t *ids, float *logprobs, int32_t *ranks) {
    Row *row = &told->row;
    // Where something is larger than all that are possible, the bound would count it.
    const float bound = told->high < row->top ? -INFINITY : low_of_groups(row, count);
    const int64_t there = find(row, bound > told->low ? bound : told->low);
    int64_t kept = 0;
    for (int64_t i = 0; i < there; i++)
        if (number_of(row->found[i].key) <= told->high) row->found[kept++] = row->found[i];
    const int64_t taken = take_largest(row->found, kept, count, row->room);
    for (int64_t i = 0; i < taken; i++) {
        const float x = number_of(row->found[i].key);
        ids[i] = row->found[i].place, logprobs[i] = logprob(told, x);
        ranks[i] = i && row->found[i].key == row->found[i - 1].key ? ranks[i - 1] : (int32_t)i + 1;
    }
    return taken;
}

typedef struct {
    const float *x;
    int64_t n, stride, rows, most;
    const int64_t *places, *ends;
    const double *by;
    const int32_t *ids;
    float *logprobs, *top_logprobs;
    int32_t *ranks, *tops, *top_ids, *top_ranks;
    double *highs, *log_masses;
} Reports;

static void report_one(const void *of, int64_t r, char *room) {
    const Reports *all = of;
    Told told = {.row = row_in(room, all->x + all->places[r] * all->stride, all->n, all->most)};
    const int sound = survey(&told.row);
    if (sound && all->by) {
        told.low = (float)all->by[LOW * all->rows + r], told.high = (float)all->by[HIGH * all->rows + r];
        told.temperature = all->by[TEMPERATURE * all->rows + r], told.log_mass = log(all->by[MASS * all->rows + r]);
    } else if (sound) {
        told.low = -INFINITY, told.high = told.row.top, told.temperature = 1;
        told.log_mass = log(weigh(&told.row, -INFINITY, 1));
    }
    all->highs[r] = sound ? (double)told.high : NAN, all->log_masses[r] = sound ? told.log_mass : NAN;
    for (int64_t i = all->ends[r]; i < all->ends[r + 1]; i++) {
        const float logit = told.row.x[all->ids[i]];
        all->logprobs[i] = sound ? logprob(&told, logit) : NAN, all->ranks[i] = sound ? rank(&told, logit) : 1;
    }
    const int64_t at = r * all->most, count = all->tops[r];
    all->tops[r] = !sound || !count ? 0
                                    : (int32_t)most_probable(&told, count, all->top_ids + at, all->top_logprobs + at,
                                                             all->top_ranks + at);
}

// x [>= rows, n], rows `stride` apart, of which `places` [rows] are meant; by [4, rows], or NULL -> logprobs and ranks of
// `ids`, those of row r from ends[r] to ends[r + 1]; of the tops[r] most probable, no more than `most`: top_ids,
// top_logprobs and top_ranks [rows, most], and how many there are of them to `tops`; `highs` [rows], and the logarithms of
// the masses [rows]. A row whose largest number is not finite has no most probable ones, and all else of it but ranks is no
// number. Returns 0, or 1 without memory.
int tandem_report(const float *x, int64_t n, int64_t stride, const int64_t *places, int64_t rows, const double *by,
                  const int32_t *ids, const int64_t *ends, float *logprobs, int32_t *ranks, int64_t most, int32_t *tops,
                  int32_t *top_ids, float *top_logprobs, int32_t *top_ranks, double *highs, double *log_masses,
                  int threads) {
    const Reports all = {.x = x,
                         .n = n,
                         .stride = stride,
                         .rows = rows,
                         .most = most,
                         .places = places,
                         .ends = ends,
                         .by = by,
                         .ids = ids,
                         .logprobs = logprobs,
                         .top_logprobs = top_logprobs,
                         .ranks = ranks,
                         .tops = tops,
                         .top_ids = top_ids,
                         .top_ranks = top_ranks,
                         .highs = highs,
                         .log_masses = log_masses};
    return with_rooms(report_one, &all, rows, n, most, threads);
}
