"""The interface of what the model computes beside its matrix products, so that a device may have its own kernels.

`Operations` is chosen once, when a model is built, and then only called. `TorchOperations` are torch's own; their bits
depend neither on the number of rows nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.grouped import Float8Rows, Grouped, Quantization, to_float8
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.checkpoints.model_parts.mlp import Activation
from tandem.worker.model.activations import ACTIVATIONS, gelu_tanh, sigmoid, softplus
from tandem.worker.model.attention import AttentionPlan, Plan, Segment
from tandem.worker.model.compressed_plan import CompressedPlan
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.product_rows import MOST_ROWS
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.recurrence import Rule, TorchMoves
from tandem.worker.model.rope import rotate
from tandem.worker.model.selection import SelectingPlan
from tandem.worker.model.states import StatePlan
from tandem.worker.model.unfinished import FINISHED, Unfinished

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x [N, in] and W [out, in] to x W^T [N, out]
ScaledProduct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # the same with scales [out, 1] of W


class Products(NamedTuple):
    """Chooses how matrices of floats are multiplied."""

    plain: Product | None = None  # of the model's dtype; None: by the library, as the weight calls it
    float8: ScaledProduct | None = None  # None: as the weight does


LIBRARY = Products()


class StateMoves(Protocol):
    """What one step does to the states of layers that have such, once for all layers."""

    def recur(self, rule: Rule, layer: int, mixed: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Computes the outputs `[N, size]` of `mixed` `[N, channels and more]` and `gates` `[N, ...]`, and moves the
        states of layer number `layer` of those that have such; rows of no work give zeros."""
        ...


