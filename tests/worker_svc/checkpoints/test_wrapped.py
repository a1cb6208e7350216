"""Text models of models that see or hear, too, against transformers given text alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint, open_head
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_architectures import ARCHITECTURES
from tandem.worker.checkpoints.hugging_face_text_models import TEXT_MODELS, OverHeads
from tandem.worker.checkpoints.hugging_face_wrapped import text_names, wrapper_of
from tandem.worker.checkpoints.hugging_face_wrappers import WRAPPERS
from tandem.worker.convert.run import convert
from tests.worker_svc.checkpoints.beside_llama_cpp import CASES, SEEING, saved_for_llama_cpp
from tests.worker_svc.checkpoints.published_wrappers import STATIC_FP8
from tests.worker_svc.checkpoints.test_every_field import JUNK
from tests.worker_svc.checkpoints.test_schemes import fp8_squares
from tests.worker_svc.checkpoints.wrapped_models import LOGITS_LEFT_ALONE, WRAPPED, rename, saved, write
from tests.worker_svc.model.heads import save_with_head
from tests.worker_svc.model.llama_folders import logits_in_chunks, new_cache, new_states, some_ids, step
from tests.worker_svc.model.random_models import assert_logits_agree, loaded
from tests.worker_svc.model.random_models import saved as text_model
from tests.worker_svc.model.tiny_models import MODELS

GREEDY = ("gemma3", "mistral3", "mistral3, ministral3", "qwen2.5 vl", "qwen3 vl", "qwen3 vl moe", "glm4v moe")
ANSWER = 64


@pytest.mark.parametrize("name", WRAPPED)
def test_logits_of_text_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, ids = saved(name, tmp_path), some_ids(97, 60)
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor([ids])).logits[0].float() * LOGITS_LEFT_ALONE.get(name, 1.0)
    assert expected.std() > 0.3
    ours = loaded(tmp_path)
    whole = logits_in_chunks(ours, ids, [60])
    torch.testing.assert_close(whole, expected, atol=2e-4, rtol=0)
    assert torch.equal(logits_in_chunks(ours, ids, [17, 1]), whole)


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, prompt = saved(name, tmp_path), some_ids(97, 9)
    ours, answer = loaded(tmp_path), list(prompt)
    cache, pages = new_cache(ours, 80), list(range(5))
    states = new_states(ours, cache)
    logits = step(ours, cache, [(answer, 0, pages)], states=states)
    for _ in range(ANSWER):
        answer.append(int(logits[-1].argmax()))
        logits = step(ours, cache, [(answer[-1:], len(answer) - 1, pages)], states=states)
    with torch.inference_mode():  # what it would have chosen behind each token, in one pass instead of one for each
        expected = theirs(input_ids=torch.tensor([answer])).logits[0, len(prompt) - 1 : -1].argmax(-1)
    assert answer[len(prompt) :] == expected.tolist()


def _inner(name: str) -> str:
    return f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name


# How files have called the tensors of one text model.
NAMES: dict[str, Callable[[str], str]] = {
    "model.language_model": _inner,
    "language_model.model": lambda name: f"language_model.{name}",
    "model.language_model.model": lambda name: f"model.language_model.{name}",
    "model.text_model": lambda name: _inner(name).replace("language_model", "text_model"),
    "as those of the text model": lambda name: name,
}
BESIDE = (
    *("visual.blocks.0.attn.qkv.weight", "model.visual.merger.norm.weight", "vision_tower.encoder.layer.weight"),
    *("model.vision_tower.x", "multi_modal_projector.linear_1.bias", "model.multi_modal_projector.x", "image_newline"),
    *("model.vision_model.x", "model.connector.x", "mlp1.0.weight", "model.audio_tower.x", "mm_projector.proj.0.bias"),
)


@pytest.mark.parametrize("name", ["gemma3", "qwen2.5 vl", "glm4v moe", "nemotron 3 omni"])
@pytest.mark.parametrize("names", NAMES)
def test_all_names_under_which_tensors_were_published_are_read(names: str, name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    ids = some_ids(97, 30)
    expected = logits_in_chunks(loaded(tmp_path), ids, [30])
    wrapper = wrapper_of(Fields.read(tmp_path / "config.json"))
    ours = {
        stored: text
        for text, stored in text_names(tmp_path, load_file(tmp_path / "model.safetensors"), wrapper).items()
    }
    rename(
        tmp_path,
        lambda stored: NAMES[names](ours[stored]) if stored in ours else f"visual.{stored}",
        **{stored: torch.ones(3) for stored in BESIDE},
    )
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)


def test_a_tensor_that_nobody_knows_or_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    saved("gemma3", tmp_path)
    rename(tmp_path, lambda stored: stored, **{"model.tower_of_tomorrow.weight": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"model\.tower_of_tomorrow\.weight"):
        open_checkpoint(tmp_path)
    saved("gemma3", tmp_path)
    rename(tmp_path, lambda stored: stored, **{"model.norm.weight": torch.ones(48)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.* are one of the text model"):
        open_checkpoint(tmp_path)


def test_experts_as_they_were_published_are_those_that_transformers_saves(tmp_path: Path) -> None:
    """Published: all of a layer in two tensors, `[in, out]`; quantized: each of its own."""
    saved("qwen3 vl moe", tmp_path)
    ids = some_ids(97, 30)
    expected = logits_in_chunks(loaded(tmp_path), ids, [30])
    tensors = load_file(tmp_path / "model.safetensors")
    turned = {name: tensor.transpose(1, 2) if ".experts." in name else tensor for name, tensor in tensors.items()}
    write(tmp_path, turned)
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)
    apart: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        module, found, part = name.partition("experts.")
        for expert, matrix in enumerate(tensor) if found else ():
            halves = zip(("gate", "up"), matrix.chunk(2), strict=True) if part == "gate_up_proj" else [("down", matrix)]
            apart |= {f"{module}experts.{expert}.{which}_proj.weight": half for which, half in halves}
        apart |= {} if found else {name: tensor}
    write(tmp_path, apart)
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)


@pytest.mark.parametrize(("name", "turned"), [("qwen3 vl moe", False), ("qwen3 vl moe", True), ("qwen3.5 moe", False)])
def test_experts_in_fp8_are_read_stacked_either_way_round(name: str, turned: bool, tmp_path: Path) -> None:
    saved(name, tmp_path)
    tensors, expected = _stacked(load_file(tmp_path / "model.safetensors")), {}
    for name in [name for name in tensors if ".experts." in name]:
        parts = [fp8_squares(matrix, 16) for matrix in tensors[name]]
        expected[name] = torch.stack([numbers for _, numbers in parts])
        q, scale = (torch.stack([part[key] for part, _ in parts]) for key in ("weight", "weight_scale_inv"))
        tensors[name], tensors[f"{name}_scale_inv"] = (one.transpose(1, 2) if turned else one for one in (q, scale))
    write(tmp_path, tensors)
    file = tmp_path / "config.json"
    quantized = {"quantization_config": STATIC_FP8 | {"weight_block_size": [16, 16]}}
    file.write_text(json.dumps(json.loads(file.read_text()) | quantized))
    checkpoint, seen_ones = open_checkpoint(tmp_path), 0
    layers = checkpoint.config.num_layers
    for name, matrix in checkpoint.tensors():
        _, layer, part = (name if name.count(".") > 1 else "...").split(".", 2)
        if part.startswith("experts."):
            assert not isinstance(matrix, torch.Tensor)
            _, expert, which = part.split(".")
            stored = "down_proj" if which == "down" else "gate_up_proj"
            whole = expected[f"model.language_model.layers.{layer}.mlp.experts.{stored}"][int(expert)]
            rows = {"gate": slice(0, 28), "up": slice(28, 56), "down": slice(None)}[which]
            assert torch.equal(matrix.dequantize(), whole[rows])
            checkpoint.release(matrix)
            assert torch.equal(matrix.dequantize(), whole[rows])
            seen_ones += 1
    assert seen_ones == layers * 6 * 3
    ids = some_ids(97, 30)
    logits = logits_in_chunks(loaded(tmp_path), ids, [30])
    write(tmp_path, {key: tensor for key, tensor in tensors.items() if "_scale_inv" not in key} | expected)
    torch.testing.assert_close(logits, logits_in_chunks(loaded(tmp_path), ids, [30]), atol=2e-4, rtol=0)


@pytest.mark.parametrize("halves", [1, 2])
def test_stacked_experts_in_fp8_may_have_one_scale_each_or_one_of_gate_and_up(halves: int, tmp_path: Path) -> None:
    saved("mistral3, mistral4", tmp_path)
    tensors, plain = load_file(tmp_path / "model.safetensors"), {}
    for name in [name for name in tensors if ".experts." in name]:
        parts = tensors[name].chunk(halves if "gate_up" in name else 1, dim=1)
        scale = torch.stack([part.abs().amax((1, 2)) / 448 for part in parts], 1).unsqueeze(-1)
        each = scale.repeat_interleave(parts[0].shape[1], 1)
        tensors[name] = (tensors[name] / each).to(torch.float8_e4m3fn)
        plain[name] = tensors[name].float() * each
        tensors |= {f"{name}_scale_inv": scale, f"{name}_activation_scale": torch.full((len(scale),), 0.5)}
    file, ids = tmp_path / "config.json", some_ids(97, 30)
    unquantized = file.read_text()
    file.write_text(json.dumps(json.loads(unquantized) | {"quantization_config": STATIC_FP8}))
    write(tmp_path, tensors)
    checkpoint = open_checkpoint(tmp_path)
    experts = [one for name, one in checkpoint.tensors() if ".experts." in name]
    assert experts and not any(isinstance(one, torch.Tensor) for one in experts)
    logits = logits_in_chunks(loaded(tmp_path), ids, [30])
    file.write_text(unquantized)
    write(tmp_path, {name: one for name, one in tensors.items() if "_scale" not in name} | plain)
    torch.testing.assert_close(logits, logits_in_chunks(loaded(tmp_path), ids, [30]), atol=2e-4, rtol=0)


def _stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All of a layer's experts in two tensors, where they are apart."""
    modules = {name.partition("experts.")[0] for name in tensors if ".experts.0." in name}
    for module in modules:
        count = sum(name.startswith(f"{module}experts.") for name in tensors) // 3
        parts = {
            part: torch.stack([tensors.pop(f"{module}experts.{expert}.{part}_proj.weight") for expert in range(count)])
            for part in ("gate", "up", "down")
        }
        tensors[f"{module}experts.gate_up_proj"] = torch.cat((parts["gate"], parts["up"]), dim=1)
        tensors[f"{module}experts.down_proj"] = parts["down"]
    return tensors


