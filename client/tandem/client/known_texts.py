"""What ids show in plain streams, as the tokenizer service told.

A stream that holds nothing back, and of which nothing but text is asked, gives each id the same text whatever came
before (`plain` of DecodeStreamResponse). So what an id shows is asked for once. A client with many answers has the
service tell what all ids show, some with each stream that it opens.
"""

from __future__ import annotations

from tandem.tokenizer.v1 import tokenizer_pb2 as pb

MOST_KEPT = 1_048_576  # texts, of all tokenizers


class Texts(dict[int, str]):
    """What ids show in plain streams of one tokenizer and its options."""

    next: int | None = 0  # the id from which on it was not asked; None: it was asked for all
    asked = False  # a stream that is being opened asks


class KnownTexts:
    """The texts of all tokenizers of one client."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, bytes], Texts] = {}  # by fingerprint and options
        self.latest: dict[tuple[str, bytes], Texts] = {}  # by name and options

    def to_ask_for(self, opening: pb.DecodeStreamOpen) -> Texts | None:
        """Returns the texts of which a stream that is to be opened shall bring more."""
        if opening.stop_strings or opening.graphemes or opening.include_pieces or opening.HasField("answer"):
            return None  # it is never plain
        texts = self.latest.get((opening.tokenizer, _key(opening)))
        return None if texts is None or texts.asked or texts.next is None else texts

    def of(self, fingerprint: str, opening: pb.DecodeStreamOpen) -> Texts:
        """Returns those of the tokenizer of this fingerprint, which a stream was opened with; whoever learns more adds
        it."""
        if sum(map(len, self._all.values())) >= MOST_KEPT:
            self._all.clear()
            self.latest.clear()
        options = _key(opening)
        texts = self.latest[opening.tokenizer, options] = self._all.setdefault((fingerprint, options), Texts())
        return texts


def _key(opening: pb.DecodeStreamOpen) -> bytes:
    return opening.options.SerializeToString(deterministic=True)
