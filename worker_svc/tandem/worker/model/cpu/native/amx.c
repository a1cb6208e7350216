// Whether tiles may be used (amx.h).

#include "amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILES (1 << 24)
#define ASK_FOR_REGISTERS 0x1023  // ARCH_REQ_XCOMP_PERM
#define TILE_DATA 18

// Asks the system once: it saves tiles for processes that have asked only.
int amx_is_there(int kind) {
#ifdef WITH_AMX
    static int known = -1;  // the kinds
    if (known < 0) {
        unsigned a, b, c, d = 0;
        const int here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & TILES;
        known = here && syscall(SYS_arch_prctl, ASK_FOR_REGISTERS, TILE_DATA) == 0 ? (int)d & (AMX_BF16 | AMX_INT8) : 0;
    }
    return (known & kind) != 0;
#else
    (void)kind;
    return 0;
#endif
}