def test_fields_of_an_older_file_stand_beside_the_wrappers_own(tmp_path: Path) -> None:
    """Qwen2-VL and Qwen2.5-VL were published without `text_config`."""
    saved("qwen2 vl", tmp_path)
    ids = some_ids(97, 30)
    expected = logits_in_chunks(loaded(tmp_path), ids, [30])
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    older = {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    file.write_text(json.dumps(text | config | older))
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)
    file.write_text(json.dumps(text | config | older | {"a_field_of_tomorrow": 1}))
    with pytest.raises(CheckpointError, match="a_field_of_tomorrow"):
        open_checkpoint(tmp_path)


def test_the_text_model_of_what_thinks_beside_what_speaks_is_read(tmp_path: Path) -> None:
    saved("qwen2.5 omni", tmp_path)
    ids = some_ids(97, 30)
    expected = logits_in_chunks(loaded(tmp_path), ids, [30])
    file = tmp_path / "config.json"
    config = {"thinker_config": json.loads(file.read_text()), "talker_config": {"hidden_size": 16}}
    named = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "enable_talker": True}
    file.write_text(json.dumps(config | named))
    further = {"talker.model.norm.weight": torch.ones(3), "token2wav.x.weight": torch.ones(3)}
    rename(tmp_path, lambda stored: f"thinker.{stored}", **further)
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)
    config["thinker_config"]["a_field_of_tomorrow"] = 1
    file.write_text(json.dumps(config | named))
    with pytest.raises(CheckpointError, match=r"thinker_config\.a_field_of_tomorrow"):
        open_checkpoint(tmp_path)


