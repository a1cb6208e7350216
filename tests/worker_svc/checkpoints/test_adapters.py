"""LoRA adapters are added to the weights as PEFT merges them, or refused by the name of what is not served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.convert.run import convert
from tandem.worker.engine.process.build import build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, randomized, some_ids

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MODULES = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


def qwen2() -> Any:
    config = transformers.Qwen2Config(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    return randomized(transformers.Qwen2ForCausalLM(config))


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=1,
                                     eos_token_id=2)  # fmt: skip
    return randomized(transformers.GPT2LMHeadModel(config))


def phi3() -> Any:
    config = transformers.Phi3Config(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, original_max_position_embeddings=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return randomized(transformers.Phi3ForCausalLM(config))


ADAPTERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "all matrices": (random_llama, {"r": 4, "lora_alpha": 10, "target_modules": MODULES}),
    "rank-stabilized": (random_llama, {"r": 9, "lora_alpha": 7, "use_rslora": True, "target_modules": ATTENTION}),
    "patterns": (
        random_llama,
        {
            **{"r": 2, "lora_alpha": 8, "target_modules": MODULES},
            "rank_pattern": {"q_proj": 5, r"^model.layers.1.self_attn.k_proj": 3, "layers.0.mlp.up_proj": 1},
            "alpha_pattern": {"self_attn.o_proj": 31, "q_proj": 3},
        },
    ),
    "some layers": (random_llama, {"r": 3, "target_modules": ["v_proj"], "layers_to_transform": [0, 2]}),
    "tables": (random_llama, {"r": 4, "target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]}),
    "the output": (random_llama, {"r": 4, "target_modules": ["lm_head"]}),
    "biases": (qwen2, {"r": 4, "bias": "all", "target_modules": ATTENTION}),
    "matrices of inputs and outputs": (gpt2, {"r": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "fused matrices": (phi3, {"r": 4, "target_modules": ["qkv_proj", "gate_up_proj"]}),
}


def trained(folder: Path, model: Any, **config: Any) -> Any:
    """Saves a model and an adapter whose numbers are random; returns the model with the adapter merged by PEFT."""
    model.save_pretrained(folder / "base")
    torch.manual_seed(7)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**config))
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0, 0.2 if "lora" in name else 0.4)
    adapted.save_pretrained(folder / "adapter", save_embedding_layers=False)
    return adapted.merge_and_unload().eval()


def logits(folder: Path, adapter: Path | None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    model = load_transformer(open_checkpoint(folder, adapter), "cpu", dtype)
    return logits_in_chunks(model, some_ids(97, 40), [40])


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_model_with_an_adapter_computes_what_peft_merges(name: str, tmp_path: Path) -> None:
    make, config = ADAPTERS[name]
    merged = trained(tmp_path, make(), **config)
    with torch.inference_mode():
        expected = merged(torch.tensor([some_ids(97, 40)])).logits[0]
    found = logits(tmp_path / "base", tmp_path / "adapter")
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    assert not torch.allclose(logits(tmp_path / "base", None), expected, atol=0.1), "it changes something"


def test_an_adapter_is_added_however_the_model_and_it_are_stored(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    trained(tmp_path, random_llama().to(torch.bfloat16), r=4, lora_alpha=10, target_modules=MODULES)
    expected = logits(base, adapter)
    tensors, changes = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for file in (base / "model.safetensors", adapter / "adapter_model.safetensors"):
        file.unlink()
    torch.save(tensors, base / "pytorch_model.bin")
    torch.save(changes, adapter / "adapter_model.bin")
    assert torch.equal(logits(base, adapter), expected)
    (base / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    shards = {"one": names[::2], "two": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, base / f"{shard}.safetensors")
    weight_map = {name: f"{shard}.safetensors" for shard, held in shards.items() for name in held}
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits(base, adapter), expected)


@pytest.mark.parametrize("family", ["hugging_face", "gguf"])
def test_what_is_converted_with_an_adapter_has_its_changes(family: str, tmp_path: Path) -> None:
    merged = trained(tmp_path, random_llama(hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                                            intermediate_size=96), r=4, target_modules=MODULES)  # fmt: skip
    with torch.inference_mode():
        expected = merged(torch.tensor([some_ids(97, 40)])).logits[0]
    target = tmp_path / ("whole.gguf" if family == "gguf" else "whole")
    convert(tmp_path / "base", target, family, "auto", lambda *_: None, tmp_path / "adapter")
    torch.testing.assert_close(logits(target, None), expected, atol=2e-4, rtol=1e-4)


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


A = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"use_dora": True}, "use_dora is true"),
        ({"peft_type": "IA3"}, 'peft_type is "IA3"'),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens is"),
        ({"something_new": 3}, "something_new"),
        ({"r": 0}, "r is 0 for"),
        ({"r": 5}, "r is 5 for model.layers.0.self_attn.q_proj, but lora_A has another rank"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a finite number"),
        ({"rank_pattern": {"(a+)+b": 4}}, r"rank_pattern.\(a\+\)\+b is not served"),
        (lambda tensors: tensors.pop(A), "has no lora_A"),
        (lambda tensors: tensors.update({A: torch.zeros(4, 61)}), "has the shape"),
        (lambda tensors: tensors.update({A: torch.zeros(4)}), "other shapes"),
        (lambda tensors: tensors.update({A: torch.zeros(4, 60, dtype=torch.int8)}), "is stored as torch.int8"),
        (lambda tensors: tensors.update({A.replace("layers.1", "layers.9"): tensors.pop(A)}), "has no lora_"),
        (
            lambda tensors: tensors.update({A.replace("A.weight", "magnitude_vector"): torch.zeros(3)}),
            "kind of adapter",
        ),
        (lambda tensors: tensors.update({"base_model.model.score.weight": torch.zeros(3, 60)}), "no such tensor"),
        (lambda tensors: tensors.clear(), "has no tensors"),
    ],
)
def test_what_is_not_served_is_refused_by_name(change: Any, problem: str, tmp_path: Path) -> None:
    trained(tmp_path, random_llama(), r=4, target_modules=["q_proj"])
    if callable(change):
        change_tensors(tmp_path / "adapter", change)
    else:
        change_config(tmp_path / "adapter", **change)
    with pytest.raises(CheckpointError, match=problem) as caught:
        open_checkpoint(tmp_path / "base", tmp_path / "adapter")
    assert str(tmp_path / "adapter") in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_without_an_adapter_and_a_file_with_a_model_are_named(tmp_path: Path) -> None:
    trained(tmp_path, random_llama(), r=4, target_modules=["q_proj"])
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    for model, adapter, problem in (
        ("base", "none", "none/adapter_config.json: no such file"),
        ("base", "base", "base/adapter_config.json: no such file"),
        ("x.gguf", "adapter", "x.gguf: is not a folder in Hugging Face's layout"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            open_checkpoint(tmp_path / model, tmp_path / adapter)
    (tmp_path / "adapter/adapter_model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        open_checkpoint(tmp_path / "base", tmp_path / "adapter")


def test_an_engine_answers_as_the_merged_model(repository: Path, tmp_path: Path) -> None:
    demo = repository / "models/demo"
    model = transformers.AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32)
    merged = trained(tmp_path, model, r=2, lora_alpha=1, target_modules=MODULES)
    prompt = [1, 400, 17, 933, 52]
    with torch.inference_mode():
        expected = merged.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12, eos_token_id=None)
    answers = {}
    for adapter in (str(tmp_path / "adapter"), ""):
        config = EngineConfig(
            model=str(demo), adapter=adapter, device="cpu", dtype="float32", threads=1, kv_cache_tokens=1024
        )
        engine = build_engine(config).engine
        engine.submit(Request.make(0, prompt, Sampling(temperature=0.0), Stopping(12)))
        answers[adapter] = [int(token) for _ in range(12) for token in engine.step().sampled.ids]
    assert answers[str(tmp_path / "adapter")] == expected[0, len(prompt) :].tolist() != answers[""]
