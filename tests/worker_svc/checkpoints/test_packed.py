"""GPTQ and AWQ folders, packed here number by number as the formats define it, against the model of their numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.model.cpu import layer as native_layer
from tandem.worker.model.cpu import native
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.transformer import Transformer
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, randomized, some_ids

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
NONE: Mapping[str, dict[str, Any]] = {}


def packed_word(numbers: list[int]) -> int:
    word = sum(number << 32 // len(numbers) * place for place, number in enumerate(numbers))
    return word - (1 << 32) if word >= 1 << 31 else word


def pack_columns(matrix: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """`[n, m]` to `[n, m / 8]`: eight neighbours of a row in one word, `order[i]` being the i-th from below."""
    rows, each = matrix.tolist(), len(order)
    words = [[packed_word([row[start + i] for i in order]) for start in range(0, len(row), each)] for row in rows]
    return torch.tensor(words, dtype=torch.int32)


def gptq(
    q: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, group: torch.Tensor, settings: dict[str, Any]
) -> dict[str, Any]:
    """q `[out, in]`; zero and scale `[out, groups]`; group `[in]`, which one an input belongs to."""
    straight = tuple(range(32 // settings["bits"]))
    as_they_are = "gptq_v2", "auto_round", "auto_round:gptqmodel"
    stored_less = (
        0 if {settings.get("checkpoint_format"), settings.get("packing_format")}.intersection(as_they_are) else 1
    )
    return {
        "qweight": pack_columns(q, straight).t().contiguous(),
        "qzeros": pack_columns(zero.t() - stored_less, straight),
        "scales": scale.t().contiguous(),
        "g_idx": group.int(),
        "bias": torch.zeros(len(q), dtype=torch.float16),
    }


def awq(q: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
    return {
        "qweight": pack_columns(q.t(), AWQ_COLUMNS),
        "qzeros": pack_columns(zero.t(), AWQ_COLUMNS),
        "scales": scale.t().contiguous(),
    }


PACKINGS = "auto_round:auto_gptq", "auto_round", "auto_round:gptqmodel", "auto_round:auto_awq"
AUTO_ROUND: dict[str, Any] = {  # as auto-round 0.16 writes it
    **{"quant_method": "auto-round", "bits": 4, "data_type": "int", "group_size": 32, "sym": False},
    **{"autoround_version": "0.16.1", "block_name_to_quantize": "model.layers", "iters": 0, "lr": 0.005},
    **{"supported_types": ["Linear"], "enable_quanted_input": False},
}
FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "gptq asymmetric": {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False},
    "gptq v2": {
        **{"quant_method": "gptq", "bits": 4, "group_size": 32},
        **dict.fromkeys(("checkpoint_format", "format"), "gptq_v2"),
    },
    "gptq in the order of activations": {
        **{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True},
    },
    "gptq of 8 bits": {"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": True, "sym": True},
    "gptq of 8 bits, asymmetric": {"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": False},
    "gptq of 2 bits": {"quant_method": "gptq", "bits": 2, "group_size": 32, "sym": True},
    "gptq of 2 bits, asymmetric": {"quant_method": "gptq", "bits": 2, "group_size": 64, "sym": False},
    "gptq channels": {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True},
    "awq of GPTQModel, symmetric": {
        **{"quant_method": "awq", "method": "awq", "bits": 4, "group_size": 64, "zero_point": False, "sym": True},
        **dict.fromkeys(("version", "format", "checkpoint_format"), "gemm"),
        **{"desc_act": False, "lm_head": False, "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:5.4"]}},
    },
    **{f"auto-round {packing}": {**AUTO_ROUND, "packing_format": packing} for packing in PACKINGS},
    "gptq of AutoRound": {
        **{
            "quant_method": "gptq",
            "autoround_version": "0.16.1",
            "provider": "auto-round",
            "bits": 4,
            "group_size": 64,
        },
        **{"damp_percent": 0.01, "data_type": "int", "desc_act": False, "enable_quanted_input": False, "sym": True},
        **{"lm_head": False, "true_sequential": False, "iters": 1000, "nsamples": 512},
    },
    "awq of AutoRound": {
        **{"quant_method": "awq", "autoround_version": "0.16.1", "provider": "auto-round", "bits": 4, "group_size": 64},
        **{"data_type": "int", "modules_to_not_convert": ["lm_head"], "sym": False, "version": "gemm"},
        **{"to_quant_block_names": "model.layers", "zero_point": True},
    },
    "auto-round, older": {
        **{key: AUTO_ROUND[key] for key in ("quant_method", "bits", "group_size")},
        **{"backend": "auto_round:gptq:exllamav2", "sym": False, "act_bits": 16, "quant_block_list": None},
    },
}


def packed(
    weight: torch.Tensor, settings: dict[str, Any], generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The parts of a matrix `[out, in]` in that format, and its numbers."""
    most = 1 << settings["bits"] - 1
    size = settings["group_size"] if settings["group_size"] > 0 else weight.shape[1]
    columns = torch.arange(weight.shape[1])
    if settings.get("desc_act"):
        columns = torch.randperm(weight.shape[1], generator=generator)
    parts = weight[:, columns].view(len(weight), -1, size)
    scale = (parts.abs().amax(-1) / (most - 1)).half()
    zero = torch.full(scale.shape, most)
    if not settings.get("sym"):
        zero = torch.randint(1, 2 * most, scale.shape, generator=generator)
    q = ((parts / scale.float().unsqueeze(-1)).round() + zero.unsqueeze(-1)).clamp(0, 2 * most - 1).int()
    back, group = columns.argsort(), torch.arange(len(columns)) // size
    stored = ((q - zero.unsqueeze(-1)) * scale.float().unsqueeze(-1)).view(weight.shape)
    q = q.view(weight.shape)[:, back]
    is_awq = "awq" in settings.get("packing_format", settings["quant_method"])
    made = awq(q, zero, scale) if is_awq else gptq(q, zero, scale, group[back], settings)
    return made, stored[:, back]


