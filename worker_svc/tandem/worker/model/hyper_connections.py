"""Several streams that layers add to in the place of one (`model_parts/hyper_connections.py`): what a part is given of
them, and how what comes out of it is added. Streams lie beside each other, `[N, count * hidden]`.

Sums over the streams are written out, so that their bits do not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import NamedTuple

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.hyper_connections import HyperConnections
from tandem.worker.model.activations import sigmoid
from tandem.worker.model.destinations import Destination
from tandem.worker.model.linear import Router
from tandem.worker.model.mixer import Constants
from tandem.worker.model.operations import Operations


class Mixed(NamedTuple):
    """What a part is given of N rows of streams, and how its answers are added to them."""

    given: torch.Tensor  # [N, hidden]
    out: torch.Tensor  # [N, count], what an answer is multiplied by for each stream, float32
    mix: torch.Tensor  # [N, count, count], what a stream is multiplied by for each that comes out, float32

    def of(self, rows: torch.Tensor) -> Mixed:
        """Returns the same of some rows `[M]`."""
        return Mixed(*(each.index_select(0, rows) for each in self))

    def added(self, x: torch.Tensor, answers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the mixed streams of `x` `[N, count * hidden]`, and what is still to be added to them, by the answers
        `[N, hidden]`."""
        streams = x.view(len(x), self.out.shape[1], answers.shape[1]).float()
        mixed = _sum([self.mix[:, one, :, None] * streams[:, one, None] for one in range(streams.shape[1])])
        out = self.out.unsqueeze(-1) * answers.float().unsqueeze(1)
        return mixed.flatten(1).to(x.dtype), out.flatten(1).to(x.dtype)


class _Weights(torch.nn.Module):
    """Makes weights of streams."""

    def __init__(
        self,
        config: ModelConfig,
        streams: HyperConnections,
        counts: tuple[int, ...],
        dtype: torch.dtype,
        operations: Operations,
        device: torch.device | str,
    ) -> None:
        """`counts`: how many weights have each scale."""
        super().__init__()
        self._streams, self._hidden = streams, config.hidden_size
        columns = streams.count * self._hidden
        self._operations, self._eps, self._counts = operations, config.norm_eps, counts
        self.matrix = Router(columns, sum(counts), dtype)
        self.base = Constants(sum(counts))
        self.scale = Constants(len(counts))
        self._unit = torch.ones(columns, device=device)  # a norm has no weights here

    def _logits(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Returns what weights are made of, `[N, count]` of each scale, float32."""
        normed = self._operations.add_norm(x.float(), None, self._unit, self._eps)
        logits = torch.split(self.matrix(normed).float(), list(self._counts), dim=1)
        bases = torch.split(self.base.weight, list(self._counts))
        return [each * scale + base for each, base, scale in zip(logits, bases, self.scale.weight, strict=True)]

    def _summed(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Returns the sum of streams `[N, hidden]` by weights of the first kind."""
        weights = sigmoid(logits) + self._streams.eps
        streams = x.view(len(x), self._streams.count, self._hidden)
        parts = [weights[:, one, None] * streams[:, one] for one in range(self._streams.count)]
        return _sum(parts).to(x.dtype)

    def destinations(self, name: str) -> dict[str, Destination]:
        """Returns where its tensors go, by canonical names."""
        return {
            name: Destination(self.matrix, 0),
            f"{name}_base": Destination(self.base, 0),
            f"{name}_scale": Destination(self.scale, 0),
        }


class HyperPart(_Weights):
    """Stands around a part of a layer."""

    __call__: Callable[..., Mixed]

    def __init__(
        self,
        config: ModelConfig,
        streams: HyperConnections,
        dtype: torch.dtype,
        operations: Operations,
        device: torch.device | str,
    ) -> None:
        counts = streams.count, streams.count, streams.count**2
        super().__init__(config, streams, counts, dtype, operations, device)

    def forward(self, x: torch.Tensor) -> Mixed:
        """Takes rows `[N, count * hidden]`."""
        into, out, mix = self._logits(x)
        return Mixed(self._summed(x, into), sigmoid(out).mul_(2), self._mixing(mix))

    def _mixing(self, logits: torch.Tensor) -> torch.Tensor:
        """Makes matrices whose rows and columns add up to 1, nearly (Sinkhorn and Knopp 1967)."""
        eps, count = self._streams.eps, self._streams.count
        mix = logits.view(-1, count, count)
        mix = (mix - mix.amax(-1, keepdim=True)).exp_()
        mix = mix / _sum(mix.unbind(-1)).unsqueeze(-1) + eps
        mix = mix / (_sum(mix.unbind(-2)) + eps).unsqueeze(-2)
        for _ in range(self._streams.rounds - 1):
            mix = mix / (_sum(mix.unbind(-1)) + eps).unsqueeze(-1)
            mix = mix / (_sum(mix.unbind(-2)) + eps).unsqueeze(-2)
        return mix


class HyperEnd(_Weights):
    """Makes one stream of all behind the last layer."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        config: ModelConfig,
        streams: HyperConnections,
        dtype: torch.dtype,
        operations: Operations,
        device: torch.device | str,
    ) -> None:
        super().__init__(config, streams, (streams.count,), dtype, operations, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N, count * hidden] -> [N, hidden]`."""
        return self._summed(x, self._logits(x)[0])


def _sum(parts: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return reduce(add, parts)
