// What cutting and merging share. Text is valid UTF-8 everywhere.

#include <stddef.h>
#include <stdint.h>

#define NONE UINT32_MAX  // no rank

// One step of a pattern; see `pattern_compiler.py`. `mask` has one bit for each character set.
typedef struct {
    int32_t kind;
    uint32_t mask;
    int32_t a, b;
    int32_t memory;  // number of the loop's memory, or -1
} instruction;

enum { SET, ATOMIC, RUN, LOOK, END, SPLIT, JUMP, MATCH, FAIL };

typedef struct {
    const uint32_t *masks;  // of each code point the sets that it is in; KNOWN once that is known
    const instruction *program;
    int32_t kind;  // PATTERN, or one of the two ways to cut digits in threes
    int32_t size, memories;
} cutter;

#define KNOWN 0x80000000u
enum { PATTERN, THREES_APART, BEFORE_THREES };

// Two neighbours that a merge joins, by their ranks.
typedef struct {
    uint32_t left, right, rank;
} pair;

// Byte strings by rank, and back by an open-addressing table whose entries are (hash << 32 | rank + 1).
typedef struct {
    const uint8_t *bytes;
    const uint32_t *starts;  // [ranks + 1] in `bytes`
    uint64_t *table;
    uint64_t table_mask;
    const uint32_t *singles, *pairs;  // [256] and [65536]: the ranks of one byte, and of two that a merge makes
    uint32_t ranks, merging;          // ranks from `merging` on are whole pieces only, which no merge makes
    uint32_t longest;
    const uint32_t *first_id;  // [ranks + 1] in `ids`; NULL: each rank is its own id
    const uint32_t *ids;
    const pair *pair_table;  // NULL: neighbours have the rank of what they become; open addressing, empty: rank NONE
    uint64_t pair_mask;
    const uint32_t *products;  // of each rank of a pair the rank of what it becomes
    int32_t whole;             // with pairs: whether a piece that is a token is taken as it is
} merges;

typedef struct {
    const cutter *cutters;  // each cuts the pieces of the one before
    int32_t levels;
    const merges *merges;
} vocabulary;

// Where an encoding stands.
typedef struct {
    const vocabulary *vocabulary;
    const uint8_t *text;
    uint32_t *out, *offsets;  // `offsets` may be NULL
    int64_t count;
    int unknown;  // a character was met whose sets are not known
    int no_memory;
    void *room;  // for long pieces
    size_t room_size;
    struct frame *frames;
    struct memory *memories;
} state;

void merge_piece(state *s, const uint8_t *piece, size_t size);
int cut(state *s, int level, const uint8_t *begin, const uint8_t *end);

static inline int size_of(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }
