"""Weights that are quantized at load: what they cost in perplexity and bytes, and that nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.grouped import GROUPS, Quantization
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import BuildError, EngineConfig
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cpu import native
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.quantization import INT8, quantize
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

DEMO = "models/demo"
INT8_BY_INT8: dict[str, object] = {"quantize": "int8", "quantize_group": 32, "int8_activations": True}


@pytest.fixture(autouse=True)
def _rounding_as_at_first() -> Iterator[None]:
    yield
    if native.available():
        native.round_to_int8(False)


def built(model: Path, **fields: object) -> BuiltEngine:
    return build_engine(EngineConfig(model=str(model), threads=1, **fields))  # type: ignore[arg-type]


def perplexity(engine: BuiltEngine, texts: list[list[int]]) -> float:
    """Of all tokens but the first, each text read in one piece."""
    runner = engine.engine._runner
    assert isinstance(runner, ModelRunner)
    loss, count = 0.0, 0
    for ids in texts:
        pages = np.arange(-(-len(ids) // engine.shape.page_size))
        logits = runner.forward([Work(np.array(ids, dtype=np.int32), 0, pages, len(ids))])
        logprobs = torch.log_softmax(logits[: len(ids) - 1].double(), dim=-1)
        loss -= logprobs.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).sum().item()
        count += len(ids) - 1
    return math.exp(loss / count)


@pytest.fixture(scope="module")
def validation(repository: Path, shared_data: Path) -> list[list[int]]:
    """Of the text that the demo model was never trained on."""
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(repository / DEMO / "tokenizer.model"))
    text = (shared_data / "corpus/tinyshakespeare.txt").read_text()
    ids = tokenizer.encode(text[-len(text) // 10 :])
    return [[1, *ids[start : start + 400]] for start in range(0, len(ids) - 400, 4000)]


@pytest.fixture(scope="module")
def exact(repository: Path, validation: list[list[int]]) -> float:
    return perplexity(built(repository / DEMO, dtype="float32"), validation)


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"dtype": "bfloat16"}, 1.005),
        ({"quantize": "int8"}, 1.005),
        ({"quantize": "fp8"}, 1.01),
        ({"quantize": "int8", "quantize_group": 32}, 1.005),
        (INT8_BY_INT8, 1.005),
        ({"quantize": "int4"}, 1.04),
        ({"quantize": "int4", "quantize_group": 32}, 1.04),
        ({"quantize": "int4", "quantize_group": 128}, 1.04),
    ],
    ids=str,
)
def test_perplexity_of_the_demo_model_holds(
    fields: dict[str, object], most: float, repository: Path, validation: list[list[int]], exact: float
) -> None:
    assert perplexity(built(repository / DEMO, **fields), validation) < most * exact


@pytest.mark.parametrize("fields", [{"quantize": "int8"}, {"quantize": "int4"}, {"dtype": "bfloat16"}], ids=str)
def test_the_start_up_check_finds_rows_independent_and_bytes_are_those_allocated(
    fields: dict[str, object], repository: Path
) -> None:
    engine = built(repository / DEMO, **fields)
    assert engine.row_invariant
    assert engine.quantization == fields.get("quantize", "")
    runner = engine.engine._runner
    assert isinstance(runner, ModelRunner)
    storages = {
        # What oneDNN has rearranged shows no storage, and is nobody else's.
        id(t) if t.is_mkldnn else t.untyped_storage().data_ptr(): t.nbytes
        if t.is_mkldnn
        else t.untyped_storage().nbytes()
        for t in tensors(runner.model)
    }
    assert engine.weight_bytes == sum(storages.values())
    plain = built(repository / DEMO, dtype="float32")
    assert engine.parameters == plain.parameters
    bits = {"int8": 8, "int4": 4}.get(engine.quantization, 16)
    assert engine.weight_bytes < (bits / 32 + 0.15) * plain.weight_bytes


def tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize("fields", [{"quantize": "int4"}, INT8_BY_INT8], ids=str)
def test_a_quantized_model_answers_alone_as_in_a_crowd(fields: dict[str, object], repository: Path) -> None:
    engine = built(repository / DEMO, **fields).engine

    def answers(seeds: list[int]) -> dict[int, list[int]]:
        output: dict[int, list[int]] = {seed: [] for seed in seeds}
        for seed in seeds:
            prompt = some_ids(500, 5 + seed, seed)
            engine.submit(Request.make(seed, prompt, Sampling(seed=seed), Stopping(max_tokens=12), bypass=True))
        while engine.has_work:
            result = engine.step()
            for number, token in zip(result.numbers.tolist(), result.sampled.ids.tolist(), strict=True):
                output[number].append(token)
        return output

    crowd = answers(list(range(7)))
    for seed in (0, 3, 6):
        assert answers([seed]) == {seed: crowd[seed]}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("columns", [64, 172, 20])
def test_int4_is_as_near_as_rounding_allows_and_better_than_the_plain_range(group: int, columns: int) -> None:
    weight = torch.randn((30, columns), generator=torch.Generator().manual_seed(0)).pow(3)
    weight[4] = 0
    weight[5] = 7.5
    grouped = quantize(weight, Quantization(4, group))
    error = (grouped.dequantize() - weight).square().sum()
    padded = torch.nn.functional.pad(weight, (0, -columns % group), value=float("nan")).view(30, -1, group)
    low = padded.nan_to_num(nan=1e9).amin(-1, keepdim=True)
    step = (padded.nan_to_num(nan=-1e9).amax(-1, keepdim=True) - low) / 15
    rounded = ((padded - low) / step.clamp_min(1e-9)).round() * step + low
    assert error <= (rounded - padded).square().nansum() * 1.001
    assert torch.equal(grouped.dequantize()[4], weight[4])
    torch.testing.assert_close(grouped.dequantize()[5], weight[5], rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", [INT8, Quantization(8, 32)], ids=str)
def test_int8_is_within_half_a_step(kind: Quantization) -> None:
    weight = torch.randn((30, 172), generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 2, 30).unsqueeze(1)
    weight[4] = 0
    group = kind.group or 172
    largest = torch.nn.functional.pad(weight, (0, -172 % group)).view(30, -1, group).abs().amax(-1)
    bound = largest.repeat_interleave(group, 1)[:, :172] / 254
    assert ((quantize(weight, kind).dequantize() - weight).abs() <= bound * 1.001).all()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantization", [INT8, Quantization(4, 32)], ids=str)
def test_logits_are_near_those_of_the_whole_weights(quantization: Quantization, tied: bool, tmp_path: Path) -> None:
    random_llama(tie_word_embeddings=tied).save_pretrained(tmp_path)
    ids = some_ids(97, 43)
    whole = logits_in_chunks(load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32), ids, [43])
    model = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32, quantization=quantization)
    assert (model.output.weights[0] is model.embedding.stored) == tied
    logits = logits_in_chunks(model, ids, [43])
    assert torch.equal(logits_in_chunks(model, ids, [5, 1]), logits)
    error = (logits - whole).norm() / whole.norm()
    assert 0 < error < (0.06 if quantization.bits == 8 else 0.45)


@pytest.mark.parametrize("name", ["lfm2", "falcon h1"])
@pytest.mark.parametrize("quantization", [INT8, Quantization(4, 32)], ids=str)
def test_layers_with_states_are_quantized_too(quantization: Quantization, name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    saved(kind, tmp_path, **changes)
    ids, checkpoint = some_ids(97, 43), open_checkpoint(tmp_path)
    whole = logits_in_chunks(load_transformer(checkpoint, "cpu", torch.float32), ids, [43])
    model = load_transformer(checkpoint, "cpu", torch.float32, quantization=quantization)
    logits = logits_in_chunks(model, ids, [43])
    assert torch.equal(logits_in_chunks(model, ids, [5, 1]), logits)
    error = (logits - whole).norm() / whole.norm()
    assert 0 < error < (0.06 if quantization.bits == 8 else 0.6)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"quantize": "fp8", "quantize_group": 32}, "quantize_group 32 says how to quantize, but quantize is fp8"),
        ({"quantize": "int4", "quantize_group": 48}, "quantize_group 48 is not served; use 32, 64, 128"),
        ({"quantize_group": 64}, "quantize_group 64 says how to quantize, but quantize is auto"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(fields: dict[str, object], problem: str, repository: Path) -> None:
    with pytest.raises(BuildError, match=problem):
        built(repository / DEMO, **fields)
