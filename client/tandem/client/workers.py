"""The pool of workers of a client, and the choice of the one that gets a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Coroutine, Sequence

from tandem.client.affinity import NO_PAGES, Pages, PrefixMemory, candidates, estimated_loads
from tandem.client.discovery import LOOKUP_SECONDS, Resolve, Target, WorkersName, resolve
from tandem.client.metrics import ClientMetrics
from tandem.client.settings import ConnectionSettings, Credentials
from tandem.client.worker import Health, Worker

# Without an answer from every worker after this long, those that answered are enough.
FIRST_HEALTH_SECONDS = 1.0
LOOKUP_PAUSE_SECONDS = 1.0  # between two lookups, however many reasons there are


class WorkerPool:
    """Picks a worker for each request. With more than one, or a name, their health is watched."""

    def __init__(
        self,
        addresses: Sequence[str],
        connection: ConnectionSettings,
        credentials: Credentials | None,
        metrics: ClientMetrics,
        find: Resolve = resolve,
    ) -> None:
        # Files are read now: who gave a wrong one is told, and workers that come later need nothing from the disk.
        self._credentials = credentials and credentials.read()
        self._connection, self._metrics, self._resolve = connection, metrics, find
        self._fixed: list[Target] = []
        self._found: dict[WorkersName, list[Target] | None] = {}  # None: not yet
        self._unresolved: dict[WorkersName, str] = {}  # why
        for address in addresses:
            name = WorkersName.parse(address)
            if name is None:
                self._fixed.append(Target(address))
            else:
                self._found[name] = None
        self.workers: list[Worker] = []
        self.memory = PrefixMemory()
        self._watches: dict[Worker, asyncio.Task[None]] = {}
        self._leaving: set[Worker] = set()  # no longer among them, but something still runs there
        self._tasks: set[asyncio.Task[None]] = set()  # that follow names, or close what is left of a worker
        self._changed = asyncio.Event()
        self._look_again = asyncio.Event()
        self._watching = self._closed = self._reached = False
        self._first_answers_until = 0.0
        self._settle()

    async def pick(
        self,
        key: str,
        avoid: Collection[Worker] = (),
        within: float = LOOKUP_SECONDS,
        *,
        pages: Pages = NO_PAGES,
        share: float | None = None,
    ) -> Worker | None:
        """Returns the worker for `key` among those that serve, except `avoid`. `pages` are the prompt's, and
        `share` the key's share of the requests: without it, all with one key go to one worker. Returns None when there
        is none, or when none becomes known `within` so many seconds."""
        if len(self.workers) == 1 and not self._found:
            return None if self.workers[0] in avoid else self.workers[0]
        await self._watch(within)
        for health in (Health.SERVING, Health.UNKNOWN):
            serving = [worker for worker in self.workers if worker.health is health and worker not in avoid]
            if serving:
                names = [worker.address for worker in serving]
                sticks_to = self.memory.worker_of(pages)
                few = candidates(key, names, _loads(serving), sticks_to=sticks_to, share=share)
                late = await self._ask([serving[place] for place in few], within)
                gone = {worker for worker in serving if worker.health is not health or worker.closed}  # meanwhile
                known = _loads(serving)
                return serving[min(few, key=lambda place: (serving[place] in late | gone, known[place]))]
        self._look_again.set()
        return None

    async def _ask(self, few: Sequence[Worker], within: float) -> set[Worker]:
        """Asks those of several workers whose load is not known of late, and returns who has not told it in time."""
        seconds = min(self._connection.probe_seconds, within)
        if len(few) < 2 or not seconds:
            return set()
        asked = {task: worker for worker in few if (task := worker.probe(self._connection.probe_seconds)) is not None}
        if not asked:
            return set()
        _, late = await asyncio.wait(asked, timeout=seconds)
        return {asked[task] for task in late}

    @property
    def reached(self) -> bool:
        """True when a worker has answered before: then workers that cannot be reached are expected back."""
        return self._reached or any(worker.reached for worker in self.workers)

    async def known(self, within: float) -> list[Worker]:
        """Returns all workers, once names have been looked up, or after so many seconds."""
        if self._found:
            await self._watch(within)
        return list(self.workers)

    def states(self) -> str:
        """Returns each worker and its health, for an error message."""
        if len(self.workers) == 1 and not self._found:
            return self.workers[0].address
        states = [f"{worker.address} {worker.health.value}" for worker in self.workers]
        for name, found in self._found.items():
            if not found:
                states.append(f"{name} has no address" + (f" ({why})" if (why := self._unresolved.get(name)) else ""))
        return ", ".join(states)

    async def wait_for_change(self, seconds: float) -> None:
        """Waits until some worker's health changes, or for `seconds`."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def close(self) -> None:
        self._closed = True
        self._changed.set()  # wakes all waiters
        tasks, workers = [*self._watches.values(), *self._tasks], [*self.workers, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in workers))

    def _settle(self) -> None:
        """Updates `workers` to what the addresses and names stand for now; those that stay keep what is known of
        them."""
        wanted = {target.address: target for target in self._fixed}
        for found in self._found.values():
            for target in found or ():
                wanted.setdefault(target.address, target)
        staying = {worker.address: worker for worker in self.workers}
        for worker in self.workers:
            if worker.address not in wanted:
                self._let_go(worker)
        self.workers = [
            staying.get(address) or Worker(target, self._connection, self._credentials, self._metrics)
            for address, target in wanted.items()
        ]
        if self._watching:
            self._watch_health()

    def _let_go(self, worker: Worker) -> None:
        watch = self._watches.pop(worker, None)
        if watch is not None:
            watch.cancel()
        worker.leave()
        self._reached |= worker.reached
        self._leaving.add(worker)
        task = self._begin(worker.close_when_idle())
        task.add_done_callback(lambda _: self._leaving.discard(worker))

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watch(self, within: float) -> None:
        """Starts to follow names and health, and waits for the first answers."""
        until = time.monotonic() + within
        if not self._watching:
            self._watching = True
            if self._found:
                self._begin(self._follow())
            self._watch_health()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self._closed and not self.workers and any(found is None for found in self._found.values()):
                    self._changed.clear()
                    await self._changed.wait()
        while not self._closed and any(worker.health is Health.UNKNOWN for worker in self.workers):
            left = min(self._first_answers_until, until) - time.monotonic()
            if left <= 0:
                return
            await self.wait_for_change(left)

    def _watch_health(self) -> None:
        if not self._watches:
            self._first_answers_until = time.monotonic() + FIRST_HEALTH_SECONDS
        for worker in self.workers:
            if worker not in self._watches:
                self._watches[worker] = asyncio.create_task(worker.watch(self._changed))

    async def _follow(self) -> None:
        """Looks all names up, for ever."""
        while True:
            self._look_again.clear()
            await asyncio.gather(*(self._look_up(name) for name in self._found))
            await asyncio.sleep(LOOKUP_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                rest = self._connection.resolve_seconds - LOOKUP_PAUSE_SECONDS
                async with asyncio.timeout(max(0.0, rest)):
                    await self._look_again.wait()

    async def _look_up(self, name: WorkersName) -> None:
        """Looks a name up; the last addresses stay while lookups fail."""
        try:
            found = name.targets(await self._resolve(name))
            self._unresolved.pop(name, None)
        except (OSError, RuntimeError) as error:  # the latter where no thread can be started
            self._unresolved[name] = getattr(error, "strerror", None) or str(error)
            found = self._found[name] or []
        if found != self._found[name]:
            self._found[name] = found
            self._settle()
            self._changed.set()


def _loads(workers: Sequence[Worker]) -> list[float]:
    now = time.monotonic()
    loads = estimated_loads([worker.running for worker in workers], [worker.load for worker in workers], now)
    return [worker.failures.weigh(load, now) for worker, load in zip(workers, loads, strict=True)]
