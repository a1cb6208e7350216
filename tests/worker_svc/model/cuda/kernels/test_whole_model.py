"""The model on our kernels, with and without fixed places, is the model on torch's operations."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Int8, KVFormat, Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import Operations
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner, decode_rows
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.work import Work
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE
from tests.worker_svc.model.llama_folders import random_llama
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.shared import MIXED

PAGE_SIZE = 16
MODES = [pytest.param(True, id="reproducible"), pytest.param(False, id="fast")]


def loaded(folder: Path, operations: Operations | None) -> Transformer:
    return load_transformer(open_checkpoint(folder), DEVICE, torch.float32, operations=operations)


def cache_for(model: Transformer, pages: int, stored: KVFormat | None = None) -> KVCache:
    config = model.config
    shape = CacheShape(config.cache_heads, pages, PAGE_SIZE, stored or Plain(torch.float32))
    return KVCache(shape, DEVICE)


def operations_for(reproducible: bool, split: int = 256) -> TritonOperations:
    """On a CPU, rows need no more padding than they do there, and the interpreter takes its time for each."""
    operations = TritonOperations(4, reproducible=reproducible, split=split)
    if DEVICE.type == "cpu":
        operations.row_multiple = 4
    return operations


def tokens(*ids: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(ids, dtype=np.int32)


@pytest.mark.parametrize("reproducible", MODES)
def test_a_real_model_continues_as_transformers_recorded(reproducible: bool, shared_data: Path) -> None:
    folder = shared_data / "models" / "stories260K"
    case = json.loads((folder / "expected_greedy.json").read_text())[0]
    operations = operations_for(reproducible)
    model = loaded(folder / "hf", operations)
    runner = GraphedRunner(model, cache_for(model, 8), most_rows=2)
    runner.prepare()
    ids, position, output = case["prompt_ids"], 0, []
    for _ in range(2):
        logits = runner.forward([Work(tokens(*ids), position, np.arange(8), 1)])
        position += len(ids)
        ids = [int(logits[0].argmax())]
        output += ids
    assert output == case["output_ids"][:2]


# Values shorter than keys and scores of nothing in windows; heads, rotations, gates and their limits by layer.
SHORT = {"num_hidden_layers": 2, "layer_types": MIXED[:2], "sliding_window": 9}
LIMITS = {"mlp_layer_types": ["dense", "sparse"], "swiglu_limits": [0, 0.3], "swiglu_limits_shared": [0.4, 0.3]}
BY_LAYER = {
    "mimo v2 flash": SHORT,
    "step 3.5": SHORT | LIMITS,
    "laguna": SHORT | {"num_attention_heads_per_layer": [4, 6]},
}


@pytest.mark.parametrize("name", BY_LAYER)
def test_layers_whose_attention_differs_equal_transformers(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes | BY_LAYER[name])
    model = loaded(tmp_path, operations_for(True, split=64))
    runner, ids = ModelRunner(model, cache_for(model, 4)), np.arange(20, dtype=np.int32) * 7 % 97
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids).long()[None]).logits[0].float()
        whole = runner.forward([Work(ids, 0, np.array([3, 1]), 20)])[:20].clone()
        runner.forward([Work(ids[:18], 0, np.array([0, 2]), 0)])
        decodes = [runner.forward([Work(ids[at : at + 1], at, np.array([0, 2]), 1)])[:1].clone() for at in (18, 19)]
    torch.testing.assert_close(whole.cpu(), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat(decodes).cpu(), expected[18:], atol=1e-4, rtol=0)


@pytest.mark.usefixtures("_rows_alike")
def test_decodes_in_fixed_places_have_the_bits_of_any_other_step(tmp_path: Path) -> None:
    reference = random_llama(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2, max_position_embeddings=128
    )
    reference.save_pretrained(tmp_path)
    operations = operations_for(True, split=64)
    checkpoint = open_checkpoint(tmp_path)
    config = replace(checkpoint.config, windows=(0, 20))  # the first layer sees everything, the second has a window
    model = load_transformer(checkpoint, DEVICE, torch.float32, config=config, operations=operations)
    cache = cache_for(model, 20)
    usual = ModelRunner(model, cache)
    fixed = GraphedRunner(model, cache, most_rows=12)
    fixed.prepare()
    pages = [np.arange(5, dtype=np.int64), np.array([9, 8], dtype=np.int64), np.array([15], dtype=np.int64)]
    prompts = [np.arange(length, dtype=np.int32) % 97 for length in (70, 17, 3)]
    usual.forward([Work(prompt, 0, held, 0) for prompt, held in zip(prompts, pages, strict=True)])
    for poisoned in (*cache.keys, *cache.values):
        poisoned[0][[14, 16]] = float("nan")
    decodes = [Work(tokens(7 + i), len(p), held, 1) for i, (p, held) in enumerate(zip(prompts, pages, strict=True))]
    expected = usual.forward(decodes)[:3]
    assert torch.isfinite(expected).all()
    assert torch.equal(fixed.forward(decodes)[:3], expected)
    assert torch.equal(fixed.forward(decodes[2:])[:1], expected[2:])  # fewer rows, over what the last step left behind
    assert torch.equal(fixed.forward(decodes[::-1])[:3], expected.flip(0))
    drafts = [decodes[1], Work(tokens(7, *range(8)), 70, pages[0], 9), decodes[2]]  # more than one block has queries
    assert torch.equal(fixed.forward(drafts)[:11], usual.forward(drafts)[:11])
    mixed = [*decodes[:2], Work(tokens(9, 4), 3, pages[2], 1)]
    assert torch.equal(fixed.forward(mixed), usual.forward(mixed))


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize(
    ("product", "stored"),
    [(0, Plain(torch.float32)), (-1, Plain(torch.float32)), (-1, Int8())],
    ids=["the library multiplies", "our kernel multiplies", "int8 keys"],
)
def test_a_prompt_has_the_same_bits_whole_in_chunks_and_in_company(
    product: int, stored: KVFormat, tmp_path: Path
) -> None:
    random_llama(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2, max_position_embeddings=128
    ).save_pretrained(tmp_path)
    operations = operations_for(True, split=64)
    checkpoint = open_checkpoint(tmp_path)
    config = replace(checkpoint.config, windows=(0, 20))
    model = load_transformer(checkpoint, DEVICE, torch.float32, config=config, operations=operations)
    model.multiply_by(operations.products[product])
    prompt, other = np.arange(75, dtype=np.int32) % 97, np.arange(40, dtype=np.int32) % 89

    def logits(*chunks: int, company: bool = False) -> torch.Tensor:
        """Of every token; of the other sequence, the part that a prefill of as many tokens brings comes before it."""
        runner = ModelRunner(model, cache_for(model, 8, stored))
        found, start = [], 0
        for size in chunks:
            works = [Work(prompt[start : start + size], start, np.arange(5), size)]
            if company:
                works.insert(0, Work(other[start // 2 : (start + size) // 2], start // 2, np.arange(5, 8), 1))
            found.append(runner.forward(works)[company : company + size])
            start += size
        return torch.cat(found)

    whole = logits(75)
    assert torch.isfinite(whole).all() and whole.std() > 0.1
    assert torch.equal(logits(33, 1, 41), whole)  # neither pages nor splits end where chunks do
    assert torch.equal(logits(16, 59, company=True), whole)


class Compilations:
    """What a card would compile of the launches that the interpreter runs: by the same rules as Triton."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton.runtime import interpreter

        self.seen: set[tuple[object, ...]] = set()
        run = interpreter.InterpretedFunction.run

        def recorded(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            self.seen.add((kernel.fn.__name__, *self.signature(kernel, arguments), *options.items()))
            return run(kernel, *arguments, grid=grid, warmup=warmup, **options)

        monkeypatch.setattr(interpreter.InterpretedFunction, "run", recorded)

    @staticmethod
    def signature(kernel: Any, arguments: Any) -> Iterator[tuple[object, ...]]:
        parameters = inspect.signature(kernel.fn).parameters
        for name, value in zip(kernel.arg_names, arguments, strict=True):
            if "constexpr" in str(parameters[name].annotation):
                yield name, value
            elif isinstance(value, torch.Tensor):
                yield name, value.dtype, value.data_ptr() % 16 == 0
            elif isinstance(value, int) and name not in (kernel.kwargs["do_not_specialize"] or ()):
                yield name, value == 1, value % 16 == 0


@pytest.mark.skipif(DEVICE.type == "cuda", reason="looks into the interpreter")
@pytest.mark.parametrize("reproducible", MODES)
def test_nothing_is_compiled_after_the_start(
    reproducible: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_llama(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=1, max_position_embeddings=256
    ).save_pretrained(tmp_path)
    operations = operations_for(reproducible, split=64)
    operations.products = operations.products[:1]
    model = loaded(tmp_path, operations)
    runner = GraphedRunner(model, cache_for(model, 32), most_rows=16)
    compilations = Compilations(monkeypatch)
    choose_padding(runner)
    runner.prepare()
    assert runner._inputs is not None
    with torch.inference_mode():
        for rows in runner._rows:  # as they are recorded
            runner._inputs.fill((), rows)
            runner._inputs.run(model, runner.cache, rows)
    known = set(compilations.seen)
    assert {"_attend", "_store"} <= {name for name, *_ in known}
    draw = np.random.default_rng(0)
    for lengths in ((1,), (2,), (3, 1), (5,), (9,), (16, 3), (17,), (30, 1)):
        works = [
            Work(draw.integers(0, 97, size).astype(np.int32), int(draw.integers(0, 200)), np.arange(16) + 16 * i, 1)
            for i, size in enumerate(lengths)
        ]
        runner.forward(works)
        assert compilations.seen == known, compilations.seen - known


def test_recordings_are_many_for_few_rows_and_few_for_many() -> None:
    assert decode_rows(64, 1) == [1, 2, 4, 8, 16, 32, 48, 64]
    assert decode_rows(5, 1) == [1, 2, 4, 5]
    assert decode_rows(40, 16) == [16, 32, 48]
    assert decode_rows(256, 64) == [64, 128, 192, 256]
