"""Adapters that stay beside a model: each row is given its own adapter's change, as PEFT computes it, and no other."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, adapters
from tandem.worker.checkpoints.hugging_face import HuggingFaceCheckpoint
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.row_invariance import known_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work
from tests.worker_svc.checkpoints.test_adapters import ATTENTION, MODULES, gpt2, phi3, qwen2
from tests.worker_svc.checkpoints.test_packed import FORMATS, save_packed
from tests.worker_svc.model.llama_folders import random_llama, randomized, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

PAGE, PAGES = 16, 40
MODEL_KINDS: dict[str, tuple[Callable[[], Any], list[dict[str, Any]]]] = {
    "llama": (
        random_llama,
        [
            {"r": 4, "lora_alpha": 10, "target_modules": MODULES},
            {"r": 33, "lora_alpha": 7, "use_rslora": True, "target_modules": ["v_proj", "down_proj"]},
        ],
    ),
    "biases": (qwen2, [{"r": 4, "target_modules": MODULES}, {"r": 2, "target_modules": ATTENTION}]),
    "matrices of inputs and outputs": (
        gpt2,
        [{"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}],
    ),
    "fused matrices": (phi3, [{"r": 4, "target_modules": ["qkv_proj", "gate_up_proj", "down_proj", "o_proj"]}]),
}


def adapters_of(folder: Path, model: Any, configs: list[dict[str, Any]]) -> None:
    """Saves adapters of random numbers beside a model's folder."""
    for number, config in enumerate(configs):
        torch.manual_seed(7 + number)
        adapted = peft.get_peft_model(model, peft.LoraConfig(**config))
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, 0, 0.2)
        adapted.save_pretrained(folder / f"adapter{number}", save_embedding_layers=False)
        model = adapted.unload()


def merged(folder: Path, model: Any, number: int) -> Any:
    """The model with an adapter, by PEFT."""
    return peft.PeftModel.from_pretrained(model, folder / f"adapter{number}").merge_and_unload().eval()


def runner_of(folder: Path, count: int, dtype: torch.dtype = torch.float32) -> ModelRunner:
    checkpoint = HuggingFaceCheckpoint(folder / "base")
    changes = [checkpoint.low_rank(folder / f"adapter{number}") for number in range(count)]
    model = load_transformer(checkpoint, "cpu", dtype, adapters=changes)
    cache = KVCache(CacheShape(model.config.cache_heads, PAGES, PAGE, Plain(dtype)), "cpu")
    runner = ModelRunner(model, cache)
    known_padding(runner)
    return runner


def logits_of(runner: ModelRunner, works: list[Work]) -> list[torch.Tensor]:
    rows = runner.forward(works).clone()
    return list(rows[: sum(work.samples for work in works)].split([work.samples for work in works]))


def work(ids: list[int], place: int, adapter: int, *, samples: int | None = None, position: int = 0) -> Work:
    pages = np.arange(4 * place, 4 * place + 4)
    return Work(np.array(ids, np.int32), position, pages, len(ids) if samples is None else samples, adapter=adapter)


@pytest.mark.parametrize("name", MODEL_KINDS)
def test_each_sequence_has_the_logits_of_its_own_merged_model(name: str, tmp_path: Path) -> None:
    make, configs = MODEL_KINDS[name]
    plain = make().eval()
    plain.save_pretrained(tmp_path / "base")
    adapters_of(tmp_path, deepcopy(plain), configs)
    runner = runner_of(tmp_path, len(configs))
    models = [merged(tmp_path, deepcopy(plain), number) for number in range(len(configs))] + [plain]
    ids = some_ids(97, 40)
    found = logits_of(runner, [work(ids, number, number) for number in range(len(configs))] + [work(ids, 5, -1)])
    for one, model in zip(found, models, strict=True):
        with torch.inference_mode():
            torch.testing.assert_close(one, model(torch.tensor([ids])).logits[0], atol=2e-4, rtol=1e-4)
    for one in found[:-1]:
        assert not torch.allclose(one, found[-1], atol=0.1), "it changes something"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "biases", "matrices of inputs and outputs", "gptq", "gemma 3n", "gemma 4"])
