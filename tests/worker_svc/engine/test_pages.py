"""The page table: what it promises, checked after every operation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tandem.worker.engine.defragmentation import defragment, is_fragmented, layout
from tandem.worker.engine.integrity import check_pages
from tandem.worker.engine.pages import PageTable, SequencePages


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def run_through(table: PageTable, ids: np.ndarray, salt: str = "") -> SequencePages:
    """A sequence that has computed all of `ids`."""
    sequence = table.open(ids, salt=salt)
    assert table.reserve(sequence, len(ids))
    table.publish(sequence, ids, len(ids))
    return sequence


def test_a_finished_prompt_is_found_again_page_by_page():
    table = PageTable(8, 2)
    table.close(run_through(table, tokens(1, 2, 3, 4, 5)))
    again = table.open(tokens(1, 2, 3, 4, 9, 9))
    assert again.cached_tokens == 4
    assert table.open(tokens(1, 2, 9, 4, 5)).cached_tokens == 2
    assert table.open(tokens(9, 2, 3, 4, 5)).cached_tokens == 0
    check_pages(table)


def test_at_least_one_token_is_left_to_compute():
    table = PageTable(8, 2)
    table.close(run_through(table, tokens(1, 2, 3, 4)))
    assert table.open(tokens(1, 2, 3, 4)).cached_tokens == 2


def test_the_same_tokens_in_another_place_are_another_page():
    table = PageTable(8, 2)
    table.close(run_through(table, tokens(7, 7, 7, 7, 7)))
    assert table.open(tokens(7, 7, 8, 8, 7, 7)).cached_tokens == 2


def test_another_salt_shares_nothing():
    table = PageTable(8, 2)
    table.close(run_through(table, tokens(1, 2, 3), salt="a"))
    assert table.open(tokens(1, 2, 3), salt="b").cached_tokens == 0
    assert table.open(tokens(1, 2, 3), salt="a").cached_tokens == 2


def test_a_bypassing_sequence_neither_reads_nor_fills_the_cache():
    table = PageTable(8, 2)
    table.close(run_through(table, tokens(1, 2, 3)))
    bypassing = table.open(tokens(1, 2, 3), bypass=True)
    assert bypassing.cached_tokens == 0
    assert table.reserve(bypassing, 3)
    table.publish(bypassing, tokens(1, 2, 3), 3)
    table.close(bypassing)
    assert table.cached == 1


def test_two_sequences_that_complete_the_same_page_share_it_afterwards():
    table = PageTable(8, 2)
    ids = tokens(1, 2, 3, 4)
    first, second = table.open(ids), table.open(ids)
    for sequence in (first, second):
        assert table.reserve(sequence, 4)
    assert table.referenced == 4
    for sequence in (first, second):
        table.publish(sequence, ids, 4)
        check_pages(table)
    assert table.referenced == 2
    assert first.held.tolist() == second.held.tolist()
    assert table.statistics.merged_pages == 2


def test_nothing_is_published_before_its_keys_and_values_are_there():
    table = PageTable(8, 2)
    ids = tokens(1, 2, 3, 4)
    sequence = table.open(ids)
    assert table.reserve(sequence, 4)
    table.publish(sequence, ids, 3)
    assert table.open(ids).cached_tokens == 2
    assert table.open(tokens(1, 2, 3, 4, 5)).cached_tokens == 2


def test_eviction_takes_the_end_of_the_oldest_chain_first():
    table = PageTable(4, 1)
    table.close(run_through(table, tokens(1, 2)))
    table.close(run_through(table, tokens(5, 6)))
    newcomer = table.open(tokens(9, 9))
    assert table.reserve(newcomer, 1)
    assert table.open(tokens(1, 2, 3)).cached_tokens == 1  # its leaf went, its root stayed
    assert table.open(tokens(5, 6, 7)).cached_tokens == 2


def test_a_prefix_that_is_used_again_outlives_one_that_is_not():
    table = PageTable(4, 1)
    table.close(run_through(table, tokens(1, 2)))
    table.close(run_through(table, tokens(5, 6)))
    table.close(table.open(tokens(1, 2, 3)))
    assert table.reserve(table.open(tokens(9, 9)), 2)
    assert table.open(tokens(1, 2, 3)).cached_tokens == 2
    assert table.open(tokens(5, 6, 7)).cached_tokens == 0


def test_a_reservation_that_does_not_fit_changes_nothing():
    table = PageTable(3, 2)
    first = table.open(tokens(1, 2))
    assert table.reserve(first, 4)
    second = table.open(tokens(3, 4))
    assert not table.reserve(second, 4)
    assert second.count == 0
    assert table.free == 1
    check_pages(table)


def test_pages_of_one_sequence_are_contiguous_where_they_can_be():
    table = PageTable(16, 1)
    a, b = table.open(tokens(1)), table.open(tokens(2))
    assert table.reserve(a, 4)
    assert table.reserve(b, 4)
    table.close(a)
    c = table.open(tokens(3))
    assert table.reserve(c, 4)
    assert c.held.tolist() == [0, 1, 2, 3]
    assert table.reserve(b, 8)
    assert b.held.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]


def test_discarded_pages_are_not_offered_to_anybody():
    table = PageTable(8, 2)
    sequence = run_through(table, tokens(1, 2, 3, 4, 5))
    dropped = table.close(sequence, discard=True)
    assert sorted(dropped) == [0, 1, 2]
    assert table.cached == 0
    assert table.open(tokens(1, 2, 3)).cached_tokens == 0
    check_pages(table)


def test_discarding_spares_pages_that_others_use():
    table = PageTable(8, 2)
    shared = run_through(table, tokens(1, 2, 3))
    broken = run_through(table, tokens(1, 2, 9, 9))
    assert len(table.close(broken, discard=True)) == 1
    assert table.open(tokens(1, 2, 3)).cached_tokens == 2
    table.close(shared)
    check_pages(table)


def test_clearing_forgets_what_nobody_uses_and_keeps_the_rest():
    table = PageTable(8, 1)
    used = run_through(table, tokens(1, 2))
    table.close(run_through(table, tokens(1, 2, 3, 4)))
    assert table.clear() == 2
    assert table.cached == 0
    assert table.referenced == 2
    check_pages(table)
    table.close(used)


def test_a_broken_table_is_noticed():
    table = PageTable(4, 1)
    run_through(table, tokens(1, 2))
    table._references[0] += 1
    with pytest.raises(AssertionError, match="references"):
        check_pages(table)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=20), st.integers(1, 3))
def test_what_is_found_is_always_a_true_prefix(prompts: list[list[int]], page_size: int):
    """The content of a page, tracked beside the table, is what the table says."""
    table = PageTable(12, page_size)
    content: dict[int, tuple[int, ...]] = {}
    for prompt in prompts:
        ids = np.array(prompt, dtype=np.int32)
        sequence = table.open(ids)
        for index, page in enumerate(sequence.held.tolist()):
            assert content[page] == tuple(prompt[: (index + 1) * page_size])
        if table.reserve(sequence, len(ids)):
            for index in range(sequence.published, len(ids) // page_size):
                content[int(sequence.held[index])] = tuple(prompt[: (index + 1) * page_size])
            table.publish(sequence, ids, len(ids))
        check_pages(table)
        table.close(sequence)
        check_pages(table)


class AnySequenceOfOperations(RuleBasedStateMachine):
    """Sequences that grow, publish, share, end and are discarded in any order."""

    sequences = Bundle("sequences")

    @initialize(pages=st.integers(2, 12), page_size=st.integers(1, 3))
    def make(self, pages: int, page_size: int) -> None:
        self.table = PageTable(pages, page_size)
        self.tokens: dict[SequencePages, np.ndarray] = {}
        self.computed: dict[SequencePages, int] = {}

    @rule(target=sequences, ids=st.lists(st.integers(0, 1), min_size=1, max_size=8), salt=st.sampled_from(["", "x"]))
    def open(self, ids: list[int], salt: str) -> SequencePages:
        array = np.array(ids, dtype=np.int32)
        sequence = self.table.open(array, salt=salt)
        self.tokens[sequence], self.computed[sequence] = array, sequence.cached_tokens
        return sequence

    @rule(sequence=sequences, more=st.lists(st.integers(0, 1), max_size=4))
    def grow(self, sequence: SequencePages, more: list[int]) -> None:
        ids = np.concatenate([self.tokens[sequence], np.array(more, dtype=np.int32)])
        if self.table.reserve(sequence, len(ids)):
            self.tokens[sequence], self.computed[sequence] = ids, len(ids)

    @rule(sequence=sequences)
    def publish(self, sequence: SequencePages) -> None:
        self.table.publish(sequence, self.tokens[sequence], self.computed[sequence])

    @rule(sequence=consumes(sequences), discard=st.booleans())
    def close(self, sequence: SequencePages, discard: bool) -> None:
        self.table.close(sequence, discard=discard)

    @rule()
    def clear(self) -> None:
        self.table.clear()

    @rule(target=sequences)
    def nothing(self) -> object:
        return multiple()

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "table"):
            check_pages(self.table)


TestAnySequenceOfOperations = AnySequenceOfOperations.TestCase
TestAnySequenceOfOperations.settings = settings(stateful_step_count=40)


def test_defragmentation_puts_interleaved_chains_side_by_side():
    table = PageTable(32, 1)
    chains = [tokens(*range(100 * i, 100 * i + 6)) for i in range(4)]
    sequences = [table.open(ids) for ids in chains]
    for length in range(1, 7):
        for sequence in sequences:
            assert table.reserve(sequence, length)
    content = {}
    for sequence, ids in zip(sequences, chains, strict=True):
        content |= dict(zip(sequence.held.tolist(), ids.tolist(), strict=True))
        table.publish(sequence, ids, 6)
        table.close(sequence)
    assert is_fragmented(table)
    moves = 0
    while is_fragmented(table):
        copies = defragment(table, 3)
        assert 0 < len(copies) <= 6
        content |= {copy.target: content[copy.source] for copy in copies if copy.source in content}
        check_pages(table)
        moves += 1
        assert moves < 100
    for ids in chains:
        found = table.open(np.append(ids, 7).astype(np.int32))
        assert [content[page] for page in found.held.tolist()] == ids.tolist()
        assert np.all(np.diff(found.held) == 1)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=10), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 8),
)
def test_defragmentation_moves_contents_and_names_together(prompts: list[list[int]], page_size: int, limit: int):
    table = PageTable(40, page_size)
    sequences = [table.open(np.array(prompt, dtype=np.int32)) for prompt in prompts]
    content: dict[int, tuple[int, ...]] = {}
    for length in range(1, 11):
        for sequence, prompt in zip(sequences, prompts, strict=True):
            table.reserve(sequence, min(length, len(prompt)))
    for sequence, prompt in zip(sequences, prompts, strict=True):
        for index, page in enumerate(sequence.held.tolist()):
            content[page] = tuple(prompt[: (index + 1) * page_size])
        computed = min(len(prompt), sequence.count * page_size)
        table.publish_tail(sequence, np.array(prompt, dtype=np.int32), computed)
        table.close(sequence)
    for _ in range(50):
        copies = defragment(table, limit)
        check_pages(table)
        content |= {target: content[source] for source, target in copies if source in content}
    assert layout(table.chains) == list(range(table.cached)), "everything is in its place in the end"
    for prompt in prompts:
        found = table.open(np.array([*prompt, 5], dtype=np.int32))
        for index, page in enumerate(found.held.tolist()):
            assert content[page] == tuple(prompt[: (index + 1) * page_size])
