"""Whatever happens to an engine, or to making one, is told, counted, and mended or the end of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import pytest
import zmq

import tandem.worker.front.supervisor as supervisor_module
from tandem.common.cpu_time import Work
from tandem.common.errors import ServiceError
from tandem.worker.engine.load import Load
from tandem.worker.engine.process.handle import EngineDeath, EngineStartError, Progress, Receiver
from tandem.worker.engine.process.messages import Ended, EngineInfo, Inbound, Ping, Reply, Step
from tandem.worker.front.streams import OutputStream
from tandem.worker.front.supervisor import MAX_FAILED_STARTS, EngineSupervisor
from tandem.worker.front.validation import Delivery
from tandem.worker.front.watchdog import Silence

INFO = EngineInfo(
    *("llama", "hf", 300, 512, [2], 1, {}, 1, "float32", "none", 2, 48, 4, 2, 12, "cpu", "cpu", "2", 1),
    *(1, 1, 0, 640, 1, "float32", 16, True),
)


class Engine:
    """An engine by hand: it starts, answers pings while it is `alive`, and dies when told to."""

    def __init__(self, *, starts: bool = True, alive: bool = True) -> None:
        self.starts, self.alive = starts, alive
        self.dead: asyncio.Future[EngineDeath] = asyncio.get_running_loop().create_future()
        self.stopped = self.killed = False
        self.receive: Receiver = lambda message: None

    async def start(self, receive: Receiver, progress: Progress) -> EngineInfo:
        self.receive = receive
        if not self.starts:
            await asyncio.wait([self.dead])
            raise EngineStartError("killed while it started")
        return INFO

    def send(self, message: Inbound) -> None:
        if isinstance(message, Ping) and self.alive:
            self.receive(Reply(message.serial, Load()))

    async def wait_until_dead(self) -> EngineDeath:
        return await asyncio.shield(self.dead)

    pid = None

    def work(self) -> Work:
        return Work(0.0, ready=False)

    def kill(self) -> None:
        self.killed = True
        self.die("killed by signal 9")

    def die(self, why: str) -> None:
        if not self.dead.done():
            self.dead.set_result(EngineDeath(why, False, ()))

    async def stop(self) -> None:
        self.stopped = True


@dataclass
class Watcher:
    """An `Observer` that writes down what it hears."""

    heard: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        self.changed.set()

    async def until(self, what: str, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.heard.count(what) < times:
                self.changed.clear()
                await self.changed.wait()

    def engine_up(self, info: EngineInfo) -> None:
        self._hear("up")

    def engine_down(self, why: str) -> None:
        self._hear("down")
        if self.fails:
            raise RuntimeError("a defect in the observer")

    def engine_stalled(self) -> None:
        self._hear("stalled")

    def start_failed(self) -> None:
        self._hear("start failed")

    def engine_lost(self, why: str) -> None:
        self._hear("lost")

    def engine_step(self, step: Step) -> None: ...

    def token_gaps(self, seconds: Mapping[float, int]) -> None: ...

    def request_ended(self, stream: OutputStream, ended: Ended) -> None: ...

    def lost_with(self, streams: Sequence[OutputStream], death: EngineDeath) -> dict[OutputStream, ServiceError]:
        return {}


def made_from(makers: list[Callable[[], Engine]], made: list[Engine]) -> Callable[[], Engine]:
    def make() -> Engine:
        engine = makers.pop(0)()
        made.append(engine)
        return engine

    return make


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_FIRST_PAUSE", 0.0)


def failing(error: BaseException) -> Callable[[], Engine]:
    def make() -> Engine:
        raise error

    return make


@pytest.mark.parametrize(
    "error", [FileNotFoundError("no TMPDIR"), zmq.ZMQError(24), OSError(24, "descriptors"), RuntimeError("anything")]
)
async def test_an_engine_that_cannot_be_made_is_tried_again(error: Exception):
    watcher, made = Watcher(), list[Engine]()
    supervisor = EngineSupervisor(
        made_from([Engine, failing(error), failing(error), Engine], made), watcher, lambda *_: None
    )
    await supervisor.start()
    made[0].die("by hand")
    await watcher.until("up", 2)
    assert watcher.heard == ["up", "down", "start failed", "start failed", "up"]
    assert supervisor.running
    assert supervisor.restarts == 1
    await supervisor.stop()


async def test_after_too_many_failed_starts_the_worker_gives_up_loudly():
    watcher, made = Watcher(), list[Engine]()
    makers = [Engine, *[failing(FileNotFoundError("no TMPDIR"))] * MAX_FAILED_STARTS]
    supervisor = EngineSupervisor(made_from(makers, made), watcher, lambda *_: None)
    await supervisor.start()
    made[0].die("by hand")
    await watcher.until("lost")
    assert watcher.heard.count("start failed") == MAX_FAILED_STARTS
    with pytest.raises(ServiceError) as caught:
        supervisor.require_info()
    assert caught.value.reason == "ENGINE_RESTARTING"
    await supervisor.stop()


async def test_a_defect_beside_the_engine_ends_the_worker_and_is_logged(caplog: pytest.LogCaptureFixture):
    watcher, made = Watcher(fails=True), list[Engine]()
    supervisor = EngineSupervisor(made_from([Engine], made), watcher, lambda *_: None)
    await supervisor.start()
    made[0].die("by hand")
    await watcher.until("lost")
    assert "a defect in the observer" in caplog.text
    await supervisor.stop()


async def test_a_watchdog_that_fails_ends_the_worker_and_its_streams(caplog: pytest.LogCaptureFixture):
    class Unseen(Engine):
        def work(self) -> Work:
            raise OSError("no /proc")

    watcher, made = Watcher(), list[Engine]()
    supervisor = EngineSupervisor(made_from([Unseen], made), watcher, lambda *_: None, silence=_quick)
    await supervisor.start()
    stream = OutputStream(1, Delivery(1, None))
    supervisor._streams[1] = stream
    await watcher.until("lost")
    assert stream.error is not None
    assert "no /proc" in caplog.text
    await supervisor.stop()


async def test_a_silent_engine_is_killed_and_followed_by_another_whether_there_is_work_or_not():
    watcher, made = Watcher(), list[Engine]()
    supervisor = EngineSupervisor(
        made_from([lambda: Engine(alive=False), Engine], made), watcher, lambda *_: None, silence=_quick
    )
    await supervisor.start()
    await watcher.until("up", 2)
    assert watcher.heard == ["up", "stalled", "down", "up"], "not ready before anything else is done"
    assert made[0].killed
    assert made[0].stopped
    await supervisor.stop()


async def test_a_start_without_progress_is_ended_and_tried_again():
    watcher, made = Watcher(), list[Engine]()
    supervisor = EngineSupervisor(
        made_from([Engine, lambda: Engine(starts=False), Engine], made), watcher, lambda *_: None, silence=_quick
    )
    await supervisor.start()
    made[0].die("by hand")
    await watcher.until("up", 2)
    assert watcher.heard == ["up", "down", "start failed", "up"]
    assert made[1].killed
    await supervisor.stop()


async def test_an_engine_that_answers_is_left_alone():
    watcher, made = Watcher(), list[Engine]()
    supervisor = EngineSupervisor(made_from([Engine], made), watcher, lambda *_: None, silence=_quick)
    await supervisor.start()
    silence = supervisor._silence
    assert silence is not None
    heard, answered = silence.heard, asyncio.Event()
    count = 0

    def hear() -> None:
        nonlocal count
        heard()
        count += 1
        if count == 20:
            answered.set()

    supervisor._silence = _Heard(silence, hear)  # type: ignore[assignment]
    await asyncio.wait_for(answered.wait(), 60)
    assert watcher.heard == ["up"]
    await supervisor.stop()


async def test_a_command_that_the_engine_never_obeys_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor_module, "COMMAND_SECONDS", 0.01)
    supervisor = EngineSupervisor(lambda: Engine(alive=False), Watcher(), lambda *_: None)
    await supervisor.start()
    with pytest.raises(ServiceError) as caught:
        await supervisor.command("ClearPrefixCache", b"")
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.reason == "ENGINE_BUSY"
    assert not supervisor._commands
    await supervisor.stop()


async def test_the_advice_while_an_engine_restarts_is_what_a_start_takes(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now)
    supervisor = EngineSupervisor(Engine, Watcher(), lambda *_: None)
    supervisor._load_seconds, supervisor._down_since = 40.0, 990.0
    advice = {supervisor.retry_after for _ in range(100)}
    assert all(30 <= each <= 45 for each in advice)
    assert len(advice) > 90, "not all come back in the same moment"
    supervisor._down_since = 900.0
    assert 0.5 <= supervisor.retry_after <= 1, "later than usual: soon"


@dataclass
class _Heard:
    silence: Silence
    heard: Callable[[], None]

    def __getattr__(self, name: str) -> object:
        return getattr(self.silence, name)


def _quick(info: EngineInfo | None) -> Silence:
    return Silence(limit=0.5, computing=1.0)
