"""GGUF files: what is read from them, and what is refused."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS, QuantizedTensor
from tandem.worker.checkpoints.gguf_config import rope_divisors
from tandem.worker.checkpoints.gguf_further import Facts
from tandem.worker.checkpoints.gguf_latents import glm_dsa
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.checkpoints.model_parts.indexer import Indexer
from tandem.worker.checkpoints.model_parts.latents import Latents
from tandem.worker.checkpoints.model_parts.rope import RopeScaling
from tandem.worker.model.cpu import native
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.rope import RotaryTable
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.gguf_tensors import named_tensors
from tests.worker_svc.checkpoints.test_model_config import GOOD
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.shared import SCALINGS

LENGTH = 30


def assert_serves(
    path: Path,
    reference: Any,
    tolerance: float = 1e-4,
    quantization: Literal["stored"] | None = "stored",
    share: float | None = None,
) -> None:
    """The file's logits are the model's; `share`: but for one of their size, where products round to 8 bits."""
    ids = some_ids(97, LENGTH)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0].float()
    assert expected.std() > 0.3
    model = load_transformer(open_checkpoint(path), "cpu", torch.float32, quantization=quantization)
    ours = logits_in_chunks(model, ids, [LENGTH])
    if share is None:
        torch.testing.assert_close(ours, expected, atol=tolerance, rtol=0)
    else:
        assert (ours - expected).norm() < share * expected.norm()


@pytest.mark.parametrize(
    "name",
    ["llama with biases", "mistral without a window", "qwen2", "qwen3", "mixtral", "qwen3 moe, normalized"],
)
def test_logits_of_every_architecture_equal_transformers(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS.get(name, ("Qwen3Moe", MODELS["qwen3 moe"][1] | {"norm_topk_prob": True}))
    reference = saved(kind, tmp_path / "hf", **changes)
    path = save_gguf(reference, tmp_path / "model.gguf")
    assert_serves(path, reference)
    theirs, ours = open_checkpoint(tmp_path / "hf").config, open_checkpoint(path).config
    assert ours.tensor_shapes() == theirs.tensor_shapes()
    assert (ours.norm_eps, ours.rope_theta, ours.experts) == (theirs.norm_eps, theirs.rope_theta, theirs.experts)


@pytest.mark.parametrize("kind", [*BLOCK_KINDS, "F16", "BF16"])
def test_a_file_of_every_kind_gives_the_logits_of_its_dequantized_weights(kind: str, tmp_path: Path) -> None:
    reference = random_llama(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        initializer_range=0.06,
    )
    path = save_gguf(reference, tmp_path / "model.gguf", kind)
    checkpoint = open_checkpoint(path)
    stored = {name: tensor for name, tensor in checkpoint.tensors() if name.endswith(".k")}
    for tensor in stored.values():
        assert isinstance(tensor, QuantizedTensor) == (kind in BLOCK_KINDS)
    assert sum(tensor.nbytes for _, tensor in checkpoint.tensors()) == checkpoint.total_bytes < path.stat().st_size
    assert_serves(path, reference, quantization=None)


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q1_0"])
def test_kinds_that_are_groups_stay_as_they_are(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are the same to the bit, and so are products that round no activations."""
    monkeypatch.setattr(native, "available", lambda: False)
    reference = random_llama(
        hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=4, initializer_range=0.06
    )
    path = save_gguf(reference, tmp_path / "model.gguf", kind)
    stored = load_transformer(open_checkpoint(path), "cpu", torch.float32)
    whole = load_transformer(open_checkpoint(path), "cpu", torch.float32, quantization=None)
    kept = [module for module in stored.modules() if isinstance(module, QuantizedWeight)]
    code = {"Q4_0": "int4", "Q1_0": "int4", "IQ4_NL": "iq4", "IQ4_XS": "iq4", "MXFP4": "e2m1"}.get(kind, "")
    bits, group = 8 if kind in ("Q8_0", "Q5_0") else 4, 128 if kind == "Q1_0" else 32
    assert {weight.kind for weight in kept} == {Quantization(bits, group, code)}
    (down,), (plain,) = stored.layers[0].feed_forward.down.weights, whole.layers[0].feed_forward.down.weights
    everything = torch.arange(256)
    assert torch.equal(down.rows(everything), plain(torch.eye(512)).t())
    assert_serves(path, reference)


