"""Gemma and VaultGemma."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import EVERY
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

_ACTIVATION = rules(Only(("gelu_pytorch_tanh",)), "hidden_act hidden_activation")

GEMMAS: Mapping[str, Table] = {
    "gemma": EVERY
    | rules(USED, "attention_bias")
    | {"hidden_act": Only(("gelu_pytorch_tanh", "gelu")), "hidden_activation": Only(("gelu_pytorch_tanh",))}
    | {"use_bidirectional_attention": Only((False,))},
    "gemma2": EVERY
    | rules(USED, "attention_bias sliding_window query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping")
    | _ACTIVATION
    | {"use_bidirectional_attention": Only((False,)), "sliding_window_size": NEUTRAL},
    "gemma3_text": EVERY
    | rules(USED, "attention_bias sliding_window sliding_window_pattern query_pre_attn_scalar rope_local_base_freq")
    | rules(USED, "final_logit_softcapping")
    | _ACTIVATION
    # transformers looks at the name without the first letter
    | {"use_bidirectional_attention": Only((False,)), "_sliding_window_pattern": NEUTRAL},
    "gemma4_text": EVERY
    | rules(USED, "attention_bias sliding_window final_logit_softcapping attention_k_eq_v num_kv_shared_layers")
    | rules(USED, "global_head_dim num_global_key_value_heads per_layer_config use_double_wide_mlp")
    | rules(USED, "hidden_size_per_layer_input vocab_size_per_layer_input")
    | rules(USED, "enable_moe_block num_experts top_k_experts moe_intermediate_size")
    | _ACTIVATION
    | {"use_bidirectional_attention": Only(("vision",))},  # of what is seen, not of text
    "gemma3n_text": EVERY
    | rules(USED, "attention_bias sliding_window final_logit_softcapping num_kv_shared_layers rope_local_base_freq")
    | rules(USED, "hidden_size_per_layer_input vocab_size_per_layer_input activation_sparsity_pattern laurel_rank")
    | rules(USED, "altup_num_inputs altup_active_idx altup_correct_scale")
    | rules(NEUTRAL, "altup_coef_clip altup_lr_multiplier query_pre_attn_scalar")  # of training; scores stay
    | _ACTIVATION,
    "vaultgemma": EVERY
    | rules(USED, "attention_bias sliding_window query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping")
    | _ACTIVATION
    | {"sliding_window_size": NEUTRAL},
}
