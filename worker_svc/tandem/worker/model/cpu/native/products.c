// Products of activations with stored weights, for x86-64 with AVX2, FMA and F16C.
//
// Every output number is computed by the same instructions in the same order whatever the number of rows, columns and
// threads: a tile of 6 rows differs from 6 tiles of one row only in how often a weight is loaded.
//
// Weights lie in panels of 16 rows of W, which are 16 columns of the output, so that a vector's lanes are output numbers
// and nothing is added up across lanes.
//
// Quantized: activations come as int16, or int8 (`Rounding`), in groups of G along the input dimension, with one scale a
// group and row. Sums within a group are exact integers; over the groups
//
//     out = sum_g cvt(sum_i w_i x_i) * (weight scale_g * activation scale_g)  +  sum_g weight minimum_g * sum_i x_i
//
// Where all w_i are a digit less the same number, the integers are sums of the digits' products less that number times
// sum_i x_i.
//
// Beside int16, weights are widened to it: vpmaddwd then takes two of them for each of 8 columns, and 128 * 32767 * 128 fits into
// the 32 bits of a sum.
//
// Half precision: a panel's 16 sums grow along the input dimension, in fp32.

#include "amx.h"
#include "matrices.h"
#include "operations.h"
#include "quantized_narrow.h"
#include "shares.h"
#include "team.h"

#define ROWS 6               // of a tile: 12 sums in 16 registers
#define OWN_WORDS (1 << 14)  // of 32 bits: a single row of so many at most is quantized by each thread for itself

static int wide_allowed = 1, amx_allowed = 1, int8_beside_int8 = 0;

// Whether processors with AVX-512 and VNNI multiply by it from now on, and whether this is one. The bits are the same.
int tandem_allow_wide(int allowed) {
    wide_allowed = allowed;
    return wide_is_there();
}

// Whether several rows are multiplied by AMX from now on, and whether this processor has it. The bits are the same.
int tandem_allow_amx(int allowed) {
    amx_allowed = allowed;
    return wide_is_there() && amx_is_there(AMX_INT8);
}

// Whether activations beside int8 in small groups are rounded to int8 from now on, and not to int16.
void tandem_round_to_int8(int allowed) { int8_beside_int8 = allowed; }

int amx_of_digits_serves(void) { return amx_allowed && wide_is_there() && amx_is_there(AMX_INT8); }

// ---------------------------------------------------------------------------------------------------- activations

// Rows from which on a product is quicker by AMX than by VNNI, 0: never. Its tiles have 64 inputs, and what is done with a
// group's sums takes as long as several of them.
static int amx_rows(int bits, const int16_t *table, int64_t group, int int16) {
    if (!wide_allowed || !amx_of_digits_serves() || bits == 6 || group < 32 || (table && !of_bytes(table))) return 0;
    return int16 && group > 32 ? 6 : 24;
}

int takes_int8(int bits, int64_t group, const int16_t *table, int least) {
    if (group > SPAN) return 0;
    return bits == 8 ? int8_beside_int8 && !least : !table || of_bytes(table);
}

Rounding rounding_of(int bits, const int16_t *table, int least, const int64_t *order, int64_t k, int64_t groups,
                     int64_t group) {
    const int int8 = takes_int8(bits, group, table, least), wide = wide_allowed && wide_is_there();
    const int less = bits == 8   ? (int8 && wide ? 128 : 0)
                     : bits == 6 ? 32
                                 : less_than_digits(group <= SPAN ? table : 0);
    const int of_table = int8 && table && !less;
    const int kind = !int8 || !(wide || fits_16_bits(bits, group, table)) ? AS_INT16 : wide ? AS_INT8 : AS_INT8_TWICE;
    const int span = (int)(of_table ? SPAN / 2 : group), raised = less ? less : of_table ? raise_of(table) : 8;
    const int64_t words = kind == AS_INT8 ? group / 4 : group / 2 + (kind == AS_INT8_TWICE ? group / span : 0);
    return (Rounding){.k = k,
                      .groups = groups,
                      .group = group,
                      .words = groups * words,
                      .less = less,
                      .largest = int8 ? LARGEST_INT8 : LARGEST_INT16,
                      .kind = kind,
                      .crossed = kind == AS_INT8 && bits == 6,
                      .span = span,
                      .raised = raised,
                      .amx = amx_rows(bits, table, group, kind == AS_INT16),
                      .of_integers = less || of_table,
                      .order = order};
}