FINE = {
    "Q5_1": Quantization(8, 32),
    "Q2_K": Quantization(4, 16),
    "Q3_K": Quantization(4, 16, "int4"),
    "Q5_K": Quantization(8, 32),
    "Q6_K": Quantization(6, 16),
    "NVFP4": Quantization(4, 16, "e2m1"),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "without"])
@pytest.mark.parametrize("kind", FINE)
def test_kinds_that_compiled_products_alone_know_stay_as_they_are_there(
    kind: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    if not compiled:
        monkeypatch.setattr(native, "available", lambda: False)
    reference = random_llama(
        hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=4, initializer_range=0.06
    )
    path = save_gguf(reference, tmp_path / "model.gguf", kind)
    stored = load_transformer(open_checkpoint(path), "cpu", torch.float32)
    kept = {module.kind for module in stored.modules() if isinstance(module, QuantizedWeight)}
    assert kept == ({FINE[kind]} if compiled else set())
    if compiled:
        whole = load_transformer(open_checkpoint(path), "cpu", torch.float32, quantization=None)
        (down,), (plain,) = stored.layers[0].feed_forward.down.weights, whole.layers[0].feed_forward.down.weights
        assert torch.equal(down.rows(torch.arange(256)), plain(torch.eye(512)).t())
    assert_serves(path, reference, tolerance=1e-3, share=0.05 if compiled and FINE[kind].bits < 8 else None)


def test_a_layer_whose_matrices_are_stored_in_two_ways_is_one_call(tmp_path: Path) -> None:
    """As in a Q4_K_M file, where values and down have more bits than the rest."""
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    reference = random_llama(
        hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=4, initializer_range=0.06
    )
    others = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "ffn_up": "Q5_K", "output.weight": "Q6_K"}
    path = save_gguf(reference, tmp_path / "model.gguf", "Q4_K", others=others)
    model = load_transformer(open_checkpoint(path), "cpu", torch.float32)
    assert [len(model.layers[0].qkv.weights), len(model.layers[0].feed_forward.gate_up.weights)] == [2, 2]
    assert model.layers[0].compiled is not None and not model.layers[0].compiled.ends_early
    ids = some_ids(97, LENGTH)
    together, apart = logits_in_chunks(model, ids, [LENGTH]), logits_in_chunks(model, ids, [1] * LENGTH)
    model.layers[0].compiled = None
    model.__dict__.pop("_compiled", None)
    assert torch.equal(together, apart)
    assert torch.equal(together, logits_in_chunks(model, ids, [LENGTH]))
    assert_serves(path, reference, share=0.05)


@pytest.mark.parametrize("name", ["linear", "yarn"])
def test_rope_scalings_of_the_metadata(name: str, tmp_path: Path) -> None:
    reference = saved("Llama", tmp_path / "hf", rope_parameters={"rope_theta": 100.0} | SCALINGS[name])
    path = save_gguf(reference, tmp_path / "model.gguf")
    assert open_checkpoint(path).config.rope_scaling == open_checkpoint(tmp_path / "hf").config.rope_scaling
    assert_serves(path, reference)


