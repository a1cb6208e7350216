"""The sizes of several streams in the place of one (hyper-connections; DeepSeek-V4).

What layers add to are `count` vectors of the hidden size for each token, in the beginning all the same. A layer's part
is given a sum of them, and what comes out of it is added to each by a weight of its own, once they are mixed. The
weights are made of the streams themselves:

    w     = norm(all streams) W                           one behind the other, normed without weights
    into  = sigmoid(w * scale + base) + eps               of the sum that is given to the part
    out   = 2 sigmoid(...)                                of what is added to each stream
    mix   = softmax(...) + eps                            then rows and columns are divided by their sums by turns

Behind the last layer, a sum of the streams by weights of the first kind goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.worker.checkpoints.model_parts.limits import require_finite, require_size


@dataclass(frozen=True, slots=True)
class HyperConnections:
    """How many there are, and how their weights are made."""

    count: int
    rounds: int  # in which columns, and before that rows, are divided by their sums; of rows one less
    eps: float

    def __post_init__(self) -> None:
        require_size("hyper.count", self.count, 1 << 5)
        require_size("hyper.rounds", self.rounds, 1 << 10)
        require_finite("hyper.eps", self.eps, at_least=0.0)

    @property
    def weights(self) -> int:
        """Returns how many weights a layer's part needs of a token."""
        return (2 + self.count) * self.count

    def part_shapes(self, name: str, hidden: int) -> dict[str, tuple[int, ...]]:
        """Returns canonical names and shapes of what makes a part's weights."""
        return _shapes(name, self.weights, self.count * hidden, 3)

    def end_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Returns those of what makes the last sum's weights."""
        return _shapes("hyper", self.count, self.count * hidden, 1)


def _shapes(name: str, weights: int, columns: int, scales: int) -> dict[str, tuple[int, ...]]:
    return {name: (weights, columns), f"{name}_base": (weights,), f"{name}_scale": (scales,)}