// 16 integers as words of two int8 twice.
INLINE void store_twice(int32_t *to, __m256i integers) {
    const __m256i order = _mm256_setr_epi8(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7,  //
                                           0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7);
    _mm256_storeu_si256((__m256i *)to, _mm256_shuffle_epi8(_mm256_packs_epi16(integers, integers), order));
}

INLINE int32_t lanes_sum(__m256i a) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

// The largest of eight numbers, none of which is below 0.
INLINE float largest_lane(__m256 v) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Groups from `first` to `last`, those of all rows counted: x [rows, k] -> q [rows, words], scale and sum [rows, groups],
// see `Product`. What is not finite makes its scale NaN.
void quantize_groups(const float *x, const Rounding *how, int32_t *q, float *scale, float *sum, int64_t first_place,
                     int64_t last_place) {
    const int64_t k = how->k, groups = how->groups, group = how->group;
    const float integers = how->largest;
    if (how->kind == AS_INT8 && group == SPAN && k == groups * group && !how->order) {
        wide_quantize_spans(x, how, q, scale, sum, first_place, last_place);
        return;
    }
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t place = first_place; place < last_place; place++) {
        const int64_t row = place / groups, first = place % groups * group;
        const float *from = x + row * k + first;
        float gathered[128];
        if (how->order || first + group > k) {
            memset(gathered, 0, sizeof gathered);
            for (int64_t i = first; i < k && i < first + group; i++)
                gathered[i - first] = x[row * k + (how->order ? how->order[i] : i)];
            from = gathered;
        }
        __m256 largest = _mm256_setzero_ps(), broken = _mm256_setzero_ps();
        for (int64_t i = 0; i < group; i += 8) {
            const __m256 v = _mm256_loadu_ps(from + i);
            largest = _mm256_max_ps(largest, _mm256_and_ps(v, no_sign));
            broken = _mm256_fmadd_ps(v, _mm256_setzero_ps(), broken);
        }
        const float most = largest_lane(largest);
        const float spoilt = _mm256_movemask_ps(_mm256_cmp_ps(broken, broken, _CMP_UNORD_Q)) ? NAN : 0.0f;
        const float inverse = most > LEAST_LARGEST ? integers / most : 0.0f;
        const __m256 factor = _mm256_set1_ps(inverse);
        int32_t *to = q + row * how->words + place % groups * (how->words / groups);
        __m256i total = _mm256_setzero_si256();
        int32_t whole = 0;
        for (int64_t i = 0; i < group; i += 16) {
            const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i), factor));
            const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i + 8), factor));
            const __m256i ab = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
            total = _mm256_add_epi32(total, _mm256_madd_epi16(ab, ones));
            if (how->kind == AS_INT8) {
                const __m128i all = _mm_packs_epi16(_mm256_castsi256_si128(ab), _mm256_extracti128_si256(ab, 1));
                const __m128i crossed = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
                _mm_storeu_si128((__m128i *)to, how->crossed ? _mm_shuffle_epi8(all, crossed) : all);
                to += 4;
            } else {
                if (how->kind == AS_INT8_TWICE) store_twice(to, ab);
                else _mm256_storeu_si256((__m256i *)to, ab);
                to += 8;
            }
            if ((i + 16) % how->span) continue;
            const int32_t part = lanes_sum(total);
            if (how->kind == AS_INT8_TWICE) *to++ = (int32_t)((uint32_t)(-how->raised * part & 0xffff) * 0x10001u);
            total = _mm256_setzero_si256(), whole += part;
        }
        scale[place] = most / integers + spoilt;
        sum[place] = how->of_integers ? (float)(-how->raised * whole) : (float)whole * scale[place];
    }
}

// ---------------------------------------------------------------------------------------------------- quantized weights

