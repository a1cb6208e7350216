"""The tensors of transformers' models as llama.cpp's converter names them, and what it makes of some."""

from __future__ import annotations

from typing import Any

import gguf
import torch

from tests.worker_svc.checkpoints.gguf_kinds import (
    HYBRIDS,
    INDEXED,
    LATER,
    PERMUTED,
    STATES,
    architecture_of,
    falcon_size,
    kv_heads,
)


def named_tensors(model: Any, *, latents_apart: bool = True) -> list[tuple[str, torch.Tensor]]:
    """The model's parameters under llama.cpp's names, as views of them where they are not permuted copies."""
    found = []
    architecture = architecture_of(model.config)
    permute = architecture in PERMUTED
    # The package that is there may not know DeepSeek V3.2, whose tensors are named as GLM-5's.
    known = "glm-dsa" if architecture in INDEXED else LATER.get(model.config.model_type, architecture)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        tensor = parameter.data
        layer = name.split(".")[2] if "layers" in name else ""
        if architecture in HYBRIDS and "experts" not in name:
            found += _of_hybrid(tensor, name, layer, model.config, names)
            continue
        if architecture == "llama4" and ".experts." in name:  # stored `[in, out]`
            found += _of_llama4(tensor, name.rpartition(".")[2], layer)
            continue
        if "altup_projections" in name or "altup_unembed_projections" in name:
            if ".0." in name:  # those of all other streams are one tensor
                stem = name.partition(".0.")[0]
                others = [
                    model.get_submodule(f"{stem}.{n}").weight.data for n in range(model.config.altup_num_inputs - 1)
                ]
                found.append((f"{names.get_name(stem)}.weight", torch.stack(others)))
            continue
        if architecture == "gemma4" and (place := _GEMMA4.get(name.split(".", 3)[-1])):
            found.append((f"blk.{layer}.{place}", tensor))
            continue
        if architecture in STATES and (made := _of_states(tensor, name, layer, model.config)):
            found += made
            continue
        if architecture == "apertus" and ".act_fn." in name:
            continue
        if architecture == "granite_swa" and name.endswith("self_attn.sinks"):
            found.append((f"blk.{layer}.attn_sinks.weight", tensor))
            continue
        if architecture == "granite_swa" and "shared_mlp" in name:
            which = "up" if "input_linear" in name else "down"
            found.append((f"blk.{layer}.ffn_{which}_shexp.weight", tensor))
            continue
        if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.t()  # which the model has `[in, out]`
        if architecture == "gpt-oss" and ".experts." in name:
            found += _of_gpt_oss(tensor, name.rpartition(".")[2], layer)
            continue
        if "query_key_value" in name:
            layer, heads = name.split(".")[2], kv_heads(model.config)
            groups = tensor.view(
                heads, -1, model.config.hidden_size // model.config.num_attention_heads, *tensor.shape[1:]
            )
            parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
            rows = torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
            found.append((f"blk.{layer}.attn_qkv.{name.rpartition('.')[2]}", rows))
            continue
        if architecture == "minimax-01" and (stored := _MINIMAX.get(name.split(".", 3)[-1])):
            found.append((f"blk.{layer}.{stored}", tensor))
            continue
        if architecture == "kimi-linear" and (made := _of_kimi(tensor, name, layer)):
            found += made
            continue
        if name.endswith(("mlp.expert_bias", "mlp.gate.e_score_correction_bias")):
            found.append((f"blk.{layer}.exp_probs_b.bias", tensor))
            continue
        if name.endswith("moe_statics.e_score_correction_bias"):
            found.append((f"blk.{layer}.exp_probs_b.bias", tensor[0]))
            continue
        if name.endswith("experts.gate_up_proj"):
            half = tensor.shape[1] // 2
            found += [(f"blk.{layer}.ffn_gate_exps.weight", tensor[:, :half])]
            found += [(f"blk.{layer}.ffn_up_exps.weight", tensor[:, half:])]
            continue
        if model.config.model_type == "granitemoeshared" and name.endswith("shared_mlp.input_linear.weight"):
            gate, up = tensor.chunk(2)
            found += [(f"blk.{layer}.ffn_gate_shexp.weight", gate), (f"blk.{layer}.ffn_up_shexp.weight", up)]
            continue
        stem, _, suffix = name.rpartition(".") if name.endswith(("weight", "bias")) else (name, "", "weight")
        rest = stem.split(".", 3)[-1]
        for module in ("block_sparse_moe", "feed_forward"):
            stem = stem.replace(f"{module}.experts.down_proj", "mlp.experts.down_proj")
        stem = stem.replace("mixer.experts", "mlp.experts")
        if architecture.startswith("nemotron_h") and stem.startswith("model.") and ".mlp." not in stem:
            stem = "backbone." + stem.removeprefix("model.")
        if rest == "self_attn.kv_b_proj" and latents_apart:
            found += _of_latents(tensor, layer, model.config)
            continue
        stem = stem.replace("block_sparse_moe.router", "block_sparse_moe.router.layer")
        if architecture in ("gemma", "gemma2", "gemma3", "nemotron", "step35") and name.endswith("norm.weight"):
            tensor = tensor + 1  # llama.cpp's converter does
        if name.endswith("shared_expert_gate.weight"):
            tensor = tensor.squeeze()
        if permute and rest.split(".")[-1] in ("q_proj", "k_proj"):
            tensor = Permuted.of(tensor, model.config, rest)
        ours = names.get_name(f"{stem}.{suffix}") or f"{names.get_name(stem)}.{suffix}"
        found.append((ours, tensor))
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            suffix = "" if architecture == "hy_v3" else ".bias"
            found.append((f"blk.{name.split('.')[2]}.exp_probs_b{suffix}", buffer))
        if name.endswith("layer_scalar"):
            found.append((f"blk.{name.split('.')[2]}.layer_output_scale.weight", buffer))
    if architecture == "gemma3n":
        found += _unread(model.config)
    return found


