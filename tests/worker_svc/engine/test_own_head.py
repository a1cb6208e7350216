"""The head of a model's own checkpoint guesses: as transformers' layers do, and without a change of any answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_head
from tandem.worker.engine.process.build import BuiltEngine, build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.request import Drafting, LogprobOptions, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tests.worker_svc.engine.test_draft_model import save_llama
from tests.worker_svc.model.heads import save_with_head
from tests.worker_svc.model.tiny_models import MODELS
from tests.worker_svc.model.tiny_models.hybrids import HYBRID, SHARED_EXPERT

VOCABULARY = 7  # so few that drafts are accepted by chance
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": MODELS["qwen3.5"],
    "experts": ("Qwen3Next", HYBRID | SHARED_EXPERT),
    "behind the model": MODELS["glm4 moe"],
    "over latents": MODELS["deepseek v3"],
    "over latents, other experts": MODELS["glm4 moe lite"],
    "over latents that are chosen": MODELS["deepseek v3.2"],
}


def built(folder: Path, draft: str = "mtp", **changes: Any) -> BuiltEngine:
    settings: dict[str, Any] = {"dtype": "float32", "threads": 1, "page_size": 8, "kv_cache_tokens": 800}
    return build_engine(
        EngineConfig(model=str(folder), draft_model=draft, device="cpu", speculate="always", **settings | changes)
    )


def request(number: int, *, drafts: int = 0, **sampling: Any) -> Request:
    draw = np.random.default_rng(number)
    made = Request.make(
        number,
        draw.integers(0, VOCABULARY, [1, 2, 30, 11][number % 4]),
        Sampling(seed=number, **{"temperature": 0.0} | sampling),
        Stopping(12),
        logprobs=LogprobOptions(sampled=True),
    )
    made.drafting = Drafting(drafts, ngram=0) if drafts else None
    return made


def answers(engine: BuiltEngine, requests: Sequence[Request]) -> dict[int, list[tuple[int, float]]]:
    got: dict[int, list[tuple[int, float]]] = {each.number: [] for each in requests}
    engine.engine.submit(*requests[:1])
    for each in requests[1:]:
        engine.engine.submit(each)
    while engine.engine.has_work:
        result = engine.engine.step()
        rows = zip(result.numbers.tolist(), result.sampled.ids.tolist(), result.sampled.logprobs.tolist(), strict=True)
        for number, token, logprob in rows:
            got[number].append((token, logprob))
        engine.engine.check()
    return got


@pytest.mark.parametrize(("kind", "own_tables"), [*((kind, False) for kind in KINDS), ("behind the model", True)])
def test_it_guesses_what_the_reference_guesses_whatever_was_accepted_before(
    kind: str, own_tables: bool, tmp_path: Path
) -> None:
    name, changes = KINDS[kind]
    reference = save_with_head(name, tmp_path, own_tables=own_tables, **changes | {"vocab_size": VOCABULARY})
    engine = built(tmp_path, max_batch_tokens=16, max_running_requests=4)  # the head, too, computes prompts in pieces
    proposer = engine.engine._speculation.model
    assert proposer is not None
    seen: list[int] = []
    propose = proposer.propose

    def compared(requests: Sequence[Request], counts: Sequence[int]) -> None:
        propose(requests, counts)
        for each in requests:
            known = each.known.tolist()
            drafts = each.tokens[each.num_tokens : each.num_tokens + each.drafts].tolist()
            if drafts:
                assert drafts == reference.guesses(known, len(drafts))[0]
            seen.append(len(drafts))

    proposer.propose = compared  # type: ignore[method-assign]
    answers(engine, [request(number, drafts=3) for number in range(12)])
    assert 3 in seen and 0 in seen, "nothing while a prompt is computed in pieces"
    statistics = engine.engine.scheduler.statistics
    assert 10 < statistics.draft_tokens_accepted < statistics.draft_tokens_proposed - 10


@pytest.mark.parametrize(("kind", "join"), [("dense", "mtp.fc"), ("over latents", "model.layers.3.eh_proj")])
def test_what_it_guesses_right_is_accepted(kind: str, join: str, tmp_path: Path) -> None:
    """A model and a head that look at nothing but the last token guess the same."""
    name, changes = KINDS[kind]
    save_with_head(name, tmp_path, **changes)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for stored, tensor in tensors.items():
        if any(part in stored for part in ("o_proj.", "out_proj.", "down_proj.")):
            tensor.zero_()
        elif "norm" in stored:
            tensor.fill_(0 if kind == "dense" else 1)  # those of Qwen3.5 multiply by 1 + weight
    size = len(tensors[f"{join}.weight"])
    tensors[f"{join}.weight"] = torch.cat((torch.eye(size), torch.zeros(size, size)), dim=1)
    save_file(tensors, file, {"format": "pt"})
    engine = built(tmp_path)
    assert engine.draft_tokens == 4 and engine.draft_model == "mtp"
    answers(engine, [request(number, drafts=4) for number in range(4)])
    statistics = engine.engine.scheduler.statistics
    assert statistics.draft_tokens_accepted == statistics.draft_tokens_proposed > 20


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_same_with_and_without_it(kind: str, tmp_path: Path) -> None:
    name, changes = KINDS[kind]
    save_with_head(name, tmp_path, **changes)
    sampling = {"temperature": 0.8, "top_p": 0.9}
    for settings in ({}, {"dtype": "bfloat16", "kv_cache_dtype": "int8", "quantize": "int8"}):
        plain, guessing = built(tmp_path, "", **settings), built(tmp_path, **settings)
        expected = answers(plain, [request(number, **sampling) for number in range(8)])
        assert answers(guessing, [request(number, drafts=5, **sampling) for number in range(8)]) == expected
        assert guessing.engine.scheduler.statistics.draft_tokens_proposed > 50
        assert guessing.weight_bytes > plain.weight_bytes
        kept = guessing.config.hidden_size * (4 if guessing.dtype == "float32" else 2)
        assert guessing.kv_bytes_per_token - plain.kv_bytes_per_token > kept


def test_its_embedding_and_output_are_the_models_own(tmp_path: Path) -> None:
    save_with_head("Qwen3_5Text", tmp_path, **MODELS["qwen3.5"][1] | {"vocab_size": 4096})  # far more than padding
    plain, guessing = built(tmp_path, ""), built(tmp_path)
    head = open_head(tmp_path)
    others = guessing.weight_bytes - plain.weight_bytes - head.total_bytes  # rotations, and panels that are filled up
    assert 0 <= others < 4096 * plain.config.hidden_size * 4
    assert not {"embedding", "output"} & head.config.tensor_shapes().keys()


def test_a_folder_without_a_head_that_is_served_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no head that guesses"):
        built(save_llama(tmp_path / "llama", 1))
    save_with_head("Qwen3_5Text", tmp_path / "two", **MODELS["qwen3.5"][1])
    file = tmp_path / "two" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"mtp.layers.1.input_layernorm.weight": torch.ones(3)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"2 layers.*one is served"):
        built(tmp_path / "two")
    save_file(tensors | {"mtp.embed_tokens.weight": torch.ones(3, 3)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"mtp\.embed_tokens\.weight is not part"):
        built(tmp_path / "two")
    missing = {name: tensor for name, tensor in tensors.items() if name != "mtp.fc.weight"}
    save_file(missing, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight is missing"):
        built(tmp_path / "two")
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_head(tmp_path / "nothing")
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "params.json").write_text("{}")
    with pytest.raises(CheckpointError, match="Meta's layout has no head"):
        open_head(tmp_path / "meta")


def test_a_layer_behind_the_model_that_is_no_head_or_more_than_one_says_so(tmp_path: Path) -> None:
    save_with_head("Glm4Moe", tmp_path, **MODELS["glm4 moe"][1])
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"model.layers.4.enorm.weight": torch.ones(48)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"2 layers \(model\.layers\.3, .*one is served"):
        open_head(tmp_path)
    missing = {name: tensor for name, tensor in tensors.items() if name != "model.layers.3.eh_proj.weight"}
    save_file(missing, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.eh_proj\.weight is missing"):
        open_head(tmp_path)
    save_file({name: tensor for name, tensor in tensors.items() if "layers.3." not in name}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"no head that guesses the token after next \(model\.layers\.3\)"):
        open_head(tmp_path)
