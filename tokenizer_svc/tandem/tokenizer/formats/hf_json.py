"""Hugging Face `tokenizer.json`: a pipeline of normalizer, pre-tokenizer, model and post-processor as JSON.

The pipelines that language models use are recognised and rebuilt with the same kinds of vocabulary that other formats
give. A step that is not among them is refused by name: to leave it out would be to tokenize wrongly in silence.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.arrays import ids_of
from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.formats.byte_alphabet import ALPHABET, from_alphabet
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.hf_decoder import read_decoder
from tandem.tokenizer.formats.hf_pipeline import Pipeline, read_pipeline, read_template
from tandem.tokenizer.formats.hf_shape import check_shape, model_kind
from tandem.tokenizer.formats.ids import check_reach, padded
from tandem.tokenizer.formats.roles import CONTROL_TEXTS, end_of_generation_ids
from tandem.tokenizer.formats.sentencepiece_model import BYTE_PIECE, piece_bytes
from tandem.tokenizer.formats.sidecar import AddedToken, Sidecar, read_added_token
from tandem.tokenizer.fragments import can_overlap, hides
from tandem.tokenizer.normalizing import Normalizer
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe.compiled_bpe import are_ranked_by_what_they_make
from tandem.tokenizer.vocabularies.bpe.merges import MergeList
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabularies.normalized import NormalizedVocabulary
from tandem.tokenizer.vocabularies.spm import SpmVocabulary
from tandem.tokenizer.vocabularies.spm_merging import SPACE
from tandem.tokenizer.vocabularies.ugm import UgmVocabulary
from tandem.tokenizer.vocabularies.word_pairs import Unknown, WordPairsVocabulary
from tandem.tokenizer.vocabularies.words import Cut, WordsVocabulary
from tandem.tokenizer.vocabularies.wpm import WpmVocabulary
from tandem.tokenizer.vocabulary import CONTROL_TYPES, DecodedForms, SpecialToken, TokenTable, TokenType, Vocabulary

_ALPHABET = frozenset(ALPHABET)
_BEYOND = re.compile(r"[\x00-\x20\x7f]")  # the alphabet has other characters for these bytes
# A byte that ByteLevel writes as one of the numbers ² ³ ¹ ¼ ½ ¾ beside another.
_NUMBER_BYTE_AND_OTHER = re.compile(
    rb"[\xb2\xb3\xb9\xbc-\xbe][^\xb2\xb3\xb9\xbc-\xbe]|[^\xb2\xb3\xb9\xbc-\xbe][\xb2\xb3\xb9\xbc-\xbe]"
)


def load(path: Path, content: Mapping[str, Any], sidecar: Sidecar) -> Tokenizer:
    """Loads a `tokenizer.json`. Raises FormatError."""
    try:
        return _Loader(path, content, sidecar).load()
    except (ValueError, RuntimeError) as error:  # sentencepiece reports a bad model as RuntimeError
        raise FormatError(path, str(error)) from None


class _Loader:
    def __init__(self, path: Path, content: Mapping[str, Any], sidecar: Sidecar) -> None:
        check_shape(content)
        self._path = path
        self._sidecar = sidecar
        self._content = content
        self._model: Mapping[str, Any] = content["model"]
        self._pipeline: Pipeline = read_pipeline(content)
        self._kind = model_kind(self._model)
        self._check_options()
        self._added = self._read_added()
        self._texts, self._known = self._read_texts()
        own = self._model["vocab"]
        self._own = set(own.values()) if isinstance(own, dict) else set(range(len(own)))
        self._specials, self._types = self._read_specials()
        self._check_added()
        self._ids = {text: index for index, text in enumerate(self._texts) if index in self._known}

    def _check_options(self) -> None:
        """Raises ValueError for an option of the model that would change its ids and is not supported."""
        for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if self._kind == "BPE" and self._model.get(option):
                raise ValueError(f"the model BPE with {option} {self._model[option]!r} is not supported")
        if self._pipeline.metaspace and self._model.get("ignore_merges"):
            raise ValueError("BPE with ignore_merges but without the pre-tokenizer ByteLevel is not supported")
        if self._kind == "BPE" and self._pipeline.merges_white_space:
            raise ValueError("the model BPE with steps that merge white space is not supported")

    def _check_added(self) -> None:
        """Raises ValueError for an added token that the library would find in text of another form."""
        for token in self._specials:
            text = token.text
            if token.normalized and not self._keeps_form(token):
                raise ValueError(f"the added token {text!r} with normalized and this normalizer is not supported")
            is_byte = self._pipeline.byte_level and text in _ALPHABET and token.id in self._own
            if is_byte and (token.type == TokenType.CONTROL or not text.isascii()):
                raise ValueError(f"the added token {text!r}, which stands for a byte, is not supported")
            if token.single_word and token.type in CONTROL_TYPES and token.id in self._own:
                raise ValueError(f"the token {text!r} with single_word, which text may become, is not supported")

    def _keeps_form(self, token: SpecialToken) -> bool:
        """Returns True when the normalizer turns the token's text into itself, and no other text into it."""
        pipeline, text = self._pipeline, token.text
        plain = text.isascii() and " " not in text
        if pipeline.forms:  # the next character may be a part of the last one
            lowered = "Lowercase" in pipeline.forms and any(map(str.isalpha, text))
            composed = {"NFC", "Lowercase"}.issuperset(pipeline.forms)
            spaced = " " in text and pipeline.replaces_spaces
            return text.isascii() and not text[-1:].isalpha() and not lowered and composed and not spaced
        if pipeline.bert is not None:  # which makes spaces of some white space, drops controls and adds spaces
            cased = pipeline.bert and any(map(str.isalpha, text))
            return plain and text.isprintable() and not cased and not token.single_word
        if pipeline.metaspace and (pipeline.replaces_spaces or pipeline.charsmap is not None):
            return plain and not token.lstrip and not token.rstrip
        return True

    def load(self) -> Tokenizer:
        scores: array[float] | None = None
        vocabulary: Vocabulary
        if self._kind == "BPE" and self._pipeline.byte_level:
            pieces = [self._byte_level_piece(index) for index in range(len(self._texts))]
            spelt = list(map(self._spelt, range(len(pieces)), pieces))
            self._check_bytes(spelt)
            vocabulary = self._normalized(self._byte_pairs(spelt))
        elif self._kind == "BPE" and self._pipeline.metaspace:
            pieces, scores = self._spaced_pieces(), self._scores_of_merges()
            vocabulary = self._normalized(SpmVocabulary(self._sentencepiece(scores)))
        elif self._kind == "Unigram" and self._pipeline.metaspace:
            pieces, scores = self._spaced_pieces(), self._scores_of_unigrams()
            vocabulary = self._normalized(UgmVocabulary(self._sentencepiece(scores)))
        elif self._kind == "WordPiece" and self._pipeline.bert is not None:
            pieces = self._word_pieces()
            vocabulary = self._words(self._pipeline.bert)
        elif self._kind == "BPE" and self._pipeline.words is not None:
            pieces = self._spaced_pieces() if self._model.get("byte_fallback") else [t.encode() for t in self._texts]
            vocabulary = self._normalized(self._word_pairs(self._pipeline.words))
        elif self._kind == "WordLevel" and self._pipeline.words is not None:
            pieces = [text.encode() for text in self._texts]
            vocabulary = self._normalized(self._whole_words(self._pipeline.words))
        else:
            raise ValueError(f"the model {self._kind} with this normalizer and pre-tokenizer is not supported")
        forms = read_decoder(self._content.get("decoder"), self._texts)
        if forms is None and self._pipeline.words is not None:  # the library puts spaces between tokens then
            forms = DecodedForms(dict(enumerate(pieces)), [b" " + piece if piece else b"" for piece in pieces])
        if forms is not None and self._pipeline.byte_level and not forms.first and list(forms.rest) == pieces:
            forms = None  # as most have it
        table = TokenTable(pieces, bytes(self._types), self._specials, scores, forms)
        return Tokenizer(vocabulary, padded(table, self._sidecar.model_ids), self._config())

    # --- tokens

    def _entries(self) -> Iterator[tuple[int, str]]:
        vocabulary = self._model["vocab"]
        if isinstance(vocabulary, dict):
            yield from ((index, text) for text, index in vocabulary.items())
        else:
            yield from ((index, text) for index, (text, _) in enumerate(vocabulary))
        yield from ((token.id, token.text) for token in self._added)

    def _read_added(self) -> list[AddedToken]:
        """Returns the added tokens, one for each text. As the library has it, one that the model knows has the model's
        id, the last of several with one text says how it is found, and those without a text are left out."""
        vocabulary = self._model["vocab"]
        own: Mapping[str, Any] = (
            vocabulary if isinstance(vocabulary, dict) else {text: index for index, (text, _) in enumerate(vocabulary)}
        )
        found: dict[str, AddedToken] = {}
        last = -1
        for number, entry in enumerate(self._content.get("added_tokens") or ()):
            text, index = entry["content"], int(entry["id"])
            if text in found:
                index = found[text].id
            elif text in own:
                index = own[text]
            elif text:
                if index <= last:  # the library numbers them in this order
                    raise ValueError(f"added_tokens[{number}] has the id {index} behind {last}: ids that do not ascend")
                last = index
            if text:
                found[text] = read_added_token(index, entry)
        return list(found.values())

    def _read_texts(self) -> tuple[list[str], set[int]]:
        found: dict[int, str] = {}
        for index, text in self._entries():
            if type(index) is not int or index < 0:
                raise ValueError(f"model.vocab or added_tokens has the entry {text!r}: {index!r}, expected an id")
            if "\0" in text and not self._pipeline.byte_level:
                raise ValueError(f"model.vocab or added_tokens has {text!r}: a null character is not supported")
            if found.setdefault(index, text) != text:
                raise ValueError(
                    f"the id {index} is {found[index]!r} and {text!r} at once, in model.vocab or added_tokens"
                )
        if not found:
            raise ValueError("the vocabulary is empty: model.vocab and added_tokens")
        check_reach(max(found), len(found), "model.vocab or added_tokens")
        return [found.get(index, "") for index in range(max(found) + 1)], set(found)

    def _read_specials(self) -> tuple[tuple[SpecialToken, ...], bytearray]:
        types = bytearray(
            TokenType.NORMAL if index in self._known else TokenType.UNUSED for index in range(len(self._texts))
        )
        specials: dict[int, SpecialToken] = {}
        for added in self._added:
            control = added.special or added.text in CONTROL_TEXTS
            kind = TokenType.CONTROL if control else TokenType.USER_DEFINED
            specials[added.id] = SpecialToken(
                added.id, added.text, kind, added.lstrip, added.rstrip, added.single_word, added.normalized
            )
        unk_id = self._unk_id()
        if unk_id is not None:
            known = specials.get(unk_id) or SpecialToken(unk_id, self._texts[unk_id], TokenType.UNKNOWN)
            specials[unk_id] = replace(known, type=TokenType.UNKNOWN)
        for index, token in specials.items():
            types[index] = token.type
        if self._pipeline.metaspace and self._model.get("byte_fallback"):
            for index, text in enumerate(self._texts):
                if types[index] == TokenType.NORMAL and BYTE_PIECE.fullmatch(text):
                    types[index] = TokenType.BYTE
        return tuple(specials[index] for index in sorted(specials)), types

    def _unk_id(self) -> int | None:
        if self._kind == "Unigram":
            index = self._model.get("unk_id")
            return int(index) if index is not None else None
        text = self._model.get("unk_token")
        return self._texts.index(text) if text is not None and text in self._texts else None

    def _unknown(self) -> int:
        """Returns the id of the unknown token, which the model must have. Raises ValueError."""
        unk_id = self._unk_id()
        if unk_id is None and self._model.get("unk_token") is None:
            raise ValueError("there is no unknown token: model.unk_token or model.unk_id")
        if unk_id is None or unk_id not in self._own:
            raise ValueError(f"there is no unknown token: {self._model['unk_token']!r} is not in model.vocab")
        return unk_id

    def _byte_level_piece(self, index: int) -> bytes:
        text = self._texts[index]
        return from_alphabet(text) if self._types[index] == TokenType.NORMAL else text.encode()

    def _spelt(self, index: int, piece: bytes) -> bytes:
        """Returns the bytes that the model may make this token of, or nothing."""
        text = self._texts[index]
        if self._types[index] == TokenType.NORMAL:  # characters beyond the alphabet have several bytes, or are these
            return piece if len(piece) == len(text) and _BEYOND.search(text) is None else b""
        return from_alphabet(text) if self._is_text(index) and _ALPHABET.issuperset(text) else b""

    def _check_bytes(self, pieces: Sequence[bytes]) -> None:
        """Raises ValueError where the library would answer with other tokens than those of the text's bytes."""
        lacking = 256 - len({piece for piece in pieces if len(piece) == 1})
        if lacking and (self._unk_id() is not None or self._model.get("byte_fallback")):
            raise ValueError(
                f"the vocabulary lacks {lacking} bytes; with unk_token or byte_fallback that is not supported"
            )
        if self._pipeline.cuts_at_number_bytes and any(map(_NUMBER_BYTE_AND_OTHER.search, pieces)):
            raise ValueError("the pre-tokenizer Digits behind ByteLevel cuts within tokens, which is not supported")

    def _spaced_pieces(self) -> list[bytes]:
        return [piece_bytes(text, kind) for text, kind in zip(self._texts, self._types, strict=True)]

    def _is_text(self, index: int) -> bool:
        """Returns True when the model may make this token of text, also one that was added again to be found as a
        whole."""
        kind = self._types[index]
        return kind == TokenType.NORMAL or (kind == TokenType.USER_DEFINED and index in self._own)

    def _word_pieces(self) -> list[bytes]:
        """Returns the pieces as llama.cpp shows them: with a space in front of what begins a word."""
        prefix = self._model.get("continuing_subword_prefix", "##")
        pieces: list[bytes] = []
        for text, kind in zip(self._texts, self._types, strict=True):
            if kind != TokenType.NORMAL or (text.startswith("[") and text.endswith("]") and len(text) > 2):
                pieces.append(text.encode())
            else:
                pieces.append(text.removeprefix(prefix).encode() if text.startswith(prefix) else b" " + text.encode())
        return pieces

    # --- vocabularies

    def _merges(self) -> dict[tuple[str, str], str]:
        """Returns the pairs in the order of their merge ranks, and what they make. The library uses the last one of
        equal pairs."""
        products: dict[tuple[str, str], str] = {}
        if self._model.get("merges") is None:
            raise ValueError("there is no model.merges, expected a list")
        for number, merge in enumerate(self._model["merges"]):
            pair = merge.split(" ") if isinstance(merge, str) else merge
            if len(pair) != 2 or not all(pair):
                raise ValueError(f"model.merges[{number}] is not two tokens")
            product = pair[0] + pair[1]
            if product not in self._ids:
                raise ValueError(f"model.merges[{number}] makes {product!r}, which is not a token")
            products.pop((pair[0], pair[1]), None)
            products[pair[0], pair[1]] = product
        return products

    def _byte_pairs(self, pieces: Sequence[bytes]) -> BpeVocabulary:
        """Makes the vocabulary of tokens that the model makes of these bytes."""
        ranked: dict[bytes, int] = {}
        for index, piece in enumerate(pieces):
            if len(piece) == 1:
                ranked.setdefault(piece, index)
        places = {piece: place for place, piece in enumerate(ranked)}
        made: list[int] = []
        cuts: list[int] = []
        for (left, _), product in self._merges().items():
            index = self._ids[product]
            if pieces[index]:
                ranked.setdefault(pieces[index], index)
                made.append(places.setdefault(pieces[index], len(places)))
                cuts.append(len(left))
        ignores_merges = bool(self._model.get("ignore_merges"))
        whole = {piece: index for index, piece in enumerate(pieces) if piece} if ignores_merges else {}
        others = {piece: index for piece, index in whole.items() if piece not in ranked}
        merges = MergeList(ids_of(made), ids_of(cuts))
        return BpeVocabulary(list(ranked.items()), self._pipeline.cuts, others, merges, ignores_merges)

    def _normalized(self, vocabulary: Vocabulary) -> Vocabulary:
        return (
            NormalizedVocabulary(vocabulary, Normalizer(self._pipeline.forms)) if self._pipeline.forms else vocabulary
        )

    def _scores_of_merges(self) -> array[float]:
        scores = array("f", bytes(4 * len(self._texts)))
        for rank, product in enumerate(dict.fromkeys(self._merges().values())):
            scores[self._ids[product]] = -rank
        return scores

    def _scores_of_unigrams(self) -> array[float]:
        scores = array("f", bytes(4 * len(self._texts)))
        for index, (_, score) in enumerate(self._model["vocab"]):
            scores[index] = score
        return scores

    def _sentencepiece(self, scores: Sequence[float]) -> ModelProto:
        model = ModelProto()
        trainer, normalizer = model.trainer_spec, model.normalizer_spec
        trainer.model_type = trainer.UNIGRAM if self._kind == "Unigram" else trainer.BPE
        byte_tokens = bytes(self._types).count(TokenType.BYTE)
        if self._model.get("byte_fallback") and byte_tokens != 256:
            raise ValueError(f"byte_fallback with {byte_tokens} tokens of bytes, not 256, is not supported")
        trainer.byte_fallback = byte_tokens == 256
        unk_id = self._unknown()
        if self._kind == "BPE" and not trainer.byte_fallback and not self._model.get("fuse_unk"):
            raise ValueError("the model BPE with neither byte_fallback nor fuse_unk is not supported")
        trainer.unk_id = unk_id
        normalizer.name = "tokenizer.json"
        normalizer.add_dummy_prefix = False
        normalizer.remove_extra_whitespaces = self._pipeline.merges_white_space
        if self._pipeline.charsmap is not None:
            normalizer.precompiled_charsmap = _charsmap(self._pipeline.charsmap)
        space = self._ids.get(SPACE)
        spelt = space is not None and self._is_text(space)
        if self._pipeline.cuts_at_spaces and not (spelt or trainer.byte_fallback):
            raise ValueError(f"the pre-tokenizer Metaspace splits, but model.vocab lacks {SPACE!r}: not supported")
        merges = self._merges() if self._kind == "BPE" else {}
        if not are_ranked_by_what_they_make(merges):
            raise ValueError("merges that make the same at clashing ranks are not supported without ByteLevel")
        made = set(merges.values()) if self._kind == "BPE" else None
        for index, score in enumerate(scores):
            text, kind = self._sentencepiece_token(index, made)
            if self._ids.get(text, index) != index:
                raise ValueError(f"model.vocab or added_tokens has {text!r} as the ids {index} and {self._ids[text]}")
            model.pieces.add(piece=text, score=score, type=kind)
        return model

    def _sentencepiece_token(self, index: int, made: Set[str] | None) -> tuple[str, int]:
        """Returns the text and type of a token; a token that no text becomes is a control token. `made` holds what
        merges make."""
        text, kind = self._texts[index], self._types[index]
        if not text or kind == TokenType.UNUSED:
            return f"<no text {index}>", TokenType.CONTROL
        if kind not in (TokenType.NORMAL, TokenType.USER_DEFINED):
            return text, kind
        is_unmade = made is not None and len(text) > 1 and text not in made
        if is_unmade or not self._is_text(index) or (self._pipeline.cuts_at_spaces and SPACE in text[1:]):
            return text, TokenType.CONTROL
        return text, TokenType.NORMAL

    def _words(self, lowercase: bool) -> WpmVocabulary:
        prefix = self._model.get("continuing_subword_prefix", "##")
        begin: dict[str, int] = {}
        inside: dict[str, int] = {}
        for index, text in enumerate(self._texts):
            if self._is_text(index):
                begin[text] = index  # a word may also begin with what is spelt as a prefix
                if text.startswith(prefix):
                    inside[text.removeprefix(prefix)] = index
        unk_id = self._unknown()
        longest = self._model.get("max_input_chars_per_word", 100)
        return WpmVocabulary(begin, inside, unk_id, lowercase=lowercase, max_word_characters=longest, as_library=True)

    def _whole_words(self, cuts: Sequence[Cut]) -> WordsVocabulary:
        unk_id = self._unknown()
        words = {text: index for index, text in enumerate(self._texts) if index in self._own and self._is_text(index)}
        return WordsVocabulary(words, unk_id, cuts)

    def _word_pairs(self, cuts: Sequence[Cut]) -> WordPairsVocabulary:
        tokens = {text: index for index, text in enumerate(self._texts) if index in self._own}
        merges = {
            (tokens[left], tokens[right]): tokens[made]
            for (left, right), made in self._merges().items()
            if left in tokens and right in tokens and made in tokens
        }
        spelt = {}
        if self._model.get("byte_fallback"):
            spelt = {byte: tokens[text] for byte in range(256) if (text := f"<0x{byte:02X}>") in tokens}
            if len(spelt) != 256:
                raise ValueError(f"byte_fallback with {len(spelt)} tokens of bytes, not 256, is not supported")
        unk_id = None if self._model.get("unk_token") is None else self._unknown()
        unknown = Unknown(unk_id, bool(self._model.get("fuse_unk")))
        return WordPairsVocabulary(tokens, merges, unknown, cuts, spelt, whole=bool(self._model.get("ignore_merges")))

    # --- what is added

    def _role(self, *names: str) -> int | None:
        for name in names:
            text = self._sidecar.special_texts.get(name)
            if text is not None and text in self._ids:
                return self._ids[text]
        return None

    def _config(self) -> TokenizerConfig:
        template = read_template(self._content.get("post_processor"))
        front, back, pair = template
        bos_id, eos_id = self._role("bos_token", "cls_token"), self._role("eos_token")
        sep_id = self._role("sep_token")
        several = len(front) > 1 or len(back) > 1  # which no flag says, and none takes away
        if len(front) == 1:
            bos_id = front[0]
        adds_sep = len(back) == 1 and back[0] == sep_id and sep_id != eos_id
        if len(back) == 1 and not adds_sep:
            eos_id = back[0]
        given = self._sidecar
        adds_bos = len(front) == 1 if given.add_bos is None or several else given.add_bos
        adds_eos = len(back) == 1 if given.add_eos is None or several else given.add_eos
        config = TokenizerConfig(
            source="hugging_face",
            bos_id=bos_id,
            eos_id=eos_id,
            unk_id=self._unk_id(),
            pad_id=self._role("pad_token"),
            sep_id=sep_id,
            end_of_generation_ids=end_of_generation_ids(((t.id, t.text) for t in self._specials), eos_id),
            adds_bos=adds_bos and bos_id is not None,
            adds_eos=adds_eos and eos_id is not None and not adds_sep,
            adds_sep=adds_sep,
            adds_space_prefix=self._pipeline.space_prefix != "never",
            prefix_spares_spaces=self._pipeline.space_prefix in ("always", "first")
            and not self._pipeline.merges_white_space,
            prefix_is_first=self._pipeline.space_prefix == "first",
            leftmost_specials=any(token.lstrip or token.rstrip or token.single_word for token in self._specials)
            or can_overlap(self._specials)
            or hides(*([token for token in self._specials if token.normalized is late] for late in (True, False))),
            clean_spaces=bool(given.clean_spaces),
            chat_template=given.chat_template,
            around=(front, back) if several else None,
        )
        is_of_file = config.added() == (front, back)
        return replace(config, around_pair=pair) if is_of_file and config.pair() != pair else config


def _charsmap(encoded: str) -> bytes:
    try:
        found = b64decode(encoded, validate=True)
    except ValueError as error:
        raise ValueError(f"precompiled_charsmap of the normalizer Precompiled is not base64: {error}") from None
    if not found:
        raise ValueError("precompiled_charsmap of the normalizer Precompiled is empty, expected a map of characters")
    return found
