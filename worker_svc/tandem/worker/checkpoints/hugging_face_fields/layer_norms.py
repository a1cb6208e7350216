"""Dense models that have layer norms."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import DENSE, EVERY, NO_ROPE, PARTIAL, SUMMARY
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

LAYER_NORMS: Mapping[str, Table] = {
    "olmo": DENSE | rules(USED, "attention_bias clip_qkv") | {"rms_norm_eps": Only()},
    "starcoder2": DENSE
    | rules(USED, "norm_epsilon use_bias sliding_window")
    | rules(
        NEUTRAL,
        "residual_dropout embedding_dropout activation_function attention_softmax_in_fp32 layer_norm_epsilon",
        "scale_attention_softmax_in_fp32",
    )
    | {"rms_norm_eps": Only(), "scale_attn_weights": Only((True,))}
    | {"mlp_type": Only(("default",)), "norm_type": Only(("layer_norm",))},
    "cohere": EVERY
    | rules(USED, "attention_bias layer_norm_eps logit_scale")
    | rules(NEUTRAL, "model_max_length")
    | {"rms_norm_eps": Only()},
    "cohere2": DENSE
    | rules(USED, "attention_bias layer_norm_eps logit_scale sliding_window sliding_window_pattern")
    | rules(Only((True,)), "use_embedding_sharing use_gated_activation use_parallel_block")
    | {"rms_norm_eps": Only(), "rotary_pct": Only((1,)), "use_parallel_embedding": NEUTRAL, "layer_switch": Only((4,))}
    | {"position_embedding_type": Only(("rope_gptj",)), "order_of_interleaved_layers": Only(("local_attn_first",))},
    "stablelm": EVERY
    | rules(USED, "layer_norm_eps use_qkv_bias use_parallel_residual")
    | {"rms_norm_eps": Only(), "head_dim": Only()}
    | PARTIAL,
    "phi": DENSE
    | rules(USED, "layer_norm_eps")
    | {"rms_norm_eps": Only(), "head_dim": Only(), "use_bias": Only()}
    | PARTIAL,
    "gpt_neox": DENSE
    | rules(USED, "attention_bias layer_norm_eps rotary_emb_base rotary_pct use_parallel_residual")
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads rope_theta"),
    "falcon": EVERY
    | rules(
        USED, "num_kv_heads ffn_hidden_size activation bias layer_norm_epsilon new_decoder_architecture multi_query"
    )
    | rules(USED, "parallel_attn num_ln_in_parallel_attn")
    | rules(Only(), "hidden_act rms_norm_eps head_dim num_key_value_heads intermediate_size use_bias")
    | rules(Only((False,)), "alibi apply_residual_connection_post_layernorm"),
    "gptj": EVERY
    | rules(USED, "n_embd n_head n_layer n_positions n_inner activation_function layer_norm_epsilon rotary_dim")
    | rules(NEUTRAL, "n_ctx")
    | SUMMARY
    | NO_ROPE
    | rules(Only(), "hidden_act rms_norm_eps head_dim num_key_value_heads intermediate_size mlp_bias layer_types")
    | rules(Only((True,)), "rotary scale_attn_weights"),
    "nemotron": DENSE | rules(USED, "norm_eps attention_bias mlp_bias") | {"rms_norm_eps": Only()} | PARTIAL,
    "jais2": DENSE | rules(USED, "layer_norm_eps attention_bias mlp_bias") | {"rms_norm_eps": Only()},
}
