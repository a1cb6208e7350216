"""Where llama.cpp keeps the parts of layers with a gated delta rule, and of attention beside them.

    q and the gate of attention   one matrix, its rows by head: those of q, then those of the gate
    q, k, v of the delta rule     one matrix, as ours; older files of Qwen3-Next have z in it, rows by key head
    b and a of Qwen3-Next         one matrix, its rows by key head
    decay                         minus the exponential of what ours has
    heads of values of Qwen3.5    in turns: the first of each key head, the second of each, ...

Heads that are in turns are the output's columns, too, which are put in our order where they are multiplied.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

import torch

from tandem.worker.checkpoints.checkpoint import rows_in_order
from tandem.worker.checkpoints.ggml_blocks import QuantizedTensor
from tandem.worker.checkpoints.hugging_face_hybrids import rows_by_key_head
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet
from tandem.worker.checkpoints.row_order import halves_order

LAYER_NAMES = {
    "delta_net.qkv": "attn_qkv.weight",
    "delta_net.z": "attn_gate.weight",
    "delta_net.b": "ssm_beta.weight",
    "delta_net.a": "ssm_alpha.weight",
    "delta_net.filter": "ssm_conv1d.weight",
    "delta_net.rate": "ssm_a",
    "delta_net.bias": "ssm_dt.bias",
    "delta_net.norm_weight": "ssm_norm.weight",
    "delta_net.output": "ssm_out.weight",
}
_FUSED, _FUSED_GATES = "ssm_in.weight", "ssm_ba.weight"


@dataclass(frozen=True, slots=True)
class GgufPiece:
    """Where a tensor is: a stored one, its shape, and which of its rows or columns it is, in which order."""

    stored: str
    shape: tuple[int, ...]
    rows: torch.Tensor | None = None  # None: all of them
    columns: torch.Tensor | None = None
    is_decay: bool = False
    vector: bool = False  # which is stored as a matrix
    filter: bool = False  # a matrix that is stored with a 1 between rows and columns

    def take(self, tensor: torch.Tensor | QuantizedTensor) -> torch.Tensor | QuantizedTensor:
        """Returns a copy of the part, of the stored tensor."""
        if isinstance(tensor, QuantizedTensor):
            if self.columns is not None:
                return replace(tensor, order=self.columns.argsort())
            return tensor if self.rows is None else replace(tensor, blocks=rows_in_order(tensor.blocks, self.rows))
        if self.vector:
            tensor = tensor.reshape(-1)
        if self.filter:
            tensor = tensor.reshape(self.shape[0], self.shape[-1])
        if self.is_decay:
            tensor = tensor.float().neg().log()
        if self.columns is not None:
            return tensor[:, self.columns]
        return tensor if self.rows is None else rows_in_order(tensor, self.rows)


def gguf_pieces(config: ModelConfig, stored: Container[str], first: int = 0) -> dict[str, GgufPiece]:
    """Returns the pieces, by canonical name, of the tensors of a hybrid, or of its head, that are not stored as they
    are; `first`: the block that is the first layer."""
    found = {}
    for name, shape in config.tensor_shapes().items():
        if name.startswith("layers."):
            _, layer, part = name.split(".", 2)
            piece = _piece(config, part, shape, f"blk.{first + int(layer)}.", stored)
            if piece is not None:
                found[name] = piece
    return found


def _piece(
    config: ModelConfig, part: str, shape: tuple[int, ...], prefix: str, stored: Container[str]
) -> GgufPiece | None:
    sizes, width, head_dim = config.recurrence, config.hidden_size, config.head_dim
    match part.split("."):
        case ["attention", "q" | "gate" as which]:
            first = halves_order(1, head_dim, config.rotated, neighbours=False)
            place = first if which == "q" else torch.arange(head_dim) + head_dim
            rows = (torch.arange(config.num_heads)[:, None] * 2 * head_dim + place).flatten()
            return GgufPiece(f"{prefix}attn_q.weight", (2 * config.q_size, width), rows)
        case ["delta_net", which]:
            assert isinstance(sizes, DeltaNet)
            ours = prefix + LAYER_NAMES[part]
            if config.architecture == "qwen3_next":
                if which in ("qkv", "z") and prefix + _FUSED in stored:
                    rows, height = rows_by_key_head(sizes, which)
                    return GgufPiece(prefix + _FUSED, (height, width), rows)
                if which in ("b", "a"):
                    rows, height = rows_by_key_head(sizes, which)
                    return GgufPiece(prefix + _FUSED_GATES, (height, width), rows)
                return GgufPiece(ours, shape, is_decay=which == "rate")
            match which:
                case "qkv" | "filter":
                    keys = torch.arange(2 * sizes.key_size)
                    return GgufPiece(ours, shape, torch.cat((keys, _in_turns(sizes, sizes.value_dim) + len(keys))))
                case "z":
                    return GgufPiece(ours, shape, _in_turns(sizes, sizes.value_dim))
                case "b" | "a" | "rate" | "bias":
                    return GgufPiece(ours, shape, _in_turns(sizes, 1), is_decay=which == "rate")
                case "output":
                    return GgufPiece(ours, shape, columns=_in_turns(sizes, sizes.value_dim))
            return GgufPiece(ours, shape)
    return None


def _in_turns(sizes: DeltaNet, width: int) -> torch.Tensor:
    """Returns indices `[value_heads * width]` that bring heads of values that are in turns to ours: those of a key head
    behind each other."""
    heads = torch.arange(sizes.value_heads).view(-1, sizes.key_heads).t().reshape(-1)
    return (heads[:, None] * width + torch.arange(width)).reshape(-1)
