// Byte-pair merging: a piece that is a token is one; else, again and again, the two neighbours whose bytes together are
// the token of the lowest rank become one, the leftmost of equal ones first. With a table of pairs these have the ranks,
// and a piece that is a token is one only where `whole` says so; see `merges.py`.

#include "bpe.h"
#include <stdlib.h>
#include <string.h>

#define SHORT 100  // bytes up to which looking through all pairs is quicker than a heap

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
    } else if (size) hash = mix(hash, (uint64_t)p[0] << 16 | (uint64_t)p[size / 2] << 8 | p[size - 1]);
    return mix(hash, size);
}

static inline uint32_t rank_of(const merges *m, const uint8_t *p, size_t size) {
    if (size > m->longest) return NONE;
    uint64_t hash = hash_of(p, size);
    uint32_t tag = (uint32_t)(hash >> 32);
    for (uint64_t place = hash & m->table_mask;; place = (place + 1) & m->table_mask) {
        uint64_t entry = m->table[place];
        if (!entry) return NONE;
        if ((uint32_t)(entry >> 32) == tag) {
            uint32_t rank = (uint32_t)entry - 1, start = m->starts[rank];
            if (m->starts[rank + 1] - start == size && !memcmp(m->bytes + start, p, size)) return rank;
        }
    }
}

// The rank of what two neighbours become; NONE where no merge makes it.
static inline uint32_t merged(const merges *m, const uint8_t *p, size_t size) {
    if (size == 2) return m->pairs[p[0] << 8 | p[1]];
    uint32_t rank = rank_of(m, p, size);
    return rank < m->merging ? rank : NONE;
}

static inline uint64_t place_of_pair(const merges *m, uint32_t left, uint32_t right) {
    uint64_t place = mix(0x2545F4914F6CDD1Du, (uint64_t)left << 32 | right) & m->pair_mask;
    while (m->pair_table[place].rank != NONE &&
           (m->pair_table[place].left != left || m->pair_table[place].right != right))
        place = (place + 1) & m->pair_mask;
    return place;
}

static inline uint32_t rank_of_pair(const merges *m, uint32_t left, uint32_t right) {
    return m->pair_table[place_of_pair(m, left, right)].rank;
}

// Fills the empty tables. Returns 0 where two ranks have the same bytes.
int tandem_fill(merges *m, uint32_t *singles, uint32_t *pairs) {
    for (uint32_t rank = 0; rank < m->ranks; rank++) {
        const uint8_t *p = m->bytes + m->starts[rank];
        size_t size = m->starts[rank + 1] - m->starts[rank];
        if (rank_of(m, p, size) != NONE) return 0;
        uint64_t hash = hash_of(p, size), place = hash & m->table_mask;
        while (m->table[place]) place = (place + 1) & m->table_mask;
        m->table[place] = hash >> 32 << 32 | (rank + 1);
        if (size == 1) singles[p[0]] = rank;
        if (size == 2 && rank < m->merging) pairs[p[0] << 8 | p[1]] = rank;
    }
    return 1;
}

static inline void emit(state *s, uint32_t rank, const uint8_t *at) {
    const merges *m = s->vocabulary->merges;
    uint32_t offset = (uint32_t)(at - s->text);
    if (!m->first_id) {
        if (s->offsets) s->offsets[s->count] = offset;
        s->out[s->count++] = rank;
        return;
    }
    for (uint32_t n = m->first_id[rank]; n < m->first_id[rank + 1]; n++) {
        if (s->offsets) s->offsets[s->count] = offset;
        s->out[s->count++] = m->ids[n];
    }
}

// The rank of what becomes of two neighbours, whose bytes are these; NONE where they do not join.
static inline uint32_t joined(const merges *m, int by_pair, uint32_t left, uint32_t right, const uint8_t *p,
                              size_t size) {
    return by_pair ? rank_of_pair(m, left, right) : merged(m, p, size);
}

