"""What a layer is given beside one stream: several of them, and numbers of each token."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_size


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """What a layer is given of each token beside the stream (`model/per_layer_inputs.py`)."""

    size: int
    vocab_size: int

    def __post_init__(self) -> None:
        require_size("per_layer_inputs.size", self.size, 1 << 12)
        require_size("per_layer_inputs.vocab_size", self.vocab_size, LIMITS["vocab_size"])

    def end_shapes(self, layers: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """Returns canonical names and shapes of what all layers' are made by."""
        every = layers * self.size
        return {
            "per_layer.embedding": (self.vocab_size, every),
            "per_layer.projection": (every, hidden),
            "per_layer.norm": (self.size,),
        }

    def layer_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Returns canonical names within a layer and shapes."""
        return {
            "per_layer.gate": (self.size, hidden),
            "per_layer.output": (hidden, self.size),
            "per_layer.norm": (hidden,),
        }


@dataclass(frozen=True, slots=True)
class Streams:
    """Several streams beside each other, of which a layer computes with one (`model/streams.py`)."""

    count: int
    active: int  # the one that layers compute with
    laurel_rank: int  # numbers between the two matrices that stand beside attention
    scaled: bool = True  # what layers are given of a token is by the active stream times numbers of the layer's own

    def __post_init__(self) -> None:
        require_size("streams.count", self.count, 16)
        if not 0 <= self.active < self.count:
            raise ConfigError("streams.active", f"must be from 0 to {self.count - 1}, but is {self.active}")
        require_size("streams.laurel_rank", self.laurel_rank, LIMITS["hidden_size"])

    def end_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Returns canonical names and shapes of what makes all streams but the first of one, and one of all."""
        others = range(1, self.count)
        return {f"streams.{way}.{n}": (hidden,) * 2 for way in ("in", "out") for n in others}

    def layer_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Returns canonical names within a layer and shapes."""
        return {
            "altup.norm": (hidden,),
            "altup.router": (self.count, hidden),
            "altup.predict": (self.count * self.count, self.count),
            "altup.correct": (self.count, self.count),
            "altup.scale": (hidden,),
            "laurel.left": (self.laurel_rank, hidden),
            "laurel.right": (hidden, self.laurel_rank),
            "laurel.norm": (hidden,),
        }
