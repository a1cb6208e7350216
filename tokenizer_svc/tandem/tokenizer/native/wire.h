// What is read and written as it is on the wire.

#include <stdint.h>
#include <string.h>

// Whether all is UTF-8: no surrogates, nothing longer than it must be, nothing above U+10FFFF.
static inline int is_utf8(const uint8_t *p, const uint8_t *end) {
    uint64_t word;
    while (p < end) {
        if (end - p >= 8 && (memcpy(&word, p, 8), !(word & 0x8080808080808080u))) {
            p += 8;
            continue;
        }
        uint8_t lead = *p++, low = 0x80, high = 0xBF;
        if (lead < 0x80) continue;
        if (lead < 0xC2 || lead > 0xF4) return 0;
        int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        if (end - p < more) return 0;
        if (lead == 0xE0 || lead == 0xF0) low = lead == 0xE0 ? 0xA0 : 0x90;
        if (lead == 0xED || lead == 0xF4) high = lead == 0xED ? 0x9F : 0x8F;
        if (*p < low || *p > high) return 0;
        for (p++; --more; p++)
            if ((*p & 0xC0) != 0x80) return 0;
    }
    return 1;
}

static inline uint8_t *put_varint(uint8_t *out, uint64_t value) {
    for (; value > 0x7F; value >>= 7) *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

static inline int64_t varint_size(uint64_t value) {
    int64_t size = 1;
    while (value >>= 7) size++;
    return size;
}