// Merges until `stop` parts are left, or nothing joins. Returns how many there are, their ranks and where they start.
static inline int reduce_short(const merges *m, int by_pair, const uint8_t *piece, size_t size, int stop,
                               uint32_t *tokens, uint8_t *starts) {
    uint32_t pairs[SHORT];  // of each part the rank of it and its right neighbour
    int parts = (int)size;
    for (int n = 0; n < parts; n++) {
        starts[n] = (uint8_t)n;
        tokens[n] = m->singles[piece[n]];
    }
    for (int n = 0; n < parts; n++)
        pairs[n] = n + 1 < parts ? joined(m, by_pair, tokens[n], tokens[n + 1], piece + n, 2) : NONE;
    starts[parts] = (uint8_t)size;
    while (parts > stop) {
        int best = 0;
        for (int n = 1; n < parts; n++) best = pairs[n] < pairs[best] ? n : best;
        if (pairs[best] == NONE) break;
        tokens[best] = by_pair ? m->products[pairs[best]] : pairs[best];
        parts--;
        size_t rest = (size_t)(parts - best - 1);
        memmove(tokens + best + 1, tokens + best + 2, rest * sizeof *tokens);
        memmove(pairs + best + 1, pairs + best + 2, rest * sizeof *pairs);
        memmove(starts + best + 1, starts + best + 2, rest + 1);
        for (int n = best ? best - 1 : 0; n <= best; n++)
            pairs[n] = n + 1 < parts ? joined(m, by_pair, tokens[n], tokens[n + 1], piece + starts[n],
                                              (size_t)(starts[n + 2] - starts[n]))
                                     : NONE;
    }
    return parts;
}

static inline void merge_short(state *s, int by_pair, const uint8_t *piece, size_t size) {
    uint32_t tokens[SHORT];
    uint8_t starts[SHORT + 1];
    int parts = reduce_short(s->vocabulary->merges, by_pair, piece, size, 1, tokens, starts);
    for (int n = 0; n < parts; n++) emit(s, tokens[n], piece + starts[n]);
}

