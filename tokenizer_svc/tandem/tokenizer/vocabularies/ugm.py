"""SentencePiece unigram (T5), by the sentencepiece library, which normalizes text with the model's own character map.

A model that merges white space swallows it at the beginning of a text, where the caller's space prefix would be. So
there are two processors: one puts the prefix there itself, and takes text that begins with white space; the other takes
text that goes on from what is before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.arrays import NONE, Ids, ids_of
from tandem.tokenizer.vocabularies.spm import mapped_offsets, normalizer_behaviour
from tandem.tokenizer.vocabulary import Located, VocabularyType


class UgmVocabulary:
    """A vocabulary over `model`, a SentencePiece model of type UNIGRAM. The model is changed: its own space prefix is
    switched on and off."""

    type = VocabularyType.UGM
    safe_border = None
    encoder = "sentencepiece"

    def __init__(self, model: ModelProto) -> None:
        if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM:
            raise ValueError("the SentencePiece model is not of type UNIGRAM")
        self._normalizer = normalizer_behaviour(model)
        self._byte_fallback = model.trainer_spec.byte_fallback
        model.normalizer_spec.add_dummy_prefix = False
        self._going_on = SentencePieceProcessor(model_proto=model.SerializeToString())
        self._beginning = self._going_on
        if model.normalizer_spec.remove_extra_whitespaces:
            model.normalizer_spec.add_dummy_prefix = True
            self._beginning = SentencePieceProcessor(model_proto=model.SerializeToString())

    def encode(self, text: str) -> Ids:
        return ids_of(self._processor(text).EncodeAsIds(text))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) if text else NONE for text in texts]

    def encode_with_offsets(self, text: str) -> Located:
        return mapped_offsets(self._processor(text), text)

    def behaviour(self) -> Iterator[bytes]:
        yield b"normalizer " + self._normalizer
        yield b"byte fallback " + str(self._byte_fallback).encode()

    def _processor(self, text: str) -> SentencePieceProcessor:
        return self._beginning if text[:1].isspace() else self._going_on
