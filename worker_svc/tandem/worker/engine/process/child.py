"""An engine's process as its parent sees it: started with little imported and before anything is known about it, so
that it imports what every engine needs while its front reads the settings. What only `begin` needs is imported there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.worker.engine.process.processes import kill_group
from tandem.worker.engine.process.suspects import SuspectNote

if TYPE_CHECKING:  # brings pydantic
    from concurrent.futures import Future

    from tandem.worker.engine.process.config import EngineConfig

_CACHED_SHAPES = 128  # of each kind of product
_LONGEST_FOLDER = 100  # bytes: a socket's path has 107 at most
_OTHER_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where TMPDIR cannot be used; only names made by mkdtemp


class EngineChild:
    """A process that becomes an engine, the path of the socket that it will speak through, and its note of suspects."""

    def __init__(self) -> None:
        """Starts it. It waits for `begin`, and leaves when this process does. Raises OSError: no descriptors, memory,
        processes or folder are left."""
        self.note = SuspectNote()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._folder = socket_folder()
            self.endpoint = f"ipc://{Path(self._folder.name, 'engine')}"
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "tandem.worker.engine.process.main"],
                bufsize=0,
                stdin=subprocess.PIPE,
                pass_fds=(self.note.descriptor,),
                start_new_session=True,  # the terminal's Ctrl-C is for the front, which drains first
                env=engine_environment(),
            )
        except BaseException:
            self._free()
            raise
        self._code: Future[int] | None = None  # while nobody waits for its end

    def begin(self, config: EngineConfig, *, log_format: str, log_level: str) -> None:
        """Tells it which engine it is. Called once."""
        from concurrent.futures import Future

        import msgspec

        from tandem.worker.engine.process.options import ProcessOptions

        self._code = Future()
        threading.Thread(target=self._wait, args=(self._code,), name="engine's end", daemon=True).start()
        options = ProcessOptions(self.endpoint, self.note.descriptor, log_format, log_level, config.model_dump())
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `ended` tells
            self._process.stdin.write(msgspec.json.encode(options) + b"\n")

    @property
    def pid(self) -> int:
        """Returns its process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Returns its exit code, negative for a signal; None while it runs."""
        return self._code.result() if self._code is not None and self._code.done() else None

    async def ended(self) -> int:
        """Waits for its end; returns its exit code."""
        import asyncio

        assert self._code is not None
        return await asyncio.shield(asyncio.wrap_future(self._code))

    def connected(self) -> None:
        """Removes the socket's path, once both ends have it open: whoever kills us now leaves nothing behind."""
        if self._folder is not None:
            self._folder.cleanup()

    def kill(self) -> None:
        """Ends it by force, and all processes that it has started."""
        kill_group(self.pid)

    def close(self) -> None:
        """Frees what belongs to a process that has ended, or was killed before it was told what to be."""
        if self._code is None:
            self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._free()

    def _wait(self, code: Future[int]) -> None:
        code.set_result(self._process.wait())

    def _free(self) -> None:
        self.note.close()
        if self._folder is not None:
            self._folder.cleanup()


def socket_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder that only we may enter, for a socket whose path the system allows: in the usual place for
    temporary files, or where that is missing, full or has too long a name, in another. Raises OSError."""
    first: OSError | None = None
    for place in (None, *_OTHER_FOLDERS):
        try:
            folder = tempfile.TemporaryDirectory(prefix="tandem-engine-", dir=place)
        except OSError as error:
            first = first or error
            continue
        if len(os.fsencode(folder.name)) <= _LONGEST_FOLDER:
            return folder
        folder.cleanup()
    raise first or OSError("no folder for temporary files has a short name")


def engine_environment() -> dict[str, str]:
    """Returns the environment of an engine process; what the operator has set wins.

    Threads that sleep at once must be woken for each of a step's hundreds of operations: a decode step of a small model
    takes 1.4 times as long on idle cores. Threads that spin long hold on to cores that others need: with one busy
    process beside two threads on two cores, a step takes 8 times as long at 30,000 turns, twice as long at 3,000, and
    no longer at 1,000, which is some 20 us.

    oneDNN keeps what it has compiled for each shape of a product, and ideep, which torch puts before it, keeps a
    description of 260 KB beside it: 1,024 entries each by default, so that an engine grows by a gigabyte while prompts
    of all lengths come. What decodes need are few shapes; those stay.

    Huge pages help weights that are read in every step. An allocator that keeps what a step frees for the next one
    saves page faults: 6 % of a prefill with huge pages, more without.

    Neither pydantic nor torch looks through all packages for extensions of its own, which takes 0.05 s of a start.
    """
    return {
        "GOMP_SPINCOUNT": "1000",
        "PYDANTIC_DISABLE_PLUGINS": "__all__",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(_CACHED_SHAPES),
        "LRU_CACHE_CAPACITY": str(_CACHED_SHAPES),
        "THP_MEM_ALLOC_ENABLE": "1",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
        **os.environ,
    }
