"""Hybrids of attention and layers with states as they are published: configs, names and shapes of tensors, and what is
refused. Those with a gated delta rule: `test_hybrids.py`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.model_parts.recurrences import Mamba
from tandem.worker.checkpoints.places import places_with_latents
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.published_states import PUBLISHED
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_lists import GRANTED
from tests.worker_svc.model.tiny_models import MODELS


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_parameters_states_and_names_that_its_model_has(name: str) -> None:
    values, billions, state, some_tensors = PUBLISHED[name]
    fields = Fields(Path("config.json"), values)
    architecture = architecture_of(fields)
    config = read_config(fields, architecture, fields.boolean("tie_word_embeddings", architecture.tied))
    shapes = config.tensor_shapes()
    parameters = sum(math.prod(shape) for shape in shapes.values())
    assert parameters / 1e9 == pytest.approx(billions, rel=0.01)
    sizes = config.recurrence
    assert sizes is not None
    assert len(sizes.layers) * (math.prod(sizes.state) + (sizes.kernel - 1) * sizes.channels) == state
    _, stored = places_with_latents(config, shapes, architecture.stored_name)
    assert some_tensors.items() <= stored.items()
    assert sum(math.prod(shape) for shape in stored.values()) == parameters


REFUSED: dict[str, list[tuple[str, object]]] = {
    "lfm2": [
        ("layer_types", ["conv"] * 4),
        ("layer_types", ["conv", "mamba"] * 2),
        ("layer_types", ["conv"] * 3),
        ("conv_L_cache", 0),
        ("conv_L_cache", 65),
        ("block_multiple_of", 0),
        ("block_ffn_dim_multiplier", -1.0),
        ("block_use_swiglu", False),
        ("tie_embedding", False),
        ("a_field_of_tomorrow", 1),
    ],
    "ling 3": [
        ("layer_types", ["linear_attention"] * 4),
        ("layer_types", ["linear_attention", "sliding_attention"] * 2),
        ("linear_head_dim", 0),
        ("linear_num_heads", 0),
        ("linear_conv_kernel_dim", 65),
        ("kda_lower_bound", 0.5),
        ("kda_lower_bound", 0),
        ("kda_safe_gate", 1),
        ("layer_group_size", 0),
        ("num_key_value_heads", 2),
        ("num_nextn_predict_layers", -1),
        ("n_group", 7),
        ("architectures", ["BailingMoeV2_5ForCausalLM"]),
        ("a_field_of_tomorrow", 1),
    ],
    "lfm2 moe": [("num_dense_layers", -1), ("num_experts", 0), ("layer_types", None), ("routed_scaling_factor", 0)],
    "granite hybrid": [
        ("layer_types", ["mamba"] * 4),
        ("layer_types", ["mamba", "attention", "moe", "mamba"]),
        ("layer_types", None),
        ("mamba_n_heads", 5),
        ("mamba_d_head", 17),
        ("mamba_n_groups", 4),
        ("mamba_d_state", 0),
        ("mamba_d_conv", 0),
        ("time_step_limit", [0.5, 0.1]),
        ("time_step_limit", [0.5]),
        ("time_step_limit", "none"),
        ("shared_intermediate_size", 0),
        ("num_local_experts", -1),
        ("a_field_of_tomorrow", 1),
    ],
    "nemotron h": [
        ("layers_block_type", ["linear_attention", "sliding_attention", "full_attention"]),
        ("layers_block_type", ["mlp"] * 2),
        ("layers_block_type", []),
        ("num_hidden_layers", 7),
        ("mamba_num_heads", 7),
        ("mlp_hidden_act", "silu"),
        ("time_step_min", -1.0),
    ],
    "nemotron 3, latents, groups": [
        ("layers_block_type", ["linear_attention", "moe"]),
        ("n_routed_experts", 0),
        ("n_routed_experts", 7),
        ("num_experts_per_tok", 5),
        ("moe_intermediate_size", 0),
        ("moe_shared_expert_intermediate_size", 0),
        ("moe_shared_expert_intermediate_size", 1 << 30),
        ("moe_latent_size", 0),
        ("moe_latent_size", "all"),
        ("n_group", 4),
        ("topk_group", 4),
        ("norm_topk_prob", 1),
        ("routed_scaling_factor", 0.0),
    ],
    "falcon h1": [
        ("mlp_multipliers", [1.0]),
        ("ssm_multipliers", [1.0, 1.0, 1.0, 1.0, 0.0]),
        ("ssm_multipliers", [1.0, 1.0, 1.0, 1.0, "x"]),
        ("key_multiplier", 0.0),
        ("ssm_out_multiplier", -1.0),
        ("mamba_proj_bias", True),
        ("mamba_d_ssm", 47),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_by_its_field(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    saved(kind, tmp_path, **changes)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    open_checkpoint(tmp_path)
    for key, value in REFUSED[name]:
        file.write_text(json.dumps(config | {key: value}))
        named = {"mamba_num_heads": "n_groups", "mamba_d_ssm": "mamba_n_heads"}
        named |= {"n_routed_experts": "n_routed_experts|n_group"}
        with pytest.raises(CheckpointError, match=named.get(key, key)):
            open_checkpoint(tmp_path)


REFUSED_IN_FILES: list[tuple[str, str, object]] = [
    ("lfm2", "lfm2.shortconv.l_cache", 0),
    ("lfm2", "lfm2.attention.head_count_kv", [0, 2, 1, 0]),
    ("lfm2", "lfm2.attention.head_count_kv", [0, 2, 0]),
    ("granite hybrid", "granitehybrid.ssm.inner_size", 95),
    ("granite hybrid", "granitehybrid.ssm.group_count", 4),
    ("granite hybrid", "granitehybrid.ssm.dt_b_c_rms", True),
    ("nemotron h", "nemotron_h.feed_forward_length", [0, 80, 80, 0, 80]),
    ("nemotron 3", "nemotron_h_moe.feed_forward_length", [28, 28, 0, 0, 28]),
    ("nemotron 3", "nemotron_h_moe.expert_gating_func", 1),
    ("nemotron 3, latents, groups", "nemotron_h_moe.expert_group_count", 4),
    ("nemotron 3, latents, groups", "nemotron_h_moe.attention.head_count_kv", [0, 2, 2, 0, 0]),
    ("falcon h1", "falcon-h1.ssm.state_size", 0),
]


@pytest.mark.parametrize(("name", "key", "value"), REFUSED_IN_FILES)
def test_what_cannot_be_is_refused_by_its_key(name: str, key: str, value: object, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes | GRANTED.get(kind, {}))
    open_checkpoint(save_gguf(theirs, tmp_path / "model.gguf"))
    with pytest.raises(CheckpointError, match=re.escape(key)):
        open_checkpoint(save_gguf(theirs, tmp_path / "other.gguf", metadata={key: value}))


@pytest.mark.parametrize("name", ["nemotron 3", "nemotron 3, latents, groups"])
@pytest.mark.parametrize("length", [0, None], ids=["0", "absent"])
def test_experts_without_a_dense_layer_need_no_feed_forward_length(
    name: str, length: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes | GRANTED.get(kind, {}))
    whole = open_checkpoint(save_gguf(theirs, tmp_path / "model.gguf"))
    if length is None:
        monkeypatch.setattr(gguf.GGUFWriter, "add_feed_forward_length", lambda *_: None)
    said = {} if length is None else {"nemotron_h_moe.feed_forward_length": length}
    without = open_checkpoint(save_gguf(theirs, tmp_path / "other.gguf", metadata=said))
    folder = open_checkpoint(tmp_path)
    assert without.config == whole.config
    sizes = folder.config.recurrence
    assert isinstance(sizes, Mamba)
    assert without.config == replace(folder.config, recurrence=replace(sizes, least_dt=0.0))
    for (one, stored), (other, wanted) in zip(without.tensors(), folder.tensors(), strict=True):
        assert one == other
        assert isinstance(stored, torch.Tensor) and isinstance(wanted, torch.Tensor)
        torch.testing.assert_close(stored, wanted, atol=1e-6, rtol=1e-6)  # decays are made of their logarithms