static void sink(uint64_t *heap, size_t size, size_t at) {
    uint64_t entry = heap[at];
    for (size_t child; (child = 2 * at + 1) < size; at = child) {
        child += child + 1 < size && heap[child + 1] < heap[child];
        if (heap[child] >= entry) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

static void rise(uint64_t *heap, size_t at) {
    uint64_t entry = heap[at];
    for (; at && heap[(at - 1) / 2] > entry; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

// As `reduce_short` by a heap of (rank, place of the left part). An entry counts as long as the pair at that place still
// has that rank. Returns 0 where there is no memory. `tokens` has the rank of each part at the place where it starts,
// `next` there the place of the next one.
static inline size_t reduce_long(state *s, int by_pair, const uint8_t *piece, size_t size, size_t stop,
                                 uint32_t **of_parts, uint32_t **next_parts) {
    const merges *m = s->vocabulary->merges;
    size_t needed = size * (2 * sizeof(uint64_t) + 4 * sizeof(uint32_t));
    if (size >= NONE || s->room_size < needed) {
        free(s->room);
        s->room = size < NONE ? malloc(needed) : NULL;
        s->room_size = s->room ? needed : 0;
        if (!s->room) {
            s->no_memory = 1;
            return 0;
        }
    }
    uint64_t *heap = s->room;  // a merge takes one entry and adds two at most: never more than 2 * size
    uint32_t *next = (uint32_t *)(heap + 2 * size), *last = next + size, *pairs = last + size, *tokens = pairs + size;
    uint32_t end = (uint32_t)size;
    size_t entries = 0, parts = size;
    *of_parts = tokens;
    *next_parts = next;
    for (uint32_t n = 0; n < end; n++) {
        next[n] = n + 1;
        last[n] = n - 1;  // of the first one NONE
        tokens[n] = m->singles[piece[n]];
    }
    for (uint32_t n = 0; n < end; n++) {
        pairs[n] = n + 1 < end ? joined(m, by_pair, tokens[n], tokens[n + 1], piece + n, 2) : NONE;
        if (pairs[n] != NONE) heap[entries++] = (uint64_t)pairs[n] << 32 | n;
    }
    for (size_t n = entries / 2; n-- > 0;) sink(heap, entries, n);
    while (entries && parts > stop) {
        uint32_t rank = (uint32_t)(heap[0] >> 32), at = (uint32_t)heap[0];
        heap[0] = heap[--entries];
        sink(heap, entries, 0);
        if (pairs[at] != rank) continue;
        uint32_t gone = next[at], right = next[gone];
        tokens[at] = by_pair ? m->products[rank] : rank;
        parts--;
        pairs[gone] = NONE;
        next[at] = right;
        if (right < end) last[right] = at;
        uint32_t lefts[2] = {last[at], at};
        for (int n = 0; n < 2; n++) {
            uint32_t left = lefts[n];
            if (left == NONE) continue;
            uint32_t middle = next[left];
            pairs[left] = middle < end
                              ? joined(m, by_pair, tokens[left], tokens[middle], piece + left, next[middle] - left)
                              : NONE;
            if (pairs[left] != NONE) {
                heap[entries] = (uint64_t)pairs[left] << 32 | left;
                rise(heap, entries++);
            }
        }
    }
    return parts;
}

static inline void merge_long(state *s, int by_pair, const uint8_t *piece, size_t size) {
    uint32_t *tokens, *next;
    if (reduce_long(s, by_pair, piece, size, 1, &tokens, &next))
        for (size_t n = 0; n < size; n = next[n]) emit(s, tokens[n], piece + n);
}

void merge_piece(state *s, const uint8_t *piece, size_t size) {
    const merges *m = s->vocabulary->merges;
    int by_pair = m->pair_table != NULL;
    uint32_t rank = by_pair && !m->whole ? NONE : rank_of(m, piece, size);
    if (rank != NONE) emit(s, rank, piece);
    else if (size <= SHORT) by_pair ? merge_short(s, 1, piece, size) : merge_short(s, 0, piece, size);
    else by_pair ? merge_long(s, 1, piece, size) : merge_long(s, 0, piece, size);
}

// Fills the empty table of pairs: merge n makes `products[n]` of its first `cuts[n]` bytes and the rest. The first of
// equal ones counts, and none with a part that no rank has.
void tandem_pair(const merges *m, pair *table, const uint32_t *cuts, int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        uint32_t start = m->starts[m->products[n]], size = m->starts[m->products[n] + 1] - start;
        if (cuts[n] >= size) continue;
        uint32_t left = rank_of(m, m->bytes + start, cuts[n]);
        uint32_t right = rank_of(m, m->bytes + start + cuts[n], size - cuts[n]);
        if (left == NONE || right == NONE) continue;
        uint64_t place = place_of_pair(m, left, right);
        if (table[place].rank == NONE) table[place] = (pair){left, right, (uint32_t)n};
    }
}

// Of each merging rank, whose bytes are merged by themselves, the length of the first of the two parts that become it; 0
// where it does not come to that. Returns 0 where there is no memory.
int tandem_splits(const merges *m, uint32_t *splits) {
    vocabulary v = {.merges = m};
    state s = {.vocabulary = &v};
    int by_pair = m->pair_table != NULL;
    for (uint32_t rank = 0; rank < m->merging && !s.no_memory; rank++) {
        const uint8_t *piece = m->bytes + m->starts[rank];
        size_t size = m->starts[rank + 1] - m->starts[rank], parts = 0;
        uint32_t few[SHORT], *tokens = few, *next, second = 0;
        uint8_t starts[SHORT + 1];
        if (size > SHORT) {
            parts = reduce_long(&s, by_pair, piece, size, 2, &tokens, &next);
            second = parts == 2 ? next[0] : 0;
        } else if (size > 1) {
            parts = (size_t)reduce_short(m, by_pair, piece, size, 2, few, starts);
            second = starts[1];
            few[second] = few[1];  // as it is in long ones
        }
        int joins = parts == 2 && (!by_pair || rank_of_pair(m, tokens[0], tokens[second]) != NONE);
        splits[rank] = joins ? second : 0;
    }
    free(s.room);
    return !s.no_memory;
}
