"""Describes a model: its sizes and constants, and the tensors that a model of these sizes has.

Differences between architectures are data here, not subclasses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from tandem.worker.checkpoints.compression import Compression
from tandem.worker.checkpoints.hyper_connections import HyperConnections
from tandem.worker.checkpoints.indexer import Indexer
from tandem.worker.checkpoints.latents import Latents
from tandem.worker.checkpoints.layer_parts import (
    LIMITS,
    XIELU_CONSTANTS,
    Activation,
    ConfigError,
    Experts,
    KeptNorms,
    LimitedSwiGLU,
    PerLayerInputs,
    QueryGrowth,
    RopeScaling,
    Streams,
    require_finite,
    require_size,
)
from tandem.worker.checkpoints.recurrences import Mamba, Recurrence

Table: TypeAlias = Literal["embedding", "output"]
Rope: TypeAlias = Literal["model", "window", "none"]  # how a layer rotates; none: not at all
_MOST_EXPERTS = 1 << 16  # in all layers together


class KVHeads(NamedTuple):
    """The heads of keys and values in a layer, and how many numbers each has."""

    number: int
    size: int
    latent: int = 0  # unless it is 0, values are the first so many numbers of keys, and are not stored apart
    index_size: int = 0  # numbers of a key that is kept beside them, by which tokens are chosen (`indexer.py`)
    vectors: int = 1  # of `size` numbers that a head keeps of a token, of which the first is its key (`compression.py`)
    index_vectors: int = 1  # the same of index keys


class AttentionKind(NamedTuple):
    """What layers whose attention is planned together have in common."""

    window: int  # 0: none; less: tokens are in chunks of `-window`, and see what is before them in their own
    heads: KVHeads
    # Unless it is 0, a token sees so many of those that its window has, which are chosen for it; or so many entries.
    most: int = 0
    every: int = 0  # unless it is 0, a token sees entries of so many tokens each beside its window (`compression.py`)
    query_heads: int = 0  # unless it is 0, theirs instead of the model's


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family; raises ConfigError for sizes that do not go together."""

    architecture: str  # "llama", "mistral", "qwen2", ...: a name only, every difference is a field below
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int  # tokens, prompt and output together
    norm_eps: float
    rope_theta: float
    tie_embeddings: bool  # the output projection is the embedding
    rope_scaling: RopeScaling | None = None
    rotary_dim: int | None = None  # how many of a head's numbers are rotated; None: all
    rope_scale: float = 1.0  # an operator's own: positions are divided by it
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output
    # q and k are normalized before they are rotated: by head, or all; unit: by head, in layers that rotate, no weights;
    # behind: by head, once they are rotated
    qk_norm: Literal["head", "whole", "unit", "behind"] | None = None
    qkv_limit: float = 0.0  # of the size of numbers in q, k and v, behind their norms; 0: none
    # Of a layer's parts: what goes in, or comes out; after_attention: what comes out in layers with attention, and what
    # goes in where there are states.
    norm_placement: Literal["before", "after", "both", "after_attention"] = "before"
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of what a layer's parts add
    kept_norms: KeptNorms | None = None
    attention_multiplier: float | None = None  # of queries times keys; None: one over the root of head_dim
    attention_soft_cap: float = 0.0  # queries times keys become cap tanh(that / cap); 0: they stay
    logit_multiplier: float = 1.0
    logit_soft_cap: float = 0.0  # the same of logits, once they are multiplied
    windows: tuple[int, ...] = ()  # by layer: a token sees itself and the `window - 1` tokens before it; 0: all
    chunked: bool = False  # windows are chunks: a token sees itself and what is before it in its own chunk
    window_rope_theta: float | None = None  # layers with a window rotate by it, without scaling
    window_rotary_dim: int = 0  # of layers with a window that rotate by a theta of their own; 0: `rotary_dim`
    unrotated_layers: tuple[int, ...] = ()  # whose queries and keys know no position
    query_growth: QueryGrowth | None = None
    learned_positions: int = 0  # rows of a table of which one is added to a token's vector; 0: there is none
    position_offset: int = 0  # the row of the first position
    full_heads: KVHeads | None = None  # of layers without a window; None: as those of all
    query_heads: tuple[int, ...] = ()  # by layer, `num_heads` being the first one's; empty: all have as many
    values_are_keys: bool = False  # layers without a window project no values: these are the keys before all else
    value_norm: bool = False  # values are normalized by head, without weights
    shared_layers: int = 0  # the last ones, which look at keys and values of the last layer before them of their kind
    shared_widening: int = 1  # of those layers' intermediate size
    inner_sizes: tuple[int, ...] = ()  # each layer's intermediate size; empty: as all are
    # By layer, the share of a gate's numbers that become 0, were they distributed normally; 0, or empty: none do.
    sparsity: tuple[float, ...] = ()
    streams: Streams | None = None  # several of them; None: one
    per_layer_inputs: PerLayerInputs | None = None
    layer_scale: bool = False  # what comes out of a layer is multiplied by a number of its own
    attention_gate: bool = False  # what attention gives is multiplied by the sigmoid of a projection of its input
    gate_by_head: bool = False  # which is one number for each head
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"  # what it is multiplied by instead of the sigmoid
    latents: Latents | None = None  # what is stored of a token instead of each head's key and value, in all layers
    indexer: Indexer | None = None  # what chooses the tokens that are looked at; None: all are
    compression: Compression | None = None  # of what layers attend to beside a window
    hyper: HyperConnections | None = None  # that layers add to; None: one
    recurrence: Recurrence | None = None  # of layers that have states instead of attention
    experts: Experts | None = None
    # Layers that are a feed-forward part and nothing else; those beside them have none. None: every layer has both.
    feed_forward_alone: tuple[int, ...] | None = None
    mixing_multiplier: float = 1.0  # of what attention gives
    feed_forward_multiplier: float = 1.0  # of what the feed-forward part gives there
    gate_multiplier: float = 1.0  # of the feed-forward part's gate, before its activation
    activation: Activation = "silu"  # of the feed-forward layer
    gated: bool = True  # activation(gate x) * up x; else activation(up x)
    # By layer, limits of the gates of experts, and of those of ordinary and shared parts (`LimitedSwiGLU`); 0: none.
    swiglu_limits: tuple[float, ...] = ()
    shared_swiglu_limits: tuple[float, ...] = ()
    mlp_bias: bool = False  # of the matrices of ordinary feed-forward parts, and of a shared expert
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    norm_weights: bool = True  # norms of the stream multiply by weights; layer norms may not
    logit_bias: bool = False  # added to what the output projection gives
    sinks: bool = False  # each head's softmax has one more score, of a value that is 0
    sinks_in_windows: bool = False  # of layers with a window alone
    value_dim: int = 0  # numbers of a head's value, which is stored with zeros behind it; 0: as many as of its key
    parallel: bool = False  # attention and feed-forward layer get the same input, and add to the same stream
    parallel_norms: bool = False  # of the same stream, but each by a norm of its own
    # It guesses for another model: its stream begins with what that one has made of a token, joined with the embedding
    # of the next. Embedding and output are that one's, but for those that it has itself.
    joins: bool = False
    own_tables: tuple[Table, ...] = ()

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            require_size(name, getattr(self, name), limit)
        for prefix, heads in (("", KVHeads(self.num_kv_heads, self.head_dim)), ("full_heads.", self._full_heads)):
            require_size(f"{prefix}num_kv_heads", heads.number, LIMITS["num_kv_heads"])
            require_size(f"{prefix}head_dim", heads.size, LIMITS["head_dim"])
            if not self.query_heads and self.num_heads % heads.number:
                raise ConfigError(f"{prefix}num_kv_heads", f"{heads.number} does not divide the {self.num_heads} heads")
            if heads.size % 2:
                raise ConfigError(f"{prefix}head_dim", f"{heads.size} is odd, but RoPE rotates pairs")
        head_dim = self._full_heads.size
        if self.rotary_dim is not None and (self.rotary_dim % 2 or not 2 <= self.rotary_dim <= head_dim):
            raise ConfigError("rotary_dim", f"must be even and from 2 to {head_dim}, but is {self.rotary_dim}")
        require_finite("norm_eps", self.norm_eps, above=0.0)
        require_finite("rope_theta", self.rope_theta, at_least=1.0)
        require_finite("rope_scale", self.rope_scale, above=0.0)
        if self.parallel and self.norm_placement != "before":
            raise ConfigError("norm_placement", "must be before in layers whose parts are side by side")
        if self.window_rope_theta is not None:
            require_finite("window_rope_theta", self.window_rope_theta, at_least=1.0)
        for name in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logit_multiplier"):
            if getattr(self, name) is not None:
                require_finite(name, getattr(self, name), above=0.0)
        for name in ("mixing_multiplier", "feed_forward_multiplier", "gate_multiplier"):
            require_finite(name, getattr(self, name), above=0.0)
        for name in ("qkv_limit", "attention_soft_cap", "logit_soft_cap"):
            require_finite(name, getattr(self, name), at_least=0.0)
        self._check_by_layer()
        if self.qkv_limit and (self.qk_norm not in (None, "whole") or self.values_are_keys):
            raise ConfigError("qkv_limit", "is served without norms of heads, or with those over all of them at once")
        if not self.norm_weights and (self.norm != "layer" or self.norm_bias or self.norm_placement != "before"):
            raise ConfigError("norm_weights", "are what norms other than layer norms before a layer's parts have")
        if self.activation == "xielu" and (self.gated or self.experts is not None):
            raise ConfigError("activation", "xielu is served without a gate and experts")
        if self.value_dim:
            require_size("value_dim", self.value_dim, self.head_dim)
            if self.latents or self.attention_gate or self.values_are_keys or self.value_norm or self.shared_layers:
                raise ConfigError("value_dim", "is served of attention without latents, gates, norms or shared values")
        if self.mixing_multiplier != 1 and (self.latents or self.parallel):
            raise ConfigError("mixing_multiplier", "is served of attention before a feed-forward part")
        if self.parallel_norms and not self.parallel:
            raise ConfigError("parallel_norms", "are of layers whose parts are side by side")
        if self.qk_norm == "behind" and self.rope_scaling is not None:
            scaling = self.rope_scaling
            if (scaling.attention_factor, scaling.long_attention_factor) != (1, 1):
                raise ConfigError(
                    "rope_scaling.attention_factor", "must be 1 where norms of heads are behind the rotation"
                )
        if self.residual_multiplier != 1 and self.norm_placement != "before":
            raise ConfigError("residual_multiplier", "is served with norms before a layer's parts alone")
        if self.rope_scaling is not None and self.rope_scaling.factors:
            wanted = self.rotated // 2
            for name in ("factors", *(["long_factors"] if self.rope_scaling.kind == "longrope" else [])):
                given = len(getattr(self.rope_scaling, name))
                if given != wanted:
                    raise ConfigError(f"rope_scaling.{name}", f"are {given}, but a head of {self.rotated} has {wanted}")
        if self.kept_norms is not None and (
            *(self.norm_placement, self.norm, self.residual_multiplier, self.parallel),
            *(self.feed_forward_alone, self.beside_attention, self.per_layer_inputs, self.layer_scale),
        ) != ("before", "rms", 1.0, False, None, False, None, False):
            raise ConfigError("kept_norms", "are of RMS norms before a layer's two parts")
        if self.recurrence is not None:
            if not self.attention_layers:
                raise ConfigError("recurrence.layers", "leave no layer that has attention; one at least must have it")
            if self.norm_placement == "after" or self.parallel or self.norm != "rms":
                raise ConfigError("recurrence", "is served with RMS norms before a layer's parts, or around them")
            if self.norm_placement != "before" and self.beside_attention:
                raise ConfigError("norm_placement", "must be before where attention is beside a state")
            if set(self.recurrence.layers) & set(self.feed_forward_alone or ()):
                raise ConfigError("feed_forward_alone", "has layers that have states")
        elif self.norm_placement == "after_attention":
            raise ConfigError("norm_placement", "is that of models whose other layers have states")
        if self.latents is not None and (self.num_kv_heads, self.head_dim) != (1, self.latents.size):
            raise ConfigError("head_dim", f"must be that of one latent of {self.latents.size} numbers")
        if self.latents is not None and self.attention_gate:
            self._check_gates_of_latents()
        if self.indexer is not None:
            self._check_indexer(self.indexer)
        if self.compression is not None:
            self._check_compression(self.compression)
        if self.hyper is not None and (self.compression is None or self.residual_multiplier != 1):
            raise ConfigError("hyper", "are served of layers whose attention is compressed")
        if self.feed_forward_alone is not None and (self.norm_placement != "before" or self.parallel):
            raise ConfigError("feed_forward_alone", "is served with norms before a layer's parts alone")
        if self.learned_positions:
            self._check_positions()
        if self.windows and len(self.windows) != self.num_layers:
            raise ConfigError("windows", f"are {len(self.windows)} for {self.num_layers} layers")
        for window in self.windows:
            if window < 0:
                raise ConfigError("windows", f"must be at least 1, but one is {window}")
        if not 0 <= self.shared_layers < self.num_layers:
            raise ConfigError("shared_layers", f"must be from 0 to {self.num_layers - 1}, but is {self.shared_layers}")
        if any(source is None for source in self._sources):
            raise ConfigError("shared_layers", f"{self.shared_layers} leave no layer of each kind to look at")
        inputs = self.per_layer_inputs
        if inputs is not None and self.streams is None and inputs.vocab_size < self.vocab_size:
            problem = f"{inputs.vocab_size} is less than the {self.vocab_size} of the vocabulary"
            raise ConfigError("per_layer_inputs.vocab_size", problem)
        for name in ("inner_sizes", "sparsity"):
            if (count := len(getattr(self, name))) not in (0, self.num_layers):
                raise ConfigError(name, f"are {count} for {self.num_layers} layers")
        for size in self.inner_sizes:
            require_size("inner_sizes", size, LIMITS["intermediate_size"])
        if not all(0 <= share < 1 for share in self.sparsity):
            raise ConfigError("sparsity", "must be at least 0 and less than 1 in each layer")
        if (any(self.sparsity) or self.inner_sizes) and (not self.gated or self.experts is not None):
            raise ConfigError("sparsity" if any(self.sparsity) else "inner_sizes", "is served with gates, not experts")
        if self.streams is not None:
            self._check_streams()
        if self.experts is not None and self.experts.count * self.num_layers > _MOST_EXPERTS:
            raise ConfigError("experts.count", f"{self.experts.count} in {self.num_layers} layers are too many")

    def _check_gates_of_latents(self) -> None:
        if not self.gate_by_head or self.gate_activation != "sigmoid":
            raise ConfigError("attention_gate", "is served of heads, by a sigmoid, where attention is over latents")

    def _check_by_layer(self) -> None:
        for name in ("query_heads", "swiglu_limits", "shared_swiglu_limits"):
            given = len(getattr(self, name))
            if given not in (0, self.num_layers):
                raise ConfigError(name, f"are {given} for {self.num_layers} layers")
        for limit in (*self.swiglu_limits, *self.shared_swiglu_limits):
            require_finite("swiglu_limits", limit, at_least=0.0)
        if (self.swiglu_limits or self.shared_swiglu_limits) and (self.activation != "silu" or not self.gated):
            raise ConfigError("swiglu_limits", "are those of gates by silu")
        if self.window_rotary_dim:
            wide, part = self.head_dim, self.window_rotary_dim
            if part % 2 or not 2 <= part <= wide:
                raise ConfigError("window_rotary_dim", f"must be even and from 2 to {wide}, but is {part}")
            if self.window_rope_theta is None or self.full_heads is not None or self.in_proportion:
                raise ConfigError("window_rotary_dim", "is served of heads of one size and a theta of their own")
        if not self.query_heads:
            return
        if self.query_heads[0] != self.num_heads or self.latents is not None or self.values_are_keys:
            raise ConfigError("query_heads", "must begin with num_heads, of layers with keys and values")
        for number, (queries, heads) in enumerate(zip(self.query_heads, self.layer_heads, strict=True)):
            require_size("query_heads", queries, LIMITS["num_heads"])
            if queries % heads.number:
                problem = f"has {queries} in layer {number}, which cannot share {heads.number} heads of keys"
                raise ConfigError("query_heads", problem)

    def _check_indexer(self, indexer: Indexer) -> None:
        if self.latents is None or not self.latents.query_rank:
            raise ConfigError("latents.query_rank", "must be at least 1 where tokens are chosen by latents of queries")
        if indexer.size < self.latents.rotated:
            problem = f"{indexer.size} is less than the {self.latents.rotated} numbers that are rotated"
            raise ConfigError("indexer.size", problem)
        if indexer.layers[-1] >= self.num_layers:
            raise ConfigError("indexer.layers", f"has layer {indexer.layers[-1]}, but there are {self.num_layers}")

    def _check_streams(self) -> None:
        if self.norm_placement != "both" or self.norm != "rms" or self.per_layer_inputs is None:
            raise ConfigError("streams", "are served with RMS norms around parts and with what layers are given")
        further = (self.latents, self.recurrence, self.experts, self.feed_forward_alone)
        if self.layer_scale or self.joins or any(each is not None for each in further):
            raise ConfigError("streams", "are served of layers with attention and a feed-forward part alone")

    def _check_compression(self, compression: Compression) -> None:
        if len(compression.kinds) != self.num_layers:
            raise ConfigError("compression.kinds", f"are {len(compression.kinds)} for {self.num_layers} layers")
        if self.num_kv_heads != 1:
            raise ConfigError("num_kv_heads", f"must be 1 where attention is compressed, but is {self.num_kv_heads}")
        if compression.rotated > self.head_dim:
            raise ConfigError("compression.rotated", f"must be at most {self.head_dim}, but is {compression.rotated}")
        if self.num_heads % compression.groups:
            problem = f"{compression.groups} do not share the {self.num_heads} heads"
            raise ConfigError("compression.groups", problem)
        if self.hyper is None or self.norm != "rms" or self.norm_placement != "before":
            raise ConfigError("compression", "is served of several streams, with RMS norms before a layer's parts")

    def _check_positions(self) -> None:
        require_size("learned_positions", self.learned_positions, LIMITS["context_length"])
        most = self.learned_positions - self.position_offset
        if not 0 <= self.position_offset < self.learned_positions:
            raise ConfigError("position_offset", f"must be from 0 to {self.learned_positions - 1}")
        if self.context_length > most:
            problem = f"is {self.context_length}, but the model has learned {most} positions, where its context ends"
            raise ConfigError("context_length", problem)

    @property
    def rotated(self) -> int:
        """Returns how many of a head's numbers are rotated."""
        return self._full_heads.size if self.rotary_dim is None else self.rotary_dim

    @property
    def in_proportion(self) -> bool:
        """Tells whether those that are rotated turn as if all were."""
        return self.rope_scaling is not None and self.rope_scaling.kind == "proportional"

    @property
    def q_size(self) -> int:
        """Returns the rows of the query projection, in layers with a window if they differ."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Returns the rows of the key projection, and of the value projection, in layers with a window if they
        differ."""
        return self.num_kv_heads * self.head_dim

    @property
    def _full_heads(self) -> KVHeads:
        latent = 0 if self.latents is None else self.latents.rank
        return self.full_heads or KVHeads(self.num_kv_heads, self.head_dim, latent)

    @property
    def layer_heads(self) -> tuple[KVHeads, ...]:
        """Returns each layer's heads of keys and values."""
        heads = KVHeads(self.num_kv_heads, self.head_dim)
        if (compression := self.compression) is not None:
            one = heads._replace(latent=self.head_dim)
            return tuple(one._replace(vectors=compression.vectors(layer)) for layer in range(self.num_layers))
        windows = self.windows or (0,) * self.num_layers
        return tuple(heads if window else self._full_heads for window in windows)

    @property
    def _sources(self) -> tuple[int | None, ...]:
        """Returns whose keys and values each layer looks at: its own, but for shared layers."""
        windows = self.windows or (0,) * self.num_layers
        own = range(self.num_layers - self.shared_layers)
        last = {windows[layer] > 0: layer for layer in own}
        return (*own, *(last.get(window > 0) for window in windows[len(own) :]))

    @property
    def cache_places(self) -> dict[int, int]:
        """Returns, for each layer with attention, which of the cache's keys and values it looks at."""
        own = {layer: place for place, layer in enumerate(self._storing_layers)}
        return {layer: own[source] for layer in self.attention_layers if (source := self._sources[layer]) is not None}

    @property
    def _storing_layers(self) -> tuple[int, ...]:
        first = self.num_layers - self.shared_layers
        return tuple(layer for layer in self.attention_layers if layer < first)

    def stores(self, layer: int) -> bool:
        """Tells whether a layer with attention has keys and values of its own."""
        return layer < self.num_layers - self.shared_layers

    def projects_values(self, layer: int) -> bool:
        """Tells whether a layer that stores has a projection for values."""
        return not self.values_are_keys or (bool(self.windows) and self.windows[layer] > 0)

    def kept_norm(self, layer: int) -> float:
        """Returns by what the norm before a layer's first part is multiplied where it takes the stream's place; 0: it
        does not."""
        kept, recurrence = self.kept_norms, self.recurrence
        if kept is None:
            return 0.0
        return kept.state if recurrence is not None and layer in recurrence.layers else kept.attention

    def inner_size(self, layer: int) -> int:
        """Returns the intermediate size of a layer's ordinary feed-forward part."""
        usual = self.inner_sizes[layer] if self.inner_sizes else self.intermediate_size
        return usual * (1 if self.stores(layer) else self.shared_widening)

    @property
    def beside_attention(self) -> bool:
        """Tells whether layers with states have attention, too."""
        return isinstance(self.recurrence, Mamba) and self.recurrence.beside_attention

    def mixes(self, layer: int) -> bool:
        """Tells whether a layer has attention or a state."""
        return layer not in (self.feed_forward_alone or ())

    def placement(self, layer: int) -> Literal["before", "after", "both"]:
        """Returns where the norms of a layer stand."""
        if self.norm_placement != "after_attention":
            return self.norm_placement
        return "after" if layer in self.attention_layers else "before"

    def feeds(self, layer: int) -> bool:
        """Tells whether a layer has a feed-forward part."""
        return self.feed_forward_alone is None or layer in self.feed_forward_alone

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Returns the layers that have attention."""
        others = set(self.feed_forward_alone or ())
        if self.recurrence is not None and not self.beside_attention:
            others |= set(self.recurrence.layers)
        return tuple(layer for layer in range(self.num_layers) if layer not in others)

    @property
    def cache_heads(self) -> tuple[KVHeads, ...]:
        """Returns the heads of each layer that has keys and values of its own, in order."""
        heads, indexer = self.layer_heads, self.indexer
        choosing = {} if indexer is None else dict.fromkeys(indexer.layers, indexer.size)
        if (compression := self.compression) is not None:
            index = {"index_size": compression.index_size, "index_vectors": 4}
            return tuple(
                each._replace(**index) if compression.chooses(layer) else each for layer, each in enumerate(heads)
            )
        return tuple(heads[layer]._replace(index_size=choosing.get(layer, 0)) for layer in self._storing_layers)

    @property
    def attention_kinds(self) -> tuple[AttentionKind, ...]:
        """Returns how each layer attends, if it does."""
        both = zip(self.layer_windows, self.layer_heads, strict=True)
        most = 0 if self.indexer is None else self.indexer.most
        if (compression := self.compression) is not None:
            return tuple(
                AttentionKind(
                    min(compression.window, self.context_length),
                    heads,
                    compression.most if compression.chooses(layer) else 0,
                    compression.every(layer),
                )
                for layer, heads in enumerate(self.layer_heads)
            )
        kinds = (AttentionKind(-window if self.chunked else window, heads, most) for window, heads in both)
        return tuple(
            kind._replace(query_heads=self.query_heads[layer] if self.query_heads else 0)
            for layer, kind in enumerate(kinds)
        )

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Returns each layer's window; 0 where it sees the whole context."""
        windows = self.windows or (0,) * self.num_layers
        return tuple(window if window < self.context_length else 0 for window in windows)

    @property
    def layer_ropes(self) -> tuple[Rope, ...]:
        """Returns how each layer rotates queries and keys."""
        if self.compression is not None:
            return tuple("window" if kind == "window" else "model" for kind in self.compression.kinds)
        unrotated, windows = set(self.unrotated_layers), self.windows or (0,) * self.num_layers
        apart = self.window_rope_theta is not None
        return tuple(
            "none" if layer in unrotated else "window" if apart and window else "model"
            for layer, window in enumerate(windows)
        )

    @property
    def attention_scale(self) -> float:
        """Returns what queries times keys are multiplied by."""
        return self.head_dim**-0.5 if self.attention_multiplier is None else self.attention_multiplier

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by. What layers add is not multiplied: the stream that they add to is divided
        by `residual_multiplier` instead, which their norms do not see, their epsilon being `stream_eps`."""
        return self.embedding_multiplier / self.residual_multiplier

    @property
    def stream_eps(self) -> float:
        """Returns the epsilon of norms of the stream; see `embedding_scale`."""
        return self.norm_eps / self.residual_multiplier**2

    @property
    def queries_grow(self) -> bool:
        """Tells whether some position of the context has queries that are multiplied by more than 1."""
        growth = self.query_growth
        return growth is not None and self.context_length + growth.ahead > growth.every

    def queries_grow_in(self, layer: int) -> bool:
        """Tells whether those of a layer do."""
        growth = self.query_growth
        return (
            growth is not None and self.queries_grow and (not growth.unrotated_alone or layer in self.unrotated_layers)
        )

    def with_context_length(self, context_length: int) -> ModelConfig:
        """Returns the same model with another context length."""
        return replace(self, context_length=context_length)

    def with_rope(self, scale: float, alpha: float) -> ModelConfig:
        """Returns the same model with positions divided by `scale` (linear interpolation) and theta raised by `alpha`
        (NTK-aware scaling: about alpha times the context)."""
        turning = self._full_heads.size if self.in_proportion else self.rotated
        raised = alpha ** (turning / max(turning - 2, 1)) if alpha != 1 else 1.0
        apart = self.window_rope_theta
        return replace(
            self,
            rope_scale=self.rope_scale * scale,
            rope_theta=self.rope_theta * raised,
            window_rope_theta=None if apart is None else apart * raised,
        )

    def for_windows(self) -> ModelConfig:
        """Returns the same model rotating as its layers with windows do."""
        assert self.window_rope_theta is not None
        if self.compression is not None:
            return replace(self.for_full_layers(), rope_theta=self.window_rope_theta, rope_scaling=None)
        rotary_dim = None if self.in_proportion else self.window_rotary_dim or self.rotary_dim
        return replace(
            self,
            rope_theta=self.window_rope_theta,
            rope_scaling=None,
            rotary_dim=rotary_dim,
            window_rotary_dim=0,
            full_heads=None,
        )

    def for_full_layers(self) -> ModelConfig:
        """Returns the same model with the heads of layers without a window in all of them; of latents, with heads of
        what is rotated."""
        if self.latents is not None:
            return replace(self, head_dim=self.latents.rotated, rotary_dim=None, latents=None, indexer=None)
        if self.compression is not None:
            rotated = self.compression.rotated
            return replace(self, head_dim=rotated, rotary_dim=None, compression=None, hyper=None)
        heads = self._full_heads
        return replace(self, num_kv_heads=heads.number, head_dim=heads.size, full_heads=None)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Returns which of embedding and output are tensors of its own."""
        if self.joins:
            return self.own_tables
        return ("embedding",) if self.tie_embeddings else ("embedding", "output")

    def has_experts(self, layer: int) -> bool:
        """Tells whether a layer's feed-forward part is a mixture of experts."""
        return self.experts is not None and self.feeds(layer) and layer not in self.experts.dense_layers

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns canonical name and shape of every tensor that a checkpoint of this model must give, in loading order.

        Matrices are `[out, in]`. The rows of q and k are laid out for RoPE on halves: within a head, row i and row
        i + head_dim / 2 form a pair, the first `rotary_dim / 2` of which turn.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        if self.joins:
            shapes["join.matrix"] = (self.hidden_size, 2 * self.hidden_size)
            shapes |= self._norm_shapes("join.embedding_norm") | self._norm_shapes("join.hidden_norm")
        if self.logit_bias:
            shapes["output_bias"] = (self.vocab_size,)
        if self.learned_positions:
            shapes["positions"] = (self.learned_positions, self.hidden_size)
        if self.per_layer_inputs is not None:
            every = self.num_layers * self.per_layer_inputs.size
            shapes["per_layer.embedding"] = (self.per_layer_inputs.vocab_size, every)
            shapes["per_layer.projection"] = (every, self.hidden_size)
            shapes["per_layer.norm"] = (self.per_layer_inputs.size,)
        if self.streams is not None:
            others = range(1, self.streams.count)
            shapes |= {f"streams.{way}.{n}": (self.hidden_size,) * 2 for way in ("in", "out") for n in others}
        if self.hyper is not None:
            shapes |= self.hyper.end_shapes(self.hidden_size)
        for layer in range(self.num_layers):
            feed_forward = self._feed_forward_shapes(layer) if self.feeds(layer) else {}
            for name, shape in (self._mixing_shapes(layer) | feed_forward).items():
                shapes[f"layers.{layer}.{name}"] = shape
        shapes |= self._norm_shapes("norm")
        # At the end: a matrix of a layer may need its size again while it is read, which these leave room for.
        shapes |= dict.fromkeys(self.tables, (self.vocab_size, self.hidden_size))
        return shapes

    def projections(self, layer: int) -> dict[Literal["q", "k", "v"], int]:
        """Returns the rows of each of a layer's projections before attention."""
        heads = self.layer_heads[layer]
        rows: dict[Literal["q", "k", "v"], int] = {"q": self.queries(layer) * heads.size}
        if self.stores(layer):
            rows["k"] = heads.number * heads.size
            if self.projects_values(layer):
                rows["v"] = heads.number * (self.value_dim or heads.size)
        return rows

    def queries(self, layer: int) -> int:
        """Returns how many heads of queries a layer with attention has."""
        return self.query_heads[layer] if self.query_heads else self.num_heads

    def rotated_in(self, layer: int) -> int:
        """Returns how many of a head's numbers a layer rotates, if it does."""
        windowed = bool(self.windows) and self.windows[layer] > 0
        return self.window_rotary_dim if windowed and self.window_rotary_dim else self.rotated

    def experts_in(self, layer: int) -> Experts | None:
        """Returns a layer's experts, if it has such."""
        if self.experts is None or not self.has_experts(layer):
            return None
        limit, shared = self._limit(self.swiglu_limits, layer), self.limit(layer)
        if limit is None and shared is None:
            return self.experts
        return replace(self.experts, clamped=limit or self.experts.clamped, shared_clamped=shared)

    def limit(self, layer: int) -> LimitedSwiGLU | None:
        """Returns the gate of a layer's ordinary or shared part where it has a limit."""
        return self._limit(self.shared_swiglu_limits, layer)

    @staticmethod
    def _limit(limits: tuple[float, ...], layer: int) -> LimitedSwiGLU | None:
        return LimitedSwiGLU(limits[layer]) if limits and limits[layer] else None

    def attended_size(self, layer: int) -> int:
        """Returns how many numbers a layer's attention gives."""
        return self.queries(layer) * (self.value_dim or self.layer_heads[layer].size)

    def has_sinks(self, layer: int) -> bool:
        """Tells whether the heads of a layer with attention have one more score."""
        return self.sinks and (not self.sinks_in_windows or (bool(self.windows) and self.windows[layer] > 0))

    def gates(self, layer: int) -> int:
        """Returns by how many gates a layer with attention multiplies what that gives."""
        if not self.attention_gate:
            return 0
        return self.queries(layer) if self.gate_by_head else self.projections(layer)["q"]

    def _mixing_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        shapes, recurrence = self._norm_shapes("attention.norm"), self.recurrence  # a layer's first norm
        if self.norm_placement == "both":
            shapes |= self._norm_shapes("attention.post_norm")
        if self.hyper is not None:
            shapes |= self.hyper.part_shapes("attention.hyper", self.hidden_size)
        if layer in self.attention_layers:
            shapes |= self._attention_shapes(layer)
        if recurrence is not None and layer in recurrence.layers:
            shapes |= recurrence.tensor_shapes(self.hidden_size)
        return shapes

    def _attention_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        if self.latents is not None:
            shapes = self.latents.tensor_shapes(self.hidden_size, self.num_heads, bias=self.qkv_bias)
            if self.indexer is not None and layer in self.indexer.layers:
                shapes |= self.indexer.tensor_shapes(self.hidden_size, self.latents.query_rank)
            shapes |= {"attention.gate": (self.gates(layer), self.hidden_size)} if self.attention_gate else {}
            return shapes | ({"attention.output_bias": (self.hidden_size,)} if self.output_bias else {})
        if self.compression is not None:
            return self.compression.tensor_shapes(layer, self.hidden_size, self.num_heads, self.head_dim)
        rows, head_dim = self.projections(layer), self.layer_heads[layer].size
        shapes = {
            **{f"attention.{name}": (size, self.hidden_size) for name, size in rows.items()},
            **({"attention.gate": (self.gates(layer), self.hidden_size)} if self.attention_gate else {}),
            "attention.output": (self.hidden_size, self.attended_size(layer)),
        }
        if self.qkv_bias:
            shapes |= {f"attention.{name}_bias": (size,) for name, size in rows.items()}
        if self.has_sinks(layer):
            shapes["attention.sinks"] = (self.queries(layer),)
        if self.output_bias:
            shapes["attention.output_bias"] = (self.hidden_size,)
        if self.qk_norm and self.qk_norm != "unit":
            whole = self.qk_norm == "whole"
            normalized = {name: size for name, size in rows.items() if name != "v"}
            shapes |= {f"attention.{name}_norm": (size if whole else head_dim,) for name, size in normalized.items()}
        return shapes

    def _feed_forward_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        own_norm = self.mixes(layer) and (not self.parallel or self.parallel_norms)
        shapes = self._norm_shapes("mlp.norm") if own_norm else {}
        if self.norm_placement == "both":
            shapes |= self._norm_shapes("mlp.post_norm")
        if self.hyper is not None:
            shapes |= self.hyper.part_shapes("mlp.hyper", self.hidden_size)
        if self.layer_scale:
            shapes["scale"] = (1,)
        if self.per_layer_inputs is not None:
            shapes["per_layer.gate"] = (self.per_layer_inputs.size, self.hidden_size)
            shapes["per_layer.output"] = (self.hidden_size, self.per_layer_inputs.size)
            shapes["per_layer.norm"] = (self.hidden_size,)
        if self.streams is not None:
            shapes |= self._stream_shapes(self.streams)
        if self.activation == "xielu":
            shapes |= {f"mlp.{name}": (1,) for name in XIELU_CONSTANTS}
        if not self.has_experts(layer):
            return shapes | self._matrices("mlp", self.inner_size(layer), bias=self.mlp_bias)
        assert self.experts is not None
        experts = self.experts
        if experts.beside:
            shapes |= self._matrices("mlp", self.inner_size(layer), bias=self.mlp_bias)
            for name in ("beside.norm", "beside.post_norm", "mlp.own_norm", "router_norm"):
                shapes[name] = (self.hidden_size,)
        if experts.weighed:
            shapes["expert_weights"] = (experts.count,)
        shapes["router"] = (experts.count, self.hidden_size)
        if layer in experts.listed_layers:
            shapes["router_table"] = (self.vocab_size, experts.per_token)
        elif experts.biased:
            shapes["router_bias"] = (experts.count,)
        if experts.biases:
            shapes["router_logit_bias"] = (experts.count,)
        if experts.shared_size:
            shapes |= self._matrices("shared", experts.shared_size, bias=self.mlp_bias, gated=experts.gated)
            if experts.shared_router:
                shapes["shared_router"] = (1, self.hidden_size)
        width = experts.latent or self.hidden_size
        if experts.latent:
            shapes |= {"into_experts": (width, self.hidden_size), "out_of_experts": (self.hidden_size, width)}
            if self.mlp_bias:
                shapes |= {"into_experts_bias": (width,), "out_of_experts_bias": (self.hidden_size,)}
        size, how = experts.intermediate_size, {"bias": experts.biases, "gated": experts.gated}
        for expert in range(experts.count):
            shapes |= self._matrices(f"experts.{expert}", size, **how, width=width)
        return shapes

    def _stream_shapes(self, streams: Streams) -> dict[str, tuple[int, ...]]:
        count, width = streams.count, self.hidden_size
        return {
            "altup.norm": (width,),
            "altup.router": (count, width),
            "altup.predict": (count * count, count),
            "altup.correct": (count, count),
            "altup.scale": (width,),
            "laurel.left": (streams.laurel_rank, width),
            "laurel.right": (width, streams.laurel_rank),
            "laurel.norm": (width,),
        }

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        size = (self.hidden_size,)
        if not self.norm_weights:
            return {}
        return {name: size, f"{name}_bias": size} if self.norm_bias else {name: size}

    def _matrices(
        self, name: str, size: int, *, bias: bool, gated: bool | None = None, width: int = 0
    ) -> dict[str, tuple[int, ...]]:
        """Returns those of a feed-forward part; `gated` as layers without experts, `width` the stream's unless said."""
        width = width or self.hidden_size
        rows = ({"gate": size} if (self.gated if gated is None else gated) else {}) | {"up": size}
        shapes: dict[str, tuple[int, ...]] = {f"{name}.{part}": (size, width) for part in rows}
        shapes[f"{name}.down"] = (width, size)
        if bias:
            shapes |= {f"{name}.{part}_bias": (count,) for part, count in (rows | {"down": width}).items()}
        return shapes
