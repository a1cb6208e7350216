"""llama.cpp's own logits of GGUF files, for comparison; llama-cpp-python is that of another environment.

TANDEM_LLAMA_CPP_PYTHON=ENVIRONMENT/bin/python python -m tests.worker_svc.checkpoints.beside_llama_cpp

prints, for every architecture that we read from GGUF files, how far ours and llama.cpp's logits are from those of
transformers, in standard deviations of these.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.checkpoints.gguf_kinds import ARCHITECTURES, architecture_of
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.gguf_tensors import named_tensors
from tests.worker_svc.model.llama_folders import PAGE_SIZE, logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_lists import GGUF, GRANTED
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.shared import ABSENT, SCALINGS

PYTHON = os.environ.get("TANDEM_LLAMA_CPP_PYTHON", sys.executable)
LENGTH = 42  # tokens: more than the windows of these models
# Everything in float32: the cache, and the weights as they are.
PROGRAM = """
import ctypes, sys
import numpy as np
import llama_cpp as cpp
path, target, *ids = sys.argv[1:]
ids = [int(one) for one in ids]
cpp.llama_backend_init()
model = cpp.llama_model_load_from_file(path.encode(), cpp.llama_model_default_params())
assert model, "not loaded"
settings = cpp.llama_context_default_params()
settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_threads, settings.n_threads_batch = 64, 64, 64, 1, 1
settings.type_k = settings.type_v = 0
settings.flash_attn_type = 0
context = cpp.llama_init_from_model(model, settings)
assert context, "no context"
batch = cpp.llama_batch_init(len(ids), 0, 1)
batch.n_tokens = len(ids)
for place, token in enumerate(ids):
    batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
    batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
