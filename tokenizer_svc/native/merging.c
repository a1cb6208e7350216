// Byte-pair merging: a piece that is a token is one; else, again and again, the two neighbours whose bytes together are
// the token of the lowest rank become one, the leftmost of equal ones first.

#include "text.h"
#include <stdlib.h>
#include <string.h>

#define SHORT 100 // bytes up to which looking through all pairs is quicker than a heap

static inline uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static inline uint64_t hash_of(const uint8_t *p, size_t size) {
    uint64_t hash = mix(0x2545F4914F6CDD1Du, size), word;
    uint32_t low, high;
    for (; size >= 8; size -= 8, p += 8) {
        memcpy(&word, p, 8);
        hash = mix(hash, word);
    }
    if (size >= 4) {
        memcpy(&low, p, 4);
        memcpy(&high, p + size - 4, 4);
        hash = mix(hash, (uint64_t)high << 32 | low);
    } else if (size)
        hash = mix(hash, (uint64_t)p[0] << 16 | (uint64_t)p[size / 2] << 8 | p[size - 1]);
    return mix(hash, size);
}

static inline uint32_t rank_of(const merges *m, const uint8_t *p, size_t size) {
    if (size > m->longest)
        return NONE;
    uint64_t hash = hash_of(p, size);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (uint64_t place = hash & m->table_mask;; place = (place + 1) & m->table_mask) {
        uint64_t entry = m->table[place];
        if (!entry)
            return NONE;
        if ((uint32_t)(entry >> 32) == tag) {
            uint32_t rank = (uint32_t)entry - 1, start = m->starts[rank];
            if (m->starts[rank + 1] - start == size && !memcmp(m->bytes + start, p, size))
                return rank;
        }
    }
}

// The rank of what two neighbours become; NONE where no merge makes it.
static inline uint32_t merged(const merges *m, const uint8_t *p, size_t size) {
    if (size == 2)
        return m->pairs[p[0] << 8 | p[1]];
    uint32_t rank = rank_of(m, p, size);
    return rank < m->merging ? rank : NONE;
}

// Fills the empty tables. Returns 0 where two ranks have the same bytes.
int tandem_fill(merges *m, uint32_t *singles, uint32_t *pairs) {
    for (uint32_t rank = 0; rank < m->ranks; rank++) {
        const uint8_t *p = m->bytes + m->starts[rank];
        size_t size = m->starts[rank + 1] - m->starts[rank];
        if (rank_of(m, p, size) != NONE)
            return 0;
        uint64_t hash = hash_of(p, size), place = hash & m->table_mask;
        while (m->table[place])
            place = (place + 1) & m->table_mask;
        m->table[place] = hash >> 32 << 32 | (rank + 1);
        if (size == 1)
            singles[p[0]] = rank;
        if (size == 2 && rank < m->merging)
            pairs[p[0] << 8 | p[1]] = rank;
    }
    return 1;
}

static inline void emit(state *s, uint32_t rank, const uint8_t *at) {
    const merges *m = s->vocabulary->merges;
    uint32_t offset = (uint32_t)(at - s->text);
    if (!m->first_id) {
        if (s->offsets)
            s->offsets[s->count] = offset;
        s->out[s->count++] = rank;
        return;
    }
    for (uint32_t n = m->first_id[rank]; n < m->first_id[rank + 1]; n++) {
        if (s->offsets)
            s->offsets[s->count] = offset;
        s->out[s->count++] = m->ids[n];
    }
}

