"""What is read of Gemma 3n beyond what every architecture is tried with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.convert.run import convert
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.test_schemes import FORMATS, change_config
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import loaded, saved
from tests.worker_svc.model.tiny_models import MODELS

KIND, CHANGES = MODELS["gemma3n"]
CUT = "gemma3n, words that layers do not know, sizes of their own, another active stream"
ALTUP = ("modality_router.weight", "prediction_coefs.weight", "correction_coefs.weight")
SIZES = "feed_forward_length"


def test_what_a_gguf_file_does_not_say_is_that_of_the_published_models(tmp_path: Path) -> None:
    theirs = saved(KIND, tmp_path, **CHANGES | {"num_hidden_layers": 22, "layer_types": None, "num_kv_shared_layers": 2}
                   | {"activation_sparsity_pattern": [0.95] * 10 + [0.0] * 12})  # fmt: skip
    path = save_gguf(theirs, tmp_path / "model.gguf")
    expected, said = (
        open_checkpoint(path).config,
        ("altup.num_inputs", "altup.active_idx", "attention.shared_kv_layers"),
    )
    said += ("activation_sparsity_scale", "attention.sliding_window_pattern", "final_logit_softcapping")
    without = _without(theirs, tmp_path / "less.gguf", said)
    assert open_checkpoint(without).config == expected
    assert (expected.shared_layers, expected.sparsity) == (2, (0.95,) * 10 + (0.0,) * 12)
    assert torch.equal(*(logits_in_chunks(loaded(each), some_ids(97, 30), [30]) for each in (path, without)))


def _without(theirs: Any, path: Path, keys: tuple[str, ...]) -> Path:
    """A file that does not say some keys, whose names are taken from them."""
    save_gguf(theirs, path)
    data = path.read_bytes()
    for number, key in enumerate(keys):
        full = f"gemma3n.{key}".encode()
        assert full in data
        data = data.replace(full, b"general." + str(number).zfill(len(full) - 8).encode())
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"activation_sparsity_scale": [1.5, 0.5]}, "activation_sparsity_scale must be a number for each of 7 layers"),
        ({"activation_sparsity_scale": [1] * 6 + [2]}, "activation_sparsity_scale must be a number for each of 7"),
        ({"activation_sparsity_scale": [float("nan")] * 7}, "activation_sparsity_scale must be a number for each"),
        ({"activation_sparsity_scale": [0.5] * 6 + [float("inf")]}, "activation_sparsity_scale must be at least 0"),
        ({"altup.num_inputs": 0}, "altup.num_inputs must be from 1 to 16"),
        ({"altup.num_inputs": 3}, "altup_proj.weight"),
        ({"altup.active_idx": 4}, "altup.active_idx must be from 0 to 3, but is 4"),
        ({SIZES: [80, 40]}, f"{SIZES} must be one number, or one for each of 7 layers"),
        ({SIZES: [80, 40, 80, 80, 80, 80, 0]}, f"{SIZES} must be from 1 to"),
        ({"attention.head_count_kv": [2, 1, 2, 2, 2, 2, 2]}, "attention.head_count_kv must be a whole number"),
        ({"attention.shared_kv_layers": 7}, "attention.shared_kv_layers must be from 0 to 6"),
        ({"embedding_length_per_layer_input": 0}, "embedding_length_per_layer_input is missing, or 0"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, "rope.scaling.type is set"),
    ],
)
def test_keys_that_lie_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    metadata = {f"gemma3n.{key}": value for key, value in changes.items()}
    path = save_gguf(saved(KIND, tmp_path, **CHANGES), tmp_path / "model.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match=named.replace(".", r"\.")):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"activation_sparsity_pattern": 0.5}, "activation_sparsity_pattern must be a number for each of the 7 layers"),
        (
            {"activation_sparsity_pattern": [0.5] * 6 + ["x"]},
            r"activation_sparsity_pattern\[6\] must be a finite number",
        ),
        ({"activation_sparsity_pattern": [1.0] * 7}, "activation_sparsity_pattern must be at least 0 and less than 1"),
        ({"intermediate_size": [80] * 6}, "intermediate_size must be one number, or one for each of the 7 layers"),
        ({"intermediate_size": [80] * 6 + [-1]}, "intermediate_size must be from 1 to"),
        ({"altup_active_idx": -1}, "altup_active_idx must be from 0 to 3"),
        ({"altup_num_inputs": 17}, "altup_num_inputs must be from 1 to 16"),
        ({"laurel_rank": 0}, "laurel_rank must be from 1 to"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input must be from 1 to"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers 6 leave no layer of each kind"),
    ],
)
def test_fields_that_lie_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    saved(KIND, tmp_path, **CHANGES)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=named):
        open_checkpoint(tmp_path)


def test_words_that_layers_do_not_know_are_written_as_the_first_one(tmp_path: Path) -> None:
    theirs, ids = saved(KIND, tmp_path / "source", **MODELS[CUT][1]), [*range(60, 97), *range(20)]
    convert(tmp_path / "source", tmp_path / "model.gguf", "gguf", "auto", lambda done, total: None)
    convert(tmp_path / "model.gguf", tmp_path / "again", "hugging_face", "auto", lambda done, total: None)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].float()
    for each in ("source", "model.gguf", "again"):
        whole = logits_in_chunks(loaded(tmp_path / each), ids, [len(ids)])
        torch.testing.assert_close(whole, expected, atol=2e-4, rtol=0)


def test_small_matrices_that_are_stored_in_eight_bits_are_made_plain(tmp_path: Path) -> None:
    """As of a folder in which all that is linear was quantized."""
    make, settings, _ = FORMATS["compressed fp8"]
    theirs = saved(KIND, tmp_path, **CHANGES)
    tensors = load_file(tmp_path / "model.safetensors")
    for full in [name for name in tensors if name.endswith(ALTUP)]:
        parts, stored = make(tensors.pop(full))
        theirs.get_parameter(full).data.copy_(stored)
        tensors |= {full.removesuffix("weight") + part: tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    change_config(tmp_path, settings)
    ids = some_ids(97, 30)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].float()
    model = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32, quantization=None)
    torch.testing.assert_close(logits_in_chunks(model, ids, [30]), expected, atol=2e-4, rtol=0)
