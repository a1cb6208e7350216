"""Every field of a checkpoint, changed: what is computed changes too, or the checkpoint is refused by the field's name,
or the field is in the table of neutral ones and the bits stay. What is served is what transformers computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.gguf_fields import known_keys
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_fields import CONFIG
from tandem.worker.checkpoints.hugging_face_fields.generation import GENERATION
from tandem.worker.checkpoints.hugging_face_fields.quantization import QUANTIZATION
from tandem.worker.checkpoints.hugging_face_fields.rope import ROPE
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Rule
from tandem.worker.checkpoints.meta import FIELDS as META_FIELDS
from tandem.worker.checkpoints.schemes import scheme_of
from tandem.worker.model.loading import load_transformer
from tests.exhaustive import some
from tests.worker_svc.checkpoints.gguf_kinds import ARCHITECTURES as GGUF_ARCHITECTURES
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.test_packed import FORMATS, save_packed
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, save_meta, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

LENGTH = 40
IDS = some_ids(97, LENGTH)
TOMORROW = "a_field_of_tomorrow"
_COMPUTED: dict[Any, torch.Tensor] = {}
ABSENT = object()


@dataclass(frozen=True)
class Served:
    """What a caller can see of a checkpoint."""

    logits: torch.Tensor
    facts: tuple[Any, ...]

    def same(self, other: Served) -> bool:
        """To the bit."""
        return self.facts == other.facts and torch.equal(self.logits, other.logits)


def served(path: Path) -> Served | str:
    """What a checkpoint computes, or why it is refused."""
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        return str(error)
    config = checkpoint.config
    weights = hashlib.sha256()
    for _, tensor in checkpoint.tensors():
        plain = tensor if isinstance(tensor, torch.Tensor) else tensor.dequantize()
        weights.update(plain.contiguous().view(torch.uint8).numpy().data)
    key = (config, weights.digest())
    if key not in _COMPUTED:  # or else the same weights were computed with in the same way
        model = load_transformer(checkpoint, "cpu", torch.float32)
        length = min(LENGTH, config.context_length)
        _COMPUTED[key] = logits_in_chunks(model, IDS[:length], [length])
    facts = (config.context_length, checkpoint.bos_id, checkpoint.eos_ids, dict(checkpoint.sampling_defaults))
    return Served(_COMPUTED[key], facts)


def others(value: Any) -> list[Any]:
    """Values that a field of this value could have as well."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value * 2, value * 4]
        case float():
            return [value * 2, value / 4 or 0.5]
        case str():
            return [f"{value}x"]
        case list():
            return [value[:-1], [*value, 7], [7]]
        case dict():
            return [{**value, TOMORROW: 1}]
    return [True, 3, 0.5, "other", [1], {"a": 1}]


class Field:
    """One field and its rule, and what became of the checkpoint for each value that was tried."""

    def __init__(self, key: str, rule: Rule | None, before: Served) -> None:
        self.key, self.rule, self.before = key, rule, before
        self.tried: list[object] = []
        self.mattered = False

    def check(self, value: object, after: Served | str) -> None:
        """Against the rule, as far as one value tells."""
        said = f"{self.key} = {value!r}, which is {self.rule}"
        self.tried.append(value)
        if isinstance(after, str):
            assert self.rule is not NEUTRAL, f"{said}: {after}"
            assert self.rule is USED or self.key in after, f"{said}: {after}"
            self.mattered = True
        elif not after.same(self.before):
            assert self.rule is USED, f"{said} but changes what is computed"
            self.mattered = True
        elif self.rule is not USED:
            assert self.rule is NEUTRAL or (isinstance(self.rule, Only) and self.rule.allows(value)), f"{said}: served"

    def end(self, idle: Iterable[str] = ()) -> None:
        """Some value of a field that is used must matter; a step of rounding may swallow another one."""
        if self.rule is USED and self.tried:
            assert self.mattered or self.key in idle, f"{self.key} is said to be used, but none of {self.tried} matters"