def test_divisors_of_frequencies_are_applied_and_those_of_llama_3_recognised(tmp_path: Path) -> None:
    published = RopeScaling("llama3", 32.0)
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    reference = saved("Llama", tmp_path / "hf", rope_parameters=rope)
    divisors = np.array(rope_divisors(12, 500000.0, published), dtype=np.float32)
    path = save_gguf(reference, tmp_path / "model.gguf", extra={"rope_freqs.weight": divisors})
    assert open_checkpoint(path).config.rope_scaling == published
    assert_serves(path, reference)

    rope |= {"original_max_position_embeddings": 48, "rope_theta": 100.0, "factor": 8.0}
    reference = saved("Llama", tmp_path / "hf", rope_parameters=rope)
    own = RopeScaling("llama3", 8.0, original_context_length=48)
    divisors = np.array(rope_divisors(12, 100.0, own), dtype=np.float32)
    path = save_gguf(reference, tmp_path / "other.gguf", extra={"rope_freqs.weight": divisors})
    scaling = open_checkpoint(path).config.rope_scaling
    assert scaling is not None and (scaling.kind, scaling.factor, len(scaling.factors)) == ("linear", 1.0, 6)
    assert_serves(path, reference)


def llama_cpp_angles(
    head_dim: int, theta: float, divisors: list[float], scaling: dict[str, Any], trained: int, position: int
) -> tuple[list[float], float]:
    """The angle of each pair at a position, and what cosines and sines are multiplied by, as ggml's `rope_yarn` and
    llama.cpp's context work them out from a file's keys."""
    kind, factor = scaling.get("type", "linear"), scaling.get("factor", 1.0)
    freq_scale = 1.0 if kind == "none" else 1.0 / factor
    original = scaling.get("original_context_length", trained)

    def pair(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(0, math.floor(pair(32.0))), min(head_dim - 1, math.ceil(pair(1.0)))
    size = scaling.get("attn_factor", 1.0) * (1.0 + 0.1 * math.log(factor) if kind == "yarn" else 1.0)
    angles = []
    for number, divisor in enumerate(divisors):
        extrapolated = position * theta ** (-2 * number / head_dim) / divisor
        interpolated = freq_scale * extrapolated
        mix = 0.0
        if kind == "yarn":
            mix = 1 - min(1.0, max(0.0, (number - low) / max(0.001, high - low)))
        angles.append(interpolated * (1 - mix) + extrapolated * mix)
    return angles, size


ROPE_KEYS: dict[str, dict[str, Any]] = {
    "linear": {"type": "linear", "factor": 4.0},
    "a factor alone": {"factor": 4.0},
    "none": {"type": "none", "factor": 4.0},
    "yarn": {"type": "yarn", "factor": 4.0, "original_context_length": 24},
    "yarn of the trained length": {"type": "yarn", "factor": 4.0, "attn_factor": 1.25},
    "an attention factor alone": {"attn_factor": 1.25},
}


@pytest.mark.parametrize("divided", [True, False], ids=["with divisors", "without"])
@pytest.mark.parametrize("name", ROPE_KEYS)
def test_divisors_and_scaling_by_keys_are_both_applied_as_in_llama_cpp(
    name: str, divided: bool, tmp_path: Path
) -> None:
    divisors = [1.0, 1.5, 2.0, 4.0, 7.0, 8.0] if divided else [1.0] * 6
    metadata = {f"llama.rope.scaling.{key}": value for key, value in ROPE_KEYS[name].items()}
    metadata["llama.rope.freq_base"] = 100.0
    extra = {"rope_freqs.weight": np.array(divisors, dtype=np.float32)} if divided else {}
    path = save_gguf(random_llama(), tmp_path / "model.gguf", metadata=metadata, extra=extra)
    table = RotaryTable(open_checkpoint(path).config, "cpu").table
    for position in (0, 1, 17, 63):
        angles, size = llama_cpp_angles(12, 100.0, divisors, ROPE_KEYS[name], 64, position)
        expected = [math.cos(angle) * size for angle in angles] + [math.sin(angle) * size for angle in angles]
        torch.testing.assert_close(table[position], torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_sampling_defaults_are_what_the_file_recommends(tmp_path: Path) -> None:
    advice = {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.1}
    metadata = {f"general.sampling.{key}": value for key, value in advice.items()}
    path = save_gguf(random_llama(), tmp_path / "model.gguf", metadata=metadata)
    expected = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    assert open_checkpoint(path).sampling_defaults == expected


def test_divisors_that_llama_cpp_does_not_know_of_an_architecture_are_refused(tmp_path: Path) -> None:
    reference = saved("Qwen3", tmp_path / "hf")
    path = save_gguf(reference, tmp_path / "model.gguf", extra={"rope_freqs.weight": np.ones(6, dtype=np.float32)})
    assert "rope_freqs.weight is there, which llama.cpp does not know of qwen3" in refusal(path)


@pytest.mark.parametrize("name", ["llama with biases", "qwen3", "olmo2", "cohere"])
def test_queries_keys_and_values_may_be_one_tensor_as_newer_converters_write_them(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    reference = saved(kind, tmp_path / "hf", **changes)
    whole = {name: tensor.numpy() for name, tensor in named_tensors(reference)}
    parts = ("attn_q.", "attn_k.", "attn_v.")
    fused = {
        whose.replace("attn_q.", "attn_qkv."): np.concatenate([whole[whose.replace(parts[0], part)] for part in parts])
        for whose in whole
        if parts[0] in whose
    }
    path = save_gguf(reference, tmp_path / "model.gguf", extra=fused, without=parts)
    assert_serves(path, reference)


def test_a_vector_may_be_a_matrix_of_one_row_as_newer_converters_write_it(tmp_path: Path) -> None:
    kind, changes = MODELS["qwen2 moe"]
    reference = saved(kind, tmp_path / "hf", **changes)
    rows = {name: tensor.view(1, -1).numpy() for name, tensor in named_tensors(reference) if "_inp_shexp" in name}
    assert_serves(save_gguf(reference, tmp_path / "model.gguf", extra=rows, without=("_inp_shexp",)), reference)


def test_a_theta_of_layers_with_a_window_is_read_of_olmo_3(tmp_path: Path) -> None:
    kind, changes = MODELS["olmo3, scaled where there is no window"]
    reference = saved(kind, tmp_path / "hf", **changes)
    assert reference.config.rope_parameters["sliding_attention"]["rope_theta"] == 300
    path = save_gguf(reference, tmp_path / "model.gguf", metadata={"olmo2.rope.freq_base_swa": 300.0})
    assert_serves(path, reference)


def test_a_tensor_that_is_not_known_of_an_architecture_is_named(tmp_path: Path) -> None:
    kind, changes = MODELS["olmo"]
    extra = {"blk.0.attn_output.bias": np.ones(48, dtype=np.float32)}
    path = save_gguf(saved(kind, tmp_path / "hf", **changes), tmp_path / "model.gguf", extra=extra)
    assert "attention.output_bias, which is not known of olmo" in refusal(path)


def test_special_ids_come_from_keys_and_from_the_texts_of_tokens(tmp_path: Path) -> None:
    tokens = [f"t{index}" for index in range(97)]
    tokens[7] = "<|eot_id|>"
    ids = {"tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eom_token_id": 2**32 - 1}
    path = save_gguf(random_llama(), tmp_path / "model.gguf", metadata=ids | {"tokenizer.ggml.tokens": tokens})
    checkpoint = open_checkpoint(path)
    assert (checkpoint.bos_id, checkpoint.eos_ids) == (3, (5, 7))


def test_a_folder_with_one_file_and_a_tied_model(tmp_path: Path) -> None:
    reference = random_llama(tie_word_embeddings=True)
    save_gguf(reference, tmp_path / "model.gguf")
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.format, checkpoint.config.tie_embeddings) == ("gguf", True)
    assert_serves(tmp_path, reference)


def test_releasing_a_tensor_leaves_it_readable(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_gguf(random_llama(), tmp_path / "model.gguf"))
    for name, tensor in checkpoint.tensors():
        assert isinstance(tensor, torch.Tensor)
        before = tensor.clone()
        checkpoint.release(tensor)
        assert torch.equal(tensor, before), name


LIES: list[tuple[dict[str, Any], str]] = [
    ({"llama.block_count": 2}, "blk.2."),
    ({"llama.block_count": 0}, "block_count"),
    ({"llama.attention.head_count": 10}, "attn_q.weight"),
    ({"llama.attention.head_count_kv": 2}, "attention.head_count_kv"),
    ({"llama.attention.head_count": "five"}, "attention.head_count must be a whole number"),
    ({"llama.embedding_length": 61}, "blk.0.attn_norm.weight"),
    ({"llama.embedding_length": 0}, "embedding_length"),
    ({"llama.feed_forward_length": 99}, "ffn_gate.weight has the shape [100, 60], but the config makes it [99, 60]"),
    (
        {"llama.attention.key_length": 11, "llama.attention.value_length": 11, "llama.rope.dimension_count": 11},
        "attention.key_length",
    ),
    ({"llama.attention.value_length": 10}, "attention.value_length"),
    ({"llama.rope.dimension_count": 6}, "rope.dimension_count"),
    ({"llama.rope.freq_base": float("nan")}, "rope.freq_base"),
    ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}, "longrope"),
    ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": -1.0}, "rope.scaling.factor"),
    ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "attention.layer_norm_rms_epsilon"),
    ({"llama.attention.sliding_window": 16}, "attention.sliding_window"),
    ({"llama.expert_count": 4, "llama.expert_used_count": 2}, "ffn_gate_inp"),
    ({"llama.expert_count": 4, "llama.expert_used_count": 5}, "expert_used_count"),
    ({"llama.attention.head_count": ["five"]}, "attention.head_count"),
    ({"llama.attention.head_count": [5, 5, 4]}, "attention.head_count"),
    ({"general.architecture": ["llama"]}, "general.architecture"),
    ({"llama.vocab_size": 98}, "vocab_size is 98, but the embedding has 97 rows"),
    ({"llama.rope.scaling.factor": 2.0, "llama.rope.scale_linear": 4.0}, "rope.scale_linear"),
    ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "rope.scaling.yarn_log_multiplier"),
    ({"llama.expert_used_count": 2}, "expert_used_count is 2, but there is no expert_count"),
    ({"llama.expert_shared_count": 1}, "expert_shared_count"),
    ({"llama.expert_gating_func": 2}, "expert_gating_func is 2, which is not served; served: 1"),
    ({"llama.a_key_of_tomorrow": 1.0}, "llama.a_key_of_tomorrow (1.0) is not known"),
    ({"qwen2.rope.freq_base": 100.0}, "qwen2.rope.freq_base"),
    ({"clip.has_text_encoder": True}, "clip.has_text_encoder"),
    ({"general.type": "adapter"}, "general.type"),
    ({"general.sampling.mirostat": 2}, "general.sampling.mirostat"),
    ({"split.count": 3}, "one of 3 parts, which must be called NAME-00001-of-00003.gguf"),
]


