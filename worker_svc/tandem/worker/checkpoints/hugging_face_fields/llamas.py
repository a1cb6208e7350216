"""Dense models whose norms are RMS norms."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.hugging_face_fields.shared import DENSE, EVERY, GRANITE, HUNYUAN, PARTIAL, QWEN_WINDOWS
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

LLAMAS: Mapping[str, Table] = {
    "llama": DENSE
    | rules(USED, "attention_bias mlp_bias")
    | {"sliding_window": Only(), "use_sliding_window": Only((False,))},
    "mistral": DENSE | rules(USED, "sliding_window"),
    "ministral": DENSE | rules(USED, "sliding_window"),
    # q, k and v have biases whatever the file says; the layers that draft are not read
    "qwen2": DENSE | QWEN_WINDOWS | rules(NEUTRAL, "attention_bias num_nextn_predict_layers"),
    "qwen3": DENSE | rules(USED, "attention_bias") | QWEN_WINDOWS,
    "phi3": DENSE
    | rules(USED, "sliding_window")
    | rules(NEUTRAL, "full_attn_mod interpolate_factor")
    | {"lm_head_bias": Only((False,))}
    | PARTIAL,
    "glm": EVERY | rules(USED, "attention_bias") | PARTIAL,
    "glm4": DENSE | rules(USED, "attention_bias") | PARTIAL,
    "smollm3": DENSE
    | rules(USED, "attention_bias mlp_bias no_rope_layers no_rope_layer_interval use_sliding_window sliding_window")
    | rules(NEUTRAL, "max_window_layers"),
    "ministral3": DENSE | rules(USED, "sliding_window"),
    "seed_oss": DENSE | rules(USED, "attention_bias attention_out_bias mlp_bias") | rules(NEUTRAL, "residual_dropout"),
    "helium": DENSE | rules(USED, "attention_bias mlp_bias"),
    "internlm3": DENSE | rules(USED, "qkv_bias bias attention_bias mlp_bias"),
    "arcee": DENSE | rules(USED, "attention_bias mlp_bias"),
    "apertus": EVERY
    | rules(USED, "attention_bias")
    | {"hidden_act": Only(("xielu",)), "qk_norm": Only((True,)), "post_norm": Only((False,))},
    "ernie4_5": DENSE | rules(USED, "use_bias"),
    "granite": DENSE | GRANITE | rules(USED, "mlp_bias"),
    "granite_swa": DENSE | GRANITE | rules(USED, "mlp_bias") | rules(USED, "sliding_window layer_rope_theta"),
    "olmo2": DENSE | rules(USED, "attention_bias"),
    # transformers has this theta in layers with a window, whatever rope_theta says
    "olmo3": DENSE | rules(USED, "attention_bias sliding_window") | {"rope_theta": Only((500000,))},
    "exaone": DENSE
    | rules(USED, "num_layers layer_norm_epsilon activation_function")
    | rules(NEUTRAL, "embed_dropout"),
    "exaone4": EVERY
    | rules(USED, "sliding_window sliding_window_pattern")
    # the layer that drafts is not read
    | rules(NEUTRAL, "num_nextn_predict_layers _num_mtp_layers mtp_share_layers mtp_loss_scaling_factor"),
    "cwm": EVERY | rules(USED, "mlp_bias sliding_window"),
    "hunyuan_v1_dense": DENSE | HUNYUAN,
    "iquestcoder": EVERY
    | rules(USED, "attention_bias mlp_bias")
    | {"sliding_window": Only(), "use_sliding_window": Only((False,))},
    "hyperclovax": DENSE | GRANITE | rules(USED, "mlp_bias use_post_norm"),
}
