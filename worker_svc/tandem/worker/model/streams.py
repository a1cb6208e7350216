"""Several streams beside each other, of which a layer computes with the active one, a (Gemma 3n):

    m(y)   = tanh(norm(y) R / hidden)                    R [hidden, streams]
    p_i    = x_i + sum_j (m(x_a) P)_ij x_j               before a layer: what it predicts of each stream
    y      = (p_a + attention + n + norm(n L1 L2)) / sqrt(2), n = norm(p_a); then y + feed_forward
    x_i    = p_i + (1 + (m(y) C)_i) (y - p_a)            behind it: what it corrects

At the beginning the others are made of the first by a matrix each, as large as it is; at the end they become one, each
by another matrix, and the mean of all goes on. What a layer is given of each token is added to all but the first.

Alternating updates: Baykal et al. 2023, https://arxiv.org/abs/2301.13310.
The two matrices beside attention: Menghani et al. 2024, https://arxiv.org/abs/2411.07501.

A token's bits do not depend on the others: sums over streams are of single operations in their order, sums over a
token's numbers are `row_sums`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts import beside_stream
from tandem.worker.model.destinations import Destination, of_norm
from tandem.worker.model.linear import Bias, Linear, Router
from tandem.worker.model.mixer import Constants
from tandem.worker.model.norms import RMSNorm, row_sums
from tandem.worker.model.operations import Operations

_LEAST_SQUARE = 1e-5  # of the mean of squares that a stream is divided by


class Streams(torch.nn.Module):
    """Makes all streams of the first one, and one of all."""

    def __init__(self, config: ModelConfig, streams: beside_stream.Streams, dtype: torch.dtype) -> None:
        super().__init__()
        width, others = config.hidden_size, streams.count - 1
        self.into = torch.nn.ModuleList(Linear(width, width, dtype) for _ in range(others))
        self.out = torch.nn.ModuleList(Linear(width, width, dtype) for _ in range(others))

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N, hidden] -> [N, streams, hidden]`."""
        return torch.stack((x, *(_as_large(matrix(x), x) for matrix in self.into)), dim=1)

    def end(self, x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Computes `[N, streams, hidden]` and what is still to be added to `[N, hidden]`."""
        x = with_given(x, delta)
        first = x[:, 0].contiguous()
        total = first.float()
        for stream, matrix in enumerate(self.out, start=1):
            total = total + _as_large(matrix(x[:, stream].contiguous()), first).float()
        return (total / x.shape[1]).to(x.dtype)

    def destinations(self) -> dict[str, Destination]:
        """Returns where each tensor goes, by its canonical name."""
        both = {"in": self.into, "out": self.out}
        return {
            f"streams.{way}.{stream}": Destination(matrix, 0)  # type: ignore[arg-type]
            for way, matrices in both.items()
            for stream, matrix in enumerate(matrices, start=1)
        }


class AltUp(torch.nn.Module):
    """Predicts all streams before a layer, and corrects them behind it."""

    def __init__(
        self, config: ModelConfig, streams: beside_stream.Streams, dtype: torch.dtype, operations: Operations
    ) -> None:
        super().__init__()
        width, count = config.hidden_size, streams.count
        self._active, self._scaled, self._width = streams.active, streams.scaled, width
        self.norm = RMSNorm(width, config.norm_eps, operations)
        self.router = Router(width, count, dtype)
        self.prediction, self.correction = Constants(count * count, count), Constants(count, count)
        self.scale = Bias(width, torch.float32)

    def active(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the stream `[N, hidden]` that layers compute with."""
        return x[:, self._active].contiguous()

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N, streams, hidden]` to the same of what is expected behind the layer."""
        count = x.shape[1]
        by = _times(self._modalities(self.active(x)), self.prediction.weight).view(-1, count, count)
        wide = x.float()
        total = wide
        for stream in range(count):
            total = total + by[:, :, stream, None] * wide[:, stream, None]
        return total.to(x.dtype)

    def correct(self, predicted: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """Returns all streams `[N, streams, hidden]` once the layer has `computed` the active one `[N, hidden]`."""
        by = _times(self._modalities(computed), self.correction.weight) + 1
        missed = computed.float() - predicted[:, self._active].float()
        return (predicted.float() + by[:, :, None] * missed[:, None]).to(predicted.dtype)

    def looked_at(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what of the streams the layer's own input of a token is chosen by, `[N, hidden]`."""
        active = self.active(x)
        return (active.float() * self.scale.weight).to(x.dtype) if self._scaled else active

    def _modalities(self, y: torch.Tensor) -> torch.Tensor:
        return (self.router(self.norm(y)).float() / self._width).tanh_()

    def destinations(self) -> dict[str, Destination]:
        """Returns where each tensor goes, by its canonical name within the layer."""
        return of_norm("altup.norm", self.norm) | {
            "altup.router": Destination(self.router, 0),
            "altup.predict": Destination(self.prediction, 0),
            "altup.correct": Destination(self.correction, 0),
            "altup.scale": Destination(self.scale, 0),
        }


class Laurel(torch.nn.Module):
    """What stands beside attention: two matrices with few numbers between them."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self, config: ModelConfig, streams: beside_stream.Streams, dtype: torch.dtype, operations: Operations
    ) -> None:
        super().__init__()
        self.left = Linear(config.hidden_size, streams.laurel_rank, dtype)
        self.right = Linear(streams.laurel_rank, config.hidden_size, dtype)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, operations)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N, hidden] -> [N, hidden]`, what went in included."""
        return x + self.norm(self.right(self.left(x)))

    def destinations(self) -> dict[str, Destination]:
        """Returns where each tensor goes, by its canonical name within the layer."""
        places = {"laurel.left": Destination(self.left, 0), "laurel.right": Destination(self.right, 0)}
        return places | of_norm("laurel.norm", self.norm)


def with_given(x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
    """Adds `delta` `[N, hidden]`, if there is one, to all streams `[N, streams, hidden]` but the first, in place."""
    if delta is not None:
        x[:, 1:] += delta[:, None]
    return x


def _times(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiplies `[N, few]` by a matrix `[out, few]`."""
    total = rows[:, :1] * matrix[:, 0]
    for column in range(1, matrix.shape[1]):
        total = total + rows[:, column, None] * matrix[:, column]
    return total


def _as_large(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns `x` `[N, hidden]` with the mean of squares that `other` has."""
    mine, theirs = (_mean_square(each).unsqueeze(1) for each in (x, other))
    return (x.float() * theirs.sqrt() / mine.clamp(min=_LEAST_SQUARE).sqrt()).to(x.dtype)


def _mean_square(x: torch.Tensor) -> torch.Tensor:
    return row_sums(x.float().square()) / x.shape[1]