@pytest.mark.parametrize(("changes", "named"), LIES, ids=[named for _, named in LIES])
def test_metadata_that_lie_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    assert named in refusal(save_gguf(random_llama(), tmp_path / "model.gguf", metadata=changes))


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model as the gguf package cuts it."""
    save_gguf(random_llama(), tmp_path / "model.gguf", split_max_tensors=9)
    return sorted(tmp_path.glob("*.gguf"))


def test_a_model_in_parts_is_the_model(parts: list[Path], tmp_path: Path) -> None:
    assert len(parts) > 2
    assert_serves(tmp_path, random_llama())
    checkpoint = open_checkpoint(parts[1])
    assert checkpoint.path == parts[0]
    for _, tensor in checkpoint.tensors():
        checkpoint.release(tensor)  # nothing but mapped files is given back
    assert_serves(parts[2], random_llama())


def test_a_part_that_is_missing_or_another_is_named(parts: list[Path]) -> None:
    content = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(CheckpointError, match=f"{parts[1].name}: does not say that it is part 2 of {len(parts)}"):
        open_checkpoint(parts[0])
    parts[1].write_bytes(content[:-200])
    with pytest.raises(CheckpointError, match=f"{parts[1].name}: is truncated"):
        open_checkpoint(parts[0])
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=f"{parts[1].name}: is missing, of {len(parts)} parts"):
        open_checkpoint(parts[0])


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_unknown_architectures_and_kinds_are_refused_by_name(tmp_path: Path) -> None:
    path = save_gguf(random_llama(), tmp_path / "model.gguf")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0rwkv6", 1))
    assert "general.architecture 'rwkv6' is not served" in refusal(path)
    name = b"blk.1.attn_q.weight"
    place = content.index(name) + len(name) + 4 + 16
    for number, called in ((9, "9 (Q8_1)"), (99, "99, which is not known")):
        path.write_bytes(content[:place] + struct.pack("<I", number) + content[place + 4 :])
        assert f"tensor blk.1.attn_q.weight has the ggml type {called}; served are" in refusal(path)
    path.write_bytes(content[:place] + struct.pack("<I", 8) + content[place + 4 :])  # Q8_0, of rows of 60
    assert "rows of 60 numbers, but Q8_0 stores 32 at once" in refusal(path)
    vector = b"blk.1.attn_norm.weight"
    place = content.index(vector) + len(vector) + 4 + 8
    path.write_bytes(content[:place] + struct.pack("<I", 8) + content[place + 4 :])
    assert "tensor blk.1.attn_norm.weight is a vector of Q8_0" in refusal(path)


def test_tensors_that_share_bytes_are_refused_by_name(tmp_path: Path) -> None:
    path = save_gguf(random_llama(), tmp_path / "model.gguf")
    content = path.read_bytes()

    def offset_of(name: bytes) -> int:
        return content.index(name) + len(name) + 4 + 16 + 4

    k, v = offset_of(b"blk.1.attn_k.weight"), offset_of(b"blk.1.attn_v.weight")
    path.write_bytes(content[:v] + content[k : k + 8] + content[v + 8 :])
    assert "tensors blk.1.attn_k.weight and blk.1.attn_v.weight overlap" in refusal(path)


@pytest.mark.parametrize("length", [0, 3, 20, 200, 2000, -200])
def test_a_truncated_file_is_refused(length: int, tmp_path: Path) -> None:
    path = save_gguf(random_llama(), tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:length])
    refusal(path)


@pytest.mark.parametrize(("context", "choosing"), [(80, (0, 1, 2, 3, 4, 5, 6, 7)), (1 << 20, (0, 1, 2, 6))])
def test_which_layers_choose_where_a_file_does_not_say_it_is_what_llama_cpp_takes(
    context: int, choosing: tuple[int, ...]
) -> None:
    path = Path("model.gguf")
    sizes = Latents(rank=24, rotated=8, unrotated=12, value=10, query_rank=16)
    config = replace(GOOD, num_kv_heads=1, head_dim=sizes.size, rotary_dim=sizes.rotated)
    config = replace(config, num_layers=8, context_length=context)
    said = {"kv_lora_rank": 24, "q_lora_rank": 16, "key_length_mla": 20, "value_length_mla": 10}
    said |= {"indexer.head_count": 3, "indexer.key_length": 16, "indexer.top_k": 7}
    values: dict[str, Any] = {f"attention.{key}": value for key, value in said.items()} | {"rope.dimension_count": 8}
    fields, facts = Fields(path, values, "glm-dsa."), Facts((), {})
    assert glm_dsa(fields, config, facts)["indexer"] == Indexer(3, 16, 7, choosing)
    listed = Fields(path, values | {"attention.indexer.types": [1, 0, 0, 1, 0, 0, 0, 0]}, "glm-dsa.")
    assert glm_dsa(listed, config, facts)["indexer"].layers == (0, 3)
    with pytest.raises(CheckpointError, match=r"attention\.indexer\.types must be true or false for each of 8 layers"):
        glm_dsa(Fields(path, values | {"attention.indexer.types": [1, 0]}, "glm-dsa."), config, facts)
