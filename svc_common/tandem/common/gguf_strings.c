// Arrays of strings as GGUF files have them: each has its length in front, 8 bytes.

#include <stdint.h>
#include <string.h>

// Walks over `count` strings that begin at `data`, and copies each to `out`, unless that is NULL, with the byte 0xFF in
// front of it. Returns where they end, in bytes from `data`; -1 where they do not end within `size`.
int64_t tandem_gguf_strings(const uint8_t *data, int64_t size, int64_t count, uint8_t *out) {
    int64_t at = 0;
    for (int64_t n = 0; n < count; n++) {
        uint64_t length = 0;
        if (size - at < 8)
            return -1;
        for (int byte = 7; byte >= 0; byte--)
            length = length << 8 | data[at + byte];
        at += 8;
        if (length > (uint64_t)(size - at))
            return -1;
        if (out) {
            *out++ = 0xFF;
            memcpy(out, data + at, length);
            out += length;
        }
        at += (int64_t)length;
    }
    return at;
}
