"""The Llama forward pass over a paged cache.

A layer, on rows `x [N, hidden]` that may belong to any sequences:

    q, k, v = rotate(norm(x) Wq), rotate(norm(x) Wk), norm(x) Wv        one product: Wq, Wk, Wv lie below each other
    x       = x + attention(q, cache + k, cache + v) Wo
    x       = x + feed_forward(norm(x))

In some layers of some models something with a state (`mixers.py`) stands in the place of attention.

Everything but these works row by row, and only with operations whose bits do not depend on the other rows if
their number is a multiple of `row_multiple`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch

from tandem.worker.checkpoints.model_config import AttentionKind, ModelConfig, Rope
from tandem.worker.checkpoints.recurrences import Mamba
from tandem.worker.model.attention import Scores, soft_cap_
from tandem.worker.model.beside import ExpertsBeside
from tandem.worker.model.cpu.layer import (
    Attending,
    CompiledLayer,
    CompiledStep,
    LayerKind,
    LayerNorms,
    compiled_steps,
)
from tandem.worker.model.cpu.operations import cpu_operations
from tandem.worker.model.feed_forward import FeedForward, UngatedFeedForward
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.latent_attention import LatentProjections
from tandem.worker.model.linear import Bias, Linear, PlainWeight, Rows
from tandem.worker.model.mixer import Constants, Mixer
from tandem.worker.model.mixers import make_mixer
from tandem.worker.model.moe import MixtureOfExperts, sigmoid
from tandem.worker.model.norms import LayerNorm, RMSNorm, stream_norm
from tandem.worker.model.operations import Operations, Plan, Products
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.per_layer_inputs import LayerInput, LayerInputs
from tandem.worker.model.rope import QueryFactors, Rotation, Rotations
from tandem.worker.model.states import StatePlan
from tandem.worker.model.unfinished import Unfinished
from tandem.worker.model.weights import Embedding
from tandem.worker.model.whole_layers import behind_the_call, not_compiled


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a tensor of a checkpoint goes: a module's weight, from one of its rows on."""

    module: RMSNorm | LayerNorm | Embedding | Linear | Bias | Constants
    row: int


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of a forward pass share."""

    rotations: Mapping[Rope, Rotation]
    growth: torch.Tensor | None  # what queries are multiplied by, [N, 1, 1]
    cache: KVCache
    slots: torch.Tensor
    plans: Mapping[AttentionKind, Plan]
    compiled: Mapping[LayerKind, CompiledStep]  # where it is missing, layers are computed piece by piece
    states: StatePlan | None  # of layers that have such
    given: torch.Tensor | None  # what each layer is given beside the stream, [N, layers, size]

    def of(self, rows: torch.Tensor, plans: Mapping[AttentionKind, Plan]) -> _Step:
        """Returns the step of some rows `[M]`, with plans for these, where nothing is stored any more."""
        return replace(
            self,
            rotations={
                rope: (cos.index_select(0, rows), sin.index_select(0, rows))
                for rope, (cos, sin) in self.rotations.items()
            },
            growth=None if self.growth is None else self.growth.index_select(0, rows),
            given=None if self.given is None else self.given.index_select(0, rows),
            plans=plans,
            compiled={},
        )


class Layer(torch.nn.Module):
    """Attention and feed-forward, each with its norm and residual."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        dtype: torch.dtype,
        operations: Operations,
        ranks: Ranks,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self._operations = operations
        self._ranks = ranks
        self._config = config
        self._device = device
        self._number = index
        self._queries_grow = config.queries_grow_in(index)
        self._attention = config.attention_kinds[index]
        self._rope: Rope = config.layer_ropes[index]
        self.kind: LayerKind = (self._attention, self._rope)
        self.attention_norm = stream_norm(config, dtype, operations)
        self._make_mixing(config, index, dtype)
        self.mlp_norm: RMSNorm | LayerNorm | None = None
        self._feeds = config.feeds(index)
        if self._feeds and config.mixes(index) and not config.parallel:
            self.mlp_norm = stream_norm(config, dtype, operations)
        mlp_norm = self.mlp_norm or self.attention_norm
        # What goes into each part, from the stream and what is still to be added to it; and what comes out.
        before = config.norm_placement != "after"
        both = config.norm_placement == "both"
        self.attention_post_norm = stream_norm(config, dtype, operations) if both else None
        self.mlp_post_norm = stream_norm(config, dtype, operations) if both else None
        self._enter_attention = self.attention_norm.after_adding if before else _sum
        self._enter_mlp = mlp_norm.after_adding if before else _sum
        self._leave_attention = _as_it_is if before else self.attention_norm.forward
        self._leave_mlp = _as_it_is if before else mlp_norm.forward
        if self.attention_post_norm is not None and self.mlp_post_norm is not None:
            self._leave_attention, self._leave_mlp = self.attention_post_norm.forward, self.mlp_post_norm.forward
        self.feed_forward: FeedForward | UngatedFeedForward | MixtureOfExperts | None = None
        experts = config.experts if config.has_experts(index) else None
        if not self._feeds:
            pass
        elif experts is not None and not experts.beside:
            self.feed_forward = MixtureOfExperts(config.hidden_size, experts, dtype, operations)
        elif not config.gated:
            self.feed_forward = UngatedFeedForward(config, dtype)
        else:
            self.feed_forward = FeedForward(
                *(config.hidden_size, config.inner_size(index), dtype, operations, config.activation),
                gate_multiplier=config.gate_multiplier,
            )
        self.beside = ExpertsBeside(config, experts, dtype, operations) if experts and experts.beside else None
        given = config.per_layer_inputs
        self.given = LayerInput(config, given, dtype, operations) if given is not None else None
        self.scale = Bias(1, dtype) if config.layer_scale else None

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        """Makes what mixes the tokens of a sequence: attention."""
        self._index = config.cache_places[index]
        kv_heads, head_dim = config.layer_heads[index][:2]
        rows, self._stores = config.projections(index), config.stores(index)
        self._first_rows = dict(zip(rows, accumulate(rows.values(), initial=0), strict=False))
        self._values_are_keys = self._stores and "v" not in rows
        self._q_size, self._qkv_size = rows["q"], sum(rows.values())
        self._heads, self._kv_heads = config.num_heads, kv_heads if self._stores else 0
        self._qkv_shape = (-1, self._heads + 2 * self._kv_heads, head_dim)
        self._scale, self._cap = config.attention_scale, config.attention_soft_cap
        self._gated = config.attention_gate
        size = self._qkv_size + (self._q_size if config.attention_gate else 0)
        self.qkv = Linear(config.hidden_size, size, dtype, bias=config.qkv_bias)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        self._norms_without_weights = config.qk_norm == "unit" and self._rope != "none"
        if config.qk_norm in ("head", "whole"):
            sizes = (rows["q"], rows.get("k", 0)) if config.qk_norm == "whole" else (head_dim,) * 2
            norms = [RMSNorm(size, config.norm_eps, dtype, self._operations) for size in sizes]
            self.q_norm, self.k_norm = norms[0], norms[1] if self._stores else None
        self._unit: torch.Tensor | None = None
        if config.value_norm or self._norms_without_weights:
            self._unit = torch.ones(head_dim, dtype=dtype, device=self._device)
        self.sinks = Bias(config.num_heads, torch.float32) if config.sinks else None
        self.attention_output = Linear(self._q_size, config.hidden_size, dtype, bias=config.output_bias)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: _Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `x [N, hidden]` after the layer and what is still to be added to it, given both before it; x itself
        is overwritten. With `wanted` `[M]`, only those rows come out."""
        in_one, compiled = step.compiled.get(self.kind), self.compiled
        mlp = self.feed_forward
        if in_one is not None and compiled is not None and (wanted is None or len(wanted) == len(x)):
            delta, seen = compiled.run(in_one, x, delta, step.cache, self._index)
            if wanted is not None:
                x, delta, seen = (rows.index_select(0, wanted) for rows in (x, delta, seen))
            if not compiled.ends_early:
                return x, delta
            entering: Rows = seen
        else:
            attended = self._attend(self._enter_attention(x, delta, float8=self._takes_float8), step)
            if wanted is not None:
                x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
            delta = self._leave_attention(self._ranks.add_up(self.attention_output(attended)))
            if mlp is None:
                return x, delta
            entering = self._enter_mlp(x, delta, float8=isinstance(mlp, FeedForward) and mlp.gate_up.takes_float8)
        assert mlp is not None
        answers = self._ranks.add_up(mlp(entering))
        delta = self._leave_mlp(answers if self.beside is None else self.beside(x, answers))
        if self.given is not None:
            assert step.given is not None
            given = step.given[:, self._number]
            delta = self.given(_sum(x, delta), given if wanted is None else given.index_select(0, wanted))
        if self.scale is not None:
            x, delta = x.mul_(self.scale.weight), delta * self.scale.weight
        return x, delta

    @property
    def _takes_float8(self) -> bool:
        """Tells whether what mixes tokens may get 8-bit floats."""
        return self.qkv.takes_float8

    def _attend(self, normed: Rows, step: _Step) -> torch.Tensor:
        """What attention gives to each row, before its output matrix: `[N, heads * head_dim]`."""
        first = self._unfinished()
        projected = self.qkv(normed) if first.bias is None else self.qkv.without_bias(normed)
        qkv = projected[:, : self._qkv_size]
        if self._values_are_keys:
            qkv = torch.cat((qkv, qkv[:, self._q_size :]), dim=1)
        qkv = qkv.view(self._qkv_shape)
        self._normalize_whole(qkv)
        slots = step.slots if self._stores else None
        queries = self._operations.rotate_and_store(
            qkv, step.rotations[self._rope], step.cache, self._index, slots, first
        )
        if step.growth is not None and self._queries_grow:
            queries = (queries * step.growth).to(queries.dtype)
        keys, values = step.cache.keys[self._index], step.cache.values[self._index]
        sinks = None if self.sinks is None else self.sinks.weight
        attended = step.plans[self._attention].attend(keys, values, queries, Scores(self._scale, self._cap, sinks))
        attended = attended.view(-1, self._q_size)
        if not self._gated:
            return attended
        return (attended * sigmoid(projected[:, self._qkv_size :].float())).to(attended.dtype)

    @cached_property
    def compiled(self) -> CompiledLayer | None:
        """Returns this layer, or all before its feed-forward part, for a call of its own, once its weights are there;
        None where that is not available."""
        config, mlp = self._config, self.feed_forward
        if not_compiled(config, self._number) or self._ranks.size > 1:
            return None
        if mlp is None:
            return None
        places = (self.attention_norm, self.attention_post_norm, self.mlp_norm, self.mlp_post_norm)
        weights: list[torch.Tensor | None] = [None if norm is None else norm.weight for norm in places]
        if config.norm_placement == "after":
            weights = [None, weights[0], None, weights[2]]
        whole = config.qk_norm == "whole"
        first = self._unfinished()
        if whole and self.q_norm is not None and self.k_norm is not None:
            first = first._replace(norms=(self.q_norm.weight, self.k_norm.weight))
        if self.qkv.bias is not None:
            first = first._replace(bias=self.qkv.bias.weight)
        sinks = None if self.sinks is None else self.sinks.weight
        scores = Scores(self._scale, self._cap, sinks)
        attending = Attending(first, whole, self._heads, self._kv_heads, self._qkv_shape[2], scores, self._queries_grow)
        activation = mlp.activation if isinstance(mlp, FeedForward) else None
        alone = not behind_the_call(config, self._number)
        rest = (mlp.gate_up, mlp.down) if isinstance(mlp, FeedForward) and alone else None
        norms = LayerNorms(config.stream_eps, *weights)
        return CompiledLayer.of((self.qkv, self.attention_output), rest, norms, attending, activation)

    def _unfinished(self) -> Unfinished:
        """Returns what storing does to the projection first: norms of heads, and a bias that nothing comes before."""
        late = self._config.qk_norm != "whole" and not self._gated and not self._values_are_keys
        bias = self.qkv.bias.weight if late and self.qkv.bias is not None else None
        norms: list[torch.Tensor] = []
        if self._norms_without_weights:
            assert self._unit is not None
            norms = [self._unit, self._unit]
        elif self.q_norm is not None and self._config.qk_norm == "head":
            norms = [self.q_norm.weight, *([] if self.k_norm is None else [self.k_norm.weight])]
            if self._stores and self._unit is not None:
                norms.append(self._unit)
        return Unfinished(bias, tuple(norms), self._config.norm_eps)

    def _normalize_whole(self, qkv: torch.Tensor) -> None:
        """Normalizes all queries, and all keys, of a row of `qkv` `[N, heads + 2 kv_heads, head_dim]`, if at all."""
        if self.q_norm is None or self.k_norm is None or self._config.qk_norm != "whole":
            return
        heads, kv_heads = self._heads, self._kv_heads
        for part, norm in ((qkv[:, :heads], self.q_norm), (qkv[:, heads : heads + kv_heads], self.k_norm)):
            part.copy_(norm(part.reshape(-1, len(norm.weight)).contiguous()).view(part.shape))

    def destinations(self, config: ModelConfig) -> dict[str, Destination]:
        """Returns where each tensor of this layer goes, by its canonical name within the layer."""
        places = self._mixing_destinations(config) | _norm("attention.norm", self.attention_norm)
        if self.mlp_norm is not None:
            places |= _norm("mlp.norm", self.mlp_norm)
        if self.feed_forward is None:
            return places
        if self.attention_post_norm is not None and self.mlp_post_norm is not None:
            places |= _norm("attention.post_norm", self.attention_post_norm)
            places |= _norm("mlp.post_norm", self.mlp_post_norm)
        if self.scale is not None:
            places["scale"] = Destination(self.scale, 0)
        if self.given is not None:
            places["per_layer.gate"] = Destination(self.given.gate, 0)
            places["per_layer.output"] = Destination(self.given.output, 0)
            places |= _norm("per_layer.norm", self.given.norm)
        if self.beside is not None:
            places |= _experts(self.beside.experts) | _norm("mlp.own_norm", self.beside.own_norm)
            places |= _norm("beside.norm", self.beside.norm) | _norm("beside.post_norm", self.beside.post_norm)
            places |= _norm("router_norm", self.beside.router_norm)
        if isinstance(self.feed_forward, MixtureOfExperts):
            places |= _experts(self.feed_forward)
        elif isinstance(self.feed_forward, UngatedFeedForward):
            places |= {
                "mlp.up": Destination(self.feed_forward.up, 0),
                "mlp.down": Destination(self.feed_forward.down, 0),
            }
            if self.feed_forward.up.bias is not None and self.feed_forward.down.bias is not None:
                places["mlp.up_bias"] = Destination(self.feed_forward.up.bias, 0)
                places["mlp.down_bias"] = Destination(self.feed_forward.down.bias, 0)
        else:
            places |= _three_matrices("mlp", self.feed_forward)
        return places

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        places = {f"attention.{name}": Destination(self.qkv, row) for name, row in self._first_rows.items()}
        places["attention.output"] = Destination(self.attention_output, 0)
        if self._gated:
            places["attention.gate"] = Destination(self.qkv, self._qkv_size)
        if self.qkv.bias is not None:
            for name, row in self._first_rows.items():
                places[f"attention.{name}_bias"] = Destination(self.qkv.bias, row)
        if self.attention_output.bias is not None:
            places["attention.output_bias"] = Destination(self.attention_output.bias, 0)
        if self.sinks is not None:
            places["attention.sinks"] = Destination(self.sinks, 0)
        for norm_name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                places |= _norm(f"attention.{norm_name}", norm)
        return places


class RecurrentLayer(Layer):
    """A layer with a state in the place of attention."""

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        sizes = config.recurrence
        assert sizes is not None
        self._index = sizes.layers.index(index)
        self.mixer = make_mixer(config, sizes, dtype)
        self.attention_output = Linear(sizes.size, config.hidden_size, dtype, bias=self.mixer.output_bias)

    @property
    def _takes_float8(self) -> bool:
        return False

    def _attend(self, normed: Rows, step: _Step) -> torch.Tensor:
        assert step.states is not None, "a step of a model with states says where they are"
        mixed, gates = self.mixer(normed)
        return self._operations.recur(self.mixer.rule, self._index, mixed, gates, step.states)

    @cached_property
    def compiled(self) -> CompiledLayer | None:
        """Returns None: only what is between its products is compiled."""
        return None

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        return _mixer_destinations(self.mixer, self.attention_output)


class LatentLayer(Layer):
    """A layer whose attention is over latents."""

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        assert config.latents is not None
        self._index = config.cache_places[index]
        self._scores = Scores(config.attention_scale)
        self.projections = LatentProjections(config, config.latents, dtype, self._operations)
        attended = config.num_heads * config.latents.value
        self.attention_output = Linear(attended, config.hidden_size, dtype, bias=config.output_bias)

    @property
    def _takes_float8(self) -> bool:
        return False

    def _attend(self, normed: Rows, step: _Step) -> torch.Tensor:
        cache, layer = step.cache, self._index
        queries, latents = self.projections(normed, step.rotations[self._rope])
        cache.write(layer, step.slots, latents, None)
        queries = cache.scale_queries(layer, queries)
        pages = cache.keys[layer]
        attended = step.plans[self._attention].attend(pages, pages, queries, self._scores)
        return self.projections.values(cache.values_of(layer, attended))

    @cached_property
    def compiled(self) -> CompiledLayer | None:
        """Returns None: its products and attention are compiled for themselves."""
        return None

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        places = {name: Destination(*place) for name, place in self.projections.destinations().items()}
        places["attention.output"] = Destination(self.attention_output, 0)
        if self.attention_output.bias is not None:
            places["attention.output_bias"] = Destination(self.attention_output.bias, 0)
        return places


class BesideLayer(Layer):
    """Attention and a state on the same norm of the stream, and a feed-forward part behind both."""

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        super()._make_mixing(config, index, dtype)
        assert isinstance(config.recurrence, Mamba)
        self._sizes = config.recurrence
        self._state_index = config.recurrence.layers.index(index)
        self.mixer = make_mixer(config, config.recurrence, dtype)
        self.mixer_output = Linear(self._sizes.size, config.hidden_size, dtype, bias=self.mixer.output_bias)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: _Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`."""
        normed = self._enter_attention(x, delta)
        assert step.states is not None and isinstance(normed, torch.Tensor) and self.feed_forward is not None
        attended = self._attend(normed, step)
        given = self._operations.recur(self.mixer.rule, self._state_index, *self.mixer(normed), step.states)
        if wanted is not None:
            x, attended, given = (rows.index_select(0, wanted) for rows in (x, attended, given))
        delta = self.attention_output(attended) * self._config.mixing_multiplier
        delta += self.mixer_output(given) * self._sizes.output_multiplier
        answers = self.feed_forward(self._enter_mlp(x, self._ranks.add_up(delta)))
        return x, self._ranks.add_up(answers) * self._config.feed_forward_multiplier

    @cached_property
    def compiled(self) -> CompiledLayer | None:
        """Returns None: only what is between its products is compiled."""
        return None

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        return super()._mixing_destinations(config) | _mixer_destinations(self.mixer, self.mixer_output)


