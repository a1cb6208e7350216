"""`config.json` of published models, sizes and all, becomes a model of as many parameters as its name says."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from tandem.worker.checkpoints import CheckpointError
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_wrapped import text_fields
from tandem.worker.checkpoints.places import places_with_latents
from tandem.worker.checkpoints.schemes import scheme_of
from tests.worker_svc.checkpoints.published import PUBLISHED
from tests.worker_svc.checkpoints.published_states import PUBLISHED as WITH_STATES
from tests.worker_svc.checkpoints.published_wrappers import PUBLISHED_WRAPPERS

CONFIGS = {name: values for name, (values, _) in PUBLISHED.items()}
CONFIGS |= {name: values for name, (values, *_) in WITH_STATES.items()}
ALL_CONFIGS = CONFIGS | {name: values for name, (values, _) in PUBLISHED_WRAPPERS.items()}
# By these names, or, of the first GLM-4.1V, where its fields stand.
UNKNOWN_TO_TRANSFORMERS = {
    *("Kimi-K2-Instruct", "MiniMax-Text-01", "Phi-4-multimodal-instruct", "InternVL3_5-8B"),
    *("Nemotron-3-Nano-Omni-30B-A3B-Reasoning", "GLM-4.1V-9B-Thinking, as first published", "MiMo-7B-RL"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_parameters_that_its_model_is_said_to_have(name: str) -> None:
    values, billions = PUBLISHED[name]
    fields = text_fields(Fields(Path("config.json"), values))
    architecture = architecture_of(fields)
    config = read_config(fields, architecture, fields.boolean("tie_word_embeddings", architecture.tied))
    parameters = sum(math.prod(shape) for shape in config.tensor_shapes().values())
    assert parameters / 1e9 == pytest.approx(billions, rel=0.02)
    _, stored = places_with_latents(config, config.tensor_shapes(), architecture.stored_name)
    assert sum(math.prod(shape) for shape in stored.values()) == parameters
    assert (scheme_of(fields) is None) == ("quantization_config" not in values)


@pytest.mark.parametrize("name", [name for name in ALL_CONFIGS if name not in UNKNOWN_TO_TRANSFORMERS])
def test_a_config_that_transformers_writes_again_says_the_same(name: str, tmp_path: Path) -> None:
    values = {key: value for key, value in ALL_CONFIGS[name].items() if key != "auto_map"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    transformers.AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    published, again = (text_fields(Fields.read(folder / "config.json")) for folder in (tmp_path, tmp_path / "again"))
    expected = read_config(published, architecture_of(published), tied=False)
    assert read_config(again, architecture_of(again), tied=False) == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_a_number_of_layers_that_no_model_has_is_refused_before_something_is_made_for_each(name: str) -> None:
    fields = text_fields(Fields(Path("config.json"), CONFIGS[name]))
    architecture = architecture_of(fields)
    for number in (0, -1, 10**9):
        for listed in (fields.values, {key: value for key, value in fields.values.items() if "layer" not in key}):
            counts = dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer") & fields.values.keys(), number)
            with pytest.raises(CheckpointError):
                read_config(fields.with_values({**listed, **counts}), architecture, tied=False)


def test_layers_that_share_what_is_chosen_are_those_that_are_listed_drawn_or_come_again() -> None:
    published = PUBLISHED["GLM-5.2"][0]
    listed = {0, 1, 2, *range(6, 78, 4)}  # as its file says beside the numbers that they come from
    kinds = ["full" if layer in listed else "shared" for layer in range(78)]
    ways = {"indexer_types": kinds}, {"index_topk_pattern": "".join(kind[0].upper() for kind in kinds)}, {}
    for way in ways:
        fields = Fields(Path("config.json"), published | way)
        indexer_of = read_config(fields, architecture_of(fields), tied=False).indexer
        assert indexer_of is not None
        assert set(indexer_of.layers) == listed
    for field, value in (
        ("indexer_types", kinds[1:]),
        ("indexer_types", ["shared", *kinds[1:]]),
        ("index_topk_pattern", "X" * 78),
        ("layer_types", ["full_attention"] * 78),
        ("indexer_rope_interleave", False),
        ("q_lora_rank", None),
        ("index_head_dim", 32),
    ):
        fields = Fields(Path("config.json"), published | {field: value})
        with pytest.raises(CheckpointError, match=field):
            read_config(fields, architecture_of(fields), tied=False)


def test_what_layers_of_deepseek_v4_attend_to_is_listed_or_counted() -> None:
    published = PUBLISHED["DeepSeek-V4-Flash"][0]
    kinds = ["sliding_attention"] * 2 + ["compressed_sparse_attention", "heavily_compressed_attention"] * 21
    rope = {
        "rope_type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "partial_rotary_factor": 0.125,
    }
    newer = {
        **{"layer_types": kinds[:43], "compress_ratios": None, "rope_scaling": None, "compress_rope_theta": None},
        **{"mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40, "num_hash_layers": None, "partial_rotary_factor": 0.125},
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.125},
            "compress": rope | {"rope_theta": 160000, "attention_factor": 1.0, "beta_fast": 32, "beta_slow": 1},
        },
    }

    def read(changes: dict[str, Any]) -> Any:
        fields = Fields(Path("config.json"), published | changes)
        return read_config(fields, architecture_of(fields), tied=False)

    assert read(newer) == read({})
    config = read({})
    assert config.experts.listed_layers == (0, 1, 2)
    assert (config.rope_theta, config.window_rope_theta, config.rotated) == (160000, 10000, 64)
    assert [config.compression.every(layer) for layer in (0, 1, 2, 3, 42)] == [0, 0, 4, 128, 4]
    for field, value in (
        ("compress_ratios", [0] * 42),
        ("compress_ratios", [2] * 44),
        ("layer_types", ["full_attention"] * 43),
        ("mlp_layer_types", ["dense"] * 43),
        ("num_hash_layers", -1),
        ("compress_rates", {"compressed_sparse_attention": 0}),
        ("compress_rates", {"sliding_attention": 4}),
        ("sliding_window", 0),
        ("index_head_dim", 32),
        ("index_topk", 0),
        ("o_groups", 7),
        ("hc_mult", 0),
        ("hc_eps", -1.0),
        ("num_key_value_heads", 2),
        ("n_shared_experts", 2),
        ("norm_topk_prob", False),
        ("scoring_func", "sigmoid"),
        ("swiglu_limit", 0.0),
        ("expert_dtype", "nf4"),
        ("qk_rope_head_dim", 63),
        ("partial_rotary_factor", 0.25),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"main": {"rope_theta": 10000.0}}),
        ("rope_parameters", {**newer["rope_parameters"], "factor": 2.0}),
        ("rope_parameters", {**newer["rope_parameters"], "main": {"rope_theta": 1e4, "rope_type": "linear"}}),
    ):
        with pytest.raises(CheckpointError, match=field):
            read({"rope_scaling": None} | {field: value} if field == "rope_parameters" else {field: value})


def test_layers_of_exaone4_with_windows_are_those_that_are_listed_counted_or_spelled() -> None:
    published = PUBLISHED["EXAONE-4.0-32B"][0]
    ways: tuple[dict[str, Any], ...] = ({}, {"sliding_window_pattern": 4}, {"sliding_window_pattern": None})
    for way in ways:
        fields = Fields(Path("config.json"), published | {"layer_types": None} | way)
        config = read_config(fields, architecture_of(fields), tied=False)
        assert config.windows == (4096, 4096, 4096, 0) * 16
        assert config.unrotated_layers == tuple(range(3, 64, 4))
    for pattern in ("GLLL", "LLL", "LXLG", "", 0.5, [4]):
        fields = Fields(Path("config.json"), published | {"layer_types": None, "sliding_window_pattern": pattern})
        with pytest.raises(CheckpointError, match="sliding_window_pattern"):
            read_config(fields, architecture_of(fields), tied=False)


def test_the_page_has_the_table_that_the_code_gives(repository: Path) -> None:
    made = subprocess.run(
        [sys.executable, repository / "docs/architectures.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stdout) == (0, "")


def test_the_page_names_the_architectures_that_are_served(repository: Path) -> None:
    page = (repository / "docs/models.md").read_text()
    assert [each.class_name for each in ARCHITECTURES.values() if f"| `{each.class_name}`" not in page] == []


def test_an_internlm3_has_biases_everywhere_or_nowhere() -> None:
    published, _ = PUBLISHED["internlm3-8b"]
    for said in ({"qkv_bias": True, "bias": True}, {"qkv_bias": True, "mlp_bias": True, "bias": None}):
        fields = Fields(Path("config.json"), published | said)
        config = read_config(fields, architecture_of(fields), tied=False)
        assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, True, True)
    for key, said in (
        ("qkv_bias", {"qkv_bias": True}),
        ("mlp_bias", {"mlp_bias": True, "bias": None}),
        ("attention_bias", {"attention_bias": True, "mlp_bias": True}),
    ):
        fields = Fields(Path("config.json"), published | said)
        with pytest.raises(CheckpointError, match=f"{key} is true"):
            read_config(fields, architecture_of(fields), tied=False)
