"""Models whose norms are LayerNorms."""

from __future__ import annotations

from typing import Any

from tests.worker_svc.checkpoints.published.parts import FALCON, GPT_2, described, sizes, without

LAYER_NORMS: dict[str, tuple[dict[str, Any], float]] = {
    "starcoder2-3b": (
        described(
            "Starcoder2",
            "starcoder2",
            **sizes(49152, 3072, 12288, 30, 24, 2, 16384)
            | {"hidden_act": "gelu_pytorch_tanh", "attention_dropout": 0.1},
            activation_function="gelu",
            attention_softmax_in_fp32=True,
            embedding_dropout=0.1,
            layer_norm_epsilon=1e-5,
            mlp_type="default",
            norm_epsilon=1e-5,
            norm_type="layer_norm",
            residual_dropout=0.1,
            rope_theta=999999.4420358813,
            scale_attention_softmax_in_fp32=True,
            scale_attn_weights=True,
            sliding_window=4096,
            use_bias=True,
        ),
        3.03,
    ),
    "c4ai-command-r7b-12-2024": (
        described(
            "Cohere2",
            "cohere2",
            **sizes(256000, 4096, 14336, 32, 32, 8, 132096) | {"bos_token_id": 5, "eos_token_id": 255001},
            attention_bias=False,
            cache_implementation="hybrid",
            head_dim=128,
            layer_norm_eps=1e-5,
            layer_switch=4,
            logit_scale=0.25,
            order_of_interleaved_layers="local_attn_first",
            pad_token_id=0,
            position_embedding_type="rope_gptj",
            rope_scaling=None,
            rope_theta=50000,
            rotary_pct=1.0,
            sliding_window=4096,
            sliding_window_pattern=4,
            use_embedding_sharing=True,
            use_gated_activation=True,
            use_parallel_block=True,
            use_parallel_embedding=True,
        ),
        8.03,
    ),
    "c4ai-command-r-v01": (
        described(
            "Cohere",
            "cohere",
            **sizes(256000, 8192, 22528, 40, 64, 64, 8192) | {"bos_token_id": 5, "eos_token_id": 255001},
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            model_max_length=131072,
            pad_token_id=0,
            rope_theta=8000000.0,
        ),
        35.0,
    ),
    "stablelm-2-1_6b": (
        described(
            "StableLm",
            "stablelm",
            **sizes(100352, 2048, 5632, 24, 32, 32, 4096) | {"bos_token_id": 100257, "eos_token_id": 100257},
            hidden_dropout=0.0,
            layer_norm_eps=1e-5,
            partial_rotary_factor=0.25,
            qk_layernorm=False,
            rope_theta=10000,
            tie_word_embeddings=False,
            use_parallel_residual=False,
            use_qkv_bias=True,
        ),
        1.64,
    ),
    "gpt2": (
        GPT_2
        | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
        | {"activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12}
        | {"n_positions": 1024, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
        0.1244,
    ),
    "gpt2-medium": (
        GPT_2
        | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_special": 0, "predict_special_tokens": True}
        | {"activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 1024, "n_head": 16, "n_layer": 24}
        | {"n_positions": 1024, "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
        0.3548,
    ),
    "tiny-random-gpt2": (
        GPT_2
        | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu", "n_embd": 32}
        | {"hidden_act": "gelu", "intermediate_size": 37, "n_head": 4, "n_inner": None, "n_layer": 5, "n_ctx": 512}
        | {"n_positions": 512, "vocab_size": 1000, "type_vocab_size": 16, "bos_token_id": 98, "eos_token_id": 98}
        | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "pad_token_id": 98}
        | {"reorder_and_upcast_attn": False, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
        0.0001119,
    ),
    "starcoder": (
        GPT_2
        | {"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "vocab_size": 49152}
        | {"bos_token_id": 0, "eos_token_id": 0, "activation_function": "gelu", "n_embd": 6144, "n_head": 48}
        | {"n_inner": 24576, "n_layer": 40, "n_positions": 8192, "multi_query": True, "scale_attn_weights": True}
        | {"attention_softmax_in_fp32": True, "scale_attention_softmax_in_fp32": True, "inference_runner": 0}
        | {"max_batch_size": None, "max_sequence_length": None, "pad_key_length": True, "pre_allocate_kv_cache": False}
        | {"validate_runner_input": True, "torch_dtype": "float32", "use_cache": True},
        15.5,
    ),
    "gpt-neo-1.3B": (
        without(
            ("attn_pdrop", "embd_pdrop", "resid_pdrop"),
            GPT_2
            | {"architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "activation_function": "gelu_new"}
            | {"attention_dropout": 0, "attention_layers": ["global", "local"] * 12, "embed_dropout": 0}
            | {"attention_types": [[["global", "local"], 12]], "gradient_checkpointing": False, "hidden_size": 2048}
            | {"intermediate_size": None, "max_position_embeddings": 2048, "num_heads": 16, "num_layers": 24}
            | {"resid_dropout": 0, "tokenizer_class": "GPT2Tokenizer", "use_cache": True, "window_size": 256},
        ),
        1.316,
    ),
    "opt-1.3b": (
        {
            **{"architectures": ["OPTForCausalLM"], "model_type": "opt", "_remove_final_layer_norm": False},
            **{"activation_dropout": 0.0, "activation_function": "relu", "attention_dropout": 0.0, "dropout": 0.1},
            **{"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "prefix": "</s>", "do_layer_norm_before": True},
            **{"ffn_dim": 8192, "hidden_size": 2048, "word_embed_proj_dim": 2048, "num_attention_heads": 32},
            **{"num_hidden_layers": 24, "max_position_embeddings": 2048, "vocab_size": 50272, "init_std": 0.02},
            **{"layerdrop": 0.0, "torch_dtype": "float16", "use_cache": True, "transformers_version": "4.21.0.dev0"},
        },
        1.316,
    ),
    "OLMo-7B-hf": (
        described(
            "Olmo",
            "olmo",
            **sizes(50304, 4096, 11008, 32, 32, 32, 2048) | {"bos_token_id": None, "eos_token_id": 50279},
            attention_bias=False,
            clip_qkv=None,
            pad_token_id=1,
            rope_scaling=None,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        ),
        6.89,
    ),
    "pythia-6.9b": (
        without(
            ("num_key_value_heads",),
            described(
                "GPTNeoX",
                "gpt_neox",
                **sizes(50432, 4096, 16384, 32, 32, 32, 2048) | {"bos_token_id": 0, "eos_token_id": 0},
                classifier_dropout=0.1,
                hidden_dropout=0.0,
                layer_norm_eps=1e-5,
                rotary_emb_base=10000,
                rotary_pct=0.25,
                tie_word_embeddings=False,
                use_parallel_residual=True,
            )
            | {"hidden_act": "gelu"},
        ),
        6.86,
    ),
    "gpt-j-6b": (
        without(
            ("hidden_act", "attention_dropout"),
            described(
                "GPTJ",
                "gptj",
                **{"bos_token_id": 50256, "eos_token_id": 50256},
                activation_function="gelu_new",
                attn_pdrop=0.0,
                embd_pdrop=0.0,
                gradient_checkpointing=False,
                layer_norm_epsilon=1e-5,
                n_embd=4096,
                n_head=16,
                n_inner=None,
                n_layer=28,
                n_positions=2048,
                resid_pdrop=0.0,
                rotary=True,
                rotary_dim=64,
                scale_attn_weights=True,
                summary_activation=None,
                summary_first_dropout=0.1,
                summary_proj_to_labels=True,
                summary_type="cls_index",
                summary_use_proj=True,
                tie_word_embeddings=False,
                vocab_size=50400,
            ),
        ),
        6.05,
    ),
    "falcon-7b": (
        without(
            ("hidden_act", "num_key_value_heads", "intermediate_size", "max_position_embeddings"),
            described(
                "Falcon",
                "falcon",
                **sizes(65024, 4544, 0, 32, 71, 0, 0) | {"bos_token_id": 11, "eos_token_id": 11},
                **FALCON,
                multi_query=True,
                new_decoder_architecture=False,
            ),
        ),
        6.92,
    ),
    "falcon-40b": (
        without(
            ("hidden_act", "num_key_value_heads", "intermediate_size", "max_position_embeddings"),
            described(
                "Falcon",
                "falcon",
                **sizes(65024, 8192, 0, 60, 128, 0, 0) | {"bos_token_id": 11, "eos_token_id": 11},
                **FALCON,
                new_decoder_architecture=True,
                num_kv_heads=8,
            ),
        ),
        41.3,
    ),
    "phi-2": (
        described(
            "Phi",
            "phi",
            **sizes(51200, 2560, 10240, 32, 32, 32, 2048) | {"bos_token_id": 50256, "eos_token_id": 50256},
            embd_pdrop=0.0,
            resid_pdrop=0.1,
            layer_norm_eps=1e-5,
            partial_rotary_factor=0.4,
            qk_layernorm=False,
            rope_scaling=None,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        )
        | {"hidden_act": "gelu_new"},
        2.78,
    ),
    "Nemotron-Mini-4B-Instruct": (
        described(
            "Nemotron",
            "nemotron",
            **sizes(256000, 3072, 9216, 32, 24, 8, 4096) | {"bos_token_id": 2, "eos_token_id": 3},
            attention_bias=False,
            head_dim=128,
            mlp_bias=False,
            norm_eps=1e-5,
            partial_rotary_factor=0.5,
            rope_theta=10000,
            tie_word_embeddings=False,
        )
        | {"hidden_act": "relu2"},
        4.19,
    ),
    "Jais-2-8B": (
        described(
            "Jais2",
            "jais2",
            **sizes(150272, 3328, 26624, 32, 26, 26, 8192) | {"bos_token_id": 0, "eos_token_id": 150024},
            attention_bias=True,
            head_dim=128,
            layer_norm_eps=1e-5,
            mlp_bias=True,
            rope_scaling=None,
            rope_theta=500000,
            tie_word_embeddings=False,
        )
        | {"hidden_act": "relu2"},
        8.09,
    ),
    "Cohere 2 with experts": (
        described(
            "Cohere2Moe",
            "cohere2_moe",
            **sizes(256000, 8192, 22528, 40, 64, 64, 8192) | {"bos_token_id": 5, "eos_token_id": 255001},
            attention_bias=False,
            expert_selection_fn="softmax",
            head_dim=128,
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            norm_topk_prob=True,
            num_experts=8,
            num_experts_per_tok=2,
            num_shared_experts=0,
            pad_token_id=0,
            prefix_dense_sliding_window_pattern=1,
            rms_norm_eps=None,
            rope_scaling=None,
            rope_theta=10000.0,
            shared_expert_combination_strategy="average",
            sliding_window=4096,
            tie_word_embeddings=True,
        ),
        190.0,
    ),
}
