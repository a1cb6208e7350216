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
from worker_svc.model.config import ModelConfig
from worker_svc.model.kv_cache import KVCache
from worker_svc.model.linear import Linear
from worker_svc.model.operations import Operations, Plan, TorchOperations
from worker_svc.model.rope import RotaryTable
from worker_svc.model.weights import WeightFiller


class RMSNorm(torch.nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, computed in float32."""

    weight: torch.nn.Parameter  # [size]
    __call__: Callable[..., torch.Tensor]

    def __init__(self, size: int, eps: float, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._eps = eps
        self._operations = operations

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, size] -> [N, size]`."""
        return self.after_adding(x, None)

    def after_adding(self, x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Adds `delta` to `x` `[N, size]` in place, then gives the norm of it."""
        return self._operations.add_norm(x, delta, self.weight, self._eps)


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

    rotation: tuple[torch.Tensor, torch.Tensor]  # cosines and signed sines, each [N, 1, head_dim]
    cache: KVCache
    slots: torch.Tensor
    plan: Plan


class Layer(torch.nn.Module):
    """Attention and feed-forward, each with its norm and residual."""

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        self._operations = operations
        self._index = index
        self._qkv_shape = (-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        self._q_size = config.q_size
        self._intermediate_size = config.intermediate_size
        self._scale = config.head_dim**-0.5
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, dtype, operations)
        self.qkv = Linear(config.hidden_size, config.q_size + 2 * config.kv_size, dtype)
        self.attention_output = Linear(config.q_size, config.hidden_size, dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, dtype, operations)
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, dtype)
        self.down = Linear(config.intermediate_size, config.hidden_size, dtype)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, step: _Step, wanted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x [N, hidden]` and what is still to be added to it, before this layer and after it; x itself is overwritten.
        With `wanted` `[M]`, only those rows come out."""
        qkv = self.qkv(self.attention_norm.after_adding(x, delta)).view(self._qkv_shape)
        queries = self._operations.rotate_and_store(qkv, step.rotation, step.cache, self._index, step.slots)
        keys, values = step.cache.keys[self._index], step.cache.values[self._index]
        attended = step.plan.attend(keys, values, queries, self._scale).view(-1, self._q_size)
        if wanted is not None:
            x, attended = x.index_select(0, wanted), attended.index_select(0, wanted)
        gate_up = self.gate_up(self.mlp_norm.after_adding(x, self.attention_output(attended)))
        return x, self.down(self._operations.swiglu(gate_up, self._intermediate_size))


class Transformer(torch.nn.Module):
    """A decoder of the Llama family. Its weights are on the meta device until `load_transformer` fills them."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device | str,
        dtype: torch.dtype,
        operations: Operations | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.operations = operations = operations or TorchOperations()
        self.rotary = RotaryTable(config, device)
        with torch.device("meta"):
            self.embedding = Embedding(config, dtype)
            self.layers = torch.nn.ModuleList(
                Layer(config, index, dtype, operations) for index in range(config.num_layers)
            )
            self.norm = RMSNorm(config.hidden_size, config.norm_eps, dtype, operations)
            self.output = Linear(config.hidden_size, config.vocab_size, dtype)
        if config.tie_embeddings:
            self.output.share(self.embedding.weight)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        slots: torch.Tensor,
        plan: Plan,
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
        step = _Step(self.rotary.at(positions), cache, slots, plan)
        x, delta = self.embedding(ids), None
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x, delta = layer(x, delta, step, logit_rows if index == last else None)
        return self.output(self.norm.after_adding(x, delta)).float()

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
    operations: Operations | None = None,
) -> Transformer:
    """A model with the checkpoint's weights, in `dtype` on `device`.

    `progress(bytes done, bytes in all)` is called after each tensor. `config` serves the weights with other constants,
    for example another context length; `operations` computes by other kernels than torch's. Raises CheckpointError.
    """
    model = Transformer(config or checkpoint.config, device, dtype, operations)
    destinations = model.destinations()
    filler = WeightFiller(device, dtype)
    done = 0
    for name, source in checkpoint.tensors():
        target = destinations.pop(name)
        try:
            filler.fill(target.module, target.row, source, checkpoint.release)
        except OverflowError as error:
            raise CheckpointError(f"{checkpoint.path}: {name} has {error}") from error
        done += source.nbytes
        if progress is not None:
            progress(done, checkpoint.total_bytes)
    if destinations:
        raise CheckpointError(f"{checkpoint.path}: {', '.join(destinations)} did not come")
    if model.config.tie_embeddings:
        model.output.share(model.embedding.weight)
    return model
