"""Answers small Encode requests from bytes to bytes: by one call where the tokenizer's encoder is compiled, and by
`EncodeCalls` where it is not."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from tandem.tokenizer.rpc.encode_calls import EncodeCalls
from tandem.tokenizer.rpc.loaded import LoadedTokenizers
from tandem.tokenizer.rpc.small_encodes import LONGEST, SmallEncodes
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

_LARGEST = LONGEST + 512  # bytes of a request, some of them the tokenizer's name
_NAME = 1 << 3 | 2  # the tag of that, which stands in front where it is given
_LONG_NAME = 0x80  # bytes; the length of others takes one


class SmallEncodeCalls:
    """Serves the calls of one event loop."""

    def __init__(self, loaded: LoadedTokenizers, encoding: EncodeCalls) -> None:
        self._loaded = loaded
        self._encoding = encoding
        self._name = ""  # of the tokenizer that was used last, and how many tokens it made
        self._tokens: SmallEncodes | int = 0

    def answer(self, request: bytes) -> bytes | None:
        """Returns an EncodeResponse to an EncodeRequest; None where the ordinary way has to."""
        if not 1 < len(request) <= _LARGEST:
            return None
        begin, name = 0, ""
        if request[0] == _NAME:
            if request[1] >= _LONG_NAME:
                return None
            begin = 2 + request[1]
            name = str(request[2:begin], "utf-8", "replace")
        loaded = self._loaded.at_hand(name)
        if loaded is None:
            return None
        self._name = loaded.name
        if loaded.small is not None and (answer := loaded.small.answer(request, begin)) is not None:
            self._tokens = loaded.small
            return answer
        try:
            message = pb.EncodeRequest.FromString(request)
        except DecodeError:
            return None
        little = self._encoding.encode_little(loaded, message) if message.tokenizer == name else None
        if little is None:
            return None
        answer, self._tokens = little
        return answer

    def facts(self) -> dict[str, object]:
        """Returns what the log tells of the request that was answered last."""
        tokens = self._tokens if isinstance(self._tokens, int) else self._tokens.tokens
        return {"tokenizer": self._name, "tokens": tokens}
