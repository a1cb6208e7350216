"""Compiles the C sources of a package: for a wheel, or when they are first needed, with the machine's own compiler.

A library lies beside its sources, where a wheel has brought it, or in `$XDG_CACHE_HOME/tandem` (`~/.cache/tandem`) as
`NAME-MACHINE-SOURCES-COMPILER-CONTENT.so`:

| part | what it tells |
|---|---|
| MACHINE | `platform.machine()`; with the processor's features where they are compiled for (`-march=native`) |
| SOURCES | hash of sources, the headers that they include, and flags |
| COMPILER | hash of the compiler's command; not compared beside the sources |
| CONTENT | hash of the file itself |

Loading a library runs its code, and a damaged one ends the process with SIGBUS. So nothing is loaded whose content is
not that of its name, or that anybody could have written but this user, root and, beside the sources, who may write
these: they would be compiled instead. What is refused is said in the log and compiled again: into the cache, or, where
that is not safe or cannot be written, for this process alone.

What a wheel brings runs on every processor of its kind: it is compiled for the oldest one, and code for newer ones asks
first (`__builtin_cpu_supports`), or is named by `instructions`.

The build of a wheel runs each module with a line `SOURCES = CSources(...)`, with nothing else installed: such a module
imports other packages within functions only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tandem.common.cpu_time import processes_of, work_of
from tandem.common.machine import available_cores, processor_fact

# That the compiler may compute for one file, whose largest takes 20 s, or stand still. What waits for a busy processor
# does neither.
_COMPILE_SECONDS = 300.0
_LOOK_SECONDS = 1.0
_TURN_SECONDS = 0.1  # after which whoever waits for another process looks again
_TURNS = 4.0  # times _COMPILE_SECONDS that it waits at most
_COMPILERS = ("cc", "gcc", "clang")
_OLDEST = {"x86_64": ("-march=x86-64",)}  # some compilers are built to take a later one
_CONTENT_DIGITS = 32
_MANY_SOURCES = 10  # more take a minute, which is said to whoever waits for a start
_ROOM = 64 << 20  # bytes that compiling takes at most
_UNFINISHED = ".making-"  # what is being made in the cache
_DAY = 86_400.0
# Seconds after which whoever made it was killed, and after which what is kept, libraries and facts, is not used.
_LEFT = {f"{_UNFINISHED}*": _DAY, "[!.]*.so": 30 * _DAY, "[!.]*.json": 30 * _DAY}

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

Signature: TypeAlias = tuple[Sequence[type[Any]], "type[Any] | None"]  # types of a function's arguments, and its result


class CompileError(Exception):
    """A library cannot be made; the first line of the message says why."""


@dataclass(frozen=True, slots=True)
class CSources:
    """Describes one shared library: its sources in `folder`, and the functions `tandem_NAME` that it exports."""

    folder: Path
    name: str
    sources: Sequence[str]
    functions: Mapping[str, Signature]
    flags: Sequence[str] = ("-O3", "-shared", "-fPIC")
    instructions: Sequence[str] = ()  # of x86-64 that all of its code is made of, as /proc/cpuinfo names them

    @property
    def for_this_machine(self) -> bool:
        """Tells whether it can be compiled here, for this processor or a later one."""
        return not self.instructions or platform.machine() == "x86_64"

    def load(self, logger: logging.Logger, without: str) -> ctypes.CDLL | None:
        """Returns the library; None where the processor lacks instructions. Where there is no library, logs why and
        what is lost `without` it, and returns None."""
        if not set(self.instructions) <= set(processor_fact("flags").split()):
            return None
        try:
            refused: set[Path] = set()
            library = self._kept(logger, refused) or self._made(logger, refused)
        except (OSError, CompileError) as error:
            reason = str(error).splitlines()[0]
            logger.warning("compiled %s are not available (%s): %s; install a C compiler", self.name, reason, without)
            return None
        for name, (arguments, result) in self.functions.items():
            function = getattr(library, f"tandem_{name}")
            function.argtypes, function.restype = arguments, result
        return library

    def _kept(self, logger: logging.Logger, refused: set[Path]) -> ctypes.CDLL | None:
        """Returns the library beside its sources or in the cache, if one is there that may be loaded and was not
        `refused` before; what is refused now is added there."""
        command = _compiler()
        stem, cache = self._stem(command), cache_folder()
        beside = sorted(self.folder.glob(f"{stem}-*-*.so"))
        found = [(path, unsafe(path, self.folder / self.sources[0])) for path in beside]
        if cache is not None:
            kept = sorted(cache.glob(f"{stem}-{_hash(command)}-*.so"))
            found += [(path, unsafe(cache) or unsafe(path)) for path in kept]
        for path, problem in found:
            if path in refused:
                continue
            problem = problem or _altered(path)
            if problem is None:
                try:
                    library = ctypes.CDLL(str(path))
                except OSError as error:  # made for another C library, say
                    problem = str(error)
                else:
                    if path.parent == cache:
                        mark_used(path)
                    return library
            logger.warning("%s is not loaded: %s", path, problem)
            refused.add(path)
        return None

    def _made(self, logger: logging.Logger, refused: set[Path]) -> ctypes.CDLL:
        """Compiles the library, unless another process does just then, and loads it; raises OSError or
        CompileError."""
        with contextlib.ExitStack() as stack:
            folder = _writable_cache(logger)
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-")))
            else:
                stack.enter_context(self._one_at_a_time(folder, logger))
                if kept := self._kept(logger, refused):
                    return kept
            _sweep(folder)
            if command := _compiler():
                level = logging.WARNING if len(self.sources) > _MANY_SOURCES else logging.INFO
                words = "compiling %s once for this machine (%d sources, %s)"
                logger.log(level, words, self.name, len(self.sources), command[0])
            began = time.monotonic()
            made = self.compile_into(folder)
            logger.info("compiled %s in %.1f s", self.name, time.monotonic() - began)
            return ctypes.CDLL(str(made))

    @contextlib.contextmanager
    def _one_at_a_time(self, folder: Path, logger: logging.Logger) -> Iterator[None]:
        """Waits for another process that compiles this library into `folder`; not for one that stands still, nor on
        file systems without locks."""
        path = folder / f"{_UNFINISHED}{self._stem(_compiler())}.lock"
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                lock = stack.enter_context(path.open("w"))
                stack.callback(path.unlink, missing_ok=True)
                if not _locked(lock.fileno()):
                    logger.warning("another process compiles %s: waiting for it", self.name)
                    last = time.monotonic() + _TURNS * _COMPILE_SECONDS
                    while not _locked(lock.fileno()) and time.monotonic() < last:
                        time.sleep(_TURN_SECONDS)
            yield

    def compile_into(self, folder: Path, *, portable: bool = False) -> Path:
        """Compiles the library for this machine, or, `portable`, for all of its kind, whatever `CC` says.

        Compiles into a temporary file and renames it when it is complete and on the disk, so that nobody sees part of
        one. Raises OSError or CompileError.
        """
        command = _compiler()
        if not command:
            raise CompileError(f"no C compiler: neither CC nor {', '.join(_COMPILERS)}")
        with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as private:
            made = Path(private) / f"{self.name}.so"
            flags = [*self.flags, *(_OLDEST.get(platform.machine(), ()) if portable else ())]
            sources = [str(self.folder / name) for name in self.sources]
            if len(sources) > 1:  # each apart, as many at once as there are cores
                objects = [str(Path(private) / f"{place}.o") for place in range(len(sources))]
                apart = [[*command, *flags, "-c", "-o", *step] for step in zip(objects, sources, strict=True)]
                with ThreadPoolExecutor(available_cores()) as pool:
                    try:
                        list(pool.map(_run, apart))
                    except BaseException:
                        pool.shutdown(wait=False, cancel_futures=True)  # what is not begun
                        raise
                sources = objects
            _run([*command, *flags, "-o", str(made), *sources, "-lm"])
            made.chmod(0o755)
            with made.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()[:_CONTENT_DIGITS]
                os.fsync(file.fileno())
            stem = self._stem(()) if portable else self._stem(command)
            target = folder / f"{stem}-{_hash(command)}-{content}.so"
            made.replace(target)
        return target

    def _stem(self, command: Sequence[str]) -> str:
        digest = hashlib.sha256(repr(tuple(self.flags)).encode())
        for path in _with_headers(self.folder / name for name in self.sources):
            digest.update(path.read_bytes())
        return f"{self.name}-{_machine([*command, *self.flags])}-{digest.hexdigest()[:16]}"


def _locked(file: int) -> bool:
    """Locks an open file, if no other process has; raises OSError where none can be."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _with_headers(sources: Iterable[Path]) -> list[Path]:
    """Returns the sources and the headers that they include by `#include "..."`, and these include, each once."""
    found = dict.fromkeys(sources)
    left = list(found)
    while left:
        path = left.pop()
        headers = [Path(os.path.normpath(path.parent / name)) for name in _INCLUDE.findall(path.read_text("utf-8"))]
        left += [header for header in headers if header not in found]
        found |= dict.fromkeys(headers)
    return list(found)