def _unread(config: Any) -> list[tuple[str, torch.Tensor]]:
    """What published files have of layers that look at another one's keys, and transformers leaves out."""
    size, layers = config.head_dim, config.num_hidden_layers
    rows = torch.zeros(config.num_key_value_heads * size, config.hidden_size)
    parts = {"attn_k": rows, "attn_v": rows, "attn_k_norm": torch.zeros(size)}
    blocks = range(layers - config.num_kv_shared_layers, layers)
    return [(f"blk.{block}.{part}.weight", tensor) for block in blocks for part, tensor in parts.items()]


_GEMMA4 = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


_MINIMAX = {
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "self_attn.output_gate.weight": "attn_gate.weight",
    "self_attn.norm.weight": "attn_norm_2.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
}


def _of_kimi(tensor: torch.Tensor, name: str, layer: str) -> list[tuple[str, torch.Tensor]]:
    """What llama.cpp's converter changes of layers with Kimi's delta rule."""
    block, part = f"blk.{layer}.", name.partition("self_attn.")[2]
    match part.removeprefix("forget_gate."):
        case "A_log":
            return [(f"{block}ssm_a", -tensor.exp())]
        case "dt_bias":
            return [(f"{block}ssm_dt.bias", tensor)]
        case "conv1d.weight":
            parts = zip("qkv", tensor.chunk(3), strict=True)
            return [(f"{block}ssm_conv1d_{which}.weight", rows.unsqueeze(0)) for which, rows in parts]
        case "f_a_proj.weight" | "f_b_proj.weight":
            return [(f"{block}ssm_{part.removeprefix('forget_gate.')[:3]}.weight", tensor)]
    return []


