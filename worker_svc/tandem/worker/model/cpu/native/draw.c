// Draws a token of each row of logits by what most requests ask for: a temperature, and filters that keep the largest
// logits (`sampler/filters.py` has them all, and what they mean).
//
// Such filters leave the logits from some bound on, `low`: equal ones stay together. So a row is surveyed in groups,
// whose maxima tell which of them have anything to look at. What a share of the mass is reached with is found digit by
// digit, as `nth_largest` finds a number: nothing is put in order before few are left. Weights are added up in groups,
// and these one after the other in fp64: a row's token does not depend on its company, nor on threads.
//
// A number in [0, 1) draws what it draws by torch's operations and on a GPU: in the order of ids, or of falling logits
// where the first filter that cuts has left fewer than `few`.

#include "logits.h"

// What a row is drawn by, a column a row; a number that changes nothing is off.
enum { TEMPERATURE, UNIFORM, SIGMA, COUNT, MASS, SHARE, ASKED };

// What a row is drawn from, a column a row: logits from LOW to HIGH weigh e^((logit - HIGH) / temperature), and TOTAL
// together.
enum { LOW, HIGH, TOTAL, TOLD };

// The least number of fp32 that is not below `bound`.
INLINE float from(double bound) {
    const float x = (float)bound;
    return (double)x < bound ? nextafterf(x, INFINITY) : x;
}

// Keeps what is at most so many standard deviations of all that is possible below the largest.
static float low_by_sigma(const Row *row, double sigma) {
    double count = 0, sum = 0, squares = 0;
    for (int64_t i = 0; i < row->n; i++)
        if (row->x[i] > -INFINITY) count++, sum += row->x[i];
    const double mean = sum / count;
    for (int64_t i = 0; i < row->n; i++)
        if (row->x[i] > -INFINITY) squares += (row->x[i] - mean) * (row->x[i] - mean);
    return from(row->top - sigma * sqrt(squares / count));
}

// The `count`th largest, and what is equal to it.
static float low_by_count(Row *row, int64_t count) {
    const int64_t there = find(row, low_of_groups(row, count));
    return number_of(nth_largest(row->found, there, count));
}

// Of those from `low` on, the last of the largest ones that have so much of their mass.
static float low_by_mass(Row *row, float low, double mass) {
    const double total = weigh(row, low, 1), target = mass * total;
    // All that weigh less than this are together less than what may be missing.
    const float least = from(row->top + log((1 - mass) * total / (double)row->n));
    const int64_t there = find(row, least > low ? least : low);
    const __m256 top = _mm256_set1_ps(row->top), one = _mm256_set1_ps(1), none = _mm256_set1_ps(-INFINITY);
    for (int64_t i = 0; i < there; i++) row->weights[i] = number_of(row->found[i].key);
    for (int64_t i = there; i % 8; i++) row->weights[i] = -INFINITY;
    for (int64_t i = 0; i < there; i += 8)
        _mm256_storeu_ps(row->weights + i, weights_of(row->weights + i, none, top, one));
    uint32_t known = 0, mask = 0;
    double before = 0;
    for (int shift = 21; shift >= 0; shift = shift == 0 ? -1 : shift == 10 ? 0 : 10) {
        const int digits = 1 << (shift ? 11 : 10);
        double masses[1 << 11] = {0};
        for (int64_t i = 0; i < there; i++)
            if ((row->found[i].key & mask) == known)
                masses[row->found[i].key >> shift & (uint32_t)(digits - 1)] += (double)row->weights[i];
        int digit = digits - 1, last = digit;
        for (; digit >= 0 && (masses[digit] == 0 || before + masses[digit] < target); digit--) {
            before += masses[digit];
            if (masses[digit] > 0) last = digit;
        }
        if (digit < 0) digit = last, before -= masses[last];  // by the rounding of sums
        known |= (uint32_t)digit << shift;
        mask |= (uint32_t)(digits - 1) << shift;
    }
    return number_of(known);
}

