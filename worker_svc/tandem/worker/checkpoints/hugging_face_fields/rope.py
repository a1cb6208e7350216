"""The RoPE parameters of `config.json`."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import PARTIAL
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

# Of HunYuan, whose theta is raised by `alpha`; transformers looks at nothing else then.
RAISED_ROPE: Table = rules(USED, "rope_type type rope_theta alpha") | rules(
    NEUTRAL, "factor beta_fast beta_slow mscale mscale_all_dim original_max_position_embeddings"
)

_PLAIN_ROPE: Table = rules(USED, "rope_type type rope_theta") | {"partial_rotary_factor": Only((1,))}
_LLAMA3 = "factor low_freq_factor high_freq_factor original_max_position_embeddings"
_LONGROPE = "factor original_max_position_embeddings attention_factor short_factor long_factor"
_YARN = "factor original_max_position_embeddings beta_fast beta_slow attention_factor mscale mscale_all_dim truncate"

# By `rope_type`: a parameter of another one is refused.
ROPE: Mapping[str, Table] = {
    "default": _PLAIN_ROPE,
    "linear": _PLAIN_ROPE | rules(USED, "factor"),
    "dynamic": _PLAIN_ROPE | rules(USED, "factor"),
    "llama3": _PLAIN_ROPE | rules(USED, _LLAMA3),
    "yarn": _PLAIN_ROPE | rules(USED, _YARN),
    "longrope": _PLAIN_ROPE | rules(USED, _LONGROPE),
    "proportional": _PLAIN_ROPE | rules(USED, "factor partial_rotary_factor"),
}

# Beside these, by our name of the architecture. Neutral is what the field of the same name beside the others says too.
_HYBRID_ROPE = rules(USED, "partial_rotary_factor") | rules(NEUTRAL, "mrope_section mrope_interleaved")
ROPE_OF: Mapping[str, Table] = {
    "phi3": PARTIAL,
    "glm4": PARTIAL,
    "glm4_moe": PARTIAL,
    "sarvam_moe": PARTIAL,
    "minimax_m2": PARTIAL,
    "phimoe": rules(USED, "short_mscale long_mscale"),
    "qwen3_next": rules(USED, "partial_rotary_factor"),
    "qwen3_5_text": _HYBRID_ROPE,  # of text alone, all three positions are the same
    "qwen3_5_moe_text": _HYBRID_ROPE,
    "ministral3": {"llama_4_scaling_beta": USED, "max_position_embeddings": NEUTRAL},
    "mistral4": PARTIAL | {"llama_4_scaling_beta": USED, "max_position_embeddings": NEUTRAL},
    "glm": PARTIAL,
    "stablelm": PARTIAL,
    "phi": PARTIAL,
    "gpt_neox": PARTIAL,
    "bamba": PARTIAL,
    "nemotron": PARTIAL,
    "step3p5": PARTIAL,
    "laguna": PARTIAL,
}