def save_packed(
    folder: Path, settings: dict[str, Any], model: Any = None, others: Mapping[str, dict[str, Any]] = NONE
) -> Any:
    """A random model in that format, matrices with these parts of names by other settings; returns the model of the
    numbers that it stores."""
    reference = model or random_llama(
        hidden_size=64, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2
    )
    reference.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if "_proj.weight" in name]:
        other = next((each for part, each in others.items() if part in name), {})
        made, stored = packed(tensors.pop(name), settings | other, generator)
        reference.get_parameter(name).data.copy_(stored)
        tensors |= {name.removesuffix("weight") + part: tensor for part, tensor in made.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, quantization_config=settings)
    return reference


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def check_logits(folder: Path, reference: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """Compares logits with the reference's: of weights made plain, of the native operations, and of stored integers.
    Returns the last model; the native operations stay off."""
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    plain = load_transformer(open_checkpoint(folder), "cpu", torch.float32, quantization=None)
    torch.testing.assert_close(logits_in_chunks(plain, ids, [30]), expected, atol=1e-4, rtol=0)
    near = logits_in_chunks(load_transformer(open_checkpoint(folder), "cpu", torch.float32), ids, [30])
    assert (near - expected).norm() < 0.05 * expected.norm()
    # Without rounded activations, the stored integers give the same logits.
    monkeypatch.setattr(native, "available", lambda: False)
    kept = load_transformer(open_checkpoint(folder), "cpu", torch.float32)
    torch.testing.assert_close(logits_in_chunks(kept, ids, [30]), expected, atol=1e-4, rtol=0)
    return kept


@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_model_is_that_of_its_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = save_packed(tmp_path, FORMATS[name])
    kept = check_logits(tmp_path, reference, monkeypatch)
    weights = sum(isinstance(module, QuantizedWeight) for module in kept.modules())
    # 8 bits with zeros are made plain; q, k and v, each in an order of its own, lie apart.
    assert weights == (0 if "asymmetric" in name and " 8 " in name else 14 if FORMATS[name].get("desc_act") else 8)


def test_layers_of_columns_in_another_order_are_one_call_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_packed(tmp_path, FORMATS["gptq in the order of activations"])
    model = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32)
    ids = some_ids(97, 30)
    assert all(layer.compiled is not None and not layer.compiled.ends_early for layer in model.layers)  # type: ignore[operator,union-attr]
    together = logits_in_chunks(model, ids, [20, 9, 1])
    monkeypatch.setattr(native_layer, "MOST_ROWS", 0)
    assert torch.equal(logits_in_chunks(model, ids, [20, 9, 1]), together)


