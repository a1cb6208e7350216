"""Reads Hugging Face's layout: `config.json`, `generation_config.json` and one or several files of weights.

- Weights are in `model.safetensors`, or spread over files that `model.safetensors.index.json` lists. Where there are
  none, those of `pytorch_model.bin` and its index are read, as tensors alone.
- RoPE pairs are half a head apart, which is also our convention.
- `dtype` and `torch_dtype` of the config are not looked at: the files know better.
- Which fields are known: `hugging_face_fields/`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from tandem.worker.checkpoints.adapters import Adapted, LowRank, Rows, adapted_tensors, low_rank
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
from tandem.worker.checkpoints.heads import TABLES, head_config
from tandem.worker.checkpoints.hugging_face_architectures.architecture import EMBEDDING, OUTPUT, Architecture
from tandem.worker.checkpoints.hugging_face_config import architecture_of, read_config
from tandem.worker.checkpoints.hugging_face_fields.generation import GENERATION
from tandem.worker.checkpoints.hugging_face_heads import head_tensors, layer_of_head, stored_name
from tandem.worker.checkpoints.hugging_face_hybrids import Piece, pieces, state_pieces
from tandem.worker.checkpoints.hugging_face_wrapped import (
    text_fields,
    text_name,
    text_names,
    with_stored_experts,
    wrapper_around,
    wrapper_of,
)
from tandem.worker.checkpoints.known_fields import check_fields
from tandem.worker.checkpoints.model_config import ModelConfig, Table
from tandem.worker.checkpoints.model_optimizer import ModelOptimizerScheme
from tandem.worker.checkpoints.places import Place, places_with_latents, transposed_by_head
from tandem.worker.checkpoints.row_order import heads_order, index_order, latents_order
from tandem.worker.checkpoints.sampling_defaults import WHOLE_CONTEXT, sampling_defaults
from tandem.worker.checkpoints.scheme_parts import Part, Scheme
from tandem.worker.checkpoints.schemes import of_experts, scheme_of
from tandem.worker.checkpoints.tensor_files import open_files, read_tensor

_log = logging.getLogger(__name__)

# Tables that older exports carry, which we compute: RoPE's, and which tokens a token sees.
_IGNORED = re.compile(
    r".+\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)"  # of lightning attention
    r"|(.+\.)?(rotary_emb\.inv_freq|h\.\d+\.attn\.(attention\.)?(masked_)?bias|\d+\.attention\.(masked_)?bias)"
)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class _Quantized:
    """A matrix, or one of each expert, that is stored quantized, and the names of its parts."""

    scheme: Scheme
    shape: tuple[int, int]
    parts: Mapping[str, str]


class HuggingFaceCheckpoint:
    """An open folder in Hugging Face's layout; see `Checkpoint`."""

    format: Literal["hugging_face"] = "hugging_face"

    def __init__(self, path: Path, *, head: bool = False, adapter: Path | None = None) -> None:
        """Reads everything but the weights themselves: the model, with the changes of an `adapter`, or the `head`
        beside it. Raises CheckpointError."""
        self.path = path
        whole = Fields.read(path / "config.json")
        config, wrapper = text_fields(whole), wrapper_of(whole)
        self._architecture = architecture_of(config)
        # Stored name -> the open file that has it.
        self._files = {name: file for name, file in open_files(path, _WEIGHTS).items() if not _IGNORED.fullmatch(name)}
        wrapper = wrapper or wrapper_around(self._architecture)
        self._wrapped = wrapper is not None
        # What the files call a tensor, by what we do: a text model's that is part of another have names of their own.
        self._names = text_names(path, self._files, wrapper)
        self._head_layer = layer_of_head(config, self._architecture) if head else None
        if head:
            own = head_tensors(path, self._head_layer, self._architecture, self._names)
            ours = {name: self._names[theirs] for name, theirs in own.items()}
            self._names |= ours
        else:
            known = self._architecture
            if wrapper is not None or known.hybrid or known.renamed or known.own_norm_names or known.also_stored:
                every = {theirs: known.our_name(theirs) for theirs in self._names}
                self._names = {name: self._names[theirs] for theirs, name in every.items() if name is not None}
            ours = self._names
        self._unread: frozenset[str] = frozenset()  # what the files may have, and the model has not
        if adapter is not None:
            self._files |= adapted_tensors(self._files, adapter, self._in_files)
        stored = {name: self._files[theirs].stored(theirs) for name, theirs in ours.items()}
        if wrapper is not None:
            self._architecture = with_stored_experts(self._architecture, config, stored)
        self._joined: dict[str, tuple[str, ...]] = {}  # of several tensors of the files, below each other
        for one, parts in self._architecture.joined.items():
            self._join(one, parts, stored)
        self._embedding = EMBEDDING
        own_tables = self._drop_copies(stored) if head else ()
        usually_tied = self._architecture.tied or (wrapper is not None and wrapper.tied and OUTPUT not in stored)
        tied = config.boolean("tie_word_embeddings", usually_tied)
        if tied and OUTPUT in stored:
            if EMBEDDING not in stored:
                self._embedding = OUTPUT
            elif stored[OUTPUT] == stored[EMBEDDING] and self._equal(OUTPUT, EMBEDDING):
                del stored[OUTPUT]
            else:
                tied = False
                _log.warning(
                    "%s: tie_word_embeddings is true, but %s differs from %s; both are used", path, OUTPUT, EMBEDDING
                )
        self.config = read_config(config, self._architecture, tied)
        if head:
            self.config = head_config(self.config, own_tables)
        self._pieces: dict[str, Piece] = {}
        if self._architecture.hybrid:
            self._pieces = pieces(self._architecture, self.config, stored)
        elif self.config.recurrence is not None:
            self._pieces = state_pieces(self._architecture, self.config)
        others = {name: shape for name, shape in self.config.tensor_shapes().items() if name not in self._pieces}
        how = {"by_turns": self._architecture.experts_by_turns, "by_kv_head": self._architecture.grouped_qkv}
        self._places, shapes = places_with_latents(self.config, others, self._stored_name, **how)
        shapes |= {piece.stored: piece.shape for piece in self._pieces.values()}
        if not head:
            self._drop_drafting_layers(config, stored)
        self._unread = self._of_shared_layers()
        for name in self._unread & stored.keys():
            del stored[name]
        for name in [name for name in stored if name.startswith(self._architecture.unread)]:
            del stored[name]
        for name in [name for name in stored if name.endswith(self._architecture.whole_numbers)]:
            if stored[name].dtype in (torch.int64, torch.int32):  # they become floats, of which all are whole
                stored[name] = StoredTensor(stored[name].shape, torch.float32)
        self._quantized: dict[str, _Quantized] = {}
        self._quantized_bytes = 0
        self._copy: torch.Tensor | None = None  # rows in another order than they lie in the file
        scheme = scheme_of(config)
        if isinstance(scheme, ModelOptimizerScheme):
            for name in [name for name in stored if scheme.unused.fullmatch(name)]:
                del stored[name]
        self.stored_as = bytes_by_dtype(tensor for tensor in stored.values() if not isinstance(tensor.dtype, str))
        if scheme is not None:
            self._unpack(scheme, shapes, stored)
        shapes = shapes_in_files(self._architecture, shapes)  # of those that are not quantized
        match_tensors(path, shapes, stored)
        self.dtype = main_dtype(stored.values())
        self.total_bytes = sum(tensor.bytes for tensor in stored.values()) + self._quantized_bytes
        generation_file = path / "generation_config.json"
        generation = Fields.read(generation_file) if generation_file.exists() else Fields(generation_file, {})
        check_fields(generation, GENERATION)
        self.eos_ids = self._special_ids("eos_token_id", generation, config)
        self.bos_id = next(iter(self._special_ids("bos_token_id", generation, config)), None)
        samples = generation.boolean("do_sample", True)
        self.sampling_defaults = sampling_defaults(generation) if samples else {}
        if self.sampling_defaults.get("repetition_penalty", 1) != 1:  # which looks at all tokens in transformers
            self.sampling_defaults["repetition_window"] = WHOLE_CONTEXT

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | StoredMatrix]]:
        """Implements `Checkpoint.tensors`."""
        for name in self.config.tensor_shapes():
            if name in self._pieces:
                yield name, self._piece(self._pieces[name])
                continue
            place = self._places[name]
            quantized = self._quantized.get(place.stored)
            source: torch.Tensor | StoredMatrix
            if quantized is not None:
                matrix = self._matrix(place, quantized)
                source = matrix if place.rows is None else matrix[place.rows]
            elif isinstance(place.rows, torch.Tensor):
                mapped = self._read(Place(place.stored))
                source = self._copy = rows_in_order(mapped, place.rows)
                release_mapped(mapped)
            elif self._architecture.router_bias_row and name.endswith("router_bias"):
                source = self._read(place)[0]
            elif self._architecture.is_transposed(place.stored, place.expert):
                source = self._copy = self._transposed(place)
            else:
                source = self._read(place)
            if name.endswith("router_table"):
                source = self._copy = self._checked_table(place, source)
            if name.endswith("key_up"):
                plain = source if isinstance(source, torch.Tensor) else source.dequantize()
                source = self._copy = transposed_by_head(plain, self.config.num_heads)
            if self._architecture.float32_router and name.endswith(".router") and isinstance(source, torch.Tensor):
                mapped, source = source, source.to(torch.float32, copy=True)
                self._copy = source
                release_mapped(mapped)
            order = row_order(self.config, self._architecture, name, len(source))
            if self._architecture.norms_from_one and name.endswith("norm"):
                assert isinstance(source, torch.Tensor)
                source = self._copy = source.float() + 1
            if order is None:
                yield name, source
            elif isinstance(source, torch.Tensor):
                self._copy = rows_in_order(source, order)
                if not self._architecture.norms_from_one:
                    release_mapped(source)
                yield name, self._copy
            else:
                yield name, source[order]

    def low_rank(self, adapter: Path) -> dict[str, LowRank]:
        """Returns what an adapter adds to matrices of the model, by their canonical names. Raises CheckpointError."""
        ours = {theirs: name for name, theirs in self._names.items()}
        shapes = self.config.tensor_shapes()

        def parts_of(stored: str) -> dict[str, Rows]:
            name = ours.get(stored, stored)  # of a matrix that is stored quantized there are parts alone
            inside = {one: place for one, place in self._places.items() if (place.stored, place.expert) == (name, None)}
            pieces = {one: piece for one, piece in self._pieces.items() if (piece.stored, piece.expert) == (name, None)}
            return {one: partial(self._taken, one, place) for one, place in inside.items()} | {
                one: piece.take for one, piece in pieces.items()
            }

        return low_rank(
            adapter, self._in_files, parts_of, shapes, lambda stored: self._architecture.is_transposed(stored, None)
        )

    def _in_files(self, name: str) -> str | None:
        """Returns what the files call a tensor that transformers' model has under this name, which may begin otherwise
        there; None if it is not loaded."""
        text = text_name(name) if self._wrapped else name
        ours = None if text is None else self._architecture.our_name(text)
        if ours is None or ours in self._unread:
            return None
        return self._names.get(ours, ours)

    def _taken(self, name: str, place: Place, stored: torch.Tensor) -> torch.Tensor:
        """Returns the rows of a canonical tensor out of as many as its stored one has."""
        rows = stored if place.rows is None else stored[place.rows]
        order = row_order(self.config, self._architecture, name, len(rows))
        return rows if order is None else rows[order]

    def release(self, piece: torch.Tensor | StoredMatrix) -> None:
        """Implements `Checkpoint.release`."""
        if not (isinstance(piece, torch.Tensor) and self._copy is not None and _same_memory(piece, self._copy)):
            release_mapped(piece)

    def _matrix(self, place: Place, quantized: _Quantized) -> StoredMatrix:
        parts = {part: self._read(Place(stored, place.expert)) for part, stored in quantized.parts.items()}
        try:
            return quantized.scheme.matrix(quantized.shape, parts)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {place.stored} {error}") from error

    def _checked_table(self, place: Place, table: torch.Tensor | StoredMatrix) -> torch.Tensor:
        """Returns a table of the experts of each token, which must be there. Raises CheckpointError."""
        assert isinstance(table, torch.Tensor) and self.config.experts is not None
        count, least, most = self.config.experts.count, int(table.min()), int(table.max())
        if least < 0 or most >= count:
            problem = f"has the experts {least} to {most}, but there are {count}"
            raise CheckpointError(f"{self.path}: tensor {place.stored} {problem}")
        return table.float()

    def _stored_name(self, name: str) -> tuple[str, int | None]:
        if self._head_layer is not None:
            return stored_name(self._architecture, self._head_layer, name)
        return (self._embedding, None) if name == "embedding" else self._architecture.stored_name(name)

    def _join(self, whole: str, parts: tuple[str, ...], stored: dict[str, StoredTensor]) -> None:
        """Makes one of tensors whose names end with these parts, however its rows are divided among them."""
        for first in [name for name in stored if name.endswith(parts[0])]:
            names = tuple(first.removesuffix(parts[0]) + part for part in parts)
            shapes = [stored[name].shape for name in names if name in stored]
            if len(shapes) == len(parts) and len({shape[1:] for shape in shapes}) == 1 and all(shapes):
                made, dtype = first.removesuffix(parts[0]) + whole, stored[first].dtype
                stored[made] = StoredTensor((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype)
                self._joined[made] = names
                for name in names:
                    del stored[name]

    def _drop_copies(self, stored: dict[str, StoredTensor]) -> tuple[Table, ...]:
        """Leaves out embedding and output of a head that are the model's; returns which are not."""
        if self._head_layer is None:
            return ()
        own: list[Table] = []
        for table, models in zip(TABLES, (EMBEDDING, OUTPUT), strict=True):
            name, _ = stored_name(self._architecture, self._head_layer, table)
            if models not in self._names:
                models = EMBEDDING  # tied
            theirs = self._names.get(models)
            same = theirs is not None and stored.get(name) == self._files[theirs].stored(theirs)
            if same and self._equal(name, models):
                del stored[name]
            elif any(other.startswith(name.removesuffix("weight")) for other in stored):
                own.append(table)
        return tuple(own)

    def _drop_drafting_layers(self, config: Fields, stored: dict[str, StoredTensor]) -> None:
        """Leaves out layers behind the last one, which predict further tokens."""
        further = config.integer("num_nextn_predict_layers", 0) if self._architecture.drafting_layers else 0
        if further < 0:
            raise config.error("num_nextn_predict_layers", f"must be at least 0, but is {further}")
        layers = self.config.num_layers
        prefixes = tuple(f"model.layers.{layer}." for layer in range(layers, layers + min(further, 16)))
        for name in [name for name in stored if name.startswith(prefixes)]:
            del stored[name]

    def _of_shared_layers(self) -> frozenset[str]:
        """Returns the names of what layers would have if they did not look at the keys and values of another one."""
        layers = range(self.config.num_layers - self.config.shared_layers, self.config.num_layers)
        parts = "k_proj", "v_proj", "k_norm", "v_norm"
        return frozenset(
            f"model.layers.{layer}.self_attn.{part}.{kind}"
            for layer in layers
            for part in parts
            for kind in ("weight", "bias")
        )

    def _special_ids(self, key: str, generation: Fields, config: Fields) -> tuple[int, ...]:
        """Reads ids from generation_config.json, else config.json, else takes the architecture's defaults."""
        vocab_size = self.config.vocab_size
        for fields in (generation, config):
            if fields.has(key):
                return fields.token_ids(key, vocab_size)
        default = self._architecture.special_ids.get(key, ())
        ids = (default,) if isinstance(default, int) else default
        return () if key in config.values else tuple(one for one in ids if one < vocab_size)  # null: there is none

    def _unpack(self, scheme: Scheme, shapes: dict[str, tuple[int, ...]], stored: dict[str, StoredTensor]) -> None:
        """Takes the matrices that are quantized out of what is expected and what is stored. Raises CheckpointError."""
        for name in [name for name, shape in shapes.items() if len(shape) == 3 or name.endswith("weight")]:
            *lead, columns = shapes[name]
            its = scheme if len(lead) == 1 else of_experts(scheme, turned=self._architecture.transposed_experts)
            if not lead or its is None:
                continue
            base = name.removesuffix("weight")
            found = {part: stored[base + part] for part in its.parts if base + part in stored}
            try:
                expected = its.expected(shapes[name], found)
            except ValueError as error:
                raise CheckpointError(f"{self.path}: {name} {error}") from error
            if not expected:
                continue
            if base + "bias" in stored and base + "bias" not in shapes:
                # Some tools write a bias of zeros for every matrix.
                if self._read(Place(base + "bias")).any():
                    raise CheckpointError(f"{self.path}: tensor {base}bias is not part of the model, and not zero")
                del stored[base + "bias"]
            del shapes[name]
            self._check_parts(base, expected, found)
            self._quantized[name] = _Quantized(its, (lead[-1], columns), {part: base + part for part in expected})
            self._quantized_bytes += sum(stored.pop(base + part).bytes for part in expected)

    def _check_parts(self, base: str, expected: Mapping[str, Part], found: Mapping[str, StoredTensor]) -> None:
        for part, tensor in found.items():
            if part in expected and tensor.dtype not in expected[part].dtypes:
                raise CheckpointError(
                    f"{self.path}: tensor {base}{part} is stored as {tensor.dtype}, not as it is packed"
                )
        # Their dtypes are right, whatever they are; their shapes are compared as all shapes are.
        shapes = {
            base + part: found[part].shape if part in found and found[part].shape in its.shapes else its.shapes[0]
            for part, its in expected.items()
        }
        there = {base + part: StoredTensor(tensor.shape, torch.float32) for part, tensor in found.items()}
        match_tensors(self.path, shapes, {name: tensor for name, tensor in there.items() if name in shapes})

    def _read(self, place: Place) -> torch.Tensor:
        stored_name = place.stored
        if stored_name in self._joined:
            whole = self._copy = torch.cat([self._read(Place(name)) for name in self._joined[stored_name]])
            return whole if place.rows is None else whole[place.rows]
        name = self._names.get(stored_name, stored_name)
        tensor = read_tensor(self.path, self._files[name], name, stored_name)
        if isinstance(self._files[name], Adapted):
            self._copy = tensor
        if not tensor.dim():
            tensor = tensor.view(1)
        if place.expert is not None:
            tensor = tensor[place.expert]
        return tensor if place.rows is None else tensor[place.rows]

    def _piece(self, piece: Piece) -> torch.Tensor | StoredMatrix:
        quantized = self._quantized.get(piece.stored)
        if quantized is not None:
            matrix = self._matrix(Place(piece.stored, piece.expert), quantized)
            return matrix if piece.rows is None else matrix[piece.rows]
        mapped = self._read(Place(piece.stored))
        taken = piece.take(mapped)
        if not _same_memory(taken, mapped):
            self._copy = taken
            release_mapped(mapped)
        return taken

    def _transposed(self, place: Place) -> torch.Tensor:
        """Copies a matrix that is stored `[in, out]`, or the bias of an expert that has such."""
        mapped = self._read(Place(place.stored, place.expert))
        rows = mapped.t() if mapped.dim() == 2 else mapped
        copy = rows[place.rows or slice(None)].clone(memory_format=torch.contiguous_format)
        release_mapped(mapped)
        return copy

    def _equal(self, one: str, other: str) -> bool:
        first, second = self._read(Place(one)), self._read(Place(other))
        same = torch.equal(first, second)
        release_mapped(first)
        release_mapped(second)
        return same


def row_order(config: ModelConfig, architecture: Architecture, name: str, rows: int) -> torch.Tensor | None:
    """Returns the order that makes the rows of q and k (and their biases and norms) ours; None: they are."""
    if config.latents is not None:
        if config.indexer is not None and ".index_" in name:
            pairs = architecture.index_interleaved
            return index_order(config.indexer.size, config.latents.rotated, name, rows) if pairs else None
        return latents_order(config.latents, name, rows) if architecture.interleaved else None
    return heads_order(config, name, rows, neighbours=architecture.interleaved)


def shapes_in_files(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes that stored tensors have: matrices may be the other way round there, and vectors may be
    matrices of one row, or numbers."""
    found = dict(shapes)
    if architecture.transposed_experts:
        found |= {stored: (shape[0], *shape[:0:-1]) for stored, shape in shapes.items() if len(shape) == 3}
    found |= {stored: shape[::-1] for stored, shape in shapes.items() if stored.endswith(architecture.transposed)}
    if architecture.router_bias_row:
        name = architecture.layer_names["router_bias"]
        found |= {stored: (1, *shape) for stored, shape in shapes.items() if stored.endswith(name)}
    return found | {stored: () for stored in shapes if stored.endswith(architecture.scalars)}


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether both are views of the same storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
