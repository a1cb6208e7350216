// Puts rows of a matrix into panels of 16, as products read them.

#include "operations.h"
#include "quantized.h"

#define FILL(TYPE)                                                                                                     \
    for (int64_t panel = 0; panel < panels; panel++) {                                                                 \
        const TYPE *from = (const TYPE *)rows + panel * PANEL * columns;                                               \
        TYPE *out = (TYPE *)to + panel * columns * PANEL;                                                              \
        for (int64_t i = 0; i < columns; i++)                                                                          \
            for (int r = 0; r < PANEL; r++) out[i * PANEL + r] = from[r * columns + i];                                \
    }

// rows [panels * 16, columns] of numbers of `size` bytes -> to [panels, columns, 16].
void tandem_fill_panels(int size, const void *rows, void *to, int64_t panels, int64_t columns, int threads) {
    if (size == 1) {
#pragma omp parallel for schedule(static) num_threads(threads)
        FILL(uint8_t)
    } else if (size == 2) {
#pragma omp parallel for schedule(static) num_threads(threads)
        FILL(uint16_t)
    } else {
#pragma omp parallel for schedule(static) num_threads(threads)
        FILL(uint32_t)
    }
}
