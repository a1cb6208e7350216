"""The forward pass of a decoder over a paged cache: embeddings, layers (`layer.py`), a norm and logits.

Everything but attention and states works row by row, and only with operations whose bits do not depend on the other
rows if their number is a multiple of `row_multiple`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.checkpoints.model_parts.positions import Rope
from tandem.worker.model.attention import Plan, soft_cap_
from tandem.worker.model.changes import Adapted, AdaptedRows
from tandem.worker.model.compressed_plan import CompressedPlan
from tandem.worker.model.cpu.beginning import CompiledBeginning
from tandem.worker.model.cpu.ending import CompiledEnding
from tandem.worker.model.cpu.layer import CompiledStep, LayerKind
from tandem.worker.model.cpu.operations import NativeOperations, cpu_operations
from tandem.worker.model.cpu.stack import CompiledStack
from tandem.worker.model.destinations import Destination, of_norm
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.hyper_connections import HyperEnd
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.layer import Layer, Step, added
from tandem.worker.model.layers import layer_class
from tandem.worker.model.linear import Linear, PlainWeight, Rows
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.norms import stream_norm
from tandem.worker.model.operations import Operations, Products, StateMoves
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.per_layer_inputs import LayerInputs
from tandem.worker.model.rope import QueryFactors, Rotation, Rotations
from tandem.worker.model.streams import Streams
from tandem.worker.model.weights import Embedding


class Transformer(torch.nn.Module):
    """A decoder of the Llama family. Its weights are on the meta device until `loading.py` fills them."""

    _ends_in_the_call = True  # what follows the layers may be computed with them
    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device | str,
        dtype: torch.dtype,
        operations: Operations | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Builds the layers; `config` and `self.vocab_size` are those of the whole model, `self.config` is that of this
        rank's part."""
        super().__init__()
        self.adapted = Adapted()
        self.ranks, self.vocab_size, first = ranks, config.vocab_size, ranks.tokens(config).start
        self.config = config = ranks.share(config)
        self.dtype = dtype
        self.operations = operations = operations or cpu_operations()
        changed = config.logit_multiplier != 1 or bool(config.logit_soft_cap)
        self._converts_logits = operations.wide_logits or changed or ranks.size > 1
        self.rotations = Rotations(config, device)
        self._growth: QueryFactors | None = None
        if config.query_growth is not None and config.queries_grow:
            self._growth = QueryFactors(config.query_growth, config.context_length, device)
        with torch.device("meta"):
            tied = config.tie_embeddings
            self.embedding = Embedding(
                config.vocab_size, config.hidden_size, dtype, tied=tied, ranks=ranks, first=first
            )
            self.layers = torch.nn.ModuleList(
                layer_class(config, index)(config, index, dtype, operations, ranks, device)
                for index in range(config.num_layers)
            )
            self.positions: Embedding | None = None
            if config.learned_positions:
                self.positions = Embedding(config.learned_positions, config.hidden_size, dtype, tied=False)
            given = config.per_layer_inputs
            self.given = LayerInputs(config, given, dtype, operations) if given is not None else None
            streams = config.streams
            self.streams = Streams(config, streams, dtype) if streams is not None else None
            hyper = config.hyper
            self.hyper = None if hyper is None else HyperEnd(config, hyper, dtype, operations, device)
            self.norm = stream_norm(config, operations, device)
            self.output = Linear(config.hidden_size, config.vocab_size, dtype, bias=config.logit_bias)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        slots: torch.Tensor,
        plans: Mapping[AttentionKind, Plan],
        logit_rows: torch.Tensor | None,
        states: StateMoves | None = None,
        late: Mapping[AttentionKind, Plan] | None = None,
        adapted: Mapping[int, AdaptedRows] | None = None,
    ) -> torch.Tensor:
        """Stores keys and values of all rows and computes the logits of some.

        ids: `[N]` int64, each below the vocabulary's size.
        positions: `[N]` int64, each below the context length.
        slots: `[2, N]` int64, where each row's key and value go (`KVCache.write`).
        plans: which rows attend to what, for each kind of `config.attention_kinds`.
        logit_rows: `[M]` int64, the rows whose logits are wanted; None: all of them, in their order.
        states: what happens to the states of layers that have such.
        late: plans of the wanted rows alone, which are all that the last layers compute if they store nothing
            (`config.shared_layers`).
        adapted: which rows belong to which adapter; where any do, every layer computes all rows, piece by piece.

        Returns `[M, vocab]`: float32, or of 16 bits where nothing was done to them in float32
        (`Operations.wide_logits`). On a CPU they may hold until the next call of as many rows only.
        """
        begins = self._beginning
        x, rotations = self._looked_up(ids, positions) if begins is None else begins.begin(ids, positions)
        growth = None if self._growth is None else self._growth.at(positions)
        x, delta = self._begin(x, positions, slots), None
        given = None if self.given is None else self.given(ids, x)
        if self.streams is not None:
            x = self.streams.begin(x)
        for plan in plans.values():
            if isinstance(plan, CompressedPlan):
                plan.rotate(self.rotations.model)
        self.adapted.rows = adapted or {}
        compiled: Mapping[LayerKind, CompiledStep] = {}
        if adapted:
            late = None
        else:
            compiled = self._stack.steps(self.operations, cache, rotations, growth, slots, plans, given)
        step = Step(rotations, growth, cache, slots, plans, compiled, states, given, ids)
        wanted = logit_rows if cache.hidden is None else None
        last = self.config.num_layers
        shared = last if late is None else last - self.config.shared_layers
        ends = wanted is None and late is None and cache.hidden is None
        x, delta, logits = self._compute(0, shared, x, delta, step, wanted if late is None else None, ends=ends)
        if late is not None:
            assert delta is not None and logit_rows is not None
            x, delta, step = x.index_select(0, logit_rows), delta.index_select(0, logit_rows), step.of(logit_rows, late)
            x, delta, _ = self._compute(shared, last, x, delta, step, None)
        if logits is None:
            logits = self.output(self._end(x, delta, cache, slots, logit_rows))
        if self._converts_logits and logits.dtype != torch.float32:
            logits = logits.float()
        logits = self.ranks.join(logits, self.vocab_size)
        if self.config.logit_multiplier != 1:
            logits = logits * self.config.logit_multiplier
        return soft_cap_(logits, self.config.logit_soft_cap) if self.config.logit_soft_cap else logits

    def _compute(
        self,
        first: int,
        last: int,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        step: Step,
        wanted: torch.Tensor | None,
        *,
        ends: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Returns x and delta behind layers from `first` on, before `last`, as `Layer.forward` has them; with `wanted`
        `[M]`, those rows alone. Where they are fewer, the last layer is computed piece by piece, and less of it, unless
        adapters change rows: they know them by their places. If it `ends` all layers, logits come with them where they
        are computed in the call of the last one."""
        fewer = wanted is not None and len(wanted) != len(x) and not self.adapted.rows
        together = last - 1 if fewer else last
        place, logits = first, None
        while place < last:
            place, x, delta, seen, logits = self._stack.run(
                step.compiled, place, together, x, delta, step.cache, step.states, ends=ends
            )
            if seen is not None:
                assert delta is not None
                x, delta = self._layer(place - 1).feed(x, delta, seen, step)
            elif place < last:
                x, delta = self._layer(place)(x, delta, step, wanted if fewer and place == last - 1 else None)
                place += 1
        if wanted is not None and not fewer:
            assert delta is not None
            x, delta = x.index_select(0, wanted), delta.index_select(0, wanted)
        return x, delta, logits

    def _layer(self, index: int) -> Layer:
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def _looked_up(self, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, dict[Rope, Rotation]]:
        """Returns the vectors of tokens `[N, hidden]`, and how their positions rotate."""
        x, scale = self.embedding(ids), self.config.embedding_scale
        return x if scale == 1 else x * scale, self.rotations.at(positions)

    def _begin(self, x: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Returns what the layers begin with, `[N, hidden]`, or that of several streams beside each other, by the
        vectors of tokens."""
        if self.config.hyper is not None:
            x = x.repeat(1, self.config.hyper.count)
        if self.positions is None:
            return x
        # What is tried at start may go beyond a short context; what is asked never does.
        rows = (positions + self.config.position_offset).clamp_(max=self.config.learned_positions - 1)
        return x + self.positions(rows)

    def _end(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        cache: KVCache,
        slots: torch.Tensor,
        logit_rows: torch.Tensor | None,
    ) -> Rows:
        """Returns what the output is given, `[M, hidden]`. The layers leave the wanted rows, or all where hidden states
        are kept."""
        if self.streams is not None:
            x, delta = self.streams.end(x, delta), None
        if self.hyper is not None:
            x, delta = self.hyper(added(x, delta)), None
        normed = self.norm.after_adding(x, delta)
        if cache.hidden is None:
            return normed
        assert isinstance(normed, torch.Tensor)
        cache.hidden[slots[0], slots[1]] = normed.to(cache.hidden.dtype)
        return normed if logit_rows is None else normed.index_select(0, logit_rows)

    @cached_property
    def _beginning(self) -> CompiledBeginning | None:
        """Returns what looks tokens and positions up, once the weights are there; None where torch does."""
        if type(self.operations) is not NativeOperations or self.ranks.size > 1:
            return None
        return CompiledBeginning.of(self.embedding, self.config.embedding_scale, self.rotations)

    @cached_property
    def _stack(self) -> CompiledStack:
        """Returns the layers that are compiled, and what follows them, once the weights are there."""
        config, ending = self.config, None
        if self._ends_in_the_call and self.ranks.size == 1 and config.hyper is None:
            centred = config.norm == "layer"
            ending = CompiledEnding.of(self.norm.vectors, self.output, config.stream_eps, centred=centred)
        return CompiledStack([self._layer(index).placed for index in range(len(self.layers))], ending)

    @property
    def logits_dtype(self) -> torch.dtype:
        """Returns what `forward` returns."""
        return torch.float32 if self._converts_logits else self.dtype

    @property
    def row_multiple(self) -> int:
        """Returns the multiple: in so many rows, a row's logits do not depend on the others."""
        return max(module.row_multiple for module in self.modules() if isinstance(module, Linear))

    @property
    def experts_apart(self) -> str:
        """Returns why experts are computed one after the other, for which the host must wait; "" if none are."""
        return next((m.apart for m in self.modules() if isinstance(m, MixtureOfExperts) and m.apart), "")

    def multiply_by(self, products: Products) -> None:
        """Chooses by what matrices of floats are multiplied from now on."""
        for module in self.modules():
            if isinstance(module, PlainWeight):
                module.product = products.plain
            elif isinstance(module, Float8Weight):
                module.product, module.plain_product = products.float8, products.plain

    def destinations(self) -> dict[str, Destination]:
        """Returns where each canonical tensor goes: a module's weight, from one of its rows on."""
        places = of_norm("norm", self.norm)
        tables: dict[str, Embedding | Linear] = {"embedding": self.embedding, "output": self.output}
        places |= {table: Destination(tables[table], 0) for table in self.config.tables}
        if self.output.bias is not None:
            places["output_bias"] = Destination(self.output.bias, 0)
        if self.positions is not None:
            places["positions"] = Destination(self.positions, 0)
        if self.given is not None:
            places["per_layer.embedding"] = Destination(self.given.embedding, 0)
            places["per_layer.projection"] = Destination(self.given.projection, 0)
            places |= of_norm("per_layer.norm", self.given.norm)
        if self.streams is not None:
            places |= self.streams.destinations()
        if self.hyper is not None:
            places |= self.hyper.destinations("hyper")
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            for name, place in layer.destinations(self.config).items():
                places[f"layers.{index}.{name}"] = place
        return places
