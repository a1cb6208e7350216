"""Loading: memory, progress, dtypes, and what cannot be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks import load_peak
from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.cpu import native
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, save_meta, some_ids

PEAK_MEMORY = Path(__file__).with_name("peak_memory.py")


@dataclass
class GivenCheckpoint:
    """A checkpoint from memory."""

    config: ModelConfig
    given: Mapping[str, torch.Tensor]
    path: Path = Path("given")
    format: Literal["meta", "hugging_face"] = "meta"
    dtype: torch.dtype = torch.float32
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    total_bytes: int = 0

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.given.items()

    def release(self, piece: torch.Tensor) -> None:
        pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("layout", ["meta", "hugging_face", "gguf"])
def test_loading_needs_little_more_memory_than_the_weights(layout: str, tmp_path: Path, repository: Path) -> None:
    with torch.device("meta"):
        reference = random_llama(
            hidden_size=1024,
            intermediate_size=2816,
            num_attention_heads=16,
            num_key_value_heads=4,
            vocab_size=16000,
            num_hidden_layers=4,
        )
    reference = reference.to_empty(device="cpu")
    for parameter in reference.parameters():
        parameter.data.fill_(0.01)
    if layout == "meta":
        save_meta(reference, tmp_path)
    elif layout == "gguf":
        save_gguf(reference, tmp_path / "model.gguf")
    else:
        reference.save_pretrained(tmp_path)
    del reference
    peak, _ = peak_memory(tmp_path, "float32", repository)
    total_bytes = open_checkpoint(tmp_path).total_bytes
    assert total_bytes > 300e6
    assert total_bytes < peak < 1.15 * total_bytes


def peak_memory(model: Path, dtype: str, repository: Path) -> tuple[int, int]:
    """The bytes that a load took at most, and those of the weights."""
    result = subprocess.run(
        [sys.executable, str(PEAK_MEMORY), str(model), dtype],
        env=os.environ | {"PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    peak, weights = map(int, result.stdout.split())
    return peak, weights


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_copies_made_while_a_quantized_model_is_loaded_leave_no_holes(tmp_path: Path, repository: Path) -> None:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    path = tmp_path / "model.gguf"
    load_peak.write_file(path, "Q4_K_M", load_peak.Shape(18, 2048, 5632, 16, 8, 8000))
    peak, weights = peak_memory(path, "bfloat16", repository)
    # On one heap the holes alone were 7 MB a layer, beside weights 2 MB; pages of the file and imports take some 30 MB.
    assert weights < peak < weights + 42e6


def test_progress_counts_stored_bytes_up_to_all_of_them(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    calls: list[tuple[int, int]] = []
    load_transformer(checkpoint, "cpu", torch.bfloat16, lambda done, total: calls.append((done, total)))
    assert {total for _, total in calls} == {checkpoint.total_bytes}
    done = [count for count, _ in calls]
    assert done == sorted(set(done))
    assert done[-1] == checkpoint.total_bytes


def test_every_matrix_is_in_the_wanted_dtype_and_no_weight_is_trained(tmp_path: Path) -> None:
    """Vectors may be float32, in which a processor computes that cannot do so in the dtype."""
    random_llama().save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        model = load_transformer(open_checkpoint(tmp_path), "cpu", dtype)
        assert {parameter.dtype for parameter in model.parameters() if parameter.dim() > 1} == {dtype}
        assert {parameter.dtype for parameter in model.parameters()} <= {dtype, torch.float32}
        assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_tied_output_is_the_embedding_and_counts_once(tmp_path: Path) -> None:
    reference = random_llama(tie_word_embeddings=True)
    reference.save_pretrained(tmp_path)
    model = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32)
    assert model.output.weights[0] is model.embedding.stored
    (numbers,) = (*model.embedding.stored.parameters(), *model.embedding.stored.buffers())
    held = (*model.parameters(), *model.buffers())
    assert sum(tensor.data_ptr() == numbers.data_ptr() for tensor in held) == 1


def test_a_model_outlives_its_files(tmp_path: Path) -> None:
    save_meta(random_llama(intermediate_size=160), tmp_path)
    model = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32)
    before = logits_in_chunks(model, some_ids(97, 9), [9])
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    assert torch.equal(logits_in_chunks(model, some_ids(97, 9), [9]), before)


def test_another_context_length_serves_the_same_weights(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    ids = some_ids(97, 20)
    usual = load_transformer(checkpoint, "cpu", torch.float32)
    short = load_transformer(checkpoint, "cpu", torch.float32, config=checkpoint.config.with_context_length(20))
    assert short.config.context_length == 20
    assert torch.equal(logits_in_chunks(short, ids, [20]), logits_in_chunks(usual, ids, [20]))


def test_numbers_beyond_float16_are_refused_by_name(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = 1e6
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    load_transformer(checkpoint, "cpu", torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down has numbers that do not fit into float16"):
        load_transformer(checkpoint, "cpu", torch.float16)


def without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize("name", ["embedding", "layers.2.attention.k", "norm"])
def test_a_checkpoint_that_breaks_its_promise_is_noticed(name: str, tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    opened = open_checkpoint(tmp_path)
    tensors = dict(opened.tensors())
    without(name)(tensors)
    with pytest.raises(CheckpointError, match=name):
        load_transformer(GivenCheckpoint(opened.config, tensors), "cpu", torch.float32)
