"""Our forward pass against transformers', and against itself in other company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model import linear
from tandem.worker.model.cpu.operations import cpu_operations
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.transformer import Transformer
from tests.worker_svc.model.llama_folders import (
    PAGE_SIZE,
    logits_in_chunks,
    new_cache,
    random_llama,
    save_meta,
    some_ids,
    step,
)

LENGTH = 43


@pytest.fixture(params=[linear.REARRANGE_FROM, 0], ids=["plain weights", "rearranged weights"])
def _storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which a CPU stores weights; these matrices are too small for the second one by themselves."""
    monkeypatch.setattr(linear, "REARRANGE_FROM", request.param)
    monkeypatch.setattr(linear, "SHARED_FROM", request.param)


SHAPES: dict[str, dict[str, Any]] = {
    "multi-head": {},
    "grouped": {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 2},
    "multi-query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "one layer, wide head": {"num_hidden_layers": 1, "head_dim": 32, "num_key_value_heads": 1},
    "odd feed-forward and vocabulary": {"intermediate_size": 101, "vocab_size": 103},
    "another theta and epsilon": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "rms_norm_eps": 0.1,
    },
    "linear rope scaling": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    # Wavelengths on both sides of the blend: 6 to 4,600 positions with theta 10,000 and 12 coordinates a head.
    "llama3 rope scaling": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 48,
        }
    },
}


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    return load_transformer(open_checkpoint(folder), "cpu", dtype)


def reference_logits(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float()


@pytest.mark.usefixtures("_storage")
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(shape: str, tmp_path: Path) -> None:
    reference = random_llama(**SHAPES[shape])
    reference.save_pretrained(tmp_path)
    ids = some_ids(reference.config.vocab_size, LENGTH)
    ours, theirs = logits_in_chunks(loaded(tmp_path), ids, [LENGTH]), reference_logits(reference, ids)
    assert theirs.std() > 0.3  # the comparison would mean little for flat logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", ["multi-head", "grouped", "tied"])
def test_a_meta_folder_of_the_same_weights_gives_identical_logits(shape: str, tmp_path: Path) -> None:
    reference = random_llama(**(SHAPES[shape] | {"intermediate_size": 192}))
    reference.save_pretrained(tmp_path / "hf")
    save_meta(reference, tmp_path / "meta")
    ids = some_ids(reference.config.vocab_size, LENGTH)
    hugging_face = logits_in_chunks(loaded(tmp_path / "hf"), ids, [LENGTH])
    assert torch.equal(logits_in_chunks(loaded(tmp_path / "meta"), ids, [LENGTH]), hugging_face)


def test_the_scaled_rope_of_a_meta_folder_is_that_of_llama_3_1(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    reference = random_llama(intermediate_size=160, rope_parameters=rope)
    save_meta(reference, tmp_path, use_scaled_rope=True)
    ids = some_ids(reference.config.vocab_size, LENGTH)
    ours = logits_in_chunks(loaded(tmp_path), ids, [LENGTH])
    torch.testing.assert_close(ours, reference_logits(reference, ids), atol=1e-4, rtol=0)


@pytest.mark.usefixtures("_storage")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", ["multi-head", "grouped", "odd feed-forward and vocabulary"])
def test_whole_prefill_chunks_and_single_tokens_agree_to_the_bit(
    shape: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    reference = random_llama(**SHAPES[shape])
    reference.save_pretrained(tmp_path)
    model = loaded(tmp_path, dtype)
    ids = some_ids(reference.config.vocab_size, LENGTH)
    whole = logits_in_chunks(model, ids, [LENGTH])
    for chunks in ([1], [5], [PAGE_SIZE], [17, 1]):
        assert torch.equal(logits_in_chunks(model, ids, chunks), whole), chunks


@pytest.mark.usefixtures("_storage")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", ["grouped", "odd feed-forward and vocabulary"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_rows_logits_do_not_depend_on_how_many_rows_there_are(
    shape: str, dtype: torch.dtype, threads: int, tmp_path: Path
) -> None:
    reference = random_llama(**SHAPES[shape])
    reference.save_pretrained(tmp_path)
    model = loaded(tmp_path, dtype)
    sequences = [some_ids(reference.config.vocab_size, 5, seed) for seed in range(64)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = torch.stack([step(model, new_cache(model, 8, dtype), [(s, 0, [0])])[-1] for s in sequences[:8]])
        for company in (4, 8, 64):
            cache = new_cache(model, company * PAGE_SIZE, dtype)
            prompts = [(ids[:-1], 0, [page]) for page, ids in enumerate(sequences[:company])]
            step(model, cache, prompts)
            decodes = [(ids[-1:], 4, [page]) for page, ids in enumerate(sequences[:company])]
            assert torch.equal(step(model, cache, decodes)[:8], alone[:company]), company
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [101, 5632, 11008])
def test_the_activation_of_a_row_does_not_depend_on_rows_or_threads(threads: int, size: int) -> None:
    rows = torch.randn(36, 2 * size, generator=torch.Generator().manual_seed(0)) * 4
    expected = torch.nn.functional.silu(rows[:, :size].double()) * rows[:, size:].double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for activation in (TorchOperations().swiglu, cpu_operations().swiglu):
            together = activation(rows.clone(), size)
            for count in (1, 4, 8, 20):
                assert torch.equal(activation(rows[:count].clone(), size), together[:count]), count
            torch.testing.assert_close(together.double(), expected, atol=1e-5, rtol=1e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_to_fp32_as_transformers_half_precision_is(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    reference = random_llama(**SHAPES["grouped"])
    reference.save_pretrained(tmp_path)
    ids = some_ids(reference.config.vocab_size, LENGTH)
    exact = reference_logits(reference, ids)
    ours = (logits_in_chunks(loaded(tmp_path, dtype), ids, [LENGTH]) - exact).abs().mean()
    theirs = (reference_logits(reference.to(dtype), ids) - exact).abs().mean()
    assert 0 < ours < 1.25 * theirs


def test_only_the_wanted_rows_are_answered_and_in_their_order(tmp_path: Path) -> None:
    reference = random_llama()
    reference.save_pretrained(tmp_path)
    model = loaded(tmp_path)
    cache, ids = new_cache(model, 8), some_ids(97, 8)
    every = step(model, cache, [(ids, 0, [0])])
    assert torch.equal(step(model, cache, [(ids, 0, [0])], wanted=[6, 1, 1, 3]), every[[6, 1, 1, 3]])
    assert step(model, cache, [(ids, 0, [0])], wanted=[]).shape == (0, 97)


@pytest.mark.parametrize("layout", ["meta", "meta-2-shards", "hf", "gguf"])
def test_a_real_model_continues_as_transformers_recorded(layout: str, shared_data: Path) -> None:
    folder = shared_data / "models" / "stories260K"
    model = loaded(folder / layout)
    for case in json.loads((folder / "expected_greedy.json").read_text()):
        length = len(case["prompt_ids"]) + len(case["output_ids"])
        cache, pages = new_cache(model, length), list(range(-(-length // PAGE_SIZE)))
        ids, position, output, logprobs = case["prompt_ids"], 0, [], []
        for _ in case["output_ids"]:
            logits = step(model, cache, [(ids, position, pages)])[-1]
            position += len(ids)
            ids = [int(logits.argmax())]
            output += ids
            logprobs.append(float(logits.log_softmax(-1).amax()))
        assert output == case["output_ids"]
        assert logprobs == pytest.approx(case["logprobs"], abs=1e-4)
