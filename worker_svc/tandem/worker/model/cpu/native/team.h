// Threads that stay together for a call of many parts.
//
// OpenMP's threads meet twice for each part, by several lines of memory, and between two parts they only wait. Where cores
// share no cache, each line takes most of a microsecond, and memory stands idle: a step of one row has a hundred parts, and
// spent 7 % of its time between them. In a team one thread leads; the others wait at one line of memory for what they are to
// do. Whoever waits reads ahead: the weights that its share of the next product begins with (`read_next`) go to its own
// cache.
//
// A part is a function that all threads of the team call, as a parallel region of OpenMP's: that is what it is outside of
// a team, where there may be fewer threads than are asked for. `omp for` divides what is to be divided.

#pragma once

#include <stdint.h>

typedef void (*Part)(const void *of);

// Calls `lead` with a team of `threads`: by one of them, whose parts the others take part in.
void tandem_lead(int threads, Part lead, const void *of);

// Calls a part by all of `threads`, and waits for all.
void tandem_together(int threads, Part part, const void *of);

// What is read behind the next part: `bytes` of memory in `pieces` of `piece` bytes, of which the last may be shorter, and
// each thread's share of them lies together. 0: nothing.
void tandem_read_next(const void *from, int64_t pieces, int64_t piece, int64_t bytes);
