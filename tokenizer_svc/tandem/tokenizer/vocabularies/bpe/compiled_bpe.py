"""Text to ids by `pre_tokenize.c` and `merge.c`: the same as by tiktoken and the patterns' engines."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import regex  # type: ignore[import-untyped]

from tandem.tokenizer.arrays import Ids, ids_of
from tandem.tokenizer.native.compiled_encoder import CompiledEncoder, NotServed, joined_tokens
from tandem.tokenizer.native.library import library
from tandem.tokenizer.vocabularies.bpe.merges import MergeList, PairMerger, are_ranked_by_product, merges_of_bytes
from tandem.tokenizer.vocabularies.bpe.pattern_compiler import Engine, Program, compiled

_NO_RANK = 0xFFFFFFFF
_MOST_PATTERNS = 32


class _Cutter(ctypes.Structure):
    _fields_ = (
        ("masks", ctypes.c_void_p),
        ("program", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("memories", ctypes.c_int32),
    )


class _Merges(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_char_p),
        ("starts", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_mask", ctypes.c_uint64),
        ("singles", ctypes.c_void_p),
        ("pairs", ctypes.c_void_p),
        ("ranks", ctypes.c_uint32),
        ("merging", ctypes.c_uint32),
        ("longest", ctypes.c_uint32),
        ("first_id", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("pair_table", ctypes.c_void_p),
        ("pair_mask", ctypes.c_uint64),
        ("products", ctypes.c_void_p),
        ("whole", ctypes.c_int32),
    )


class _Vocabulary(ctypes.Structure):
    _fields_ = (
        ("cutters", ctypes.POINTER(_Cutter)),
        ("levels", ctypes.c_int32),
        ("merges", ctypes.POINTER(_Merges)),
    )


class CompiledBpe(CompiledEncoder):
    """Cuts text by patterns, one after the other, and merges the pieces by merge rank.

    `ranked` are the tokens' bytes by merge rank, every single byte among them; those from `merging` on are whole pieces
    only. A merge rank stands for itself, or for its ids in `expansions`: not more of them than it has bytes. With a
    list of `merges` these decide, and `whole` says whether a piece that is a token is taken as it is; `by_pair` tells
    whether ranking the products would give other results. Safe to use from many threads at once.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        programs: Sequence[Program],
        ranked: Sequence[bytes],
        merging: int,
        expansions: tuple[Ids, Ids] | None,
        merges: MergeList | None = None,
        whole: bool = True,
    ) -> None:
        """`expansions` holds where the ids of each merge rank begin in its second array, and at last where they end.
        Raises ValueError where two merge ranks have the same bytes."""
        self._kept: list[object] = [programs]  # what C has addresses of
        self._merges = self._filled(library, ranked, merging, expansions, whole)
        self.by_pair = merges is not None and not are_ranked_by_product(
            merges, self._splits(library), lambda: self._splits(library, merges), whole
        )
        if not self.by_pair:
            self._merges.pair_table = None
        cutters = [
            _Cutter(
                program.characters.masks.ctypes.data,
                program.steps.ctypes.data,
                program.kind,
                len(program.steps),
                program.memories,
            )
            for program in programs
        ]
        array_of_cutters = (_Cutter * len(cutters))(*cutters)
        vocabulary = _Vocabulary(array_of_cutters, len(cutters), ctypes.pointer(self._merges))

        def learn(points: Ids) -> None:
            for program in programs:
                program.characters.learn(points)

        super().__init__(library.tandem_encode, vocabulary, learn)

    def _filled(
        self,
        library: ctypes.CDLL,
        ranked: Sequence[bytes],
        merging: int,
        expansions: tuple[Ids, Ids] | None,
        whole: bool,
    ) -> _Merges:
        data, starts = joined_tokens(ranked)
        lengths = np.diff(starts)
        entries = 1 << (2 * len(ranked) - 1).bit_length()
        table = np.zeros(entries, np.uint64)
        singles, pairs = np.full(256, _NO_RANK, np.uint32), np.full(65536, _NO_RANK, np.uint32)
        merges = _Merges(
            bytes=data,
            starts=starts.ctypes.data,
            table=table.ctypes.data,
            table_mask=entries - 1,
            singles=singles.ctypes.data,
            pairs=pairs.ctypes.data,
            ranks=len(ranked),
            merging=merging,
            longest=int(lengths.max()),
            whole=whole,
        )
        if expansions is not None:
            first, ids = expansions
            assert (np.diff(first) <= lengths).all() and first[-1] == len(ids)
            merges.first_id, merges.ids = first.ctypes.data, ids.ctypes.data
        self._kept += [starts, table, singles, pairs, expansions]
        if not library.tandem_fill(ctypes.byref(merges), singles.ctypes.data, pairs.ctypes.data):
            raise ValueError("a token has two ranks")
        assert lengths.min() > 0 and (singles != _NO_RANK).all(), "every byte must have a rank"
        return merges

    def _splits(self, library: ctypes.CDLL, merges: MergeList | None = None) -> Ids:
        """Returns the parts of each merge rank; with merges by their pairs, which then decide."""
        if merges is not None:
            entries = 1 << (2 * len(merges.products)).bit_length()
            pairs = np.full((entries, 3), _NO_RANK, np.uint32)
            products, cuts = (np.ascontiguousarray(array, np.uint32) for array in merges)
            self._kept += [pairs, products]
            self._merges.pair_table, self._merges.pair_mask = pairs.ctypes.data, entries - 1
            self._merges.products = products.ctypes.data
            library.tandem_pair(ctypes.byref(self._merges), pairs.ctypes.data, cuts.ctypes.data, len(cuts))
        found = np.zeros(self._merges.ranks, np.uint32)
        if not library.tandem_splits(ctypes.byref(self._merges), found.ctypes.data):
            raise MemoryError("the merges need more memory than there is")
        return found