def _compiler() -> list[str]:
    """Returns the words of the compiler's command; empty where there is none."""
    try:
        words = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise CompileError(f"CC={os.environ['CC']}: {error}") from None
    return words or [name for name in _COMPILERS if shutil.which(name)][:1]


def _run(command: Sequence[str]) -> None:
    """Runs the compiler; one that hangs is ended with all its children. It belongs to the group of this process, so
    that whoever ends the group by force ends it, too. Raises OSError or CompileError."""
    with subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            said = _said(process, command[0])
        except BaseException:
            for pid in processes_of(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise
    if process.returncode:
        lines = (said.strip() or f"ended with {process.returncode}").splitlines()
        raise CompileError("\n".join([f"{command[0]} failed: {lines[-1]}", *lines[:-1]]))


def _said(compiler: subprocess.Popen[str], name: str) -> str:
    """Waits for its end and returns what it wrote to standard error. Raises CompileError."""
    used = still = 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return compiler.communicate(timeout=min(_LOOK_SECONDS, _COMPILE_SECONDS))[1]
        work = work_of(compiler.pid)
        still = 0.0 if work.ready or work.seconds > used else still + _LOOK_SECONDS
        used = work.seconds
        if max(used, still) >= _COMPILE_SECONDS:
            raise CompileError(f"{name} was not done after {_COMPILE_SECONDS:g} seconds")


def _machine(words: Sequence[str]) -> str:
    """Names the machine that the code is for; a `-march=native` library is not loaded on another processor."""
    machine = platform.machine()
    if not any(word.endswith("=native") for word in words):
        return machine
    return f"{machine}.{_hash(sorted(processor_fact('flags', 'Features').split()) or [platform.node()])}"


def _hash(words: Sequence[str]) -> str:
    return hashlib.sha256(repr(list(words)).encode()).hexdigest()[:8]


def cache_folder() -> Path | None:
    """Returns the folder where libraries are kept; None where there is no home."""
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "tandem"
    try:
        return Path.home() / ".cache" / "tandem"
    except RuntimeError:
        return None


def mark_used(path: Path) -> None:
    """Says that what is kept in the cache is still used."""
    with contextlib.suppress(OSError):  # it may be root's
        os.utime(path)


def _sweep(folder: Path) -> None:
    """Removes what those have left that were killed while they compiled, and what other releases kept and nobody has
    used for long."""
    for pattern, most in _LEFT.items():
        for left in folder.glob(pattern):
            with contextlib.suppress(OSError):  # another process may remove it, too
                if time.time() - left.lstat().st_mtime > most:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()


def _writable_cache(logger: logging.Logger) -> Path | None:
    """Returns the folder where libraries are kept, if it can be written safely; otherwise logs the reason."""
    folder = cache_folder()
    if folder is None:
        problem: str | None = "there is no home"
    else:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = unsafe(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
            if problem is None and (free := shutil.disk_usage(folder).free) < _ROOM:
                problem = f"only {free >> 20} MiB are free there"
        except OSError as error:
            problem = error.strerror or str(error)
    if problem is None:
        return folder
    logger.warning("compiled libraries cannot be kept in %s: %s", folder or "~/.cache", problem)
    return None


def unsafe(path: Path, source: Path | None = None) -> str | None:
    """Explains why somebody who cannot write `source` could have written a file or folder; empty if nobody could."""
    try:
        state = path.stat() if path.is_dir() else path.lstat()
        trusted = None if source is None else source.stat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(state.st_mode) and not stat.S_ISREG(state.st_mode):
        return "it is not a plain file"
    if state.st_uid not in (0, os.geteuid(), *([] if trusted is None else [trusted.st_uid])):
        return f"it belongs to user {state.st_uid}"
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~(0 if trusted is None else trusted.st_mode):
        return f"others may write to it (mode {stat.S_IMODE(state.st_mode):o})"
    return None


def _altered(path: Path) -> str | None:
    """Explains why a file's content is not the one that its name tells; empty if it is."""
    try:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()[:_CONTENT_DIGITS]
    except OSError as error:
        return error.strerror or str(error)
    return None if path.stem.endswith(f"-{content}") else "it is damaged"
