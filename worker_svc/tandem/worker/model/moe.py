"""Mixture of experts: a router sends each row to a few of many feed-forward layers.

    s = softmax(x Wrouter)                         float32
    y = sum of s_e expert_e(x) over the largest s  (divided by their sum where the model says so)

Models differ in how they score and choose (`Experts`):

- Scores may be sigmoids, and a bias may be added to them that decides who is chosen, not what it weighs; experts may be
  in groups, of which a row has those with the largest sum of their two best (DeepSeek-V3, GLM-4.5, MiniMax-M2), or
  with the largest score (DeepSeek-V2).
- SparseMixer (Liu et al. 2024, https://arxiv.org/abs/2409.12136; Phi-3.5-MoE) chooses two, one after the other: each
  weighs as in a softmax over those that it was chosen from and that are not far below it.
- Scores may be roots of log(1 + exp), and a table may say of each token of the vocabulary who is chosen, so that scores
  decide what they weigh alone (DeepSeek-V4).
- An expert may be given a row multiplied by its weight, instead of being weighed itself (Llama 4).
- What an expert weighs may be multiplied by a number of its own (Gemma 4).
- Experts may have no gate, and may be given rows of another width, which one matrix makes of the stream's, and another
  one makes the stream's again (Nemotron 3).
- A shared expert may add to every row, as it is or by the sigmoid of a router of its own (Qwen2-MoE).

Where a device has kernels for it, all experts are computed together (`Operations.join_experts`). Elsewhere an
expert computes all rows that chose it in one product, padded to as many as a row's bits do not depend on, and a row
adds up its experts in the order of their numbers. So a row's bits depend neither on the others nor on which expert
they chose.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tandem.worker.checkpoints.model_parts.experts import Experts
from tandem.worker.model.activations import sigmoid
from tandem.worker.model.feed_forward import FeedForward, UngatedFeedForward
from tandem.worker.model.linear import Bias, Linear, Router
from tandem.worker.model.mixer import Constants
from tandem.worker.model.operations import JoinedExperts, Operations


class MixtureOfExperts(torch.nn.Module):
    """The feed-forward part of a layer with experts."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        hidden_size: int,
        experts: Experts,
        dtype: torch.dtype,
        operations: Operations,
        *,
        biases: bool = False,
        listed: int = 0,
    ) -> None:
        """`biases`: of the shared expert, and of the matrices around those that have another width. `listed`: tokens of
        a vocabulary, for each of which a table says who is chosen; 0: there is none."""
        super().__init__()
        self.config = experts
        self._operations = operations
        self.joined: JoinedExperts | None = None  # what computes them together
        self._route: Callable[..., tuple[torch.Tensor, torch.Tensor]] = partial(choose, config=experts)
        self.apart = ""  # why experts are computed one after the other, once they are there
        self._row_multiple = 0  # not known before the weights are
        self.router = Router(hidden_size, experts.count, dtype, bias=experts.biases)
        self.router_bias = Bias(experts.count, torch.float32) if experts.biased and not listed else None
        self.table = Constants(listed, experts.per_token) if listed else None
        self.weights = Bias(experts.count, torch.float32) if experts.weighed else None
        sizes, activation = (experts.latent or hidden_size, experts.intermediate_size), experts.activation
        self.into_experts: Linear | None = None
        self.out_of_experts: Linear | None = None
        if experts.latent:
            self.into_experts = Linear(hidden_size, experts.latent, dtype, bias=biases)
            self.out_of_experts = Linear(experts.latent, hidden_size, dtype, bias=biases)
        self.experts = torch.nn.ModuleList(
            FeedForward(*sizes, dtype, operations, experts.activation, clamped=experts.clamped, biases=experts.biases)
            if experts.gated
            else UngatedFeedForward(*sizes, dtype, operations, activation, biases=experts.biases)
            for _ in range(experts.count)
        )
        self.shared: FeedForward | UngatedFeedForward | None = None
        self.shared_router: Router | None = None
        if experts.shared_size:
            sizes = hidden_size, experts.shared_size
            self.shared = (
                FeedForward(*sizes, dtype, operations, clamped=experts.shared_clamped, biases=biases)
                if experts.gated
                else UngatedFeedForward(*sizes, dtype, operations, activation, biases=biases)
            )
            self.shared_router = Router(hidden_size, 1, dtype) if experts.shared_router else None

    def join(self) -> None:
        """Comes once the weights are there: joins the experts where they can be computed together."""
        joined = self._operations.join_experts(self.config, list(self.experts))
        self.joined, self.apart = (None, joined) if isinstance(joined, str) else (joined, "")
        if self.joined is not None:
            self._route = self.joined.route

    def forward(
        self, x: torch.Tensor, seen: torch.Tensor | None = None, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Computes `[N, hidden] -> [N, hidden]`; the router sees `seen` instead of `x`, if given. A table looks at the
        tokens `ids` `[N]`."""
        if self.table is None:
            shares, chosen = self.choose(x if seen is None else seen)
        else:
            assert ids is not None
            chosen = self.table.weight.index_select(0, ids).long()
            shares = weighed(scores_of(self.router(x).float(), self.config), chosen, self.config)
        inputs = x
        if self.config.weighs_input:  # of the one expert
            inputs, shares = (x * shares).to(x.dtype), torch.ones_like(shares)
        if self.into_experts is not None and self.out_of_experts is not None:
            inputs = self.into_experts(x)
            answers = (
                self._one_by_one(inputs, shares, chosen).to(x.dtype)
                if self.joined is None
                else self.joined(inputs, shares, chosen, None, None)
            )
            answers = self.out_of_experts(answers)
            return answers if self.shared is None else answers + self._shared_answers(x)
        if self.joined is not None:
            shared = None if self.shared is None else self._shared_answers(x)
            gate = None if self.shared_router is None else self.shared_router(x)
            return self.joined(inputs, shares, chosen, shared, gate)
        result = self._one_by_one(inputs, shares, chosen)
        if self.shared is not None:
            answers = self._shared_answers(x)
            result += answers if self.shared_router is None else answers * sigmoid(self.shared_router(x).float())
        return result.to(x.dtype)

    def _shared_answers(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the shared expert gives, `[N, hidden]`."""
        assert self.shared is not None
        answers: torch.Tensor = self.shared(x)
        return answers if self.config.shared_multiplier == 1 else answers * self.config.shared_multiplier

    def _one_by_one(self, inputs: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Returns the sum over a row's experts, float32, each expert being computed for itself."""
        if not self._row_multiple:
            self._row_multiple = max(each.row_multiple for each in self.experts.modules() if isinstance(each, Linear))
        # Pairs (row, expert), those of expert 0 first; `place` counts through `chosen`.
        place = chosen.flatten().argsort(stable=True)
        row, share = place // self.config.per_token, shares.flatten()[place].unsqueeze(-1)
        result = torch.zeros_like(inputs, dtype=torch.float32)
        # Only experts that somebody chose: of a decode's 128 there are 8, and each one asked for would cost a call.
        numbers, counts = torch.unique_consecutive(chosen.flatten()[place], return_counts=True)
        start = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            rows, part = row[start : start + count], share[start : start + count]
            padded = torch.nn.functional.pad(rows, (0, -count % self._row_multiple))
            answers = self.experts[number](inputs.index_select(0, padded))[:count]
            result.index_add_(0, rows, answers * part)
            start += count
        return result

    def choose(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the weights of each row's experts, float32, and their numbers, both `[N, per_token]`."""
        logits, bias = self.router(x), None if self.router_bias is None else self.router_bias.weight
        if self.config.logit_multiplier != 1:
            logits = logits * self.config.logit_multiplier
        weights = None if self.weights is None else self.weights.weight
        return self._route(logits, bias, weights)


def choose(
    logits: torch.Tensor, bias: torch.Tensor | None, weights: torch.Tensor | None, config: Experts
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses by the router's logits `[N, experts]`, and a bias of who is chosen; what each weighs is multiplied by its
    own of `weights` `[experts]`. See `MixtureOfExperts.choose`."""
    logits = logits.float()
    if config.score == "mixer":
        return _mixed(logits, config.jitter)
    scores = scores_of(logits, config)
    wanted = scores if bias is None else scores + bias
    if config.groups > 1:
        each = config.count // config.groups
        best = wanted.view(len(logits), config.groups, each).topk(config.best_of_group, dim=-1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool)
        kept.scatter_(1, best.topk(config.groups_per_token, dim=-1).indices, True)
        wanted = wanted.masked_fill(~kept.repeat_interleave(each, dim=1), float("-inf"))
    chosen = wanted.topk(config.per_token, dim=-1).indices
    shares = weighed(scores, chosen, config)
    return (shares if weights is None else shares * weights[chosen]), chosen


def scores_of(logits: torch.Tensor, config: Experts) -> torch.Tensor:
    """Returns the scores of experts by the router's logits `[N, experts]`, float32."""
    match config.score:
        case "softmax":
            return logits.softmax(-1)
        case "root_softplus":
            return (logits.clamp(min=0) + logits.abs().neg_().exp_().log1p_()).sqrt_()
    return sigmoid(logits)


def weighed(scores: torch.Tensor, chosen: torch.Tensor, config: Experts) -> torch.Tensor:
    """Returns what the chosen experts `[N, per_token]` weigh by their scores."""
    shares = scores.gather(1, chosen)
    if config.normalized:
        shares = shares / (shares.sum(-1, keepdim=True) + config.sum_offset)
    return shares if config.scale == 1 else shares * config.scale


def _mixed(logits: torch.Tensor, jitter: float) -> tuple[torch.Tensor, torch.Tensor]:
    left, shares, chosen = logits, [], []
    for _ in range(2):
        largest, index = left.max(-1, keepdim=True)
        far = (largest - logits) / logits.abs().maximum(largest) > 2 * jitter
        shares.append(left.masked_fill(far, float("-inf")).softmax(-1).gather(1, index))
        chosen.append(index)
        left = left.scatter(1, index, float("-inf"))
    return torch.cat(shares, dim=1), torch.cat(chosen, dim=1)