def _of_states(tensor: torch.Tensor, name: str, layer: str, config: Any) -> list[tuple[str, torch.Tensor]]:
    """What llama.cpp's converter changes of layers with states, and Falcon-H1's multipliers, which it multiplies by."""
    block = f"blk.{layer}."
    if config.model_type == "falcon_h1":
        tensor = _multiplied(tensor, name, config)
    part = name.split(".", 3)[-1].partition(".")[2] if "layers" in name else name
    match part:
        case "A_log":
            return [(f"{block}ssm_a", -tensor.exp().unsqueeze(1))]
        case "D":
            return [(f"{block}ssm_d", tensor.unsqueeze(1))]
        case "dt_bias":
            return [(f"{block}ssm_dt.bias", tensor)]
        case "conv1d.weight":
            return [(f"{block}ssm_conv1d.weight", tensor.squeeze(1))]
        case "conv.weight":
            return [(f"{block}shortconv.conv.weight", tensor.squeeze(1))]
        case "norm.weight":
            groups = config.n_groups if config.model_type == "nemotron_h" else config.mamba_n_groups
            return [(f"{block}ssm_norm.weight", tensor.view(groups, -1))]
        case "input_linear.weight" if "shared_mlp" in name:
            gate, up = tensor.chunk(2)
            suffix = "_shexp" if config.num_local_experts else ""
            return [(f"{block}ffn_gate{suffix}.weight", gate), (f"{block}ffn_up{suffix}.weight", up)]
        case "output_linear.weight" if "shared_mlp" in name and not config.num_local_experts:
            return [(f"{block}ffn_down.weight", tensor)]
    if config.model_type != "falcon_h1":
        return []
    ours = {
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.k_proj.weight": "attn_k.weight",
        "self_attn.v_proj.weight": "attn_v.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "mamba.in_proj.weight": "ssm_in.weight",
        "mamba.out_proj.weight": "ssm_out.weight",
        "feed_forward.gate_proj.weight": "ffn_gate.weight",
        "feed_forward.down_proj.weight": "ffn_down.weight",
    }.get(name.split(".", 3)[-1])
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.final_layernorm.weight": "output_norm.weight",
    }.get(name)
    return [(top, tensor)] if top else [(block + ours, tensor)] if ours else []


