"""RWKV: the longest token that matches the text's bytes, from left to right.

What comes next is a function of the next bytes. So the answer for the next few is kept: the longest token within them,
and the lengths of the longer tokens that begin with them, which are few. Text says the same again and again, so that
most tokens cost one look-up. The first two bytes of a new window lead to the lengths that occur with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tokenizer_svc.arrays import Ids, ids_of
from tokenizer_svc.vocabulary import VocabularyType

_WINDOW = 5  # bytes: a longer one is seen again less often, a shorter one leaves more longer tokens to try
_WINDOWS_KEPT = 1 << 16  # some 10 MB


class RwkvVocabulary:
    """`tokens` lists (bytes, id). Bytes that begin no token become `unk_id`, or are dropped where it is None.

    Text never becomes a control token here: they are left out of `tokens`.
    """

    type = VocabularyType.RWKV
    safe_border = None
    encoder = "Python"

    def __init__(self, tokens: Sequence[tuple[bytes, int]], unk_id: int | None) -> None:
        self._ids = {token: index for token, index in tokens if token}
        # The longest length first; single bytes are the last resort, and stand in a list of their own.
        self._short = _lengths_by_start((token for token in self._ids if 1 < len(token) <= _WINDOW), 2)
        self._long = _lengths_by_start((token for token in self._ids if len(token) > _WINDOW), _WINDOW)
        self._single = [self._ids.get(bytes([byte]), unk_id) for byte in range(256)]
        self._unk_id = unk_id
        # Of a window of bytes: the lengths of longer tokens to try, then the token within it, and that one's length.
        self._windows: dict[bytes, tuple[tuple[int, ...], int | None, int]] = {}

    def encode(self, text: str) -> Ids:
        return ids_of(self._match(text.encode(), None))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        offsets: list[int] = []
        return ids_of(self._match(text.encode(), offsets)), ids_of(offsets)

    def behaviour(self) -> Iterator[bytes]:
        yield b"unknown " + str(self._unk_id).encode()

    def _match(self, data: bytes, offsets: list[int] | None) -> list[int]:
        ids: list[int] = []
        find, window_of, look = self._ids.get, self._windows.get, self._look
        at, end = 0, len(data)
        while at < end:
            window = data[at : at + _WINDOW]
            longer, found, size = window_of(window) or look(window)
            for length in longer:
                token = find(data[at : at + length])
                if token is not None:
                    found, size = token, length
                    break
            if found is not None:
                ids.append(found)
                if offsets is not None:
                    offsets.append(at)
            at += size
        return ids

    def _look(self, window: bytes) -> tuple[tuple[int, ...], int | None, int]:
        """What `_windows` holds of it from now on."""
        found, size = self._single[window[0]], 1
        for length in self._short.get(window[:2], ()):
            token = self._ids.get(window[:length])
            if token is not None and length <= len(window):
                found, size = token, length
                break
        if len(self._windows) >= _WINDOWS_KEPT:
            self._windows.clear()
        answer = self._windows[window] = (self._long.get(window, ()), found, size)
        return answer


def _lengths_by_start(tokens: Iterable[bytes], size: int) -> dict[bytes, tuple[int, ...]]:
    """The lengths of the tokens that begin with the same `size` bytes, the longest first."""
    lengths: dict[bytes, set[int]] = {}
    for token in tokens:
        lengths.setdefault(token[:size], set()).add(len(token))
    return {start: tuple(sorted(found, reverse=True)) for start, found in lengths.items()}
