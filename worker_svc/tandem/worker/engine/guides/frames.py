"""The messages between an engine and its guides' processes: length, processor seconds, memory, a msgpack struct."""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

_HEADER = struct.Struct("<IdI")  # bytes that follow, processor seconds and KiB of memory of the sender so far
_READ_BYTES = 1 << 18


class Words(msgspec.Struct, array_like=True):
    """Gives the fork server, in a file, the bytes of all ids, and which are no text."""

    size: int  # of the model's vocabulary, which may have ids behind the last of `pieces`
    eos_ids: list[int]
    pieces: list[bytes]
    special_ids: list[int]


class Compile(msgspec.Struct, tag=True, array_like=True):
    """Gives a new process its guide. Answered by `Compiled`."""

    kind: str
    text: str


class Check(msgspec.Struct, tag=True, array_like=True):
    """Asks whether the guide allows this output (int32). Answered by `Checked`."""

    serial: int
    output: bytes


class Advance(msgspec.Struct, tag=True, array_like=True):
    """Gives more output (int32) of a request, of `position` tokens by now. Answered by its state. A session that is not
    known begins."""

    session: int
    position: int
    tokens: bytes
    forced: bool  # whether the tokens that must follow are wanted


class Fill(msgspec.Struct, tag=True, array_like=True):
    """Asks what may come next. Answered by a mask."""

    session: int
    position: int


class Walk(msgspec.Struct, tag=True, array_like=True):
    """Asks what may come after each of these drafts. Answered by masks, as many as drafts are allowed."""

    session: int
    number: int
    drafts: list[int]


class Close(msgspec.Struct, tag=True, array_like=True):
    """Says that the request is over. Not answered."""

    session: int


Asked = Compile | Check | Advance | Fill | Walk | Close


class Forked(msgspec.Struct, tag=True, array_like=True):
    """Says, first of all, that the process is there."""

    pid: int


class Compiled(msgspec.Struct, tag=True, array_like=True):
    """Says what is wrong with the guide; empty: nothing. With `unavailable` no guide can be served."""

    error: str
    unavailable: bool = False


class Checked(msgspec.Struct, tag=True, array_like=True):
    """Says how many of the tokens are allowed."""

    serial: int
    allowed: int


class Answer(msgspec.Struct, tag=True, array_like=True):
    """Carries what a matcher says; `error`, if any, ends its request."""

    session: int
    position: int  # or number, of a walk
    what: str  # "state", "mask", "walk", "failed"
    error: str = ""
    ended: bool = False  # the grammar allows nothing more
    forced: list[int] = []  # tokens that must follow, in all likelihood: other ids could spell the same text
    masks: list[bytes] = []  # "mask": of the next token; "walk": after each draft, as far as they are allowed
    ends: list[bool] = []  # "walk": whether the grammar has ended after each of them
    ours: bool = False  # "failed": it is not the guide's fault


Said = Forked | Compiled | Checked | Answer


Received = TypeVar("Received")


class ChannelClosedError(Exception):
    """The other end has closed the connection."""


class Channel(Generic[Received]):
    """One end of a stream of messages. Sending never blocks; `receive` blocks where the socket does."""

    def __init__(self, connection: socket.socket, received: Any) -> None:
        """`received` is the type of the messages that come."""
        self.socket = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(received)
        self._inbox, self._outbox = bytearray(), bytearray()
        self.seconds = 0.0  # of the other end's processor time
        self.memory = 0  # of the other end, KiB

    def send(self, message: object) -> None:
        """Sends a message; what does not fit now goes with a later `flush`."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        frame = self._encoder.encode(message)
        self._outbox += _HEADER.pack(len(frame), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
        self._outbox += frame
        self.flush()

    @property
    def flushed(self) -> bool:
        """Tells whether nothing waits to be sent."""
        return not self._outbox

    def flush(self) -> bool:
        """Sends what it can; returns whether nothing waits to be sent any more."""
        try:
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]
        except BlockingIOError:
            return False
        except ConnectionError:  # whoever reads sees it too
            self._outbox.clear()
        return True

    def receive(self) -> list[Received]:
        """Returns the messages that have come, after waiting for bytes once; raises ChannelClosedError."""
        try:
            found = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError:
            found = b""
        if not found:
            raise ChannelClosedError
        self._inbox += found
        messages: list[Received] = []
        begin = 0
        while len(self._inbox) - begin >= _HEADER.size:
            length, seconds, memory = _HEADER.unpack_from(self._inbox, begin)
            end = begin + _HEADER.size + length
            if len(self._inbox) < end:
                break
            self.seconds, self.memory = seconds, memory
            messages.append(self._decoder.decode(memoryview(self._inbox)[begin + _HEADER.size : end]))
            begin = end
        del self._inbox[:begin]
        return messages


def shared(broadcast: Callable[[bytes], bytes]) -> Callable[[list[Answer]], list[Answer]]:
    """Carries rank 0's answers to all ranks."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[Answer])
    return lambda answers: decoder.decode(broadcast(encoder.encode(answers)))
