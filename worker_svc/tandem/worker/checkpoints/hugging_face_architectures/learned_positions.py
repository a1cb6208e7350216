"""Dense models that add a vector of each position to the token's, and do not rotate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.hugging_face_architectures.architecture import Architecture
from tandem.worker.checkpoints.hugging_face_learned_positions import (
    gpt_2,
    gpt_2_names,
    gpt_bigcode_names,
    gpt_neo,
    gpt_neo_names,
    opt,
    opt_names,
)

_NORMS = {
    "attention.norm": "ln_1.weight",
    "attention.norm_bias": "ln_1.bias",
    "mlp.norm": "ln_2.weight",
    "mlp.norm_bias": "ln_2.bias",
}
_MLP = {
    "mlp.up": "mlp.c_fc.weight",
    "mlp.up_bias": "mlp.c_fc.bias",
    "mlp.down": "mlp.c_proj.weight",
    "mlp.down_bias": "mlp.c_proj.bias",
}
_GPT_2_NAMES = {
    **_NORMS,
    **_MLP,
    **{f"attention.{part}": "attn.c_attn.weight" for part in "qkv"},
    **{f"attention.{part}_bias": "attn.c_attn.bias" for part in "qkv"},
    "attention.output": "attn.c_proj.weight",
    "attention.output_bias": "attn.c_proj.bias",
}
_GPT_NEO_NAMES = {
    **_NORMS,
    **_MLP,
    **{f"attention.{part}": f"attn.attention.{part}_proj.weight" for part in "qkv"},
    "attention.output": "attn.attention.out_proj.weight",
    "attention.output_bias": "attn.attention.out_proj.bias",
}
_OPT_NAMES = {
    "attention.norm": "self_attn_layer_norm.weight",
    "attention.norm_bias": "self_attn_layer_norm.bias",
    **{f"attention.{part}": f"self_attn.{part}_proj.weight" for part in "qkv"},
    **{f"attention.{part}_bias": f"self_attn.{part}_proj.bias" for part in "qkv"},
    "attention.output": "self_attn.out_proj.weight",
    "attention.output_bias": "self_attn.out_proj.bias",
    "mlp.norm": "final_layer_norm.weight",
    "mlp.norm_bias": "final_layer_norm.bias",
    "mlp.up": "fc1.weight",
    "mlp.up_bias": "fc1.bias",
    "mlp.down": "fc2.weight",
    "mlp.down_bias": "fc2.bias",
}
_TOP = {
    "wte.": "model.embed_tokens.",
    "wpe.": "model.embed_positions.",
    "h.": "model.layers.",
    "ln_f.": "model.norm.",
}
# Files of the bare model, as of GPT-2 itself, have its tensors without the first part of the name.
_RENAMED = {f"transformer.{theirs}": ours for theirs, ours in _TOP.items()} | _TOP
_OF_GPT_2: Mapping[str, Any] = {
    "special_ids": {"bos_token_id": 50256, "eos_token_id": 50256},
    "norm_eps": "layer_norm_epsilon",
    "activation_field": "activation_function",
    "tied": True,
    "unrotated": True,
    "renamed": _RENAMED,
    "always": {"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
}
LEARNED_POSITIONS = (
    Architecture(
        "gpt2",
        "GPT2LMHeadModel",
        _GPT_2_NAMES,
        use_bias=True,
        prepared=gpt_2_names,
        further=gpt_2,
        transposed=("attn.c_attn.weight", "c_proj.weight", "mlp.c_fc.weight"),
        **_OF_GPT_2,
    ),
    Architecture(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        _GPT_2_NAMES,
        use_bias=True,
        grouped_qkv=True,
        prepared=gpt_bigcode_names,
        further=gpt_2,
        **_OF_GPT_2,
    ),
    Architecture(
        "gpt_neo",
        "GPTNeoForCausalLM",
        _GPT_NEO_NAMES,
        mlp_bias=True,
        own_layer_kinds=True,
        prepared=gpt_neo_names,
        further=gpt_neo,
        **_OF_GPT_2,
    ),
    Architecture(
        "opt",
        "OPTForCausalLM",
        _OPT_NAMES,
        special_ids={"bos_token_id": 2, "eos_token_id": 2},
        norm_eps="layer_norm_eps",
        activation_field="activation_function",
        use_bias=True,
        tied=True,
        unrotated=True,
        prepared=opt_names,
        further=opt,
        renamed={
            f"{first}{theirs}": ours
            for first in ("model.decoder.", "decoder.")
            for theirs, ours in (
                ("embed_tokens.", "model.embed_tokens."),
                ("embed_positions.", "model.embed_positions."),
                ("layers.", "model.layers."),
                ("final_layer_norm.", "model.norm."),
            )
        },
        always={"activation": "relu", "gated": False, "norm": "layer", "norm_bias": True},
    ),
)
