"""Streams through the SDK, each compared with what the same request gave before anything was disturbed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.client import AsyncClient, AsyncStream, DeadlineExceededError, GenerateOptions, Regex, TandemError

ANSWER_SECONDS = 120.0  # an answer that takes longer hangs
_GUIDE = Regex("([A-Z][a-z]{1,8}[ ,.]){40}")
_WORDS = "First Citizen Before we proceed any further hear me speak and then the second of them said"


@dataclass(frozen=True)
class Job:
    """One request; the same each time."""

    number: int
    tokens: int

    def stream(self, client: AsyncClient) -> AsyncStream:
        """Begins it."""
        options: GenerateOptions = {"max_tokens": self.tokens, "seed": self.number, "temperature": 0.8}
        options["timeout"] = ANSWER_SECONDS
        length = 6 + 11 * (self.number % 5)
        text = " ".join(itertools.islice(itertools.cycle(_WORDS.split()), self.number, self.number + length))
        if self.number % 5 == 4:
            options["guided"] = _GUIDE
        if self.number % 4 == 3:
            return client.stream_chat([{"role": "user", "content": text}], **options)
        if self.number % 4 == 2:
            options["stop"] = ["\n\n", "zz"]
        return client.stream(text, **options)


@dataclass(frozen=True)
class Answer:
    """What counts of one."""

    text: str
    ids: tuple[int, ...]
    failovers: int = field(default=0, compare=False)


async def answer(job: Job, client: AsyncClient, progress: object = None) -> Answer:
    """All of it, as it came in chunks, which must be what the result says."""
    text, ids = "", list[int]()
    async with job.stream(client) as stream:
        async for chunk in stream:
            text += chunk.text
            ids += chunk.ids
            if callable(progress):
                progress()
    result = stream.result
    assert (text, ids) == (result.text, result.output_ids), "the chunks are not the result"
    return Answer(text, tuple(ids), result.failovers)


@dataclass
class Tally:
    """How answers ended."""

    right: int = 0
    altered: int = 0
    lost: int = 0
    hung: int = 0
    failovers: int = 0
    silence: float = 0.0  # seconds: the longest that ended, of any stream
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Nothing went wrong."""
        return not (self.altered or self.lost or self.hung)


class Load:
    """Streams that never end: when one has its answer, it asks for the next."""

    def __init__(self, client: AsyncClient, jobs: Sequence[Job], expected: Sequence[Answer], streams: int) -> None:
        self._client, self._jobs, self._expected, self._streams = client, jobs, expected, streams
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = [0.0] * streams
        self._ended = [0.0] * streams
        self._ending = False
        self.tally = Tally()  # to be replaced by whoever counts anew

    def start(self) -> None:
        """Begins all streams."""
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self._streams)]

    def progressed_since(self, moment: float) -> bool:
        """Whether every stream has had something new since (`time.monotonic`)."""
        return all(progress > moment for progress in self._progress)

    def answered_since(self, moment: float) -> bool:
        """Whether every stream has come to the end of an answer since, be it a bad one."""
        return all(ended > moment for ended in self._ended)

    async def end(self) -> None:
        """Lets the answers that are being made come to their end."""
        self._ending = True
        await asyncio.gather(*self._tasks)

    async def _run(self, number: int) -> None:
        def progressed() -> None:
            now, before = time.monotonic(), self._progress[number]
            self._progress[number] = now
            if before:
                self.tally.silence = max(self.tally.silence, now - before)

        for turn in itertools.count():
            if self._ending:
                return
            index = (number + 7 * turn) % len(self._jobs)
            job = self._jobs[index]
            try:
                async with asyncio.timeout(ANSWER_SECONDS + 30):
                    got = await answer(job, self._client, progressed)
            except (DeadlineExceededError, TimeoutError) as error:
                self.tally.hung += 1
                self.tally.reasons[f"{type(error).__name__}: {error}"[:200]] += 1
            except (TandemError, AssertionError) as error:
                self.tally.lost += 1
                self.tally.reasons[f"{type(error).__name__}: {error}"[:200]] += 1
                await asyncio.sleep(0.2)
            else:
                self.tally.failovers += got.failovers
                if got == self._expected[index]:
                    self.tally.right += 1
                else:
                    self.tally.altered += 1
                    self.tally.reasons[f"altered: job {index}, {_difference(got, self._expected[index])}"] += 1
            progressed()
            self._ended[number] = time.monotonic()


def _difference(got: Answer, expected: Answer) -> str:
    same = next(
        (at for at, (a, b) in enumerate(zip(got.ids, expected.ids, strict=False)) if a != b),
        min(len(got.ids), len(expected.ids)),
    )
    return f"the same up to id {same}; {len(got.ids)} ids instead of {len(expected.ids)}"
