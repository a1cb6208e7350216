"""Owns the guides' processes: starts them, asks them, ends those that nobody needs or that take too much.

It belongs to the engine's thread and never blocks but in `poll`. Compilation is shared between callers in turn; a
request that runs has its process made again at once.
"""

from __future__ import annotations

import logging
import selectors
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from tandem.worker.engine.guides.compile_queue import CompileQueue, Wanted
from tandem.worker.engine.guides.forking import Forking
from tandem.worker.engine.guides.frames import (
    Advance,
    Answer,
    ChannelClosedError,
    Check,
    Checked,
    Close,
    Compile,
    Compiled,
    Fill,
    Forked,
    Said,
    Walk,
    Words,
)
from tandem.worker.engine.guides.guide import NO_VOCABULARY, Guide
from tandem.worker.engine.guides.limits import (
    ADMITTED_SHARE,
    KEPT_GUIDES,
    KEPT_SECONDS,
    MAX_DEATHS,
    GuideLimits,
)
from tandem.worker.engine.guides.outcome import CompileOutcome, CompileResult
from tandem.worker.engine.guides.process import GuideProcess, Owed
from tandem.worker.engine.load import EngineStatistics

logger = logging.getLogger("tandem.worker.engine")

Tokens = npt.NDArray[np.int32]

FORK_SERVER_SECONDS = 120.0  # to read the vocabulary and fork for the first time
REPLAY_SECONDS = 0.005  # a token of output that is told again, beside the budget of its mask
GRACE_SECONDS = 0.25  # for what nobody waits for any more to come to its end by itself
_NO_PROCESS = "the processes that guided decoding needs cannot be started"


@dataclass(slots=True)
class _Session:
    """Remembers what the matcher of a request was asked last, so that another process can be asked again."""

    guide: Guide
    output: Tokens = field(default_factory=lambda: np.empty(0, np.int32))  # a view of the request's
    told: int = 0  # of it, to the process
    mask: bool = False
    forced: bool = False
    walk: tuple[int, list[int]] | None = None  # number and drafts
    answered: bool = True
    process: GuideProcess | None = None
    deaths: int = 0


