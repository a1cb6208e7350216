"""The Llama forward pass over a paged cache, and how it gets its weights.

A layer, on rows `x [N, hidden]` that may belong to any sequences:

    q, k, v = rotate(norm(x) Wq), rotate(norm(x) Wk), norm(x) Wv        one product: Wq, Wk, Wv lie below each other
    x       = x + attention(q, cache + k, cache + v) Wo
    x       = x + (silu(norm(x) Wgate) * norm(x) Wup) Wdown             one product for gate and up

Everything but the attention works row by row, and only with operations whose bits do not depend on the other rows if
their number is a multiple of `row_multiple`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from worker_svc.checkpoints.checkpoint import Checkpoint, CheckpointError
from worker_svc.model.attention import AttentionPlan
from worker_svc.model.config import ModelConfig
from worker_svc.model.kv_cache import KVCache
from worker_svc.model.linear import Linear
from worker_svc.model.rope import RotaryTable, rotate
from worker_svc.model.weights import WeightFiller


class RMSNorm(torch.nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, computed in float32."""

    weight: torch.nn.Parameter  # [size]
    __call__: Callable[..., torch.Tensor]

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._shape = (size,)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, size] -> [N, size]`."""
        return F.rms_norm(x, self._shape, self.weight, self._eps)


class Embedding(torch.nn.Module):
    """Token vectors."""

    weight: torch.nn.Parameter  # [vocab, hidden]
    __call__: Callable[..., torch.Tensor]

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        empty = torch.empty((config.vocab_size, config.hidden_size), dtype=dtype)
        self.weight = torch.nn.Parameter(empty, requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`[N] -> [N, hidden]`."""
        return F.embedding(ids, self.weight)


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of a forward pass share."""

    cos: torch.Tensor  # [N, 1, head_dim]
    signed_sin: torch.Tensor  # [N, 1, head_dim]
    cache: KVCache
    slots: torch.Tensor
    plan: AttentionPlan


class Layer(torch.nn.Module):
    """Attention and feed-forward, each with its norm and residual."""

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._index = index
        self._heads = config.num_heads
        self._rotated_heads = config.num_heads + config.num_kv_heads
        self._qkv_shape = (-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        self._q_size = config.q_size
        self._intermediate_size = config.intermediate_size
        self._scale = config.head_dim**-0.5
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, dtype)
        self.qkv = Linear(config.hidden_size, config.q_size + 2 * config.kv_size, dtype)
        self.attention_output = Linear(config.q_size, config.hidden_size, dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, dtype)
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, dtype)
        self.down = Linear(config.intermediate_size, config.hidden_size, dtype)

    def forward(self, x: torch.Tensor, step: _Step, wanted: torch.Tensor | None) -> torch.Tensor:
        """`x [N, hidden]` after this layer, x itself being overwritten; with `wanted` `[M]`, only those rows of it."""
        qkv = self.qkv(self.attention_norm(x)).view(self._qkv_shape)
        qk = rotate(qkv[:, : self._rotated_heads], step.cos, step.signed_sin)
        step.cache.write(self._index, step.slots, qk[:, self._heads :], qkv[:, self._rotated_heads :])
        keys, values = step.cache.keys[self._index], step.cache.values[self._index]
        queries = step.cache.scale_queries(self._index, qk[:, : self._heads])
        attended = step.plan.attend(keys, values, queries, self._scale).view(-1, self._q_size)
        if wanted is not None:
            x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
        x += self.attention_output(attended)
        x += self.down(swiglu(self.gate_up(self.mlp_norm(x)), self._intermediate_size))
        return x


def swiglu(gate_up: torch.Tensor, size: int) -> torch.Tensor:
    """`silu(gate) * up` of `[N, 2 size]`, computed in float32."""
    gate, up = gate_up[:, :size], gate_up[:, size:]
    if gate_up.is_cuda:
        return F.silu(gate) * up
    # On a CPU, F.silu computes the last elements of each thread by other instructions than the rest, so that their
    # bits depend on the batch and on the number of threads; exp does not. One temporary: at 512 rows, allocating more
    # of them takes longer than the arithmetic.
    gate = gate.float()
    result = gate.neg().exp_().add_(1)
    torch.div(gate, result, out=result)
    return result.mul_(up).to(gate_up.dtype)


class Transformer(torch.nn.Module):
    """A decoder of the Llama family. Its weights are on the meta device until `load_transformer` fills them."""

    __call__: Callable[..., torch.Tensor]

    def __init__(self, config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.rotary = RotaryTable(config, device)
        with torch.device("meta"):
            self.embedding = Embedding(config, dtype)
            self.layers = torch.nn.ModuleList(Layer(config, index, dtype) for index in range(config.num_layers))
            self.norm = RMSNorm(config.hidden_size, config.norm_eps, dtype)
            self.output = Linear(config.hidden_size, config.vocab_size, dtype)
        if config.tie_embeddings:
            self.output.share(self.embedding.weight)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        slots: torch.Tensor,
        plan: AttentionPlan,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Stores keys and values of all rows and computes the logits of some.

        ids: `[N]` int64, each below the vocabulary's size.
        positions: `[N]` int64, each below the context length.
        slots: `[2, N]` int64, where each row's key and value go (`KVCache.write`).
        plan: which rows attend to what.
        logit_rows: `[M]` int64, the rows whose logits are wanted.

        Returns `[M, vocab]` float32.
        """
        cos, signed_sin = self.rotary.at(positions)
        step = _Step(cos, signed_sin, cache, slots, plan)
        x = self.embedding(ids)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x, step, logit_rows if index == last else None)
        return self.output(self.norm(x)).float()

    @property
    def row_multiple(self) -> int:
        """A row's logits do not depend on the other rows if their number is a multiple of this."""
        return max(module.row_multiple for module in self.modules() if isinstance(module, Linear))

    def destinations(self) -> dict[str, _Destination]:
        """Where each canonical tensor goes: a module's weight, from one of its rows on."""
        places = {"embedding": _Destination(self.embedding, 0), "norm": _Destination(self.norm, 0)}
        if not self.config.tie_embeddings:
            places["output"] = _Destination(self.output, 0)
        q_size, kv_size = self.config.q_size, self.config.kv_size
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            places |= {
                f"layers.{index}.attention.norm": _Destination(layer.attention_norm, 0),
                f"layers.{index}.attention.q": _Destination(layer.qkv, 0),
                f"layers.{index}.attention.k": _Destination(layer.qkv, q_size),
                f"layers.{index}.attention.v": _Destination(layer.qkv, q_size + kv_size),
                f"layers.{index}.attention.output": _Destination(layer.attention_output, 0),
                f"layers.{index}.mlp.norm": _Destination(layer.mlp_norm, 0),
                f"layers.{index}.mlp.gate": _Destination(layer.gate_up, 0),
                f"layers.{index}.mlp.up": _Destination(layer.gate_up, self.config.intermediate_size),
                f"layers.{index}.mlp.down": _Destination(layer.down, 0),
            }
        return places


@dataclass(frozen=True, slots=True)
class _Destination:
    module: RMSNorm | Embedding | Linear
    row: int


def load_transformer(
    checkpoint: Checkpoint,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
    *,
    config: ModelConfig | None = None,
) -> Transformer:
    """A model with the checkpoint's weights, in `dtype` on `device`.

    `progress(bytes done, bytes in all)` is called after each tensor. `config` serves the weights with other constants,
    for example another context length. Raises CheckpointError.
    """
    model = Transformer(config or checkpoint.config, device, dtype)
    destinations = model.destinations()
    filler = WeightFiller(device, dtype)
    done = 0
    for name, source in checkpoint.tensors():
        target = destinations.pop(name)
        try:
            filler.fill(target.module, target.row, source, checkpoint.release)
        except OverflowError as error:
            raise CheckpointError(f"{checkpoint.path}: {name} has {error}") from error
        done += source.numel() * source.element_size()
        if progress is not None:
            progress(done, checkpoint.total_bytes)
    if destinations:
        raise CheckpointError(f"{checkpoint.path}: {', '.join(destinations)} did not come")
    if model.config.tie_embeddings:
        model.output.share(model.embedding.weight)
    return model