@pytest.mark.parametrize("name", ["gptq", "awq"])
@pytest.mark.parametrize("kind", ["Phi3", "Glm4"])
def test_packed_rows_are_parts_of_fused_matrices_and_put_in_order(kind: str, name: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "attention_bias": False}
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes, **heads, rope_parameters=rope, head_dim=16)
    model = randomized(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    reference = save_packed(tmp_path, FORMATS[name], model)
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    plain = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32, quantization=None)
    torch.testing.assert_close(logits_in_chunks(plain, ids, [30]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["gptq", "gptq of 8 bits", "awq"])
def test_the_stored_bytes_are_those_that_come(name: str, tmp_path: Path) -> None:
    save_packed(tmp_path, FORMATS[name])
    checkpoint = open_checkpoint(tmp_path)
    assert sum(tensor.nbytes for _, tensor in checkpoint.tensors()) == checkpoint.total_bytes


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"quant_method": "quanto"}, "quantization_config.quant_method 'quanto' is not served"),
        ({"bits": 3}, "quantization_config.bits is 3; served are 2, 4, 8"),
        ({"group_size": 48}, "quantization_config.group_size is 48"),
        ({"checkpoint_format": "marlin"}, "quantization_config.checkpoint_format 'marlin' is not served"),
        ({"format": "gptq_v2", "checkpoint_format": "gptq"}, "format is 'gptq_v2', but checkpoint_format is 'gptq'"),
        ({"dynamic": {"+:.*up_proj": {"bits": 3}}}, r"dynamic.\+:.\*up_proj.bits is 3; served are 2, 4, 8"),
        ({"dynamic": {"+:.*up_proj": {"group_size": 0}}}, r"dynamic.\+:.\*up_proj.group_size is 0; served are -1, 32"),
        ({"dynamic": {"+:.*up_proj": {"desc_act": True}}}, r"dynamic.\+:.\*up_proj.desc_act \(true\) is not known"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:fp8"}, "packing_format 'auto_round:fp8' is not"),
        ({"quant_method": "auto-round", "data_type": "mx_fp"}, 'data_type is "mx_fp", which is not served'),
        ({"quant_method": "auto-round", "act_bits": 8}, "act_bits is 8, which is not served"),
        ({"quant_method": "auto-round", "extra_config": {"lm_head": {"super_bits": 6}}}, "lm_head.super_bits is 6"),
        ({"group_size": 64}, "has the shape"),
    ],
)
def test_what_is_not_served_is_refused_by_name(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    save_packed(tmp_path, FORMATS["gptq"])
    change_config(tmp_path, quantization_config=FORMATS["gptq"] | change)
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(tmp_path)


VARIED: dict[str, tuple[dict[str, Any], str, dict[str, dict[str, Any]]]] = {
    "gptq": (
        FORMATS["gptq"],
        "dynamic",
        {
            r"+:.*\.down_proj": {"bits": 8, "group_size": 64},
            r"+:.*\.up_proj": {"bits": 2},
            r"+:.*\.o_proj": {"group_size": -1},
        },
    ),
    "auto-round": (
        AUTO_ROUND | {"packing_format": "auto_round:auto_gptq", "sym": True},
        "extra_config",
        {
            "model.layers.1.mlp.down_proj": {"bits": 8, "act_bits": 16, "data_type": "int", "super_bits": None},
            r".*layers\.0\.mlp.*": {"bits": 2, "group_size": 64, "sym": False},
            "model.layers.1.self_attn.q_proj": {"group_size": 64},
        },
    ),
    "auto-round as AWQ": (
        AUTO_ROUND | {"packing_format": "auto_round:auto_awq"},
        "extra_config",
        {"model.layers.1.mlp.down_proj": {"group_size": 64}, "lm_head": {"bits": 16, "data_type": "fp"}},
    ),
}
PARTS = {r"+:.*\.down_proj": "down_proj", r"+:.*\.up_proj": "up_proj", r"+:.*\.o_proj": "o_proj"}
PARTS |= {r".*layers\.0\.mlp.*": "layers.0.mlp"}


@pytest.mark.parametrize("kind", VARIED)
def test_matrices_may_have_bits_and_groups_of_their_own(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, field, said = VARIED[kind]
    others = {PARTS.get(pattern, pattern): other for pattern, other in said.items()}
    reference = save_packed(tmp_path, settings, others=others)
    with pytest.raises(CheckpointError, match="has the shape"):  # what nobody said is an error of the file
        open_checkpoint(tmp_path)
    change_config(tmp_path, quantization_config=settings | {field: said})
    check_logits(tmp_path, reference, monkeypatch)


def test_matrices_that_patterns_leave_out_are_plain(tmp_path: Path) -> None:
    reference = save_packed(tmp_path, FORMATS["gptq"])
    tensors = {
        name: each for name, each in load_file(tmp_path / "model.safetensors").items() if "self_attn" not in name
    }
    plain = {name: each.data for name, each in reference.named_parameters() if "self_attn" in name}
    save_file(tensors | plain, tmp_path / "model.safetensors", {"format": "pt"})
    # as of Qwen3.5-27B-GPTQ-Int4
    dynamic = {"lm_head": {}, "model.language_model.embed_tokens": {}, "-:.*attn.*": {}, "-:.*mtp.*": {"bits": 8}}
    change_config(tmp_path, quantization_config=FORMATS["gptq"] | {"dynamic": dynamic})
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    model = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32, quantization=None)
    torch.testing.assert_close(logits_in_chunks(model, ids, [30]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("g_idx", "q_proj.weight g_idx does not give every group 32 inputs"),
        ("bias", "q_proj.bias is not part of the model, and not zero"),
    ],
)
def test_groups_of_other_sizes_and_a_bias_that_counts_are_refused(part: str, problem: str, tmp_path: Path) -> None:
    save_packed(tmp_path, FORMATS["gptq"])
    tensors = load_file(tmp_path / "model.safetensors")
    name = f"model.layers.1.self_attn.q_proj.{part}"
    tensors[name] = tensors[name].clamp_min(1) if part == "g_idx" else tensors[name] + 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=problem):
        for _ in open_checkpoint(tmp_path).tensors():
            pass


def test_an_order_of_activations_that_the_file_does_not_say_is_refused(tmp_path: Path) -> None:
    save_packed(tmp_path, FORMATS["gptq"])
    tensors = {
        name: tensor for name, tensor in load_file(tmp_path / "model.safetensors").items() if "g_idx" not in name
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    open_checkpoint(tmp_path)  # then it is the plain one
    change_config(tmp_path, quantization_config=FORMATS["gptq"] | {"desc_act": True})
    with pytest.raises(CheckpointError, match="g_idx is missing"):
        open_checkpoint(tmp_path)