// One kind of constants of one panel, as they are or written `to`; `first` begins a unit.
static const float *as_floats(const Product *p, const int least, int group, int64_t panel, int64_t first, int64_t last,
                              float *to) {
    const void *numbers = least ? p->least : p->scale, *units_of = least ? p->least_unit : p->scale_unit;
    const int64_t at = (p->per_channel ? panel : panel * p->groups + first) * PANEL, count = (last - first) * PANEL;
    if (p->per_channel) {
        for (int h = 0; h < PANEL; h += 8) {
            const __m256 same =
                p->half ? halves((const uint16_t *)numbers + at + h) : _mm256_loadu_ps((const float *)numbers + at + h);
            for (int64_t i = h; i < count; i += PANEL) _mm256_storeu_ps(to + i, same);
        }
        return to;
    }
    if (p->half == 0) return (const float *)numbers + at;
    if (p->half == 1)
        for (int64_t i = 0; i < count; i += 8) _mm256_storeu_ps(to + i, halves((const uint16_t *)numbers + at + i));
    else if (p->half == 2)
        for (int64_t i = 0; i < count; i += 8) {
            const __m128i powers = _mm_loadl_epi64((const __m128i *)((const uint8_t *)numbers + at + i));
            _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(powers), 23)));
        }
    else if (p->half == 4)
        for (int h = 0; h < PANEL; h += 8) {
            const __m256 one = row_units((const float *)units_of + panel * PANEL + h);
            for (int64_t i = h; i < count; i += PANEL) _mm256_storeu_ps(to + i, eight(4, numbers, at + i, one));
        }
    else {
        const int64_t each = UNIT / group, units = (p->groups + each - 1) / each;
        const uint16_t *unit = (const uint16_t *)units_of + (panel * units + first / each) * PANEL;
        for (int64_t start = 0; start < count; start += each * PANEL, unit += PANEL) {
            __m256 one[2] = {halves(unit), halves(unit + 8)};
            for (int h = 0; h < 2 && least && together(p); h++) one[h] = _mm256_sub_ps(_mm256_setzero_ps(), one[h]);
            const int64_t end = start + each * PANEL < count ? start + each * PANEL : count;
            for (int64_t i = start; i < end; i += PANEL)
                for (int h = 0; h < 2; h++) {
                    const __m128i counts =
                        together(p) ? half_of(six_bits(numbers, at + i, least), h)
                                    : _mm_loadl_epi64((const __m128i *)((const int8_t *)numbers + at + i + 8 * h));
                    const __m256 floats = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(counts));
                    _mm256_storeu_ps(to + i + 8 * h, _mm256_mul_ps(floats, one[h]));
                }
        }
    }
    return to;
}

void constants(const Product *p, int group, int64_t panel, int64_t first, int64_t last, Constants *to) {
    to->scale = as_floats(p, 0, group, panel, first, last, to->room[0]);
    to->least = p->least && !p->table ? as_floats(p, 1, group, panel, first, last, to->room[1]) : 0;
}

// The sums of one group of some rows. `begin`: what they begin with, of 6 bits.
INLINE void group_sums(const int rows, const int bits, const int means, const __m256i table[2], const uint8_t *w,
                       const int32_t *x, const float *begin, const int group, __m256i sum[][2]) {
    for (int r = 0; r < rows; r++) {
        sum[r][0] = bits == 6 ? _mm256_cvtps_epi32(_mm256_broadcast_ss(begin + r)) : _mm256_setzero_si256();
        sum[r][1] = sum[r][0];
    }
    for (int i = 0; i < group / 2; i += PAIRS(bits), w += PAIRS(bits) * PANEL * bits / 4, x += PAIRS(bits) * rows)
#pragma GCC unroll 8
        for (int pair = 0; pair < PAIRS(bits); pair++) {
            __m256i b[2];
            two_inputs(bits, means, table, w, pair, b);
            for (int r = 0; r < rows; r++) {
                const __m256i a = _mm256_set1_epi32(x[pair * rows + r]);
                sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(a, b[0]));
                sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(a, b[1]));
                ADDED(sum[r][0]);
                ADDED(sum[r][1]);
            }
        }
}