static void merge_short(state *s, const uint8_t *piece, size_t size) {
    const merges *m = s->vocabulary->merges;
    uint32_t tokens[SHORT], pairs[SHORT]; // of each part its rank, and that of it and its right neighbour
    uint8_t starts[SHORT + 1];
    int parts = (int)size;
    for (int n = 0; n < parts; n++) {
        starts[n] = (uint8_t)n;
        tokens[n] = m->singles[piece[n]];
        pairs[n] = n + 1 < parts ? m->pairs[piece[n] << 8 | piece[n + 1]] : NONE;
    }
    starts[parts] = (uint8_t)size;
    for (;;) {
        int best = 0;
        for (int n = 1; n < parts; n++)
            best = pairs[n] < pairs[best] ? n : best;
        if (pairs[best] == NONE)
            break;
        tokens[best] = pairs[best];
        parts--;
        size_t rest = (size_t)(parts - best - 1);
        memmove(tokens + best + 1, tokens + best + 2, rest * sizeof *tokens);
        memmove(pairs + best + 1, pairs + best + 2, rest * sizeof *pairs);
        memmove(starts + best + 1, starts + best + 2, rest + 1);
        for (int n = best ? best - 1 : 0; n <= best; n++)
            pairs[n] = n + 1 < parts ? merged(m, piece + starts[n], (size_t)(starts[n + 2] - starts[n])) : NONE;
    }
    for (int n = 0; n < parts; n++)
        emit(s, tokens[n], piece + starts[n]);
}

static void sink(uint64_t *heap, size_t size, size_t at) {
    uint64_t entry = heap[at];
    for (size_t child; (child = 2 * at + 1) < size; at = child) {
        child += child + 1 < size && heap[child + 1] < heap[child];
        if (heap[child] >= entry)
            break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

static void rise(uint64_t *heap, size_t at) {
    uint64_t entry = heap[at];
    for (; at && heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

// A heap of (rank, place of the left part). An entry counts as long as the pair at that place still has that rank.
static void merge_long(state *s, const uint8_t *piece, size_t size) {
    const merges *m = s->vocabulary->merges;
    size_t needed = size * (2 * sizeof(uint64_t) + 4 * sizeof(uint32_t));
    if (size >= NONE || s->room_size < needed) {
        free(s->room);
        s->room = size < NONE ? malloc(needed) : NULL;
        s->room_size = s->room ? needed : 0;
        if (!s->room) {
            s->no_memory = 1;
            return;
        }
    }
    uint64_t *heap = s->room; // a merge takes one entry and adds two at most: never more than 2 * size
    uint32_t *next = (uint32_t *)(heap + 2 * size), *last = next + size, *pairs = last + size, *tokens = pairs + size;
    uint32_t end = (uint32_t)size;
    size_t entries = 0;
    for (uint32_t n = 0; n < end; n++) {
        next[n] = n + 1;
        last[n] = n - 1; // of the first one NONE
        tokens[n] = m->singles[piece[n]];
        pairs[n] = n + 1 < end ? m->pairs[piece[n] << 8 | piece[n + 1]] : NONE;
        if (pairs[n] != NONE)
            heap[entries++] = (uint64_t)pairs[n] << 32 | n;
    }
    for (size_t n = entries / 2; n-- > 0;)
        sink(heap, entries, n);
    while (entries) {
        uint32_t rank = (uint32_t)(heap[0] >> 32), at = (uint32_t)heap[0];
        heap[0] = heap[--entries];
        sink(heap, entries, 0);
        if (pairs[at] != rank)
            continue;
        uint32_t gone = next[at], right = next[gone];
        tokens[at] = rank;
        pairs[gone] = NONE;
        next[at] = right;
        if (right < end)
            last[right] = at;
        uint32_t lefts[2] = {last[at], at};
        for (int n = 0; n < 2; n++) {
            uint32_t left = lefts[n];
            if (left == NONE)
                continue;
            uint32_t middle = next[left];
            pairs[left] = middle < end ? merged(m, piece + left, next[middle] - left) : NONE;
            if (pairs[left] != NONE) {
                heap[entries] = (uint64_t)pairs[left] << 32 | left;
                rise(heap, entries++);
            }
        }
    }
    for (uint32_t n = 0; n < end; n = next[n])
        emit(s, tokens[n], piece + n);
}

void merge_piece(state *s, const uint8_t *piece, size_t size) {
    uint32_t rank = rank_of(s->vocabulary->merges, piece, size);
    if (rank != NONE)
        emit(s, rank, piece);
    else if (size <= SHORT)
        merge_short(s, piece, size);
    else
        merge_long(s, piece, size);
}
