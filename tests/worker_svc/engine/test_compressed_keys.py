"""A model that attends to entries of several tokens answers the same whatever steps made these, and whoever had pages
before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import CheckpointError, open_head
from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import BuildError, EngineConfig
from tandem.worker.engine.process.device import require_kv_format
from tandem.worker.engine.request import Drafting, LogprobOptions, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.parallel import Ranks
from tests.worker_svc.engine.test_draft_model import save_llama
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

VOCABULARY = 12  # so few that drafts are accepted by chance
REQUESTS = 12
SHARED = 37  # tokens with which prompts begin: in the middle of a page, and of an entry


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    kind, changes = MODELS["deepseek v4"]
    saved(kind, path, **changes | {"vocab_size": VOCABULARY})
    return path


def built(folder: Path, **changes: Any) -> BuiltEngine:
    settings: dict[str, Any] = {"dtype": "float32", "threads": 1, "page_size": 8, "kv_cache_tokens": 2000}
    settings |= {"speculate": "always", "device": "cpu"}
    return build_engine(EngineConfig(model=str(folder), **settings | changes))


def request(number: int, *, drafts: int) -> Request:
    begins, draw = np.random.default_rng(0), np.random.default_rng(number)
    own = draw.integers(0, VOCABULARY, int(draw.integers(1, 12)))
    prompt = np.concatenate([begins.integers(0, VOCABULARY, SHARED), own]) if number % 3 else own
    made = Request.make(
        number,
        prompt,
        Sampling(seed=number, temperature=[0.0, 0.8][number % 2]),
        Stopping(40),
        logprobs=LogprobOptions(sampled=True),
    )
    made.drafting = Drafting(drafts, ngram=1) if drafts else None
    return made


def answers(engine: BuiltEngine, numbers: Sequence[int], *, drafts: int = 0) -> dict[int, list[tuple[int, float]]]:
    got: dict[int, list[tuple[int, float]]] = {number: [] for number in numbers}
    for number in numbers:
        engine.engine.submit(request(number, drafts=drafts))
    while engine.engine.has_work:
        result = engine.engine.step()
        rows = result.numbers.tolist(), result.sampled.ids.tolist(), result.sampled.logprobs.tolist()
        for number, token, logprob in zip(*rows, strict=True):
            got[number].append((token, logprob))
        engine.engine.check()
    return got


@pytest.mark.parametrize("page_size", [4, 8, 32])
def test_an_answer_is_the_same_alone_in_a_crowd_with_drafts_and_behind_what_is_cached(
    page_size: int, folder: Path
) -> None:
    alone, engine = {}, built(folder, page_size=page_size)
    for number in range(REQUESTS):
        alone |= answers(engine, [number])
        engine.engine.table.clear()
    assert engine.engine.scheduler.statistics.cached_prompt_tokens == 0
    together = range(REQUESTS)
    engine = built(folder, page_size=page_size, max_batch_tokens=19)  # prompts come in pieces
    assert answers(engine, together) == alone
    assert answers(engine, together) == alone  # behind prompts that are cached
    assert engine.engine.scheduler.statistics.cached_prompt_tokens > 5 * SHARED
    assert answers(engine, together, drafts=5) == alone
    statistics = engine.engine.scheduler.statistics
    assert 0 < statistics.draft_tokens_accepted < statistics.draft_tokens_proposed
    engine = built(folder, page_size=page_size, kv_cache_tokens=224)
    assert answers(engine, together) == alone
    assert engine.engine.scheduler.statistics.preemptions > 0 or page_size == 32  # so long ones are waited for


def test_it_may_guess_for_another_model(folder: Path, tmp_path: Path) -> None:
    large = save_llama(tmp_path / "large", 1, vocabulary=VOCABULARY)
    expected = answers(built(large), range(4))
    engine = built(large, draft_model=str(folder))
    assert answers(engine, range(4), drafts=3) == expected
    assert engine.engine.scheduler.statistics.draft_tokens_proposed > 0


def test_what_is_not_served_of_it_is_refused_in_words(folder: Path) -> None:
    with pytest.raises(BuildError, match="kv_cache_dtype int8 is not served of models whose keys are compressed"):
        built(folder, kv_cache_dtype="int8")
    config = built(folder).config
    with pytest.raises(BuildError, match="device cuda is not served of models whose keys are compressed"):
        require_kv_format("auto", torch.device("cuda"), config)
    with pytest.raises(ConfigError, match=r"compression is served by one rank, not by 2 \(tensor_parallel\)"):
        Ranks(0, 2).share(config)
    with pytest.raises(CheckpointError, match="has no head that guesses"):
        open_head(folder)
