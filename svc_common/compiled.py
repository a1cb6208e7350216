"""C sources that a package brings along: compiled by the machine's own compiler when they are first needed, and kept.

The result stays in `$XDG_CACHE_HOME/tandem` (`~/.cache/tandem`) under a hash of what it was made of. A library that was
compiled beside the sources (`main`, for images without a compiler) is taken as it is.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

_COMPILE_SECONDS = 120

Signature: TypeAlias = tuple[Sequence[type[Any]], "type[Any] | None"]  # types of a function's arguments, and its result


@dataclass(frozen=True, slots=True)
class CSources:
    """The sources of one shared library in `folder`, and what it offers: functions `tandem_NAME`."""

    folder: Path
    name: str
    sources: Sequence[str]
    headers: Sequence[str]
    functions: Mapping[str, Signature]
    flags: Sequence[str] = ("-O3", "-shared", "-fPIC")
    link_flags: Sequence[str] = ()  # where libraries lie on this machine

    @property
    def prebuilt(self) -> Path:
        """The library beside its sources, where somebody made it. `NAME.so` would be taken for a module NAME."""
        return self.folder / f"lib{self.name}.so"

    def load(self, logger: logging.Logger, without: str) -> ctypes.CDLL | None:
        """The library; None where it cannot be had, which is logged together with what is lost `without` it."""
        try:
            library = ctypes.CDLL(str(self.prebuilt if self.prebuilt.exists() else self._cached()))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home
            reason = str(error).splitlines()[0]
            logger.warning("the compiled %s are not there (%s): %s; a C compiler helps", self.name, reason, without)
            return None
        for name, (arguments, result) in self.functions.items():
            function = getattr(library, f"tandem_{name}")
            function.argtypes, function.restype = arguments, result
        return library

    def compile_to(self, target: Path) -> None:
        """Compiles the sources; raises OSError or SubprocessError. Nobody sees a half-written file."""
        compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            raise FileNotFoundError("no C compiler: neither CC nor cc, gcc, clang")
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            sources = [str(self.folder / name) for name in self.sources]
            command = [compiler, *self.flags, "-o", str(made), *sources, *self.link_flags, "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)  # noqa: S603
            if done.returncode:
                raise OSError(f"{compiler} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
            made.replace(target)

    def main(self) -> None:
        """Compiles the library beside its sources and says where it is; ends the process where that fails."""
        try:
            self.compile_to(self.prebuilt)
        except (OSError, subprocess.SubprocessError) as problem:
            raise SystemExit(str(problem)) from problem
        sys.stdout.write(f"{self.prebuilt}\n")

    def _cached(self) -> Path:
        """The library in the cache, made if it is not there; raises OSError, RuntimeError or SubprocessError."""
        files = [self.folder / name for name in (*self.headers, *self.sources)]
        text = b"".join(path.read_bytes() for path in files) + repr(tuple(self.flags)).encode()
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
        target = folder / f"{self.name}-{hashlib.sha256(text).hexdigest()[:16]}.so"
        if not target.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.compile_to(target)
        return target
