"""Experts beside an ordinary feed-forward part (Gemma 4), which see the same stream by norms of their own:

y = norm(feed_forward(norm(x))) + norm(experts(norm(x), chosen by a third norm of x))
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.model.moe import MixtureOfExperts
from tandem.worker.model.norms import RMSNorm
from tandem.worker.model.operations import Operations
from tandem.worker.model.parallel import Ranks


class ExpertsBeside(torch.nn.Module):
    """The second half of a layer's sum."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self, config: ModelConfig, experts: Experts, dtype: torch.dtype, operations: Operations, ranks: Ranks
    ) -> None:
        super().__init__()
        self._ranks = ranks
        self.experts = MixtureOfExperts(config.hidden_size, experts, dtype, operations, biases=config.mlp_bias)
        self.norm, self.router_norm, self.own_norm, self.post_norm = (
            RMSNorm(config.hidden_size, config.norm_eps, operations) for _ in range(4)
        )

    def forward(self, x: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Adds the experts' answers to those of the ordinary part, both to rows of `x` `[N, hidden]`."""
        theirs = self._ranks.add_up(self.experts(self.norm(x), self.router_norm(x)))
        return self.own_norm(answers) + self.post_norm(theirs)