def test_bits_are_the_same_alone_in_company_and_in_pieces(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if kind == "gptq":
        reference: Any = save_packed(tmp_path / "base", FORMATS["gptq"])
        configs = MODEL_KINDS["llama"][1]
    elif kind in MODEL_KINDS:
        make, configs = MODEL_KINDS[kind]
        reference = make()
        reference.save_pretrained(tmp_path / "base")
    else:
        model, changes = MODELS[{"gemma 3n": "gemma3n", "gemma 4": "gemma4"}[kind]]
        reference = saved(model, tmp_path / "base", **changes)
        configs = [{"r": 4, "target_modules": r".*(self_attn\.(q|o)_proj|mlp\.(gate|down)_proj)"}]
    adapters_of(tmp_path, reference, configs)
    runner = runner_of(tmp_path, len(configs), dtype)
    chance = random.Random(3)
    sequences = [
        ([chance.randrange(3, 97) for _ in range(chance.randrange(2, 30))], number % 3 - 1) for number in range(6)
    ]
    sequences = [(ids, min(adapter, len(configs) - 1)) for ids, adapter in sequences]
    alone = [logits_of(runner, [work(ids, 0, adapter)])[0] for ids, adapter in sequences]
    together = logits_of(runner, [work(ids, place, adapter) for place, (ids, adapter) in enumerate(sequences)])
    assert all(map(torch.equal, alone, together))
    # The beginning by itself, then a token of each, of which the last is wanted.
    logits_of(runner, [work(ids[:-1], place, adapter, samples=0) for place, (ids, adapter) in enumerate(sequences)])
    last = logits_of(
        runner,
        [work(ids[-1:], place, adapter, position=len(ids) - 1) for place, (ids, adapter) in enumerate(sequences)],
    )
    assert all(torch.equal(one[-1:], other) for one, other in zip(alone, last, strict=True))
    ends = logits_of(runner, [work(ids, place, adapter, samples=1) for place, (ids, adapter) in enumerate(sequences)])
    assert all(torch.equal(one[-1:], other) for one, other in zip(alone, ends, strict=True))


@pytest.mark.parametrize(
    ("make", "config", "problem"),
    [
        (random_llama, {"target_modules": ["lm_head"]}, "lm_head.weight cannot be kept beside the model"),
        (random_llama, {"target_modules": ["embed_tokens"]}, "embed_tokens.weight cannot be kept beside the model"),
        (qwen2, {"target_modules": ["q_proj"], "bias": "all"}, "bias cannot be kept beside the model"),
        (
            random_llama,
            {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
            "norm.weight cannot be kept beside",
        ),
    ],
)
def test_what_can_only_be_added_to_the_weights_is_refused_by_name(
    make: Callable[[], Any], config: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    make().save_pretrained(tmp_path / "base")
    adapters_of(tmp_path, make(), [{"r": 2, **config}])
    with pytest.raises(CheckpointError, match=problem):
        HuggingFaceCheckpoint(tmp_path / "base").low_rank(tmp_path / "adapter0")


def sees(name: str) -> Any:
    """A small model that sees, too, whose files call its text model otherwise than the model that is trained does."""
    of_both = {"hidden_size": 48, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    text = of_both | {"vocab_size": 97, "intermediate_size": 80, "num_hidden_layers": 2, "num_key_value_heads": 2}
    text |= {"head_dim": 12, "max_position_embeddings": 64}
    torch.manual_seed(0)
    if name == "gemma 3":
        seen = of_both | {"intermediate_size": 40, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
        config: Any = transformers.Gemma3Config(text_config=text, vision_config=seen, mm_tokens_per_image=4)
        return randomized(transformers.Gemma3ForConditionalGeneration(config))
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
    seen = {"depth": 1, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 48}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=seen, bos_token_id=1, eos_token_id=2)
    return randomized(transformers.Qwen2_5_VLForConditionalGeneration(config))


@pytest.mark.parametrize("kind", ["gemma 3", "qwen2.5 vl", "qwen3_5", "falcon, newer, a norm each", "phi3", "gpt2"])
def test_what_stays_beside_is_what_would_be_added_to_the_weights(kind: str, tmp_path: Path) -> None:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"]
    turned = kind == "gpt2"
    if kind in ("gemma 3", "qwen2.5 vl"):
        model = sees(kind)
        model.save_pretrained(tmp_path / "base")
    elif kind in ("phi3", "gpt2"):
        model, targets = (phi3(), ["qkv_proj", "gate_up_proj"]) if kind == "phi3" else (gpt2(), ["c_attn", "c_fc"])
        model.save_pretrained(tmp_path / "base")
    else:
        name = "qwen3.5" if kind == "qwen3_5" else kind
        model = saved(MODELS[name][0], tmp_path / "base", **MODELS[name][1])
        targets = ["query_key_value", "dense"] if kind.startswith("falcon") else targets
    adapters_of(tmp_path, model, [{"r": 3, "target_modules": targets, "fan_in_fan_out": turned}])
    beside = HuggingFaceCheckpoint(tmp_path / "base").low_rank(tmp_path / "adapter0")
    plain = plain_tensors(HuggingFaceCheckpoint(tmp_path / "base"))
    added = plain_tensors(HuggingFaceCheckpoint(tmp_path / "base", adapter=tmp_path / "adapter0"))
    assert beside.keys() == {name for name, tensor in added.items() if not torch.equal(tensor, plain[name])} != set()
    for name, change in beside.items():
        torch.testing.assert_close(plain[name] + change.scale * (change.b @ change.a), added[name])


def plain_tensors(checkpoint: HuggingFaceCheckpoint) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in checkpoint.tensors() if isinstance(tensor, torch.Tensor)}


def test_numbers_are_read_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_llama().save_pretrained(tmp_path / "base")
    adapters_of(tmp_path, random_llama(), [{"r": 2, "target_modules": ["q_proj"]}])
    read: list[str] = []
    monkeypatch.setattr(adapters, "read_tensor", lambda path, file, name, shown: read.append(name) or torch.ones(2))
    changes = HuggingFaceCheckpoint(tmp_path / "base").low_rank(tmp_path / "adapter0")
    assert changes and not read
    assert all(len(change.a) == 2 for change in changes.values()) and len(read) == len(changes)


def test_numbers_beyond_float16_are_named(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path / "base")
    adapters_of(tmp_path, random_llama(), [{"r": 2, "target_modules": ["q_proj"]}])
    file = tmp_path / "adapter0/adapter_model.safetensors"
    save_file({name: tensor * (1e6 if ".1." in name else 1) for name, tensor in load_file(file).items()}, file)
    with pytest.raises(CheckpointError, match=r"adapter0: the change of model.layers.1.self_attn.q_proj.weight has"):
        runner_of(tmp_path, 1, torch.float16)


def test_what_an_adapter_has_for_layers_that_share_keys_and_values_is_left_out(tmp_path: Path) -> None:
    model, changes = MODELS["gemma3n"]
    reference = saved(model, tmp_path / "base", **changes)
    adapters_of(tmp_path, reference, [{"r": 2, "target_modules": ["q_proj", "k_proj"]}])
    before = HuggingFaceCheckpoint(tmp_path / "base").low_rank(tmp_path / "adapter0")
    layer = reference.config.num_hidden_layers - 1
    unused = f"base_model.model.model.layers.{layer}.self_attn.k_proj.lora_"
    file = tmp_path / "adapter0/adapter_model.safetensors"
    tensors = load_file(file)
    assert not any(name.startswith(unused) for name in tensors)
    save_file(tensors | {f"{unused}A.weight": torch.ones(2, 48), f"{unused}B.weight": torch.ones(24, 2)}, file)
    assert HuggingFaceCheckpoint(tmp_path / "base").low_rank(tmp_path / "adapter0").keys() == before.keys()
