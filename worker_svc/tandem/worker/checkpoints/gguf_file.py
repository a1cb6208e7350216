"""Reads GGUF files: tensors as views of the mapped file, under the names that our models have.

What differs from other formats:

- llama.cpp's `llama` architecture is Llama, Mistral and Mixtral alike.
- Where tensors are: `gguf_layout.py`. Gemma's norms have their 1 added.
- What the metadata say of the model: `gguf_config.py`.
- Quantized matrices come as `QuantizedTensor`.
- Without `output.weight` the output is the embedding.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from tandem.worker.checkpoints.checkpoint import (
    CheckpointError,
    StoredMatrix,
    StoredTensor,
    bytes_by_dtype,
    main_dtype,
    match_tensors,
    release_mapped,
    rows_in_order,
)
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS, OTHER_TYPES, BlockKind, QuantizedTensor
from tandem.worker.checkpoints.gguf_architectures.architecture import HEAD_NAMES, TOP_NAMES
from tandem.worker.checkpoints.gguf_config import LONGROPE, ROPE_DIVISORS, plain_value, read_config
from tandem.worker.checkpoints.gguf_factors import take_factors
from tandem.worker.checkpoints.gguf_fields import SAMPLING
from tandem.worker.checkpoints.gguf_hybrids import GgufPiece
from tandem.worker.checkpoints.gguf_latents import HEADS_APART
from tandem.worker.checkpoints.gguf_layout import GgufLayout
from tandem.worker.checkpoints.gguf_parts import Located, open_files
from tandem.worker.checkpoints.heads import TABLES, head_config, require_one
from tandem.worker.checkpoints.model_config import Table
from tandem.worker.checkpoints.places import transposed_by_head
from tandem.worker.checkpoints.sampling_defaults import sampling_defaults

_KINDS: Mapping[int, torch.dtype | BlockKind] = {
    0: torch.float32,
    1: torch.float16,
    30: torch.bfloat16,
    **{kind.number: kind for kind in BLOCK_KINDS.values()},
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Texts of tokens that end an answer, whatever the file says: llama.cpp's rule, for the families that are served.
_END_TEXTS = frozenset((b"<|eot_id|>", b"<|eom_id|>", b"<|end_of_text|>", b"<|im_end|>", b"<|endoftext|>", b"</s>"))


class GgufCheckpoint:
    """An open GGUF file, or all parts of one; see `Checkpoint`."""

    format: Literal["gguf"] = "gguf"

    def __init__(self, path: Path, *, head: bool = False) -> None:
        """Reads everything but the weights themselves: of the model, or of the `head` behind it. Raises
        CheckpointError."""
        files = open_files(path, _wanted)
        self.path = path = files.path
        self._tensors = files.tensors
        self._mapped = {tensor.file.data_ptr() for tensor in files.tensors.values()}
        stored = {name: _stored(name, tensor) for name, tensor in files.tensors.items()}
        _check_apart(files.tensors, stored)
        self.config, self._architecture = read_config(path, files, self._row_of_numbers)
        stored.pop(ROPE_DIVISORS, None)
        self._factors: Mapping[str, tuple[float, ...]] = {}
        self._factors = take_factors(path, stored, self._row_of_numbers)
        if self._architecture.longrope:
            for name in LONGROPE:
                stored.pop(name, None)
        layers = self.config.num_layers
        if head:
            stored = self._of_head(stored)
        elif self._architecture.drafting_layers:
            stored = {name: tensor for name, tensor in stored.items() if _block(name) < layers}
        self._drop_shared(stored)
        try:
            self._layout = GgufLayout(self.config, self._architecture, stored, layers if head else 0)
        except KeyError as error:
            kind = files.metadata["general.architecture"]
            raise CheckpointError(f"{path}: has {error.args[0]}, which is not known of {kind}") from None
        self._drop_ones(stored)
        match_tensors(path, self._layout.shapes, stored)
        self._numbers = {
            name: _number(path, files.metadata, key, layer, layers)
            for name, (key, layer) in self._layout.numbers.items()
        }
        self.dtype = main_dtype(stored.values())
        self.stored_as = bytes_by_dtype(stored.values())
        self.total_bytes = sum(tensor.bytes for tensor in stored.values())
        ids = _special_ids(path, files.metadata, self.config.vocab_size)
        self.bos_id, self.eos_ids = ids
        advice = {key: plain_value(files.metadata[key]) for key in SAMPLING.values() if key in files.metadata}
        self.sampling_defaults: Mapping[str, float | int] = sampling_defaults(Fields(path, advice), SAMPLING)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | StoredMatrix]]:
        """Implements `Checkpoint.tensors`."""
        layout = self._layout
        for name, shape in self.config.tensor_shapes().items():
            if name in layout.pieces:
                yield from self._piece(name, layout.pieces[name])
                continue
            if name in self._numbers:
                yield name, torch.tensor([self._numbers[name]], dtype=torch.float32)
                continue
            place = layout.places[name]
            tensor = self._view(place.stored, place.expert)
            if isinstance(place.rows, torch.Tensor):
                yield name, self._of_both(name, tensor, place.rows)
                release_mapped(tensor)
                continue
            if place.rows is not None:
                tensor = tensor[place.rows]
            if name.endswith(HEADS_APART):
                tensor = tensor.flatten() if isinstance(tensor, QuantizedTensor) else tensor.flatten(0, 1)
            if name.endswith("shared_router"):
                if isinstance(tensor, QuantizedTensor):
                    raise CheckpointError(f"{self.path}: tensor {place.stored} is quantized, which is not served")
                tensor = tensor.view(shape)
            order = layout.order(name, len(tensor))
            if order is not None:
                if isinstance(tensor, QuantizedTensor):
                    yield name, replace(tensor, blocks=rows_in_order(tensor.blocks, order))
                else:
                    yield name, rows_in_order(tensor, order)
                release_mapped(tensor)
            else:
                yield name, tensor

    def release(self, piece: torch.Tensor | StoredMatrix) -> None:
        """Implements `Checkpoint.release`."""
        assert isinstance(piece, torch.Tensor | QuantizedTensor)
        memory = piece.blocks if isinstance(piece, QuantizedTensor) else piece
        if memory.untyped_storage().data_ptr() in self._mapped:  # not a permuted copy of q or k
            release_mapped(memory)

    def _of_both(
        self, name: str, both: torch.Tensor | QuantizedTensor, rows: torch.Tensor
    ) -> torch.Tensor | QuantizedTensor:
        """Returns the heads' keys or values out of the matrix that has both."""
        part: torch.Tensor | QuantizedTensor = both[rows]
        if not name.endswith("key_up"):
            return part
        plain = part.dequantize() if isinstance(part, QuantizedTensor) else part
        return transposed_by_head(plain, self.config.num_heads)

    def _piece(self, name: str, piece: GgufPiece) -> Iterator[tuple[str, torch.Tensor | QuantizedTensor]]:
        mapped = self._view(piece.stored)
        taken = piece.take(mapped)
        yield name, taken
        if piece.rows is not None or (piece.columns is not None and isinstance(taken, torch.Tensor)):
            release_mapped(mapped)  # of which it is a copy

    def _of_head(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns what there is of the head, and makes its config that of the file. Copies of the model's embedding and
        output are left out; without a last norm it has the model's, as llama.cpp has it."""
        layer = self.config.num_layers
        ours = {name: tensor for name, tensor in stored.items() if _block(name) >= layer}
        require_one(self.path, {str(_block(name)) for name in ours}, f"blk.{layer}.nextn")
        norm, models = f"blk.{layer}.{HEAD_NAMES['norm']}", TOP_NAMES["norm"]
        if norm not in ours and models in stored:
            ours[norm], self._tensors[norm] = stored[models], self._tensors[models]
        own: list[Table] = []
        for table in TABLES:
            name, models = f"blk.{layer}.{HEAD_NAMES[table]}", TOP_NAMES[table]
            if models not in stored:
                models = TOP_NAMES["embedding"]
            if name in ours and ours[name] == stored.get(models) and self._equal(name, models):
                del ours[name]
            elif name in ours:
                own.append(table)
        self.config = head_config(self.config, tuple(own))
        return ours

    def _equal(self, one: str, other: str) -> bool:
        """Tells whether two tensors of one kind and shape are the same bytes."""
        first, second = (self._bytes(name) for name in (one, other))
        same = torch.equal(first, second)
        release_mapped(first)
        release_mapped(second)
        return same

    def _drop_ones(self, stored: dict[str, StoredTensor]) -> None:
        """Makes vectors of what newer converters store as matrices of one row: to llama.cpp the two are the same."""
        for name, shape in self._layout.shapes.items():
            if name in stored and stored[name].shape == (1, *shape):
                stored[name] = replace(stored[name], shape=shape)
                located = self._tensors[name]
                self._tensors[name] = replace(located, tensor=replace(located.tensor, shape=shape))

    def _drop_shared(self, stored: dict[str, StoredTensor]) -> None:
        """Leaves out what layers would have if they did not look at the keys and values of another one."""
        for layer in range(self.config.num_layers - self.config.shared_layers, self.config.num_layers):
            for part in ("attn_k", "attn_v", "attn_k_norm"):
                stored.pop(f"blk.{layer}.{part}.weight", None)

    def _view(self, name: str, expert: int | None = None) -> torch.Tensor | QuantizedTensor:
        """Returns a tensor, or one expert's part of it, as it lies in the file."""
        tensor = self._tensors[name].tensor
        kind, raw, shape = _KINDS[tensor.kind], self._bytes(name), tensor.shape
        if expert is not None:
            size = len(raw) // shape[0]
            raw, shape = raw[expert * size : (expert + 1) * size], shape[1:]
        if isinstance(kind, BlockKind):
            factors = self._factors.get(name, (1.0,))
            factor = factors[expert] if expert is not None and len(factors) > 1 else factors[0]
            return QuantizedTensor(kind, raw.view(*shape[:-1], -1, kind.block_bytes), factor=factor)
        return raw.view(kind).view(shape)

    def _bytes(self, name: str) -> torch.Tensor:
        """Returns a tensor's bytes, `[bytes]` uint8."""
        located = self._tensors[name]
        size = StoredTensor(located.tensor.shape, _KINDS[located.tensor.kind]).bytes
        return located.file[located.tensor.offset : located.tensor.offset + size]

    def _row_of_numbers(self, name: str) -> tuple[float, ...]:
        located = self._tensors.get(name)
        if located is None:
            return ()
        tensor = located.tensor
        if tensor.kind != 0 or len(tensor.shape) != 1 or tensor.shape[0] > 1 << 10:
            raise CheckpointError(f"{self.path}: tensor {name} must be one row of float32")
        view = self._view(name)
        assert isinstance(view, torch.Tensor)
        return tuple(view.tolist())


def _number(path: Path, metadata: Mapping[str, Any], key: str, layer: int, layers: int) -> float:
    """Returns a layer's number of a key that has one for each, or one for all."""
    value = metadata.get(key)
    if isinstance(value, array | list):
        if len(value) != layers:
            raise CheckpointError(f"{path}: {key} must be one number, or one for each of {layers} layers")
        value = value[layer]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} must be one number, or one for each of {layers} layers")
    return float(value)


