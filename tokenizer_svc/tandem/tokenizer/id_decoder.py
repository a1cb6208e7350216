"""Decodes ids to bytes and text by tables: every id stands for bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from tandem.tokenizer.arrays import Ids, Places, ids_of
from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.decoding.clean_spaces import clean_spaces as without_spaces
from tandem.tokenizer.decoding.streaming import StreamDecoder, StreamPieces, stream_decoder
from tandem.tokenizer.encoding import TokenIdError
from tandem.tokenizer.native.piece_joiner import IdRuns, PieceJoiner
from tandem.tokenizer.vocabulary import CONTROL_TYPES, DecodedForms, TokenTable
from tandem.tokenizer.wire import decoded_field, piece_fields


class IdDecoder:
    """The half of a tokenizer that decodes. Immutable, and safe to use from many threads at once."""

    def __init__(self, table: TokenTable, config: TokenizerConfig, strips_prefix: bool) -> None:
        self.table = table
        self.config = config
        self._strips_prefix = strips_prefix
        self._controls = {token.id: token for token in table.specials if token.type in CONTROL_TYPES}
        self._piece_fields = lru_cache(2)(self._make_piece_fields)
        self._visible_pieces = lru_cache(4)(self._make_visible_pieces)

    def is_control(self, token_id: int) -> bool:
        """Returns True when the id can only come from parsing: a CONTROL or UNKNOWN token."""
        return token_id in self._controls

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """Returns the bytes of each id, control tokens as their text."""
        return list(map(self.table.pieces.__getitem__, ids))

    def pieces_size(self, ids: Ids) -> int:
        """Returns how many bytes the pieces of these ids have."""
        return int(self._shown_lengths[ids].sum(dtype=np.int64))

    def piece_fields(self, ids: Ids, tag: bytes) -> bytes:
        """Returns the pieces as the field of a message that has this tag, without a Python object for each."""
        return self._piece_fields(tag).join(ids)

    def _make_piece_fields(self, tag: bytes) -> PieceJoiner:
        return PieceJoiner(piece_fields(self.table.pieces, tag))

    def decode_bytes(
        self,
        ids: Sequence[int] | Ids,
        remove_special: bool = False,
        unparse_special: bool = False,
        clean_spaces: bool = False,
    ) -> bytes:
        """Returns the bytes of a list of ids. Raises TokenIdError."""
        self.check_ids(ids)
        array = ids if isinstance(ids, np.ndarray) else ids_of(ids)
        strip = self._strips_prefix
        if remove_special and len(array):
            drop_front, drop_last = self.config.dropped()
            for dropped in drop_front:
                if not len(array) or array[0] != dropped:
                    break
                array, strip = array[1:], False
            if len(array) and array[-1] == drop_last:
                array = array[:-1]
        text = (self._shown_joiner if unparse_special else self._hidden_joiner).join(array)
        forms = self._shown_forms if unparse_special else self._hidden_forms
        pieces = self.table.pieces if unparse_special else self.table.hidden_pieces
        if forms is not None:
            text = _with_first_form(forms, array, text)
        elif strip and len(array) and pieces[array[0]][:1] == b" ":
            text = text[1:]
        return without_spaces(text) if clean_spaces else text

    def decode_fields(
        self,
        ids: Ids,
        edges: Places,
        remove_special: bool = False,
        unparse_special: bool = False,
        clean_spaces: bool = False,
    ) -> list[bytes | memoryview]:
        """Returns the field `decoded` of a response for many lists, in parts. All `ids` are valid; list n goes from
        `edges[n]` to `edges[n + 1]`."""
        begins, ends = edges[:-1].copy(), edges[1:].copy()
        if clean_spaces or self.table.forms is not None:
            lists = [ids[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
            wanted = remove_special, unparse_special, clean_spaces
            return [decoded_field(self.decode_bytes(each, *wanted)) for each in lists]
        spaces = np.full(len(begins), self._strips_prefix)
        drop_front, drop_last = self.config.dropped() if remove_special else ((), None)
        left = np.arange(len(begins))
        for dropped in drop_front:
            left = left[begins[left] < ends[left]]
            left = left[ids[begins[left]] == dropped]
            begins[left] += 1
            spaces[left] = False
        if drop_last is not None:
            full = np.flatnonzero(begins < ends)
            ends[full[ids[ends[full] - 1] == drop_last]] -= 1
        joiner = self._shown_joiner if unparse_special else self._hidden_joiner
        return joiner.join_fields(IdRuns(ids, begins, ends, spaces))

    def decode(self, ids: Sequence[int], remove_special: bool = False, unparse_special: bool = False) -> str:
        """Returns the text of a list of ids; bytes that are not UTF-8 become U+FFFD. Raises TokenIdError."""
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
        min_ids: int = 0,
        visible: frozenset[str] = frozenset(),
    ) -> StreamDecoder:
        """Returns a decoder for a stream that follows `context_ids`. Without stop strings it gives what `decode`
        gives.

        After a context that ends in text, a leading space is text; after one that ends in a control token it is the
        prefix that encoding would have put there. With a file's own decoder, an id behind visible context is not the
        first. Control tokens with these `visible` texts appear as their text, without `unparse_special` too.
        """
        self.check_ids(context_ids)
        forms, pieces = self._stream_pieces(
            frozenset() if unparse_special else visible & self._control_texts, unparse_special
        )
        first = None if forms is None else forms.first
        if forms is not None and any(forms.rest[index] or index in forms.first for index in context_ids):
            first = None
        drop_front, drop_last = self.config.dropped() if remove_special else ((), None)
        return stream_decoder(
            pieces,
            first_pieces=first,
            strip_space=forms is None
            and self._strips_prefix
            and (not context_ids or (self.is_control(context_ids[-1]) and not self.config.prefix_is_first)),
            drop_front=() if context_ids else drop_front,
            drop_last=drop_last,
            stops=stop_strings,
            include_stop=include_stop,
            graphemes=graphemes,
            min_ids=min_ids,
        )

    @cached_property
    def _shown_joiner(self) -> PieceJoiner:
        return PieceJoiner(self.table.pieces if self._shown_forms is None else self._shown_forms.rest)

    @cached_property
    def _hidden_joiner(self) -> PieceJoiner:
        return PieceJoiner(self.table.hidden_pieces if self._hidden_forms is None else self._hidden_forms.rest)

    @cached_property
    def _shown_pieces(self) -> StreamPieces:
        return StreamPieces(self.table.pieces if self._shown_forms is None else self._shown_forms.rest)

    @cached_property
    def _hidden_pieces(self) -> StreamPieces:
        return StreamPieces(self.table.hidden_pieces if self._hidden_forms is None else self._hidden_forms.rest)

    def _stream_pieces(self, visible: frozenset[str], shown: bool) -> tuple[DecodedForms | None, StreamPieces]:
        if visible:
            return self._visible_pieces(visible)
        return (self._shown_forms, self._shown_pieces) if shown else (self._hidden_forms, self._hidden_pieces)

    def _make_visible_pieces(self, visible: frozenset[str]) -> tuple[DecodedForms | None, StreamPieces]:
        ids = [index for index, token in self._controls.items() if token.text in visible]
        if self.table.forms is not None:
            forms = self.table.forms.without(sorted(set(self.table.control_ids()).difference(ids)))
            return forms, StreamPieces(forms.rest)
        pieces = list(self.table.hidden_pieces)
        for index in ids:
            pieces[index] = self.table.pieces[index]
        return None, StreamPieces(pieces)

    @cached_property
    def _control_texts(self) -> frozenset[str]:
        return frozenset(token.text for token in self._controls.values())

    @property
    def _shown_forms(self) -> DecodedForms | None:
        return self.table.forms

    @cached_property
    def _hidden_forms(self) -> DecodedForms | None:
        return None if self.table.forms is None else self.table.forms.without(self.table.control_ids())

    def decoded_size(self, ids: Ids) -> int:
        """Returns an upper bound of the bytes that valid ids decode to."""
        return int(self._piece_lengths[ids].sum(dtype=np.int64))

    @cached_property
    def _piece_lengths(self) -> Ids:
        if (forms := self.table.forms) is None:
            return self._shown_lengths
        return ids_of([max(len(piece), len(forms.first.get(index, b""))) for index, piece in enumerate(forms.rest)])

    @cached_property
    def _shown_lengths(self) -> Ids:
        return ids_of(list(map(len, self.table.pieces)))

    def check_ids(self, ids: Sequence[int] | Ids) -> None:
        """Raises TokenIdError for the first id that is outside of the vocabulary."""
        size = len(self.table)
        if isinstance(ids, np.ndarray):
            if len(ids) and ids.max() >= size:
                index = int((ids >= size).argmax())
                raise TokenIdError(index, int(ids[index]), size)
        elif ids and (max(ids) >= size or min(ids) < 0):
            for index, token_id in enumerate(ids):
                if not 0 <= token_id < size:
                    raise TokenIdError(index, token_id, size)


def _with_first_form(forms: DecodedForms, ids: Ids, text: bytes) -> bytes:
    """Returns the text of ids; the first of them that shows anything is shown as the first of a text."""
    index = next((index for index in map(int, ids) if forms.rest[index] or index in forms.first), None)
    if index is None or index not in forms.first:
        return text
    return forms.first[index] + text[len(forms.rest[index]) :]
