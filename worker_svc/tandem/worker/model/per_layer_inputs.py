"""What each layer is given of each token beside the stream (Gemma 3n, Gemma 4):

    p      = (norm(x P / sqrt(hidden)) + sqrt(size) E[token]) / sqrt(2)     once a step, [layers, size] for each row
    x      = x + norm((gelu(x Wgate) * p[layer]) Woutput)                   at the end of each layer

x of the first line is the token's embedding; E is a second table, larger than all else in a small model. Tokens that it
has not are given what its first one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.beside_stream import PerLayerInputs
from tandem.worker.model.linear import Linear
from tandem.worker.model.norms import RMSNorm
from tandem.worker.model.operations import Operations
from tandem.worker.model.weights import Embedding


class LayerInputs(torch.nn.Module):
    """Makes the inputs of all layers."""

    __call__: Callable[..., torch.Tensor]

    def __init__(self, config: ModelConfig, inputs: PerLayerInputs, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        every = config.num_layers * inputs.size
        self._size, self._words = inputs.size, inputs.vocab_size
        self._may_lack = config.streams is not None  # of others it is not less than the vocabulary
        self._context_multiplier = config.hidden_size**-0.5
        self.embedding = Embedding(inputs.vocab_size, every, dtype, tied=False)
        self.projection = Linear(config.hidden_size, every, dtype)
        self.norm = RMSNorm(inputs.size, config.norm_eps, operations)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Computes `[N]` and `[N, hidden]` to `[N, layers, size]`."""
        context = self.norm((self.projection(x) * self._context_multiplier).view(-1, self._size))
        if self._may_lack:
            ids = ids.masked_fill(ids >= self._words, 0)
        tokens = self.embedding(ids).view(-1, self._size) * self._size**0.5
        inputs: torch.Tensor = (context + tokens) * math.sqrt(0.5)
        return inputs.view(len(x), -1, self._size)


class LayerInput(torch.nn.Module):
    """Adds a layer's own input to the stream."""

    __call__: Callable[..., torch.Tensor]

    def __init__(self, config: ModelConfig, inputs: PerLayerInputs, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, inputs.size, dtype)
        self.output = Linear(inputs.size, config.hidden_size, dtype)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, operations)
        self.activation, self._operations = config.activation, operations

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Returns what is to be added to `x` `[N, hidden]`, whose layer is `given` `[N, size]`."""
        return self.norm(self.output(self._operations.activate(self.activation, self.gate(x)) * given))
