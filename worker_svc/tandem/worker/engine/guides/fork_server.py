"""`python -m tandem.worker.engine.guides.fork_server CONTROL WORDS MEMORY ENGINE`: two file descriptors, bytes for each
guide, and the engine's process id.

Engines start it. It builds what llguidance wants to know of a vocabulary, once, and then forks a process for each
socket that comes over CONTROL. It imports little and has one thread, so that a fork is safe, quick and small. It leaves
when CONTROL ends or ENGINE does, and those it has forked end with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tandem.worker.engine.guides.frames import Words
from tandem.worker.engine.guides.keeper import keep
from tandem.worker.engine.guides.kinship import end_with_parent
from tandem.worker.engine.guides.limits import GUIDE_NICE, STACK_BYTES

if TYPE_CHECKING:
    import llguidance


_ATTEMPTS = 5


class _Vocabulary:
    """Offers llguidance what it asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, words: Words) -> None:
        # Ids that the tokenizer does not know have no text and are never allowed. A model without an end-of-sequence
        # id gets one behind its vocabulary.
        self.size = words.size + (not words.eos_ids)
        self.eos_ids = words.eos_ids or [words.size]
        self.tokens = words.pieces + [b""] * (self.size - len(words.pieces))
        self.special_token_ids = sorted({*words.special_ids, *self.eos_ids})
        self.eos_token_id = self.eos_ids[0]
        self.tokenizer: llguidance.LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """Returns ids of a text that is forced, which are drafts. Longest pieces first: every spelling is allowed, and
        this one takes the fewest steps."""
        if not isinstance(text, str):
            raise TypeError("text only")
        return self.tokenizer.greedy_tokenize(text) if self.tokenizer is not None else []


def build_tokenizer(words: Words) -> llguidance.LLTokenizer:
    """Returns llguidance's form of a vocabulary."""
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary = _Vocabulary(words)
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocabulary.size, eos_token=vocabulary.eos_ids)
    vocabulary.tokenizer = tokenizer
    return tokenizer


def _stand_back() -> None:
    """Leaves the processors to the steps and to what carries their results.

    Where the kernel groups processes by sessions (autogroup), nice counts within a session alone: in the engine's, a
    guide that computes for seconds is work of the engine, for which the front, in its own session, waits. At the lowest
    rank (19) the masks of honest guides would wait for whoever computes beside them.
    """
    os.nice(GUIDE_NICE)
    with contextlib.suppress(OSError):  # there may be no such groups
        for _ in range(_ATTEMPTS):
            try:
                Path("/proc/self/autogroup").write_text(str(GUIDE_NICE), "ascii")
                return
            except BlockingIOError:  # the kernel allows one such change in a tenth of a second to all users but root
                time.sleep(0.1)


def main() -> None:
    """Serves until CONTROL ends."""
    end_with_parent(int(sys.argv[4]))
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the engine tells us when to leave
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the engine sees the ends of processes by their sockets
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    if hard == resource.RLIM_INFINITY or hard >= STACK_BYTES:
        resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    _stand_back()
    with os.fdopen(int(sys.argv[2]), "rb") as file:
        file.seek(0)
        words = msgspec.msgpack.decode(file.read(), type=Words)
    tokenizer: llguidance.LLTokenizer | str
    try:
        tokenizer = build_tokenizer(words)
    except Exception as error:  # of the vocabulary, which no request can help
        tokenizer = f"{type(error).__name__}: {error}"
    memory = int(sys.argv[3])
    del words
    # What is shared with those that are forked is not touched, and so not copied, by the collector.
    gc.collect()
    gc.freeze()
    fork_server = os.getpid()
    while True:
        found, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not found:
            return
        connection = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            code = 1
            try:
                control.close()
                keep(connection, tokenizer, memory, fork_server)
                code = 0
            finally:
                os._exit(code)
        connection.close()


if __name__ == "__main__":
    main()