// The first of those from `low` on with which their sum exceeds `uniform` times that of all, which goes to `total`.
static int32_t first_beyond(Row *row, float low, double temperature, double uniform, double *total) {
    const double inverse = 1 / temperature;
    *total = weigh(row, low, inverse);
    const double target = uniform * *total;
    int64_t first = 0, after = row->groups - 1;  // the first group that goes beyond is one of these
    while (first < after) {
        const int64_t middle = (first + after) / 2;
        if (row->sums[middle] > target) after = middle;
        else first = middle + 1;
    }
    const float *x = group_of(row, first);
    const __m256 lows = _mm256_set1_ps(low), tops = _mm256_set1_ps(row->top), by = _mm256_set1_ps((float)inverse);
    float weights[GROUP];
    for (int i = 0; i < GROUP; i += 8) _mm256_storeu_ps(weights + i, weights_of(x + i, lows, tops, by));
    double sum = first ? row->sums[first - 1] : 0;
    int chosen = 0;  // if single weights add up to less than the group's own sum, the last one that is any
    for (int i = 0; i < GROUP; i++) {
        if (weights[i] <= 0) continue;
        chosen = i;
        if ((sum += (double)weights[i]) > target) break;
    }
    return (int32_t)(first * GROUP + chosen);
}

// The same in the order of falling logits, of few.
static int32_t first_beyond_in_order(Row *row, float low, double temperature, double uniform, double *total) {
    const int64_t there = find(row, low);
    order(row->found, there, row->room);
    *total = 0;
    for (int64_t i = 0; i < there; i++)
        *total += exp(((double)number_of(row->found[i].key) - (double)row->top) / temperature);
    double sum = 0;
    int64_t i = 0;
    for (; i < there - 1; i++) {
        sum += exp(((double)number_of(row->found[i].key) - (double)row->top) / temperature);
        if (sum > uniform * *total) break;
    }
    return row->found[i].place;
}

// What filters have left: all from `low` on.
typedef struct {
    float low;
    int filtered, open, many;  // open: no filter has cut yet, of more than few; many: the first one has left no fewer
} Kept;

static void keep(Row *row, Kept *kept, float low, int64_t few) {
    if (low > row->top) low = row->top;
    if (low > kept->low) kept->low = low;
    if (kept->open && !kept->many) {
        if (find(row, kept->low) >= few) kept->many = 1;
        else kept->open = 0;
    }
    kept->filtered = 1;
}

static void draw_row(Row *row, int64_t few, const double *asked, int64_t apart, int32_t *id, uint8_t *finite,
                     double *told) {
    if (asked[TEMPERATURE * apart] <= 0 || !survey(row)) {
        tandem_first_largest(row->x, 1, row->n, row->n, id, finite);
        told[LOW * apart] = told[HIGH * apart] = row->x[*id], told[TOTAL * apart] = 1;
        return;
    }
    *finite = 1;
    const double sigma = asked[SIGMA * apart], count = asked[COUNT * apart], mass = asked[MASS * apart];
    const double share = asked[SHARE * apart], temperature = asked[TEMPERATURE * apart];
    Kept kept = {-INFINITY, 0, few < row->n && row->possible >= few, 0};
    if (sigma > 0) keep(row, &kept, low_by_sigma(row, sigma), few);
    if (count > 0 && count < (double)row->possible) keep(row, &kept, low_by_count(row, (int64_t)count), few);
    if (mass < 1) keep(row, &kept, low_by_mass(row, kept.low, mass), few);
    if (share > 0) keep(row, &kept, from(row->top + log(share)), few);
    const float low = kept.low;
    const int in_order = (kept.filtered || count > 0) && !kept.open && !kept.many;
    *id = (in_order ? first_beyond_in_order : first_beyond)(row, low, temperature, asked[UNIFORM * apart],
                                                            told + TOTAL * apart);
    told[LOW * apart] = low, told[HIGH * apart] = row->top;
}

typedef struct {
    const float *x;
    int64_t rows, n, stride, few;
    const double *asked;
    int32_t *ids;
    uint8_t *finite;
    double *told;
} Draws;

static void draw_one(const void *of, int64_t r, char *room) {
    const Draws *d = of;
    Row row = row_in(room, d->x + r * d->stride, d->n, d->few);
    draw_row(&row, d->few, d->asked + r, d->rows, d->ids + r, d->finite + r, d->told + r);
}

// x [rows, n], rows `stride` apart, and asked [ASKED, rows] -> ids and `finite` [rows], told [TOLD, rows]. A row whose
// largest number is not finite has what tandem_first_largest says. Returns 0, or 1 without memory.
int tandem_draw(const float *x, int64_t rows, int64_t n, int64_t stride, int64_t few, const double *asked, int32_t *ids,
                uint8_t *finite, double *told, int threads) {
    const Draws draws = {x, rows, n, stride, few, asked, ids, finite, told};
    return with_rooms(draw_one, &draws, rows, n, few, threads);
}