class JoinedExperts(Protocol):
    """The experts of a layer, computed together."""

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor | None, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Chooses as `MixtureOfExperts.choose` does, by logits `[N, experts]`, the bias of who is chosen, and what each
        expert's weight is multiplied by."""
        ...

    def __call__(
        self,
        x: torch.Tensor,
        shares: torch.Tensor,
        chosen: torch.Tensor,
        shared: torch.Tensor | None,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        """Adds up the answers of the `chosen` experts `[N, per_token]` to rows `x` `[N, hidden]` by their `shares`
        `[N, per_token]` float32; `shared` `[N, hidden]` is one more, by the sigmoid of `gate` `[N, 1]`, or by 1."""
        ...


class Operations(Protocol):
    """Operations on rows that may belong to any sequences."""

    row_multiple: int  # the most padding of a step's rows that may help to make a row's bits independent of the others
    products: tuple[Products, ...]  # each is for where the one before it lets rows depend on others
    wide_logits: bool  # logits are float32; else of the dtype that they were computed in, which loses nothing

    # What the check at start tries too: a sequence of so many tokens, and runs of its last ones, which have code of
    # their own. Then it has run, and compiled, all that there is.
    tried_context: int
    tried_runs: tuple[int, ...]

    def plan(self, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind) -> Plan:
        """Plans how a step's queries will attend in layers of a kind."""
        ...

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Adds `delta` to `x` `[N, size]` in place, then returns `x / sqrt(mean(x^2) + eps) * weight`."""
        ...

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """Adds `delta` to `x` `[N, size]` in place, then returns `(x - mean) / sqrt(variance + eps) * weight + bias`
        by the mean and the variance of each row."""
        ...

    def add_norm_float8(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> Float8Rows:
        """The same, as 8-bit floats with a scale a row."""
        ...

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor | None,
        first: Unfinished = FINISHED,
    ) -> torch.Tensor:
        """Does what comes `first`, rotates queries and keys and stores keys and values; returns the queries
        `[N, heads, head_dim]`.

        qkv: `[N, heads + 2 kv_heads, head_dim]`; may be overwritten.
        rotation: cosines and signed sines, each `[N, 1, head_dim]` (`RotaryTable.at`).
        slots: `[2, N]` page and place in it of each row (`KVCache.write`). None: nothing is stored, and there are
            queries alone, `[N, heads, head_dim]`, that will look at what layer number `layer` has stored.
        """
        ...

    def store_latents(
        self,
        latent: torch.Tensor,
        norm: tuple[torch.Tensor, float],
        queries: torch.Tensor,
        absorbed: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Stores latents (`model_parts/latents.py`) and returns the queries `[N, heads, size]` that look at them.

        latent: `[N, size]`, of which the first `rank` are normed by a weight `[rank]` and an epsilon, and the others
            rotated.
        queries: `[N, heads, query]`, whose last `size - rank` numbers are rotated, behind `absorbed`
            `[N, heads, rank]`, what their others became.
        rotation, slots: as `rotate_and_store` has them.
        """
        ...

    def swiglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        """Computes `silu(gate) * up` of `[N, 2 size]` in float32."""
        ...

    def limited_swiglu(self, gate_up: torch.Tensor, size: int, limit: float) -> torch.Tensor:
        """Computes `silu(gate) * up` of `[N, 2 size]` in float32, the former being at most `limit`, up at most in
        size."""
        ...

    def swiglu_float8(self, gate_up: torch.Tensor, size: int) -> Float8Rows:
        """What `swiglu` does, as 8-bit floats with a scale a row."""
        ...

    def geglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        """Computes `gelu(gate) * up` of `[N, 2 size]` in float32, GELU by its approximation with tanh."""
        ...

    def activate(self, activation: Activation, x: torch.Tensor) -> torch.Tensor:
        """Computes an activation of `x` `[N, size]`, which may be overwritten."""
        ...

    def gate_by_sigmoid(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Computes `x / (1 + exp(-gates))` of `[N, size]` in float32; `x` may be overwritten. Where gates are fewer,
        `[N, count]`, numbers that follow each other share one."""
        ...

    def gate_by_softplus(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Computes `x * log(1 + exp(gates))` in the same way."""
        ...

    def plan_states(self, plan: StatePlan, device: torch.device) -> StateMoves:
        """Plans how a step's states will move, on the device."""
        ...

    def quantized_weight(
        self, kind: Quantization, rows: int, columns: int, like: Grouped, device: torch.device
    ) -> QuantizedWeight:
        """Allocates a quantized matrix."""
        ...

    def join_heads(self, linear: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Makes one product of a `HeadLinear` that has its weights, `[N, heads, in] -> [N, heads * out]`; returns None
        where heads are multiplied one by one."""
        ...

    def join_experts(self, config: Experts, experts: Sequence[torch.nn.Module]) -> JoinedExperts | str:
        """Makes one of a layer's experts, each a `FeedForward` with its weights; returns why not, where it cannot."""
        ...


class TorchOperations:
    """Implements operations by torch, for CPUs and for devices without kernels of their own."""

    row_multiple = MOST_ROWS
    products: tuple[Products, ...] = (LIBRARY,)
    wide_logits = True
    tried_context = 0
    tried_runs: tuple[int, ...] = ()

    def plan(self, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind) -> Plan:
        if kind.every:
            return CompressedPlan(self.plan, segments, cache, num_heads, kind)
        if kind.most:
            return SelectingPlan(self.plan, segments, cache, num_heads, kind)
        return AttentionPlan(segments, cache, num_heads, kind)

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if delta is not None:
            x += delta
        return F.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(x.dtype)

    def add_layer_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        if delta is not None:
            x += delta
        return F.layer_norm(x.float(), (x.shape[-1],), weight, bias, eps).to(x.dtype)

    def add_norm_float8(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> Float8Rows:
        return to_float8(self.add_norm(x, delta, weight, eps))

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor | None,
        first: Unfinished = FINISHED,
    ) -> torch.Tensor:
        if slots is None:
            self.finish(qkv, qkv.shape[1], 0, first)
            return cache.scale_queries(layer, rotate(qkv, *rotation))
        kv_heads = cache.shape.heads[layer].number
        heads = qkv.shape[1] - 2 * kv_heads
        self.finish(qkv, heads, kv_heads, first)
        qk = rotate(qkv[:, : heads + kv_heads], *rotation)
        cache.write(layer, slots, qk[:, heads:], qkv[:, heads + kv_heads :])
        return cache.scale_queries(layer, qk[:, :heads])

    def store_latents(
        self,
        latent: torch.Tensor,
        norm: tuple[torch.Tensor, float],
        queries: torch.Tensor,
        absorbed: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        rank = absorbed.shape[-1]
        kept = self.add_norm(latent[:, :rank].contiguous(), None, *norm)
        turned = rotate(latent[:, rank:].unsqueeze(1), *rotation)
        cache.write(layer, slots, torch.cat((kept.unsqueeze(1), turned), dim=-1), None)
        behind = rotate(queries[..., -turned.shape[-1] :], *rotation)
        return cache.scale_queries(layer, torch.cat((absorbed, behind), dim=-1))

    def finish(self, qkv: torch.Tensor, heads: int, kv_heads: int, first: Unfinished) -> None:
        """Does in `qkv` `[N, heads + 2 kv_heads, head_dim]` what comes first."""
        if first.bias is not None:
            qkv += first.bias.view(qkv.shape[1:])
        for part, weight in zip(torch.split(qkv, [heads, kv_heads, kv_heads], 1), first.norms, strict=False):
            # Of one head, reshape makes no copy, and a kernel wants its rows to follow each other.
            rows = part.reshape(-1, len(weight)).contiguous()
            part.copy_(self.add_norm(rows, None, weight, first.eps).view(part.shape))

    def swiglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        gate, up = gate_up[:, :size], gate_up[:, size:]
        if gate_up.is_cuda:
            return F.silu(gate) * up
        # On a CPU, F.silu computes the last elements of each thread by other instructions than the rest, so that their
        # bits depend on the batch and on the number of threads; exp does not. One temporary: at 512 rows, allocating
        # more of them takes longer than the arithmetic.
        gate = gate.float()
        result = gate.neg().exp_().add_(1)
        torch.div(gate, result, out=result)
        return result.mul_(up).to(gate_up.dtype)

    def limited_swiglu(self, gate_up: torch.Tensor, size: int, limit: float) -> torch.Tensor:
        gate, up = gate_up[:, :size].float(), gate_up[:, size:].float()
        passed = (gate / gate.neg().exp_().add_(1)).clamp_(max=limit)  # by exp, as `swiglu` is
        return passed.mul_(up.clamp(-limit, limit)).to(gate_up.dtype)

    def swiglu_float8(self, gate_up: torch.Tensor, size: int) -> Float8Rows:
        return to_float8(self.swiglu(gate_up, size))

    def geglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        return (gelu_tanh(gate_up[:, :size].float()) * gate_up[:, size:]).to(gate_up.dtype)

    def activate(self, activation: Activation, x: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[activation](x)

    def gate_by_sigmoid(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        shared = x.view(len(x), gates.shape[1], -1)
        return (shared * sigmoid(gates.float()).unsqueeze(-1)).to(x.dtype).flatten(1)

    def gate_by_softplus(self, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        shared = x.view(len(x), gates.shape[1], -1)
        return (shared * softplus(gates.float()).unsqueeze(-1)).to(x.dtype).flatten(1)

    def plan_states(self, plan: StatePlan, device: torch.device) -> StateMoves:
        return TorchMoves(plan)

    def quantized_weight(
        self, kind: Quantization, rows: int, columns: int, like: Grouped, device: torch.device
    ) -> QuantizedWeight:
        return QuantizedWeight(kind, rows, columns, like, device)

    def join_heads(self, linear: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
        return None

    def join_experts(self, config: Experts, experts: Sequence[torch.nn.Module]) -> JoinedExperts | str:
        return "there are no kernels for it"
