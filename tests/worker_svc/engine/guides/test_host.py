"""The processes of guides, real ones, on a vocabulary of letters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest

from tandem.worker.engine.guides.frames import Answer, Words
from tandem.worker.engine.guides.guide import NO_VOCABULARY, Guide
from tandem.worker.engine.guides.host import GuideHost
from tandem.worker.engine.guides.limits import KEPT_GUIDES, GuideLimits
from tandem.worker.engine.guides.outcome import CompileOutcome, CompileResult
from tandem.worker.engine.load import EngineStatistics
from tests.integration.hostile_guides import SLOW

pytest.importorskip("llguidance")

SECONDS = 120  # a bound for a machine under load, not an expectation
PIECES = [bytes([i]) for i in range(128)]
SLOW_COMPILE = SLOW["wildcards"]["regex"]
LETTERS = Guide("regex", "[a-z]{3}[0-9]*")


def make_host(**limits: float) -> GuideHost:
    words = Words(len(PIECES), [0], PIECES, [0])
    return GuideHost(words, GuideLimits(**limits), EngineStatistics())  # type: ignore[arg-type]


@pytest.fixture
def host() -> Iterator[GuideHost]:
    host = make_host()
    yield host
    host.stop()


class Heard:
    """What a host has said so far."""

    def __init__(self, host: GuideHost) -> None:
        self._host = host
        self.results: dict[int, CompileResult] = {}
        self.answers: list[Answer] = []

    def until(self, enough: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not enough():
            assert time.monotonic() < deadline, "it never comes"
            self._host.poll(0.05)
            self.results.update((result.serial, result) for result in self._host.results())
            self.answers += self._host.answers()

    def mask(self, session: int) -> list[int]:
        """The ids of the last mask of a session."""
        self.until(lambda: any(answer.session == session and answer.masks for answer in self.answers))
        masks = [answer.masks[0] for answer in self.answers if answer.session == session and answer.masks]
        return np.flatnonzero(np.unpackbits(np.frombuffer(masks[-1], np.uint8), bitorder="little")).tolist()

    def failure(self, session: int) -> str:
        """Why a session has failed. Another's answer may come behind it in the same turn, or before it."""
        self.until(lambda: any(answer.session == session and answer.what == "failed" for answer in self.answers))
        return next(answer.error for answer in self.answers if answer.session == session and answer.what == "failed")


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def tell(host: GuideHost, session: int, guide: Guide, output: np.ndarray, *, forced: bool = False) -> None:
    host.advance(session, guide, output, forced=forced)
    host.fill(session)


def large(number: int) -> Guide:
    """A guide whose process takes some 30 MB, whatever the number."""
    properties = {f"{number}p{i}": {"type": "integer"} for i in range(2000)}
    return Guide("json_schema", json.dumps({"type": "object", "properties": properties, "additionalProperties": False}))


@pytest.fixture
def large_bytes(host: GuideHost) -> int:
    """What one of these takes."""
    heard = Heard(host)
    tell(host, 1, large(1), ids(""))
    heard.mask(1)
    size = host.memory
    host.stop()
    return size


def processes() -> list[psutil.Process]:
    """Of guides, which are children of a fork server."""
    servers = [p for p in psutil.Process().children() if "tandem.worker.engine.guides.fork_server" in p.cmdline()]
    return [child for server in servers for child in server.children()]


def test_a_matcher_says_what_may_come_next_and_whether_the_grammar_has_ended(host: GuideHost):
    heard = Heard(host)
    tell(host, 1, Guide("regex", "[a-c]{3}"), ids("ab"))
    assert heard.mask(1) == ids("abc").tolist()
    tell(host, 1, Guide("regex", "[a-c]{3}"), ids("abc"))
    heard.until(lambda: any(answer.ended for answer in heard.answers))
    host.walk(1, 1, [])
    tell(host, 2, Guide("regex", "xyz[0-9]"), ids(""), forced=True)
    heard.until(lambda: any(answer.forced for answer in heard.answers))
    assert [answer.forced for answer in heard.answers if answer.forced] == [ids("xyz").tolist()]


