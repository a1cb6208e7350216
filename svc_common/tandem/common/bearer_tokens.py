"""Bearer tokens: who may call.

A token file has one token a line, if you like behind the caller's name and a colon (`NAME: TOKEN`); empty lines and
lines that begin with # are skipped. Two lines during a rotation let old and new callers in at once; under one name they
are one caller. The file is read again when it changes; should that fail, the known tokens stay in use.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import grpc

from tandem.common.errors import ServiceError, StartError

logger = logging.getLogger("tandem.common.bearer_tokens")

_LOOK_AGAIN = 1.0  # seconds between two looks at the file
_SHORTEST = 16  # characters
_NAMED = re.compile(r"([\w.@/-]{1,128}):\s+(.*)", re.ASCII)
_LARGEST = 1 << 18  # bytes of a file: each call is compared with all tokens


class BearerTokens:
    """Holds the tokens of one file. Until `load`, nobody is let in."""

    def __init__(self, path: Path, setting: str = "auth_token_file") -> None:
        """Remembers the file; `setting` names it in errors."""
        self._path, self._setting = path, setting
        self._names: dict[bytes, str] = {}  # of the callers, by the digests of their tokens
        self._stamp: tuple[int, int, int] | None = None
        self._looked = time.monotonic()

    def load(self) -> None:
        """Reads the file for the first time. Raises StartError when it gives no tokens."""
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise StartError(f"{self._setting} {self._path}: {_words(error)}") from None

    def refusal(self, metadata: Iterable[tuple[str, str | bytes]]) -> ServiceError | None:
        """Returns None for a caller with a known token, else the error that it gets."""
        self._look()
        digest = _shown(metadata)
        if digest is None:
            return _unauthenticated(
                "this server asks for a bearer token: send the metadata 'authorization: Bearer TOKEN'"
            )
        # Digests have one length, and all are compared: the time tells nothing about any token.
        if sum(hmac.compare_digest(digest, known) for known in self._names):
            return None
        return _unauthenticated("the bearer token is not one of this server's")

    def name(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Returns the caller's name: that in the file, or else the beginning of the token's SHA-256. None means that
        the token is not known."""
        digest = _shown(metadata)
        return None if digest is None else self._names.get(digest)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_AGAIN:
            return
        self._looked = now
        try:
            if _stamp(self._path) != self._stamp:
                self._read()
                logger.info("%s has changed: %d tokens", self._path, len(self._names))
        except (OSError, ValueError) as error:
            logger.error("%s: %s; the tokens read before stay in use", self._path, _words(error))

    def _read(self) -> None:
        stamp = _stamp(self._path)
        with self._path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError(f"is larger than {_LARGEST >> 10} KiB")
        lines = [line.strip() for line in content.decode().splitlines()]
        entries = [_entry(line) for line in lines if line and not line.startswith("#")]
        if not entries:
            raise ValueError("holds no token")
        tokens = [token for _, token in entries]
        if any(len(token) < _SHORTEST for token in tokens):
            raise ValueError(f"holds a token of fewer than {_SHORTEST} characters")
        if not all(token.isascii() and token.isprintable() for token in tokens):
            raise ValueError("holds a token that no header can carry: only printable ASCII characters may be in it")
        self._names = {_digest(token): name or _digest(token).hex()[:16] for name, token in entries}
        self._stamp = stamp


def _unauthenticated(message: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.UNAUTHENTICATED, message, reason="UNAUTHENTICATED")


def _shown(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """Returns the digest of the bearer token in the metadata."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                return _digest(token.strip())
    return None


def _entry(line: str) -> tuple[str, str]:
    """Splits a line into name (empty where there is none) and token."""
    named = _NAMED.fullmatch(line)
    return (named[1], named[2]) if named else ("", line)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _stamp(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)  # noqa: PTH116  (follows the links by which Kubernetes swaps secrets)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _words(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"  # and its own words would quote the file
    return (error.strerror or "cannot be read") if isinstance(error, OSError) else str(error)
