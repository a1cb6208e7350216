"""The engine's side of guided decoding: compilations, matchers, and the points at which it reads their answers.

On rank 0 a `GuideHost` does the work; the other ranks are told what it says, at the same places, so that all decide
alike. The host comes with the first vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.guides.guide import NO_VOCABULARY, Guide
from tandem.worker.engine.guides.limits import GuideLimits
from tandem.worker.engine.guides.matcher import Matcher
from tandem.worker.engine.guides.outcome import CompileOutcome, CompileResult
from tandem.worker.engine.guides.patience import Patience
from tandem.worker.engine.load import EngineStatistics
from tandem.worker.engine.request import Request

if TYPE_CHECKING:
    from tandem.worker.engine.guides.frames import Answer
    from tandem.worker.engine.guides.host import GuideHost

STATE_WAIT_SECONDS = 0.003  # for matchers to say whether a grammar has ended; later, it costs a row of the next step

Share = Callable[["list[Answer]"], "list[Answer]"]


class Grammars:
    """Compiles guides and drives matchers; used by the engine's thread only."""

    def __init__(
        self,
        vocabulary_size: int,
        eos_ids: Sequence[int],
        *,
        limits: GuideLimits | None = None,
        leads: bool = True,
        share: Share | None = None,
    ) -> None:
        """With `leads`, this is rank 0. `share` gives all ranks the answers that rank 0 calls it with."""
        self._vocabulary_size = vocabulary_size
        self.eos_ids = list(eos_ids)
        self._limits = limits or GuideLimits()
        self._leads, self._share = leads, share
        self._host: GuideHost | None = None
        self._matchers: dict[int, Matcher] = {}  # that were asked, by session
        self._sessions = 0
        self._results: list[CompileResult] = []
        self._failed: list[int] = []  # sessions that were asked without a host
        self.patience = Patience()
        self.statistics = EngineStatistics()  # the engine's, once it has one

    @property
    def words(self) -> int:
        """Returns the width of a mask, in 32-bit words."""
        return -(-self._vocabulary_size // 32)

    def load(self, pieces: Sequence[bytes], special_ids: Sequence[int]) -> None:
        """Loads the vocabulary: the bytes of each id, and which ids are no text; returns at once."""
        if not self._leads:
            return
        from tandem.worker.engine.guides.frames import Words
        from tandem.worker.engine.guides.host import GuideHost

        assert self._host is None, "an engine has one vocabulary"
        words = Words(self._vocabulary_size, self.eos_ids, list(pieces), list(special_ids))
        self._host = GuideHost(words, self._limits, self.statistics)

    def stop(self) -> None:
        """Ends the processes of all guides."""
        if self._host is not None:
            self._host.stop()
            self._host = None

    # --- compiling

    def compile(self, serial: int, guide: Guide, resumed: Sequence[int] = (), caller: str = "") -> None:
        """Begins to compile a guide, when it is the caller's turn, and to check that it allows the output `resumed`;
        `take_compiled` returns the result on rank 0."""
        if not self._leads:
            return
        if self._host is None:
            self._results.append(CompileResult(serial, CompileOutcome.UNAVAILABLE, NO_VOCABULARY))
        else:
            self._host.compile(serial, guide, np.asarray(resumed, dtype=np.int32).tobytes(), caller)

    def forget(self, serial: int) -> None:
        """Drops a compilation that nobody waits for any more."""
        if self._host is not None:
            self._host.forget(serial)

    @property
    def busy(self) -> bool:
        """Tells whether answers are on their way."""
        return bool(self._results) or (self._host is not None and self._host.busy)

    def wait(self, seconds: float) -> None:
        """Waits until something has come, or for so long."""
        if self._host is not None and not self._results:
            self._host.poll(seconds)

    def take_compiled(self) -> list[CompileResult]:
        """Returns the compilations that are done, without waiting."""
        results, self._results = self._results, []
        if self._host is not None:
            self._host.poll(0)
            results += self._host.results()
        return results

    @property
    def processes(self) -> int:
        """Returns how many guides have a process."""
        return self._host.processes if self._host is not None else 0

    @property
    def memory(self) -> int:
        """Returns the bytes that the processes of guides take beside what they share."""
        return self._host.memory if self._host is not None else 0

    # --- matchers

    def matcher(self, guide: Guide) -> Matcher:
        """Makes a matcher that has consumed nothing; its process is asked when it is first needed."""
        self._sessions += 1
        return Matcher(guide, self._sessions)

    def want(self, requests: Sequence[Request]) -> None:
        """Tells matchers their requests' output, where that was not done, and then asks for their next masks: a guide's
        process does one thing after the other, and whether grammars have ended is needed first."""
        for request in [request for request in requests if self._tell(request)]:
            matcher = request.matcher
            if self._host is not None and matcher is not None and request.output_tokens < request.stopping.max_tokens:
                self._host.fill(matcher.session)

    def ask(self, requests: Sequence[Request]) -> None:
        """Does what `want` does, and waits a little for whether their grammars have ended."""
        self.want(requests)
        self.hear(STATE_WAIT_SECONDS, lambda: all(r.matcher is not None and r.matcher.known for r in requests))

    def listen(self, requests: Sequence[Request], seconds: float) -> None:
        """Reads the answers of the matchers that steps wait for, after waiting so long at most."""
        waiting = [request for request in requests if _waits(request)]
        if waiting:
            self.hear(seconds, lambda: not all(map(_waits, waiting)))

    @staticmethod
    def hold(requests: Sequence[Request]) -> None:
        """Marks the requests that the next steps go without."""
        for request in requests:
            matcher = request.matcher
            assert matcher is not None
            full = not matcher.decided and request.output_tokens >= request.stopping.max_tokens > 0
            matcher.held = matcher.wait() or (full and matcher.asked == _position(request))

    def _tell(self, request: Request) -> bool:
        """Tells a matcher the output that it has not seen; returns whether there was any."""
        matcher = request.matcher
        assert matcher is not None
        position = _position(request)
        if matcher.asked == position or matcher.error:
            return False
        matcher.asked = position
        self._matchers[matcher.session] = matcher
        if not self._leads:
            return False
        if self._host is None:
            self._failed.append(matcher.session)
            return False
        output = request.known[request.prompt_tokens + _unguided(request) :]
        self._host.advance(matcher.session, matcher.guide, output, forced=request.drafting is not None)
        return True

    def walk(self, request: Request, drafts: Sequence[int]) -> None:
        """Asks for masks behind drafts; what was wanted before is asked already."""
        matcher = request.matcher
        assert matcher is not None and matcher.asked == _position(request)
        matcher.drafts, matcher.walks, matcher.walked = list(drafts), matcher.walks + 1, False
        if self._host is not None and not matcher.error:
            self._host.walk(matcher.session, matcher.walks, drafts)

    def close(self, request: Request) -> None:
        """Closes the matcher of a request that is over."""
        matcher = request.matcher if request.thinking is None else request.thinking.guide
        if matcher is not None and self._matchers.pop(matcher.session, None) is not None and self._host is not None:
            self._host.close(matcher.session)

    # --- hearing

    def hear(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Brings matchers up to date, after waiting so long at most until that is `enough`. All ranks must call it at
        the same points."""
        heard: list[Answer] = []
        if self._leads:
            began = time.monotonic()
            deadline = began + seconds
            while True:
                left = deadline - time.monotonic()
                fresh = self._heard(0.0 if enough() else left)
                for answer in fresh:
                    self._apply(answer)
                heard += fresh
                if left <= 0 or enough():
                    break
            self.patience.waited(time.monotonic() - began)
        if self._share is not None:
            heard = self._share(heard)
            if not self._leads:
                for answer in heard:
                    self._apply(answer)

    def _heard(self, seconds: float) -> list[Answer]:
        if self._host is not None:
            self._host.poll(seconds)
            return self._host.answers()
        from tandem.worker.engine.guides.frames import Answer

        failed, self._failed = self._failed, []
        return [Answer(session, -1, "failed", error=NO_VOCABULARY, ours=True) for session in failed]

    def _apply(self, answer: Answer) -> None:
        matcher = self._matchers.get(answer.session)
        if matcher is None:
            return
        match answer.what:
            case "failed":
                matcher.error, matcher.ours, matcher.known = answer.error, answer.ours, True
            case "state" if answer.position == matcher.asked:
                matcher.known, matcher.ended, matcher.error = True, answer.ended, answer.error
                matcher.forced = answer.forced
            case "mask" if answer.position == matcher.asked:
                matcher.error = answer.error
                matcher.mask = self._mask(answer.masks[0]) if answer.masks else None
            case "walk" if answer.position == matcher.walks and matcher.drafts:
                matcher.walked, matcher.error = True, answer.error
                matcher.draft_masks, matcher.draft_ends = [self._mask(each) for each in answer.masks], answer.ends

    def _mask(self, bits: bytes) -> npt.NDArray[np.int32]:
        return np.frombuffer(bits, dtype=np.int32)[: self.words]


def _position(request: Request) -> int:
    """Counts the output tokens that its matcher is told."""
    return request.output_tokens - _unguided(request)


def _unguided(request: Request) -> int:
    return request.thinking.unguided if request.thinking is not None else 0


def _waits(request: Request) -> bool:
    """Tells whether steps go without a request until its matcher answers."""
    matcher = request.matcher
    assert matcher is not None
    if not matcher.known and not matcher.decided:
        return matcher.asked == _position(request)
    return matcher.late and not matcher.ready
