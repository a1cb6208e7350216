// The product of each head with a matrix of its own, all heads in one call: a thread takes a whole head, so that its
// numbers are those of the head's product for itself.

#include "matrices.h"
#include "operations.h"

#define WORTH (1 << 17)  // multiplications that take about as long as it takes to wake a thread

static int64_t room_of(const Matrix *m, int64_t rows) {
    if (m->bits == WIDE) return rows * ((m->inputs + 31) / 32 * 32);
    if (is_quantized(m)) return 2 * rows * (rounding_for(m).words + 2 * m->groups);
    return 0;
}

// x [heads, rows, inputs] -> out [heads, rows, width], by matrices that are stored alike. Returns 0, or 1 without memory.
int tandem_heads(const Matrix *heads, int64_t count, const float *x, float *out, int64_t rows, int threads) {
    const int64_t inputs = heads->inputs, width = width_of(heads);
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1 && count * rows * inputs * width > WORTH)
    {
        int32_t *room = malloc((size_t)(room_of(heads, rows) + 16) * sizeof(int32_t));
        if (!room) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t head = 0; head < count; head++)
            if (room) matrix_product(heads + head, x + head * rows * inputs, room, out + head * rows * width, rows, 1);
        free(room);
    }
    return failed;
}
