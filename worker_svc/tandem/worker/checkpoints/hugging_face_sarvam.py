"""Reads what files of Sarvam say in words of their own; those of the large model were once written for other code."""

from __future__ import annotations

from tandem.worker.checkpoints.fields import Fields

_USUAL = {
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "use_qkv_bias": "attention_bias",
}


def sarvam_moe(config: Fields) -> Fields:
    """Returns the config of a model that attends as others do, with the names that GLM-4.5 has."""
    return config.renamed(_USUAL)


def sarvam_mla(config: Fields) -> Fields:
    """Returns the config of a model with latents as DeepSeek V3 would say it: without sizes that follow from others,
    and YaRN by its usual name."""
    values = dict(config.renamed(_USUAL).values)
    values.setdefault("q_lora_rank", None)
    rotated = config.integer("qk_rope_head_dim")
    query = config.integer("qk_nope_head_dim") + rotated
    if config.integer("q_head_dim", query) != query:
        raise config.error("q_head_dim", f"is {config.integer('q_head_dim')}, but a query has {query} numbers")
    if values.get("head_dim") == config.integer("kv_lora_rank") + rotated:  # what is kept of a token
        del values["head_dim"]
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.object(key).values
        values[key] = rope | {name: "yarn" for name in ("type", "rope_type") if rope.get(name) == "deepseek_yarn"}
    return config.with_values(values)