class FeedForwardLayer(Layer):
    """A feed-forward part and nothing else."""

    def _make_mixing(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        pass

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: _Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`."""
        assert self.feed_forward is not None
        if wanted is not None:
            x, delta = x.index_select(0, wanted), None if delta is None else delta.index_select(0, wanted)
        return x, self._ranks.add_up(self.feed_forward(self._enter_mlp(x, delta)))

    @cached_property
    def compiled(self) -> CompiledLayer | None:
        """Returns None: its products are compiled for themselves."""
        return None

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        return {}


class ParallelLayer(Layer):
    """Attention and feed-forward on the same norm of the stream."""

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: _Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Layer.forward`."""
        normed = self._enter_attention(x, delta)
        assert isinstance(normed, torch.Tensor) and self.feed_forward is not None
        attended = self._attend(normed, step)
        if wanted is not None:
            x, normed, attended = (rows.index_select(0, wanted) for rows in (x, normed, attended))
        return x, self._ranks.add_up(self.attention_output(attended) + self.feed_forward(normed))


def _layer_class(config: ModelConfig, index: int) -> type[Layer]:
    if not config.mixes(index):
        return FeedForwardLayer
    if config.latents is not None:
        return LatentLayer
    if config.recurrence is not None and index in config.recurrence.layers:
        return BesideLayer if config.beside_attention else RecurrentLayer
    return ParallelLayer if config.parallel else Layer


def _mixer_destinations(mixer: Mixer, output: Linear) -> dict[str, Destination]:
    places = {part: Destination(module, row) for part, (module, row) in mixer.destinations().items()}
    places["output"] = Destination(output, 0)
    if output.bias is not None:
        places["output_bias"] = Destination(output.bias, 0)
    return {f"{mixer.name}.{part}": place for part, place in places.items()}


def _experts(experts: MixtureOfExperts) -> dict[str, Destination]:
    places = {"router": Destination(experts.router, 0)}
    if experts.router.bias is not None:
        places["router_logit_bias"] = Destination(experts.router.bias, 0)
    if experts.router_bias is not None:
        places["router_bias"] = Destination(experts.router_bias, 0)
    if experts.weights is not None:
        places["expert_weights"] = Destination(experts.weights, 0)
    if experts.shared is not None:
        places |= _three_matrices("shared", experts.shared)
    if experts.shared_router is not None:
        places["shared_router"] = Destination(experts.shared_router, 0)
    for number, expert in enumerate(experts.experts):
        assert isinstance(expert, FeedForward)
        places |= _three_matrices(f"experts.{number}", expert)
    return places


def _norm(name: str, norm: RMSNorm | LayerNorm) -> dict[str, Destination]:
    places = {name: Destination(norm, 0)}
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        places[f"{name}_bias"] = Destination(norm.bias, 0)
    return places


def _sum(x: torch.Tensor, delta: torch.Tensor | None, *, float8: bool = False) -> torch.Tensor:
    return x if delta is None else x.add_(delta)


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _three_matrices(name: str, layer: FeedForward) -> dict[str, Destination]:
    places = {
        f"{name}.gate": Destination(layer.gate_up, 0),
        f"{name}.up": Destination(layer.gate_up, layer.intermediate_size),
        f"{name}.down": Destination(layer.down, 0),
    }
    if layer.gate_up.bias is not None and layer.down.bias is not None:
        places |= {
            f"{name}.gate_bias": Destination(layer.gate_up.bias, 0),
            f"{name}.up_bias": Destination(layer.gate_up.bias, layer.intermediate_size),
            f"{name}.down_bias": Destination(layer.down.bias, 0),
        }
    return places


class Transformer(torch.nn.Module):
    """A decoder of the Llama family. Its weights are on the meta device until `loading.py` fills them."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device | str,
        dtype: torch.dtype,
        operations: Operations | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Builds the layers; `config` is that of the whole model, `self.config` that of this rank's part."""
        super().__init__()
        self._ranks, self._vocab_size, first = ranks, config.vocab_size, ranks.tokens(config).start
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
                _layer_class(config, index)(config, index, dtype, operations, ranks, device)
                for index in range(config.num_layers)
            )
            given = config.per_layer_inputs
            self.given = LayerInputs(config, given, dtype, operations) if given is not None else None
            self.norm = stream_norm(config, dtype, operations)
            self.output = Linear(config.hidden_size, config.vocab_size, dtype, bias=config.logit_bias)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        slots: torch.Tensor,
        plans: Mapping[AttentionKind, Plan],
        logit_rows: torch.Tensor,
        states: StatePlan | None = None,
        late: Mapping[AttentionKind, Plan] | None = None,
    ) -> torch.Tensor:
        """Stores keys and values of all rows and computes the logits of some.

        ids: `[N]` int64, each below the vocabulary's size.
        positions: `[N]` int64, each below the context length.
        slots: `[2, N]` int64, where each row's key and value go (`KVCache.write`).
        plans: which rows attend to what, for each kind of `config.attention_kinds`.
        logit_rows: `[M]` int64, the rows whose logits are wanted.
        states: what happens to the states of layers that have such.
        late: plans of the wanted rows alone, which are all that the last layers compute if they store nothing
            (`config.shared_layers`).

        Returns `[M, vocab]`: float32, or of 16 bits where nothing was done to them in float32
        (`Operations.wide_logits`).
        """
        rotations = self.rotations.at(positions)
        growth = None if self._growth is None else self._growth.at(positions)
        compiled = compiled_steps(self.operations, self._compiled, cache, rotations, growth, slots, plans)
        x, delta = self.embedding(ids), None
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        given = None if self.given is None else self.given(ids, x)
        step = _Step(rotations, growth, cache, slots, plans, compiled, states, given)
        wanted: torch.Tensor | None = logit_rows
        for behind, layer in zip(range(len(self.layers) - 1, -1, -1), self.layers, strict=True):
            if late is not None and behind == self.config.shared_layers - 1:
                assert delta is not None
                x, delta, wanted = x.index_select(0, logit_rows), delta.index_select(0, logit_rows), None
                step = step.of(logit_rows, late)
            x, delta = layer(x, delta, step, None if behind else wanted)
        logits = self.output(self.norm.after_adding(x, delta))
        if self._converts_logits:
            logits = logits.float()
        logits = self._ranks.join(logits, self._vocab_size)
        if self.config.logit_multiplier != 1:
            logits = logits * self.config.logit_multiplier
        return soft_cap_(logits, self.config.logit_soft_cap) if self.config.logit_soft_cap else logits

    @cached_property
    def _compiled(self) -> Mapping[LayerKind, Sequence[CompiledLayer]]:
        """Returns the layers that are compiled, by their kinds, once the weights are there."""
        kinds: dict[LayerKind, list[CompiledLayer]] = {}
        for layer in self.layers:
            assert isinstance(layer, Layer)
            if layer.compiled is not None:
                kinds.setdefault(layer.kind, []).append(layer.compiled)
        return kinds

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
        places = {"embedding": Destination(self.embedding, 0), **_norm("norm", self.norm)}
        if not self.config.tie_embeddings:
            places["output"] = Destination(self.output, 0)
        if self.output.bias is not None:
            places["output_bias"] = Destination(self.output.bias, 0)
        if self.given is not None:
            places["per_layer.embedding"] = Destination(self.given.embedding, 0)
            places["per_layer.projection"] = Destination(self.given.projection, 0)
            places |= _norm("per_layer.norm", self.given.norm)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            for name, place in layer.destinations(self.config).items():
                places[f"layers.{index}.{name}"] = place
        return places
