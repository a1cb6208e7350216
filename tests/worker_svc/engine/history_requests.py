"""The requests of `test_histories.py`, drawn at random, and what comes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.request import Drafting, LogprobOptions, Request, Sharing, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.stops import StopSequences
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work
from tests.worker_svc.engine.history_models import CONTEXT, VOCABULARY


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    trim: int = 0  # of the last ids, which are not part of the answer


def random_request(draw: np.random.Generator, number: int, capacity: int, *, plain: bool) -> Request:
    """Prompts share prefixes often; lengths, samplers, priorities and salts differ. Steps of plain ones may overlap."""
    prompt = np.concatenate([np.arange(draw.integers(0, 40)) % 7, draw.integers(0, VOCABULARY, draw.integers(1, 20))])[
        : capacity - 2
    ]
    output = int(draw.integers(1, min(40, capacity - len(prompt), CONTEXT - len(prompt))))
    sampling = Sampling(
        temperature=float(draw.choice([0.0, 0.7, 1.3])),
        top_k=int(draw.choice([0, 8])),
        top_p=float(draw.choice([1.0, 0.9])),
        repetition_penalty=1.0 if plain else float(draw.choice([1.0, 1.3])),
        seed=int(draw.integers(0, 2**63)),
    )
    sequences = [draw.integers(0, VOCABULARY, length).tolist() for length in (1, 2)] if draw.random() < 0.3 else []
    stopping = Stopping(
        max_tokens=output,
        min_tokens=0 if plain and sequences else min(output, int(draw.choice([0, 5]))),
        stop_ids=frozenset({3} if draw.random() < 0.2 else ()),
        sequences=StopSequences(sequences) if sequences else None,
    )
    request = Request.make(
        number,
        prompt,
        sampling,
        stopping,
        priority=int(draw.integers(-2, 3)),
        caller=("", "b", "c")[number % 3],
        salt=str(draw.choice(["", "a"])),
        bypass=bool(draw.random() < 0.1),
        logprobs=LogprobOptions(sampled=True),
    )
    if not plain and draw.random() < 0.5:
        request.drafting = Drafting(int(draw.integers(1, 9)), ngram=int(draw.integers(0, 3)))
    return request


def other_sample(request: Request, number: int) -> Request:
    """One of the same prompt, as a group of samples has them."""
    other = again(request)
    other.number, other.sharing, other.priority = (
        number,
        Sharing(request.sharing.salt, request.sharing.bypass),
        request.priority,
    )
    other.caller = request.caller
    other.sampling = dataclasses.replace(request.sampling, seed=number)
    return other


def again(request: Request) -> Request:
    """The same request, fresh."""
    return Request.make(
        request.number,
        request.tokens[: request.prompt_tokens],
        request.sampling,
        request.stopping,
        bypass=True,
        logprobs=LogprobOptions(sampled=True),
    )


def gone_on(request: Request, known: list[int]) -> Request:
    """The rest of a request, of which somebody has the first ids."""
    rest = Request.make(
        request.number,
        request.tokens[: request.prompt_tokens],
        request.sampling,
        request.stopping,
        resumed=known,
        salt=request.sharing.salt,
        bypass=request.sharing.bypass,
        logprobs=LogprobOptions(sampled=True),
    )
    rest.drafting = request.drafting
    return rest


class Expectation:
    """A `Proposer` of what is expected to come."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        for request, count in zip(requests, counts, strict=True):
            expected = self.ids[request.output_tokens :][:count]
            request.tokens[request.num_tokens : request.num_tokens + len(expected)] = expected
            request.drafts = len(expected)

    def forget(self, request: Request) -> None:
        pass


class Forgetful:
    """A `Proposer` that computes a request anew, as a whole, for each of its guesses."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def propose(self, requests: Sequence[Request], counts: Sequence[int]) -> None:
        for request, count in zip(requests, counts, strict=True):
            for place in range(count):
                end = request.num_tokens + place
                work = Work(request.tokens[:end], 0, np.arange(-(-end // 8)), 1)
                request.tokens[end] = int(self._runner.forward([work])[0].argmax())
                request.drafts = place + 1

    def forget(self, request: Request) -> None:
        pass


def collect(engine: Engine, answers: dict[int, Answer]) -> None:
    result = engine.step()
    rows = zip(result.numbers.tolist(), result.sampled.ids.tolist(), result.sampled.logprobs.tolist(), strict=True)
    for number, token, logprob in rows:
        answers[number].ids.append(token)
        answers[number].logprobs.append(logprob)
    for finish in result.finished:
        assert answers[finish.number].reason is None
        answers[finish.number].reason, answers[finish.number].trim = finish.reason, finish.trim
