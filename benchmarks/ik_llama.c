// What `peer_engines.py` asks of ik_llama.cpp, whose own structures differ from one version to the next: arrays of numbers here.
#include "llama.h"

#include <stdlib.h>

struct engine {
    struct llama_context *context;
    struct llama_batch batch;
    int words;
};

static void say_nothing(enum ggml_log_level level, const char *text, void *more) {
    (void)level, (void)text, (void)more;
}

// Returns what the others take, or NULL. `repacked`: weights interleaved as they are loaded, as its option -rtr has it.
struct engine *ik_open(const char *path, int threads, int longest, int together, int most, int repacked) {
    llama_log_set(say_nothing, NULL);
    llama_backend_init();
    struct llama_model_params wanted = llama_model_default_params();
    if (repacked) wanted.repack_tensors = true, wanted.use_mmap = false;
    struct llama_model *model = llama_model_load_from_file(path, wanted);
    struct engine *engine = malloc(sizeof *engine);
    if (!model || !engine) return NULL;
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = together, p.n_batch = longest, p.n_ubatch = 512, p.n_seq_max = most;
    p.n_threads = p.n_threads_batch = threads;
    *engine = (struct engine){llama_init_from_model(model, p), llama_batch_init(longest, 0, 1), llama_n_vocab(model)};
    return engine->context ? engine : NULL;
}

// Computes `count` tokens, and waits for them; 0 if it could.
int ik_run(struct engine *engine, int count, const int *tokens, const int *places, const int *sequences,
           const int *wanted) {
    struct llama_batch *batch = &engine->batch;
    batch->n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch->token[i] = tokens[i], batch->pos[i] = places[i];
        batch->n_seq_id[i] = 1, batch->seq_id[i][0] = sequences[i], batch->logits[i] = (int8_t)wanted[i];
    }
    int failed = llama_decode(engine->context, *batch);
    llama_synchronize(engine->context);
    return failed;
}

void ik_clear(struct engine *engine) { llama_kv_cache_clear(engine->context); }

// The likeliest id behind a token of the last call that wanted to know, or -1 if a logit is not a number.
int ik_likeliest(struct engine *engine, int row) {
    const float *logits = llama_get_logits_ith(engine->context, row);
    int best = 0;
    for (int i = 0; i < engine->words; i++) {
        if (logits[i] != logits[i]) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}
