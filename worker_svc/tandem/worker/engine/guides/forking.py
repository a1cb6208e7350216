"""Runs the fork server from the engine: starts it, tells it for whom to fork, and restarts it where it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import subprocess
import sys
import time
from collections import deque

import msgspec

from tandem.worker.engine.guides.frames import Words
from tandem.worker.engine.guides.process import GuideProcess

logger = logging.getLogger("tandem.worker.engine")

MAX_FORK_SERVERS = 3  # in a row of which none forked a process
REST_SECONDS = 30.0  # before fork servers are tried again
_LEAVE_SECONDS = 5.0
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME")


class Forking:
    """Runs a fork server, or none while none can be started."""

    def __init__(self, words: Words, memory_bytes: int, selector: selectors.BaseSelector) -> None:
        """`selector` reports the fork server's end, with no data."""
        self._memory_bytes, self._selector = memory_bytes, selector
        self._words = os.fdopen(os.memfd_create("tandem-vocabulary"), "wb")
        self._words.write(msgspec.msgpack.encode(words))
        self._words.flush()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None  # it says nothing over it but its end
        self._failures = 0  # fork servers in a row
        self.proven = False  # the one that runs has forked a process
        self._rest_until = 0.0
        self._unsent: deque[GuideProcess] = deque()  # that it has not been told of
        self.start()

    def start(self) -> bool:
        """Starts a fork server if there is none, after many failures with a pause; returns whether one runs."""
        if self._server is None and time.monotonic() >= self._rest_until:
            self._failures = 0
            self._start()
        return self._server is not None

    def fork(self, process: GuideProcess) -> None:
        """Requests a process, as soon as the fork server is ready to read the request."""
        self._unsent.append(process)
        self.flush()

    def flush(self) -> None:
        """Sends the fork server as many requests as it is ready to read."""
        # Its end is heard soon.
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._unsent and self._control is not None:
                if self._unsent[0].theirs.fileno() >= 0:  # else it was dropped
                    socket.send_fds(self._control, [b"f"], [self._unsent[0].theirs.fileno()])
                self._unsent.popleft().theirs.close()

    def worked(self) -> None:
        """Records that the fork server has forked a process."""
        self._failures, self.proven = 0, True

    def ended(self) -> None:
        """Replaces a fork server that has ended, with all that it forked, unless too many ended in a row."""
        self._end()
        self._failures += 1
        logger.error("the process that forks guide processes ended (%d in a row)", self._failures)
        self._unsent.clear()
        if self._failures < MAX_FORK_SERVERS:
            self._start()
        else:
            self._rest_until = time.monotonic() + REST_SECONDS

    def stop(self) -> None:
        """Ends the fork server for good."""
        self._end()
        self._words.close()

    def _start(self) -> None:
        words = self._words.fileno()
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                arguments = (theirs.fileno(), words, self._memory_bytes, os.getpid())
                self._server = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", "tandem.worker.engine.guides.fork_server", *map(str, arguments)],
                    pass_fds=(theirs.fileno(), words),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a panic of llguidance may say what is in a guide
                    start_new_session=True,  # it ranks behind the engine's (fork_server.py)
                    env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
                )
        except OSError as error:
            logger.error("cannot start guide processes: %s", error)
            self._rest_until = time.monotonic() + REST_SECONDS
            return
        ours.setblocking(False)
        self._control, self.proven = ours, False
        self._selector.register(ours, selectors.EVENT_READ, None)

    def _end(self) -> None:
        if self._control is not None:
            self._selector.unregister(self._control)
            self._control.close()
            self._control = None
        if self._server is not None:
            self._server.kill()  # it has nothing to finish, and what it forked ends with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(_LEAVE_SECONDS)
            self._server = None
