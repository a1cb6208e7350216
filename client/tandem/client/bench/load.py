"""A load: when each conversation begins, and what each of its requests took.

open     conversations begin at the moments of a Poisson process, whether or not others have ended: what many
         independent users do. A time is counted from the moment at which a request was due, so that a slow server
         cannot hide by being asked less.
closed   so many conversations at any time: each that ends makes place for the next.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tandem.client.bench.targets import Question, Refused, Said, Target
from tandem.client.bench.workload import Conversation, words

_CALIBRATION_WORDS = 200


@dataclass(slots=True)
class Record:
    """One request. Times are seconds; `due` and `end` since the beginning of the run."""

    due: float
    end: float = 0.0
    ttft: float | None = None  # from `due` to the first tokens
    gaps: list[float] = field(default_factory=list)  # between arrivals of tokens
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def e2e(self) -> float:
        """From `due` to the end."""
        return self.end - self.due

    @property
    def tpot(self) -> float | None:
        """The mean time of an output token after the first; None for fewer than two."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)


async def calibrate(target: Target) -> float:
    """Returns how many tokens a word has to this target. Raises Refused."""
    text = words(_CALIBRATION_WORDS, random.Random(0))  # noqa: S311
    answered = await target.ask(Question([Said("user", text)], 1, 0), lambda: None)
    return max(1, answered.prompt_tokens) / _CALIBRATION_WORDS


class Load:
    """One run against one target. What has ended stays in `records`, also of a run that is cancelled."""

    def __init__(self, target: Target, *, think: float = 0.0, on_end: Callable[[Record], None] = lambda record: None):
        self.records: list[Record] = []
        self.seconds = 0.0  # from the first request's moment to the last one's end
        self._target, self._think, self._on_end = target, think, on_end
        self._began = 0.0

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def run_open(self, conversations: Iterable[Conversation], rate: float, seed: int) -> None:
        """Begins `rate` conversations a second on average, and waits for the end of all."""
        chance = random.Random(seed)  # noqa: S311
        self._began, due = time.perf_counter(), 0.0
        async with asyncio.TaskGroup() as running:
            for conversation in conversations:
                await asyncio.sleep(due - self._now())
                running.create_task(self._converse(conversation, due))
                due += chance.expovariate(rate)

    async def run_closed(self, conversations: Iterable[Conversation], concurrency: int) -> None:
        """Keeps `concurrency` conversations going until there are no more."""
        self._began = time.perf_counter()
        waiting = iter(conversations)

        async def one_after_the_other() -> None:
            for conversation in waiting:
                await self._converse(conversation, self._now())

        async with asyncio.TaskGroup() as running:
            for _ in range(concurrency):
                running.create_task(one_after_the_other())

    async def _converse(self, conversation: Conversation, due: float) -> None:
        said: list[Said] = []
        for number, turn in enumerate(conversation.turns):
            if number and self._think:
                await asyncio.sleep(self._think)
            said.append(Said("user", turn.text))
            record = Record(due=self._now() if number else due)
            answer = await self._ask(Question(tuple(said), turn.max_tokens, conversation.seed), record)
            if answer is None:
                return
            said.append(Said("assistant", answer))

    async def _ask(self, question: Question, record: Record) -> str | None:
        last = 0.0

        def arrived() -> None:
            nonlocal last
            now = self._now()
            if record.ttft is None:
                record.ttft = now - record.due
            else:
                record.gaps.append(now - last)
            last = now

        text: str | None = None
        try:
            answered = await self._target.ask(question, arrived)
            text = answered.text
            record.prompt_tokens, record.cached_tokens = answered.prompt_tokens, answered.cached_tokens
            record.output_tokens = answered.output_tokens
        except Refused as refused:
            record.error = str(refused)
        record.end = self.seconds = self._now()
        self.records.append(record)
        self._on_end(record)
        return text


def limited(conversations: Iterable[Conversation], count: int | None, seconds: float | None) -> Iterable[Conversation]:
    """Yields no more than `count`, and none after `seconds` from the first."""
    began: float | None = None
    for conversation in itertools.islice(conversations, count):
        began = time.perf_counter() if began is None else began
        if seconds is not None and time.perf_counter() - began >= seconds:
            return
        yield conversation