def test_the_text_model_of_a_gemma_3n_is_read_out_of_what_sees_and_hears(tmp_path: Path) -> None:
    theirs = text_model("Gemma3nText", tmp_path, **MODELS["gemma3n"][1])
    file = tmp_path / "config.json"
    text = json.loads(file.read_text())
    for key in ("architectures", "bos_token_id", "eos_token_id"):
        text.pop(key)
    towers = {"vision_config": {"model_type": "gemma3n_vision"}, "audio_config": {"model_type": "gemma3n_audio"}}
    named = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "eos_token_id": [2, 3]}
    file.write_text(json.dumps(named | towers | {"text_config": text, "audio_soft_tokens_per_image": 188}))
    further = ("vision_tower.timm_model.conv_stem.bn.weight", "audio_tower.conformer.0.norm.weight")
    further += ("embed_vision.embedding.weight", "embed_audio.hard_embedding_norm.weight")
    beside = {f"model.{name}": torch.ones(3) for name in further}
    rename(tmp_path, _inner, **beside)
    (tmp_path / "generation_config.json").unlink()
    assert open_checkpoint(tmp_path).eos_ids == (2, 3)
    assert_logits_agree(loaded(tmp_path), theirs, 30)


def test_a_published_phi_4_has_adapters_that_text_does_not_use(tmp_path: Path) -> None:
    saved("phi-4 multimodal", tmp_path)
    ids = some_ids(97, 30)
    expected = logits_in_chunks(loaded(tmp_path), ids, [30])
    further = {
        f"model.layers.0.mlp.down_proj.lora_{part}.{of}.weight": torch.ones(2, 2)
        for part in "AB"
        for of in ("speech", "vision")
    }
    rename(tmp_path, lambda stored: stored.replace("_proj.weight", "_proj.base_layer.weight"), **further)
    assert torch.equal(logits_in_chunks(loaded(tmp_path), ids, [30]), expected)
    rename(tmp_path, lambda stored: stored.replace("lora_A.speech", "lora_A.text"))
    with pytest.raises(CheckpointError, match=r"lora_A\.text"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("where", "value", "named"),
    [
        ("a_field_of_tomorrow", 1, "a_field_of_tomorrow"),
        ("text_config.a_field_of_tomorrow", 1, r"text_config\.a_field_of_tomorrow"),
        ("text_config.model_type", "llama", r"text_config\.model_type 'llama' is not what Gemma3"),
        ("text_config", None, "text_config is missing"),
        ("text_config", 3, "text_config must be an object"),
        ("text_config.num_hidden_layers", 0, "num_hidden_layers"),
        ("architectures", ["PaliGemmaForConditionalGeneration"], "in both directions"),
        ("architectures", ["SomethingForConditionalGeneration"], "SomethingForConditionalGeneration"),
    ],
)
def test_what_is_not_served_is_refused_by_its_field(where: str, value: object, named: str, tmp_path: Path) -> None:
    saved("gemma3", tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    inner, _, key = where.rpartition(".")
    (config[inner] if inner else config)[key] = value
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=named):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(("name", "flat"), [("qwen2 vl", True), ("glm4v", False), ("hunyuan vl", True)])
def test_junk_in_any_field_is_refused_or_harmless_but_never_another_error(
    name: str, flat: bool, tmp_path: Path
) -> None:
    saved(name, tmp_path)
    file = tmp_path / "config.json"
    config: dict[str, Any] = json.loads(file.read_text())
    text = config["text_config"]
    if flat:
        config = config.pop("text_config") | config
    refused = 0
    for key in [*text, "mrope_section", "rope_scaling", "text_config", "vision_config", "architectures", "model_type"]:
        for value in (*JUNK, {"rope_type": ["mrope"], "mrope_section": 3}, {"type": "mrope"}):
            inner = config | {key: value} if flat else config | {"text_config": text | {key: value}}
            for whole in (inner, config | {key: value}):
                file.write_text(json.dumps(whole))
                try:
                    open_checkpoint(tmp_path)
                except CheckpointError:
                    refused += 1
    assert refused > 50