assert cpp.llama_decode(context, batch) == 0, "not computed"
rows = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(model))
logits = [np.ctypeslib.as_array(cpp.llama_get_logits_ith(context, place), (rows,)).copy() for place in range(len(ids))]
np.save(target, np.stack(logits))
"""

# What llama.cpp takes for granted beside `GRANTED`.
_VALUES = {"linear_value_head_dim": 32}  # as many as of keys
# It multiplies index keys by a matrix of 64 columns, and takes as many of their numbers to be rotated as not.
_INDEX_SIZES = {"index_head_dim": 64, "qk_rope_head_dim": 32}
CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deepseek v3.2", "glm moe dsa", "glm moe dsa, what is chosen is shared"), _INDEX_SIZES),
    # Without a latent of queries it takes models of 26 or 27 layers alone. It chooses groups by their two best.
    "deepseek v2, groups, no latent of queries": {"num_hidden_layers": 26, "n_group": 1, "topk_group": 1},
    "qwen3 next": _VALUES,
    "qwen3.5": _VALUES,
    "qwen3.5 moe": _VALUES,
    # Keys of unit length by another epsilon: of more numbers they are longer.
    **{name: {"linear_head_dim": 64} for name in ("kimi linear", "kimi linear, groups, two shared")},
    "mimo v2 flash, output and embedding one, layers of another order": {"tie_word_embeddings": False},
    # Of a norm over all heads it takes the model's epsilon.
    "minimax 01": {"rms_norm_eps": 1e-6},
    "olmoe": {"num_key_value_heads": 6},
    "glm": {"head_dim": 8},
    "nemotron": {"head_dim": 8},
    "nemotron with biases, a table for both": {"head_dim": 8, "tie_word_embeddings": False},
    "exaone4": {"head_dim": 8, "num_hidden_layers": 64},  # which alone have windows
    "exaone4 without windows": {"head_dim": 8},
    "dots1": {"num_key_value_heads": 6},
    # YaRN between whole pairs, which is not what the published model does.
    "gpt oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    # It has the published models' streams, layers with thinned gates and layers with keys of their own; of a vector of
    # zeros it makes no other streams.
    "gemma3n": {
        **{"num_hidden_layers": 22, "layer_types": None, "num_kv_shared_layers": 2, "intermediate_size": 8192},
        **{"activation_sparsity_pattern": [0.95] * 10 + [0.0] * 12, "hidden_size_per_layer_input": 256},
        **{"laurel_rank": 64, "initializer_range": 0.3, "pad_token_id": ABSENT},
    },
    # Layers that share keys look at the last two before them, one with a window and one without.
    "gemma4": {
        "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention", *["full_attention"] * 2]
    },
}
_NAMES = ["llama with biases", "mistral without a window", "qwen2", "qwen3", "mixtral", "qwen3 moe", *GGUF]
_NAMES.remove("phi3 with a window")  # which llama.cpp does not look at
_NAMES.remove("phi moe, the jitter of files")  # whose experts it chooses by a softmax
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (MODELS[name][0], MODELS[name][1] | GRANTED.get(MODELS[name][0], {}) | CHANGES.get(name, {}))
    for name in _NAMES
}
CASES |= {
    f"llama, {name}": ("Llama", {"rope_parameters": {"rope_theta": 100.0} | SCALINGS[name]})
    for name in ("linear", "yarn")
}
# Text models of those that see, in files of their own `general.architecture`; with what these say beside others.
SEEING = {
    "qwen2 of one that sees": ("qwen2", "qwen2vl", {"rope.dimension_sections": [1, 1, 2, 0]}),
    "qwen3 of one that sees": (
        *("qwen3", "qwen3vl"),
        {"rope.dimension_sections": [2, 2, 2, 0], "n_deepstack_layers": 3},
    ),
    "glm4 of one that sees": ("glm4", "glm4", {"rope.dimension_sections": [1, 1, 1, 0]}),
    "glm4 moe of one that sees": ("glm4 moe", "glm4moe", {"rope.dimension_sections": [1, 1, 1, 0]}),
    "qwen3 moe of one that sees": (
        *("qwen3 moe", "qwen3vlmoe"),
        {"rope.dimension_sections": [2, 2, 2, 0], "n_deepstack_layers": 3},
    ),
}
CASES |= {name: CASES[model] for name, (model, _, _) in SEEING.items()}
# Of Qwen2-VL llama.cpp leaves out what norms add before they divide, which the file says.
CASES["qwen2 of one that sees"] = ("Qwen2", CASES["qwen2"][1] | {"rms_norm_eps": 1e-12})
# Their activation is looked up in a table of float16 by llama.cpp.
BY_TABLE = ("gemma", "starcoder2", "phi 2", "gpt neox", "falcon,", "falcon", "gpt2", "gpt bigcode")
# Of thinned gates little is left, and made large again by a norm; llama.cpp divides the sum of the squares of n numbers
# by n - 1, transformers by n.
THINNED = ("gemma3n",)


def absent() -> str:
    """Why there is nothing to compare with; empty where there is."""
    if subprocess.run([PYTHON, "-c", "import llama_cpp"], capture_output=True, check=False).returncode:
        return f"llama-cpp-python is not installed for {PYTHON}; TANDEM_LLAMA_CPP_PYTHON may name another interpreter"
    return ""


def logits_of_llama_cpp(path: Path, ids: list[int]) -> torch.Tensor:
    """llama.cpp's logits `[len(ids), vocab]` of a file; RuntimeError with its last words where it has none."""
    target = path.with_suffix(".npy")
    command = [PYTHON, "-c", PROGRAM, str(path), str(target), *map(str, ids)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        said = [line for line in result.stderr.splitlines() if "error" in line.lower() or "assert" in line.lower()]
        raise RuntimeError("; ".join(said or result.stderr.splitlines()[-3:]))
    return torch.from_numpy(np.load(target))


def saved_for_llama_cpp(name: str, theirs: Any, path: Path) -> Path:
    """The file of one of `CASES`."""
    usual = architecture_of(theirs.config)
    _, architecture, more = SEEING.get(name, ("", usual, {}))
    metadata: dict[str, Any] = {"tokenizer.ggml.model": "no_vocab", f"{architecture}.vocab_size": 97}
    metadata |= {f"{architecture}.{key}": value for key, value in more.items()}
    if architecture.startswith("qwen35"):
        metadata[f"{architecture}.rope.dimension_sections"] = [1, 1, 0, 0]  # not more than tiny heads have
    with patch.dict(ARCHITECTURES, {theirs.config.model_type: architecture} if architecture != usual else {}):
        if architecture == "glm4" and more:
            return save_gguf(theirs, path, metadata=metadata, extra=in_halves(theirs), without=(".attn_q.", ".attn_k."))
        return save_gguf(theirs, path, metadata=metadata)


def in_halves(theirs: Any) -> dict[str, Any]:
    """Queries and keys of a GLM-4 whose pairs are half of what turns apart, as llama.cpp's converter writes those of
    GLM-4.1V."""
    size = theirs.config.head_dim
    turning = int(size * theirs.config.rope_parameters["partial_rotary_factor"])
    order = [*torch.arange(turning).view(-1, 2).t().reshape(-1).tolist(), *range(turning, size)]
    named = {name: tensor for name, tensor in named_tensors(theirs) if ".attn_q." in name or ".attn_k." in name}
    heads = {name: tensor.reshape(-1, size, *tensor.shape[1:])[:, order] for name, tensor in named.items()}
    return {name: rows.reshape(named[name].shape).contiguous().numpy() for name, rows in heads.items()}


def three_logits(name: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Those of transformers, ours and llama.cpp's, of one of `CASES`."""
    kind, changes = CASES[name]
    theirs, ids = saved(kind, folder, **changes), some_ids(97, LENGTH)
    path = saved_for_llama_cpp(name, theirs, folder / "model.gguf")
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].float()
    ours = logits_in_chunks(load_transformer(open_checkpoint(path), "cpu", torch.float32), ids, [PAGE_SIZE, 5])
    return expected, ours, logits_of_llama_cpp(path, ids)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, in standard deviations of the second."""
    return float((one - other).abs().max() / other.std())


def main() -> int:
    """Prints the table."""
    if problem := absent():
        print(problem)
        return 1
    print("| model | ours - transformers | llama.cpp - transformers | ours - llama.cpp |\n|---|---|---|---|")
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                expected, ours, cpp = three_logits(name, Path(folder))
            except RuntimeError as error:
                print(f"| {name} | | {error} | |", flush=True)
                continue
            cells = (apart(ours, expected), apart(cpp, expected), apart(ours, cpp))
            print(f"| {name} | {' | '.join(f'{one:.1e}' for one in cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
