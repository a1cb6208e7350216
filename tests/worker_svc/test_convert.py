"""Conversions between the families: what comes out is what went in, and nothing is ever half-written."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
import transformers

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.ggml_blocks import QuantizedTensor
from tandem.worker.convert import run
from tandem.worker.convert.pieces import ConvertError
from tandem.worker.convert.run import convert
from tandem.worker.model.loading import load_transformer
from tests.exhaustive import some
from tests.worker_svc.checkpoints.gguf_models import is_plain, save_gguf
from tests.worker_svc.checkpoints.gguf_tensors import named_tensors
from tests.worker_svc.model.llama_folders import PAGE_SIZE, logits_in_chunks, new_cache, random_llama, some_ids, step
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_lists import GGUF, GRANTED, NEW
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.shared import SCALINGS, WINDOW

FAMILIES = ("meta", "hugging-face", "gguf")


def silent(done: int, total: int) -> None:
    pass


def converted(source: Path, target: Path, family: str, dtype: str = "auto") -> Path:
    path = target.with_suffix(".gguf") if family == "gguf" else target
    convert(source, path, family, dtype, silent)
    return path


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor.clone()
        for name, tensor in open_checkpoint(path).tensors()
    }


def assert_continues(path: Path, cases: Path) -> None:
    """The real model's greedy continuations are those that were recorded."""
    model = load_transformer(open_checkpoint(path), "cpu", torch.float32)
    for case in json.loads(cases.read_text()):
        length = len(case["prompt_ids"]) + len(case["output_ids"])
        cache, pages = new_cache(model, length), list(range(-(-length // PAGE_SIZE)))
        ids, position, output = case["prompt_ids"], 0, []
        for _ in case["output_ids"]:
            logits = step(model, cache, [(ids, position, pages)])[-1]
            position += len(ids)
            ids = [int(logits.argmax())]
            output += ids
        assert output == case["output_ids"]


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ("meta", ("hugging-face", "gguf", "meta")),
        ("meta-2-shards", ("meta", "gguf", "hugging-face")),
        ("hf", ("gguf", "meta", "hugging-face")),
        ("gguf", ("meta", "hugging-face", "gguf")),
    ],
)
def test_a_real_model_survives_every_conversion_and_the_way_back(
    source: str, way: tuple[str, ...], tmp_path: Path, shared_data: Path
) -> None:
    folder = shared_data / "models" / "stories260K"
    path = folder / source
    original = tensors_of(path)
    original.setdefault("output", original["embedding"])
    for family in way:
        path = converted(path, tmp_path / family, family)
        came = tensors_of(path)
        came.setdefault("output", came["embedding"])
        assert came.keys() == original.keys()
        assert all(torch.equal(came[name], original[name]) for name in came)
        checkpoint = open_checkpoint(path)
        assert (checkpoint.bos_id, checkpoint.eos_ids) == (1, (2,))
    assert_continues(path, folder / "expected_greedy.json")


@pytest.mark.parametrize("way", [("hugging-face",), ("gguf", "hugging-face"), ("gguf", "meta")])
def test_a_sentencepiece_model_goes_along(way: tuple[str, ...], tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "models" / "stories260K" / "hf"
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model"))
    for family in way:
        path = converted(path, tmp_path / family, family)
    ours = sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model"))
    for text in ("Once upon a time", " two  spaces", "é🙂", ""):
        assert ours.encode(text) == theirs.encode(text)
    assert (ours.bos_id(), ours.eos_id(), ours.unk_id()) == (1, 2, 0)


def test_a_written_gguf_file_is_read_by_the_gguf_package(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "models" / "stories260K"
    path = converted(folder / "hf", tmp_path / "model", "gguf")
    ours, theirs = gguf.GGUFReader(path), gguf.GGUFReader(folder / "gguf" / "stories260K-f32.gguf")
    given = {tensor.name: tensor for tensor in theirs.tensors}
    for tensor in ours.tensors:
        np.testing.assert_array_equal(tensor.data, given[tensor.name].data)
    assert given.keys() - {tensor.name for tensor in ours.tensors} == {"output.weight"}  # tied
    for key in ("tokens", "scores", "token_type", "bos_token_id", "eos_token_id", "model"):
        field = f"tokenizer.ggml.{key}"
        assert ours.fields[field].contents() == pytest.approx(theirs.fields[field].contents())


OLDER = [name for name in MODELS if MODELS[name][0] not in NEW]
# Of the others those whose tensors are put together in another way than theirs.
PUT_TOGETHER = [
    "gemma2",
    "gemma3n, words that layers do not know, sizes of their own, another active stream",
    "gemma4 with experts",
    "llama4",
    "gpt oss",
    "qwen3 next",
    "qwen3.5 moe",
    "glm4",
    "granite moe",
]
PUT_TOGETHER += ["deepseek v3", "minicpm3"]
PUT_TOGETHER += ["phi3, rotated in part, longrope", "cohere2", "nemotron h", "nemotron 3, latents, groups", "falcon h1"]
PUT_TOGETHER += ["gemma3 without windows", "glm4 moe, rotated whole", "glm4 moe, 30 of 44 rotated"]
PUT_TOGETHER += ["qwen3.5 moe without states", "gpt2", "gpt bigcode, many heads", "deepseek v4"]
PUT_TOGETHER += ["mistral4", "exaone4 without windows"]


@pytest.mark.parametrize("name", some([*MODELS, *SCALINGS], *OLDER, *SCALINGS, *PUT_TOGETHER))
def test_a_written_folder_loads_in_transformers(name: str, tmp_path: Path) -> None:
    if name in MODELS:
        kind, changes = MODELS[name]
        reference = saved(kind, tmp_path / "source", **changes)
    else:
        reference = saved("Llama", tmp_path / "source", rope_parameters={"rope_theta": 100.0} | SCALINGS[name])
    convert(tmp_path / "source", tmp_path / "target", "hugging-face", "auto", silent)
    several = name.startswith("falcon h1")  # multipliers, whose product alone is known
    assert several or open_checkpoint(tmp_path / "target").config == open_checkpoint(tmp_path / "source").config
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}  # as `saved` has them
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "target", **ways)
    ids = torch.tensor([some_ids(97, 2 * WINDOW)])
    with torch.inference_mode():
        # transformers computes Mamba-2 in chunks, of whatever size the folder says, and the products of experts, GPT-2
        # and GPT-Neo by how matrices lie in memory.
        near = (
            several
            or name.startswith(("bamba", "granite hybrid", "nemotron", "gpt2", "gpt neo"))
            or hasattr(theirs.config, "num_experts_per_tok")
        )
        torch.testing.assert_close(theirs(ids).logits, reference(ids).logits, atol=1e-5 if near else 0, rtol=0)


def test_a_gguf_file_of_a_hybrid_becomes_the_folder_that_it_was_made_of(tmp_path: Path) -> None:
    reference = saved(MODELS["qwen3.5 moe"][0], tmp_path / "source", **MODELS["qwen3.5 moe"][1])
    path = save_gguf(reference, tmp_path / "model.gguf")
    convert(path, tmp_path / "target", "hugging-face", "auto", silent)
    came = tensors_of(tmp_path / "target")
    for name, tensor in tensors_of(tmp_path / "source").items():
        torch.testing.assert_close(came[name], tensor, atol=1e-5, rtol=0)


GGUF_MODELS = ["gemma3n, words that layers do not know, sizes of their own, another active stream"]
GGUF_MODELS += ["llama with biases", "qwen2", "qwen3", "mixtral", "linear", "llama3", "yarn"]
GGUF_MODELS += [
    "falcon h1",
    "falcon h1, norm after the gate",
    "falcon h1, tied",
]  # whose products alone are the folder's
# Those in which something is put together, taken apart, put in another order or said in another way.
BY_LLAMA_CPP = ["phi3, rotated in part, longrope", "gpt oss", "gemma3n", "gemma4", "llama4", "qwen3 next"]
BY_LLAMA_CPP += ["qwen3.5 moe", "granite hybrid", "nemotron h", "nemotron 3, latents, groups", "deepseek v3"]
BY_LLAMA_CPP += ["deepseek v3.2", "glm moe dsa, what is chosen is shared"]


@pytest.mark.parametrize(
    "name", some(["qwen3 moe", *(name for name in GGUF if name not in GGUF_MODELS)], *BY_LLAMA_CPP)
)
def test_a_written_gguf_file_is_what_llama_cpps_converter_makes(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    reference = saved(kind, tmp_path / "source", **changes | GRANTED.get(kind, {}))
    path = converted(tmp_path / "source", tmp_path / "target", "gguf")
    came, expected = tensors_of(path), tensors_of(tmp_path / "source")
    assert came.keys() == expected.keys()
    for tensor_name, tensor in came.items():
        exact = not tensor_name.endswith(".rate")  # stored as minus its exponential
        torch.testing.assert_close(tensor, expected[tensor_name], atol=0 if exact else 1e-6, rtol=0)
    ours, theirs = gguf.GGUFReader(path), gguf.GGUFReader(save_gguf(reference, tmp_path / "theirs.gguf"))
    given = {tensor.name: tensor for tensor in theirs.tensors}
    if name != "gemma4 with experts":  # whose gate and up may be one tensor, or two
        assert {tensor.name for tensor in ours.tensors} == given.keys()
    for written in ours.tensors:
        if written.name in given:
            like = given[written.name]
            ones = [1] * (len(like.shape) - len(written.shape))  # at the end, where they say nothing: Kimi Linear's
            assert [*written.shape.tolist(), *ones] == like.shape.tolist(), written.name
            np.testing.assert_allclose(written.data, like.data.reshape(written.data.shape), rtol=1e-6)
    own = {"general.name", *(key for key in ours.fields if key.endswith("rope.dimension_sections"))}
    for key in ours.fields.keys() & theirs.fields.keys() - own:
        if not key.startswith("GGUF."):
            assert ours.fields[key].contents() == pytest.approx(theirs.fields[key].contents()), key


@pytest.mark.parametrize("name", some(["granite hybrid", "qwen3.5 moe", "gpt oss", "lfm2", "gemma3n"], "qwen3.5 moe"))
def test_what_llama_cpp_has_in_float32_is_written_so(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    reference = saved(kind, tmp_path / "source", **changes | GRANTED.get(kind, {}))
    path = converted(tmp_path / "source", tmp_path / "target", "gguf", "bfloat16")
    plain = {tensor_name for tensor_name, tensor in named_tensors(reference) if is_plain(tensor_name, tensor)}
    float32 = gguf.GGMLQuantizationType.F32
    assert {tensor.name for tensor in gguf.GGUFReader(path).tensors if tensor.tensor_type == float32} == plain


def test_an_older_gguf_file_becomes_a_newer_one(tmp_path: Path) -> None:
    kind, changes = MODELS["deepseek v3"]
    reference = saved(kind, tmp_path / "source", **changes | GRANTED[kind])
    older = save_gguf(reference, tmp_path / "older.gguf", latents_apart=False)
    path = converted(older, tmp_path / "target", "gguf")
    assert "blk.0.attn_k_b.weight" in {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    expected = tensors_of(older)
    assert all(torch.equal(tensor, expected[tensor_name]) for tensor_name, tensor in tensors_of(path).items())


def test_a_converted_folder_recommends_what_its_source_does(tmp_path: Path) -> None:
    source = tmp_path / "source"
    random_llama().save_pretrained(source)
    (source / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.05, "temperature": 0.7}))
    target = converted(source, tmp_path / "target", "hugging-face")
    assert open_checkpoint(target).sampling_defaults == open_checkpoint(source).sampling_defaults


def test_what_a_gguf_file_leaves_out_is_noted(tmp_path: Path) -> None:
    saved("NemotronH", tmp_path / "source", **MODELS["nemotron h"][1] | {"time_step_min": 0.01})
    said = convert(tmp_path / "source", tmp_path / "target.gguf", "gguf", "auto", silent)
    assert "the file does not say that dt is at least 0.01: llama.cpp has no least dt" in said["notes"]


@pytest.mark.parametrize(
    "name", some(GGUF_MODELS, "mixtral", "linear", "llama3", "yarn", "falcon h1", "falcon h1, tied")
)
def test_a_written_gguf_file_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    if name in MODELS:
        saved(MODELS[name][0], tmp_path / "source", **MODELS[name][1])
    else:
        saved("Llama", tmp_path / "source", rope_parameters={"rope_theta": 100.0} | SCALINGS[name])
    path = converted(tmp_path / "source", tmp_path / "target", "gguf")
    ids = some_ids(97, 60)
    ours, theirs = (
        logits_in_chunks(load_transformer(open_checkpoint(each), "cpu", torch.float32), ids, [60])
        for each in (path, tmp_path / "source")
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_divisors_and_a_scaling_of_rope_stay_together_and_only_gguf_can_say_both(kind: str, tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0, "llama.rope.freq_base": 100.0}
    metadata["llama.rope.scaling.attn_factor"] = 1.25
    divisors = {"rope_freqs.weight": np.array([1.0, 1.5, 2.0, 4.0, 7.0, 8.0], dtype=np.float32)}
    source = save_gguf(random_llama(), tmp_path / "source.gguf", metadata=metadata, extra=divisors)
    target = converted(source, tmp_path / "target", "gguf")
    ids = some_ids(97, 60)
    ours, theirs = (
        logits_in_chunks(load_transformer(open_checkpoint(each), "cpu", torch.float32), ids, [60])
        for each in (target, source)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    with pytest.raises(ConvertError, match="cannot say 6 divisors"):
        converted(source, tmp_path / "other", "hugging-face")


def test_a_scaling_that_llama_cpp_does_not_know_of_an_architecture_is_refused(tmp_path: Path) -> None:
    saved("Qwen3", tmp_path / "source", rope_parameters={"rope_theta": 100.0} | SCALINGS["llama3"])
    with pytest.raises(ConvertError, match=r"rope_freqs\.weight is there, which llama\.cpp does not know of qwen3"):
        converted(tmp_path / "source", tmp_path / "target", "gguf")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_are_written_in_the_wanted_dtype(family: str, dtype: str, tmp_path: Path) -> None:
    random_llama(intermediate_size=160).save_pretrained(tmp_path / "source")
    path = converted(tmp_path / "source", tmp_path / "target", family, dtype)
    wanted = getattr(torch, dtype)
    assert open_checkpoint(path).dtype == wanted
    expected = tensors_of(tmp_path / "source")
    for name, tensor in open_checkpoint(path).tensors():
        kept = family == "gguf" and tensor.dim() == 1
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == (torch.float32 if kept else wanted)
        assert torch.equal(tensor, expected[name] if kept else expected[name].to(wanted)), name


def test_quantized_weights_are_written_as_their_numbers(tmp_path: Path) -> None:
    reference = random_llama(hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=4)
    source = save_gguf(reference, tmp_path / "source.gguf", "Q4_K")
    convert(source, tmp_path / "target", "hugging-face", "float32", silent)
    came, expected = tensors_of(tmp_path / "target"), tensors_of(source)
    assert all(torch.equal(came[name], expected[name]) for name in expected)


def test_large_models_are_cut_into_files_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.worker.convert.hugging_face._SHARD_BYTES", 60_000)
    random_llama().save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "target", "hugging-face", "auto", silent)
    assert len(list((tmp_path / "target").glob("model-*-of-*.safetensors"))) > 3
    came, expected = tensors_of(tmp_path / "target"), tensors_of(tmp_path / "source")
    assert all(torch.equal(came[name], expected[name]) for name in expected)
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "target")


@pytest.mark.parametrize(
    ("name", "family", "named"),
    [
        ("qwen2", "meta", "Meta's layout is for Llama without biases; this is qwen2 with biases"),
        ("llama with biases", "meta", "this is llama with biases"),
        ("mistral", "gguf", "described: llama.attention.sliding_window is set"),
        ("qwen3 moe", "gguf", "qwen3moe architecture cannot have experts.normalized False"),
        ("qwen3 moe, normalized, one layer dense", "gguf", r"cannot have experts.dense_layers \(1,\)"),
        ("yarn, all said", "gguf", "cannot have rope_scaling.truncate False"),
        ("smollm3, layers that are listed", "gguf", r"cannot have unrotated_layers \(0, 2, 4, 6\)"),
        ("gemma2", "gguf", "cannot have attention_multiplier"),
        ("deepseek v3", "gguf", "deepseek2 architecture has no tensor for attention.query_latent_bias"),
        ("hunyuan with biases", "gguf", "hunyuan-dense architecture has no tensor for attention.output_bias"),
        ("gpt neox, one part after the other, no biases of attention, scaled", "gguf", "attn_qkv.bias"),
        ("falcon, newer, a norm each, biases", "gguf", "falcon architecture has no tensor for"),
        ("yarn", "meta", "heads of dim / n_heads"),
    ],
)
def test_what_a_family_cannot_say_is_refused_by_name(name: str, family: str, named: str, tmp_path: Path) -> None:
    kind, changes = MODELS.get(name, ("Llama", {"rope_parameters": {"rope_theta": 100.0} | SCALINGS.get(name, {})}))
    saved(kind, tmp_path / "source", **changes)
    with pytest.raises(ConvertError, match=named):
        converted(tmp_path / "source", tmp_path / "target", family)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(
    ("name", "family"),
    [*((name, "meta") for name in ("smollm3", "ministral3", "arcee", "ernie4_5")), ("helium", "gguf")],
)
def test_what_is_served_but_not_converted_is_refused_by_name(name: str, family: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    saved(kind, tmp_path / "source", **changes)
    with pytest.raises(ConvertError, match=name):
        converted(tmp_path / "source", tmp_path / "target", family)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_target_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path / "source")
    (tmp_path / "target").mkdir()
    with pytest.raises(ConvertError, match="is there already"):
        convert(tmp_path / "source", tmp_path / "target", "hugging-face", "auto", silent)
    with pytest.raises(ConvertError, match=r"must end in \.gguf"):
        convert(tmp_path / "source", tmp_path / "model", "gguf", "auto", silent)


def test_leftovers_of_a_killed_conversion_are_taken_away(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path / "source")
    left = tmp_path / ".target.partial"
    left.mkdir()
    (left / "half").write_bytes(b"x")
    convert(tmp_path / "source", tmp_path / "target", "hugging-face", "auto", silent)
    assert not left.exists()
    assert not (tmp_path / "target" / "half").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_full_disk_leaves_nothing_and_is_said_in_one_line(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file size limit stands for the full disk: the same call fails, with another reason."""
    random_llama(intermediate_size=160).save_pretrained(tmp_path / "source")
    target = tmp_path / ("target.gguf" if family == "gguf" else "target")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        code = run.main([str(tmp_path / "source"), str(target), "--to", family])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, last) == (1, {"error": f"{target}: {os.strerror(errno.EFBIG)}; nothing was written"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.fixture
def started(tmp_path: Path, repository: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a conversion of a model large enough to be caught in the middle."""
    with torch.device("meta"):
        sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 60_000}
        reference = random_llama(hidden_size=512, intermediate_size=1408, **sizes)
    reference = reference.to_empty(device="cpu")
    reference.save_pretrained(tmp_path / "source")
    processes: list[subprocess.Popen[str]] = []

    def start(family: str) -> subprocess.Popen[str]:
        name = "target.gguf" if family == "gguf" else "target"
        command = [sys.executable, "-m", "tandem.worker.convert.run", str(tmp_path / "source"), str(tmp_path / name)]
        process = subprocess.Popen(
            [*command, "--to", family], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_conversion_that_is_ended_leaves_no_target(
    number: signal.Signals, started: Callable[[str], Any], tmp_path: Path
) -> None:
    process = started("gguf")
    assert "done" in process.stdout.readline()  # it is under way
    process.send_signal(number)
    code = process.wait(60)
    left = {path.name for path in tmp_path.iterdir()} - {"source"}
    if code == 0:
        pytest.skip("it was done before the signal came")
    assert left <= ({".target.gguf.partial"} if number == signal.SIGKILL else set())
    assert code == (-number if number == signal.SIGKILL else 128 + number)
