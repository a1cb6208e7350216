"""Runs the process of one guide: compiles it, and has a matcher for each request that uses it.

It does one thing at a time, in the order asked, so that the engine knows by what is not answered which request it is
that takes too long or brings the process down.
"""

from __future__ import annotations

import array
import contextlib
import os
import re
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.worker.engine.guides.frames import (
    Advance,
    Answer,
    Asked,
    Channel,
    ChannelClosedError,
    Check,
    Checked,
    Close,
    Compile,
    Compiled,
    Fill,
    Forked,
    Walk,
)
from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.guides.kinship import end_with_parent

if TYPE_CHECKING:
    import llguidance

_CONTROL = re.compile(rb"\xff\[([0-9]+)\]")  # how llguidance writes a control token among bytes
_FORCED_BYTES = 1024  # that must follow: more than are ever drafted
_OOM_SCORE = "900"  # when memory runs out, the kernel ends guides before engines


def keep(
    connection: socket.socket, tokenizer: llguidance.LLTokenizer | str, memory_bytes: int, fork_server: int
) -> None:
    """Serves one guide until the engine leaves; `tokenizer` may be the reason why there is none, `fork_server` is the
    process that has forked this one."""
    end_with_parent(fork_server)
    _bound(memory_bytes)
    channel: Channel[Asked] = Channel(connection, Asked)
    channel.send(Forked(os.getpid()))
    keeper = _Keeper(channel, tokenizer)
    try:
        while True:
            for message in channel.receive():
                keeper.obey(message)
    except ChannelClosedError:
        return


def _bound(memory_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):  # a container may forbid it
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "ascii")


class _Keeper:
    """Holds the guide, once it is compiled, and where each request stands in it."""

    def __init__(self, channel: Channel[Asked], tokenizer: llguidance.LLTokenizer | str) -> None:
        self._channel, self._tokenizer = channel, tokenizer
        self._compiled: llguidance.LLMatcher | None = None
        self._matchers: dict[int, llguidance.LLMatcher] = {}

    def obey(self, message: Asked) -> None:
        """Carries out a message and answers it."""
        match message:
            case Compile(kind, text):
                self._channel.send(self._compile(Guide(kind, text)))
            case Check(serial, output):
                self._channel.send(Checked(serial, self._fresh().validate_tokens(_ids(output))))
            case Advance():
                self._channel.send(self._advance(message))
            case Fill(session, position):
                self._channel.send(self._fill(session, position))
            case Walk(session, number, drafts):
                self._channel.send(self._walk(session, number, drafts))
            case Close(session):
                self._matchers.pop(session, None)
        self._say_all()

    def _compile(self, guide: Guide) -> Compiled:
        if isinstance(self._tokenizer, str):
            return Compiled(self._tokenizer, unavailable=True)
        from tandem.worker.engine.guides.compiling import GuideError, compile_guide

        try:
            self._compiled = compile_guide(guide, self._tokenizer)
        except GuideError as error:
            return Compiled(str(error))
        except MemoryError:
            return Compiled("it needs too much memory")
        except BaseException as error:  # a Rust panic is no Exception
            return Compiled(f"it cannot be compiled: {_described(error)}")
        return Compiled("")

    def _fresh(self) -> llguidance.LLMatcher:
        assert self._compiled is not None
        copy = self._compiled.deep_copy()
        copy.reset()
        return copy

    def _advance(self, asked: Advance) -> Answer:
        session, position = asked.session, asked.position
        matcher = self._matchers.get(session)
        if matcher is None:
            matcher = self._matchers[session] = self._fresh()
        state = Answer(session, position, "state")
        try:
            for token in _ids(asked.tokens):
                matcher.consume_token(token)
            state.ended, state.error = matcher.is_stopped(), _error_of(matcher)
            if asked.forced and not state.ended:
                state.forced = self._forced(matcher)
        except BaseException as error:
            state.error = _described(error)
        return state

    def _forced(self, matcher: llguidance.LLMatcher) -> list[int]:
        """Returns ids that spell what must follow. A copy is asked: what it finds stays with it, even that it is too
        much."""
        assert not isinstance(self._tokenizer, str)
        text = matcher.deep_copy().compute_ff_bytes()[:_FORCED_BYTES]
        ids: list[int] = []
        for place, part in enumerate(_CONTROL.split(text)):
            ids += [int(part)] if place % 2 else self._tokenizer.tokenize_bytes(part)
        return ids

    def _fill(self, session: int, position: int) -> Answer:
        matcher = self._matchers[session]
        mask = Answer(session, position, "mask")
        try:
            mask.error = _error_of(matcher)
            if not mask.error:
                mask.masks = [matcher.compute_bitmask()]
                mask.error = _error_of(matcher)
        except BaseException as error:
            mask.error = _described(error)
        return mask

    def _walk(self, session: int, number: int, drafts: list[int]) -> Answer:
        answer = Answer(session, number, "walk")
        matcher = self._matchers[session]
        walked = 0
        try:
            for draft in drafts:
                if not matcher.validate_tokens([draft]):
                    break
                matcher.consume_token(draft)
                walked += 1
                answer.ends.append(matcher.is_stopped())
                if answer.ends[-1]:
                    break
                answer.masks.append(matcher.compute_bitmask())
            answer.error = _error_of(matcher)
            if not answer.error:
                matcher.rollback(walked)
        except BaseException as error:
            answer.error = _described(error)
        return answer

    def _say_all(self) -> None:
        while not self._channel.flush():  # the socket blocks, so that this waits for the engine to read
            pass


def _ids(output: bytes) -> list[int]:
    return array.array("i", output).tolist()


def _error_of(matcher: llguidance.LLMatcher) -> str:
    error = matcher.get_error()
    if error.startswith("NoExtensionBias"):
        return "no id of the vocabulary leads to an answer that it allows"
    return " ".join(error.removesuffix("<non-verbose/>").split())


def _described(error: BaseException) -> str:
    from tandem.worker.engine.guides.compiling import one_line

    return one_line(f"{type(error).__name__}: {error}")
