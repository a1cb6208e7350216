"""Reads Meta's layout: `params.json`, `consolidated.00.pth` (and `.01`, ...) and, beside them, `tokenizer.model`.

What differs from other formats:

- Several files are the shards of a tensor-parallel run: each has every tensor, matrices cut along one dimension. Which
  one is seen from the shapes: Llama 2 cuts the embedding along the width, Llama 3 along the vocabulary.
- The size of the feed-forward layer is not stated but follows from `dim`, `multiple_of` and `ffn_dim_multiplier`.
- `vocab_size` may be -1: then the embedding says it. `n_kv_heads` may be absent: as many as heads.
- RoPE pairs are neighbours (rows 2i and 2i + 1 of a head); the rows of q and k are permuted to halves when read.
- Mistral's own files look alike, and say `hidden_dim`, `head_dim` and `sliding_window`.
- The context length is usually absent. Then it is 131,072 with `use_scaled_rope` (Llama 3.1), 8,192 with a
  `rope_theta` of 500,000 or more (Llama 3) and 4,096 otherwise (Llama 2); serve a shorter one where that is too long.
- `use_scaled_rope` means the scaling of Llama 3.1, factor 8; `rope_scaling_factor` in params.json sets another one.
- A field that is not in `FIELDS` is refused by its name.
- The end of a sequence is the tokenizer's business: its ids are read from `tokenizer.model`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from tandem.worker.checkpoints.checkpoint import (
    CheckpointError,
    StoredMatrix,
    StoredTensor,
    bytes_by_dtype,
    joined,
    main_dtype,
    match_tensors,
    release_mapped,
    rows_in_order,
)
from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, check_fields, rules
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.limits import LIMITS
from tandem.worker.checkpoints.model_parts.rope import RopeScaling
from tandem.worker.checkpoints.pickled import load_tensors
from tandem.worker.checkpoints.row_order import halves_order
from tandem.worker.checkpoints.special_ids import read_special_ids

_State = Mapping[str, torch.Tensor]
_KEYS = {
    "hidden_size": "dim",
    "intermediate_size": "ffn_dim_multiplier",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "windows": "sliding_window",
    "num_kv_heads": "n_kv_heads",
    "context_length": "max_seq_len",
    "rope_scaling.factor": "rope_scaling_factor",
    "rope_scaling.high_freq_factor": "rope_high_freq_factor",
}
FIELDS: Table = (
    rules(
        USED,
        "dim n_layers n_heads n_kv_heads head_dim vocab_size multiple_of ffn_dim_multiplier hidden_dim norm_eps",
        "max_seq_len sliding_window rope_theta use_scaled_rope rope_scaling_factor rope_high_freq_factor",
    )
    | rules(NEUTRAL, "max_batch_size")  # how much room another program takes
    | rules(Only((False,)), "qk_norm use_qk_norm")
    | rules(Only(({},)), "moe moe_args lora_args quantization_args")
    | rules(Only(), "attn_logit_softcapping n_local_experts rope_scaling")
    | {"model_type": Only(("transformer",))}
)
_IGNORED = re.compile(r"(.+\.)?rope\.freqs")  # a table that older exports carry; we compute our own
_LAYER_NAMES = {
    "attention.norm": "attention_norm",
    "attention.q": "attention.wq",
    "attention.k": "attention.wk",
    "attention.v": "attention.wv",
    "attention.output": "attention.wo",
    "mlp.norm": "ffn_norm",
    "mlp.gate": "feed_forward.w1",
    "mlp.up": "feed_forward.w3",
    "mlp.down": "feed_forward.w2",
}


class MetaCheckpoint:
    """An open folder in Meta's layout; see `Checkpoint`."""

    format: Literal["meta"] = "meta"

    def __init__(self, path: Path) -> None:
        """Reads everything but the weights themselves. Raises CheckpointError."""
        self.path = path
        params = Fields.read(path / "params.json")
        self._files = _weights_files(path)
        self._shards = [_load(file) for file in self._files]
        first, tensors = self._files[0], self._shards[0]
        self.config = _config(params, first, self._shards)
        expected = {stored_name(name): shape for name, shape in self.config.tensor_shapes().items()}
        if self.config.tie_embeddings:
            for shard in self._shards:
                shard.pop("output.weight", None)
        for file, shard in zip(self._files[1:], self._shards[1:], strict=True):
            _check_alike(first, tensors, file, shard)
        stored = {name: self._joined(name, expected.get(name)) for name in tensors}
        self._mapped = {tensor.untyped_storage().data_ptr() for shard in self._shards for tensor in shard.values()}
        match_tensors(first if len(self._files) == 1 else path, expected, stored)
        self.dtype = main_dtype(stored.values())
        self.stored_as = bytes_by_dtype(stored.values())
        self.total_bytes = sum(tensor.bytes for tensor in stored.values())
        self.bos_id, self.eos_ids = read_special_ids(path / "tokenizer.model", self.config.vocab_size)
        self.sampling_defaults: Mapping[str, float | int] = {}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | StoredMatrix]]:
        """Implements `Checkpoint.tensors`."""
        for name, shape in self.config.tensor_shapes().items():
            parts = [shard[stored_name(name)] for shard in self._shards]
            cut = _cut_dimension([tuple(part.shape) for part in parts], shape)
            tensor = parts[0] if cut is None else joined(parts, cut)
            if name.endswith((".q", ".k")):
                order = halves_order(len(tensor) // self.config.head_dim, self.config.head_dim)
                tensor = rows_in_order(tensor, order)
            if tensor is not parts[0]:
                for part in parts:
                    release_mapped(part)
            yield name, tensor

    def _joined(self, name: str, expected: tuple[int, ...] | None) -> StoredTensor:
        """Joins the shards' parts of a tensor."""
        parts = [shard[name] for shard in self._shards]
        shapes = [tuple(part.shape) for part in parts]
        cut = None if expected is None else _cut_dimension(shapes, expected)
        if cut is None:
            return StoredTensor(shapes[0], parts[0].dtype)
        return StoredTensor(_joined_shape(shapes, cut), parts[0].dtype)

    def release(self, piece: torch.Tensor | StoredMatrix) -> None:
        """Implements `Checkpoint.release`."""
        assert isinstance(piece, torch.Tensor)
        if piece.untyped_storage().data_ptr() in self._mapped:  # not a copy, joined or permuted
            release_mapped(piece)


def stored_name(name: str) -> str:
    """Returns a canonical tensor's name in the files."""
    if name.startswith("layers."):
        _, layer, part = name.split(".", 2)
        return f"layers.{layer}.{_LAYER_NAMES[part]}.weight"
    return {"embedding": "tok_embeddings", "output": "output", "norm": "norm"}[name] + ".weight"


def _cut_dimension(shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> int | None:
    """Returns the dimension along which parts of these shapes give a tensor of the shape `whole`. None where each is
    the whole already; where they do not fit, the dimension in which alone they differ from it."""
    if len(shapes) == 1 or all(shape == whole for shape in shapes):
        return None
    first = shapes[0]
    likely = [cut for cut in range(len(whole)) if first[:cut] + first[cut + 1 :] == whole[:cut] + whole[cut + 1 :]]
    return next((cut for cut in likely if _joined_shape(shapes, cut) == whole), likely[0] if likely else 0)


def _joined_shape(shapes: Sequence[tuple[int, ...]], cut: int) -> tuple[int, ...]:
    """Returns the shape of a concatenation; the first part's where they cannot be concatenated."""
    first = shapes[0]
    rest = {shape[:cut] + shape[cut + 1 :] for shape in shapes}
    if len(rest) > 1 or any(len(shape) != len(first) for shape in shapes) or cut >= len(first):
        return first
    return (*first[:cut], sum(shape[cut] for shape in shapes), *first[cut + 1 :])


def _check_alike(
    first: Path, tensors: Mapping[str, torch.Tensor], file: Path, shard: Mapping[str, torch.Tensor]
) -> None:
    """Checks that every shard has the same tensors, of the same dtypes."""
    for name, tensor in tensors.items():
        if name not in shard:
            raise CheckpointError(f"{file}: tensor {name} is missing, which {first.name} has")
        if shard[name].dtype != tensor.dtype:
            raise CheckpointError(f"{file}: tensor {name} is {shard[name].dtype}, but {tensor.dtype} in {first.name}")
    for name in shard:
        if name not in tensors:
            raise CheckpointError(f"{file}: has the tensor {name}, which {first.name} does not have")


def _weights_files(path: Path) -> list[Path]:
    """Returns every shard, in order; raises CheckpointError where one in between is missing."""
    found = {file.name for file in path.glob("consolidated.*.pth")}
    names = [f"consolidated.{number:02d}.pth" for number in range(max(1, len(found)))]
    for name in names:
        if name not in found:
            others = ", ".join(sorted(found)[:3])
            raise CheckpointError(f"{path / name}: no such file{f'; there is {others}' if others else ''}")
    return [path / name for name in names]


def _load(file: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_tensors(file).items() if not _IGNORED.fullmatch(name)}


def _config(params: Fields, file: Path, shards: Sequence[_State]) -> ModelConfig:
    tensors = shards[0]
    check_fields(params, FIELDS)
    dim, heads = params.integer("dim"), params.integer("n_heads")
    if dim < 1 or heads < 1 or (dim % heads and not params.has("head_dim")):
        raise params.error("dim", f"{dim} cannot be split over n_heads {heads}")
    vocab_size = params.integer("vocab_size", -1)
    embedding = tensors.get("tok_embeddings.weight")
    if vocab_size == -1:
        if embedding is None or embedding.dim() != 2:
            raise CheckpointError(f"{file}: tensor tok_embeddings.weight is missing or not a matrix")
        vocab_size = embedding.shape[0]
        if embedding.shape[1] == dim:  # each shard has some of the rows
            vocab_size *= len(shards)
    output = tensors.get("output.weight")
    tied = output is None or (embedding is not None and output.data_ptr() == embedding.data_ptr())
    window = params.integer("sliding_window", None)
    if params.has("hidden_dim") and window is None and not params.has("rope_theta"):
        raise params.error(
            "rope_theta", "is missing: 10000 by Meta's rule, but 1000000 by Mistral's, who say hidden_dim"
        )
    theta = params.number("rope_theta", 10000.0)
    layers = params.integer("n_layers")
    if window is not None and window < 1:
        raise params.error("sliding_window", f"must be at least 1, but is {window}")
    scaling = None
    if not params.boolean("use_scaled_rope", False):
        for key in ("rope_scaling_factor", "rope_high_freq_factor"):
            if params.has(key):
                raise params.error(key, "is set, but use_scaled_rope is not")
    else:
        scaling = build(
            RopeScaling,
            params,
            _KEYS,
            kind="llama3",
            factor=params.number("rope_scaling_factor", 8.0),
            high_freq_factor=params.number("rope_high_freq_factor", 4.0),
        )
    known_context = 131072 if scaling else 8192 if theta >= 500000 else 4096
    return build(
        ModelConfig,
        params,
        _KEYS,
        architecture="llama" if window is None else "mistral",
        vocab_size=vocab_size,
        hidden_size=dim,
        intermediate_size=_intermediate_size(params, dim),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=params.integer("n_kv_heads", heads),
        head_dim=params.integer("head_dim", dim // heads),
        context_length=params.integer("max_seq_len", known_context),
        norm_eps=params.number("norm_eps", 1e-5),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=tied,
        windows=() if window is None or not 0 < layers <= LIMITS["num_layers"] else (window,) * layers,
    )


def _intermediate_size(params: Fields, dim: int) -> int:
    multiple = params.integer("multiple_of", 256)
    if multiple < 1:
        raise params.error("multiple_of", f"must be at least 1, but is {multiple}")
    size = intermediate_size_of(dim, multiple, params.number("ffn_dim_multiplier", None))
    stated = params.integer("hidden_dim", size)
    if stated != size and (params.has("multiple_of") or params.has("ffn_dim_multiplier")):
        raise params.error("hidden_dim", f"is {stated}, but multiple_of and ffn_dim_multiplier make it {size}")
    return stated


def intermediate_size_of(dim: int, multiple_of: int, multiplier: float | None) -> int:
    """Returns two thirds of 4 dim, times the multiplier, rounded up to a multiple of `multiple_of`."""
    size = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        size = int(multiplier * size)
    return -(-size // multiple_of) * multiple_of
