"""The head with which a model guesses the token after next (`checkpoints/heads.py`), and its runner.

It is a model of one layer with keys and values of its own, which stand where those of the token do whose hidden state
it is given. That of token i is there once the model has computed the token; behind the last of these it goes on with
what came out of its own last norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.destinations import Destination, of_norm
from tandem.worker.model.inference import in_inference_mode
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.linear import Linear
from tandem.worker.model.norms import stream_norm
from tandem.worker.model.operations import Operations
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.work import Work


class Head(Transformer):
    """A model whose stream begins with another one's hidden states."""

    _ends_in_the_call = False  # what comes out of its norm is kept

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device | str,
        dtype: torch.dtype,
        operations: Operations | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(config, device, dtype, operations, ranks)
        self.hidden = torch.empty(0)  # [pages + 1, page_size, hidden], the other one's
        # [2, most], as slots: where there what comes out goes, behind tokens that sample; `HeadRunner` fills it in.
        self.behind = torch.empty(0, dtype=torch.int64)
        with torch.device("meta"):
            self.join = Linear(2 * config.hidden_size, config.hidden_size, dtype)
            self.embedding_norm = stream_norm(config, self.operations, device)
            self.hidden_norm = stream_norm(config, self.operations, device)

    def follow(self, model: Transformer, hidden: torch.Tensor) -> None:
        """Takes embedding and output of the model that it guesses for, unless it has them itself; that one's hidden
        states are kept in `hidden`."""
        self.hidden = hidden
        if "embedding" not in self.config.tables:
            self.embedding = model.embedding
        if "output" not in self.config.tables:
            self.output = model.output

    def _begin(self, x: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        embedded = super()._begin(x, positions, slots)
        given = self.hidden[slots[0], slots[1]].to(embedded.dtype)
        return self.join(torch.cat((self.embedding_norm(embedded), self.hidden_norm(given)), dim=1))

    def _end(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        cache: KVCache,
        slots: torch.Tensor,
        logit_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        normed = super()._end(x, delta, cache, slots, logit_rows)
        assert isinstance(normed, torch.Tensor)
        behind = self.behind[:, : len(normed)]
        self.hidden[behind[0], behind[1]] = normed.to(self.hidden.dtype)
        return normed

    def destinations(self) -> dict[str, Destination]:
        places = super().destinations() | {"join.matrix": Destination(self.join, 0)}
        for name, norm in (("join.embedding_norm", self.embedding_norm), ("join.hidden_norm", self.hidden_norm)):
            places |= of_norm(name, norm)
        return places


class HeadRunner(ModelRunner):
    """Runs a head as if it were a model: what comes out behind token i is a guess at token i + 1, for which it is given
    the hidden state of token i - 1. Behind the first token there is no guess."""

    model: Head

    def __init__(self, runner: ModelRunner, most: int) -> None:
        """`runner` computes the head's steps, of which at most `most` tokens sample."""
        super().__init__(runner.model, runner.cache)
        self._runner = runner
        rows = self._padded(most)
        self._nowhere = np.stack((np.full(rows, self.cache.padding_page), np.zeros(rows, dtype=np.int64)))
        self.model.behind = self._to_device(self._nowhere.copy())  # which may share memory with what it is given

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Implements `ModelRunner.prepare`."""
        self._runner.prepare(progress)

    @in_inference_mode
    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        """See `ModelRunner.forward`; the first token of a sequence is left out, and may not sample."""
        behind = [item for item in map(_before, work) if len(item.tokens)]
        if not behind:
            return torch.empty((0, self.model.config.vocab_size), device=self.device)
        # What is sampled after these may be given what comes out here, where the model's own hidden state will be.
        sampling = [item for item in behind if item.samples]
        size, places = self.cache.shape.page_size, self._nowhere.copy()
        for row, item in enumerate(sampling):
            end = item.position + len(item.tokens)
            places[:, row] = item.pages[end // size], end % size
        self.model.behind.copy_(self._to_device(places))
        return self._runner.forward(behind, sampled)


def _before(work: Work) -> Work:
    """Moves a work to where the hidden states are that it is given."""
    assert work.samples <= 1
    if not work.position:
        work = work._replace(tokens=work.tokens[1:], position=1)
    return work._replace(position=work.position - 1)
