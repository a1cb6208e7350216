"""The tokenizer: everything that all vocabulary types share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from tandem.tokenizer.arrays import NONE, Ids, ids_of, joined
from tandem.tokenizer.config import TokenizerConfig, fingerprint_of
from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.encoding import Encoding, Policy, Segment, SpecialTokenInText
from tandem.tokenizer.fragments import FragmentSplitter
from tandem.tokenizer.guarded_encoder import GuardedEncoder
from tandem.tokenizer.id_decoder import IdDecoder
from tandem.tokenizer.native.compiled_encoder import CompiledEncoder
from tandem.tokenizer.offsets import code_point_ends, to_code_points
from tandem.tokenizer.pairs import pair_encoding, truncated
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabularies.normalized import NormalizedVocabulary
from tandem.tokenizer.vocabularies.rwkv import RwkvVocabulary
from tandem.tokenizer.vocabularies.spm import SpmVocabulary
from tandem.tokenizer.vocabularies.spm_merging import SPACE
from tandem.tokenizer.vocabularies.ugm import UgmVocabulary
from tandem.tokenizer.vocabulary import (
    Located,
    LoneSurrogateError,
    SpecialToken,
    TextEncoder,
    TokenTable,
    TokenType,
    Vocabulary,
    VocabularyType,
)

_SPLITTERS_KEPT = 64
_GUARDED = frozenset({Policy.PLAIN, Policy.REJECT})  # policies under which text becomes no special token
_FRAGMENTS_KEPT_TOGETHER = 8  # a segment of more is remembered in parts only: its next turn has more of them


class _Span(NamedTuple):
    """A special token, or a text, which may begin with a space prefix. `start` is in code points of its segment."""

    start: int
    token: int | None
    text: str = ""
    prefixed: bool = False


class Tokenizer(IdDecoder):
    """Encodes and decodes. Immutable, and safe to use from many threads at once."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        table: TokenTable,
        config: TokenizerConfig,
        unguarded: Vocabulary | None = None,
    ) -> None:
        """`unguarded` is for types whose llama.cpp finds control tokens in text that it was told not to parse; only
        `encode` does the same."""
        self.vocabulary: Vocabulary = vocabulary
        self._unguarded = unguarded or vocabulary
        self._cache: EncodeCache | None = None
        # Byte-level vocabularies spell spaces as themselves, and as in the library the one in front stays in the text.
        byte_level = vocabulary.type is VocabularyType.BPE
        super().__init__(table, config, strips_prefix=config.adds_space_prefix and not byte_level)
        _check_ids_of(config, len(table))
        self._user_defined = [token for token in table.specials if token.type == TokenType.USER_DEFINED]
        blank = [token for token in self._user_defined if _is_white_space(token)]
        leftmost = config.leftmost_specials
        self._text_splitter = FragmentSplitter(self._user_defined, leftmost)
        self._plain_splitter = FragmentSplitter(blank, leftmost)
        self.takes_text_whole = not self._user_defined  # under the policy TEXT
        self._parsing = FragmentSplitter(table.specials, leftmost)
        self.control_splitter = (
            FragmentSplitter(list(self._controls.values()), leftmost) if self._user_defined else self._parsing
        )
        meaning = [token for token in table.specials if not _is_white_space(token)]
        self.meaning_splitter = FragmentSplitter(meaning, leftmost) if blank else self._parsing
        kept_out = [token.id for token in meaning if token.id != config.unk_id]
        self._guarded = GuardedEncoder(vocabulary, table, kept_out, config.unk_id) if kept_out else vocabulary
        # Safe borders lie between a line break and a letter: no special token may reach across one.
        self._cuttable = not any("\n" in token.text or token.lstrip for token in table.specials)
        self._prefixes_behind_special = config.adds_space_prefix and not config.prefix_is_first
        self._spared = (" ",) if byte_level else (" ", SPACE)
        self._first_of: Callable[[str], str] = itemgetter(0)
        match vocabulary:
            case NormalizedVocabulary():
                self._first_of = vocabulary.first_of
            case SpmVocabulary() | UgmVocabulary() if config.prefix_spares_spaces:
                self._first_of = vocabulary.first_of
            case _:
                pass
        self._single = {token.id: ids_of([token.id]) for token in table.specials}
        self._located = {
            token.id: Located(*(ids_of([value]) for value in (token.id, 0, len(token.text.encode()))))
            for token in table.specials
        }
        self._listed = lru_cache(_SPLITTERS_KEPT)(self._make_listed_splitter)
        self.fingerprint = fingerprint_of(vocabulary, table, config)

    def with_cache(self, cache: EncodeCache) -> Tokenizer:
        """Returns the same tokenizer with a cache of encoded texts."""
        cached = copy(self)
        cached._cache = cache
        return cached

    @property
    def type(self) -> VocabularyType:
        return self.vocabulary.type

    @property
    def vocabulary_size(self) -> int:
        return len(self.table)

    # --- text to ids

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Returns the ids of one text, exactly those of llama.cpp's `llama_tokenize` with the same arguments.

        With `parse_special` the text of a control token becomes that token: use it only for text that you trust.
        """
        segment = Segment(text, Policy.PARSE if parse_special else Policy.TEXT)
        return self._encode_segments((segment,), add_special, self._unguarded).ids

    def encode_segments(
        self, segments: Sequence[Segment], add_special: bool = True, with_offsets: bool = False
    ) -> Encoding:
        """Returns the ids of segments that follow one another.

        Raises LoneSurrogateError where text is not valid Unicode, and SpecialTokenInText where a segment with the
        policy REJECT contains a control token.
        """
        if with_offsets:
            return self._encode_with_offsets(segments, add_special)
        return self._encode_segments(segments, add_special, self.vocabulary)

    def _encode_segments(self, segments: Sequence[Segment], add_special: bool, vocabulary: Vocabulary) -> Encoding:
        front, back = self._added_arrays if add_special else (NONE, NONE)
        cache = self._cache if vocabulary is self.vocabulary else None
        parts: list[Ids] = [front] if len(front) else []
        wants_prefix = self.config.adds_space_prefix
        for number, segment in enumerate(segments):
            key: Hashable = None
            if cache is not None and segment.text:
                key = segment if wants_prefix else (segment, False)
                if (known := cache.get(key)) is not None:
                    parts.append(known.ids)
                    wants_prefix = self._prefixes_behind_special and known.ends_special
                    continue
            if self.takes_text_whole and segment.policy is Policy.TEXT and segment.text:
                # What most text is: one span. Looking for others would take longer than a short text.
                text = _checked(segment.text)
                found = [vocabulary.encode(self._spaced(text) if wants_prefix else text)]
                ends_special = wants_prefix = False
            else:
                spans = list(self._spans(number, segment, wants_prefix))
                found = self._encode_spans(spans, segment.policy, vocabulary)
                ends_special = bool(spans) and spans[-1].token is not None
                wants_prefix = self._prefixes_behind_special and ends_special if spans else wants_prefix
            parts += found
            if key is not None and len(found) <= _FRAGMENTS_KEPT_TOGETHER:
                assert cache is not None
                cache.put(key, segment.text, joined(found), ends_special)
        if len(back):
            parts.append(back)
        return Encoding(joined(parts), len(front), len(back))

    def _encode_spans(self, spans: Sequence[_Span], policy: Policy, vocabulary: Vocabulary) -> list[Ids]:
        guarded = policy in _GUARDED
        encoder = self._guarded if guarded else vocabulary
        cache = self._cache if vocabulary is self.vocabulary and len(spans) > 1 else None
        return [
            self._single[span.token] if span.token is not None else _encode_text(span.text, encoder, cache, guarded)
            for span in spans
        ]

    def encode_pair(
        self,
        first: Sequence[Segment],
        second: Sequence[Segment],
        add_special: bool = True,
        with_offsets: bool = False,
        max_tokens: int | None = None,
        cut_left: bool = False,
    ) -> Encoding:
        """Returns the ids of two texts, with what the model expects around them. At most `max_tokens` are kept: the
        longer text is cut first. Raises as `encode_segments` does, and TruncationError."""
        parts = [part for part in self.config.pair() if add_special or part.token is None]
        texts = [self.encode_segments(first, add_special=False, with_offsets=with_offsets)]
        try:
            texts.append(self.encode_segments(second, add_special=False, with_offsets=with_offsets))
        except SpecialTokenInText as error:
            error.of_pair = True
            raise
        if max_tokens is not None:
            truncated(texts, max_tokens, len(parts) - 2, cut_left)
        joined_texts = ["".join(segment.text for segment in each) for each in (first, second)]
        return pair_encoding(parts, texts, [(len(text.encode()), len(text)) for text in joined_texts])

    def _encode_with_offsets(self, segments: Sequence[Segment], add_special: bool) -> Encoding:
        front, back = self._added_arrays if add_special else (NONE, NONE)
        nowhere = np.zeros(len(front), np.uint32)
        parts = [Located(front, nowhere, nowhere)]
        base = 0  # bytes in front of the segment
        wants_prefix = self.config.adds_space_prefix
        for number, segment in enumerate(segments):
            encoder = self._guarded if segment.policy in _GUARDED else self.vocabulary
            at, done = base, 0  # bytes in front of the span, and code points of the segment that they are
            for span in self._spans(number, segment, wants_prefix):
                at += len(segment.text[done : span.start].encode())
                done = span.start
                if span.token is not None:
                    ids, starts, ends = self._located[span.token]
                else:
                    ids, starts, ends = encoder.encode_with_offsets(span.text)
                if span.prefixed:  # the prefix is no part of the text: what begins with it begins with the text
                    starts, ends = (np.maximum(each, 1) - np.uint32(1) for each in (starts, ends))
                parts.append(Located(ids, starts + np.uint32(at), ends + np.uint32(at)))
                wants_prefix = self._prefixes_behind_special and span.token is not None
            base += len(segment.text.encode())
        behind = np.full(len(back), base, np.uint32)
        ids, starts, ends = map(joined, zip(*parts, Located(back, behind, behind), strict=True))
        data = b"".join(segment.text.encode() for segment in segments)
        return Encoding(
            ids,
            len(front),
            len(back),
            byte_offset_array=starts,
            code_point_offset_array=to_code_points(data, starts),
            byte_end_array=ends,
            code_point_end_array=code_point_ends(data, starts, ends),
        )

    def _spans(self, number: int, segment: Segment, wants_prefix: bool) -> Iterator[_Span]:
        """Yields a segment's special tokens, and the texts between them."""
        text = _checked(segment.text)
        for start, end, token in self._splitter(number, segment).split(text):
            if token is not None:
                yield _Span(start, token)
            else:
                piece = text[start:end]
                spaced = self._spaced(piece) if wants_prefix else piece
                yield _Span(start, None, spaced, len(spaced) > len(piece))
            wants_prefix = self._prefixes_behind_special and token is not None

    def encode_many(self, texts: Sequence[str], add_special: bool = True) -> list[Ids]:
        """Returns the ids of many texts of the policy TEXT; only for a tokenizer that `takes_text_whole`."""
        assert self.takes_text_whole
        checked = list(map(_checked, texts))
        if self._cache is None:
            found = self._encode_spaced(checked)
        else:
            cache, prefix = self._cache, self.config.adds_space_prefix
            keys: list[Hashable] = [Segment(text) if prefix else (Segment(text), False) for text in checked]
            known = list(map(cache.get, keys))
            missing = [text for text, entry in zip(checked, known, strict=True) if entry is None]
            fresh = iter(self._encode_spaced(missing) if missing else ())
            found = [next(fresh) if entry is None else entry.ids for entry in known]
            for key, text, ids, entry in zip(keys, checked, found, known, strict=True):
                if entry is None and text:
                    cache.put(key, text, ids)
        front, back = self._added_arrays if add_special else (NONE, NONE)
        return [np.concatenate((front, ids, back)) for ids in found] if len(front) or len(back) else found

    def _encode_spaced(self, texts: Sequence[str]) -> list[Ids]:
        if self.config.adds_space_prefix:
            texts = [self._spaced(text) if text else text for text in texts]
        return self.vocabulary.encode_many(texts)

    def _spaced(self, text: str) -> str:
        """Returns a text with the space prefix, where it gets one."""
        begin = self._first_of(text)  # what the text begins with may be dropped, or become a space
        spared = not begin or (self.config.prefix_spares_spaces and begin in self._spared)
        return text if spared else " " + text

    def cut(self, text: str, count: int) -> list[str]:
        """Cuts `text` into at most `count` parts of about equal length, whose ids joined are those of the whole text.
        Returns one part where no such place is known to be safe."""
        border = self.vocabulary.safe_border
        if border is None or self.config.adds_space_prefix or not self._cuttable:
            return [text]
        parts: list[str] = []
        at = 0
        for number in range(1, count):
            found = border.search(text, max(at, len(text) * number // count))
            if found is not None and found.start() > at:
                parts.append(text[at : found.start()])
                at = found.start()
        return [*parts, text[at:]]

    def compiled_text(self) -> tuple[CompiledEncoder, bytes] | None:
        """Returns the encoder to which text of the policy TEXT goes as it is, and the first bytes of the tokens that
        are looked for before; None where it is not compiled, or something is done to text."""
        encoder = self.vocabulary.compiled if isinstance(self.vocabulary, (BpeVocabulary, RwkvVocabulary)) else None
        if encoder is None or self.config.adds_space_prefix:
            return None
        return encoder, bytes({token.text.encode()[0] for token in self._user_defined if token.text})

    def added_ids(self) -> tuple[Ids, Ids]:
        """Returns the ids that add_special puts in front and behind."""
        return self._added_arrays

    def count_added(self) -> int:
        """Returns how many tokens add_special adds."""
        return sum(map(len, self._added_arrays))

    def count_added_to_pairs(self) -> int:
        """Returns how many tokens add_special adds to two texts."""
        return len(self.config.pair()) - 2

    @cached_property
    def _added_arrays(self) -> tuple[Ids, Ids]:
        front, back = self.config.added()
        return ids_of(front), ids_of(back)

    def _splitter(self, number: int, segment: Segment) -> FragmentSplitter:
        match segment.policy:
            case Policy.TEXT:
                return self._text_splitter
            case Policy.PLAIN:
                return self._plain_splitter
            case Policy.PARSE:
                return self._parsing
            case Policy.PARSE_LISTED:
                return self._listed(segment.parse_ids)
            case Policy.REJECT:
                found = self.control_splitter.first_match(segment.text)
                if found is not None:
                    raise SpecialTokenInText(number, *found)
                return self._plain_splitter

    def _make_listed_splitter(self, parse_ids: frozenset[int]) -> FragmentSplitter:
        unknown = sorted(parse_ids - self._controls.keys())
        if unknown:
            raise ValueError(f"id {unknown[0]} is not a control token")
        listed = [*self._user_defined, *(self._controls[index] for index in parse_ids)]
        return FragmentSplitter(listed, self.config.leftmost_specials)


def _is_white_space(token: SpecialToken) -> bool:
    return token.text.replace(SPACE, " ").isspace()


def _encode_text(text: str, encoder: TextEncoder, cache: EncodeCache | None, guarded: bool) -> Ids:
    """Returns the ids of a text without special tokens, from the cache where one is given."""
    if cache is None:
        return encoder.encode(text)
    key = (text, Policy.PLAIN) if guarded else text
    known = cache.get(key)
    if known is None:
        found = encoder.encode(text)
        cache.put(key, text, found)
        return found
    return known.ids


def _checked(text: str) -> str:
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise LoneSurrogateError(f"the text has a lone surrogate at code point {error.start}") from None
    return text


def _check_ids_of(config: TokenizerConfig, size: int) -> None:
    for name in ("bos_id", "eos_id", "unk_id", "pad_id", "sep_id"):
        index = getattr(config, name)
        if index is not None and not 0 <= index < size:
            raise ValueError(f"{name} {index} lies outside of the vocabulary of {size} tokens")
    front, back = config.added()
    for added in (*front, *back, *(part.token for part in config.pair())):
        if added is not None and not 0 <= added < size:
            raise ValueError(f"the added id {added} lies outside of the vocabulary of {size} tokens")
    if (config.adds_bos and config.bos_id is None) or (config.adds_eos and config.eos_id is None):
        raise ValueError("the tokenizer is to add a BOS or EOS token, but has none")