# --- Hugging Face ------------------------------------------------------------------------------------------------

WINDOW = {"sliding_window": 7}
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", WINDOW),
    "ministral": (
        "Ministral",
        WINDOW | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "mixtral": ("Mixtral", MODELS["mixtral"][1] | WINDOW),
    "qwen2": ("Qwen2", WINDOW | {"head_dim": None, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("Qwen3", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3_moe": ("Qwen3Moe", MODELS["qwen3 moe"][1] | WINDOW | {"use_sliding_window": True}),
    **{name: MODELS[name] for name in ["arcee", "ernie4_5", "granite", "olmo2", "olmo3", "starcoder2", "cohere2"]},
    "gpt_neox": MODELS["gpt neox"],
    "gptj": MODELS["gptj"],
    "gpt2": MODELS["gpt2, a size of its own, scores as they are, another activation, an output of its own"],
    "gpt_bigcode": MODELS["gpt bigcode"],
    "gpt_neo": MODELS["gpt neo"],
    "opt": MODELS["opt"],
    "apertus": MODELS["apertus"],
    "bamba": MODELS["bamba"],
    "olmo_hybrid": MODELS["olmo hybrid, rotated, biases, betas as they are, fewer keys"],
    "falcon": MODELS["falcon, newer, a norm each, biases"],
    "olmo": MODELS["olmo, queries, keys and values that are limited, biases"],
    "hunyuan_v1_dense": MODELS["hunyuan"],
    "hunyuan_v1_moe": MODELS["hunyuan moe"],
    "smollm3": MODELS["smollm3, windows where nothing is rotated"],
    "helium": MODELS["helium"],
    "gemma2": MODELS["gemma2"],
    "gpt_oss": MODELS["gpt oss"],
    "qwen2_moe": (
        "Qwen2Moe",
        MODELS["qwen2 moe"][1] | WINDOW | {"use_sliding_window": True, "max_window_layers": 2},
    ),
    "olmoe": MODELS["olmoe, queries, keys and values that are limited"],
    "flex_olmo": MODELS["flex olmo"],
    "granitemoe": MODELS["granite moe"],
    "phi3": MODELS["phi3, rotated in part, longrope"],
    "phimoe": MODELS["phi moe"],
    "glm4": MODELS["glm4"],
    "glm4_moe": MODELS["glm4 moe, groups, norms, scaled"],
    "deepseek_v2": MODELS["deepseek v2, groups, no latent of queries"],
    "deepseek_v3": MODELS["deepseek v3"],
    "deepseek_v32": MODELS["deepseek v3.2"],
    "deepseek_v4": MODELS["deepseek v4"],
    "glm_moe_dsa": (
        "GlmMoeDsa",
        MODELS["glm moe dsa"][1] | {"num_hidden_layers": 4, "index_topk_freq": 2, "index_skip_topk_offset": 1},
    ),
    "glm4_moe_lite": MODELS["glm4 moe lite, kinds that are listed"],
    "youtu": MODELS["youtu"],
    "mistral4": MODELS["mistral4"],
    "mimo_v2_flash": MODELS["mimo v2 flash"],
    "step3p5": MODELS["step 3.5"],
    "laguna": MODELS["laguna"],
    "minimax": MODELS["minimax 01, factors of its own, windows, a table for both, sizes that are not compiled"],
    "kimi_linear": MODELS["kimi linear"],
    "bailing_hybrid": MODELS["ling 3"],
    "minicpm3": MODELS["minicpm3"],
    "minimax_m2": MODELS["minimax m2"],
    "gemma3_text": MODELS["gemma3"],
    "gemma3n_text": MODELS["gemma3n"],
    "gemma4_text": MODELS["gemma4 with experts"],
    "llama4_text": MODELS["llama4"],
    "seed_oss": MODELS["seed oss"],
    "lfm2": MODELS["lfm2"],
    "lfm2_moe": MODELS["lfm2 moe"],
    "granitemoehybrid": MODELS["granite hybrid"],
    "nemotron_h": MODELS["nemotron 3, latents, biases, dense layers too, sizes that are not compiled"],
    "falcon_h1": MODELS["falcon h1, norm before the gate"],
    "ministral3": MODELS["ministral3 with a window"],
    "glm": MODELS["glm"],
    "ernie4_5_moe": MODELS["ernie4_5 moe"],
    "exaone4": MODELS["exaone4"],
    "gemma": MODELS["gemma"],
    "cohere": MODELS["cohere"],
    "exaone_moe": MODELS["exaone moe"],
    "mellum": MODELS["mellum"],
    "iquestcoder": MODELS["iquestcoder with biases"],
    "solar_open": MODELS["solar open, biases, groups, scaled"],
    "stablelm": MODELS["stablelm with biases, side by side"],
    "granite_swa": MODELS["granite swa, another theta in windows, layers that are listed, biases"],
    "granitemoe_swa": MODELS["granite moe swa"],
    "vaultgemma": MODELS["vaultgemma"],
    "phi": MODELS["phi 2"],
    "nemotron": MODELS["nemotron with biases, a table for both"],
    "jais2": MODELS["jais 2"],
    "cohere2_moe": MODELS[
        "cohere2 moe, sigmoids, RMS norms, two shared that are averaged, dense layers of another size"
    ],
    "lfm3": MODELS["lfm3"],
    "afmoe": MODELS["trinity"],
    "hy_v3": MODELS["hunyuan 3, biases, layers that are listed, two shared"],
    "sarvam_moe": MODELS["sarvam moe, biases, no norms, groups, a part rotated"],
    "sarvam_mla": MODELS["sarvam mla, a latent of queries, groups, yarn"],
    "hyperclovax": MODELS["hyperclovax"],
    "exaone": MODELS["exaone"],
    "granitemoeshared": MODELS["granite moe shared"],
    "cwm": MODELS["cwm with biases, layers that are listed"],
    "dots1": MODELS["dots1, biases, groups, windows in upper layers"],
}
CHOICES: dict[str, list[Any]] = {
    "architectures": [["Gemma3nForCausalLM"], ["LlamaForCausalLM"], ["MistralForCausalLM"]],
    "model_type": ["gemma", "llama", "mistral"],
    "layer_types": [["full_attention"] * 3, ["sliding_attention", "full_attention", "sliding_attention"], ["chunked"]],
    "rope_theta": [500.0],
    "rope_scaling": [{"type": "linear", "factor": 2.0}],
    "rope_parameters": [{"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}, {"rope_theta": 500.0}],
    "original_max_position_embeddings": [24],
    "num_local_experts": [3],
    "mlp_only_layers": [[1], 1],
    "time_step_min": [0.3],
    "mlp_layer_types": [["sparse"] * 3, ["dense", "sparse", "sparse"], ["sparse", "other", "sparse"], 7],
    "moe_layer_end_index": [0, 1],
    "sliding_window_pattern": [1, 2, 3, 6, "LG", "LLG", "GL", "G" * 5],
}
# Fields without effect in these folders, where another one decides.
IDLE = {
    "": {
        "tie_word_embeddings",  # the output is stored, and differs: both are used, as transformers does
        "rope_parameters",  # a value that says what is the default
        "original_max_position_embeddings",  # of a scaling
        "quantization_config",  # no tensor is packed; see below
        "model_type",
        "architectures",
    },
    "solar_open": {"intermediate_size", "layer_types"},
    "iquestcoder": {"layer_types"},
    "mellum": {"intermediate_size"},
    "mistral": {"layer_types"},  # those that it has anyway
    "qwen2": {"head_dim"},
    "qwen3_moe": {"intermediate_size", "layer_types", "num_local_experts", "max_window_layers"},
    "mixtral": {"layer_types"},
    "llama": {"layer_types"},
    "qwen2_moe": {"intermediate_size", "layer_types", "num_local_experts"},
    "glm4_moe": {"num_nextn_predict_layers"},  # of layers that are not there
    "hy_v3": {"num_nextn_predict_layers", "num_local_experts"},
    "step3p5": {"num_nextn_predict_layers", "moe_layers_enum"},  # layers are listed
    # Layers are listed, norms are RMS norms, and theta is among the RoPE parameters.
    "cohere2_moe": {"first_k_dense_replace", "sliding_window_pattern", "layer_norm_eps", "rope_theta"},
    **{key: {"num_nextn_predict_layers"} for key in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa")},
    # The model has no inputs of layers and shares no keys; its layers' RoPE is listed.
    "gemma4_text": {"use_double_wide_mlp", "vocab_size_per_layer_input", "rope_theta"},
    "llama4_text": {"interleave_moe_layer_step", "no_rope_layer_interval"},  # the layers are listed
    "kimi_linear": {"first_k_dense_replace"},  # layers are listed
    # Layers are listed, states have sizes by other names too, theta is among the RoPE parameters, and none drafts.
    "bailing_hybrid": {"first_k_dense_replace", "layer_group_size", "head_dim", "short_conv_kernel_size"}
    | {"num_nextn_predict_layers", "rope_theta"},
    "lfm2": {"full_attn_idxs"},  # they are listed here too
    "nemotron_h": {"rope_theta", "rope_scaling"},  # no layer is rotated
    "falcon_h1": {"mamba_expand"},  # the size is said
    "falcon": {"multi_query"},  # newer ones say how many heads of keys there are
}


# Fields by which published files say what their weights were trained with, and transformers does something else.
UNLIKE = {"minimax": ("rotary_dim",)}


def write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not ABSENT}))


def as_transformers(folder: Path, reference: Any) -> torch.Tensor | None:
    """Logits of what AutoModel makes of a folder's config with the reference's weights; None where it fails."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(reference.state_dict())
        model.train(False)
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([IDS])).logits[0].float()
    except Exception:  # whatever it does not take
        return None
    return logits


@pytest.mark.parametrize("name", some(FOLDERS, "llama", "mixtral", "gemma3_text", "gpt_oss", "glm4_moe", "smollm3"))
def test_every_field_of_a_config_is_used_neutral_or_refused(name: str, tmp_path: Path) -> None:
    kind, changes = FOLDERS[name]
    reference = saved(kind, tmp_path, **changes)
    (tmp_path / "generation_config.json").unlink()  # its ids would win
    file = tmp_path / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    if name.startswith(("qwen", "exaone", "dots1", "afmoe")):
        config.pop("layer_types", None)  # or else the fields that they come from would not be looked at
        write(file, config)
    if name == "smollm3":
        config.pop("no_rope_layers")  # or else no_rope_layer_interval would not be looked at
        config.pop("layer_types")
        write(file, config)
    if name == "deepseek_v4":  # as published files have it
        config = {key: value for key, value in config.items() if key not in ("layer_types", "mlp_layer_types")}
        config |= {"rope_parameters": changes["rope_parameters"], "compress_ratios": [0, 4, 128, 4, 128, 0]}
        config["num_hash_layers"] = 2
        write(file, config)
    if name in (
        "deepseek_v32",
        "glm_moe_dsa",
        "exaone_moe",
    ):  # or else the numbers that the lists come from would not be looked at
        config = {key: value for key, value in config.items() if key not in ("mlp_layer_types", "indexer_types")}
        write(file, config)
    before = served(tmp_path)
    assert isinstance(before, Served), before
    table = CONFIG[name]
    idle = IDLE[""] | IDLE.get(name, set())
    compared = 0
    for key in [*dict.fromkeys([*config, *table]), TOMORROW]:
        rule = table.get(key)
        if rule is NEUTRAL:
            continue  # all at once, below
        current, field = config.get(key), Field(key, rule, before)
        for value in [*CHOICES.get(key, others(current)), *((None, ABSENT) if key in config else ())]:
            if value == current:
                continue
            write(file, config | {key: value})
            after = served(tmp_path)
            if value not in (None, ABSENT):
                field.check(value, after)
            if isinstance(after, Served) and key not in ("tie_word_embeddings", *UNLIKE.get(name, ())):
                theirs = as_transformers(tmp_path, reference)
                if theirs is not None:
                    compared += 1
                    ours = after.logits
                    message = f"{key} = {value!r}"
                    torch.testing.assert_close(ours, theirs[: len(ours)], atol=1e-4, rtol=0, msg=message)
        field.end(idle)
    assert compared > 8
    neutral = {key: PLAUSIBLE.get(key, 3) for key, rule in table.items() if rule is NEUTRAL}
    write(file, config | {key: 3 if value is ABSENT else value for key, value in neutral.items()})
    after = served(tmp_path)
    assert isinstance(after, Served) and after.same(before)
    write(file, config | neutral)
    theirs = as_transformers(tmp_path, reference)
    assert theirs is not None
    torch.testing.assert_close(after.logits, theirs, atol=1e-4, rtol=0)


# Values that transformers takes of fields that compute nothing; without any where it wants an object of its own.
PLAUSIBLE: dict[str, Any] = {
    "assistant_ensemble_weight": 0.5,
    "cache_implementation": "dynamic",
    "compile_config": ABSENT,
    "watermarking_config": ABSENT,
    "use_return_dict": ABSENT,
    "block_size": 8,  # by which tables of the weights are made
    "initializer_range": 0.5,
    "altup_coef_clip": 50.0,
    "embedding_initializer_range": 0.5,
    "input_jitter_noise": 0.5,
    "residual_dropout": 0.5,
    "hidden_dropout": 0.5,
    "resid_pdrop": 0.5,
    "embd_pdrop": 0.5,
    "attn_pdrop": 0.5,
    "embedding_dropout": 0.5,
    "attention_dropout": 0.5,
    "dropout": 0.5,
    "activation_dropout": 0.5,
    "layerdrop": 0.0,
    "init_std": 0.5,
    "resid_dropout": 0.5,
    "embed_dropout": 0.5,
    **{f"linear_{name}": 0.5 for name in ("a_log_min", "dt_min", "dt_init_floor")},
    **dict.fromkeys(("linear_a_log_max", "linear_dt_max"), 0.75),
    "summary_activation": "tanh",
    "summary_type": "last",
    "summary_use_proj": False,
    "summary_proj_to_labels": False,
    "summary_first_dropout": 0.5,
    "reorder_and_upcast_attn": False,
    "attention_softmax_in_fp32": False,
    "scale_attention_softmax_in_fp32": False,
    "is_llama_config": True,
    "is_decoder": True,
    "z_loss_coefficient": 0.5,
    "transformers.js_config": {"dtype": "q4"},
    "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
    "router_jitter_noise": 0.5,
    "enable_moe_fp32_combine": False,
    "dtype": "float16",
    "torch_dtype": "float16",
    "auto_map": {},
    "id2label": {"0": "a"},
    "label2id": {"a": 0},
    "num_labels": 1,
    "problem_type": "regression",
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": True,
    "use_cache": False,
    "transformers_version": "4.0.0",
    "attn_implementation": "eager",
    "_attn_implementation": "eager",
    "experts_implementation": "eager",
    "time_step_limit": [0.5, 0.6],
    "time_step_max": 0.5,
    "time_step_floor": 0.5,
    "mamba_proj_bias": True,
    "mamba_ssm_cache_dtype": "bfloat16",
    "use_mamba_kernels": False,
    "residual_in_fp32": True,
    "rescale_prenorm_residual": False,
    "mtp_layers_block_type": ["moe"],
    "num_mtp_layers": 1,
    "num_nextn_predict_layers": 1,
    "mtp_layer_types": ["full_attention"],
    "mtp_mlp_layer_types": ["sparse"],
    "mtp_hybrid_override_pattern": "*E",
    "moe_shared_expert_overlap": False,
    "norm_topk_prob": False,
    **dict.fromkeys(("rope_scaling", "rope_parameters"), ABSENT),
}


def published(kind: str, **more: Any) -> dict[str, Any]:
    """Fields that configs of published models have, with their sizes left small."""
    common = {"architectures": [f"{kind}ForCausalLM"], "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu"}
    common |= {"attention_dropout": 0.0, "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    common |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    common |= {"num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 4096, "use_cache": True}
    return common | {"torch_dtype": "bfloat16", "transformers_version": "4.51.0"} | more


QWEN = {"max_window_layers": 28, "sliding_window": 4096, "use_sliding_window": False, "rope_theta": 1e6}
EXLLAMA = {"use_exllama": True, "exllama_config": {"version": 1}, "max_input_length": None, "use_cuda_fp16": False}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 2": published("Llama", model_type="llama", _name_or_path="x", pretraining_tp=1, rope_scaling=None),
    "Vicuna": published("Llama", model_type="llama", max_sequence_length=2048, pad_token_id=0),
    "Llama 3.2": published(
        "Llama",
        model_type="llama",
        attention_bias=False,
        mlp_bias=False,
        head_dim=16,
        pretraining_tp=1,
        rope_theta=500000.0,
        rope_scaling={
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    ),
    "SmolLM2": published(
        "Llama",
        model_type="llama",
        attention_bias=False,
        is_llama_config=True,
        rope_interleaved=False,
        rope_scaling=None,
        rope_theta=100000,
        **{"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}},
    ),
    "Mistral": published("Mistral", model_type="mistral", sliding_window=4096, rope_theta=10000.0),
    "Mixtral": published(
        "Mixtral",
        model_type="mixtral",
        num_experts_per_tok=2,
        num_local_experts=8,
        output_router_logits=False,
        router_aux_loss_coef=0.02,
        router_jitter_noise=0.0,
        sliding_window=None,
    ),
    "Qwen2.5": published("Qwen2", model_type="qwen2", **QWEN, use_mrope=False),
    "Qwen3": published("Qwen3", model_type="qwen3", **QWEN, attention_bias=False, head_dim=16, rope_scaling=None),
    "Qwen3-MoE": published(
        "Qwen3Moe",
        model_type="qwen3_moe",
        **QWEN,
        attention_bias=False,
        head_dim=16,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=32,
        norm_topk_prob=True,
        num_experts=8,
        num_experts_per_tok=2,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
    ),
    "GPTQ": published(
        "Llama",
        quantization_config={
            **{"bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": False, "sym": True, "dataset": None},
            **{"quant_method": "gptq", "true_sequential": True, "model_seqlen": 4096, "batch_size": 1},
            **{"block_name_to_quantize": "model.layers", "cache_block_outputs": True, "tokenizer": None},
            **{"module_name_preceding_first_block": ["model.embed_tokens"], "pad_token_id": None},
            **{"modules_in_block_to_quantize": None, **EXLLAMA},
        },
    ),
    "GPTQModel": published(
        "Qwen2",
        **QWEN,
        quantization_config={
            **{"bits": 4, "group_size": 128, "checkpoint_format": "gptq", "desc_act": False, "dynamic": None},
            **{"lm_head": False, "meta": {"quantizer": ["gptqmodel:1.0"]}, "pack_dtype": "int32", "sym": True},
            **{"quant_method": "gptq"},
        },
    ),
    "AWQ": published(
        "Qwen2",
        **QWEN,
        quantization_config={
            **{"bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq"},
            **{"version": "gemm", "zero_point": True},
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_as_they_are_published_are_known(name: str, tmp_path: Path) -> None:
    config = Fields(tmp_path / "config.json", PUBLISHED[name])
    assert read_config(config, architecture_of(config), tied=False).hidden_size == 64
    scheme_of(config)


JUNK = [[["x"]], [{}], {"a": [1]}, "x", "", -1, 0, 10**30, 0.5, 1e300, float("nan"), float("inf"), True, None]


@pytest.mark.parametrize("name", [*FOLDERS, "meta"])
def test_junk_in_any_field_is_refused_or_harmless_but_never_another_error(name: str, tmp_path: Path) -> None:
    if name == "meta":
        save_meta(random_llama(intermediate_size=160), tmp_path)
    else:
        kind, changes = FOLDERS[name]
        saved(kind, tmp_path, **changes)
    file = tmp_path / ("params.json" if name == "meta" else "config.json")
    config: dict[str, Any] = json.loads(file.read_text())
    table = META_FIELDS if name == "meta" else CONFIG[name]
    refused, place = 0, [*FOLDERS, "meta"].index(name)
    first = CONFIG[next(iter(FOLDERS))] if place else {}
    for key in [key for key, rule in table.items() if rule is USED]:
        # A field that the first kind has too gets a third of the junk here, and of the others' the rest.
        for value in JUNK[place % 3 :: 3] if key in first else JUNK:
            write(file, config | {key: value})
            try:
                open_checkpoint(tmp_path)
            except CheckpointError:
                refused += 1
    assert refused > 50


# proportional is Gemma 4's alone, whose folder is among `FOLDERS`.
@pytest.mark.parametrize("kind", [kind for kind in ROPE if kind != "proportional"])
def test_every_parameter_of_rope_is_used_or_refused(kind: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": 100.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 500,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 2.5, 4.0, 5.0, 6.0, 8.0],
    }
    rope = {key: value for key, value in values.items() if key in ROPE[kind]}
    reference = saved("Llama", tmp_path, rope_parameters=dict(rope))
    file = tmp_path / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    for spelling in ("rope_parameters", "rope_scaling"):
        config |= {"rope_parameters": ABSENT, "rope_scaling": ABSENT, spelling: rope}
        write(file, config)
        before = served(tmp_path)
        assert isinstance(before, Served), before
        every = {key for table in ROPE.values() for key in table} | {TOMORROW, "alpha", "mrope_section", "attn_factor"}
        for key in sorted(every):
            field = Field(key, ROPE[kind].get(key), before)
            alternatives = [1.5, 3, False, "other"] if key not in rope else others(rope[key])
            if key in ("rope_type", "type"):
                alternatives = [*(set(ROPE) - {kind}), "longrope"]
            for value in alternatives:
                write(file, config | {spelling: rope | {key: value}})
                after = served(tmp_path)
                field.check(value, after)
                if "dynamic" in (kind, value):
                    continue  # which is another rule here, on purpose
                theirs = None if isinstance(after, str) else as_transformers(tmp_path, reference)
                if theirs is not None and isinstance(after, Served):
                    torch.testing.assert_close(after.logits, theirs, atol=1e-4, rtol=0, msg=f"{key} = {value!r}")
            field.end({"mscale", "mscale_all_dim"})  # one of the two alone is nothing to transformers either


def test_every_field_of_a_generation_config_is_used_neutral_or_refused(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    config = {"bos_token_id": 1, "eos_token_id": [2], "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.1}
    config |= {"repetition_penalty": 1.1, "do_sample": True}
    write(file, config)
    before = served(tmp_path)
    assert isinstance(before, Served), before
    known = {key for key in transformers.GenerationConfig().to_dict() if not key.startswith("_")}
    assert known <= GENERATION.keys(), "transformers has fields that are in no table"
    for key in [*GENERATION, TOMORROW]:
        field = Field(key, GENERATION.get(key), before)
        for value in others(config.get(key)):
            write(file, config | {key: value})
            field.check(value, served(tmp_path))
        field.end()


@pytest.mark.parametrize("name", some(["gptq", "gptq v2", "awq"], "gptq", "awq"))
def test_every_field_of_a_quantization_config_is_used_neutral_or_refused(name: str, tmp_path: Path) -> None:
    settings = FORMATS[name]
    save_packed(tmp_path, settings)
    file = tmp_path / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    before = served(tmp_path)
    assert isinstance(before, Served), before
    table = QUANTIZATION[settings["quant_method"]]
    for key in [*table, TOMORROW]:
        if key == "desc_act":
            continue  # g_idx says whether the order is the plain one
        field = Field(key, table.get(key), before)
        choices = {"quant_method": ["bitsandbytes", "awq", "gptq"], "checkpoint_format": ["gptq", "gptq_v2", "marlin"]}
        for value in choices.get(key, others(settings.get(key))):
            if value != settings.get(key, "gptq"):
                write(file, config | {"quantization_config": settings | {key: value}})
                field.check(value, served(tmp_path))
        field.end()


# --- GGUF --------------------------------------------------------------------------------------------------------


def plain_of(path: Path, architecture: str) -> dict[str, Any]:
    """The keys that a test's file has, as far as a value of another size can be written for them."""
    import gguf

    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items() if key.startswith(f"{architecture}.")}


@pytest.mark.parametrize(
    "name",
    some(
        [
            *("llama", "mixtral", "qwen2", "qwen3", "qwen3_moe", "granite", "olmo2", "starcoder2", "deepseek_v3"),
            *("glm", "ernie4_5_moe", "gemma", "cohere", "stablelm", "granitemoeshared", "solar_open"),
        ],
        "llama",
        "qwen3_moe",
        "granite",
    ),
)
def test_every_key_of_a_gguf_file_is_used_neutral_or_refused(name: str, tmp_path: Path) -> None:
    kind, changes = FOLDERS[name]
    changes = {key: value for key, value in changes.items() if "window" not in key}
    if name == "qwen3_moe":
        changes["norm_topk_prob"] = True
    if name == "deepseek_v3":
        changes["attention_bias"] = False
    reference = saved(kind, tmp_path / "hf", **changes)
    architecture = GGUF_ARCHITECTURES[name]
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 500, "attn_factor": 1.5}
    scaling |= {"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0}
    if name == "deepseek_v3":
        del scaling["attn_factor"]
    metadata: dict[str, Any] = {f"{architecture}.rope.scaling.{key}": value for key, value in scaling.items()}
    metadata[f"{architecture}.rope.freq_base"] = 100.0
    path = save_gguf(reference, tmp_path / "model.gguf", metadata=metadata)
    before = served(path)
    assert isinstance(before, Served), before
    own = plain_of(path, architecture)
    table = known_keys(architecture)
    # what a tensor's shape says as well, and what only layers without experts have
    idle = {f"{architecture}.{key}" for key in ("feed_forward_length", "expert_feed_forward_length")}
    idle |= {f"{architecture}.attention.sliding_window_pattern"}  # and only windows
    for key in [*table, f"{architecture}.{TOMORROW}", f"another.{TOMORROW}"]:
        if key in ("general.architecture", "general.alignment"):
            continue  # how the file is read
        field = Field(key, table.get(key), before)
        for value in others(own.get(key)) if key in own else [True, 3, 0.5, "other"]:
            field.check(value, served(save_gguf(reference, path, metadata=metadata | {key: value})))
        field.end(idle)


# --- Meta --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["meta", "scaled", "mistral"])
def test_every_field_of_params_json_is_used_neutral_or_refused(style: str, tmp_path: Path) -> None:
    params: dict[str, dict[str, Any]] = {
        "meta": {"multiple_of": 20},
        "scaled": {"multiple_of": 20, "use_scaled_rope": True, "rope_scaling_factor": 16.0, "rope_theta": 1637.0},
        "mistral": {"multiple_of": None, "hidden_dim": 160, "head_dim": 12, "sliding_window": 7},
    }
    save_meta(random_llama(intermediate_size=160), tmp_path, **params[style])
    file = tmp_path / "params.json"
    config: dict[str, Any] = json.loads(file.read_text())
    before = served(tmp_path)
    assert isinstance(before, Served), before
    for key in [*META_FIELDS, TOMORROW]:
        field = Field(key, META_FIELDS.get(key), before)
        for value in others(config.get(key)):
            write(file, config | {key: value})
            field.check(value, served(tmp_path))
        field.end()