def test_any_text_model_that_is_served_may_stand_in_a_wrapper_that_holds_any(tmp_path: Path) -> None:
    saved("llava", tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["model_type"] = "of_tomorrow"
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"text_config\.model_type 'of_tomorrow' is not served; served are llama"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_what_a_text_config_leaves_out_is_what_transformers_class_says(name: str) -> None:
    if name == "exaone4_5_text":
        name = "exaone4"  # as transformers takes it
    usual = transformers.CONFIG_MAPPING[name]()
    for key, value in TEXT_MODELS[name].defaults.items():
        if value is OverHeads:
            value = usual.hidden_size // usual.num_attention_heads
            theirs = getattr(usual, key, value)
        elif key in ("rope_theta", "partial_rotary_factor"):
            theirs = usual.rope_parameters.get(key, 1.0)
        elif key in ("norm_topk_prob", "hidden_size_per_layer_input"):
            continue  # which the class does not know: always so, and never
        else:
            theirs = getattr(usual, key)
        assert (key, value) == (key, theirs)


def test_every_wrapper_is_compared_with_transformers() -> None:
    """But those that are published with code of their own, what thinks beside what speaks, Llama 4, of which
    transformers' class cannot be given text alone (`test_hybrids.py` has it), and Gemma 3n, whose tower is another
    package's."""
    apart = {"InternVLChatModel", "Phi4MMForCausalLM", "Llama4ForConditionalGeneration"}
    apart |= {
        "Gemma3nForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration",
    }
    assert {each.class_name for each in WRAPPERS} - apart == {class_name for class_name, _ in WRAPPED.values()}


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda each: each.model_type)
def test_a_wrapper_is_what_transformers_has(wrapper: Any) -> None:
    assert wrapper.text in TEXT_MODELS or wrapper.text in ARCHITECTURES
    if wrapper.model_type in ("internvl_chat", "phi4mm"):
        return  # code of their own that is published beside them
    usual = transformers.CONFIG_MAPPING[wrapper.model_type]()
    assert getattr(transformers, wrapper.class_name).config_class is type(usual)
    assert usual.get_text_config().model_type == wrapper.text
    name = TEXT_MODELS[wrapper.text].architecture if wrapper.text in TEXT_MODELS else wrapper.text
    tied = ARCHITECTURES[name].tied or wrapper.tied
    assert getattr(usual, "tie_word_embeddings", tied) == tied


