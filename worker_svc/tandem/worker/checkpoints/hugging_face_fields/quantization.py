"""The fields of `quantization_config`, and of the files that say it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

# Of ModelOpt: `quantization_config`, or `quantization` of a file of its own. How a cache is rounded is not looked at.
_SMOOTHED: Table = {"has_zero_point": Only((False,)), "pre_quant_scale": Only((False,)), "lora_rank": Only()}
MODEL_OPTIMIZER: Table = (
    rules(USED, "quant_method quant_algo quantized_layers config_groups")
    | rules(NEUTRAL, "group_size exclude_modules ignore kv_cache_quant_algo kv_cache_scheme producer")
    | _SMOOTHED
)
MODEL_OPTIMIZER_FILE: Table = rules(USED, "quant_method quantization") | rules(NEUTRAL, "producer")
MODEL_OPTIMIZER_LAYER: Table = rules(USED, "quant_algo") | rules(NEUTRAL, "group_size") | _SMOOTHED
MODEL_OPTIMIZER_GROUP: Table = rules(USED, "weights input_activations") | rules(NEUTRAL, "targets") | _SMOOTHED

# How AutoRound found the numbers; it also writes the files of GPTQ and AWQ.
AUTO_ROUND: Table = rules(
    NEUTRAL,
    "sym autoround_version provider model_free block_name_to_quantize to_quant_block_names quant_block_list amp",
    "batch_size dataset enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input iters lr minmax_lr",
    "gradient_accumulate_steps low_gpu_mem_usage low_cpu_mem_usage nsamples seqlen scale_dtype supported_types",
    "lr_scheduler sampler modules_to_not_convert quant_lm_head desc_act true_sequential damp_percent",
    "static_kv_granularity static_attention_granularity",
)
# Of AutoRound's, what is said of all matrices or of some: how numbers are stored, and how activations are not rounded.
AUTO_ROUND_SCHEME: Table = {
    "data_type": Only(("int",)),
    "act_bits": Only((16, 32)),
    **rules(NEUTRAL, "act_group_size act_sym act_data_type act_dynamic"),
    **rules(Only(), "super_bits super_group_size rotation_config"),
}

# By `quant_method`. Neutral is how the numbers were found and which kernel another program multiplies them with; which
# matrices are packed is seen from the tensors.
QUANTIZATION: Mapping[str, Table] = {
    "gptq": AUTO_ROUND
    | AUTO_ROUND_SCHEME
    | rules(USED, "quant_method bits group_size checkpoint_format format desc_act dynamic")
    | rules(
        NEUTRAL,
        "sym damp_percent damp_auto_increment true_sequential static_groups mse dataset tokenizer batch_size",
        "model_seqlen block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize",
        "pad_token_id cache_block_outputs use_cuda_fp16 use_exllama disable_exllama exllama_config max_input_length",
        "backend model_name_or_path model_file_base_name quantizer meta lm_head",
    )
    | {"is_marlin_format": Only((False,)), "pack_dtype": Only(("int32",)), "method": Only(("gptq",))},
    "fp8": rules(USED, "quant_method weight_block_size")
    | rules(NEUTRAL, "activation_scheme modules_to_not_convert scale_fmt dequantize ignored_layers")
    | {
        "fmt": Only(("e4m3", "float8_e4m3fn")),
        "is_checkpoint_fp8_serialized": Only((True,)),
        "expert_dtype": Only(("fp4", "fp8")),
    },
    "fbgemm_fp8": rules(USED, "quant_method") | rules(NEUTRAL, "activation_scale_ub modules_to_not_convert"),
    "mxfp4": rules(USED, "quant_method") | rules(NEUTRAL, "modules_to_not_convert") | {"dequantize": Only((False,))},
    "compressed-tensors": rules(USED, "quant_method config_groups sparsity_config")
    | rules(NEUTRAL, "ignore global_compression_ratio version run_compressed")
    | {
        "format": Only(
            (
                *("int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision", "dense"),
                *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"),
            )
        ),
        "quantization_status": Only(("compressed", "frozen")),
        "kv_cache_scheme": Only(),
        "transform_config": Only(({},)),
    },
    "modelopt": MODEL_OPTIMIZER | MODEL_OPTIMIZER_FILE,
    "bitsandbytes": rules(USED, "quant_method")
    | rules(
        NEUTRAL,
        "load_in_4bit load_in_8bit _load_in_4bit _load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant",
        "bnb_4bit_compute_dtype llm_int8_skip_modules llm_int8_threshold llm_int8_has_fp16_weight",
        "llm_int8_enable_fp32_cpu_offload",
    )
    | {"bnb_4bit_quant_storage": Only(("uint8",))},
    "awq": AUTO_ROUND
    | AUTO_ROUND_SCHEME
    | rules(USED, "quant_method bits group_size version dynamic")
    | rules(
        NEUTRAL,
        "backend do_fuse fuse_max_seq_len modules_to_fuse modules_to_not_convert exllama_config",
        # without a zero point, each zero is the middle of what is stored, and is stored too
        "zero_point sym lm_head meta",
    )
    | {"desc_act": Only((False,)), "pack_dtype": Only(("int32",)), "method": Only(("awq",))}
    | rules(Only(("gemm",)), "checkpoint_format format"),
    "auto-round": rules(USED, "quant_method bits group_size packing_format backend extra_config")
    | AUTO_ROUND
    | AUTO_ROUND_SCHEME
    | rules(Only(), "static_kv_dtype static_attention_dtype rotation_configs"),
}

# Of the matrices that GPTQModel's `dynamic` or AutoRound's `extra_config` name, what is said otherwise than of all.
PACKED_LAYER: Table = rules(USED, "bits group_size") | {"sym": NEUTRAL} | AUTO_ROUND_SCHEME

# Of compressed-tensors' groups of layers. How activations are rounded is not looked at; in which order groups were made
# changes what is stored, not what it means, but for "group", whose index is refused.
QUANTIZED_GROUP: Table = rules(USED, "weights input_activations") | {
    "targets": NEUTRAL,
    "output_activations": Only(),
    "format": QUANTIZATION["compressed-tensors"]["format"],
}
_OBSERVED = rules(NEUTRAL, "observer observer_kwargs scale_dtype zp_dtype")
QUANTIZED_WEIGHTS: Table = (
    rules(USED, "num_bits type block_structure")
    | rules(NEUTRAL, "symmetric strategy group_size actorder")
    | _OBSERVED
    | {"dynamic": Only((False,))}
)
QUANTIZED_ACTIVATIONS: Table = (
    rules(NEUTRAL, "num_bits type symmetric strategy group_size dynamic actorder block_structure") | _OBSERVED
)