def _block(name: str) -> int:
    """Returns the number of the block that a tensor belongs to; -1 if it belongs to none."""
    block, _, rest = name.removeprefix("blk.").partition(".")
    return int(block) if rest and name.startswith("blk.") and block.isdecimal() and len(block) < 10 else -1


def _wanted(key: str) -> bool:
    """Tells whether a key is wanted: of the vocabulary only the texts, which may end an answer."""
    return not key.startswith("tokenizer.") or key == "tokenizer.ggml.tokens" or key.endswith("_token_id")


def _stored(name: str, located: Located) -> StoredTensor:
    """Checks that a tensor lies within its file."""
    tensor, path, size = located.tensor, located.path, len(located.file)
    kind = _KINDS.get(tensor.kind)
    if kind is None:
        served = ", ".join(kind.name if isinstance(kind, BlockKind) else str(kind)[6:] for kind in _KINDS.values())
        other = OTHER_TYPES.get(tensor.kind)
        called = f"{tensor.kind} ({other})" if other else f"{tensor.kind}, which is not known"
        raise CheckpointError(f"{path}: tensor {name} has the ggml type {called}; served are {served}")
    if isinstance(kind, BlockKind) and len(tensor.shape) == 1:
        raise CheckpointError(f"{path}: tensor {name} is a vector of {kind.name}; vectors are served of plain numbers")
    if isinstance(kind, BlockKind) and tensor.shape[-1] % kind.block_numbers:
        raise CheckpointError(
            f"{path}: tensor {name} has rows of {tensor.shape[-1]} numbers, "
            f"but {kind.name} stores {kind.block_numbers} at once"
        )
    shape = tensor.shape
    while ".ssm_" in name and len(shape) > 2 and shape[0] == 1:  # which says nothing
        shape = shape[1:]
    stored = StoredTensor(shape, kind)
    if tensor.offset + stored.bytes > size:
        raise CheckpointError(f"{path}: is truncated: tensor {name} ends behind the file's {size} bytes")
    return stored


