"""SentencePiece unigram (T5), by the sentencepiece library, which normalizes text with the model's character map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.arrays import NONE, Ids, ids_of
from tandem.tokenizer.vocabularies.spm import Processors, mapped_offsets, normalizer_behaviour
from tandem.tokenizer.vocabulary import Located, VocabularyType


class UgmVocabulary:
    """A vocabulary over `model`, a SentencePiece model of type UNIGRAM. The model is changed: its own space prefix is
    switched off. `prefixed`: callers put a space in front of text that does not go on from another one."""

    type = VocabularyType.UGM
    safe_border = None
    encoder = "sentencepiece"

    def __init__(self, model: ModelProto, *, prefixed: bool = True) -> None:
        if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM:
            raise ValueError("the SentencePiece model is not of type UNIGRAM")
        self._normalizer = normalizer_behaviour(model)
        self._byte_fallback = model.trainer_spec.byte_fallback
        self._processors = Processors(model, prefixed=prefixed)

    def first_of(self, text: str) -> str:
        """Returns the first character of the text that the model sees, or nothing where it drops all of it."""
        return self._processors.first_of(text)

    def encode(self, text: str) -> Ids:
        return ids_of(self._processors.of(text).EncodeAsIds(text))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) if text else NONE for text in texts]

    def encode_with_offsets(self, text: str) -> Located:
        return mapped_offsets(self._processors.of(text), text)

    def behaviour(self) -> Iterator[bytes]:
        yield b"normalizer " + self._normalizer
        yield b"byte fallback " + str(self._byte_fallback).encode()
