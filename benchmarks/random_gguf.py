"""Writes GGUF files of random weights that have the names, shapes and metadata of a published model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers

from benchmarks.shapes import Shape
from benchmarks.word_model import vocabulary_fields
from tests.worker_svc.checkpoints.gguf_described import describe
from tests.worker_svc.checkpoints.gguf_kinds import ARCHITECTURES
from tests.worker_svc.checkpoints.gguf_models import add_field, is_plain
from tests.worker_svc.checkpoints.gguf_tensors import named_tensors

# Numbers and bytes of a block, its float16 numbers by where they stand for numbers of about 1, and the bytes that are
# the exponent of a scale.
_BLOCKS: dict[str, tuple[int, int, dict[int, float], dict[int, int]]] = {
    "Q8_0": (32, 34, {0: 1 / 74}, {}),
    "Q4_0": (32, 18, {0: 1 / 4.6}, {}),
    "Q4_K": (256, 144, {0: 0.006, 2: 0.045}, {}),
    "Q6_K": (256, 210, {208: 1 / 1500}, {}),
    "IQ4_NL": (32, 18, {0: 1 / 74}, {}),
    "MXFP4": (32, 17, {}, {0: 120}),
}
_WIDER = {"Q4_0": "Q8_0", "Q4_K": "Q6_K"}


def config_of(shape: Shape, layers: int) -> Any:
    """What transformers makes the first `layers` of."""
    settings = shape.settings(layers)
    return transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)


def write_config(folder: Path, shape: Shape, layers: int) -> None:
    """The `config.json` of a model, for who makes random weights himself."""
    config = config_of(shape, layers)
    with torch.device("meta"):
        config.architectures = [type(transformers.AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(folder)


def write_gguf(path: Path, kind: str, shape: Shape, layers: int) -> None:
    """A model of random weights, of matrices of a kind, and a vocabulary of words. The output of Q4_0 is Q8_0, as
    llama.cpp's own files have more bits there; Q4_K_M is Q4_K, and Q6_K in the output and, in every second layer, in
    values and down. Rows that no blocks fit are of the next kind that does."""
    config = config_of(shape, layers)
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **ways)
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture, use_temp_file=True)
    describe(writer, config)
    writer.add_vocab_size(config.vocab_size)
    for key, value in vocabulary_fields().items():
        add_field(writer, key, value)
    generator = np.random.default_rng(0)
    tensors = named_tensors(model)
    outputs = "output." if any(name.startswith("output.") for name, _ in tensors) else "token_embd."
    for name, tensor in tensors:
        if is_plain(name, tensor):
            writer.add_tensor(name, _plain(name, tuple(tensor.shape), generator))
            continue
        own = _kind(name, kind, outputs)
        if shape.experts and "_exps." in name:
            own = shape.experts
        columns = tensor.shape[-1]
        if columns % _BLOCKS.get(own, (1,))[0]:
            own = "Q8_0" if columns % 32 == 0 else "F16"
        writer.add_tensor(name, _matrix(own, tuple(tensor.shape), generator), raw_dtype=gguf.GGMLQuantizationType[own])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kind(name: str, kind: str, outputs: str) -> str:
    mixed = kind == "Q4_K_M"
    kind = "Q4_K" if mixed else kind
    wide = name.startswith(outputs)
    if mixed and name.startswith("blk."):
        wide = bool(int(name.split(".")[1]) % 2) and (".attn_v." in name or ".ffn_down" in name)
    return _WIDER.get(kind, kind) if wide else kind


def _matrix(kind: str, shape: tuple[int, ...], generator: np.random.Generator) -> npt.NDArray[Any]:
    """Numbers that keep the size of what they are multiplied by: of about 1 / sqrt(columns)."""
    *rows, columns = shape
    scale = columns**-0.5
    if kind in _BLOCKS:
        numbers, size, halves, exponents = _BLOCKS[kind]
        blocks = generator.integers(0, 256, (*rows, columns // numbers, size), dtype=np.uint8)
        # Of either sign: blocks are not quite symmetric, and what all rows have in common would grow by the layer.
        signs = generator.integers(0, 2, blocks.shape[:-1], dtype=np.uint8) << 7
        for at, half in halves.items():
            blocks[..., at : at + 2] = np.frombuffer(np.float16(half * scale).tobytes(), dtype=np.uint8)
            blocks[..., at + 1] ^= signs
        for at, exponent in exponents.items():
            blocks[..., at] = exponent
        return blocks.reshape(*rows, -1)
    plain = generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    if kind == "F16":
        return plain.astype(np.float16)
    return (plain.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8) if kind == "BF16" else plain


def _plain(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> npt.NDArray[np.float32]:
    """Vectors and what else is stored in F32: norms and scales are 1, and a state fades within some tens of tokens."""
    if name.endswith("ssm_a") or ".ssm_a." in name:
        made = -generator.uniform(1, 16, shape)
    elif ".ssm_dt." in name:
        made = generator.uniform(-6, -2, shape)
    elif "conv" in name or "ffn_gate_inp.weight" in name:
        made = generator.standard_normal(shape) * shape[-1] ** -0.5
    elif name.endswith(".bias") or ".attn_sinks" in name:
        made = generator.standard_normal(shape) * 0.02
    else:
        made = np.ones(shape)
    return made.astype(np.float32)
