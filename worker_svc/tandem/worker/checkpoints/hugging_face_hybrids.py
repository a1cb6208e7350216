"""Reads what Qwen3-Next and Qwen3.5 have beyond other architectures: the config of their layers with a gated delta
rule, and where the parts of their tensors are.

    q and the gate of attention      one matrix, its rows by head: those of q, then those of the gate
    q, k, v, z and b, a of Qwen3-Next  two matrices, their rows by key head
    experts                          one matrix each, or two tensors with all of a layer's

A head that guesses the token after next (`mtp.`) is a model of its own: `hugging_face_heads.py`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import torch

from tandem.worker.checkpoints.checkpoint import rows_in_order
from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.hugging_face_architectures.architecture import Architecture
from tandem.worker.checkpoints.hugging_face_delta_net import KEYS as DELTA_NET_KEYS
from tandem.worker.checkpoints.hugging_face_minimax import rows_by_head
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.limits import LIMITS
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet, Lightning, Mamba
from tandem.worker.checkpoints.row_order import halves_order

KEYS = DELTA_NET_KEYS | {
    "experts.count": "num_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "moe_intermediate_size",
    "experts.shared_size": "shared_expert_intermediate_size",
}
_KINDS = ("linear_attention", "full_attention")
_DEFAULT_EXPERTS = {"qwen3_next": (512, 10), "qwen3_5_moe_text": (256, 8)}  # how many, and how many a token chooses


# --- the config


def delta_net(config: Fields, layers: int) -> DeltaNet:
    """Reads which layers have a gated delta rule, and its sizes."""
    every = config.integer("full_attention_interval", 4)
    if every < 1:
        raise config.error("full_attention_interval", f"must be at least 1, but is {every}")
    count = min(max(layers, 0), LIMITS["num_layers"])  # the number of layers is checked later
    usual = [_KINDS[(layer + 1) % every == 0] for layer in range(count)]
    kinds = config.kinds("layer_types", _KINDS, count, usual)
    return build(
        DeltaNet,
        config,
        KEYS,
        layers=tuple(layer for layer, kind in enumerate(kinds) if kind == _KINDS[0]),
        key_heads=config.integer("linear_num_key_heads", 16),
        value_heads=config.integer("linear_num_value_heads", 32),
        key_dim=config.integer("linear_key_head_dim", 128),
        value_dim=config.integer("linear_value_head_dim", 128),
        kernel=config.integer("linear_conv_kernel_dim", 4),
    )


def rotary_dim(config: Fields, rope: Fields, head_dim: int) -> int:
    """Reads how many coordinates of a head are rotated."""
    key = "partial_rotary_factor"
    beside, among = config.number(key, None), rope.number(key, None)
    if beside is not None and among is not None and beside != among:
        raise rope.error(key, f"is {among:g}, but {key} beside it is {beside:g}")
    factor = next(one for one in (among, beside, 0.25) if one is not None)
    if not 0 < factor <= 1:
        raise config.error(key, f"must be more than 0 and at most 1, but is {factor:g}")
    return int(head_dim * factor)


def hybrid_experts(config: Fields, name: str, layers: int) -> Experts | None:
    """Reads the mixture of experts; None where there is none."""
    if name not in _DEFAULT_EXPERTS:
        return None
    count, per_token = _DEFAULT_EXPERTS[name]
    shared = config.integer("shared_expert_intermediate_size", 512)
    if shared < 1:
        raise config.error("shared_expert_intermediate_size", f"must be at least 1, but is {shared}")
    return build(
        Experts,
        config,
        KEYS,
        count=config.integer("num_experts", count),
        per_token=config.integer("num_experts_per_tok", per_token),
        intermediate_size=config.integer("moe_intermediate_size", 512),
        normalized=config.boolean("norm_topk_prob", True),
        dense_layers=dense_layers(config, layers),
        shared_size=shared,
        shared_router=True,
    )


def dense_layers(config: Fields, layers: int) -> tuple[int, ...]:
    """Reads which layers have an ordinary feed-forward part though others have experts."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise config.error("mlp_only_layers", "must be a list of layers' numbers")
    if step < 1:
        raise config.error("decoder_sparse_step", f"must be at least 1, but is {step}")
    return tuple(layer for layer in range(min(layers, LIMITS["num_layers"])) if layer in dense or (layer + 1) % step)


# --- the tensors


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a canonical tensor is: a stored one, its shape, and which of its rows it is, in which order."""

    stored: str
    shape: tuple[int, ...]
    rows: torch.Tensor | slice | None = None  # None: all of them
    expert: int | None = None
    from_one: bool = False  # what is stored is the number less 1

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the part of the stored tensor."""
        if self.from_one:
            tensor = tensor.float() + 1
        if self.expert is not None:
            return tensor[self.expert, self.rows]
        if len(self.shape) == 4:
            return tensor.flatten()
        if len(self.shape) == 3:  # a filter has one channel in each group
            return tensor.squeeze(1)
        if isinstance(self.rows, torch.Tensor):
            return rows_in_order(tensor, self.rows)
        return tensor if self.rows is None else tensor[self.rows]