def test_what_is_forced_has_control_tokens_in_it_and_leaves_nothing_behind(host: GuideHost):
    heard = Heard(host)
    controlled = Guide("grammar", 'start: "ab" <[0]> "c"')
    for output, may, forced in (("", "a", [97, 98, 0, 99]), ("a", "b", [98, 0, 99]), ("ab", "\0", [0, 99])):
        heard.answers.clear()
        tell(host, 1, controlled, ids(output), forced=True)
        assert heard.mask(1) == ids(may).tolist()
        assert [answer.forced for answer in heard.answers if answer.what == "state"] == [forced]
    tell(host, 2, Guide("grammar", 'start: "a" start'), ids(""), forced=True)  # it never ends
    assert heard.mask(2) == ids("a").tolist()
    assert not any(answer.error for answer in heard.answers)


def test_a_guide_that_nothing_can_match_says_so(host: GuideHost):
    heard = Heard(host)
    tell(host, 1, Guide("json_schema", '{"$ref": "#"}'), ids(""))
    heard.until(lambda: any(answer.error for answer in heard.answers))
    (error,) = (answer.error for answer in heard.answers if answer.error)
    assert error == "no id of the vocabulary leads to an answer that it allows"


def test_masks_behind_drafts_go_as_far_as_drafts_are_allowed(host: GuideHost):
    heard = Heard(host)
    guide = Guide("regex", "ab[0-9]")
    tell(host, 1, guide, ids(""))
    for number, (drafts, masks, ends) in enumerate(
        [("ab", 2, [False, False]), ("ax", 1, [False]), ("x", 0, []), ("ab7", 2, [False, False, True])]
    ):
        host.walk(1, number, ids(drafts).tolist())
        heard.until(lambda number=number: [a for a in heard.answers if a.what == "walk" and a.position == number])
        assert (len(heard.answers[-1].masks), heard.answers[-1].ends) == (masks, ends), drafts
    tell(host, 1, guide, ids("a"))  # drafts have left nothing behind
    heard.answers.clear()
    assert heard.mask(1) == ids("b").tolist()


def test_a_guide_is_compiled_once_for_all_who_want_it_and_output_is_checked(host: GuideHost):
    heard = Heard(host)
    for serial, output in enumerate(["", "abc", "abc12", "ab1", ""]):
        host.compile(serial, LETTERS, ids(output).tobytes(), f"caller {serial}")
    host.compile(9, Guide("regex", "a(b"), b"", "")
    heard.until(lambda: len(heard.results) == 6)
    assert [heard.results[serial].outcome for serial in (0, 1, 2, 4)] == [CompileOutcome.COMPILED] * 4
    assert heard.results[3].error == "the guide does not allow resumed_output_ids[2]"
    assert heard.results[9].outcome is CompileOutcome.REFUSED
    assert "unclosed group" in heard.results[9].error
    heard.until(lambda: len(processes()) == 1)


def test_one_caller_does_not_hold_all_compilers():
    host = make_host(compile_seconds=600)
    try:
        heard = Heard(host)
        for serial in range(8):
            host.compile(serial, Guide("regex", SLOW_COMPILE + "a" * serial), b"", "slow")
        for serial in range(10, 14):
            host.compile(serial, Guide("regex", "a" * serial), b"", "quick")
        heard.until(lambda: {10, 11, 12, 13} <= set(heard.results))
        assert not any(serial < 8 for serial in heard.results)
    finally:
        host.stop()


def test_a_compilation_that_nobody_waits_for_is_ended():
    host = make_host(compile_seconds=600)
    try:
        heard = Heard(host)
        for serial in range(3):
            host.compile(serial, Guide("regex", SLOW_COMPILE + "a" * serial), b"", "")
        heard.until(lambda: len(processes()) == 2)
        first = processes()
        host.forget(0)
        host.forget(1)
        heard.until(lambda: processes() and not set(first) & set(processes()))  # the caller's next
        host.forget(2)
        assert not host.busy
        heard.until(lambda: not processes())
    finally:
        host.stop()


