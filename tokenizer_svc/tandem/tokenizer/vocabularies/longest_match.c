// The longest token that matches, from left to right (RWKV).

#include <stdint.h>

#define NONE UINT32_MAX  // no id

// Tokens as a tree of bytes: an entry of the open-addressing table is (node << 8 | byte) << 28 | child. Node 0 is the root.
typedef struct {
    uint64_t *table;
    uint64_t table_mask;
    uint32_t *ids;     // of each node the token that ends there, or NONE
    uint32_t unknown;  // what a byte becomes that begins no token; NONE: nothing
} tree;

// The place in the table where the child of a node is, or may be put.
static inline uint64_t place_of(const tree *t, uint64_t key) {
    uint64_t hash = key * 0x9E3779B97F4A7C15u, place = (hash ^ hash >> 32) & t->table_mask;
    while (t->table[place] && t->table[place] >> 28 != key) place = (place + 1) & t->table_mask;
    return place;
}

// Puts the tokens, which are all different, into the empty tree. `ids` has room for a node a byte, and the root.
void tandem_plant(tree *t, const uint8_t *bytes, const uint32_t *starts, const uint32_t *ids, int64_t tokens) {
    uint64_t nodes = 1;
    t->ids[0] = NONE;
    for (int64_t n = 0; n < tokens; n++) {
        uint64_t node = 0;
        for (uint32_t at = starts[n]; at < starts[n + 1]; at++) {
            uint64_t key = node << 8 | bytes[at], place = place_of(t, key);
            if (!t->table[place]) {
                t->table[place] = key << 28 | nodes;
                t->ids[nodes++] = NONE;
            }
            node = t->table[place] & 0xFFFFFFF;
        }
        t->ids[node] = ids[n];
    }
}

// As `tandem_encode` in `bpe/pre_tokenize.c`.
int64_t tandem_longest(const tree *t, const uint8_t *text, const int64_t *ends, int64_t texts, uint32_t *out,
                       uint32_t *offsets, int64_t *counts) {
    int64_t begin = 0, at = 0, count = 0;
    for (int64_t n = 0; n < texts; n++) {
        while (at < ends[n]) {
            uint32_t found = t->unknown;
            int64_t size = 1;
            uint64_t node = 0;
            for (int64_t next = at; next < ends[n]; next++) {
                node = t->table[place_of(t, node << 8 | text[next])] & 0xFFFFFFF;
                if (!node) break;
                if (t->ids[node] != NONE) {
                    found = t->ids[node];
                    size = next + 1 - at;
                }
            }
            if (found != NONE) {
                if (offsets) offsets[count] = (uint32_t)(at - begin);
                out[count++] = found;
            }
            at += size;
        }
        begin = at;
        counts[n] = count;
    }
    return count;
}