def _check_apart(tensors: Mapping[str, Located], stored: Mapping[str, StoredTensor]) -> None:
    """Checks that no two tensors of a file share bytes, as those of a damaged header may."""
    ends: dict[Path, tuple[int, str]] = {}
    for name, located in sorted(tensors.items(), key=lambda item: item[1].tensor.offset):
        end, before = ends.get(located.path, (0, ""))
        if located.tensor.offset < end:
            raise CheckpointError(f"{located.path}: tensors {before} and {name} overlap; the file is damaged")
        ends[located.path] = (located.tensor.offset + stored[name].bytes, name)


def _special_ids(path: Path, metadata: Mapping[str, Any], vocab_size: int) -> tuple[int | None, tuple[int, ...]]:
    """Returns the beginning-of-sequence id and the ids that end an answer. Converters write 2^32 - 1 for none."""

    def known(key: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{key}")
        return value if type(value) is int and 0 <= value < vocab_size else None

    texts = metadata.get("tokenizer.ggml.tokens")
    if isinstance(texts, list) and len(texts) > vocab_size:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.tokens has {len(texts)} entries for {vocab_size} rows of weights"
        )
    ends = [known(key) for key in _END_KEYS]
    if isinstance(texts, list):
        ends += [index for index, text in enumerate(texts) if text in _END_TEXTS]
    return known("bos_token_id"), tuple(dict.fromkeys(one for one in ends if one is not None))
