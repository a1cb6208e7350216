"""The commands' output: text on standard output, everything else on standard error, plain when piped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

from tandem.client.errors import StatusError, TandemError
from tandem.client.types import GenerationResult

BROKEN_PIPE_EXIT_CODE = 128 + 13  # as if SIGPIPE had ended the process, which is what a shell expects


# Of standard output, where an error names no file: the disk is full, over its quota, or the output is not for writing.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)


class _StandardError:
    """Standard error as it is now. Writes to one that was closed, as a closed terminal, are dropped: the command must
    still stop what has to be stopped."""

    def write(self, text: str) -> int:
        if sys.stderr is not None:  # closed before we began
            with contextlib.suppress(OSError):
                sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        if sys.stderr is not None:
            with contextlib.suppress(OSError):
                sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


errors = Console(file=cast("TextIO", _StandardError()), highlight=False, soft_wrap=True)


class CommandError(Exception):
    """Ends a command with one line on standard error and this exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(BaseException):
    """A signal asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Lets `reporting_errors` end the command; rich itself would exit with 1, from wherever we are."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def output() -> Console:
    """Returns standard output: colours on a terminal, plain text in a pipe; never wrapped or highlighted."""
    return _Output(highlight=False, soft_wrap=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Tells whether a standard stream is a terminal; None: it was closed before we began."""
    return stream is not None and stream.isatty()


def announce(message: str) -> None:
    """Prints one line on standard error without waiting: a paused terminal does not block the caller."""

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{message}\n".encode())

    threading.Thread(target=write, name="announcement", daemon=True).start()


def complain(message: str) -> None:
    """Prints one line on standard error. It has no markup, because the message may hold anything."""
    errors.print(Text.assemble(("error: ", "bold red"), message.replace("\n", " ")))


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turns what a command raises into lines on standard error and an exit code."""
    try:
        if sys.stdout is None:
            raise CommandError("standard output is closed")
        yield
        sys.stdout.flush()
    except Stopped as stopped:
        raise typer.Exit(stopped.exit_code) from None
    except CommandError as error:
        complain(str(error))
        raise typer.Exit(error.exit_code) from None
    except StatusError as error:
        complain(_words(error))
        for violation in error.violations:
            errors.print(Text(f"  {violation.field}: {violation.description}"))
        raise typer.Exit(1) from None
    except TandemError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    except OSError as error:
        left = error.errno in (errno.EPIPE, errno.EIO)  # whoever read our output, or the terminal is gone
        if not left:
            about = error.filename or ("standard output" if error.errno in _CANNOT_WRITE else "")
            complain(f"{about}: {error.strerror}" if about else str(error.strerror or error))
        # Python would complain when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(BROKEN_PIPE_EXIT_CODE if left else 1) from None


def _words(error: StatusError) -> str:
    where = "" if error.service == "client" else f"{error.service}: "
    if error.violations:
        return f"{where}{error.code.name.lower().replace('_', ' ')}:"
    retry = f" (try again in {error.retry_after:g} s)" if error.retry_after is not None else ""
    return f"{where}{error.message}{retry}"


class TextStream:
    """Standard output for text that comes in pieces.

    A thread writes, so that a reader that does not read (`| less`) does not block Ctrl-C; it uses the file descriptor
    itself, so that nothing is locked or left in a buffer when the process ends meanwhile.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self.terminal = sys.stdout.isatty()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None] | None]] = queue.SimpleQueue()
        self._error: OSError | None = None
        self._loop = asyncio.get_running_loop()
        self._ends_line = True
        threading.Thread(target=self._work, name="stdout", daemon=True).start()

    def write(self, text: str, *, dim: bool = False) -> None:
        """Queues text. Raises the error of an earlier write, BrokenPipeError for example."""
        if not text:
            return
        self._ends_line = text.endswith("\n")
        if self.terminal:
            text = harmless(text)
            text = f"\x1b[2m{text}\x1b[22m" if dim and "NO_COLOR" not in os.environ else text
        self.write_bytes(text.encode("utf-8", "replace"))

    def write_bytes(self, data: bytes) -> None:
        """Queues exactly these bytes. Raises the error of an earlier write."""
        if self._error is not None:
            raise self._error
        self._queue.put((data, None))

    def end_line(self) -> None:
        """Ends the line on a terminal, unless the text has ended it."""
        if self.terminal and not self._ends_line:
            self.write("\n")

    async def flushed(self) -> None:
        """Waits until everything is written."""
        future = self._loop.create_future()
        self._queue.put((b"", future))
        await future
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            data, waiting = self._queue.get()
            try:
                while data and self._error is None:
                    data = data[os.write(1, data) :]
            except OSError as error:
                self._error = error
            if waiting is not None:
                try:
                    self._loop.call_soon_threadsafe(_finish, waiting)
                except RuntimeError:  # the command has ended
                    return


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def harmless(text: str) -> str:
    """Removes control characters, with which a model could write anywhere on a terminal."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or not (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0))


def amount(size: int) -> str:
    """Formats a number of bytes."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size} B"


def print_statistics(result: GenerationResult) -> None:
    """Prints usage, timings and the finish reason on standard error."""
    usage, timings = result.usage, result.timings
    cached = "" if usage.cached_prompt_tokens is None else f" ({usage.cached_prompt_tokens} cached)"
    rows = [
        ("prompt", f"{usage.prompt_tokens} tokens{cached}"),
        ("output", f"{usage.completion_tokens} tokens in {timings.total_seconds:.2f} s"),
        (
            "first token",
            "none" if result.time_to_first_token is None else f"{result.time_to_first_token * 1000:.0f} ms",
        ),
        ("speed", _speed(result)),
        ("finish reason", finish_words(result)),
        ("seed", "-" if result.seed is None else str(result.seed)),
    ]
    if usage.peak_process_bytes:
        on_device = f", {amount(usage.peak_device_bytes)} on its device" if usage.peak_device_bytes else ""
        rows.append(("worker's peak", f"{amount(usage.peak_process_bytes)}{on_device}"))
    if result.failovers:
        rows.append(("failovers", str(result.failovers)))
    for name, value in rows:
        errors.print(Text.assemble((f"{name:>13}  ", "dim"), value))


def _speed(result: GenerationResult) -> str:
    if result.tokens_per_second is None:
        return "-"
    return f"{result.tokens_per_second:.1f} tokens/s, {result.milliseconds_per_token:.1f} ms a token"


def finish_words(result: GenerationResult) -> str:
    if result.matched_stop is not None:
        return f"{result.finish_reason} {result.matched_stop!r}"
    if result.matched_stop_token is not None:
        return f"{result.finish_reason} (token {result.matched_stop_token})"
    return str(result.finish_reason)