// Some rows and one panel, from `row` on; the groups from `first` to `last`.
INLINE void quantized_tile(const Product *p, const int rows, const int bits, const int means, const int group,
                           int64_t panel, int64_t row, int64_t first, int64_t last, const Constants *by,
                           const uint8_t *ahead) {
    const int64_t width = p->groups * group, columns = p->panels * PANEL;
    const uint8_t *w = p->weight + panel * width * PANEL * bits / 8;
    const int32_t *x = p->x + row * (width / 2);
    const float *x_scale = p->x_scale + row * p->groups, *x_sum = p->x_sum + row * p->groups;
    float *out = p->out + row * columns + panel * PANEL;
    __m256i table[2];
    if (means == TABLE || means == BYTES) load_table(p, table);
    __m256 total[ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++)
            total[r][h] = first == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(out + r * columns + 8 * h);
    for (int64_t g = first; g < last; g++) {
        __m256i sum[ROWS][2];
        const uint8_t *group_w = w + g * group * PANEL * bits / 8;
        for (int64_t i = 0; i < group * PANEL * bits / 8; i += 64, ahead += 64)
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        const int32_t *group_x = x + g * (group / 2) * rows;
        const float *group_sum = x_sum + g * rows, *group_scale = x_scale + g * rows;
        group_sums(rows, bits, means, table, group_w, group_x, group_sum, group, sum);
        for (int h = 0; h < 2; h++) {
            const int64_t at = (g - first) * PANEL + 8 * h;
            const __m256 scale = _mm256_loadu_ps(by->scale + at);
            for (int r = 0; r < rows; r++) {
                const __m256 factor = _mm256_mul_ps(scale, _mm256_broadcast_ss(group_scale + r));
                total[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][h]), factor, total[r][h]);
            }
            if (means != DIGITS || !by->least) continue;
            const __m256 least = _mm256_loadu_ps(by->least + at);
            for (int r = 0; r < rows; r++)
                total[r][h] = _mm256_fmadd_ps(least, _mm256_broadcast_ss(group_sum + r), total[r][h]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(out + r * columns + 8 * h, total[r][h]);
}

#define TILES(ROWS_THERE)                                                                                              \
    switch (ROWS_THERE) {                                                                                              \
    case 1: TILE(1); break;                                                                                            \
    case 2: TILE(2); break;                                                                                            \
    case 3: TILE(3); break;                                                                                            \
    case 4: TILE(4); break;                                                                                            \
    case 5: TILE(5); break;                                                                                            \
    default: TILE(6);                                                                                                  \
    }

INLINE void panels_that_mean(const int bits, const int means, const int group, const Product *p, int64_t first,
                             int64_t last) {
    Constants by;
    for (int64_t start = 0; start < p->groups; start += BLOCK / group) {
        const int64_t end = start + BLOCK / group < p->groups ? start + BLOCK / group : p->groups;
        for (int64_t panel = first; panel < last; panel++) {
            constants(p, group, panel, start, end, &by);
            const uint8_t *ahead = next_weights(p, bits, group, panel, start, end, first, last);
            for (int64_t row = 0, rows; row < p->rows; row += rows) {
                rows = tile_rows(p->rows - row, ROWS);
#define TILE(R) quantized_tile(p, R, bits, means, group, panel, row, start, end, &by, ahead)
                TILES(rows)
#undef TILE
            }
        }
    }
}

INLINE void quantized_panels(const int bits, const int means, const int group, const Product *p, int64_t first,
                             int64_t last) {
    if (means == TABLE && of_bytes(p->table)) panels_that_mean(bits, BYTES, group, p, first, last);
    else panels_that_mean(bits, means, group, p, first, last);
}

FUNCTIONS_OF(NARROW_KINDS, quantized, quantized_panels)

// Panels from `first` to `last`, up to `TOGETHER` of them.
void quantized_outputs(const Product *p, int bits, int group, int64_t first, int64_t last) {
    if (p->amx) {
        amx_panels(p, bits, group, first, last);
        return;
    }
    if (wide_allowed && wide_is_there()) {
        if (takes_int8(bits, group, p->table, p->least != 0)) wide_digits_panels(p, bits, group, first, last);
        else wide_quantized_panels(p, bits, group, first, last);
        return;
    }
    if (p->rows == 1) {
        single_row_panels(p, bits, group, first, last);
        return;
    }
    if (fits_16_bits(bits, group, p->table)) {
        digits_panels(p, group, first, last);
        return;
    }
    CALL_BY_KIND(NARROW_KINDS, quantized, p, bits, group, first, last)
}

int by_amx(const Rounding *how, int64_t rows) { return how->amx && rows >= how->amx; }

// Rows of each part of so many; of the last one, what is left. Of AMX parts were not tried.
int64_t part_rows(const Rounding *how, int64_t rows) {
    if (rows <= PART_ROWS || by_amx(how, rows)) return rows ? rows : 1;
    return tile_rows(rows, PART_ROWS);
}

// Of a product's rows, `rows` from `first` on, which are a part.
Product part_of(const Product *p, const Rounding *how, int64_t first, int64_t rows) {
    Product part = *p;
    part.rows = rows, part.out += first * p->panels * PANEL;
    part.x += first * how->words, part.x_scale += first * how->groups, part.x_sum += first * how->groups;
    return part;
}

// Rows of the tile that begins at `row` of so many. A part has tiles of its own.
int64_t next_tile(const Rounding *how, int64_t rows, int64_t row) {
    const int64_t part = part_rows(how, rows), end = (row / part + 1) * part;
    const int64_t most = by_amx(how, rows)                 ? AMX_ROWS
                         : how->kind != AS_INT16           ? DIGIT_ROWS
                         : wide_allowed && wide_is_there() ? WIDE_ROWS
                                                           : ROWS;
    return tile_rows((end < rows ? end : rows) - row, most);
}

// One group's integers of one of the `rows` of a tile as AMX takes them.
INLINE void group_for_amx(const Rounding *how, const int32_t *from, int64_t rows, int64_t row, void *tile) {
    const int64_t group = how->group;
    uint8_t *to = (uint8_t *)tile + row * group;
    if (how->kind == AS_INT8) {
        memcpy(to, from, (size_t)group);
        return;
    }
    const __m256i lower = _mm256_set1_epi16(255);
    for (int64_t i = 0; i < group; i += 16) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)((const int16_t *)from + i));
        const __m256i both = _mm256_packus_epi16(_mm256_and_si256(v, lower), _mm256_srli_epi16(v, 8));
        const __m256i bytes = _mm256_permute4x64_epi64(both, 0xd8);
        _mm_storeu_si128((__m128i *)(to + i), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(to + rows * group + i), _mm256_extracti128_si256(bytes, 1));
    }
}

