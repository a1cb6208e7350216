"""Models with a head that guesses the token after next, made of transformers' own layers, and what such a head guesses.

transformers leaves these heads out; how the parts go together is as the published models say, and as SGLang and vLLM
compute them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v32 import modeling_deepseek_v32
from transformers.models.glm4_moe import modeling_glm4_moe
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

from tests.worker_svc.model.llama_folders import randomized
from tests.worker_svc.model.random_models import saved

_OF = {
    "Qwen3_5Text": (modeling_qwen3_5, "Qwen3_5"),
    "Qwen3_5MoeText": (modeling_qwen3_5_moe, "Qwen3_5Moe"),
    "Qwen3Next": (modeling_qwen3_next, "Qwen3Next"),
    "Glm4Moe": (modeling_glm4_moe, "Glm4Moe"),
    "Glm4MoeLite": (modeling_glm4_moe_lite, "Glm4MoeLite"),
    "DeepseekV3": (modeling_deepseek_v3, "DeepseekV3"),
    "DeepseekV32": (modeling_deepseek_v32, "DeepseekV32"),
}
BESIDE = {
    "join": "mtp.fc",
    "embedding_norm": "mtp.pre_fc_norm_embedding",
    "hidden_norm": "mtp.pre_fc_norm_hidden",
    "norm": "mtp.norm",
}
BEHIND = {
    "join": "eh_proj",
    "embedding_norm": "enorm",
    "hidden_norm": "hnorm",
    "norm": "shared_head.norm",
    "embedding": "embed_tokens",
    "output": "shared_head.head",
}


class ReferenceHead(torch.nn.Module):
    """A head beside a model."""

    def __init__(self, kind: str, model: Any, *, own_tables: bool = False) -> None:
        """With `own_tables`, embedding and output are not the model's."""
        super().__init__()
        module, name = _OF[kind]
        config = model.config
        norm, size = getattr(module, f"{name}RMSNorm"), config.hidden_size
        self.join = torch.nn.Linear(2 * size, size, bias=False)
        self.embedding_norm = norm(size, config.rms_norm_eps)
        self.hidden_norm = norm(size, config.rms_norm_eps)
        self.norm = norm(size, config.rms_norm_eps)
        kinds = getattr(config, "layer_types", None) or []
        like = kinds.index("full_attention") if "full_attention" in kinds else config.num_hidden_layers - 1
        self.layer = getattr(module, f"{name}DecoderLayer")(config, like)
        for part in (self.layer, self.join):
            for parameter in part.parameters():
                torch.nn.init.normal_(parameter, 0, config.initializer_range)
        randomized(self)
        self.tables = {"embedding": model.model.embed_tokens.weight, "output": model.lm_head.weight}
        if own_tables:
            self.tables = {name: torch.randn_like(table) * 0.3 for name, table in self.tables.items()}
        object.__setattr__(self, "beside", model)

    @torch.inference_mode()
    def normed(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """What comes out `[n, hidden]` of hidden states of tokens `[n, hidden]` and the ids `[n]` behind each."""
        embedded = self.embedding_norm(self.tables["embedding"][ids])
        x = self.join(torch.cat((embedded, self.hidden_norm(hidden)), dim=-1))[None]
        positions = torch.arange(len(ids))[None]
        mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
        turns = self.beside.model.rotary_emb(x, positions)
        found = self.layer(x, position_embeddings=turns, attention_mask=mask)
        return self.norm(found[0] if isinstance(found, tuple) else found)[0]

    @torch.inference_mode()
    def guesses(self, known: Sequence[int], count: int) -> tuple[list[int], torch.Tensor]:
        """The likeliest ids behind known ones, of whose last the model's hidden state is not there yet, and their
        logits `[count, vocabulary]`."""
        ids = torch.tensor(known)
        hidden = self.beside.model(ids[None]).last_hidden_state[0, :-1]
        logits = []
        for _ in range(count):
            out = self.normed(hidden, ids[1:])[-1:]
            logits.append((out @ self.tables["output"].T)[0])
            hidden = torch.cat((hidden, out))
            ids = torch.cat((ids, logits[-1].argmax()[None]))
        return ids[len(known) :].tolist(), torch.stack(logits)

    def named(self, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
        """What it has beside its layer, by other names of those parts that have one."""
        parts = dict(self.named_parameters()) | {f"{name}.weight": table for name, table in self.tables.items()}
        both = ((names.get(name.removesuffix(".weight")), tensor) for name, tensor in parts.items())
        return {f"{name}.weight": tensor.detach().clone() for name, tensor in both if name}


def add_head(kind: str, folder: Path, model: Any, *, own_tables: bool = False) -> ReferenceHead:
    """Adds a head to the folder of a model."""
    torch.manual_seed(5)
    head = ReferenceHead(kind, model, own_tables=own_tables)
    if kind.startswith("Qwen"):
        layer = {f"mtp.layers.0.{name}": tensor for name, tensor in head.layer.state_dict().items()}
        tensors = head.named(BESIDE) | layer
    else:  # the layer is saved as if it were the model's last one
        number = len(model.model.layers)
        model.model.layers.append(head.layer)
        model.save_pretrained(folder)
        del model.model.layers[number]
        tensors = {f"model.layers.{number}.{name}": tensor for name, tensor in head.named(BEHIND).items()}
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
    return head


def save_with_head(kind: str, folder: Path, *, own_tables: bool = False, **changes: Any) -> ReferenceHead:
    """Saves a random model of a kind that `saved` knows with a random head."""
    return add_head(kind, folder, saved(kind, folder, **changes), own_tables=own_tables)
