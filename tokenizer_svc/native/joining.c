// Ids to bytes.

#include "text.h"
#include <string.h>

// How many bytes the ids stand for; each of them is below the number of pieces.
int64_t tandem_size(const uint32_t *starts, const uint32_t *ids, int64_t count) {
    int64_t size = 0;
    for (int64_t n = 0; n < count; n++)
        size += starts[ids[n] + 1] - starts[ids[n]];
    return size;
}

void tandem_join(const uint8_t *bytes, const uint32_t *starts, const uint32_t *ids, int64_t count, uint8_t *out) {
    for (int64_t n = 0; n < count; n++) {
        uint32_t start = starts[ids[n]], size = starts[ids[n] + 1] - start;
        memcpy(out, bytes + start, size);
        out += size;
    }
}
