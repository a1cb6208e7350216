// Into which cache a processor is to be asked for what comes next, and how often.
//
// A core waits for so many lines at once, and forgets what else it is asked for meanwhile. Some wait for more of them by way
// of the second cache. Where few rows wait for memory, these are asked for every line twice: far ahead, and once more nearer.

#pragma once

// Whether this processor reads quicker so than by asking once, into the first cache.
int by_second_cache(void);
