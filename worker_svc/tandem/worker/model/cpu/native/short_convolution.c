// Layers with a convolution between two gates: out = gates * convolution of the last `kernel` rows of `mixed`, each
// channel for itself. channels are a multiple of 8.

#include "recurrence.h"

static void multiply(const Recurrence *r, const Work *w, int64_t block) {
    const int64_t c = block * BLOCK, end = r->channels - c < BLOCK ? r->channels : c + BLOCK;
    for (int64_t t = 0; t < w->length; t++) {
        const float *x = r->room + (w->place + w->replayed + t) * r->channels;
        const float *gate = r->gates + (w->row + t) * r->gates_stride;
        float *out = r->out + (w->row + t) * r->channels;
        for (int64_t i = c; i < end; i += 8)
            _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(gate + i)));
    }
}

static void some_blocks(const void *of) {
    const Carried *c = of;
    const int64_t blocks = (c->r->channels + BLOCK - 1) / BLOCK;
#pragma omp for schedule(dynamic, 4) nowait
    for (int64_t i = 0; i < c->count * blocks; i++) {
        convolve(c->r, c->works + i / blocks, c->saves, i % blocks, 0);
        multiply(c->r, c->works + i / blocks, i % blocks);
    }
}

void tandem_short_convolution(const Recurrence *r, const int64_t *works, int64_t count, const int64_t *saved) {
    const Carried c = carried(r, works, count, saved);
    tandem_together(all_tokens(c.works, count) * r->channels > 32768 ? r->threads : 1, some_blocks, &c);
}