def test_what_takes_too_much_processor_time_is_refused():
    host = make_host(compile_seconds=0.3, mask_seconds=0.3)
    try:
        heard = Heard(host)
        host.compile(1, Guide("regex", SLOW_COMPILE), b"", "")
        heard.until(lambda: heard.results)
        assert heard.results[1].outcome is CompileOutcome.OVER_BUDGET
        assert "more than 0.3 s to compile" in heard.results[1].error
        tell(host, 1, Guide("regex", SLOW["powers"]["regex"]), ids(""), forced=True)
        assert "one mask takes more than 0.3 s" in heard.failure(1)
        assert host.statistics.guide_masks_over_budget == 1
    finally:
        host.stop()


def test_what_gets_little_of_a_busy_machine_has_its_whole_budget():
    host = make_host(compile_seconds=0.3, starved_seconds=1.0)
    guide = Guide("regex", SLOW_COMPILE)
    try:
        host.compile(1, guide, b"", "")
        Heard(host).until(lambda: host._processes[guide].owed)
        (process,) = processes()
        while not (results := host.results()):
            used = process.cpu_times()
            process.resume()
            while process.cpu_times() == used:
                pass
            process.suspend()
            host.poll(0.12)
        assert results[0].outcome is CompileOutcome.OVER_BUDGET
    finally:
        host.stop()


def test_a_process_that_stands_still_is_replaced():
    host = make_host(starved_seconds=3.0)
    try:
        heard = Heard(host)
        tell(host, 2, LETTERS, ids(""))
        assert heard.mask(2) == ids("abcdefghijklmnopqrstuvwxyz").tolist()
        (process,) = processes()
        process.suspend()
        heard.answers.clear()
        tell(host, 2, LETTERS, ids("abc"))
        assert set(heard.mask(2)) == {0, *ids("0123456789").tolist()}
        assert not process.is_running()
    finally:
        host.stop()


def test_a_fork_server_that_stands_still_is_replaced():
    host = make_host(starved_seconds=3.0)
    try:
        heard = Heard(host)
        tell(host, 1, LETTERS, ids("ab"))
        heard.mask(1)
        stopped = psutil.Process(processes()[0].ppid())
        stopped.suspend()
        host.compile(1, Guide("regex", "b"), b"", "")
        heard.until(lambda: 1 in heard.results)
        assert heard.results[1].outcome is CompileOutcome.COMPILED
        heard.answers.clear()
        tell(host, 1, LETTERS, ids("abc"))
        assert set(heard.mask(1)) == {0, *ids("0123456789").tolist()}
        assert not stopped.is_running()
    finally:
        host.stop()


def test_a_process_that_ends_is_made_again_and_hears_the_output_again(host: GuideHost):
    heard = Heard(host)
    tell(host, 1, LETTERS, ids("ab"))
    tell(host, 2, LETTERS, ids("abc1"))
    heard.mask(1), heard.mask(2)
    processes()[0].kill()
    heard.answers.clear()
    tell(host, 1, LETTERS, ids("abc"))
    assert set(heard.mask(1)) == {0, *ids("0123456789").tolist()}
    tell(host, 2, LETTERS, ids("abc12"))
    assert set(heard.mask(2)) == {0, *ids("0123456789").tolist()}
    assert not any(answer.what == "failed" for answer in heard.answers)


def test_a_guide_that_takes_too_much_memory_ends_alone():
    host = make_host(mask_seconds=600, memory_bytes=8 << 20)
    try:
        heard = Heard(host)
        tell(host, 1, Guide("regex", SLOW["powers"]["regex"]), ids(""), forced=True)
        tell(host, 2, LETTERS, ids(""))
        assert heard.mask(2) == ids("abcdefghijklmnopqrstuvwxyz").tolist()
        assert "needs more than 8 MiB" in heard.failure(1)
    finally:
        host.stop()


