"""The head that guesses the token after next, in GGUF files: what a folder's is, and left alone where nobody asks."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import CheckpointError, open_checkpoint, open_head
from tandem.worker.convert.pieces import LEFT_OUT
from tandem.worker.convert.run import convert
from tests.exhaustive import some
from tests.worker_svc.checkpoints.gguf_heads import save_gguf_with_head
from tests.worker_svc.engine.test_own_head import answers, built, request
from tests.worker_svc.model.heads import save_with_head
from tests.worker_svc.model.tiny_lists import GRANTED
from tests.worker_svc.model.tiny_models import MODELS


@pytest.mark.parametrize(
    ("name", "own_tables"),
    [("qwen3.5", False), ("qwen3.5 moe", False), ("glm4 moe", False), ("glm4 moe", True), ("deepseek v3", False)],
)
def test_a_head_in_a_gguf_file_is_that_of_the_folder(name: str, own_tables: bool, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    reference = save_with_head(kind, tmp_path, own_tables=own_tables, **changes | GRANTED.get(kind, {}))
    path = save_gguf_with_head(reference, tmp_path / "model.gguf")
    assert open_checkpoint(path).config == open_checkpoint(tmp_path).config
    ours, folders = open_head(path), open_head(tmp_path)
    assert ours.config == folders.config
    assert bool(ours.config.own_tables) == own_tables
    expected = dict(folders.tensors())
    for tensor_name, tensor in ours.tensors():
        assert isinstance(tensor, torch.Tensor)
        torch.testing.assert_close(tensor, expected[tensor_name], atol=1e-6, rtol=0)
    assert ours.total_bytes == folders.total_bytes


def test_it_guesses_as_that_of_the_folder(tmp_path: Path) -> None:
    reference = save_with_head("Qwen3_5Text", tmp_path, **MODELS["qwen3.5"][1] | {"vocab_size": 7})
    path = save_gguf_with_head(reference, tmp_path / "model.gguf")
    engines = built(path), built(tmp_path)
    one, other = (answers(engine, [request(number, drafts=3) for number in range(6)]) for engine in engines)
    assert {number: [token for token, _ in answer] for number, answer in one.items()} == {
        number: [token for token, _ in answer] for number, answer in other.items()
    }
    first, second = (engine.engine.scheduler.statistics for engine in engines)
    assert first.draft_tokens_accepted == second.draft_tokens_accepted > 0
    assert first.draft_tokens_proposed == second.draft_tokens_proposed


def test_what_llama_cpp_does_without_is_not_missed_and_the_rest_is(tmp_path: Path) -> None:
    reference = save_with_head("Qwen3_5Text", tmp_path, **MODELS["qwen3.5"][1])
    path = save_gguf_with_head(reference, tmp_path / "model.gguf", "norm")
    norms = [dict(opened(path).tensors())["norm"] for opened in (open_head, open_checkpoint)]
    assert torch.equal(*norms)
    with pytest.raises(CheckpointError, match=r"blk\.4\.nextn\.enorm\.weight is missing"):
        open_head(save_gguf_with_head(reference, tmp_path / "model.gguf", "embedding_norm"))


@pytest.mark.parametrize(
    ("name", "own_tables"), some([("qwen3.5", False), ("glm4 moe", True), ("qwen3.5 moe", False)], ("glm4 moe", True))
)
def test_a_written_gguf_file_has_the_head_as_llama_cpps_converter_writes_it(
    name: str, own_tables: bool, tmp_path: Path
) -> None:
    kind, changes = MODELS[name]
    reference = save_with_head(kind, tmp_path / "source", own_tables=own_tables, **changes | GRANTED.get(kind, {}))
    told: list[tuple[int, int]] = []
    said = convert(
        tmp_path / "source", tmp_path / "ours.gguf", "gguf", "auto", lambda done, total: told.append((done, total))
    )
    assert LEFT_OUT not in said["notes"]
    assert [done for done, _ in told] == sorted(done for done, _ in told) and {total for _, total in told} == {
        told[-1][0]
    }
    theirs = save_gguf_with_head(reference, tmp_path / "theirs.gguf")
    copies = set() if own_tables else {"embed_tokens", "shared_head_head"}
    ours, expected = (
        {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
        for path in (tmp_path / "ours.gguf", theirs)
    )
    assert ours.keys() == {name for name in expected if name.split(".")[-2] not in copies}
    for tensor_name, data in ours.items():
        np.testing.assert_allclose(data, expected[tensor_name].reshape(data.shape), atol=1e-6)
    assert open_head(tmp_path / "ours.gguf").config == open_head(theirs).config


def test_a_head_that_is_not_written_is_noted(tmp_path: Path) -> None:
    save_with_head("DeepseekV3", tmp_path / "source", **MODELS["deepseek v3"][1] | GRANTED["DeepseekV3"])
    for target, family in (("target.gguf", "gguf"), ("target", "hugging-face")):
        said = convert(tmp_path / "source", tmp_path / target, family, "auto", lambda done, total: None)
        assert said["notes"].count(LEFT_OUT) == 1
        with pytest.raises(CheckpointError, match="no head that guesses"):
            open_head(tmp_path / target)
