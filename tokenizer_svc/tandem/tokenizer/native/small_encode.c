// A small EncodeRequest to its EncodeResponse, both as they are on the wire.

#include "wire.h"

typedef int64_t encoder(const void *works_on, const uint8_t *text, const int64_t *ends, int64_t texts, uint32_t *out,
                        uint32_t *offsets, int64_t *counts);

typedef struct {
    const uint8_t *bytes;
    int64_t size, ids;
} packed;

// What is the same for all requests to one tokenizer; then room for one of them, and what is counted.
typedef struct {
    encoder *encode;  // `tandem_encode`, or what is called alike
    const void *works_on;
    const uint8_t *begins_token;  // [256]: whether a byte begins a token that is found in text
    packed front, back;           // what add_special puts around the ids
    packed fingerprint;           // the field of the response
    int64_t longest;              // bytes of text that are served here
    uint32_t *ids;                // [longest + 1]
    uint8_t *out;                 // for 5 bytes an id, what is packed, and 32 more
    int64_t tokens;               // of the request that was answered last
    int64_t *counts;              // [2 + bounds + 1]: bytes of text, tokens, and requests by their number of tokens
    const int64_t *bounds;        // the most tokens of each of these numbers but the last
    int64_t bounds_size;
} small_encodes;

// Reads the tag of a field and its number or length, and moves behind these. Returns the tag, and 0 where it is longer
// than a byte, the number than three, or what has that length than what is left.
static uint8_t next_field(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    const uint8_t *p = *at;
    if (end - p < 2) return 0;
    uint8_t tag = *p++;
    *value = 0;
    for (int shift = 0;; shift += 7) {
        if (p == end || shift > 14) return 0;
        *value |= (uint64_t)(*p & 0x7F) << shift;
        if (*p++ < 0x80) break;
    }
    if ((tag & 7) == 2 && (uint64_t)(end - p) < *value) return 0;
    *at = p;
    return tag;
}

static uint8_t *put_packed(uint8_t *out, const packed *what) {
    memcpy(out, what->bytes, (size_t)what->size);
    return out + what->size;
}

// Answers the request whose fields behind the tokenizer's name begin at `begin`. Returns the size of the answer in `out`;
// 0 where it is not this function's: anything but one text without tokens in it, of the policy TEXT, whose ids alone are
// asked for, or one whose characters the encoder does not know yet.
int64_t tandem_small_encode(small_encodes *s, const uint8_t *request, int64_t begin, int64_t size) {
    enum { INPUT = 2 << 3 | 2, SEGMENT = 1 << 3 | 2, ADD_SPECIAL = 2 << 3, TEXT = 1 << 3 | 2, POLICY = 3 << 3 };
    if (begin > size) return 0;
    const uint8_t *at = request + begin, *end = request + size;
    uint64_t value, length, add_special = 1;
    if (next_field(&at, end, &value) != INPUT || at + value != end) return 0;
    if (next_field(&at, end, &length) != SEGMENT) return 0;
    const uint8_t *behind = at + length;
    if (behind != end && (next_field(&behind, end, &add_special) != ADD_SPECIAL || add_special > 1 || behind != end))
        return 0;
    end = at + length;
    if (next_field(&at, end, &length) != TEXT) return 0;
    const uint8_t *text = at, *text_end = at + length;
    at = text_end;
    if (at != end && (next_field(&at, end, &value) != POLICY || value > 1 || at != end)) return 0;
    if (!length || length > (uint64_t)s->longest || !is_utf8(text, text_end)) return 0;
    for (const uint8_t *p = text; p < text_end; p++)
        if (s->begins_token[*p]) return 0;

    int64_t ends = (int64_t)length, count;
    int64_t found = s->encode(s->works_on, text, &ends, 1, s->ids, NULL, &count);
    if (found < 0) return 0;
    int64_t packed_size = 0, tokens = found;
    for (int64_t n = 0; n < found; n++) packed_size += varint_size(s->ids[n]);
    if (add_special) {
        packed_size += s->front.size + s->back.size;
        tokens += s->front.ids + s->back.ids;
    }
    int64_t encoding =
        tokens ? 2 + varint_size((uint64_t)packed_size) + packed_size + varint_size((uint64_t)tokens) : 0;
    uint8_t *out = s->out;
    *out++ = 1 << 3 | 2;  // encoding
    out = put_varint(out, (uint64_t)encoding);
    if (tokens) {
        *out++ = 1 << 3 | 2;  // ids
        out = put_varint(out, (uint64_t)packed_size);
        if (add_special) out = put_packed(out, &s->front);
        for (int64_t n = 0; n < found; n++) out = put_varint(out, s->ids[n]);
        if (add_special) out = put_packed(out, &s->back);
        *out++ = 6 << 3;  // total_tokens
        out = put_varint(out, (uint64_t)tokens);
    }
    out = put_packed(out, &s->fingerprint);
    int64_t bucket = 0;
    while (bucket < s->bounds_size && tokens > s->bounds[bucket]) bucket++;
    s->counts[0] += (int64_t)length;
    s->counts[1] += s->tokens = tokens;
    s->counts[2 + bucket]++;
    return out - s->out;
}