class GuideHost:
    """Runs the guides' processes. Serials and sessions are the caller's numbers."""

    def __init__(self, words: Words, limits: GuideLimits, statistics: EngineStatistics) -> None:
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._processes: OrderedDict[Guide, GuideProcess] = OrderedDict()  # the latest used last
        self._sessions: dict[int, _Session] = {}
        self._queue = CompileQueue()
        self._compiling: dict[int, Wanted] = {}  # begun, by serial
        self._results: list[CompileResult] = []
        self._answers: list[Answer] = []
        self.statistics = statistics
        self._forking = Forking(words, limits.memory_bytes, self._selector)

    # --- what is asked

    def compile(self, serial: int, guide: Guide, output: bytes, caller: str) -> None:
        """Begins to compile a guide, in the caller's turn, and to check that it allows `output` (int32). A guide that
        was compiled for somebody else, or is being compiled, takes no turn."""
        wanted = Wanted(serial, guide, output, caller)
        if guide in self._processes:
            self._begin(wanted)
        else:
            self._queue.add(wanted)
            self._start_compilations()

    def forget(self, serial: int) -> None:
        """Drops a compilation that nobody waits for any more."""
        self._results = [result for result in self._results if result.serial != serial]
        self._queue.forget(serial)
        begun = self._compiling.pop(serial, None)
        if begun is None:
            return
        process = self._processes.get(begun.guide)
        if process is not None and not process.compiled:
            others = [wanted for wanted in self._compiling.values() if wanted.guide == begun.guide]
            if others:
                others[0].leads |= begun.leads
            elif not process.sessions:
                self._drop(process)
        self._start_compilations()

    def advance(self, session: int, guide: Guide, output: Tokens, *, forced: bool = False) -> None:
        """Sends a matcher the whole output so far; the answer is a "state"."""
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Session(guide)
        known.output, known.mask, known.forced, known.walk = output, False, forced, None
        known.answered = False
        self._send(session, known)

    def fill(self, session: int) -> None:
        """Asks for the mask of what may come next; the answer is a "mask"."""
        known = self._sessions[session]
        known.mask, known.answered = True, False
        if known.process is None:
            self._send(session, known)
        elif known.process.compiled:
            self._send_fill(session, known)

    def walk(self, session: int, number: int, drafts: Sequence[int]) -> None:
        """Asks for the masks behind drafts; the answer is a "walk"."""
        known = self._sessions[session]
        known.walk = (number, list(drafts))
        known.answered = False
        if known.process is None:
            self._send(session, known)
        elif known.process.compiled:
            self._send_walk(session, known)

    def close(self, session: int) -> None:
        """Closes the session of a request that is over."""
        known = self._sessions.pop(session, None)
        if known is None or known.process is None:
            return
        process = known.process
        process.sessions.discard(session)
        if process.compiled:
            process.ask(Close(session))
        if self._processes.get(process.guide) is process:
            self._processes.move_to_end(process.guide)

    def stop(self) -> None:
        """Ends all processes."""
        for process in list(self._processes.values()):
            self._drop(process)
        self._forking.stop()
        self._selector.close()

    # --- what is answered

    @property
    def busy(self) -> bool:
        """Tells whether answers are on their way."""
        return bool(self._compiling or self._queue or self._results or self._answers) or any(
            process.owed or not process.forked for process in self._processes.values()
        )

    @property
    def processes(self) -> int:
        """Counts the guides that have a process, or will have one soon."""
        return len(self._processes)

    @property
    def memory(self) -> int:
        """Returns the bytes that all guides' processes take beside what they share."""
        return sum(process.memory for process in self._processes.values())

    def results(self) -> list[CompileResult]:
        """Returns the compilations that are done."""
        results, self._results = self._results, []
        return results

    def answers(self) -> list[Answer]:
        """Returns the answers of matchers."""
        answers, self._answers = self._answers, []
        return answers

    def poll(self, seconds: float) -> None:
        """Reads what has come, after waiting for something so long at most."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.data is None:
                self._fork_server_ended()
            elif key.data.channel.socket.fileno() >= 0:  # else it was dropped in this very turn
                self._hear(key.data)
        self._forking.flush()
        for process in list(self._processes.values()):
            if process.idle or self._processes.get(process.guide) is not process:
                continue
            process.channel.flush()
            process.look()
            if process.owed and process.waited > GRACE_SECONDS and not self._needed(process):
                self._drop(process)
            elif process.over_budget:
                self._over_budget(process)
            elif process.starved:
                self._died(process, "does not answer")
            elif not process.forked and process.waited > self._fork_seconds:
                self._fork_server_ended()
                break
        self._collect()
        self._start_compilations()

    # --- processes

    def _fork_server_ended(self) -> None:
        self._forking.ended()
        for process in list(self._processes.values()):
            if self._processes.get(process.guide) is process:
                self._died(process, "ended with what started it")

    @property
    def _fork_seconds(self) -> float:
        """Returns how long a process may take to be forked; a fork server that has forked takes milliseconds."""
        return self._limits.starved_seconds if self._forking.proven else FORK_SERVER_SECONDS

    def _process(self, guide: Guide) -> GuideProcess | None:
        """Returns the guide's process, a new one if need be; None if none can be started."""
        process = self._processes.get(guide)
        if process is None:
            if not self._forking.start():
                return None
            try:
                process = GuideProcess(guide, self._limits.starved_seconds)
            except OSError as error:  # of descriptors, there are only so many
                logger.error("a guide's process cannot be started: %s", error)
                return None
            self._processes[guide] = process
            self._selector.register(process.channel.socket, selectors.EVENT_READ, process)
            self._forking.fork(process)
        self._processes.move_to_end(guide)
        return process

    def _collect(self) -> None:
        """Ends the processes that nobody needs and that are too many, too large together or unused for long; then the
        largest of the others, where they take more than all may have."""
        idle = [process for process in self._processes.values() if process.compiled and not self._needed(process)]
        kept = sum(process.memory for process in idle)
        total = self.memory
        for number, process in enumerate(idle):  # the one that was used longest ago first
            if not (
                len(idle) - number > KEPT_GUIDES
                or kept > self._limits.memory_bytes
                or total > self._limits.total_memory_bytes
                or process.waited > KEPT_SECONDS
            ):
                break
            kept, total = kept - process.memory, total - process.memory
            self._drop(process)
        while total > self._limits.total_memory_bytes and self._processes:
            largest = max(self._processes.values(), key=lambda process: process.memory)
            total -= largest.memory
            self.statistics.guide_process_deaths += 1
            logger.warning("ended the largest guide process, which took %d MiB", largest.memory >> 20)
            why = f"{self._together()}, and this one takes the most: ask for a smaller one, or again later"
            self._refuse(largest, CompileOutcome.EXHAUSTED, why)

    @property
    def _full(self) -> bool:
        """Tells whether those in use leave no room for another guide."""
        used = sum(process.memory for process in self._processes.values() if self._needed(process))
        return used > ADMITTED_SHARE * self._limits.total_memory_bytes

    def _together(self) -> str:
        return (
            f"the guides in use take {self.memory >> 20} MiB of memory together; the limit here is "
            f"{self._limits.total_memory_bytes >> 20} MiB"
        )

    def _needed(self, process: GuideProcess) -> bool:
        return bool(process.sessions) or any(wanted.guide == process.guide for wanted in self._compiling.values())

    def _drop(self, process: GuideProcess) -> None:
        self._processes.pop(process.guide, None)
        self._selector.unregister(process.channel.socket)
        process.kill()

    # --- compilation

    def _start_compilations(self) -> None:
        for wanted in self._queue.start(tuple(self._compiling.values())):
            self._begin(wanted)

    def _begin(self, wanted: Wanted) -> None:
        if wanted.guide not in self._processes and self._full:
            self._finish(wanted, CompileOutcome.EXHAUSTED, f"{self._together()}; ask again later")
            return
        process = self._process(wanted.guide)
        if process is None:
            self._finish(wanted, CompileOutcome.UNAVAILABLE, _NO_PROCESS)
            return
        self._compiling[wanted.serial] = wanted
        if process.compiled:
            self._check(process, wanted)

    def _check(self, process: GuideProcess, wanted: Wanted) -> None:
        if wanted.output:
            owed = Owed("checked", wanted.serial, self._limits.compile_seconds)
            process.ask(Check(wanted.serial, wanted.output), owed)
        else:
            self._finish(wanted, CompileOutcome.COMPILED)

    def _finish(self, wanted: Wanted, outcome: CompileOutcome, error: str = "") -> None:
        self._compiling.pop(wanted.serial, None)
        self._results.append(CompileResult(wanted.serial, outcome, error))

    # --- sessions

    def _send(self, session: int, known: _Session) -> None:
        process = known.process
        if process is None:
            process = self._process(known.guide)
            if process is None:
                self._fail(session, known, _NO_PROCESS, ours=True)
                return
            known.process, known.told = process, 0
            process.sessions.add(session)
        if not process.compiled:
            return
        position = len(known.output)
        tokens = known.output[known.told :].astype(np.int32).tobytes()
        budget = self._limits.mask_seconds + REPLAY_SECONDS * (position - known.told)
        known.told = position
        process.ask(Advance(session, position, tokens, known.forced), Owed("state", session, budget))
        if known.mask:
            self._send_fill(session, known)
        if known.walk is not None:
            self._send_walk(session, known)

    def _send_fill(self, session: int, known: _Session) -> None:
        assert known.process is not None
        owed = Owed("mask", session, self._limits.mask_seconds)
        known.process.ask(Fill(session, len(known.output)), owed)

    def _send_walk(self, session: int, known: _Session) -> None:
        assert known.walk is not None and known.process is not None
        number, drafts = known.walk
        budget = self._limits.mask_seconds * len(drafts)
        known.process.ask(Walk(session, number, drafts), Owed("walk", session, budget))

    def _fail(self, session: int, known: _Session, why: str, *, ours: bool = False) -> None:
        known.answered = True
        if known.process is not None:
            known.process.sessions.discard(session)
            known.process = None
        self._answers.append(Answer(session, len(known.output), "failed", error=why, ours=ours))

    # --- hearing

    def _hear(self, process: GuideProcess) -> None:
        try:
            messages = process.channel.receive()
        except ChannelClosedError:
            self._died(process, "ended")
            return
        except msgspec.DecodeError:  # what a stranger wrote may have broken more than itself
            self._died(process, "said what cannot be read")
            return
        for message in messages:
            self._take(process, message)
            if self._processes.get(process.guide) is not process:
                return

    def _take(self, process: GuideProcess, message: Said) -> None:
        match message:
            case Forked():
                self._forking.worked()
                process.mark_forked(message)
                process.ask(Compile(*process.guide), Owed("compiled", 0, self._limits.compile_seconds))
            case Compiled():
                process.answered()
                self._compiled(process, message)
            case Checked(serial, allowed):
                process.answered()
                wanted = self._compiling.get(serial)
                if wanted is not None:
                    whole = allowed >= len(wanted.output) // 4
                    error = "" if whole else f"the guide does not allow resumed_output_ids[{allowed}]"
                    self._finish(wanted, CompileOutcome.COMPILED if whole else CompileOutcome.REFUSED, error)
            case Answer():
                process.answered()
                known = self._sessions.get(message.session)
                if known is None:
                    return
                known.answered = not any(
                    owed.whose == message.session and owed.what != "checked" for owed in process.owed
                )
                if known.answered:
                    known.deaths = 0
                self._answers.append(message)

    def _compiled(self, process: GuideProcess, compiled: Compiled) -> None:
        if compiled.unavailable:
            self._refuse(process, CompileOutcome.UNAVAILABLE, f"{NO_VOCABULARY}: {compiled.error}", ours=True)
            return
        if compiled.error:
            self._refuse(process, CompileOutcome.REFUSED, compiled.error)
            return
        process.compiled = True
        waiting, sessions = self._users(process)
        for wanted in waiting:
            self._check(process, wanted)
        for session, known in sessions:
            if not known.answered:
                self._send(session, known)

    def _users(self, process: GuideProcess) -> tuple[list[Wanted], list[tuple[int, _Session]]]:
        waiting = [wanted for wanted in self._compiling.values() if wanted.guide == process.guide]
        return waiting, [(session, self._sessions[session]) for session in sorted(process.sessions)]

    # --- ends

    def _refuse(self, process: GuideProcess, outcome: CompileOutcome, why: str, *, ours: bool = False) -> None:
        """Ends a process and fails all that use it."""
        waiting, sessions = self._users(process)
        self._drop(process)
        for wanted in waiting:
            self._finish(wanted, outcome, why)
        for session, known in sessions:
            self._fail(session, known, why, ours=ours)

    def _over_budget(self, process: GuideProcess) -> None:
        """Ends a process whose request has used up its budget; the others get another process."""
        owed = process.owed[0]
        if owed.what in ("compiled", "checked"):
            why = f"it takes more than {self._limits.compile_seconds:g} s to compile, which is the limit here"
        else:
            self.statistics.guide_masks_over_budget += 1
            why = f"one mask takes more than {self._limits.mask_seconds:g} s, which is the limit here"
        self._end(process, owed, why, "takes too long", CompileOutcome.OVER_BUDGET, spared=0)

    def _died(self, process: GuideProcess, how: str) -> None:
        """Ends a process that has died, or is to, for another reason than its budget."""
        owed = process.owed[0] if process.owed else None
        why = (
            f"its process has ended twice, most likely because it nests too deeply or needs more than "
            f"{self._limits.memory_bytes >> 20} MiB"
        )
        self._end(process, owed, why, how, CompileOutcome.CRASHED, spared=MAX_DEATHS)

    def _end(
        self, process: GuideProcess, owed: Owed | None, why: str, how: str, outcome: CompileOutcome, spared: int
    ) -> None:
        """Ends a process. What it worked on fails after more than `spared` deaths; everything else that it was asked is
        asked again."""
        self._drop(process)
        waiting, sessions = self._users(process)
        if waiting or sessions:
            self.statistics.guide_process_deaths += 1
            doing = f"at a {owed.what} answer" if owed is not None else "at rest"
            logger.warning("a guide's process %s (%s, %d requests)", how, doing, len(waiting) + len(sessions))
        compiling = owed is not None and owed.what == "compiled"
        for wanted in waiting:
            if compiling or (owed is not None and owed.what == "checked" and owed.whose == wanted.serial):
                wanted.deaths += 1
                if wanted.deaths > spared:
                    self._finish(wanted, outcome, why)
                    continue
            self._begin(wanted)
        for session, known in sessions:
            known.process, known.told = None, 0
            blamed = owed is not None and owed.what in ("state", "mask", "walk") and owed.whose == session
            if blamed or compiling:
                known.deaths += 1
                if known.deaths > spared:
                    self._fail(session, known, why)
                    continue
            if not known.answered:
                self._send(session, known)