// Some rows of `width` numbers, each where `of` says it is -> [width, rows]; numbers from `first` to `last` of each.
INLINE void across(const int32_t *const *of, int32_t *to, int64_t rows, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++)
        for (int64_t r = 0; r < rows; r++) to[i * rows + r] = of[r][i];
}

// A tile of `some` of the `rows` rounded rows, from `row` on, as their kernel takes them: those of `order`, unless it is null.
// Integers, scales and sums, of each those of the groups from `first` to `last`.
void into_tile(const Rounding *how, const int32_t *const from[3], const int32_t *order, int32_t *const to[3],
               int64_t rows, int64_t row, int64_t some, int64_t first, int64_t last) {
    const int64_t groups = how->groups, words = how->words / groups;
    const int amx = by_amx(how, rows);
    const int32_t *of[3][AMX_ROWS];
    for (int n = 0; n < 3; n++)
        for (int64_t r = 0; r < some; r++)
            of[n][r] = from[n] + (order ? order[row + r] : row + r) * (n ? groups : how->words);
    for (int n = 1; n < 3; n++) across(of[n], to[n] + row * groups, some, first, last);
    if (!amx) across(of[0], to[0] + row * how->words, some, first * words, last * words);
    for (int64_t g = first; amx && g < last; g++)
        for (int64_t r = 0; r < some; r++)
            group_for_amx(how, of[0][r] + g * words, some, r, to[0] + (row * groups + g * some) * words);
}

// Asks for what a thread's panels begin with: `AHEAD` of the products, which ask for nothing nearer.
INLINE void ask_for(const uint8_t *weights) {
    for (int64_t i = 0; i < 8192; i += 64) _mm_prefetch((const char *)weights + i, _MM_HINT_T0);
}

// A product that threads share.
typedef struct {
    Product p;
    Rounding how;
    int bits, threads;
    int64_t group, pieces;  // pieces: of the panels
    const float *x;
    int32_t *x_rows, *scale_rows, *sum_rows, *tiles, *scale_tiles, *sum_tiles;
    Share *shares;
} Shared;

// What is left of the outputs, piece by piece: some panels of some rows.
static void all_outputs(const Product *p, const Shared *s) {
    const int64_t most = part_rows(&s->how, p->rows);
    for (int64_t piece; (piece = take_piece(s->shares, s->threads)) >= 0;) {
        const int64_t first = piece % s->pieces * TOGETHER, last = first + TOGETHER, row = piece / s->pieces * most;
        const Product part = part_of(p, &s->how, row, p->rows - row < most ? p->rows - row : most);
        quantized_outputs(&part, s->bits, (int)s->group, first, last < p->panels ? last : p->panels);
    }
}

// Pieces of all rows.
INLINE int64_t all_pieces(const Shared *s) {
    const int64_t rows = s->p.rows, most = part_rows(&s->how, rows);
    return (rows + most - 1) / most * s->pieces;
}

// Asks for what a thread's own pieces begin with.
static void ask_for_own(const Shared *s, int thread) {
    const int64_t bytes = s->how.groups * s->group * PANEL * s->bits / 8;
    ask_for(s->p.weight + all_pieces(s) * thread / s->threads % s->pieces * TOGETHER * bytes);
}

