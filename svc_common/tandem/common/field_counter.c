/* Counts what a serialized protobuf message holds, field by field, without making an object of any of it.
 *
 * `nodes` has two numbers for each kind of message: where its fields begin in `fields`, and its largest field number.
 * `fields` has three for each field number: how its values are counted, the slot they are counted in, and the node of
 * the message they are.
 */

#include <stdint.h>
#include <string.h>

enum { OTHER, MESSAGE, TEXT, VARINT, FIXED32, FIXED64 };
enum { WHOLE = 0, MALFORMED = 1, TOO_MANY_FIELDS = 2 };

#define DEEPEST 64

typedef struct {
    const int32_t *nodes, *fields;
    int64_t *counts, *longest;
    int64_t left;
} Count;

static const uint8_t *varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; at < end && shift < 70; shift += 7) {
        uint8_t byte = *at++;
        *value |= (uint64_t)(byte & 0x7F) << (shift < 64 ? shift : 63);
        if (byte < 0x80) return at;
    }
    return 0;
}

/* How many varints end in these bytes: those whose highest bit is not set. Each of eight sums of a byte takes 255 words. */
static int64_t ends(const uint8_t *at, const uint8_t *stop) {
    const uint64_t ones = 0x0101010101010101;
    int64_t found = 0;
    while (stop - at >= 8) {
        int64_t words = (stop - at) / 8 < 255 ? (stop - at) / 8 : 255;
        uint64_t sums = 0, word;
        for (int64_t each = 0; each < words; each++) {
            memcpy(&word, at + 8 * each, 8);
            sums += ~word >> 7 & ones;
        }
        for (int shift = 0; shift < 64; shift += 8) found += sums >> shift & 0xFF;
        at += 8 * words;
    }
    for (; at < stop; at++) found += *at < 0x80;
    return found;
}

static int count(Count *all, const uint8_t *at, const uint8_t *end, int32_t node, int depth) {
    const int32_t *fields = all->fields + all->nodes[2 * node];
    uint64_t last = (uint64_t)all->nodes[2 * node + 1];
    static const int32_t none[3] = {OTHER, 0, 0};
    if (depth > DEEPEST) return MALFORMED;
    while (at < end) {
        uint64_t tag, value;
        if (all->left-- <= 0) return TOO_MANY_FIELDS;
        if (!(at = varint(at, end, &tag)) || tag >> 3 == 0 || tag >> 32) return MALFORMED;
        const int32_t *field = tag >> 3 <= last ? fields + 3 * (tag >> 3) : none;
        int64_t *counter = all->counts + field[1];
        switch (tag & 7) {
        case 0:
            if (!(at = varint(at, end, &value))) return MALFORMED;
            *counter += field[0] == VARINT;
            break;
        case 1:
        case 5: {
            int width = (tag & 7) == 1 ? 8 : 4;
            if (end - at < width) return MALFORMED;
            at += width;
            *counter += field[0] == (width == 8 ? FIXED64 : FIXED32);
            break;
        }
        case 2: {
            if (!(at = varint(at, end, &value)) || value > (uint64_t)(end - at)) return MALFORMED;
            const uint8_t *stop = at + value;
            if (field[0] == MESSAGE) {
                ++*counter;
                int found = count(all, at, stop, field[2], depth + 1);
                if (found != WHOLE) return found;
            } else if (field[0] == TEXT) {
                ++*counter;
                if ((int64_t)value > all->longest[field[1]]) all->longest[field[1]] = (int64_t)value;
            } else if (field[0] == VARINT) {
                *counter += ends(at, stop);
            } else if (field[0] != OTHER) {
                *counter += (int64_t)value / (field[0] == FIXED32 ? 4 : 8);
            }
            at = stop;
            break;
        }
        default: /* groups, which no message of ours has */ return MALFORMED;
        }
    }
    return WHOLE;
}

/* `counts` and `longest` are zero at first; `most_fields` is the number of fields, known or not, that are looked at. */
int32_t tandem_count_fields(const uint8_t *message, int64_t size, const int32_t *nodes, const int32_t *fields,
                            int64_t *counts, int64_t *longest, int64_t most_fields) {
    Count all = {nodes, fields, counts, longest, most_fields};
    return count(&all, message, message + size, 0, 0);
}
