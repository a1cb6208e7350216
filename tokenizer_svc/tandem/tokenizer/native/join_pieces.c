// Ids to bytes, and lists of ids to the texts of an answer as they are on the wire.

#include "wire.h"

#define WIDE 16  // bytes that are copied in one go
#define HEAD 22  // bytes that stand in front of a text on the wire, at most

// How many bytes the ids stand for; each of them is below the number of pieces.
int64_t tandem_size(const uint32_t *starts, const uint32_t *ids, int64_t count) {
    int64_t size = 0;
    for (int64_t n = 0; n < count; n++) size += starts[ids[n] + 1] - starts[ids[n]];
    return size;
}

// Writes the bytes of the ids, and up to WIDE bytes behind them that mean nothing; as many may be read behind `bytes`.
void tandem_join(const uint8_t *bytes, const uint32_t *starts, const uint32_t *ids, int64_t count, uint8_t *out) {
    for (int64_t n = 0; n < count; n++) {
        uint32_t start = starts[ids[n]], size = starts[ids[n] + 1] - start;
        if (size <= WIDE)
            memcpy(out, bytes + start, WIDE);  // one instruction, where a size that nobody foresees is a call
        else memcpy(out, bytes + start, size);
        out += size;
    }
}

// Writes a message in the field 1 for each list of ids, with its text in the field 1. List n goes from `begins[n]` to
// `ends[n]`; where `spaces[n]`, its text loses a space at its beginning. Stops at a list that is not UTF-8. Returns the
// number of lists that are written, and in `written` that of bytes; `out` has room for HEAD bytes a list beside the
// texts, and for WIDE more.
int64_t tandem_texts(const uint8_t *bytes, const uint32_t *starts, const uint32_t *ids, const int64_t *begins,
                     const int64_t *ends, const uint8_t *spaces, int64_t lists, uint8_t *out, int64_t *written) {
    uint8_t *at = out;
    int64_t n = 0;
    for (; n < lists; n++) {
        int64_t begin = begins[n], end = ends[n], skipped = 0;
        if (begin < end && spaces[n] && starts[ids[begin]] < starts[ids[begin] + 1])
            skipped = bytes[starts[ids[begin]]] == ' ';
        int64_t size = tandem_size(starts, ids + begin, end - begin) - skipped;
        uint8_t head[HEAD], *inner = head, *text = at;
        if (size) {
            *inner++ = 1 << 3 | 2;
            inner = put_varint(inner, (uint64_t)size);
        }
        *text++ = 1 << 3 | 2;
        text = put_varint(text, (uint64_t)(inner - head + size));
        memcpy(text, head, (size_t)(inner - head));
        text += inner - head;
        uint8_t first = text[-1];
        tandem_join(bytes, starts, ids + begin, end - begin, text - skipped);
        text[-1] = first;  // where the space was
        if (!is_utf8(text, text + size)) break;
        at = text + size;
    }
    *written = at - out;
    return n;
}
