"""Where the tensors of a model lie among those of a GGUF file, for its reader and its writer.

A canonical tensor is a piece (`gguf_hybrids.py`, `gguf_states.py`), or a stored tensor or rows of one, perhaps in
another order: llama.cpp's `llama` architecture and others have RoPE pairs as neighbours. The experts of a layer lie in
one tensor `[experts, out, in]`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from tandem.worker.checkpoints.gguf_architectures.architecture import HEAD_NAMES, TOP_NAMES, GgufArchitecture
from tandem.worker.checkpoints.gguf_architectures.names import FUSED, FUSED_BIASES, FUSED_EXPERTS
from tandem.worker.checkpoints.gguf_fields import XIELU_KEYS
from tandem.worker.checkpoints.gguf_gemma3n import STREAM_NAMES
from tandem.worker.checkpoints.gguf_hybrids import GgufPiece, gguf_pieces
from tandem.worker.checkpoints.gguf_kimi import kimi_pieces
from tandem.worker.checkpoints.gguf_latents import BOTH, HEADS_APART
from tandem.worker.checkpoints.gguf_minimax import lightning_pieces
from tandem.worker.checkpoints.gguf_states import mamba_pieces
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import KimiDelta, Lightning, Mamba
from tandem.worker.checkpoints.places import Place, places_of, places_with_latents
from tandem.worker.checkpoints.row_order import heads_order, index_order, latents_order


class GgufLayout:
    """The stored tensors of a model: their shapes, and what each canonical tensor is of them."""

    def __init__(
        self, config: ModelConfig, architecture: GgufArchitecture, stored: Collection[str] = (), first: int = 0
    ) -> None:
        """`stored`: the names in a file, which decide where some are in older files and some in newer ones; without
        them, newer ones are meant. `first`: the block that is the first layer. Raises KeyError for a tensor that such
        files have not."""
        self._config, self._architecture, self._first = config, architecture, first
        self._layer_names = dict(architecture.layer_names)
        if any(name.endswith(FUSED_EXPERTS["experts.gate"]) for name in stored):
            self._layer_names |= FUSED_EXPERTS
        # Where states have a matrix of this name, queries, keys and values lie apart.
        own = architecture.hybrid or isinstance(config.recurrence, KimiDelta | Lightning)
        if not own and any(name.endswith(FUSED["attention.q"]) for name in stored):
            self._layer_names |= FUSED | FUSED_BIASES
        if config.parallel_norms:
            self._layer_names |= architecture.own_norm_names
        self.pieces: dict[str, GgufPiece] = {}
        if architecture.hybrid:
            self.pieces = gguf_pieces(config, stored, first)
        elif isinstance(config.recurrence, Mamba):
            self.pieces = mamba_pieces(config)
        elif isinstance(config.recurrence, KimiDelta):
            self.pieces = kimi_pieces(config)
        elif isinstance(config.recurrence, Lightning):
            self.pieces = lightning_pieces(config, config.recurrence)
        # Tensors of one number that are keys, each with the key and its layer.
        self.numbers: dict[str, tuple[str, int]] = {}
        if config.activation == "xielu":
            for layer in range(config.num_layers):
                self.numbers |= {f"layers.{layer}.mlp.{name}": (key, layer) for name, key in XIELU_KEYS.items()}
        elsewhere = self.pieces.keys() | self.numbers.keys()
        others = {name: shape for name, shape in config.tensor_shapes().items() if name not in elsewhere}
        self.places: dict[str, Place]
        self.shapes: dict[str, tuple[int, ...]]
        if any(name.endswith(BOTH) for name in stored):
            self._layer_names |= {"attention.key_up": BOTH, "attention.value_up": BOTH}
            self.places, self.shapes = places_with_latents(config, others, self._stored_name)
        else:
            self.places, self.shapes = places_of(others, self._stored_name)
            for name in others:
                if name.endswith(HEADS_APART):
                    rows, columns = others[name]
                    self.shapes[self.places[name].stored] = (config.num_heads, rows // config.num_heads, columns)
        self.shapes |= {piece.stored: piece.shape for piece in self.pieces.values()}
        for name, place in self.places.items():
            if name.endswith("shared_router"):  # a row, which llama.cpp has as a vector
                self.shapes[place.stored] = self.shapes[place.stored][1:]

    def order(self, name: str, rows: int) -> torch.Tensor | None:
        """Returns the order that makes so many rows in their place ours; None: they are."""
        config = self._config
        if config.latents is not None and len(config.unrotated_layers) == config.num_layers:
            return None
        if config.latents is not None:
            if config.indexer is not None and ".index_" in name:
                pairs = self._architecture.index_permuted
                return index_order(config.indexer.size, config.latents.rotated, name, rows) if pairs else None
            return latents_order(config.latents, name, rows)
        return heads_order(config, name, rows, neighbours=self._architecture.permuted)

    def _stored_name(self, name: str) -> tuple[str, int | None]:
        """Returns a canonical tensor's name in the files, and the expert if all of a layer's are in one tensor."""
        names = self._layer_names
        if not name.startswith("layers."):
            if self._config.joins:
                return f"blk.{self._first}.{HEAD_NAMES[name]}", None
            if name.startswith("streams."):
                _, way, stream = name.split(".")
                return STREAM_NAMES[way], int(stream) - 1
            return names.get(f"top.{name}") or TOP_NAMES[name], None
        _, layer, part = name.split(".", 2)
        block = f"blk.{self._first + int(layer)}"
        if not part.startswith("experts."):
            return f"{block}.{names[part]}", None
        _, expert, matrix = part.split(".")
        return f"{block}.{names[f'experts.{matrix}']}", int(expert)
