"""A request inside the engine: what was asked, how far it has come, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.account import Usage
from tandem.worker.engine.chains import Tokens
from tandem.worker.engine.ends import End
from tandem.worker.engine.pages import SequencePages
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.stops import StopSequences

if TYPE_CHECKING:
    from tandem.worker.engine.guides.matcher import Matcher
    from tandem.worker.engine.reasoning import Thinking


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """Selects which logprobs are reported."""

    sampled: bool = False  # of each output token, with its rank
    top: int = 0  # of the most probable tokens at each position
    ids: tuple[int, ...] = ()  # of these at each position
    processed: bool = False  # after all stages instead of the model's own
    prompt: bool = False  # of each prompt token too
    whole: bool = False  # of the whole vocabulary at each position; then also `sampled`

    @property
    def wanted(self) -> bool:
        """Tells whether anything is reported of an output token."""
        return self.sampled or self.width > 0

    @property
    def width(self) -> int:
        """Returns how many tokens besides the sampled one are reported at each position."""
        return self.top + len(self.ids)


NO_LOGPROBS = LogprobOptions()


@dataclass(frozen=True, slots=True)
class Stopping:
    """Says when generation ends; `eos_ids` are the model's own, empty where they are ignored."""

    max_tokens: int
    min_tokens: int = 0
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    sequences: StopSequences | None = None

    @property
    def masked_ids(self) -> list[int]:
        """Returns the ids that may not be sampled before `min_tokens`, ascending."""
        return sorted(self.eos_ids | self.stop_ids)


@dataclass(slots=True)
class RequestStatistics(Usage):
    """Times are seconds of the engine's monotonic clock; 0 is not yet. The intervals between them are the contract's
    Timings; those whose moments never came are empty."""

    arrived: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0

    @property
    def queue_seconds(self) -> float:
        """Returns the time from admission to first scheduled."""
        return (self.scheduled or self.finished) - self.arrived

    @property
    def prefill_seconds(self) -> float:
        """Returns the time from first scheduled to first token."""
        return (self.first_token or self.finished) - (self.scheduled or self.finished)

    @property
    def decode_seconds(self) -> float:
        """Returns the time from first token to last token."""
        return self.finished - (self.first_token or self.finished)

    @property
    def total_seconds(self) -> float:
        """Returns the time from admission to finish."""
        return self.finished - self.arrived


@dataclass(frozen=True, slots=True)
class Drafting:
    """The speculation of a request."""

    max_tokens: int  # drafts at most
    ngram: int  # 0: no prompt lookup


@dataclass(slots=True)
class Sharing:
    """The sharing of pages between requests."""

    salt: str = ""
    bypass: bool = False
    private: bool = False  # its pages are dropped at its end
    leader: Request | None = None  # whose prompt is the same; a copy of its last prompt page saves computing it


@dataclass(slots=True)
class Turn:
    """The place in the queue: kept by the scheduler and its queue."""

    arrival: int = 0
    overtaken: int = 0  # later arrivals that were admitted first
    charged: int = 0  # tokens that its caller was charged for
    rested: int = 0  # steps on end without it, for the sake of other callers


@dataclass(slots=True)
class InFlight:
    """What is launched and not read yet, and what that means for an end (`in_flight.py`)."""

    pending: int = 0  # sampled tokens
    row: int = 0  # of the latest one, among the ids that its step samples
    waits: bool = False  # no step is launched with the request before what is pending is known
    ended: bool = False  # and told; only its steps in flight are waited for
    corrupted: bool = False  # its keys and values are not to be shown to anybody
    sound: int = 0  # tokens whose keys and values are known to be finite, and may be shown


@dataclass(slots=True, eq=False)
class Request:
    """`tokens[:num_tokens]` is prompt, resumed output and output. The `drafts` tokens behind them are guesses for the
    next step. `num_computed` tokens have keys and values, or will have them before anything that is launched from now
    on."""

    number: int  # the front's name for it
    tokens: Tokens  # with room for every token that may come
    prompt_tokens: int
    num_tokens: int
    sampling: Sampling
    stopping: Stopping
    priority: int = 0
    caller: str = ""  # who is charged for it
    logprobs: LogprobOptions = NO_LOGPROBS
    adapter: int = -1  # beside the model, that changes it
    drafting: Drafting | None = None
    matcher: Matcher | None = None  # of guided decoding, after `num_tokens`
    thinking: Thinking | None = None
    sharing: Sharing = field(default_factory=Sharing)
    turn: Turn = field(default_factory=Turn)
    in_flight: InFlight = field(default_factory=InFlight)
    pages: SequencePages | None = None  # while it runs
    num_computed: int = 0
    drafts: int = 0
    scored: int = 1  # prompt tokens whose logprobs have been told; the first has none
    ending: End | None = None  # of one that generates nothing: what it ends with once its prompt is scored
    stop_state: int = 0  # of `stopping.sequences`, after `num_tokens`
    statistics: RequestStatistics = field(default_factory=RequestStatistics)

    @classmethod
    def make(
        cls,
        number: int,
        prompt: npt.ArrayLike,
        sampling: Sampling,
        stopping: Stopping,
        *,
        resumed: npt.ArrayLike = (),
        priority: int = 0,
        caller: str = "",
        salt: str = "",
        bypass: bool = False,
        logprobs: LogprobOptions = NO_LOGPROBS,
        adapter: int = -1,
    ) -> Request:
        """Makes a request from ids: `prompt`, and `resumed` (output from elsewhere), which `max_tokens` counts too."""
        head = np.asarray(prompt, dtype=np.int32)
        known = np.concatenate((head, np.asarray(resumed, dtype=np.int32)))
        tokens = np.zeros(len(head) + stopping.max_tokens, dtype=np.int32)
        tokens[: len(known)] = known
        asked = (sampling, stopping, priority, caller, logprobs, adapter)
        return cls(number, tokens, len(head), len(known), *asked, sharing=Sharing(salt, bypass))

    @property
    def known(self) -> Tokens:
        """Returns every token so far; a view."""
        return self.tokens[: self.num_tokens]

    @property
    def scoring(self) -> bool:
        """Tells whether logprobs of its prompt are still to be told."""
        return self.logprobs.prompt and self.scored < self.prompt_tokens

    @property
    def held(self) -> bool:
        """Tells whether steps go without it until its matcher has answered."""
        return self.matcher is not None and self.matcher.held

    @property
    def owed(self) -> int:
        """Counts the tokens whose keys and values are not there yet."""
        return self.num_tokens + self.in_flight.pending - self.num_computed

    @property
    def complete(self) -> bool:
        """Tells whether nothing is left to launch: it has ended, or will do so by what is pending."""
        if pending := self.in_flight.pending:
            return self.in_flight.ended or self.output_tokens + pending >= self.stopping.max_tokens
        return self.in_flight.ended

    @property
    def output_tokens(self) -> int:
        """Counts the tokens produced so far, those of another worker included."""
        return self.num_tokens - self.prompt_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Returns the sort key of service: the smaller runs first, by priority, then by arrival."""
        return (-self.priority, self.turn.arrival)

    def count_pages(self) -> None:
        """Remembers the most pages that it has held."""
        if self.pages is not None:
            self.statistics.peak_pages = max(self.statistics.peak_pages, self.pages.count)

    def append(self, token: int) -> None:
        """Adds a sampled token."""
        self.tokens[self.num_tokens] = token
        self.num_tokens += 1
        if self.thinking is not None:
            self.thinking.think(token, self.output_tokens)
            self.matcher = self.thinking.guiding
