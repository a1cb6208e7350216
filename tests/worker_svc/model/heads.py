"""Models with a head that guesses the token after next, made of transformers' own layers, and what such a head guesses.

transformers leaves these heads out; how the parts go together is as the published models say and vLLM computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_next import modeling_qwen3_next

from tests.worker_svc.model.llama_folders import randomized
from tests.worker_svc.model.test_architectures import saved

_OF = {"Qwen3_5Text": (modeling_qwen3_5, "Qwen3_5"), "Qwen3Next": (modeling_qwen3_next, "Qwen3Next")}


class ReferenceHead(torch.nn.Module):
    """A head beside a model, and its tensors by the names of the published files."""

    def __init__(self, kind: str, model: Any) -> None:
        super().__init__()
        module, name = _OF[kind]
        config = model.config
        norm, size = getattr(module, f"{name}RMSNorm"), config.hidden_size
        self.fc = torch.nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = norm(size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(size, config.rms_norm_eps)
        self.norm = norm(size, config.rms_norm_eps)
        layer = getattr(module, f"{name}DecoderLayer")(config, config.layer_types.index("full_attention"))
        self.layers = torch.nn.ModuleList([layer])
        object.__setattr__(self, "beside", model)
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, 0, config.initializer_range)
        torch.nn.init.normal_(self.fc.weight, 0, config.initializer_range)
        randomized(self)

    @torch.inference_mode()
    def normed(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """What comes out `[n, hidden]` of hidden states of tokens `[n, hidden]` and the ids `[n]` behind each."""
        model = self.beside.model
        embedded = self.pre_fc_norm_embedding(model.embed_tokens(ids))
        x = self.fc(torch.cat((embedded, self.pre_fc_norm_hidden(hidden)), dim=-1))[None]
        positions = torch.arange(len(ids))[None]
        mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
        found = self.layers[0](x, position_embeddings=model.rotary_emb(x, positions), attention_mask=mask)
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
            logits.append(self.beside.lm_head(out)[0])
            hidden = torch.cat((hidden, out))
            ids = torch.cat((ids, logits[-1].argmax()[None]))
        return ids[len(known) :].tolist(), torch.stack(logits)


def add_head(kind: str, folder: Path, model: Any) -> ReferenceHead:
    """Adds a head to the folder of a model."""
    torch.manual_seed(5)
    head = ReferenceHead(kind, model)
    tensors = {f"mtp.{name}": tensor.contiguous() for name, tensor in head.state_dict().items()}
    file = folder / "model.safetensors"
    save_file(load_file(file) | tensors, file, {"format": "pt"})
    return head


def save_with_head(kind: str, folder: Path, **changes: Any) -> ReferenceHead:
    """Saves a random model of a kind that `saved` knows with a random head."""
    return add_head(kind, folder, saved(kind, folder, **changes))