// Of a single row: each thread quantizes it for itself, which takes less time than to wait for another one.
static void one_row(const void *of) {
    const Shared *s = of;
    int32_t own[OWN_WORDS];
    float scale[OWN_WORDS / 4], sum[OWN_WORDS / 4];  // a group has four words at least
    ask_for_own(s, omp_get_thread_num());
    Product p = s->p;
    p.x = own, p.x_scale = scale, p.x_sum = sum;
    quantize_groups(s->x, &s->how, own, scale, sum, 0, s->how.groups);
    all_outputs(&p, s);
}

static void some_rows(const void *of) {
    const Shared *s = of;
    const Rounding *how = &s->how;
    const int threads = s->threads;
    const int64_t groups = how->groups, rows = s->p.rows;
    const int32_t *const from[3] = {s->x_rows, s->scale_rows, s->sum_rows};
    int32_t *const to[3] = {s->tiles, s->scale_tiles, s->sum_tiles};
#pragma omp for schedule(static) nowait
    for (int part = 0; part < threads; part++) ask_for_own(s, part);
#pragma omp for schedule(static)
    for (int part = 0; part < threads; part++) {
        const int64_t first = groups * part / threads, last = groups * (part + 1) / threads;
        for (int64_t row = 0, some; row < rows; row += some) {
            some = next_tile(how, rows, row);
            for (int64_t r = row; r < row + some; r++)
                quantize_groups(s->x, how, s->x_rows, (float *)s->scale_rows, (float *)s->sum_rows, r * groups + first,
                                r * groups + last);
            if (rows > 1) into_tile(how, from, 0, to, rows, row, some, first, last);
        }
    }
    all_outputs(&s->p, s);
}

// x [rows, k] -> out [rows, panels * 16]; `order` as in `Rounding`; `room` has 2 rows (words + 2 groups) numbers.
void tandem_quantized_product(int bits, const void *weight, const void *scale, const void *least,
                              const void *scale_unit, const void *least_unit, const int16_t *table, int half,
                              int per_channel, const float *x, const int64_t *order, int64_t k, int32_t *room,
                              float *out, int64_t rows, int64_t panels, int64_t groups, int64_t group, int threads) {
    const Rounding how = rounding_of(bits, table, least != 0, order, k, groups, group);
    const int64_t words = rows * how.words, scales = rows * groups;
    int32_t *x_rows = room, *scale_rows = x_rows + words, *sum_rows = scale_rows + scales;
    int32_t *tiles = sum_rows + scales, *scale_tiles = tiles + words, *sum_tiles = scale_tiles + scales;
    Share shares[threads];
    const Shared s = {.p = {.weight = weight,
                            .scale = scale,
                            .least = least,
                            .scale_unit = scale_unit,
                            .least_unit = least_unit,
                            .table = how.less ? 0 : table,
                            .x = rows > 1 ? tiles : x_rows,
                            .x_scale = (const float *)(rows > 1 ? scale_tiles : scale_rows),
                            .x_sum = (const float *)(rows > 1 ? sum_tiles : sum_rows),
                            .out = out,
                            .rows = rows,
                            .panels = panels,
                            .groups = groups,
                            .half = half,
                            .per_channel = per_channel,
                            .less = how.less,
                            .amx = by_amx(&how, rows)},
                      .how = how,
                      .bits = bits,
                      .threads = threads,
                      .group = group,
                      .pieces = (panels + TOGETHER - 1) / TOGETHER,
                      .x = x,
                      .x_rows = x_rows,
                      .scale_rows = scale_rows,
                      .sum_rows = sum_rows,
                      .tiles = tiles,
                      .scale_tiles = scale_tiles,
                      .sum_tiles = sum_tiles,
                      .shares = shares};
    give_shares(shares, threads, all_pieces(&s));
    tandem_together(threads, rows == 1 && how.words <= OWN_WORDS ? one_row : some_rows, &s);
}

// ---------------------------------------------------------------------------------------------------- half precision

// 16 numbers as two vectors: of bf16, those at even and those at odd places; of fp16, the first and the last 8.
INLINE void widen(const uint16_t *from, const int bf16, __m256 to[2]) {
    const __m256i raw = _mm256_loadu_si256((const __m256i *)from);
    if (bf16) {
        to[0] = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
        to[1] = _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32((int)0xffff0000)));
    } else {
        to[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(raw));
        to[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(raw, 1));
    }
}

