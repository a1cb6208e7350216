"""Divides one model among several ranks (Megatron-LM, Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053).

    q, k, v, gate, up, embedding, output    by rows: a rank has some of the heads, inner numbers and tokens
    attention output, down                  by columns: each rank's product is a part of a sum
    latents, what an indexer makes          each rank has all of them
    what layers are given of each token     the same; so are several streams, and what moves them
    norms over all heads at once            by heads, with the sum of all ranks' squares
    layers with states                      by heads, groups of heads or channels; their output by columns

So a layer adds up twice: after the attention and after the feed-forward part. Norms, routers and what is added up are
the same on all ranks, and so are the gathered logits: every rank schedules and samples for itself, and they agree.

Sums are those of the ranks in their order, from all parts gathered: a library's own reduction cuts a tensor in pieces
and begins each with another rank, so that a row's bits would depend on how many rows there are.

Ranks that are more than the key and value heads share them with their neighbours.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.limits import ConfigError

_STATES = ("delta_net", "kimi_delta", "mamba", "lightning", "short_convolution")
_BY_COLUMNS = ("attention.output", "down", *(f"{state}.output" for state in _STATES))


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among those that share a model; alone, nothing is communicated."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    local: int = 1  # ranks on this machine
    beside: int = 1  # of these, ranks that share this one's cores, with it

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """Returns the sum of all ranks' parts, in the order of the ranks."""
        if self.size == 1:
            return part
        first, *others = self._gather(part)
        total = first.float()
        for other in others:
            total += other
        return total.to(part.dtype)

    def join(self, part: torch.Tensor, width: int) -> torch.Tensor:
        """Joins all ranks' `[N, ceil(width / ranks) or fewer]` beside each other: `[N, width]`."""
        if self.size == 1:
            return part
        missing = -(-width // self.size) - part.shape[1]
        return torch.cat(self._gather(F.pad(part, (0, missing))), dim=1)[:, :width]

    def _gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part, group=self.group)
        return parts

    def wait(self) -> None:
        """Waits until all ranks have come here; they may take as long as loading takes."""
        if self.size > 1:
            dist.barrier()

    def meet(self) -> None:
        """Waits until all ranks have come here, which are at work."""
        self._numbers(0)

    def smallest(self, number: int) -> int:
        """Returns the smallest of all ranks' numbers."""
        return min(self._numbers(number))

    def largest(self, number: int) -> int:
        """Returns the largest of all ranks' numbers."""
        return max(self._numbers(number))

    def all(self, told: bool) -> bool:
        """Tells whether all ranks say so."""
        return bool(self.smallest(told))

    def total(self, number: int) -> int:
        """Returns the sum of all ranks' numbers."""
        return sum(self._numbers(number))

    def _numbers(self, number: int) -> list[int]:
        if self.size == 1:
            return [number]
        return [int(part) for part in self._gather(torch.tensor([number], device=self._device))]

    def broadcast(self, frame: bytes) -> bytes:
        """Returns rank 0's frame on all ranks."""
        if self.size == 1:
            return frame
        length = torch.tensor([len(frame)], device=self._device)
        dist.broadcast(length, 0, group=self.group)
        if self.rank == 0:
            content = torch.frombuffer(bytearray(frame), dtype=torch.uint8).to(self._device)
        else:
            content = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        dist.broadcast(content, 0, group=self.group)
        return content.cpu().numpy().tobytes()

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")

    # --- what a rank has

    def share(self, config: ModelConfig) -> ModelConfig:
        """Returns the sizes of this rank's part; raises ConfigError for what cannot be shared evenly."""
        if self.size == 1:
            return config
        if config.compression is not None:
            raise ConfigError("compression", f"is served by one rank, not by {self.size} (tensor_parallel)")
        heads, kv_heads = config.num_heads, config.num_kv_heads
        if config.vocab_size <= (self.size - 1) * -(-config.vocab_size // self.size):
            raise ConfigError("vocab_size", f"{config.vocab_size} leaves nothing for the last of {self.size} ranks")
        _divide("num_heads", heads, self.size)
        for each in config.query_heads:
            _divide("query_heads", each, self.size)
        full = config.full_heads
        for each in (kv_heads, *(() if full is None else (full.number,))):
            if self.size % each or config.qk_norm == "whole":  # whose sums count each key once
                _divide("num_kv_heads", each, self.size)
        experts = config.experts
        if experts is not None:
            _divide("experts.intermediate_size", experts.intermediate_size, self.size)
            _divide("experts.shared_size", experts.shared_size, self.size)
            experts = replace(
                experts,
                intermediate_size=experts.intermediate_size // self.size,
                shared_size=experts.shared_size // self.size,
            )
        if experts is None or experts.dense_layers or experts.beside:
            _divide("intermediate_size", config.intermediate_size, self.size)
        for size in config.inner_sizes:
            _divide("inner_sizes", size, self.size)
        return replace(
            config,
            vocab_size=len(range(config.vocab_size)[self.tokens(config)]),
            num_heads=heads // self.size,
            query_heads=tuple(each // self.size for each in config.query_heads),
            num_kv_heads=max(1, kv_heads // self.size),
            full_heads=None if full is None else full._replace(number=max(1, full.number // self.size)),
            intermediate_size=max(1, config.intermediate_size // self.size),
            inner_sizes=tuple(size // self.size for size in config.inner_sizes),
            experts=experts,
            recurrence=None if config.recurrence is None else config.recurrence.shared(self.size),
        )

    def tokens(self, config: ModelConfig) -> slice:
        """Returns the tokens whose vectors and logits this rank has; the last ranks may have fewer."""
        each = -(-config.vocab_size // self.size)
        return slice(self.rank * each, min(config.vocab_size, (self.rank + 1) * each))

    def part(self, name: str, config: ModelConfig) -> Part:
        """Returns which part of a tensor of the whole model this rank has, by its canonical name."""
        if self.size == 1:
            return Part()
        shape = _shapes(config)[name]
        last = name.removesuffix("_bias").rsplit(".", 1)[-1]
        if "per_layer." in name:
            return Part()
        if name in ("embedding", "output", "output_bias"):
            return Part(rows=(self.tokens(config),))
        state, _, piece = name.split(".", 2)[-1].partition(".")
        if name.endswith(("attention.output_bias", ".down_bias", "out_of_experts_bias")) or (
            state in _STATES and piece == "output_bias"
        ):
            return Part(vanishes=self.rank > 0)  # it is added once
        if name.endswith(_BY_COLUMNS):
            return Part(columns=self._even(shape[1], self.rank, self.size))
        if state in _STATES:
            assert config.recurrence is not None
            return Part(rows=self._of_several(config.recurrence.divided.get(piece, ())))
        if last in ("k", "v"):
            heads = config.layer_heads[int(name.split(".")[1])].number
            if heads < self.size:
                return Part(rows=(self._even(shape[0], self.rank * heads // self.size, heads),))
            return Part(rows=(self._even(shape[0], self.rank, self.size),))
        if last in ("q_norm", "k_norm") and config.qk_norm == "whole":
            return Part(rows=(self._even(shape[0], self.rank, self.size),))
        if last in ("q", "sinks", "gate", "up", "query_up", "key_up", "value_up"):
            return Part(rows=(self._even(shape[0], self.rank, self.size),))
        return Part()

    def _of_several(self, sizes: tuple[int, ...]) -> tuple[slice, ...]:
        """Returns this rank's rows of parts that lie below each other."""
        rows, first = [], 0
        for size in sizes:
            ours = self._even(size, self.rank, self.size)
            rows.append(slice(first + ours.start, first + ours.stop))
            first += size
        return tuple(rows)

    @staticmethod
    def _even(whole: int, place: int, parts: int) -> slice:
        each = whole // parts
        return slice(place * each, (place + 1) * each)


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows or columns of a tensor; no `rows`, or None: all of them."""

    rows: tuple[slice, ...] = ()
    columns: slice | None = None
    vanishes: bool = False  # this rank has zeros instead


ALONE = Ranks()


@functools.lru_cache(1)
def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return config.tensor_shapes()


def _divide(field: str, size: int, ranks: int) -> None:
    if size % ranks:
        raise ConfigError(field, f"{size} cannot be shared by {ranks} ranks (tensor_parallel)")
