"""Models whose routers tell two experts apart in float32 alone: rounded to 16 bits, both score alike."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tandem.worker.model.transformer import Transformer
from tests.worker_svc.checkpoints.gguf_kinds import architecture_of
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.model.llama_folders import PAGE_SIZE, logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import saved

_TWO: dict[str, Any] = {
    "num_hidden_layers": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "hidden_size": 64,
}
_ROUTED = _TWO | {"n_routed_experts": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "pad_token_id": 0}
_LATENTS = {"num_key_value_heads": 6, "head_dim": None, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16}
_LATENTS |= {"qk_rope_head_dim": 16, "v_head_dim": 16}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("Qwen3Moe", _TWO | {"num_experts": 2, "norm_topk_prob": True, "head_dim": 16}),
    "sigmoid": ("Glm4Moe", _ROUTED | {"head_dim": 16}),
    "latents": ("DeepseekV3", _ROUTED | _LATENTS),
}
_NEARER = 2.0**-12
_CLEAR = 0.3  # a logit from which on what two experts differ by is more than sums in float32 are off


class Sharp(NamedTuple):
    """A model in a file whose matrices are of 16 bits, but for its router."""

    path: Path
    ids: list[int]
    logits: torch.Tensor  # [ids, vocab] those of transformers in float64
    clear: torch.Tensor  # [ids] which rows have an expert that float32 knows

    def away(self, ours: torch.Tensor) -> float:
        """How far logits of the clear rows are from those of float64, in standard deviations of these."""
        return float((ours.double() - self.logits)[self.clear].abs().max() / self.logits.std())


def sharp(kind: str, folder: Path, dtype: torch.dtype, change: Callable[[torch.Tensor], torch.Tensor]) -> Sharp:
    """Makes one of `KINDS` whose file has routers as `change` makes them; logits are those without it."""
    name, settings = KINDS[kind]
    model = saved(name, folder, **settings)
    stored = "BF16" if dtype == torch.bfloat16 else "F16"
    router = model.model.layers[0].mlp.gate
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()
    row = torch.randn(router.weight.shape[1], generator=torch.Generator().manual_seed(1)).bfloat16().float() / 4
    router.weight.data.copy_(torch.stack((row, row * (1 + _NEARER))))
    if hasattr(router, "e_score_correction_bias"):
        router.e_score_correction_bias.zero_()
    ids = some_ids(97, 40)
    exact, seen = copy.deepcopy(model).double(), []
    exact.model.layers[0].mlp.gate.register_forward_hook(lambda module, args, _: seen.append(args[0]))
    with torch.inference_mode():
        logits = exact(torch.tensor([ids])).logits[0]
    scores = seen[0].reshape(len(ids), -1) @ row.double()
    assert min(int((scores > _CLEAR).sum()), int((scores < -_CLEAR).sum())) > 5  # tokens of both experts
    router.weight.data.copy_(change(router.weight.data))
    vocabulary = {"tokenizer.ggml.model": "no_vocab", f"{architecture_of(model.config)}.vocab_size": 97}
    path = save_gguf(model, folder / "model.gguf", stored, metadata=vocabulary)
    return Sharp(path, ids, logits, scores.abs() > _CLEAR)


def logits_of(model: Transformer, ids: list[int], **how: Any) -> torch.Tensor:
    """Ours, whole, which chunks and single tokens must equal to the bit."""
    whole = logits_in_chunks(model, ids, [len(ids)], **how)
    for chunks in ([PAGE_SIZE + 1, 1], [1]):
        assert torch.equal(logits_in_chunks(model, ids, chunks, **how), whole), chunks
    return whole
