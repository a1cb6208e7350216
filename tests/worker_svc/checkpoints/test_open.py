"""Which format a folder has, and that damage of any kind ends in one clear line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.ggml_blocks import QuantizedTensor
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.model.llama_folders import random_llama, save_meta


def test_the_format_is_recognised_by_what_is_in_the_folder(tmp_path: Path) -> None:
    reference = random_llama(intermediate_size=160)
    save_meta(reference, tmp_path)
    assert open_checkpoint(tmp_path).format == "meta"
    (tmp_path / "config.json").write_text("{}")  # of no use without safetensors
    assert open_checkpoint(tmp_path).format == "meta"
    reference.save_pretrained(tmp_path)
    assert open_checkpoint(tmp_path).format == "hugging_face"


def test_paths_that_are_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config\.json .* params\.json .* GGUF"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="does not begin with GGUF"):
        open_checkpoint(tmp_path / "model.gguf")
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match="does not begin with GGUF; a GGUF file or a folder is expected"):
        open_checkpoint(tmp_path / "model.bin")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="the folder that it lies in is expected"):
        open_checkpoint(tmp_path / "model.safetensors")
    (tmp_path / "other.gguf").touch()
    with pytest.raises(CheckpointError, match=r"2 GGUF files \(model\.gguf, other\.gguf\); name one"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("layout", ["meta", "hugging_face", "gguf"])
def test_random_damage_is_refused_or_harmless_but_never_another_error(layout: str, tmp_path: Path) -> None:
    reference = random_llama(intermediate_size=160, num_hidden_layers=1)
    if layout == "meta":
        save_meta(reference, tmp_path)
        file = tmp_path / "consolidated.00.pth"
    elif layout == "gguf":
        file = save_gguf(reference, tmp_path / "model.gguf")
    else:
        reference.save_pretrained(tmp_path)
        file = tmp_path / "model.safetensors"
    sound = file.read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(sound)
        near = chance.choice([0, 0, len(sound) - 4000])  # names, sizes and places stand at either end
        for _ in range(chance.choice([1, 4])):
            damaged[max(0, min(len(sound) - 1, near + chance.randrange(4000)))] = chance.randrange(256)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        file.write_bytes(damaged)
        try:
            for _, tensor in open_checkpoint(file if layout == "gguf" else tmp_path).tensors():
                (tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor).sum()
        except CheckpointError:
            refused += 1
    assert refused > 50
