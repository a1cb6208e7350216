// The product of each head with a matrix of its own, all heads in one call: a thread takes a whole head, so that its
// numbers are those of the head's product for itself.

#include "matrices.h"
#include "operations.h"
#include "team.h"

#define WORTH (1 << 17)  // multiplications that take about as long as it takes to wake a thread

static int64_t room_of(const Matrix *m, int64_t rows) {
    if (m->bits == WIDE) return rows * ((m->inputs + 31) / 32 * 32);
    if (is_quantized(m)) return 2 * rows * (rounding_for(m).words + 2 * m->groups);
    return 0;
}

typedef struct {
    const Matrix *heads;
    const float *x;
    float *out;
    int64_t count, rows;
    int *failed;
} Products;

static void some_heads(const void *of) {
    const Products *p = of;
    const int64_t rows = p->rows, inputs = p->heads->inputs, width = width_of(p->heads);
    int32_t *room = malloc((size_t)(room_of(p->heads, rows) + 16) * sizeof(int32_t));
    if (!room) __atomic_store_n(p->failed, 1, __ATOMIC_RELAXED);
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t head = 0; head < p->count; head++)
        if (room)
            matrix_product(p->heads + head, p->x + head * rows * inputs, room, p->out + head * rows * width, rows, 1);
    free(room);
}

// x [heads, rows, inputs] -> out [heads, rows, width], by matrices that are stored alike. Returns 0, or 1 without memory.
int tandem_heads(const Matrix *heads, int64_t count, const float *x, float *out, int64_t rows, int threads) {
    int failed = 0;
    const Products p = {heads, x, out, count, rows, &failed};
    tandem_together(count * rows * heads->inputs * width_of(heads) > WORTH ? threads : 1, some_heads, &p);
    return failed;
}