def test_processes_of_guides_that_nobody_uses_are_bounded_and_none_stays_behind(host: GuideHost):
    heard = Heard(host)
    tell(host, 1, LETTERS, ids(""))
    for serial in range(KEPT_GUIDES + 8):
        host.compile(serial, Guide("regex", f"a{{{serial + 1}}}"), b"", f"{serial}")
    heard.until(lambda: len(heard.results) == KEPT_GUIDES + 8)
    heard.until(lambda: len(processes()) <= KEPT_GUIDES + 1)
    assert host.processes <= KEPT_GUIDES + 1
    heard.mask(1)
    below = processes()
    host.close(1)
    host.stop()
    psutil.wait_procs(below, SECONDS)
    assert not any(process.is_running() for process in below)


def test_what_was_used_last_is_kept_and_what_nobody_uses_for_long_is_ended(
    host: GuideHost, monkeypatch: pytest.MonkeyPatch
):
    heard = Heard(host)
    tell(host, 1, LETTERS, ids(""))
    heard.mask(1)
    for serial in range(KEPT_GUIDES + 4):
        host.compile(serial, Guide("regex", f"a{{{serial + 1}}}"), b"", f"{serial}")
    heard.until(lambda: len(heard.results) == KEPT_GUIDES + 4)
    (used,) = {process.pid for process in processes()} & {host._processes[LETTERS]._pid}
    host.close(1)
    host.compile(100, Guide("regex", "b"), b"", "")
    heard.until(lambda: 100 in heard.results and len(processes()) == KEPT_GUIDES)
    assert used in {process.pid for process in processes()}
    monkeypatch.setattr("tandem.worker.engine.guides.host.KEPT_SECONDS", 0.0)
    heard.until(lambda: not processes())
    assert not host.busy


def test_kept_guides_are_bounded_in_memory(large_bytes: int):
    limit = int(1.8 * large_bytes)
    host = make_host(memory_bytes=limit)
    try:
        heard = Heard(host)
        for session in (0, 1):
            tell(host, session, large(session), ids(""))
            heard.mask(session)
        assert host.memory > limit
        assert host.processes == 2  # in use
        host.close(0)
        host.close(1)
        heard.until(lambda: host.memory <= limit)
        assert host.processes == 1
    finally:
        host.stop()


def test_guides_in_use_are_bounded_in_memory_together(large_bytes: int):
    """New ones are refused, and the largest is ended; the others go on."""
    host = make_host(total_memory_bytes=large_bytes + (12 << 20))
    try:
        heard = Heard(host)
        tell(host, 1, LETTERS, ids(""))
        tell(host, 2, large(2), ids(""))
        heard.mask(2)
        host.compile(3, Guide("regex", "a"), b"", "")
        host.compile(4, LETTERS, b"", "")  # takes no more
        heard.until(lambda: {3, 4} <= set(heard.results))
        assert heard.results[3].outcome is CompileOutcome.EXHAUSTED
        assert "MiB; ask again later" in heard.results[3].error
        assert heard.results[4].outcome is CompileOutcome.COMPILED
        tell(host, 5, large(5), ids(""))
        heard.until(lambda: any(answer.what == "failed" for answer in heard.answers))
        (failed,) = [answer for answer in heard.answers if answer.what == "failed"]
        assert failed.session in (2, 5) and "this one takes the most" in failed.error
        tell(host, 1, LETTERS, ids("abc"))
        heard.answers.clear()
        assert heard.mask(1) == ids("\x000123456789").tolist()  # or the end
        host.close(failed.session)
        host.close(7 - failed.session)
        host.compile(6, Guide("regex", "a"), b"", "")
        heard.until(lambda: 6 in heard.results)
        assert heard.results[6].outcome is CompileOutcome.COMPILED
    finally:
        host.stop()


def test_a_vocabulary_that_cannot_be_used_is_told():
    host = GuideHost(Words(4, [9], [b"a"], []), GuideLimits(), EngineStatistics())
    try:
        heard = Heard(host)
        host.compile(1, LETTERS, b"", "")
        heard.until(lambda: heard.results)
        assert heard.results[1].outcome is CompileOutcome.UNAVAILABLE
        assert heard.results[1].error.startswith(NO_VOCABULARY)
    finally:
        host.stop()
