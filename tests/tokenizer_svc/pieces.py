"""What a vocabulary cuts text into, seen from outside: all stretches of the text are tokens that only pieces can be."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary

BYTES = [bytes([byte]) for byte in range(256)]


def all_stretches(text: str) -> list[bytes]:
    """What a piece of the text may be, but for single bytes."""
    data = text.encode()
    return sorted({data[start:end] for start in range(len(data)) for end in range(start + 2, len(data) + 1)})


def pieces_of(patterns: Sequence[str], text: str) -> list[str]:
    """The pieces of a short text."""
    tokens = BYTES + all_stretches(text)
    whole = {token: index for index, token in enumerate(tokens) if index >= 256}
    vocabulary = BpeVocabulary([(byte, index) for index, byte in enumerate(BYTES)], patterns, whole)
    return [tokens[index].decode() for index in vocabulary.encode(text).tolist()]
