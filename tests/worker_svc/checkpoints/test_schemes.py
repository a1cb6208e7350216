"""Folders of quantized matrices, packed and dequantized by the libraries that define the formats, against the model of
their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import pytest
import torch
import transformers
from compressed_tensors.compressors.mx_utils import compress_mx_scale, decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4, unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.checkpoint import Checkpoint
from tandem.worker.model.cpu import native
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import Linear
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.quantization import QuantizedWeight
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, randomized, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.experts import GPT_OSS

Parts = dict[str, torch.Tensor]
FLOAT8 = torch.float8_e4m3fn


def groups(weight: torch.Tensor, size: int) -> torch.Tensor:
    return weight.view(len(weight), -1, size)


def fp8_squares(weight: torch.Tensor, size: int = 128) -> tuple[Parts, torch.Tensor]:
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % size, 0, -rows % size))
    blocks = padded.view(padded.shape[0] // size, size, -1, size).transpose(1, 2)
    scale = blocks.abs().amax((2, 3)) / 448
    q = (blocks / scale[..., None, None]).transpose(1, 2).reshape(padded.shape)[:rows, :columns].to(FLOAT8)
    stored = q.float() * scale.repeat_interleave(size, 0)[:rows].repeat_interleave(size, 1)[:, :columns]
    if rows % size == columns % size == 0:
        assert torch.equal(stored, _dequantize_fp8_weight(q, scale, [size, size], torch.float32))
    return {"weight": q.contiguous(), "weight_scale_inv": scale}, stored


def fp8_rows(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    q = (weight / scale).to(FLOAT8)
    return {"weight": q, "weight_scale": scale}, q.float() * scale


def fp8_whole(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = (weight.abs().max() / 448).bfloat16()
    q = (weight / scale.float()).to(FLOAT8)
    activations = {"activation_scale": torch.tensor(0.1, dtype=torch.bfloat16)}
    return {"weight": q, "weight_scale_inv": scale, **activations}, q.float() * scale.float()


def int8_rows(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    q = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {"weight": q, "weight_scale": scale}, q.float() * scale.float()


def words(bits: int, size: int, *, zeros: bool = False) -> Callable[[torch.Tensor], tuple[Parts, torch.Tensor]]:
    """compressed-tensors' pack-quantized, by its own packing."""

    def make(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
        most = 1 << bits - 1
        parts = groups(weight, size)
        scale = (parts.abs().amax(-1) / (most - 1)).bfloat16()
        zero = torch.zeros(scale.shape, dtype=torch.int8)
        if zeros:
            zero = torch.randint(-3, 4, scale.shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))
        q = (parts / scale.float()[..., None]).round().add(zero[..., None]).clamp(-most, most - 1).to(torch.int8)
        stored = (q - zero[..., None]).float() * scale.float()[..., None]
        made = {
            "weight_packed": pack_to_int32(q.view(weight.shape), bits),
            "weight_scale": scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        if zeros:
            made["weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0).contiguous()
        return made, stored.view(weight.shape)

    return make


def e2m1(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """compressed-tensors' nvfp4-pack-quantized: scales of e4m3, to be divided by one number."""
    size, divisor = 16, 448 * 6 / weight.abs().max()
    scale = (groups(weight, size).abs().amax(-1) / 6 * divisor).clamp(min=2**-9).to(FLOAT8)
    packed = quantize_and_pack_fp4(weight, scale.float(), divisor, group_size=size)
    numbers = unpack_fp4_from_uint8(packed, *weight.shape, torch.float32)
    stored = groups(numbers, size) * (scale.float() / divisor)[..., None]
    parts = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": divisor.reshape(1)}
    return parts | {"input_global_scale": torch.tensor([3.0])}, stored.view(weight.shape)


def e2m1_in_powers(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """Its mxfp4-pack-quantized: scales that are powers of two."""
    size = 32
    scale = compress_mx_scale(groups(weight, size).abs().amax(-1) / 4, torch.uint8)
    by = decompress_mx_scale(scale).float()
    packed = quantize_and_pack_fp4(weight, by, group_size=size)
    stored = groups(unpack_fp4_from_uint8(packed, *weight.shape, torch.float32), size) * by[..., None]
    return {"weight_packed": packed, "weight_scale": scale}, stored.view(weight.shape)


def fp8_in_powers(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    """Its mxfp8-quantized."""
    scale = compress_mx_scale(groups(weight, 32).abs().amax(-1) / 256, torch.uint8)
    by = decompress_mx_scale(scale).float()[..., None]
    q = (groups(weight, 32) / by).to(FLOAT8)
    return {"weight": q.view(weight.shape), "weight_scale": scale}, (q.float() * by).view(weight.shape)


def of_model_optimizer(make: Callable[[torch.Tensor], tuple[Parts, torch.Tensor]]) -> Any:
    """The same numbers under the names of ModelOpt, which multiplies by what compressed-tensors divides by."""

    def renamed(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
        parts, stored = make(weight)
        if "weight_packed" in parts:
            parts["weight"] = parts.pop("weight_packed")
        if "weight_global_scale" in parts:
            parts["weight_scale_2"] = 1 / parts.pop("weight_global_scale").reshape(())
        parts.pop("input_global_scale", None)
        return parts | {"input_scale": torch.tensor(0.1)}, stored

    return renamed


def fp8_of_model_optimizer(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = weight.abs().max() / 448
    q = (weight / scale).to(FLOAT8)
    return {"weight": q, "weight_scale": scale, "input_scale": torch.tensor(0.1)}, q.float() * scale


def fp8_squares_of_model_optimizer(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    parts, stored = fp8_squares(weight)
    rows, columns = parts["weight_scale_inv"].shape
    return {"weight": parts["weight"], "weight_scale": parts["weight_scale_inv"].view(rows, 1, columns, 1)}, stored


def fp8_rows_of_model_optimizer(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    parts, stored = fp8_rows(weight)
    return parts | {"weight_scale": parts["weight_scale"].flatten()}, stored


def bytes_of_codes(kind: str, size: int, *, nested: bool) -> Callable[[torch.Tensor], tuple[Parts, torch.Tensor]]:
    def make(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
        q, state = bnb.quantize_4bit(weight, blocksize=size, quant_type=kind, compress_statistics=nested)
        parts = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
        return {"weight": q, **parts}, bnb.dequantize_4bit(q, state)

    return make


def int8_of_bitsandbytes(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    q, scale, _ = bnb.int8_vectorwise_quant(weight.half())
    parts = {"weight": q, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, bnb.int8_vectorwise_dequant(q, scale)


def model_optimizer(algorithm: str, bits: int, size: int | None = None) -> dict[str, Any]:
    """`quantization_config` as ModelOpt 0.47 writes it."""
    numbers = {"dynamic": False, "num_bits": bits, "type": "float"} | ({"group_size": size} if size else {})
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "config_groups": {"group_0": {"input_activations": numbers, "weights": numbers, "targets": ["Linear"]}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.47.0"},
    }


def compressed(kind: str, bits: int, **weights: Any) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": bits, "type": kind, "symmetric": True, "dynamic": False, "observer": "minmax"}
        | weights,
        "input_activations": {"num_bits": 8, "type": kind, "dynamic": True, "strategy": "token"},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
IN_FINE_GROUPS = {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
IN_POWERS = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
BITS4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "uint8"}
# How a matrix is stored, what the config says, and what it is multiplied as; nothing: it is made plain.
FORMATS: dict[str, tuple[Callable[[torch.Tensor], tuple[Parts, torch.Tensor]], dict[str, Any], str]] = {
    "fp8, squares": (fp8_squares, FP8, "fp8"),
    "fp8, whole": (fp8_whole, FP8 | {"weight_block_size": None, "activation_scheme": "static"}, "fp8"),
    "fbgemm fp8": (fp8_rows, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8"),
    "compressed fp8": (fp8_rows, compressed("float", 8, strategy="channel"), "fp8"),
    "w8a8": (int8_rows, compressed("int", 8, strategy="channel"), "int8"),
    "w4a16": (words(4, 64), compressed("int", 4, strategy="group", group_size=64), "int4"),
    "w4a16, zeros": (words(4, 32, zeros=True), compressed("int", 4, symmetric=False, group_size=32), "int4"),
    "w8a16": (words(8, 32), compressed("int", 8, strategy="group", group_size=32), "int8"),
    "nf4": (bytes_of_codes("nf4", 64, nested=False), BITS4, "nf4"),
    "nf4, nested": (bytes_of_codes("nf4", 64, nested=True), BITS4 | {"bnb_4bit_use_double_quant": True}, "nf4"),
    "fp4": (bytes_of_codes("fp4", 64, nested=True), BITS4 | {"bnb_4bit_quant_type": "fp4"}, "fp4"),
    "nvfp4": (e2m1, compressed("float", 4, **IN_FINE_GROUPS) | {"format": "nvfp4-pack-quantized"}, "e2m1"),
    "mxfp4": (e2m1_in_powers, compressed("float", 4, **IN_POWERS) | {"format": "mxfp4-pack-quantized"}, "e2m1"),
    "mxfp8": (fp8_in_powers, compressed("float", 8, **IN_POWERS) | {"format": "mxfp8-quantized"}, ""),
    "modelopt FP8": (fp8_of_model_optimizer, model_optimizer("FP8", 8), "fp8"),
    "modelopt FP8, older": (
        fp8_of_model_optimizer,
        {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}},
        "fp8",
    ),
    "modelopt FP8, rows": (fp8_rows_of_model_optimizer, model_optimizer("FP8_PER_CHANNEL_PER_TOKEN", 8), "fp8"),
    "modelopt FP8, squares": (fp8_squares_of_model_optimizer, model_optimizer("fp8_pb_wo", 8), "fp8"),
    "modelopt NVFP4": (of_model_optimizer(e2m1), model_optimizer("NVFP4", 4, 16), "e2m1"),
    "modelopt MXFP4": (of_model_optimizer(e2m1_in_powers), model_optimizer("W4A8_MXFP4_FP8", 4, 32), "e2m1"),
    "modelopt MXFP8": (of_model_optimizer(fp8_in_powers), model_optimizer("MXFP8", 8, 32), ""),
    "llm.int8": (int8_of_bitsandbytes, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
}


def save_stored(folder: Path, name: str, reference: Any = None) -> Any:
    """A model, or a random one, in that format; returns the model of the numbers that it stores."""
    make, settings, _ = FORMATS[name]
    reference = reference or random_llama(
        hidden_size=256, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2
    )
    reference.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    matrices = [full for full in tensors if "_proj" in full or ".indexer.w" in full]
    for full in [full for full in matrices if "weights_proj" not in full]:
        parts, stored = make(tensors.pop(full))
        reference.get_parameter(full).data.copy_(stored)
        tensors |= {full.removesuffix("weight") + part: tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, settings)
    return reference


def change_config(folder: Path, settings: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))


def logits(checkpoint: Checkpoint, ids: list[int], **options: Any) -> torch.Tensor:
    return logits_in_chunks(load_transformer(checkpoint, "cpu", torch.float32, **options), ids, [len(ids)])


def share_of(name: str) -> float:
    """How far off logits may be beside their size: products with digits, or e2m1, in small groups round to 8 bits."""
    return 0.1 if name == "w4a16, zeros" or "FP4" in name.upper() else 1e-2


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantized_model_is_that_of_its_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = save_stored(tmp_path, name)
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    assert sum(tensor.nbytes for _, tensor in checkpoint.tensors()) == checkpoint.total_bytes
    torch.testing.assert_close(logits(checkpoint, ids, quantization=None), expected, atol=1e-4, rtol=0)
    kept = load_transformer(checkpoint, "cpu", torch.float32)
    near = logits_in_chunks(kept, ids, [30])
    assert (near - expected).norm() < share_of(name) * expected.norm()
    assert torch.equal(logits_in_chunks(kept, ids, [7, 1]), near)
    weights = [each for each in kept.modules() if isinstance(each, QuantizedWeight | Float8Weight)]
    kind = FORMATS[name][2]
    assert {each.name for each in weights} == ({kind} if kind else set())
    assert len(weights) == (8 if kind else 0)
    monkeypatch.setattr(native, "available", lambda: False)  # without rounded activations
    if "nf4" not in name:  # whose table has 10 bits
        torch.testing.assert_close(logits(checkpoint, ids), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["fp8, squares", "w4a16, zeros"])
def test_the_matrix_of_keys_and_values_of_latents_is_divided_whatever_it_is_stored_as(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"vocab_size": 97, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 128, "q_lora_rank": 128}
    # Keys and values of a head lie in one square.
    sizes |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 16, "v_head_dim": 64, "max_position_embeddings": 64}
    torch.manual_seed(0)
    config = transformers.YoutuConfig(**sizes, bos_token_id=1, eos_token_id=2, attn_implementation="eager")
    model = randomized(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    reference = save_stored(tmp_path, name, model)
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    torch.testing.assert_close(logits(checkpoint, ids, quantization=None), expected, atol=1e-4, rtol=0)
    kept = load_transformer(checkpoint, "cpu", torch.float32)
    near = logits_in_chunks(kept, ids, [30])
    assert (near - expected).norm() < share_of(name) * expected.norm()
    assert torch.equal(logits_in_chunks(kept, ids, [7, 1]), near)
    weights = [each for each in kept.modules() if isinstance(each, QuantizedWeight | Float8Weight)]
    assert len(weights) == 2 * 10  # of a layer's, four are the heads' values, and keys are plain
    monkeypatch.setattr(native, "available", lambda: False)  # without rounded activations
    torch.testing.assert_close(logits(checkpoint, ids), expected, atol=1e-4, rtol=0)


def test_an_indexer_is_read_in_fp8_and_its_weights_of_heads_stay_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 128, "kv_lora_rank": 128, "q_lora_rank": 128, "index_head_dim": 128}
    sizes |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 16, "v_head_dim": 64, "first_k_dense_replace": 3}
    theirs = saved("GlmMoeDsa", tmp_path, **MODELS["glm moe dsa"][1] | sizes)
    reference, ids = save_stored(tmp_path, "fp8, squares", theirs), some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    torch.testing.assert_close(logits(checkpoint, ids, quantization=None), expected, atol=1e-4, rtol=0)
    kept = load_transformer(checkpoint, "cpu", torch.float32)
    assert torch.equal(logits_in_chunks(kept, ids, [7, 1]), logits_in_chunks(kept, ids, [30]))
    for name, module in kept.named_modules():
        if ".indexer." in name and isinstance(module, Linear):
            assert any(isinstance(each, Float8Weight) for each in module.weights) == ("weights" not in name)
    monkeypatch.setattr(native, "available", lambda: False)  # without rounded activations
    torch.testing.assert_close(logits(checkpoint, ids), expected, atol=1e-4, rtol=0)


# What DeepSeek stores in squares, but for its experts.
_IN_SQUARES = (
    "wq_a",
    "wq_b",
    "attn.wkv",
    "wo_a",
    "wo_b",
    "shared_experts.w1",
    "shared_experts.w2",
    "shared_experts.w3",
)


def save_deepseek_v4(folder: Path, **changes: Any) -> Any:
    """A model as DeepSeek names and stores it, and transformers' of the same numbers."""
    sizes = {"hidden_size": 128, "q_lora_rank": 128, "head_dim": 64, "moe_intermediate_size": 64, "o_lora_rank": 64}
    saved("DeepseekV4", folder / "plain", **MODELS["deepseek v4"][1] | sizes | changes)
    plain = load_file(folder / "plain" / "model.safetensors")
    stored: Parts = {"mtp.0.attn.wq_a.weight": torch.ones(2, 2)}
    for name, weight in plain.items():
        theirs = name.replace("model.embed_tokens", "embed").replace("model.hc_head.hc_", "hc_head_")
        theirs = theirs.removeprefix("model.").replace(".attn.norm.", ".attn.kv_norm.")
        if ".experts." in name:
            parts, plain[name] = e2m1_in_powers(weight)
            stored[theirs] = parts["weight_packed"].view(torch.int8)
            stored[theirs.replace("weight", "scale")] = parts["weight_scale"].view(torch.float8_e8m0fnu)
        elif name.removesuffix(".weight").endswith(_IN_SQUARES):
            parts, _ = fp8_squares(weight)
            scale = torch.exp2(parts["weight_scale_inv"].log2().ceil())
            each = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[: len(weight), : weight.shape[1]]
            stored[theirs], plain[name] = (weight / each).to(FLOAT8), (weight / each).to(FLOAT8).float() * each
            stored[theirs.replace("weight", "scale")] = scale.to(torch.float8_e8m0fnu)
        else:
            stored[theirs] = weight
    save_file(plain, folder / "plain" / "model.safetensors", {"format": "pt"})
    save_file(stored, folder / "model.safetensors")
    settings = json.loads((folder / "plain" / "config.json").read_text())
    quantization = FORMATS["fp8, squares"][1] | {"scale_fmt": "ue8m0"}
    settings |= {"quantization_config": quantization, "expert_dtype": "fp4", "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(settings))
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "plain", dtype=torch.float32, **ways)


def test_a_deepseek_v4_is_read_as_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, ids = save_deepseek_v4(tmp_path), some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    torch.testing.assert_close(logits(checkpoint, ids, quantization=None), expected, atol=1e-4, rtol=0)
    kept = load_transformer(checkpoint, "cpu", torch.float32)
    assert torch.equal(logits_in_chunks(kept, ids, [7, 1]), logits_in_chunks(kept, ids, [30]))
    kinds = {type(each) for each in kept.modules() if isinstance(each, QuantizedWeight | Float8Weight)}
    assert kinds == {QuantizedWeight, Float8Weight}
    monkeypatch.setattr(native, "available", lambda: False)  # without rounded activations
    torch.testing.assert_close(logits(checkpoint, ids), expected, atol=1e-4, rtol=0)


def test_a_table_that_names_an_expert_who_is_not_there_is_refused(tmp_path: Path) -> None:
    save_deepseek_v4(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["layers.1.ffn.gate.tid2eid"][3, 0] = 6
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="tid2eid has the experts 0 to 6, but there are 6"):
        list(open_checkpoint(tmp_path).tensors())


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("fp8, squares", {"fmt": "e5m2"}, 'quantization_config.fmt is "e5m2"'),
        ("fp8, squares", {"weight_block_size": [64, 64]}, "weight_scale_inv has the shape"),
        ("fp8, squares", {"weight_block_size": 128}, "weight_block_size must be the rows and columns"),
        ("w4a16", {"format": "marlin-24"}, 'format is "marlin-24"'),
        ("w4a16", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
        ("w4a16", {"transform_config": {"config_groups": {}}}, "transform_config is"),
        ("w4a16", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format 'sparse-24-bitmask'"),
        ("w4a16", {"a_field_of_tomorrow": 1}, "a_field_of_tomorrow"),
        ("nf4", {"bnb_4bit_quant_storage": "bfloat16"}, 'bnb_4bit_quant_storage is "bfloat16"'),
        ("modelopt FP8", {"quant_algo": "NVFP4_AWQ"}, "quant_algo 'NVFP4_AWQ' is not served; served are FP8"),
        ("modelopt FP8", {"quantized_layers": {"x": {"quant_algo": "W8A16"}}}, "x.quant_algo 'W8A16' is not served"),
        ("modelopt FP8", {"config_groups": {"g": {"pre_quant_scale": True}}}, "g.pre_quant_scale is true"),
        ("modelopt FP8", {"a_field_of_tomorrow": 1}, "a_field_of_tomorrow"),
        ("nf4", {"quant_method": "quanto"}, "quant_method 'quanto' is not served; served are gptq"),
    ],
)
def test_what_is_not_served_is_refused_by_name(name: str, change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    save_stored(tmp_path, name)
    change_config(tmp_path, FORMATS[name][1] | change)
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8", "modelopt FP8"])
def test_a_part_of_a_matrix_is_that_part_of_its_numbers(name: str, tmp_path: Path) -> None:
    save_stored(tmp_path, name)
    matrices = [each for _, each in open_checkpoint(tmp_path).tensors() if not isinstance(each, torch.Tensor)]
    assert len(matrices) == 14
    for matrix in matrices:
        numbers, part = matrix.dequantize(), matrix[7:40].columns(slice(32, 96))
        assert torch.equal(part.dequantize(), numbers[7:40, 32:96])
        for whole, its in ((matrix, numbers), (part, numbers[7:40, 32:96])):
            kept = whole.float8() or whole.grouped()
            assert (kept is None) == (name == "mxfp8")
            assert kept is None or torch.equal(kept.dequantize(), its)
    if "modelopt" not in name:
        with pytest.raises(ValueError, match="columns 8 to 96 cut a group of"):
            matrices[0].columns(slice(8, 96))


def with_tensors(folder: Path, change: Callable[[Parts], Parts]) -> None:
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_what_modelopt_excludes_is_plain_and_how_it_rounds_a_cache_changes_nothing(tmp_path: Path) -> None:
    reference = save_stored(tmp_path, "modelopt NVFP4")
    excluded = "model.layers.1.self_attn.k_proj."
    with torch.no_grad():
        reference.get_parameter(excluded + "weight").copy_(torch.randn(128, 256) / 16)

    def change(tensors: Parts) -> Parts:
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(excluded)}
        cache = {f"model.layers.1.self_attn.{part}_proj.{part}_scale": torch.tensor(0.3) for part in "kv"}
        return kept | {excluded + "weight": reference.get_parameter(excluded + "weight").data.clone()} | cache

    with_tensors(tmp_path, change)
    change_config(tmp_path, FORMATS["modelopt NVFP4"][1] | {"ignore": ["lm_head", "model.layers.1.self_attn.k_proj"]})
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits(open_checkpoint(tmp_path), ids, quantization=None), expected, atol=1e-4, rtol=0)
    kept = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32)
    assert (logits_in_chunks(kept, ids, [30]) - expected).norm() < 0.1 * expected.norm()


def test_modelopt_may_store_each_matrix_in_another_way(tmp_path: Path) -> None:
    reference = save_stored(tmp_path, "modelopt NVFP4")
    layer = "model.layers.0.mlp.down_proj"
    parts, stored = fp8_of_model_optimizer(reference.get_parameter(f"{layer}.weight").data)
    reference.get_parameter(f"{layer}.weight").data.copy_(stored)

    def change(tensors: Parts) -> Parts:
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(layer)}
        return kept | {f"{layer}.{name}": tensor for name, tensor in parts.items()}

    with_tensors(tmp_path, change)
    layers = {layer: {"quant_algo": "FP8"}, "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    change_config(
        tmp_path, FORMATS["modelopt NVFP4"][1] | {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    )
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    torch.testing.assert_close(logits(checkpoint, ids, quantization=None), expected, atol=1e-4, rtol=0)
    kept = load_transformer(checkpoint, "cpu", torch.float32)
    names = [each.name for each in kept.modules() if isinstance(each, QuantizedWeight | Float8Weight)]
    assert sorted(names) == ["e2m1"] * 7 + ["fp8"]
    layers[layer]["quant_algo"] = "NVFP4_AWQ"
    change_config(
        tmp_path, FORMATS["modelopt NVFP4"][1] | {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    )
    with pytest.raises(CheckpointError, match=r"down_proj\.quant_algo 'NVFP4_AWQ' is not served"):
        open_checkpoint(tmp_path)


def test_a_file_of_modelopts_own_says_the_same_as_the_config(tmp_path: Path) -> None:
    save_stored(tmp_path, "modelopt FP8")
    ids = some_ids(97, 30)
    before = logits(open_checkpoint(tmp_path), ids)
    says = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    file = tmp_path / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": says}))
    assert torch.equal(logits(open_checkpoint(tmp_path), ids), before)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "quantization_config"}))
    assert torch.equal(logits(open_checkpoint(tmp_path), ids), before)
    file.write_text(json.dumps({"quantization": says | {"quant_algo": "W4A16_AWQ"}}))
    with pytest.raises(CheckpointError, match=r"hf_quant_config.json: quantization.quant_algo 'W4A16_AWQ' is not"):
        open_checkpoint(tmp_path)
    path.write_text(json.dumps(config))
    file.write_text(json.dumps({"quantization": says | {"quant_algo": "NVFP4"}}))
    with pytest.raises(CheckpointError, match=r"quant_algo is FP8, but that of hf_quant_config.json is NVFP4"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({"num_bits": 3}, "group_0.weights.num_bits is 3; served are 4 and 8"),
        ({"dynamic": True}, "weights.dynamic is true"),
        ({"rotation": "hadamard"}, "weights.rotation"),
    ],
)
def test_weights_of_other_kinds_are_refused_by_name(weights: dict[str, Any], problem: str, tmp_path: Path) -> None:
    save_stored(tmp_path, "w4a16")
    change_config(tmp_path, compressed("int", 4, **weights))
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "part", "change", "problem"),
    [
        ("fp8, squares", "weight_scale_inv", None, "weight_scale_inv is missing"),
        ("w4a16", "weight_shape", lambda part: part + 1, "weight_shape is"),
        ("nvfp4", "weight_zero_point", lambda _: torch.zeros(256, 16), "weight_zero_point is there"),
        ("nvfp4", "weight_global_scale", None, "weight_scale is stored as torch.float8_e4m3fn"),
        ("modelopt NVFP4", "weight_scale_2", None, "weight_scale_2 is missing"),
        ("modelopt NVFP4", "weight_scale", lambda part: part[:, :-1].contiguous(), "weight_scale has the shape"),
        ("modelopt NVFP4", "pre_quant_scale", lambda _: torch.ones(256), "pre_quant_scale"),
        ("w4a16", "weight_g_idx", lambda _: torch.arange(256), "weight_g_idx is there"),
        ("w4a16", "weight_scale", lambda part: part.int(), "is stored as torch.int32"),
        ("nf4", "weight.quant_map", lambda part: part.flip(0), "that is not the usual one"),
        ("nf4", "weight.absmax", lambda part: part[:-1].clone(), "do not divide rows"),
        ("llm.int8", "SCB", lambda part: part[:-1].clone(), "SCB has the shape"),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", lambda part: part[:-3].clone(), "not valid JSON"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(
    name: str, part: str, change: Callable[[Any], torch.Tensor] | None, problem: str, tmp_path: Path
) -> None:
    save_stored(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    full = f"model.layers.1.self_attn.q_proj.{part}"
    there = tensors.pop(full, None)
    if change is not None:
        tensors[full] = change(there)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=problem):
        for _ in open_checkpoint(tmp_path).tensors():
            pass


def save_gpt_oss(folder: Path) -> Any:
    """A random gpt-oss with experts in MXFP4; returns the model of the numbers that it stores."""
    reference = saved("GptOss", folder, **GPT_OSS, hidden_size=64, intermediate_size=96)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for full in [full for full in tensors if full.endswith("_proj") and "experts" in full]:
        experts, columns, rows = tensors.pop(full).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(120, 124, blocks.shape[:-1], dtype=torch.uint8, generator=generator)
        tensors |= {f"{full}_blocks": blocks, f"{full}_scales": scales}
        stored = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        reference.get_parameter(full).data.copy_(stored)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return reference


def test_experts_in_mxfp4_are_multiplied_as_they_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, ids = save_gpt_oss(tmp_path), some_ids(97, 60)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    assert sum(tensor.nbytes for _, tensor in checkpoint.tensors()) == checkpoint.total_bytes
    torch.testing.assert_close(logits(checkpoint, ids, quantization=None), expected, atol=1e-4, rtol=0)
    kept = load_transformer(checkpoint, "cpu", torch.float32)
    near = logits_in_chunks(kept, ids, [60])
    assert (near - expected).norm() < 5e-2 * expected.norm()  # activations are rounded to 8 bits
    assert torch.equal(logits_in_chunks(kept, ids, [7, 1]), near)
    weights = [each for each in kept.modules() if isinstance(each, QuantizedWeight)]
    assert {(each.name, each.scale.dtype) for each in weights} == {("e2m1", torch.uint8)}
    assert len(weights) == 2 * 6 * 4  # gate and up together, and down, of six experts in four layers
    monkeypatch.setattr(native, "available", lambda: False)  # without rounded activations
    torch.testing.assert_close(logits(checkpoint, ids), expected, atol=1e-4, rtol=0)


def test_gpt_oss_without_rope_parameters_is_refused(tmp_path: Path) -> None:
    saved("GptOss", tmp_path, **GPT_OSS)
    path = tmp_path / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != "rope_parameters"}
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="rope_parameters are missing"):
        open_checkpoint(tmp_path)
