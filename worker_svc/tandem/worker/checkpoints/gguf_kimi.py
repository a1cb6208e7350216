"""Reads what files of llama.cpp's `kimi-linear` say of layers with a state, and where it keeps the parts of these.

which layers have a state     those without heads of keys; its heads are as many as those of attention
filters of the convolution    `[channels, 1, kernel]`, apart for q, k and v; older files have a 1 more in front
its rates                     `[heads, 1]`, minus the exponentials of what ours have
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.gguf_further import Facts
from tandem.worker.checkpoints.gguf_hybrids import GgufPiece
from tandem.worker.checkpoints.gguf_latents import latents, with_one_head
from tandem.worker.checkpoints.gguf_states import without_keys
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import KimiDelta

HEADS = "attention.head_count_kv"
KEYS = {
    "kimi_delta.heads": "attention.head_count",
    "kimi_delta.head_dim": "kda.head_dim",
    "kimi_delta.kernel": "ssm.conv_kernel",
}
LAYER_NAMES = {
    **{f"kimi_delta.{part}": f"attn_{part}.weight" for part in "qkv"},
    **{f"kimi_delta.{part}_filter": f"ssm_conv1d_{part}.weight" for part in "qkv"},
    "kimi_delta.b": "ssm_beta.weight",
    "kimi_delta.decay_in": "ssm_f_a.weight",
    "kimi_delta.decay_out": "ssm_f_b.weight",
    "kimi_delta.gate_in": "ssm_g_a.weight",
    "kimi_delta.gate_out": "ssm_g_b.weight",
    "kimi_delta.rate": "ssm_a",
    "kimi_delta.bias": "ssm_dt.bias",
    "kimi_delta.norm_weight": "ssm_norm.weight",
    "kimi_delta.output": "attn_output.weight",
}


def with_heads(fields: Fields) -> Fields:
    """Returns the keys of a file with the one kv head of latents in the place of one number for each layer."""
    said = fields.values.get(HEADS)
    if isinstance(said, list):
        fields = fields.with_values(dict(fields.values) | {HEADS: max((one for one in said if one), default=0)})
    return with_one_head(fields)


def kimi_linear(fields: Fields, config: ModelConfig, facts: Facts) -> Mapping[str, Any]:
    """Latents that know no position in some layers, a state in the others."""
    layers = without_keys(fields, HEADS, config.num_layers)
    sizes = {"head_dim": fields.integer("kda.head_dim"), "kernel": fields.integer("ssm.conv_kernel")}
    states = build(KimiDelta, fields, KEYS, layers=layers, heads=config.num_heads, **sizes) if layers else None
    said = dict(latents(with_heads(fields), config, facts, scored=2))
    return said | {
        "architecture": config.architecture,
        "recurrence": states,
        "unrotated_layers": tuple(range(config.num_layers)),
    }


def kimi_pieces(config: ModelConfig) -> dict[str, GgufPiece]:
    """Returns the pieces, by canonical name, of the tensors of such layers that are not stored as they are."""
    found = {}
    for name, shape in config.tensor_shapes().items():
        prefix, _, part = name.partition(".kimi_delta.")
        stored = f"blk.{prefix.removeprefix('layers.')}.{LAYER_NAMES.get(f'kimi_delta.{part}', '')}"
        if part == "rate":
            found[name] = GgufPiece(stored, (*shape, 1), is_decay=True, vector=True)
        elif part.endswith("_filter"):
            found[name] = GgufPiece(stored, (shape[0], 1, shape[1]), filter=True)
    return found