def test_the_text_model_of_a_folder_in_fp8_is_read_though_its_config_says_so_of_the_whole(tmp_path: Path) -> None:
    """As Ministral 3 is published: one scale a matrix, and one of what it is multiplied by."""
    saved("mistral3, ministral3", tmp_path)
    plain, tensors = dict(open_checkpoint(tmp_path).tensors()), load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "language_model" in name and name.endswith("_proj.weight")]:
        scale = tensors[name].abs().max() / 448
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors |= {f"{name}_scale_inv": scale, f"{name.removesuffix('weight')}activation_scale": torch.tensor(0.5)}
    write(tmp_path, tensors)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": STATIC_FP8}))
    quantized = 0
    for name, tensor in open_checkpoint(tmp_path).tensors():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, plain[name])
        else:
            quantized += 1
            expected = plain[name]
            assert isinstance(expected, torch.Tensor)
            torch.testing.assert_close(tensor.dequantize(), expected, atol=float(expected.abs().max()) / 16, rtol=0)
    assert quantized == 3 * 7
    config = json.loads(file.read_text())
    config["text_config"]["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"text_config\.quantization_config and that of the whole contradict"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["mistral3", "qwen3 vl moe", "glm4v"])
@pytest.mark.parametrize(("family", "target"), [("hugging_face", "folder"), ("gguf", "model.gguf")])
def test_the_text_model_is_converted_as_one_of_its_own(family: str, target: str, name: str, tmp_path: Path) -> None:
    theirs, ids = saved(name, tmp_path / "source"), some_ids(97, 40)
    convert(tmp_path / "source", tmp_path / target, family, "auto", lambda done, total: None)
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor([ids])).logits[0].float()
    whole = logits_in_chunks(loaded(tmp_path / target), ids, [40])
    torch.testing.assert_close(whole, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "wrapper"),
    [
        ("Qwen3_5Text", "qwen3.5", {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}),
        ("Glm4Moe", "glm4 moe", {"architectures": ["Glm46VForConditionalGeneration"], "model_type": "glm46v"}),
        ("DeepseekV3", "deepseek v3", {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}),
    ],
)
def test_a_head_that_drafts_is_found_in_a_wrapper_too(
    kind: str, name: str, wrapper: dict[str, Any], own_tables: bool, tmp_path: Path
) -> None:
    save_with_head(kind, tmp_path, own_tables=own_tables, **MODELS[name][1])
    model, head = dict(open_checkpoint(tmp_path).tensors()), dict(open_head(tmp_path).tensors())
    rename(tmp_path, lambda stored: stored if stored.startswith("mtp.") else f"language_model.{stored}")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(wrapper | {"text_config": json.loads(file.read_text())}))
    for before, after in ((model, open_checkpoint(tmp_path)), (head, open_head(tmp_path))):
        found = dict(after.tensors())
        assert found.keys() == before.keys()
        assert all(torch.equal(torch.as_tensor(found[part]), torch.as_tensor(before[part])) for part in before)


@pytest.mark.parametrize("name", SEEING)
def test_a_gguf_file_of_one_that_sees_has_the_text_model(name: str, tmp_path: Path) -> None:
    kind, changes = CASES[name]
    theirs = text_model(kind, tmp_path, **changes)
    assert_logits_agree(loaded(saved_for_llama_cpp(name, theirs, tmp_path / "model.gguf")), theirs, 60)
