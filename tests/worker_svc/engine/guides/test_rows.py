"""Rows that wait for their masks, on a model that counts: the others go on, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.constraints import StepConstraints
from tandem.worker.engine.ends import Failure
from tandem.worker.engine.grammars import Grammars
from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.guides.host import FORK_SERVER_SECONDS
from tandem.worker.engine.guides.limits import GUIDE_NICE
from tandem.worker.engine.guides.patience import LONGEST_WAIT_SECONDS
from tandem.worker.engine.request import Drafting, Request
from tests.worker_svc.engine.counting import VOCABULARY, counting_request
from tests.worker_svc.engine.test_engine import Driver, counted

pytest.importorskip("llguidance")

PIECES = [bytes([ord("0") + i]) for i in range(VOCABULARY)]
ANYTHING = Guide("regex", "(?s:.)*")


class GuidedDriver(Driver):
    """An engine that knows what its ids say."""

    def __init__(self, pages: int = 64, running: int = 8, *, overlap: bool = False) -> None:
        grammars = Grammars(VOCABULARY, [])
        grammars.load(PIECES, [])
        super().__init__(pages=pages, budget=64, running=running, overlap=overlap, grammars=grammars)

    def guided(self, number: int, first: int, prompt: int, output: int, guide: Guide = ANYTHING) -> Request:
        request = counting_request(number, first, prompt, output)
        request.matcher = self.engine.grammars.matcher(guide)
        self.engine.submit(request)
        return request

    def until(self, enough: Callable[[], object]) -> None:
        for _ in range(100_000):
            if enough():
                return
            self.step()
        raise AssertionError("it never comes")


@pytest.fixture(params=[False, True], ids=["one by one", "overlapping"])
def driver(request: pytest.FixtureRequest) -> Iterator[GuidedDriver]:
    driver = GuidedDriver(overlap=request.param)
    yield driver
    driver.engine.grammars.stop()


def guides_processes() -> list[psutil.Process]:
    servers = [
        p for p in psutil.Process(os.getpid()).children() if "tandem.worker.engine.guides.fork_server" in p.cmdline()
    ]
    return [child for server in servers for child in server.children()]


def test_a_row_whose_mask_does_not_come_is_left_out_and_the_others_go_on(driver: GuidedDriver):
    request = driver.guided(0, 5, 6, 30)
    driver.until(lambda: len(driver.output[0]) >= 5)
    (process,) = guides_processes()
    process.suspend()
    driver.engine.submit(counting_request(1, 40, 3, 40))
    driver.until(lambda: 1 in driver.finished)
    assert driver.output[1] == counted(40, 3, 40)
    assert 0 not in driver.finished and len(driver.output[0]) < 30
    assert driver.engine.grammars.statistics.guide_left_out_rows
    process.resume()
    driver.run()
    assert driver.output[0] == counted(5, 6, 30)
    assert request.statistics.preemptions == 0
    assert bool(driver.launched_ahead) == driver.engine.overlap


def test_a_mask_that_is_late_holds_up_others_no_longer_than_their_step_takes(
    driver: GuidedDriver, monkeypatch: pytest.MonkeyPatch
):
    patience = driver.engine.grammars.patience
    monkeypatch.setattr(patience, "stepped", lambda seconds, hidden: None)
    waits: list[float] = []
    await_masks, hear = StepConstraints._await, driver.engine.grammars.hear

    def recorded(constraints: StepConstraints) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(
                constraints._grammars, "hear", lambda seconds, enough: (waits.append(seconds), hear(seconds, enough))
            )
            await_masks(constraints)

    def patiently(enough: Callable[[], object]) -> None:
        """Steps on with a process that may be slow and is waited for: a row that is late is in no step until its mask
        comes, which would be never once the process is suspended."""
        with monkeypatch.context() as patch:
            patch.setattr("tandem.worker.engine.constraints.LONGEST_WAIT_SECONDS", FORK_SERVER_SECONDS)
            patch.setattr("tandem.worker.engine.engine.HELD_WAIT_SECONDS", FORK_SERVER_SECONDS)
            patch.setattr(patience, "seconds", FORK_SERVER_SECONDS)
            driver.until(lambda: enough() and not request.matcher.late)
        waits.clear()

    monkeypatch.setattr(StepConstraints, "_await", recorded)
    request = driver.guided(0, 5, 6, 60)
    patiently(lambda: len(driver.output[0]) >= 3)
    (process,) = guides_processes()
    driver.engine.submit(counting_request(1, 40, 3, 40))
    patiently(lambda: len(driver.output[1]) >= 3)  # else the first that is late may be alone
    patience.seconds = 0.004
    process.suspend()
    driver.until(lambda: 1 in driver.finished)
    assert waits == [0.004]
    process.resume()
    patiently(lambda: len(driver.output[0]) >= 20)
    process.suspend()
    driver.until(lambda: waits)
    assert waits == [LONGEST_WAIT_SECONDS]  # it holds up nobody
    process.resume()
    driver.run()
    assert driver.output[0] == counted(5, 6, 60)


def test_guides_rank_behind_the_engine_within_their_session_and_as_a_session(driver: GuidedDriver):
    driver.guided(0, 5, 6, 30)
    driver.until(lambda: driver.output[0])
    (process,) = guides_processes()
    assert process.nice() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + GUIDE_NICE)
    assert os.getsid(process.pid) != os.getsid(0)
    group = Path(f"/proc/{process.pid}/autogroup")
    if group.exists() and os.geteuid() == 0:  # others may change it so often only
        assert group.read_text("ascii").split()[-1] == str(GUIDE_NICE)
    driver.run()


def test_a_row_that_waits_is_cancelled_and_gives_back_its_pages(driver: GuidedDriver):
    driver.guided(0, 5, 6, 30)
    driver.until(lambda: driver.output[0])
    (process,) = guides_processes()
    process.suspend()
    driver.until(lambda: driver.engine.scheduler.running[0].held)
    driver.engine.abort(0)
    driver.run()
    assert driver.finished[0].reason is FinishReason.CANCELLED
    process.kill()


def test_rows_that_wait_lose_their_pages_to_others_and_get_on_afterwards():
    driver = GuidedDriver(pages=12, running=3)
    try:
        driver.guided(1, 5, 8, 20)
        driver.until(lambda: len(driver.output[1]) >= 6)  # of 12 pages it has 4; the other one wants 10
        (process,) = guides_processes()
        process.suspend()
        driver.engine.submit(counting_request(0, 40, 3, 36, priority=1))
        driver.until(lambda: 0 in driver.finished)
        process.resume()
        driver.run()
        assert driver.output == {0: counted(40, 3, 36), 1: counted(5, 8, 20)}
        assert driver.finished[1].statistics.preemptions
    finally:
        driver.engine.grammars.stop()


@pytest.mark.parametrize("drafts", [0, 6])
def test_grammars_end_answers_and_forced_tokens_are_drafts(driver: GuidedDriver, drafts: int):
    text = bytes(ord("0") + i for i in range(11, 25)).decode().replace("?", "[?]").replace("\\", "")
    request = counting_request(0, 5, 6, 30)
    request.matcher = driver.engine.grammars.matcher(Guide("regex", text))
    request.drafting = Drafting(drafts, 0) if drafts else None
    driver.engine.submit(request)
    driver.run()
    assert driver.output[0] == counted(5, 6, 14)
    assert driver.finished[0].reason is FinishReason.GRAMMAR_END
    if drafts:
        assert request.statistics.draft_tokens_accepted


@pytest.mark.parametrize(
    ("resumed", "limit", "reason"), [(4, 30, "GRAMMAR_END"), (4, 4, "GRAMMAR_END"), (2, 2, "MAX_TOKENS")]
)
def test_output_of_another_worker_may_have_been_all(driver: GuidedDriver, resumed: int, limit: int, reason: str):
    template = counting_request(0, 5, 6, limit)
    request = Request.make(0, template.known, template.sampling, template.stopping, resumed=counted(5, 6, resumed))
    text = bytes(ord("0") + i for i in range(11, 15)).decode()
    request.matcher = driver.engine.grammars.matcher(Guide("regex", text))
    driver.engine.submit(request)
    driver.run()
    assert driver.finished[0].reason is FinishReason[reason]
    assert not driver.output[0]


def test_without_a_vocabulary_a_guided_request_ends_with_the_reason():
    driver = Driver()
    request = counting_request(0, 5, 6, 30)
    request.matcher = driver.engine.grammars.matcher(ANYTHING)
    driver.engine.submit(request)
    driver.run()
    assert driver.finished[0].reason is Failure.ERROR
    assert "does not know its vocabulary" in driver.finished[0].detail