def pieces(architecture: Architecture, config: ModelConfig, stored: Container[str]) -> dict[str, Piece]:
    """Returns the pieces, by canonical name, of those tensors that are not stored as they are. `stored`: the names in
    the files."""
    found: dict[str, Piece] = {}
    for name, shape in config.tensor_shapes().items():
        if name.startswith("layers."):
            _, layer, part = name.split(".", 2)
            piece = _piece(architecture, config, part, shape, f"model.layers.{layer}.", stored)
            if piece is not None:
                found[name] = piece
    return found


def state_pieces(architecture: Architecture, config: ModelConfig) -> dict[str, Piece]:
    """Returns the pieces, by canonical name, of layers with states where nothing else is not as it is: the filters of
    convolutions, stored `[channels, 1, kernel]`, the parts of Mamba's inputs, stored as z, channels and dt, Kimi's
    rates, stored `[1, 1, heads, 1]`, rows of lightning attention by head, and what is called otherwise there."""
    found: dict[str, Piece] = {}
    for layer in config.recurrence.layers if config.recurrence is not None else ():
        for part, stored in architecture.state_names.items():
            name = f"layers.{layer}.{part}"
            found[name] = Piece(f"model.layers.{layer}.{stored}", (config.hidden_size,))
    for name, shape in config.tensor_shapes().items():
        if name.endswith("kimi_delta.rate") and config.architecture == "kimi_linear":
            found[name] = Piece(architecture.stored_name(name)[0], (1, 1, *shape, 1))
        elif name.endswith("lightning.channels") and isinstance(config.recurrence, Lightning):
            found[name] = Piece(architecture.stored_name(name)[0], shape, rows_by_head(config.recurrence))
        elif name.endswith((".filter", "_filter")):
            whole: tuple[int, ...] = (shape[0], 1, shape[1])
            found[name] = Piece(architecture.stored_name(name)[0], whole)
        elif ".mamba." in name and isinstance(config.recurrence, Mamba):
            sizes = config.recurrence
            firsts = {"z": 0, "channels": sizes.size, "dt": sizes.size + sizes.channels}
            first = firsts.get(name.rpartition(".")[2].removesuffix("_bias"))
            if first is not None:
                whole = (sizes.size + sizes.channels + sizes.heads, *shape[1:])
                rows = slice(first, first + shape[0])
                found[name] = Piece(architecture.stored_name(name)[0], whole, rows)
    return found


def _piece(
    architecture: Architecture,
    config: ModelConfig,
    part: str,
    shape: tuple[int, ...],
    prefix: str,
    stored: Container[str],
) -> Piece | None:
    sizes, width, head_dim = config.recurrence, config.hidden_size, config.head_dim
    assert config.rotary_dim is not None
    ours = prefix + architecture.layer_names.get(part, "")
    match part.split("."):
        case ["attention", "q" | "gate" as which]:
            place = (
                halves_order(1, head_dim, config.rotary_dim, neighbours=False)
                if which == "q"
                else torch.arange(head_dim) + head_dim
            )
            rows = (torch.arange(config.num_heads)[:, None] * 2 * head_dim + place).flatten()
            return Piece(f"{prefix}self_attn.q_proj.weight", (2 * config.q_size, width), rows)
        case ["attention", "k"]:
            rows = halves_order(config.num_kv_heads, head_dim, config.rotary_dim, neighbours=False)
            return Piece(ours, shape, rows)
        case ["attention", "q_norm" | "k_norm"]:
            rows = halves_order(1, head_dim, config.rotary_dim, neighbours=False)
            return Piece(ours, shape, rows, from_one=True)
        case ["delta_net", "filter"]:
            return Piece(ours, (shape[0], 1, shape[1]))
        case ["delta_net", "qkv" | "z" | "b" | "a" as which] if architecture.name == "qwen3_next":
            assert isinstance(sizes, DeltaNet)
            fused = "in_proj_qkvz" if which in ("qkv", "z") else "in_proj_ba"
            rows, height = rows_by_key_head(sizes, which)
            return Piece(f"{prefix}linear_attn.{fused}.weight", (height, width), rows)
        case ["experts", expert, matrix] if f"{prefix}mlp.experts.gate_up_proj" in stored:
            assert config.experts is not None
            size, count = config.experts.intermediate_size, config.experts.count
            if matrix == "down":
                every = slice(0, width)
                return Piece(f"{prefix}mlp.experts.down_proj", (count, width, size), every, int(expert))
            rows_of = slice(0, size) if matrix == "gate" else slice(size, 2 * size)
            both = (count, 2 * size, width)
            return Piece(f"{prefix}mlp.experts.gate_up_proj", both, rows_of, int(expert))
    return None


def rows_by_key_head(sizes: DeltaNet, which: str) -> tuple[torch.Tensor, int]:
    """Returns which rows of Qwen3-Next's fused matrices are those of a part, and how many a matrix has: for each key
    head q, k, v and z, or b and a, of the heads that share it."""
    group = sizes.value_heads // sizes.key_heads
    if which in ("b", "a"):
        widths = {"b": group, "a": group}
    else:
        values = group * sizes.value_dim
        widths = {"q": sizes.key_dim, "k": sizes.key_dim, "v": values, "z": values}
    each = sum(widths.values())
    rows, start = [], 0
    for name, size in widths.items():
        if name in which:
            heads = torch.arange(sizes.key_heads)[:, None] * each
            rows.append((heads + torch.arange(start, start + size)).flatten())
        start += size
    return torch.cat(rows), each * sizes.key_heads
