#include "team.h"

#include <omp.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#else
#include <sched.h>
#endif

#include "numbers.h"

#define TURNS 1000              // of waiting, some 20 us; then a thread sleeps, and leaves its core to others
#define READ_AHEAD (256 << 10)  // bytes, where it is not known how large a core's second cache is: else half of it
#define AT_ONCE 4               // lines that are read between two looks at what is waited for

// A word that some wait for to change.
typedef struct {
    uint32_t word, sleepers;
} Signal;

typedef struct {
    Signal round;  // counts parts
    Part part;     // 0: there are no more
    const void *of;
    const char *next;
    int64_t next_pieces, next_piece, next_bytes;
    char apart[8];
} Call;  // one line: whoever sees that there is a part knows which

typedef struct {
    Signal done;  // the part that the member has done last
    char apart[56];
} Member;

typedef struct {
    Call call __attribute__((aligned(LINE)));
    int threads;
    Member *members;
} Team;

static __thread Team *led;  // by this thread

// The rest of what a thread reads ahead.
typedef struct {
    const char *next, *end;
} Ahead;

static void sleep_until_changed(Signal *signal, uint32_t seen) {
    __atomic_add_fetch(&signal->sleepers, 1, __ATOMIC_SEQ_CST);
#ifdef __linux__
    if (__atomic_load_n(&signal->word, __ATOMIC_SEQ_CST) == seen)
        syscall(SYS_futex, &signal->word, FUTEX_WAIT_PRIVATE, seen, (void *)0);
#else
    (void)seen;
    sched_yield();
#endif
    __atomic_sub_fetch(&signal->sleepers, 1, __ATOMIC_SEQ_CST);
}

static void set(Signal *signal, uint32_t to) {
    __atomic_store_n(&signal->word, to, __ATOMIC_SEQ_CST);
#ifdef __linux__
    if (__atomic_load_n(&signal->sleepers, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &signal->word, FUTEX_WAKE_PRIVATE, INT32_MAX);
#endif
}

// Waits until the word is another, and reads ahead meanwhile. What is loaded is not dropped, as what is only asked for is
// where a core waits for as many lines as it can.
static void wait_for_change(Signal *signal, uint32_t seen, Ahead *ahead) {
    for (int turn = 0; __atomic_load_n(&signal->word, __ATOMIC_ACQUIRE) == seen;)
        if (ahead->next < ahead->end) {
            for (int n = 0; n < AT_ONCE; n++) (void)*(const volatile char *)(ahead->next + n * LINE);
            ahead->next += AT_ONCE * LINE;
        } else if (turn++ < TURNS) _mm_pause();
        else sleep_until_changed(signal, seen);
}

static int64_t read_ahead(void) {
    static int64_t known;
    int64_t bytes = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (bytes) return bytes;
    bytes = READ_AHEAD;
#ifdef _SC_LEVEL2_CACHE_SIZE
    const int64_t cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (cache > 0) bytes = cache / 2;
#endif
    __atomic_store_n(&known, bytes, __ATOMIC_RELAXED);
    return bytes;
}

static Ahead ahead_of(const Call *call, int thread, int threads) {
    int64_t first = call->next_pieces * thread / threads * call->next_piece;
    int64_t last = call->next_pieces * (thread + 1) / threads * call->next_piece;
    if (last > call->next_bytes) last = call->next_bytes;  // the last piece may be shorter
    if (last > first + read_ahead()) last = first + read_ahead();
    if (last < first) last = first;
    const Ahead ahead = {call->next + first, call->next + first + (last - first) / (AT_ONCE * LINE) * (AT_ONCE * LINE)};
    return ahead;
}

static void follow(Team *team, int thread, int threads) {
    Ahead ahead = {0};
    for (uint32_t round = 0;; round++) {
        wait_for_change(&team->call.round, round, &ahead);
        if (!team->call.part) return;
        ahead = ahead_of(&team->call, thread, threads);
        team->call.part(team->call.of);
        set(&team->members[thread].done, round + 1);
    }
}

void tandem_lead(int threads, Part lead, const void *of) {
    Member members[threads];
    Team team = {.members = members};
    memset(members, 0, sizeof(members));
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), there = omp_get_num_threads();
        if (thread) follow(&team, thread, there);
        else {
            team.threads = there;
            led = &team;
            lead(of);
            led = 0;
            team.call.part = 0;
            set(&team.call.round, team.call.round.word + 1);
        }
    }
}

void tandem_together(int threads, Part part, const void *of) {
    Team *team = led;
    if (!team || team->threads != threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
        part(of);
        return;
    }
    Call *call = &team->call;
    const uint32_t round = call->round.word;
    call->part = part, call->of = of;
    set(&call->round, round + 1);
    Ahead ahead = ahead_of(call, 0, threads);
    led = 0;  // a part has no parts
    part(of);
    led = team;
    for (int n = 1; n < threads; n++) wait_for_change(&team->members[n].done, round, &ahead);
    tandem_read_next(0, 0, 0, 0);
}

void tandem_read_next(const void *from, int64_t pieces, int64_t piece, int64_t bytes) {
    if (!led) return;
    Call *call = &led->call;
    call->next = from, call->next_pieces = pieces, call->next_piece = piece, call->next_bytes = bytes;
}