// Stores 16 sums in the order of the columns.
INLINE void store_in_order(float *out, const int bf16, const __m256 sum[2]) {
    __m256 a = sum[0], b = sum[1];
    if (bf16) {
        const __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
        a = _mm256_permute2f128_ps(low, high, 0x20), b = _mm256_permute2f128_ps(low, high, 0x31);
    }
    _mm256_storeu_ps(out, a);
    _mm256_storeu_ps(out + 8, b);
}

// `length` inputs of some rows and panels, which lie k * 16 numbers apart. Until the last ones come, `out` has the sums in
// the order of `widen`.
INLINE void half_tile(const int rows, const int panels, const int bf16, const uint16_t *w, const float *x, int64_t k,
                      int64_t length, float *out, int64_t width, int begins, int ends, const uint16_t *ahead) {
    __m256 sum[ROWS][2];  // by row and panel
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < panels; n++)
            for (int h = 0; h < 2; h++) {
                float *from = out + r * width + PANEL * n + 8 * h;
                sum[r * panels + n][h] = begins ? _mm256_setzero_ps() : _mm256_loadu_ps(from);
            }
#pragma GCC unroll 2
    for (int64_t i = 0; i < length; i++) {
        if (rows > 1) _mm_prefetch((const char *)(ahead + PANEL * i), _MM_HINT_T1);
        for (int n = 0; n < panels; n++) {
            __m256 b[2];
            widen(w + n * k * PANEL + PANEL * i, bf16, b);
            for (int r = 0; r < rows; r++) {
                const __m256 a = _mm256_broadcast_ss(x + r * k + i);
                sum[r * panels + n][0] = _mm256_fmadd_ps(a, b[0], sum[r * panels + n][0]);
                sum[r * panels + n][1] = _mm256_fmadd_ps(a, b[1], sum[r * panels + n][1]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < panels; n++) store_in_order(out + r * width + PANEL * n, bf16 && ends, sum[r * panels + n]);
}

// One row's products wait for each other; those of `TOGETHER` panels fill the time.
INLINE void half_panels(const int bf16, const uint16_t *w, const float *x, float *out, int64_t rows, int64_t k,
                        int64_t width, int64_t panels) {
    for (int64_t start = 0; start < k; start += BLOCK) {
        const int64_t length = k - start < BLOCK ? k - start : BLOCK;
        const int begins = start == 0, ends = start + length == k;
        if (rows == 1 && panels == TOGETHER) {
            half_tile(1, TOGETHER, bf16, w + PANEL * start, x + start, k, length, out, width, begins, ends, w);
            continue;
        }
        for (int64_t n = 0; n < panels; n++)
            for (int64_t row = 0, some; row < rows; row += some) {
                some = tile_rows(rows - row, ROWS);
#define TILE(R)                                                                                                        \
    half_tile(R, 1, bf16, w + n * k * PANEL + PANEL * start, x + row * k + start, k, length,                           \
              out + row * width + PANEL * n, width, begins, ends, w + n * k * PANEL + PANEL * (start + length))
                TILES(some)
#undef TILE
            }
    }
}

// Panels from `first` to `last` of `panels`.
void half_outputs(int bf16, const uint16_t *weight, const float *x, float *out, int64_t rows, int64_t k, int64_t panels,
                  int64_t first, int64_t last) {
    const int64_t step = rows == 1 ? TOGETHER : 1;
    for (; first < last; first += step) {
        const int64_t some = last - first < step ? last - first : step;
        const uint16_t *w = weight + first * k * PANEL;
        if (bf16) half_panels(1, w, x, out + PANEL * first, rows, k, panels * PANEL, some);
        else half_panels(0, w, x, out + PANEL * first, rows, k, panels * PANEL, some);
    }
}

// ---------------------------------------------------------------------------------------------------- floats of 8 bits

#define FLOAT8_GROUP 128  // inputs that share a scale, if a row has several

// 16 e4m3, 256 times too small: their 7 bits are the upper ones of an fp16, whose exponent counts from 8 less.
INLINE void widen_float8(const uint8_t *from, __m256 to[2]) {
    const __m256i raw = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(raw, _mm256_set1_epi16(0x80)), 8);
    const __m256i half = _mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(raw, _mm256_set1_epi16(0x7f)), 7));
    to[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    to[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}

// Adds `length` inputs, which share scales [16] of each panel, to some rows and panels; w and `scale` of panels lie
// `stride` and `scales` numbers apart.
INLINE void float8_tile(const int rows, const int panels, const uint8_t *w, int64_t stride, const float *scale,
                        int64_t scales, const float *x, int64_t k, int64_t length, float *out, int64_t width,
                        int begins) {
    __m256 sum[ROWS][2];  // by row and panel
    for (int r = 0; r < rows * panels; r++) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < length; i++)
        for (int n = 0; n < panels; n++) {
            __m256 b[2];
            widen_float8(w + n * stride + PANEL * i, b);
            for (int r = 0; r < rows; r++) {
                const __m256 a = _mm256_broadcast_ss(x + r * k + i);
                sum[r * panels + n][0] = _mm256_fmadd_ps(a, b[0], sum[r * panels + n][0]);
                sum[r * panels + n][1] = _mm256_fmadd_ps(a, b[1], sum[r * panels + n][1]);
            }
        }
    for (int n = 0; n < panels; n++)
        for (int h = 0; h < 2; h++) {
            const __m256 factor = _mm256_mul_ps(_mm256_loadu_ps(scale + n * scales + 8 * h), _mm256_set1_ps(256.0f));
            for (int r = 0; r < rows; r++) {
                float *to = out + r * width + PANEL * n + 8 * h;
                const __m256 before = begins ? _mm256_setzero_ps() : _mm256_loadu_ps(to);
                _mm256_storeu_ps(to, _mm256_fmadd_ps(sum[r * panels + n][h], factor, before));
            }
        }
}

