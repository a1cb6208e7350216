// Cuts text by a pattern as a backtracking engine does: the first alternative that matches, the longest run first.
//
// A pattern has loops over single characters only, but for a RUN, so a step is met at most once on the way to a match, and at most as
// many choices are open as it has steps. Whether a step leads to a match depends on the place alone. Each loop remembers
// its last run and the places behind which nothing matched, so that no stretch of text is walked again and again.

#include "bpe.h"
#include <stdlib.h>
#include <string.h>

struct frame {
    int32_t step;
    const uint8_t *at, *low;  // of a loop: where it stands, and the shortest that is allowed
};

struct memory {
    const uint8_t *run, *run_end;         // all characters between them are in the set, the one at `run_end` is not
    const uint8_t *failed, *failed_high;  // from all places between them, both included, the rest does not match
};

static inline uint32_t mask_at(state *s, const cutter *c, const uint8_t *p, const uint8_t *end, int *size) {
    if (p >= end) {
        *size = 0;
        return 0;
    }
    uint32_t point = *p;
    if (point < 0x80) {
        *size = 1;
        return c->masks[point];
    }
    *size = size_of(*p);
    if (*size == 2) point = (point & 0x1F) << 6 | (p[1] & 0x3F);
    else if (*size == 3) point = (point & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    else point = (point & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    uint32_t mask = c->masks[point];
    if (!mask) s->unknown = 1;
    return mask;
}

static inline const uint8_t *before(const uint8_t *p) {
    do p--;
    while ((*p & 0xC0) == 0x80);
    return p;
}

// The end of the run of characters that `mask` has; one that is known is not walked again.
static inline const uint8_t *run_end(state *s, const cutter *c, uint32_t mask, const uint8_t *at, const uint8_t *end,
                                     struct memory *m) {
    if (m->run && m->run <= at && at <= m->run_end) return m->run_end;
    const uint8_t *p = at;
    int size;
    while (mask_at(s, c, p, end, &size) & mask) {
        p += size;
        if (p == m->run) {
            p = m->run_end;
            break;
        }
    }
    m->run = at;
    m->run_end = p;
    return p;
}

static void remember_failure(struct memory *m, const uint8_t *p) {
    if (m->failed && p < m->failed && p + size_of(*p) >= m->failed) m->failed = p;
    else if (m->failed && p > m->failed_high && m->failed_high + size_of(*m->failed_high) >= p) m->failed_high = p;
    else if (!m->failed || p < m->failed || p > m->failed_high) m->failed = m->failed_high = p;
}

// The longest place from `p` down to `low` that is not known to fail; NULL where there is none.
static const uint8_t *candidate(const struct memory *m, const uint8_t *p, const uint8_t *low) {
    if (m->failed && m->failed <= p && p <= m->failed_high) return m->failed <= low ? NULL : before(m->failed);
    return p;
}

// The end of the match that begins at `at`, which is not the end; NULL where there is none.
static const uint8_t *match(state *s, const cutter *c, struct memory *memories, const uint8_t *at, const uint8_t *end) {
    struct frame *frames = s->frames;
    const instruction *program = c->program, *i = program;
    int open = 0, size;
    for (;;) {
        int failed = 0;
        switch (i->kind) {
        case SET:
        case ATOMIC: {
            const uint8_t *low = at, *stop;
            int32_t least = i->a, most = i->b;
            for (int32_t n = 0; n < least; n++) {
                if (!(mask_at(s, c, low, end, &size) & i->mask)) {
                    failed = 1;
                    break;
                }
                low += size;
            }
            if (failed) break;
            if (least == most) {
                at = low;
                i++;
                break;
            }
            struct memory *m = memories + i->memory;
            if (most < 0) stop = run_end(s, c, i->mask, low, end, m);
            else {
                stop = low;
                for (int32_t n = least; n < most && mask_at(s, c, stop, end, &size) & i->mask; n++) stop += size;
            }
            if (i->kind == ATOMIC || i[1].kind == MATCH) {
                at = stop;
                i++;
                break;
            }
            at = candidate(m, stop, low);
            if (!at) {
                failed = 1;
                break;
            }
            frames[open++] = (struct frame){(int32_t)(i - program), at, low};
            i++;
            break;
        }
        case RUN:  // nothing but a match follows
            for (;;) {
                uint32_t mask = mask_at(s, c, at, end, &size);
                int next;
                if (!(mask & i->mask) && !(mask & i->a && mask_at(s, c, at + size, end, &next) & i->b)) break;
                at += size;
            }
            i++;
            break;
        case LOOK:
            if ((mask_at(s, c, at, end, &size) & i->mask ? 0 : 1) == i->a) i++;
            else failed = 1;
            break;
        case END:
            if (at == end || (i->a && at + 1 == end && *at == '\n')) i++;
            else failed = 1;
            break;
        case SPLIT:
            if (i->mask && !(mask_at(s, c, at, end, &size) & i->mask)) i = program + i->a;
            else {
                frames[open++] = (struct frame){(int32_t)(i - program), at, NULL};
                i++;
            }
            break;
        case JUMP: i = program + i->a; break;
        case MATCH: return at;
        default: failed = 1;
        }
        while (failed) {
            if (!open) return NULL;
            struct frame *f = frames + open - 1;
            i = program + f->step;
            at = f->at;
            if (i->kind == SPLIT) {
                open--;
                i = program + i->a;
                break;
            }
            struct memory *m = memories + i->memory;
            remember_failure(m, at);
            at = at > f->low ? candidate(m, before(at), f->low) : NULL;
            if (at) {
                f->at = at;
                i++;
                break;
            }
            open--;
        }
    }
}

static int piece(state *s, int level, const uint8_t *begin, const uint8_t *end) {
    return begin < end ? cut(s, level + 1, begin, end) : 1;
}

// Runs of digits in threes from their right end; `apart`, away from what is around them too.
static int cut_threes(state *s, int level, const uint8_t *at, const uint8_t *end, int apart) {
    const cutter *c = s->vocabulary->cutters + level;
    const uint8_t *begun = at;
    int size;
    while (at < end) {
        if (!(mask_at(s, c, at, end, &size) & 1)) {
            at += size;
            continue;
        }
        const uint8_t *stop = at;
        int64_t digits = 0;
        for (; mask_at(s, c, stop, end, &size) & 1; stop += size) digits++;
        if (apart) {
            if (!piece(s, level, begun, at)) return 0;
            begun = at;
        }
        for (; at < stop; digits--) {
            if (digits % 3 == 0) {
                if (!piece(s, level, begun, at)) return 0;
                begun = at;
            }
            at += size_of(*at);
        }
        if (apart) {
            if (!piece(s, level, begun, stop)) return 0;
            begun = stop;
        }
    }
    return piece(s, level, begun, end);
}

// Cuts by the pattern of this level and hands the pieces on. 0: it ends here, for the reason that `s` tells.
int cut(state *s, int level, const uint8_t *begin, const uint8_t *end) {
    if (level == s->vocabulary->levels) {
        merge_piece(s, begin, (size_t)(end - begin));
        return !s->no_memory;
    }
    const cutter *c = s->vocabulary->cutters + level;
    if (c->kind != PATTERN) return cut_threes(s, level, begin, end, c->kind == THREES_APART) && !s->unknown;
    struct memory *memories = s->memories;
    for (int before_it = 0; before_it < level; before_it++) memories += s->vocabulary->cutters[before_it].memories;
    memset(memories, 0, (size_t)c->memories * sizeof *memories);
    const uint8_t *at = begin, *begun = begin;
    while (at < end) {
        const uint8_t *stop = match(s, c, memories, at, end);
        if (s->unknown) return 0;
        if (!stop) {
            at += size_of(*at);
            continue;
        }
        if (!piece(s, level, begun, at) || !cut(s, level + 1, at, stop)) return 0;
        at = begun = stop;
    }
    return piece(s, level, begun, end);
}

// Encodes `texts` texts that lie one after the other and end at `ends`. `out`, and `offsets` in bytes of its own text
// where they are wanted, have room for one id a byte; `counts[n]` is how many ids there are up to the end of text n.
// Returns the number of ids; -1: a character is not KNOWN to a cutter; -2: there is no memory.
int64_t tandem_encode(const vocabulary *v, const uint8_t *text, const int64_t *ends, int64_t texts, uint32_t *out,
                      uint32_t *offsets, int64_t *counts) {
    int32_t steps = 1, memories = 1;
    for (int32_t level = 0; level < v->levels; level++) {
        steps = v->cutters[level].size > steps ? v->cutters[level].size : steps;
        memories += v->cutters[level].memories;
    }
    state s = {.vocabulary = v, .out = out, .offsets = offsets};
    s.frames = malloc((size_t)steps * sizeof *s.frames);
    s.memories = malloc((size_t)memories * sizeof *s.memories);
    s.no_memory = !s.frames || !s.memories;
    int64_t begin = 0;
    for (int64_t n = 0; n < texts && !s.no_memory && !s.unknown; n++) {
        s.text = text + begin;
        if (ends[n] > begin) cut(&s, 0, text + begin, text + ends[n]);
        begin = ends[n];
        counts[n] = s.count;
    }
    free(s.frames);
    free(s.memories);
    free(s.room);
    return s.no_memory ? -2 : s.unknown ? -1 : s.count;
}
