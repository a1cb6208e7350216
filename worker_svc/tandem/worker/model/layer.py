"""A layer, on rows `x [N, hidden]` that may belong to any sequences:

    q, k, v = rotate(norm(x) Wq), rotate(norm(x) Wk), norm(x) Wv        one product: Wq, Wk, Wv lie below each other
    x       = x + attention(q, cache + k, cache + v) Wo
    x       = x + feed_forward(norm(x))

Norms may stand elsewhere. In some layers of some models something with a state (`mixers.py`), or attention over latents
(`latent_attention.py`), stands in the place of attention (`layers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.checkpoints.model_parts.positions import Rope
from tandem.worker.model.attention import Plan, Scores
from tandem.worker.model.beside import ExpertsBeside
from tandem.worker.model.cpu.experts import CompiledExperts, Routing
from tandem.worker.model.cpu.layer import CompiledLayer, CompiledStep, LayerKind
from tandem.worker.model.cpu.layer_parts import (
    Attending,
    AttendingLatents,
    Behind,
    Carried,
    Feeding,
    FeedingExperts,
    Given,
    LayerNorms,
)
from tandem.worker.model.cpu.stack import Placed
from tandem.worker.model.destinations import Destination, of_experts, of_norm, of_ordinary
from tandem.worker.model.feed_forward import FeedForward, UngatedFeedForward
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.linear import Bias, Linear, Rows
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.norms import LayerNorm, RMSNorm, row_sums, stream_norm
from tandem.worker.model.operations import Operations, StateMoves
from tandem.worker.model.parallel import Ranks
from tandem.worker.model.per_layer_inputs import LayerInput
from tandem.worker.model.rope import Rotation
from tandem.worker.model.unfinished import Unfinished
from tandem.worker.model.whole_layers import behind_the_call, not_compiled


class Step(NamedTuple):
    """What all layers of a forward pass share."""

    rotations: Mapping[Rope, Rotation]
    growth: torch.Tensor | None  # what queries are multiplied by, [N, 1, 1]
    cache: KVCache
    slots: torch.Tensor
    plans: Mapping[AttentionKind, Plan]
    compiled: Mapping[LayerKind, CompiledStep]  # where it is missing, layers are computed piece by piece
    states: StateMoves | None  # of layers that have such
    given: torch.Tensor | None  # what each layer is given beside the stream, [N, layers, size]
    ids: torch.Tensor  # of the tokens, [N]

    def of(self, rows: torch.Tensor, plans: Mapping[AttentionKind, Plan]) -> Step:
        """Returns the step of some rows `[M]`, with plans for these, where nothing is stored any more."""
        return self._replace(
            rotations={
                rope: (cos.index_select(0, rows), sin.index_select(0, rows))
                for rope, (cos, sin) in self.rotations.items()
            },
            growth=None if self.growth is None else self.growth.index_select(0, rows),
            given=None if self.given is None else self.given.index_select(0, rows),
            ids=self.ids.index_select(0, rows),
            plans=plans,
            compiled={},
        )


class Layer(torch.nn.Module):
    """Attention and feed-forward, each with its norm and residual."""

    _goes_on = True  # `forward` computes the feed-forward part behind a call that ends before it

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
        self._index = self._state_index = 0  # of its keys and values, and of its states, where it has such
        self._queries_grow = config.queries_grow_in(index)
        self._attention = config.attention_kinds[index]
        self._rope: Rope = config.layer_ropes[index]
        self.kind: LayerKind = (self._attention, self._rope)
        self.attention_norm = stream_norm(config, operations, self._device)
        self._mixing_by = config.mixing_multiplier  # what mixing gives is multiplied by
        # By what the norms before both parts are multiplied where they take the stream's place; 0: they do not.
        self._kept = (config.kept_norm(index), 0.0 if config.kept_norms is None else config.kept_norms.feed_forward)
        self._make_mixing(config, index, dtype)
        self.mlp_norm: RMSNorm | LayerNorm | None = None
        self._feeds = config.feeds(index)
        if self._feeds and config.mixes(index) and (not config.parallel or config.parallel_norms):
            self.mlp_norm = stream_norm(config, operations, self._device)
        mlp_norm = self.mlp_norm or self.attention_norm
        # What goes into each part, from the stream and what is still to be added to it; and what comes out.
        before = config.placement(index) != "after"
        both = config.placement(index) == "both"
        self.attention_post_norm = stream_norm(config, operations, self._device) if both else None
        self.mlp_post_norm = stream_norm(config, operations, self._device) if both else None
        self._enter_attention = self.attention_norm.after_adding if before else added
        self._enter_mlp = mlp_norm.after_adding if before else added
        self._leave_attention = _as_it_is if before else self.attention_norm.forward
        self._leave_mlp = _as_it_is if before else mlp_norm.forward
        if self.attention_post_norm is not None and self.mlp_post_norm is not None:
            self._leave_attention, self._leave_mlp = self.attention_post_norm.forward, self.mlp_post_norm.forward
        self.feed_forward: FeedForward | UngatedFeedForward | MixtureOfExperts | None = None
        experts = config.experts_in(index)
        if not self._feeds:
            pass
        elif experts is not None and not experts.beside:
            listed = config.vocab_size if index in experts.listed_layers else 0
            self.feed_forward = MixtureOfExperts(
                config.hidden_size, experts, dtype, operations, biases=config.mlp_bias, listed=listed
            )
        elif not config.gated:
            sizes = config.hidden_size, config.inner_size(index)
            self.feed_forward = UngatedFeedForward(*sizes, dtype, operations, config.activation, biases=config.mlp_bias)
        else:
            self.feed_forward = FeedForward(
                *(config.hidden_size, config.inner_size(index), dtype, operations, config.activation),
                clamped=config.limit(index),
                biases=config.mlp_bias,
                gate_multiplier=config.gate_multiplier,
                sparsity=config.sparsity[index] if config.sparsity else 0.0,
                ranks=ranks,
            )
        beside = experts is not None and experts.beside
        self.beside = ExpertsBeside(config, experts, dtype, operations, ranks) if experts and beside else None
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
        self._heads = config.queries(index)
        self._kv_heads, self._stored_heads = kv_heads if self._stores else 0, kv_heads
        self._qkv_shape = (-1, self._heads + 2 * self._kv_heads, head_dim)
        self._scale, self._cap = config.attention_scale, config.attention_soft_cap
        gates = config.gates(index)
        self._share_a_gate = self._q_size // gates if gates else 0
        self.qkv = Linear(config.hidden_size, self._qkv_size + gates, dtype, bias=config.qkv_bias)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        self._norms_without_weights = config.qk_norm == "unit" and self._rope != "none"
        if config.qk_norm in ("head", "whole", "behind"):
            sizes = (rows["q"], rows.get("k", 0)) if config.qk_norm == "whole" else (head_dim,) * 2
            norms = [RMSNorm(size, config.norm_eps, self._operations) for size in sizes]
            self.q_norm, self.k_norm = norms[0], norms[1] if self._stores else None
        self._unit: torch.Tensor | None = None
        if config.value_norm or self._norms_without_weights or config.qk_norm == "behind":
            self._unit = torch.ones(head_dim, device=self._device)
        self.sinks = Bias(self._heads, torch.float32) if config.has_sinks(index) else None
        self._narrow = config.value_dim if config.value_dim != head_dim else 0  # of a value that is shorter than a key
        self.attention_output = Linear(config.attended_size(index), config.hidden_size, dtype, bias=config.output_bias)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `x [N, hidden]` after the layer and what is still to be added to it, given both before it; x itself
        is overwritten. With `wanted` `[M]`, only those rows come out."""
        mlp = self.feed_forward
        entering = self._enter_attention(x, delta, float8=self._takes_float8 and not self._kept[0])
        x = _kept(x, entering, self._kept[0])
        attended = self._attend(entering, step)
        if wanted is not None:
            x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
        delta = self.attention_output(attended)
        if self._mixing_by != 1:
            delta = delta * self._mixing_by
        delta = self._leave_attention(self._ranks.add_up(delta))
        if mlp is None:
            return x, delta
        float8 = isinstance(mlp, FeedForward) and mlp.gate_up.takes_float8 and not self._kept[1]
        entering = self._enter_mlp(x, delta, float8=float8)
        x = _kept(x, entering, self._kept[1])
        return self.feed(x, delta, entering, step, wanted)

    def feed(
        self, x: torch.Tensor, delta: torch.Tensor, entering: Rows, step: Step, wanted: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what `forward` does, given both and what is `entering` the feed-forward part before it."""
        mlp = self.feed_forward
        assert mlp is not None
        answers = self._ranks.add_up(mlp(entering))
        delta = self._leave_mlp(answers if self.beside is None else self.beside(x, answers))
        if self.given is not None:
            assert step.given is not None
            given = step.given[:, self._number]
            delta = self.given(added(x, delta), given if wanted is None else given.index_select(0, wanted))
        if self.scale is not None:
            x, delta = x.mul_(self.scale.weight), delta * self.scale.weight
        return x, delta

    @property
    def _takes_float8(self) -> bool:
        """Tells whether what mixes tokens may get 8-bit floats."""
        return self.qkv.takes_float8

    def _attend(self, normed: Rows, step: Step) -> torch.Tensor:
        """What attention gives to each row, before its output matrix: `[N, heads * head_dim]`."""
        first = self._unfinished()
        projected = self.qkv(normed) if first.bias is None else self.qkv.without_bias(normed)
        qkv = projected[:, : self._qkv_size]
        if self._values_are_keys:
            qkv = torch.cat((qkv, qkv[:, self._q_size :]), dim=1)
        if self._narrow:
            qkv = self._widened(qkv)
        qkv = qkv.view(self._qkv_shape)
        self._normalize_whole(qkv)
        if limit := self._config.qkv_limit:
            qkv.clamp_(-limit, limit)
        slots = step.slots if self._stores else None
        queries = self._operations.rotate_and_store(
            qkv, step.rotations[self._rope], step.cache, self._index, slots, first
        )
        if step.growth is not None and self._queries_grow:
            queries = (queries * step.growth).to(queries.dtype)
        if self._query_weights is not None:
            queries = (queries * self._query_weights).to(queries.dtype)
        keys, values = step.cache.keys[self._index], step.cache.values[self._index]
        sinks = None if self.sinks is None else self.sinks.weight
        attended = step.plans[self._attention].attend(keys, values, queries, Scores(self._scale, self._cap, sinks))
        if self._narrow:
            return attended.view(len(qkv), self._heads, -1)[..., : self._narrow].reshape(len(qkv), -1)
        attended = attended.view(-1, self._q_size)
        if not self._share_a_gate:
            return attended
        gates = projected[:, self._qkv_size :]
        if self._config.gate_activation == "softplus":
            return self._operations.gate_by_softplus(attended, gates)
        return self._operations.gate_by_sigmoid(attended, gates)

    def _widened(self, qkv: torch.Tensor) -> torch.Tensor:
        """Puts zeros behind values `[N, heads_of_keys * value_dim]` that stand behind queries and keys, as many as keys
        are longer."""
        values = qkv[:, -self._kv_heads * self._narrow :].reshape(len(qkv), self._kv_heads, self._narrow)
        wide = torch.nn.functional.pad(values, (0, self._qkv_shape[2] - self._narrow))
        return torch.cat((qkv[:, : -self._kv_heads * self._narrow], wide.flatten(1)), dim=1)

    @cached_property
    def _whole_bias(self) -> torch.Tensor:
        """Returns the bias of queries, keys and values as these are once values are as long as keys."""
        assert self.qkv.bias is not None
        return self._widened(self.qkv.bias.weight[None])[0] if self._narrow else self.qkv.bias.weight

    @cached_property
    def compiled(self) -> CompiledLayer | None:
        """Returns this layer, or all before its feed-forward part, for a call of its own, once its weights are there;
        None where that is not available."""
        config, number = self._config, self._number
        if not_compiled(config, number) or self._ranks.size > 1:
            return None
        places = (self.attention_norm, self.attention_post_norm, self.mlp_norm, self.mlp_post_norm)
        vectors = [None if norm is None else norm.vectors for norm in places]
        if config.placement(number) == "after":
            vectors = [None, vectors[0], None, vectors[2]]
        norms = LayerNorms(config.stream_eps, config.norm == "layer", *vectors)
        feeding = None if behind_the_call(config) else self._feeding()
        mixing = self._mixing()
        if config.mixes(number) and not any(mixing):
            return None
        if feeding is not None:
            whole = CompiledLayer.of(
                *(config.hidden_size, *mixing, feeding, Behind.IN_THE_CALL, norms),
                parallel=config.parallel and self._feeds,
                given=self._given(),
                by=None if self.scale is None else self.scale.weight,
                kept=self._kept,
            )
            if whole is not None:
                return whole
        if not any(mixing) or (self._feeds and not self._goes_on):
            return None
        return CompiledLayer.of(
            *(config.hidden_size, *mixing, None, Behind.THE_CALLERS if self._feeds else Behind.NOTHING, norms),
            kept=self._kept,
        )

    @property
    def placed(self) -> Placed | None:
        """Returns the compiled layer and what is its own of the model's caches, if there is one."""
        return None if self.compiled is None else Placed(self.compiled, self.kind, self._index, self._state_index)

    def _feeding(self) -> Feeding | FeedingExperts | None:
        """Returns the feed-forward part as a call has it; None where its experts are computed otherwise."""
        mlp, by = self.feed_forward, self._config.feed_forward_multiplier
        if isinstance(mlp, FeedForward | UngatedFeedForward):
            return _ordinary(mlp, by)
        if mlp is None or not isinstance(mlp.joined, CompiledExperts):
            return None
        chosen_by, weights = (None if each is None else each.weight for each in (mlp.router_bias, mlp.weights))
        routing = Routing.of(mlp.config, chosen_by, weights)
        shared = None if mlp.shared is None else _ordinary(mlp.shared, mlp.config.shared_multiplier)
        around = mlp.into_experts, mlp.out_of_experts
        return FeedingExperts(mlp.joined, mlp.router, routing, *around, shared, mlp.shared_router)

    def _given(self) -> Given | None:
        given, inputs = self.given, self._config.per_layer_inputs
        if given is None or inputs is None:
            return None
        place = self._number * inputs.size
        return Given(given.gate, given.output, given.norm.weight, self._config.norm_eps, given.activation, place)

    def _mixing(self) -> tuple[Attending | AttendingLatents | None, Carried | None]:
        """Returns what mixes the tokens of a sequence as a call has it."""
        whole = self._config.qk_norm == "whole"
        first = self._unfinished()
        if whole and self.q_norm is not None and self.k_norm is not None:
            first = first._replace(norms=(self.q_norm.weight, self.k_norm.weight))
        if self.qkv.bias is not None:
            first = first._replace(bias=self._whole_bias)
        sinks = None if self.sinks is None else self.sinks.weight
        attending = Attending(
            matrix=self.qkv,
            output=self.attention_output,
            by=self._mixing_by,
            first=first,
            whole=whole,
            limit=self._config.qkv_limit,
            heads=self._heads,
            kv_heads=self._kv_heads,
            stored_heads=self._stored_heads,
            head_dim=self._qkv_shape[2],
            scores=Scores(self._scale, self._cap, sinks),
            grows=self._queries_grow,
            query_weights=self._query_weights,
            share_a_gate=self._share_a_gate,
            gates_by_softplus=self._config.gate_activation == "softplus",
            stores=self._stores,
            values_are_keys=self._values_are_keys,
            narrow=self._narrow,
        )
        return attending, None

    def _unfinished(self) -> Unfinished:
        """Returns what storing does to the projection first: norms of heads, and a bias that nothing comes before."""
        late = self._config.qk_norm != "whole" and not self._config.qkv_limit
        late = late and not self._share_a_gate and not self._values_are_keys and not self._narrow
        bias = self.qkv.bias.weight if late and self.qkv.bias is not None else None
        norms: list[torch.Tensor] = []
        if self._norms_without_weights or self._config.qk_norm == "behind":
            assert self._unit is not None
            norms = [self._unit, self._unit]
        elif self.q_norm is not None and self._config.qk_norm == "head":
            norms = [self.q_norm.weight, *([] if self.k_norm is None else [self.k_norm.weight])]
            if self._stores and self._unit is not None:
                norms.append(self._unit)
        return Unfinished(bias, tuple(norms), self._config.norm_eps)

    @cached_property
    def _query_weights(self) -> torch.Tensor | None:
        """Returns what queries are multiplied by once they are rotated `[head_dim]`: the weights of norms that stand
        there, theirs and those of keys, since a score is the sum of products of both. The rest of such a norm is done
        before: rotating changes no size."""
        if self._config.qk_norm != "behind":
            return None
        assert self.q_norm is not None and self.k_norm is not None
        return self.q_norm.weight * self.k_norm.weight

    def _normalize_whole(self, qkv: torch.Tensor) -> None:
        """Normalizes all queries, and all keys, of a row of `qkv` `[N, heads + 2 kv_heads, head_dim]`, if at all."""
        if self.q_norm is None or self.k_norm is None or self._config.qk_norm != "whole":
            return
        heads, kv_heads = self._heads, self._kv_heads
        parts = (qkv[:, :heads], self.q_norm), (qkv[:, heads : heads + kv_heads], self.k_norm)
        if self._ranks.size == 1:
            for part, norm in parts:
                part.copy_(norm(part.reshape(-1, len(norm.weight)).contiguous()).view(part.shape))
            return
        rows = [part.flatten(1).float() for part, _ in parts]
        squares = self._ranks.add_up(torch.stack([row_sums(row.square()) for row in rows]))
        for (part, norm), row, of_all in zip(parts, rows, squares, strict=True):
            mean = of_all / (row.shape[1] * self._ranks.size)
            part.copy_((row * torch.rsqrt(mean + self._config.norm_eps)[:, None] * norm.weight).view(part.shape))

    def destinations(self, config: ModelConfig) -> dict[str, Destination]:
        """Returns where each tensor of this layer goes, by its canonical name within the layer."""
        places = self._mixing_destinations(config) | of_norm("attention.norm", self.attention_norm)
        if self.mlp_norm is not None:
            places |= of_norm("mlp.norm", self.mlp_norm)
        if self.feed_forward is None:
            return places
        if self.attention_post_norm is not None and self.mlp_post_norm is not None:
            places |= of_norm("attention.post_norm", self.attention_post_norm)
            places |= of_norm("mlp.post_norm", self.mlp_post_norm)
        if self.scale is not None:
            places["scale"] = Destination(self.scale, 0)
        if self.given is not None:
            places["per_layer.gate"] = Destination(self.given.gate, 0)
            places["per_layer.output"] = Destination(self.given.output, 0)
            places |= of_norm("per_layer.norm", self.given.norm)
        if self.beside is not None:
            places |= of_experts(self.beside.experts) | of_norm("mlp.own_norm", self.beside.own_norm)
            places |= of_norm("beside.norm", self.beside.norm) | of_norm("beside.post_norm", self.beside.post_norm)
            places |= of_norm("router_norm", self.beside.router_norm)
        if isinstance(self.feed_forward, MixtureOfExperts):
            places |= of_experts(self.feed_forward)
        else:
            places |= of_ordinary("mlp", self.feed_forward)
        return places

    def _mixing_destinations(self, config: ModelConfig) -> dict[str, Destination]:
        places = {f"attention.{name}": Destination(self.qkv, row) for name, row in self._first_rows.items()}
        places["attention.output"] = Destination(self.attention_output, 0)
        if self._share_a_gate:
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
                places |= of_norm(f"attention.{norm_name}", norm)
        return places


def added(x: torch.Tensor, delta: torch.Tensor | None, *, float8: bool = False) -> torch.Tensor:
    """Adds `delta` to `x` in place, if there is one, where no norm comes before a part."""
    return x if delta is None else x.add_(delta)


def _kept(x: torch.Tensor, normed: Rows, by: float) -> torch.Tensor:
    """Returns the stream behind the norm before a part, which may take its place."""
    if not by:
        return x
    assert isinstance(normed, torch.Tensor)
    return torch.mul(normed, by, out=x)


def _ordinary(mlp: FeedForward | UngatedFeedForward, by: float = 1.0) -> Feeding:
    if isinstance(mlp, UngatedFeedForward):
        return Feeding(mlp.up, mlp.down, mlp.activation, gated=False, by=by)
    return Feeding(mlp.gate_up, mlp.down, mlp.activation, True, mlp.gate_multiplier, by, mlp.limit)


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x
