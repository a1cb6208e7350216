"""A model that guesses for another: the same answers in fewer passes, whatever it guesses.

`TANDEM_SPECULATIONS` is how many random requests are tried; a release is tried with 1000.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import BuildError, EngineConfig
from tandem.worker.engine.request import Drafting, LogprobOptions, Request, Stopping
from tandem.worker.engine.sampling import Sampling

REQUESTS = int(os.environ.get("TANDEM_SPECULATIONS", "24"))


def save_llama(folder: Path, seed: int, vocabulary: int = 64, layers: int = 2) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "large": save_llama(root / "large", 1),
        "stranger": save_llama(root / "stranger", 2, layers=1),
        "foreign": save_llama(root / "foreign", 3, vocabulary=65),
    }


def built(folders: dict[str, Path], draft: str) -> BuiltEngine:
    config = EngineConfig(
        model=str(folders["large"]),
        draft_model=str(folders[draft]) if draft else "",
        threads=1,
        page_size=8,
        kv_cache_tokens=400,
        speculate="always",
    )
    return build_engine(config)


def random_request(number: int, *, drafts: int, ngram: int) -> Request:
    draw = np.random.default_rng(number)
    sampling = Sampling(
        temperature=float(draw.choice([0.0, 0.5, 1.0])),
        top_p=float(draw.choice([1.0, 0.9])),
        repetition_penalty=float(draw.choice([1.0, 1.2])),
        seed=number,
    )
    stopping = Stopping(int(draw.integers(2, 40)), eos_ids=frozenset({2}), min_tokens=int(draw.choice([0, 2])))
    prompt = draw.integers(0, 64, draw.integers(1, 50))
    request = Request.make(number, prompt, sampling, stopping, logprobs=LogprobOptions(sampled=True))
    if drafts:
        request.drafting = Drafting(drafts, ngram)
    return request


def answers(engine: BuiltEngine, *, drafts: int, ngram: int) -> dict[int, list[tuple[int, float]]]:
    got: dict[int, list[tuple[int, float]]] = {number: [] for number in range(REQUESTS)}
    for number in got:
        engine.engine.submit(random_request(number, drafts=drafts, ngram=ngram))
    while engine.engine.has_work:
        result = engine.engine.step()
        for number, token, logprob in zip(
            result.numbers.tolist(), result.sampled.ids.tolist(), result.sampled.logprobs.tolist(), strict=True
        ):
            got[number].append((token, logprob))
        engine.engine.check()
    return got


def test_random_requests_get_the_same_ids_and_logprobs_with_any_speculation(folders: dict[str, Path]):
    expected = answers(built(folders, ""), drafts=0, ngram=0)
    for draft, ngram in (("", 1), ("large", 0), ("stranger", 0), ("stranger", 2)):
        engine = built(folders, draft)
        assert answers(engine, drafts=6, ngram=ngram) == expected
        statistics = engine.engine.scheduler.statistics
        assert statistics.draft_tokens_accepted > 0
        if draft == "large":  # it guesses what it would say
            assert statistics.draft_tokens_accepted > 0.95 * statistics.draft_tokens_proposed


def test_the_draft_model_is_described_and_gives_a_default(folders: dict[str, Path]):
    engine = built(folders, "stranger")
    assert engine.draft_tokens == 4
    assert engine.draft_model == str(folders["stranger"])
    alone = built(folders, "")
    assert alone.draft_tokens == 0
    assert engine.weight_bytes > alone.weight_bytes, "the draft model's weights are in memory too"


def test_a_draft_model_of_another_vocabulary_is_refused(folders: dict[str, Path]):
    with pytest.raises(BuildError, match=r"65 ids.*one of 64"):
        built(folders, "foreign")
