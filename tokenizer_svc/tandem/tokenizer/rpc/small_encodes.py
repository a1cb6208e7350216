"""Small Encode requests to their answers by `small_encode.c`: from bytes to bytes, by one call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import numpy as np

from tandem.tokenizer.arrays import Ids
from tandem.tokenizer.native.compiled_encoder import CompiledEncoder
from tandem.tokenizer.native.library import library
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.wire import packed

LONGEST = 1024  # bytes of text, which take some ten microseconds: what a long one costs is not worth another way
_AN_ID, _HEADS = 5, 32  # as in `small_encode.c`


class _Packed(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char_p), ("size", ctypes.c_int64), ("ids", ctypes.c_int64))


class _SmallEncodes(ctypes.Structure):
    _fields_ = (
        ("encode", ctypes.c_void_p),
        ("works_on", ctypes.c_void_p),
        ("begins_token", ctypes.c_char_p),
        ("front", _Packed),
        ("back", _Packed),
        ("fingerprint", _Packed),
        ("longest", ctypes.c_int64),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("counts", ctypes.c_void_p),
        ("bounds", ctypes.c_void_p),
        ("bounds_size", ctypes.c_int64),
    )


class SmallCounts:
    """Counts what is answered here, in plain numbers that C adds to and that are never taken back."""

    def __init__(self, bounds: Sequence[int]) -> None:
        """`bounds` are the most tokens of each number of requests, but for the last, which has those with more."""
        self.bounds = array("q", bounds)
        self.counts = array("q", bytes(8 * (2 + len(bounds) + 1)))

    def read(self) -> tuple[int, int, list[int]]:
        """Returns the bytes of text, the tokens, and how many requests there were by their number of tokens."""
        size, tokens, *requests = self.counts
        return size, tokens, requests


class SmallEncodes:
    """Answers small requests to one tokenizer. For one thread at a time."""

    def __init__(
        self,
        encoder: CompiledEncoder,
        tokens: bytes,
        added: tuple[Ids, Ids],
        fingerprint: bytes,
        longest: int,
        counts: SmallCounts,
    ) -> None:
        """`tokens` are the first bytes of the tokens that are found in text, `added` what add_special puts around it,
        and `fingerprint` is that field of a response. Texts of at most `longest` bytes are served."""
        found = library()
        assert found is not None, "it has compiled the encoder"
        front, back = map(packed, added)
        ids = np.empty(longest + 1, np.uint32)
        size = _AN_ID * len(ids) + len(front) + len(back) + len(fingerprint) + _HEADS
        self._out = bytearray(size)
        self._view = memoryview(self._out)
        self._function = found.tandem_small_encode
        self._works_on = _SmallEncodes(
            ctypes.cast(encoder.function, ctypes.c_void_p),  # type: ignore[arg-type]
            encoder.address,
            bytes(byte in tokens for byte in range(256)),
            _Packed(front, len(front), len(added[0])),
            _Packed(back, len(back), len(added[1])),
            _Packed(fingerprint, len(fingerprint), 0),
            longest,
            ids.ctypes.data,
            ctypes.addressof(ctypes.c_char.from_buffer(self._out)),
            0,
            counts.counts.buffer_info()[0],
            counts.bounds.buffer_info()[0],
            len(counts.bounds),
        )
        self._address = ctypes.addressof(self._works_on)
        self._kept = (encoder, ids, counts)

    def answer(self, request: bytes, begin: int) -> bytes | None:
        """Returns the EncodeResponse to a request whose fields behind the tokenizer's name begin at `begin`; None where
        it is not such that it is answered here."""
        size = self._function(self._address, request, begin, len(request))
        return self._view[:size].tobytes() if size else None

    @property
    def tokens(self) -> int:
        """Returns how many ids were answered last."""
        found: int = self._works_on.tokens
        return found


def small_encodes(tokenizer: Tokenizer, fingerprint: bytes, longest: int, counts: SmallCounts) -> SmallEncodes | None:
    """Returns what answers small requests to a tokenizer; None where text does not go to a compiled encoder as it
    is."""
    found = tokenizer.compiled_text()
    if found is None:
        return None
    encoder, tokens = found
    return SmallEncodes(encoder, tokens, tokenizer.added_ids(), fingerprint, min(longest, LONGEST), counts)