// Panels from `first` to `last` of `panels`.
void float8_outputs(const uint8_t *weight, const float *scale, int64_t groups, const float *x, float *out, int64_t rows,
                    int64_t k, int64_t panels, int64_t first, int64_t last) {
    const int64_t step = rows == 1 ? TOGETHER : 1, width = panels * PANEL, scales = groups * PANEL;
    for (; first < last; first += step) {
        const int64_t some = last - first < step ? last - first : step;
        const uint8_t *w = weight + first * k * PANEL;
        float *to = out + first * PANEL;
        for (int64_t start = 0; start < k; start += FLOAT8_GROUP) {
            const int64_t length = k - start < FLOAT8_GROUP ? k - start : FLOAT8_GROUP;
            const uint8_t *from = w + PANEL * start;
            const float *by = scale + first * scales + (groups > 1 ? start / FLOAT8_GROUP * PANEL : 0);
            if (some == TOGETHER) {
                float8_tile(1, TOGETHER, from, k * PANEL, by, scales, x + start, k, length, to, width, start == 0);
                continue;
            }
            for (int64_t n = 0; n < some; n++)
                for (int64_t row = 0, several; row < rows; row += several) {
                    several = tile_rows(rows - row, ROWS);
#define TILE(R)                                                                                                        \
    float8_tile(R, 1, from + n * k * PANEL, 0, by + n * scales, 0, x + row * k + start, k, length,                     \
                to + row * width + PANEL * n, width, start == 0)
                    TILES(several)
#undef TILE
                }
        }
    }
}

// A product with panels of numbers, of which threads compute some each.
typedef struct {
    int bf16;
    const void *weight;
    const float *scale;  // of floats of 8 bits, [panels, groups, 16]; or 0: numbers are of 16
    int64_t groups;
    const float *x;
    float *out;
    int64_t rows, k, panels;
} Panels;

static void some_panels(const void *of) {
    const Panels *p = of;
    const int64_t step = p->rows == 1 ? TOGETHER : 1, panels = p->panels;
#pragma omp for schedule(static) nowait
    for (int64_t first = 0; first < panels; first += step) {
        const int64_t last = first + step < panels ? first + step : panels;
        if (p->scale) float8_outputs(p->weight, p->scale, p->groups, p->x, p->out, p->rows, p->k, panels, first, last);
        else half_outputs(p->bf16, p->weight, p->x, p->out, p->rows, p->k, panels, first, last);
    }
}

// weight [panels, k, 16], x [rows, k] -> out [rows, panels * 16].
void tandem_half_product(int bf16, const uint16_t *weight, const float *x, float *out, int64_t rows, int64_t k,
                         int64_t panels, int threads) {
    const Panels p = {bf16, weight, 0, 0, x, out, rows, k, panels};
    tandem_together(threads, some_panels, &p);
}

// weight [panels, k, 16] e4m3, scale [panels, groups, 16], x [rows, k] -> out [rows, panels * 16].
void tandem_float8_product(const uint8_t *weight, const float *scale, int64_t groups, const float *x, float *out,
                           int64_t rows, int64_t k, int64_t panels, int threads) {
    const Panels p = {0, weight, scale, groups, x, out, rows, k, panels};
    tandem_together(threads, some_panels, &p);
}
