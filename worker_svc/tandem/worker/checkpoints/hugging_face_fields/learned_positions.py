"""Dense models that add a vector of each position to the token's."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import EVERY, NO_ROPE, SUMMARY
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

_OF_OTHERS = rules(NEUTRAL, "type_vocab_size embed_dim")  # what models that are made for tests say
_GPT_2 = (
    rules(USED, "n_embd n_head n_layer n_positions n_inner activation_function layer_norm_epsilon scale_attn_weights")
    # the size of feed-forward parts is n_inner, the activation activation_function, whatever these say
    | rules(NEUTRAL, "n_ctx n_special predict_special_tokens output_past _num_labels hidden_act intermediate_size")
    | SUMMARY
    | _OF_OTHERS
    | NO_ROPE
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads layer_types")
)

LEARNED_POSITIONS: Mapping[str, Table] = {
    "gpt2": EVERY | _GPT_2 | {"reorder_and_upcast_attn": NEUTRAL, "scale_attn_by_inverse_layer_idx": Only((False,))},
    "gpt_bigcode": EVERY
    | _GPT_2
    | {"multi_query": USED, "num_key_value_heads": NEUTRAL}  # which the former says
    | rules(NEUTRAL, "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner")
    | rules(NEUTRAL, "max_batch_size max_sequence_length pad_key_length pre_allocate_kv_cache validate_runner_input"),
    "gpt_neo": EVERY
    | rules(USED, "num_heads num_layers attention_types attention_layers window_size activation_function")
    | rules(USED, "layer_norm_epsilon")
    | rules(NEUTRAL, "embed_dropout resid_dropout hidden_act")
    | SUMMARY
    | _OF_OTHERS
    | NO_ROPE
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads layer_types"),
    "opt": EVERY
    | rules(USED, "ffn_dim activation_function enable_bias do_layer_norm_before word_embed_proj_dim")
    | rules(NEUTRAL, "dropout activation_dropout layerdrop init_std output_projection hidden_act intermediate_size")
    | _OF_OTHERS
    | NO_ROPE
    | {"learned_embeddings": Only((True,)), "scale_embeddings": Only((False,))}  # which Galactica's files say
    | {"_remove_final_layer_norm": Only((False,)), "layer_norm_elementwise_affine": Only((True,))}
    | rules(Only(), "rms_norm_eps head_dim num_key_value_heads layer_types"),
}
