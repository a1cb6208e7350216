"""Tracks one guide's process from the engine: what it was asked, and since when it owes an answer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections import deque
from pathlib import Path
from typing import Literal, NamedTuple

from tandem.common.cpu_time import cpu_seconds, work_of
from tandem.worker.engine.guides.frames import Asked, Channel, Forked, Said
from tandem.worker.engine.guides.guide import Guide

_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") >> 10
_LOOK_SECONDS = 0.1  # between two looks at the memory of a process that works


class Owed(NamedTuple):
    """An answer that has not come."""

    what: Literal["compiled", "checked", "state", "mask", "walk"]
    whose: int  # session, or serial of a check; 0 of a compilation
    budget: float  # seconds of processor time


class GuideProcess:
    """A guide's process, from the moment its socket is made; it is asked nothing before it is forked."""

    def __init__(self, guide: Guide, starved_seconds: float) -> None:
        self.guide = guide
        self._starved_seconds = starved_seconds
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.channel: Channel[Said] = Channel(ours, Said)
        self.owed: deque[Owed] = deque()
        self.compiled = False
        self.sessions: set[int] = set()  # of requests that use it
        self._pidfd: int | None = None
        self._pid = 0
        self._since = time.monotonic()  # when it was made, or began to work on the first of `owed`
        self._seconds = 0.0  # of processor time when it did
        self._moved = self._since  # when it was last seen to have got processor time,
        self._used = 0.0  # so much by then
        self._shared_memory = 0  # KiB
        self._seen_memory = 0  # KiB, while it works
        self._looked = 0.0

    @property
    def forked(self) -> bool:
        """Tells whether it has been forked."""
        return self._pid > 0

    @property
    def idle(self) -> bool:
        """Tells whether it owes nothing and has all that it was sent."""
        return self._pid > 0 and not self.owed and self.channel.flushed

    def mark_forked(self, forked: Forked) -> None:
        """Records that it has been forked."""
        self._pid = forked.pid
        self._shared_memory = self.channel.memory
        with contextlib.suppress(OSError):  # it has ended already
            self._pidfd = os.pidfd_open(forked.pid)

    def ask(self, message: Asked, *owed: Owed) -> None:
        """Sends a message, which will be answered by what is `owed`."""
        if not self.owed:
            self._begin()
        self.owed.extend(owed)
        self.channel.send(message)

    def answered(self) -> Owed:
        """Removes and returns the first of what is owed, which has come."""
        self._begin()
        return self.owed.popleft()

    @property
    def memory(self) -> int:
        """Returns the most bytes that it took beside what all guides share."""
        return max(0, max(self.channel.memory, self._seen_memory) - self._shared_memory) << 10

    def look(self) -> None:
        """Updates `memory` where it has worked on one thing for a while."""
        now = time.monotonic()
        if not self.owed or now - max(self._since, self._looked) < _LOOK_SECONDS:
            return
        self._looked = now
        with contextlib.suppress(OSError):  # its socket will tell
            pages = int(Path(f"/proc/{self._pid}/statm").read_text("ascii").split()[1])
            self._seen_memory = max(self._seen_memory, pages * _PAGE_KIB)

    @property
    def waited(self) -> float:
        """Returns the seconds since it was made, or began with what it works on."""
        return time.monotonic() - self._since

    @property
    def over_budget(self) -> bool:
        """Tells whether what it works on has used up its processor time."""
        if not self.owed or self.waited < self.owed[0].budget:
            return False
        return cpu_seconds(self._pid) - self._seconds >= 0.9 * self.owed[0].budget

    @property
    def starved(self) -> bool:
        """Tells whether it owes something, got no processor time for `starved_seconds`, and does not wait for any: it
        is stopped. What gets little of an overloaded machine goes on, as far as its budget."""
        if not self.owed or time.monotonic() - self._moved < self._starved_seconds:
            return False
        work = work_of(self._pid)
        if work.seconds <= self._used and not work.ready:
            return True
        self._moved, self._used = time.monotonic(), work.seconds
        return False

    def kill(self) -> None:
        """Kills it."""
        self.theirs.close()
        self.channel.socket.close()
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = None

    def _begin(self) -> None:
        self._since = self._moved = time.monotonic()
        self._seconds = self._used = self.channel.seconds
