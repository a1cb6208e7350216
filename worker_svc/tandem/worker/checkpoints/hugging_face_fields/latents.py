"""Models that store latents or compressed keys."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import EVERY, LATENT_SIZES, PARTIAL
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

_LATENT_EXPERTS = (
    rules(USED, "n_routed_experts n_shared_experts n_group topk_group routed_scaling_factor")
    | rules(USED, "moe_intermediate_size num_experts_per_tok")
    | rules(NEUTRAL, "ep_size aux_loss_alpha seq_aux")
    | {"moe_layer_freq": Only((1,))}
)
_INDEXED = (
    LATENT_SIZES
    | _LATENT_EXPERTS
    | rules(USED, "index_topk index_head_dim index_n_heads first_k_dense_replace mlp_layer_types num_local_experts")
    | rules(USED, "norm_topk_prob num_nextn_predict_layers")
    | {"topk_method": Only(("noaux_tc",)), "scoring_func": Only(("sigmoid",)), "rope_interleave": Only((True,))}
)

LATENTS: Mapping[str, Table] = {
    "deepseek_v2": LATENT_SIZES
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_experts mlp_bias")
    | {"topk_method": USED, "norm_topk_prob": Only((False,)), "rope_interleave": Only((True,))},
    "deepseek_v3": LATENT_SIZES
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_local_experts norm_topk_prob num_nextn_predict_layers rope_interleave")
    | {"topk_method": Only(("noaux_tc",)), "scoring_func": Only(("sigmoid",))},
    "sarvam_mla": LATENT_SIZES
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_experts num_local_experts num_shared_experts norm_topk_prob")
    | rules(USED, "rope_interleave q_head_dim")
    | rules(NEUTRAL, "embedding_dropout output_dropout router_dtype")
    | rules(Only((0,)), "num_mtp_layers num_nextn_predict_layers")
    | rules(Only((True,)), "moe_router_enable_expert_bias")
    | {"topk_method": Only(("noaux_tc",))}
    | dict.fromkeys(("scoring_func", "score_function"), Only(("sigmoid",))),
    "deepseek_v32": _INDEXED | {"indexer_rope_interleave": Only((False,))},
    "deepseek_v4": EVERY
    | rules(USED, "q_lora_rank o_lora_rank o_groups qk_rope_head_dim partial_rotary_factor sliding_window swiglu_limit")
    | rules(USED, "compress_rates compress_rate_csa compress_rate_hca compress_ratios compress_rope_theta")
    | rules(USED, "hc_mult hc_sinkhorn_iters hc_eps index_n_heads index_head_dim index_topk")
    | rules(USED, "n_routed_experts num_local_experts num_experts_per_tok moe_intermediate_size routed_scaling_factor")
    | rules(USED, "mlp_layer_types num_hash_layers")
    | rules(NEUTRAL, "num_nextn_predict_layers")  # which are not read
    | {"n_shared_experts": Only((1,)), "norm_topk_prob": Only((True,)), "topk_method": Only(("noaux_tc",))}
    | {"scoring_func": Only(("sqrtsoftplus",)), "intermediate_size": Only(), "expert_dtype": Only(("fp4", "fp8"))},
    "glm_moe_dsa": _INDEXED
    | rules(USED, "indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset")
    | rules(USED, "num_experts")
    | rules(NEUTRAL, "index_share_for_mtp_iteration")  # of layers that draft
    | {"indexer_rope_interleave": Only((True,)), "moe_router_dtype": Only(("float32",))},
    "glm4_moe_lite": LATENT_SIZES
    | _LATENT_EXPERTS
    | rules(USED, "mlp_layer_types num_local_experts norm_topk_prob num_nextn_predict_layers rope_interleave")
    # transformers has one dense layer first whatever this says; others are listed by mlp_layer_types
    | {"first_k_dense_replace": Only((1,))}
    | {"topk_method": Only(("noaux_tc",)), "scoring_func": Only(("sigmoid",))},
    "mistral4": LATENT_SIZES
    | _LATENT_EXPERTS
    | rules(USED, "first_k_dense_replace num_local_experts norm_topk_prob rope_interleave")
    | PARTIAL,
    "youtu": LATENT_SIZES | rules(USED, "hidden_act rope_interleave") | rules(NEUTRAL, "embedding_initializer_range"),
    "minicpm3": LATENT_SIZES
    | rules(USED, "hidden_act mlp_bias scale_emb scale_depth dim_model_base")
    | rules(Only(), "logits_scaling logit_scale embedding_multiplier residual_multiplier"),  # what these are read as
}
