"""Makes entries of tokens that follow each other (`model_parts/compression.py`), and rotates the last numbers of heads.

An entry is made of what its tokens' pages keep, whatever step has stored it, so that it is the same in any chunking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from tandem.worker.checkpoints.model_parts.compression import Compression
from tandem.worker.model.attention import tree_sum
from tandem.worker.model.destinations import Destination, of_norm
from tandem.worker.model.linear import Linear
from tandem.worker.model.mixer import Constants
from tandem.worker.model.norms import RMSNorm
from tandem.worker.model.operations import Operations
from tandem.worker.model.rope import Rotation


class Ended(NamedTuple):
    """The entries whose last token is in a step: W of them, each of `every` tokens."""

    tokens: torch.Tensor  # [W, every], places (page * page_size + place in it)
    before: torch.Tensor  # [W, every], those of the entry before; where there is none, the same
    first: torch.Tensor  # [W], whether there is none before
    rotation: Rotation  # by the positions of their first tokens


class Compressor(torch.nn.Module):
    """The matrices of what entries of one kind are made of in a layer."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        sizes: Compression,
        layer: int,
        hidden: int,
        size: int,
        dtype: torch.dtype,
        operations: Operations,
        eps: float,
    ) -> None:
        """`size`: numbers of an entry."""
        super().__init__()
        self._series, self._size = sizes.series(layer), size
        rows = self._series * size
        self.both = Linear(hidden, 2 * rows, dtype)  # keys, then gates
        self.bias = Constants(sizes.every(layer), rows)
        self.norm = RMSNorm(size, eps, operations)

    def forward(self, normed: torch.Tensor) -> torch.Tensor:
        """Returns the vectors that are kept of rows `[N, hidden]`: `[N, 2 * series, size]`, keys, then gates."""
        return self.both(normed).view(len(normed), 2 * self._series, self._size)

    @property
    def place(self) -> int:
        """Returns which of those vectors an entry is written over: the last key, which no other entry is made of."""
        return self._series - 1

    def entries(self, kept: torch.Tensor, first: int, ended: Ended) -> torch.Tensor:
        """Makes the entries `[W, size]` of what is kept of all places, `[places, vectors, size]`: of their vectors from
        `first` on."""
        last = self._series - 1
        keys, gates = self._parts(kept, first, ended.tokens, last)
        if last:  # the first series is of the tokens before
            others, theirs = self._parts(kept, first, ended.before, 0)
            none = ended.first[:, None, None]
            keys = torch.cat((others.masked_fill_(none, 0), keys), dim=1)
            gates = torch.cat((theirs.masked_fill_(none, float("-inf")), gates), dim=1)
        weights = gates.sub_(gates.amax(1, keepdim=True)).exp_()
        made = tree_sum(keys.mul_(weights)) / tree_sum(weights)
        return turned(self.norm(made).unsqueeze(1), ended.rotation)[:, 0]

    def _parts(
        self, kept: torch.Tensor, first: int, tokens: torch.Tensor, series: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and gates `[W, every, size]` of a series, float32."""
        vectors, every = kept.shape[1], tokens.shape[1]
        flat, places = kept.view(-1, self._size), tokens.reshape(-1) * vectors + first
        keys, gates = (
            flat.index_select(0, places + which).float().view(-1, every, self._size)
            for which in (series, self._series + series)
        )
        return keys, gates + self.bias.weight[:, series * self._size : (series + 1) * self._size]

    def destinations(self, name: str) -> dict[str, Destination]:
        """Returns where its tensors go, by canonical names."""
        return {
            f"{name}_keys": Destination(self.both, 0),
            f"{name}_gates": Destination(self.both, self._series * self._size),
            f"{name}_bias": Destination(self.bias, 0),
            **of_norm(f"{name}_norm", self.norm),
        }


def turned(x: torch.Tensor, rotation: Rotation, *, back: bool = False) -> torch.Tensor:
    """Rotates the last numbers of each head of `x` `[N, heads, size]`, whose pairs are neighbours, or rotates them
    back; computed in float32, returned in x's dtype."""
    cos, sin = (each.chunk(2, dim=-1)[1] for each in rotation)
    if back:
        sin = -sin
    width = 2 * cos.shape[-1]
    one, other = x[..., -width::2].float(), x[..., -width + 1 :: 2].float()
    pairs = torch.stack((one * cos - other * sin, other * cos + one * sin), dim=-1)
    return torch.cat((x[..., :-width], pairs.flatten(-2).to(x.dtype)), dim=-1)
