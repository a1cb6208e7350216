"""The messages between the front and the engine: typed frames, encoded by msgpack, never pickled.

Numbers that come by the thousand travel as the bytes of one little-endian array, not as one object each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tandem.worker.engine.fork import private_salt, sample_seed
from tandem.worker.engine.load import Load
from tandem.worker.engine.reasoning import Reasoning, Thinking
from tandem.worker.engine.request import (
    Drafting,
    LogprobOptions,
    Request,
    RequestStatistics,
    Sharing,
    Stopping,
)
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.stops import StopSequences

if TYPE_CHECKING:  # the front reads this file without torch
    from tandem.worker.engine.engine import Finish, StepResult
    from tandem.worker.engine.page_events import PageEvents
    from tandem.worker.engine.sampler import Alternatives

assert sys.byteorder == "little", "frames carry arrays in the machine's byte order"


class Submit(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: a new request. Ids are int32 arrays."""

    number: int
    prompt: bytes
    resumed: bytes
    max_tokens: int
    min_tokens: int
    eos_ids: list[int]
    stop_ids: list[int]
    include_stop: bool
    sampling: Sampling
    priority: int
    salt: str
    bypass: bool
    logprobs: LogprobOptions
    stop_sequences: list[list[int]] = []
    samples: int = 1  # of the prompt; their numbers are `number`, `number + 1`, ...
    draft_tokens: int = 0  # at most; 0: no speculation
    lookup_ngram: int = 0  # 0: no prompt lookup
    guide: tuple[str, str] | None = None  # kind and text of `Guide`
    caller: str = ""  # who is charged for it
    reasoning: tuple[list[int], list[int], int | None] | None = None  # the arguments of `Reasoning`
    adapter: int = -1  # its number, of `EngineInfo.adapters`; -1: none

    def _rules(self) -> Reasoning | None:
        return None if self.reasoning is None else Reasoning(*self.reasoning, leads=self.guide is not None)

    @property
    def resumed_answer(self) -> bytes:
        """The output of another worker that the guide must allow: what comes behind the reasoning."""
        rules = self._rules()
        if rules is None:
            return self.resumed
        end = rules.end_of(np.frombuffer(self.resumed, dtype=np.int32).tolist())
        return b"" if end is None else self.resumed[4 * end :]

    def to_requests(self) -> list[Request]:
        """Converts it to the engine's own form: one request a sample, all but the first for `Engine.submit` to fork."""
        return [self._to_request(index) for index in range(self.samples)]

    def _to_request(self, index: int) -> Request:
        request = Request.make(
            self.number + index,
            np.frombuffer(self.prompt, dtype=np.int32),
            replace(self.sampling, seed=sample_seed(self.sampling.seed, index)),
            Stopping(
                max_tokens=self.max_tokens,
                min_tokens=self.min_tokens,
                eos_ids=frozenset(self.eos_ids),
                stop_ids=frozenset(self.stop_ids),
                include_stop=self.include_stop,
                sequences=StopSequences(self.stop_sequences) if self.stop_sequences else None,
            ),
            resumed=np.frombuffer(self.resumed, dtype=np.int32),
            priority=self.priority,
            caller=self.caller,
            salt=self.salt,
            bypass=self.bypass,
            adapter=self.adapter,
            # The samples of a prompt share it: it is scored once.
            logprobs=self.logprobs if index == 0 else replace(self.logprobs, prompt=False),
        )
        if self.bypass and self.samples > 1:
            request.sharing = Sharing(private_salt(self.number), private=True)
        if (rules := self._rules()) is not None:
            request.thinking = Thinking(rules, rules.start, request.statistics)
        if self.draft_tokens and not self.sampling.stateful:
            request.drafting = Drafting(self.draft_tokens, self.lookup_ngram)
        return request


