"""The tokenizer: what every vocabulary type shares.

Encoding goes in two steps, as in llama.cpp: text is split at special tokens (`fragments`), then the vocabulary encodes
what lies between them. Decoding is table work: every id stands for bytes (`streaming` does it bit by bit).

The rules that are not obvious, written once:

- Segments are encoded apart from each other. A space prefix, where the vocabulary has one, goes in front of the first
  text and of text that follows a special token; a segment's border alone brings none.
- USER_DEFINED tokens are cut out of the text under every policy, CONTROL and UNKNOWN tokens only where one says so.
- Decoding strips one space prefix, from the first id only, and not where `remove_special` took away a BOS.
- `remove_special` drops the BOS and EOS that `add_special` would have put there, no others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from functools import lru_cache

from tokenizer_svc.config import TokenizerConfig, fingerprint_of
from tokenizer_svc.encode_cache import EncodeCache
from tokenizer_svc.encoding import Encoding, Policy, Segment, SpecialTokenInText, TokenIdError
from tokenizer_svc.fragments import FragmentSplitter
from tokenizer_svc.offsets import to_code_points
from tokenizer_svc.spacing import clean_spaces as without_spaces
from tokenizer_svc.streaming import StopMatcher, StreamDecoder
from tokenizer_svc.vocabulary import (
    CONTROL_TYPES,
    LoneSurrogateError,
    TokenTable,
    TokenType,
    Vocabulary,
    VocabularyType,
)

_SPLITTERS_KEPT = 64
_FRAGMENTS_KEPT_TOGETHER = 8  # a segment of more is remembered in parts only: its next turn has more of them


class Tokenizer:
    """Encodes and decodes. Immutable, and safe to use from many threads at once."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        table: TokenTable,
        config: TokenizerConfig,
        unguarded: Vocabulary | None = None,
    ) -> None:
        """`unguarded` is for types whose llama.cpp finds control tokens in text that it was told not to parse; only
        `encode` follows it there."""
        self.vocabulary: Vocabulary = vocabulary
        self._unguarded = unguarded or vocabulary
        self._cache: EncodeCache | None = None
        self.table = table
        self.config = config
        for name in ("bos_id", "eos_id", "unk_id", "pad_id", "sep_id"):
            index = getattr(config, name)
            if index is not None and not 0 <= index < len(table):
                raise ValueError(f"{name} {index} lies outside of the vocabulary of {len(table)} tokens")
        if (config.adds_bos and config.bos_id is None) or (config.adds_eos and config.eos_id is None):
            raise ValueError("the tokenizer is to add a BOS or EOS token, but has none")
        self._controls = {token.id: token for token in table.specials if token.type in CONTROL_TYPES}
        self._user_defined = [token for token in table.specials if token.type == TokenType.USER_DEFINED]
        self._plain = FragmentSplitter(self._user_defined)
        self._plain_is_whole = not self._user_defined
        self._parsing = FragmentSplitter(table.specials)
        self.control_splitter = FragmentSplitter(list(self._controls.values()))
        # Safe borders lie between a line break and a letter: no special token may reach across one.
        self._cuttable = not any("\n" in token.text or token.lstrip for token in table.specials)
        self._listed = lru_cache(_SPLITTERS_KEPT)(self._make_listed_splitter)
        self.fingerprint = fingerprint_of(vocabulary, table, config)

    def with_cache(self, cache: EncodeCache) -> Tokenizer:
        """The same tokenizer, which remembers texts."""
        cached = copy(self)
        cached._cache = cache
        return cached

    @property
    def type(self) -> VocabularyType:
        return self.vocabulary.type

    @property
    def vocabulary_size(self) -> int:
        return len(self.table)

    def is_control(self, token_id: int) -> bool:
        """Whether the id can only come from parsing: a CONTROL or UNKNOWN token."""
        return token_id in self._controls

    # -- text to ids

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of one text, in llama.cpp's terms and as it answers."""
        segment = Segment(text, Policy.PARSE if parse_special else Policy.TEXT)
        return self._encode_segments((segment,), add_special, False, self._unguarded).ids

    def encode_segments(
        self, segments: Sequence[Segment], add_special: bool = True, with_offsets: bool = False
    ) -> Encoding:
        """Ids of segments that follow one another.

        Raises LoneSurrogateError where text is not valid Unicode, SpecialTokenInText where a segment must not hold one.
        """
        return self._encode_segments(segments, add_special, with_offsets, self.vocabulary)

    def _encode_segments(
        self, segments: Sequence[Segment], add_special: bool, with_offsets: bool, vocabulary: Vocabulary
    ) -> Encoding:
        ids: list[int] = []
        offsets: list[int] | None = [] if with_offsets else None
        prefix = self.config.adds_space_prefix
        front, back = self._added() if add_special else ((), ())
        ids += front
        if offsets is not None:
            offsets += [0] * len(front)
        base = 0  # bytes in front of the segment
        wants_prefix = prefix
        cache = self._cache if offsets is None and vocabulary is self.vocabulary else None
        for number, segment in enumerate(segments):
            text = segment.text
            key: tuple[str, Policy, frozenset[int], bool] | None = None
            if cache is not None and text:
                key = (text, segment.policy, segment.parse_ids, wants_prefix)
                known = cache.get(key)
                if known is not None:
                    ids += known.ids
                    wants_prefix = prefix and known.ends_special
                    continue
            before = len(ids)
            fragments = 0
            token: int | None = None
            data = _utf8(text)
            if self._plain_is_whole and segment.policy is Policy.TEXT and offsets is None and text:
                # What most text is: no special token to look for, and nobody asks where its tokens lie.
                ids += vocabulary.encode(" " + text if wants_prefix else text)
                wants_prefix = False
                if cache is not None and key is not None:
                    cache.put(key, text, ids[before:])
                continue
            counted = base  # bytes in front of the fragment
            done = 0  # code points of the segment that are counted
            for start, end, token in self._splitter(number, segment).split(text):
                fragments += 1
                if offsets is not None:
                    counted += len(text[done:start].encode())
                    done = start
                if token is not None:
                    ids.append(token)
                    if offsets is not None:
                        offsets.append(counted)
                    wants_prefix = prefix
                    continue
                piece = text if end - start == len(text) else text[start:end]
                spaced = " " + piece if wants_prefix else piece
                if offsets is None:
                    ids += self._encode_text(spaced, vocabulary, cache if fragments > 1 or end < len(text) else None)
                else:
                    found, starts = vocabulary.encode_with_offsets(spaced)
                    ids += found
                    shortened = len(spaced) - len(piece)
                    offsets += [counted + max(0, at - shortened) for at in starts]
                wants_prefix = False
            base += len(data)
            if cache is not None and key is not None and fragments <= _FRAGMENTS_KEPT_TOGETHER:
                cache.put(key, text, ids[before:], token is not None)
        ids += back
        encoding = Encoding(ids, len(front), len(back))
        if offsets is not None:
            offsets += [base] * len(back)
            encoding.byte_offsets = offsets
            encoding.code_point_offsets = to_code_points(b"".join(_utf8(s.text) for s in segments), offsets)
        return encoding

    def encode_many(self, texts: Sequence[str], add_special: bool = True) -> list[list[int]] | None:
        """Ids of many texts of the policy TEXT; None where that would not be faster than one by one."""
        many = getattr(self.vocabulary, "encode_many", None)
        if many is None or not self._plain_is_whole or self.config.adds_space_prefix:
            return None
        found: list[list[int]]
        if self._cache is None:
            found = many([_checked(text) for text in texts])
        else:
            keys = [(text, Policy.TEXT, frozenset[int](), False) for text in texts]
            known = list(map(self._cache.get, keys))
            missing = [text for text, entry in zip(texts, known, strict=True) if entry is None]
            fresh = iter(many([_checked(text) for text in missing]) if missing else ())
            found = []
            for key, entry in zip(keys, known, strict=True):
                if entry is not None:
                    found.append(list(entry.ids))
                    continue
                found.append(next(fresh))
                if key[0]:
                    self._cache.put(key, key[0], found[-1])
        front, back = self._added() if add_special else ((), ())
        return [[*front, *ids, *back] for ids in found] if front or back else found

    @staticmethod
    def _encode_text(text: str, vocabulary: Vocabulary, cache: EncodeCache | None) -> Sequence[int]:
        """Ids of a text without special tokens, from memory where a cache is given."""
        if cache is None:
            return vocabulary.encode(text)
        known = cache.get(text)
        if known is None:
            found = vocabulary.encode(text)
            cache.put(text, text, found)
            return found
        return known.ids

    def cut(self, text: str, count: int) -> list[str]:
        """`text` in at most `count` parts of about equal length, which have together the ids that it has as a whole.

        One part where no such place is known to be safe.
        """
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

    def added_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What add_special puts in front and behind."""
        return self._added()

    def count_added(self) -> int:
        """How many tokens add_special adds."""
        front, back = self._added()
        return len(front) + len(back)

    def _added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What add_special puts in front and behind."""
        config = self.config
        front = (config.bos_id,) if config.adds_bos and config.bos_id is not None else ()
        if config.adds_sep and config.sep_id is not None:
            return front, (config.sep_id,)
        return front, (config.eos_id,) if config.adds_eos and config.eos_id is not None else ()

    def _splitter(self, number: int, segment: Segment) -> FragmentSplitter:
        match segment.policy:
            case Policy.TEXT:
                return self._plain
            case Policy.PARSE:
                return self._parsing
            case Policy.PARSE_LISTED:
                return self._listed(segment.parse_ids)
            case Policy.REJECT:
                found = self.control_splitter.first_match(segment.text)
                if found is not None:
                    raise SpecialTokenInText(number, *found)
                return self._plain

    def _make_listed_splitter(self, parse_ids: frozenset[int]) -> FragmentSplitter:
        unknown = sorted(parse_ids - self._controls.keys())
        if unknown:
            raise ValueError(f"id {unknown[0]} is not a control token")
        return FragmentSplitter([*self._user_defined, *(self._controls[index] for index in parse_ids)])

    # -- ids to text

    def pieces(self, ids: Iterable[int], unparse_special: bool = True) -> list[bytes]:
        """The bytes of each id."""
        table = self.table.pieces if unparse_special else self.table.hidden_pieces
        return [table[index] for index in ids]

    def decode_bytes(
        self,
        ids: Sequence[int],
        remove_special: bool = False,
        unparse_special: bool = False,
        clean_spaces: bool = False,
    ) -> bytes:
        """The bytes of a whole id list. Raises TokenIdError."""
        self.check_ids(ids)
        first, last, strip = 0, len(ids), self.config.adds_space_prefix
        if remove_special and ids:
            drop_first, drop_last = self._dropped()
            if ids[0] == drop_first:
                first, strip = 1, False
            if last > first and ids[last - 1] == drop_last:
                last -= 1
        parts = self.pieces(ids[first:last] if last - first < len(ids) else ids, unparse_special)
        if strip and parts and parts[0][:1] == b" ":
            parts[0] = parts[0][1:]
        text = b"".join(parts)
        return without_spaces(text) if clean_spaces else text

    def decode(self, ids: Sequence[int], remove_special: bool = False, unparse_special: bool = False) -> str:
        """The text of a whole id list; bytes that are not UTF-8 become U+FFFD. Raises TokenIdError."""
        return self.decode_bytes(ids, remove_special, unparse_special).decode("utf-8", "replace")

    def stream(
        self,
        *,
        context_ids: Sequence[int] = (),
        remove_special: bool = False,
        unparse_special: bool = False,
        stop_strings: Sequence[str] = (),
        include_stop: bool = False,
        graphemes: bool = False,
    ) -> StreamDecoder:
        """A stream that follows `context_ids`. Without stop strings it gives what `decode` gives.

        After a context that ends in text, a leading space is text; after one that ends in a control token it is the
        prefix that encoding would have put there.
        """
        self.check_ids(context_ids)
        drop_first, drop_last = self._dropped() if remove_special else (None, None)
        return StreamDecoder(
            self.table.pieces if unparse_special else self.table.hidden_pieces,
            strip_space=self.config.adds_space_prefix and (not context_ids or self.is_control(context_ids[-1])),
            drop_first=None if context_ids else drop_first,
            drop_last=drop_last,
            stops=StopMatcher(stop_strings) if stop_strings else None,
            include_stop=include_stop,
            graphemes=graphemes,
        )

    def decoded_size(self, ids: Iterable[int]) -> int:
        """An upper bound of the bytes that valid ids decode to."""
        pieces = self.table.pieces
        return sum(len(pieces[index]) for index in ids)

    def check_ids(self, ids: Collection[int]) -> None:
        """Raises TokenIdError for the first id that is outside of the vocabulary."""
        size = len(self.table)
        if ids and (max(ids) >= size or min(ids) < 0):
            for index, token_id in enumerate(ids):
                if not 0 <= token_id < size:
                    raise TokenIdError(index, token_id, size)

    def _dropped(self) -> tuple[int | None, int | None]:
        """The ids that remove_special takes away at the front and at the back."""
        config = self.config
        return (config.bos_id if config.adds_bos else None, config.eos_id if config.adds_eos else None)


def _checked(text: str) -> str:
    if not text.isascii():
        _utf8(text)
    return text


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LoneSurrogateError(f"the text has a lone surrogate at code point {error.start}") from None
