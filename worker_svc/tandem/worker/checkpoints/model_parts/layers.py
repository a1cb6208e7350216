"""Which layers a model has, and what each has and sees: what all other parts look at."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.checkpoints.model_parts.recurrences import Mamba, Recurrence


@dataclass(frozen=True, kw_only=True)
class LayersConfig:
    """The fields of `ModelConfig` that say it."""

    architecture: str  # "llama", "mistral", "qwen2", ...: a name only, every difference is a field
    vocab_size: int
    hidden_size: int
    num_layers: int
    context_length: int  # tokens, prompt and output together
    windows: tuple[int, ...] = ()  # by layer: a token sees itself and the `window - 1` tokens before it; 0: all
    chunked: bool = False  # windows are chunks: a token sees itself and what is before it in its own chunk
    shared_layers: int = 0  # the last ones, which look at keys and values of the last layer before them of their kind
    recurrence: Recurrence | None = None  # of layers that have states instead of attention
    # Layers that are a feed-forward part and nothing else; those beside them have none. None: every layer has both.
    feed_forward_alone: tuple[int, ...] | None = None

    def _check_layers(self) -> None:
        if self.recurrence is not None:
            if not self.attention_layers:
                raise ConfigError("recurrence.layers", "leave no layer that has attention; one at least must have it")
            if set(self.recurrence.layers) & set(self.feed_forward_alone or ()):
                raise ConfigError("feed_forward_alone", "has layers that have states")
        if self.windows and len(self.windows) != self.num_layers:
            raise ConfigError("windows", f"are {len(self.windows)} for {self.num_layers} layers")
        for window in self.windows:
            if window < 0:
                raise ConfigError("windows", f"must be at least 1, but one is {window}")
        if not 0 <= self.shared_layers < self.num_layers:
            raise ConfigError("shared_layers", f"must be from 0 to {self.num_layers - 1}, but is {self.shared_layers}")
        if any(source is None for source in self._sources):
            raise ConfigError("shared_layers", f"{self.shared_layers} leave no layer of each kind to look at")

    @property
    def _sources(self) -> tuple[int | None, ...]:
        """Returns whose keys and values each layer looks at: its own, but for shared layers."""
        windows = self.windows or (0,) * self.num_layers
        own = range(self.num_layers - self.shared_layers)
        last = {windows[layer] > 0: layer for layer in own}
        return (*own, *(last.get(window > 0) for window in windows[len(own) :]))

    @property
    def _storing_layers(self) -> tuple[int, ...]:
        first = self.num_layers - self.shared_layers
        return tuple(layer for layer in self.attention_layers if layer < first)

    def stores(self, layer: int) -> bool:
        """Tells whether a layer with attention has keys and values of its own."""
        return layer < self.num_layers - self.shared_layers

    @property
    def cache_places(self) -> dict[int, int]:
        """Returns, for each layer with attention, which of the cache's keys and values it looks at."""
        own = {layer: place for place, layer in enumerate(self._storing_layers)}
        return {layer: own[source] for layer in self.attention_layers if (source := self._sources[layer]) is not None}

    @property
    def beside_attention(self) -> bool:
        """Tells whether layers with states have attention, too."""
        return isinstance(self.recurrence, Mamba) and self.recurrence.beside_attention

    def mixes(self, layer: int) -> bool:
        """Tells whether a layer has attention or a state."""
        return layer not in (self.feed_forward_alone or ())

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
    def layer_windows(self) -> tuple[int, ...]:
        """Returns each layer's window; 0 where it sees the whole context."""
        windows = self.windows or (0,) * self.num_layers
        return tuple(window if window < self.context_length else 0 for window in windows)