class Abort(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: requests that nobody waits for any more."""

    numbers: list[int]


class Vocabulary(msgspec.Struct, tag=True, array_like=True):
    """Front to engine, once it is known: the bytes of all ids, joined, how many each has (uint32), and which are no
    text."""

    pieces: bytes
    lengths: bytes
    special_ids: list[int]

    @classmethod
    def of(cls, pieces: Sequence[bytes], special_ids: Sequence[int]) -> Vocabulary:
        """Makes it from the bytes of each id; None for ids that are no text."""
        lengths = np.fromiter(map(len, pieces), dtype=np.uint32, count=len(pieces))
        return cls(b"".join(pieces), lengths.tobytes(), list(special_ids))

    def each(self) -> list[bytes]:
        """Yields the bytes of each id."""
        ends = np.cumsum(np.frombuffer(self.lengths, dtype=np.uint32), dtype=np.int64).tolist()
        return [self.pieces[start:end] for start, end in zip([0, *ends], ends, strict=False)]


class Compile(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: a guide that a request is about to need; answered by a `Reply` with the same serial. `resumed`
    is output (int32) that it must allow; compilers are shared between callers."""

    serial: int
    guide: tuple[str, str]
    resumed: bytes
    caller: str


class Forget(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: nobody waits for that compilation any more. Not answered."""

    serial: int


class Command(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: an RPC for `Commands`, with its serialized request; answered by a `Reply` with the same
    serial."""

    serial: int
    rpc: str
    request: bytes


class Ping(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: say something, which is a `Reply` with the same serial."""

    serial: int


class Watch(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: tell what happens to cached pages (`Pages`), beginning with all that there are; or no more."""

    wanted: bool


class Stop(msgspec.Struct, tag=True, array_like=True):
    """Front to engine: leave."""


class Took(msgspec.Struct, tag=True, array_like=True):
    """Rank 0 to all ranks: what a step took by its clock, from which all learn the same."""

    decodes: int
    drafts: int
    seconds: float


Inbound = Submit | Abort | Vocabulary | Compile | Forget | Command | Ping | Watch | Stop | Took


class EngineInfo(msgspec.Struct, tag=True, array_like=True):
    """Engine to front, first of all: it is ready, and what it is."""

    architecture: str
    checkpoint_format: str
    vocabulary_size: int
    context_length: int
    eos_ids: list[int]
    bos_id: int | None
    sampling_defaults: dict[str, float]
    parameters: int
    dtype: str
    quantization: str
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    device: str
    device_name: str
    torch_version: str
    threads: int
    weight_bytes: int
    kv_cache_bytes: int
    state_cache_bytes: int
    kv_cache_tokens: int
    kv_bytes_per_token: int
    kv_cache_dtype: str
    page_size: int
    row_invariant: bool
    draft_tokens: int = 0  # of a request that names no number
    draft_model: str = ""  # empty: there is none
    adapters: list[str] = []  # beside the model, by their numbers from 0 on
    tensor_parallel_ranks: int = 1  # that share the model
    max_batch_tokens: int = 0
    max_running_requests: int = 0


class StartProgress(msgspec.Struct, tag=True, array_like=True):
    """Engine to front, while it loads."""

    done_bytes: int
    total_bytes: int


class StartFailed(msgspec.Struct, tag=True, array_like=True):
    """Engine to front: it cannot start; one line for the operator."""

    message: str


class Busy(msgspec.Struct, tag=True, array_like=True):
    """Engine to front: a step takes its time for a good reason, and something of it is done."""


class Ended(msgspec.Struct, array_like=True):
    """The end of one request; see `Finish`."""

    number: int
    reason: int
    matched_token: int | None
    matched_sequence: int | None
    trim: int
    statistics: RequestStatistics
    detail: str

    @classmethod
    def of(cls, finish: Finish) -> Ended:
        """Copies the end of a request as it is now: a step in flight may still write into the statistics."""
        matched = (finish.matched_token, finish.matched_sequence, finish.trim)
        return cls(finish.number, int(finish.reason), *matched, replace(finish.statistics), finish.detail)


class Others(msgspec.Struct, array_like=True):
    """Carries other tokens at several positions, as in `Alternatives`: int32, int32, float32 and int32 arrays."""

    counts: bytes
    ids: bytes
    logprobs: bytes
    ranks: bytes

    @classmethod
    def of(cls, alternatives: Alternatives) -> Others | None:
        """Packs alternatives; returns None where there are none."""
        if not alternatives.ids.size:
            return None
        return cls(
            alternatives.counts.tobytes(),
            alternatives.ids.tobytes(),
            alternatives.logprobs.tobytes(),
            alternatives.ranks.tobytes(),
        )

    def each(self) -> list[TopTokens]:
        """Returns one entry a position."""
        ids = np.frombuffer(self.ids, dtype=np.int32).tolist()
        logprobs = np.frombuffer(self.logprobs, dtype=np.float32).tolist()
        ranks = np.frombuffer(self.ranks, dtype=np.int32).tolist()
        ends = np.cumsum(np.frombuffer(self.counts, dtype=np.int32)).tolist()
        begins = [0, *ends[:-1]]
        return [(ids[a:b], logprobs[a:b], ranks[a:b]) for a, b in zip(begins, ends, strict=True)]


TopTokens = tuple[list[int], list[float], list[int]]  # ids, logprobs, ranks


class ScoredPrompt(msgspec.Struct, array_like=True):
    """Carries the next part of a prompt's logprobs: float32 and int32 arrays."""

    number: int
    logprobs: bytes
    ranks: bytes
    others: Others | None


class Step(msgspec.Struct, tag=True, array_like=True):
    """Engine to front, once a step. `numbers` uint64, `ids` and `ranks` int32 and `logprobs` float32 are parallel."""

    numbers: bytes
    ids: bytes
    logprobs: bytes
    ranks: bytes
    others: Others | None
    prompts: list[ScoredPrompt]
    ended: list[Ended]
    held: list[tuple[int, int]]  # number, and how many of its last tokens must not be sent yet
    load: Load
    prefill_tokens: int
    decode_tokens: int
    schedule_seconds: float
    forward_seconds: float
    sample_seconds: float
    whole: dict[int, bytes] = {}  # logprobs (float32) of the whole vocabulary, by place in the arrays, where asked for

    @classmethod
    def of(cls, result: StepResult, load: Load) -> Step:
        """Packs a step's result."""
        return cls(
            numbers=result.numbers.tobytes(),
            ids=result.sampled.ids.tobytes(),
            logprobs=result.sampled.logprobs.tobytes(),
            ranks=result.sampled.ranks.tobytes(),
            others=Others.of(result.sampled.alternatives),
            prompts=[
                ScoredPrompt(each.number, each.logprobs.tobytes(), each.ranks.tobytes(), Others.of(each.alternatives))
                for each in result.prompts
            ],
            ended=[Ended.of(finish) for finish in result.finished],
            held=result.held,
            load=load,
            prefill_tokens=result.prefill_tokens,
            decode_tokens=result.decode_tokens,
            schedule_seconds=result.schedule_seconds,
            forward_seconds=result.forward_seconds,
            sample_seconds=result.sample_seconds,
            whole={place: found.tobytes() for place, found in result.sampled.whole.items()},
        )


class Reply(msgspec.Struct, tag=True, array_like=True):
    """Engine to front: what had a serial is done."""

    serial: int
    load: Load
    response: bytes = b""  # to a command, serialized
    outcome: int = 0  # of a compilation: a `CompileOutcome`
    error: str = ""  # what is wrong with a guide


class Pages(msgspec.Struct, tag=True, array_like=True):
    """Engine to front: `PageEvents`. Numbers are int64; each page has the same number of tokens, int32."""

    fresh: bool
    serials: bytes
    parents: bytes
    tokens: bytes
    salts: dict[int, str]
    forgotten: bytes

    @classmethod
    def of(cls, events: PageEvents) -> Pages:
        """Packs events."""
        numbers = (np.array(each, np.int64).tobytes() for each in (events.serials, events.parents, events.forgotten))
        serials, parents, forgotten = numbers
        return cls(events.fresh, serials, parents, b"".join(events.tokens), events.salts, forgotten)


Outbound = EngineInfo | StartProgress | StartFailed | Busy | Step | Reply | Pages