def compiled_bpe(
    patterns: Sequence[str],
    engine: Engine,
    ranked: Sequence[bytes],
    merging: int | None = None,
    expansions: tuple[Ids, Ids] | None = None,
    merges: MergeList | None = None,
    whole: bool = True,
) -> CompiledBpe:
    """Makes a CompiledBpe; all of `ranked` are merging unless it is given how many. Raises NotServed where other
    engines have to do it, and ValueError where two merge ranks have the same bytes."""
    found = library()
    if found is None:
        raise NotServed("there is no compiled library")
    if len(patterns) > _MOST_PATTERNS or not all(ranked):
        raise NotServed("it has very many patterns, or a token without bytes")
    programs: list[Program] = []
    for number, pattern in enumerate(patterns, 1):
        try:
            programs.append(compiled(pattern, engine))
        except (ValueError, regex.error) as error:
            raise NotServed(f"pattern {number} of {len(patterns)}: {error}") from None
    return CompiledBpe(found, programs, ranked, len(ranked) if merging is None else merging, expansions, merges, whole)


def are_ranked_by_what_they_make(pairs: Iterable[tuple[str, str]]) -> bool:
    """Returns True when pairs of characters, or of what these become, merge by their merge ranks as by what they make:
    then SentencePiece, which knows no pairs, does the same by falling scores."""
    ranked, merges = merges_of_bytes(pairs)
    found = library()
    if found is not None:
        return not CompiledBpe(found, [], ranked, len(ranked), None, merges).by_pair
    return PairMerger(ranked, merges).is_by_product(whole=True)


def expansions_of(ids: Sequence[Sequence[int]]) -> tuple[Ids, Ids]:
    """Returns the ids that each merge rank stands for, as CompiledBpe takes them."""
    first = ids_of([0, *accumulate(map(len, ids))])
    return first, ids_of([index for each in ids for index in each])