def _multiplied(tensor: torch.Tensor, name: str, config: Any) -> torch.Tensor:
    enters = config.attention_in_multiplier
    by = {
        "q_proj": enters,
        "k_proj": enters * config.key_multiplier,
        "v_proj": enters,
        "o_proj": config.attention_out_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    if config.tie_word_embeddings:  # our own way: llama.cpp's converter does not multiply logits then
        by["final_layernorm"] = config.lm_head_multiplier / config.embedding_multiplier
    module = name.split(".")[-2]
    if module == "in_proj":
        size, group = falcon_size(config), config.mamba_n_groups * config.mamba_d_state
        rows = torch.tensor([size, size, group, group, config.mamba_n_heads])
        each = torch.tensor(config.ssm_multipliers).repeat_interleave(rows)
        return tensor * config.ssm_in_multiplier * each.to(tensor.device).unsqueeze(1)
    return tensor * by.get(module, 1.0)


def _of_latents(tensor: torch.Tensor, layer: str, config: Any) -> list[tuple[str, torch.Tensor]]:
    heads, keys = config.num_attention_heads, config.qk_nope_head_dim
    rows = tensor.view(heads, -1, tensor.shape[1])
    return [
        (f"blk.{layer}.attn_k_b.weight", rows[:, :keys].transpose(1, 2)),
        (f"blk.{layer}.attn_v_b.weight", rows[:, keys:]),
    ]


def _of_llama4(tensor: torch.Tensor, name: str, layer: str) -> list[tuple[str, torch.Tensor]]:
    rows = tensor.transpose(1, 2)
    if name == "down_proj":
        return [(f"blk.{layer}.ffn_down_exps.weight", rows)]
    half = rows.shape[1] // 2
    return [(f"blk.{layer}.ffn_gate_exps.weight", rows[:, :half]), (f"blk.{layer}.ffn_up_exps.weight", rows[:, half:])]


def _of_hybrid(
    tensor: torch.Tensor, name: str, layer: str, config: Any, names: gguf.TensorNameMap
) -> list[tuple[str, torch.Tensor]]:
    """llama.cpp has heads of values of Qwen3.5 in turns, one of each key head, and Qwen3-Next's q, k and v apart from
    z; norms have their 1, and the decay is minus its exponential."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim, group = config.linear_key_head_dim, config.linear_value_head_dim, values // keys
    tiled = config.model_type != "qwen3_next"

    def turns(rows: torch.Tensor, width: int) -> torch.Tensor:
        if not tiled:
            return rows
        heads = rows.reshape(keys, group, width, *rows.shape[1:])
        return heads.transpose(0, 1).reshape(rows.shape)

    part = name.split("linear_attn.")[-1]
    match part:
        case "A_log":
            return [(f"blk.{layer}.ssm_a", -turns(tensor, 1).exp())]
        case "dt_bias":
            return [(f"blk.{layer}.ssm_dt.bias", turns(tensor, 1))]
        case "norm.weight" if "linear_attn" in name:
            return [(f"blk.{layer}.ssm_norm.weight", tensor)]
        case "conv1d.weight":
            rows, both = tensor.squeeze(1), 2 * keys * key_dim
            whole = torch.cat((rows[:both], turns(rows[both:], value_dim)))
            return [(f"blk.{layer}.ssm_conv1d.weight", whole)]
        case "in_proj_qkvz.weight":
            sizes = [key_dim, key_dim, group * value_dim, group * value_dim]
            q, k, v, z = (
                each.reshape(-1, tensor.shape[1]) for each in tensor.view(keys, -1, tensor.shape[1]).split(sizes, 1)
            )
            return [(f"blk.{layer}.attn_qkv.weight", torch.cat((q, k, v))), (f"blk.{layer}.attn_gate.weight", z)]
        case "in_proj_ba.weight":
            return [(f"blk.{layer}.ssm_ba.weight", tensor)]
        case "in_proj_qkv.weight":
            both = 2 * keys * key_dim
            whole = torch.cat((tensor[:both], turns(tensor[both:], value_dim)))
            return [(f"blk.{layer}.attn_qkv.weight", whole)]
        case "in_proj_z.weight":
            return [(f"blk.{layer}.attn_gate.weight", turns(tensor, value_dim))]
        case "in_proj_b.weight" | "in_proj_a.weight":
            which = "beta" if "_b." in part else "alpha"
            return [(f"blk.{layer}.ssm_{which}.weight", turns(tensor, 1))]
        case "out_proj.weight":
            return [(f"blk.{layer}.ssm_out.weight", turns(tensor.t(), value_dim).t())]
    if name.endswith("norm.weight"):
        tensor = tensor + 1
    if name.endswith("shared_expert_gate.weight"):
        tensor = tensor.squeeze()
    stem, _, suffix = name.rpartition(".")
    return [(f"{names.get_name(stem)}.{suffix}", tensor)]


def _of_gpt_oss(tensor: torch.Tensor, name: str, layer: str) -> list[tuple[str, torch.Tensor]]:
    """Its experts are stored `[in, out]`, gate and up taking turns."""
    kind = "bias" if name.endswith("_bias") else "weight"
    rows = tensor if kind == "bias" else tensor.transpose(1, 2)
    if name.startswith("down"):
        return [(f"blk.{layer}.ffn_down_exps.{kind}", rows)]
    return [(f"blk.{layer}.ffn_{part}_exps.{kind}", rows[:, turn::2]) for turn, part in enumerate(("gate", "up"))]


class Permuted(torch.Tensor):
    """A permuted copy that remembers where it came from."""

    @staticmethod
    def of(tensor: torch.Tensor, config: Any, name: str) -> torch.Tensor:
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        # llama.cpp's permute()
        swapped = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:]).swapaxes(1, 2)
        copy: Any = swapped.reshape(tensor.shape).clone().as_subclass(Permuted)
        copy.origin, copy.heads = tensor, heads
        return copy  # type: ignore[no-any-return]
