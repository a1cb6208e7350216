"""The fields of `adapter_config.json`, as PEFT writes it."""

from __future__ import annotations

from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

# Neutral is how an adapter was begun and trained, and of what: which tensors it changes is seen from its file.
ADAPTER: Table = (
    rules(USED, "r lora_alpha use_rslora fan_in_fan_out rank_pattern alpha_pattern")
    | {"peft_type": Only(("LORA",))}
    | rules(
        NEUTRAL,
        "auto_mapping base_model_name_or_path revision peft_version inference_mode task_type lora_dropout bias",
        "target_modules exclude_modules modules_to_save init_lora_weights layers_to_transform layers_pattern",
        "megatron_config megatron_core loftq_config eva_config corda_config lora_ga_config qalora_group_size",
        "runtime_config ensure_weight_tying",
    )
    | rules(Only((False,)), "use_dora use_qalora lora_bias")
    | rules(Only(([], {})), "alora_invocation_tokens layer_replication target_parameters trainable_token_indices")
    | rules(Only(({},)), "velora_config monteclora_config use_bdlora arrow_config kasa_config")
)
