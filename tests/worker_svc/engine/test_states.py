"""The table of states: where a prefix can be used again, and what gives way, checked after every operation."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.worker.engine.integrity import check_pages
from tandem.worker.engine.pages import PageTable, SequencePages
from tandem.worker.engine.states import SPACING, StateTable

SIZE = 4


def table_of(pages: int = 32, slots: int = 4, spare: int = 2) -> PageTable:
    return PageTable(pages, SIZE, states=StateTable(slots, spare, journal=3))


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def run_through(table: PageTable, ids: np.ndarray, chunk: int = 0) -> SequencePages:
    """A sequence that has computed all of `ids`, in chunks; the last token's state is still open."""
    sequence = table.open(ids)
    assert table.reserve(sequence, len(ids))
    table.seat(sequence)
    assert table.states is not None and sequence.state is not None
    start = sequence.found_tokens
    while start < len(ids):
        end = min(start + (chunk or len(ids)), len(ids))
        table.states.advance(sequence.state, start, end - start, int(end == len(ids)), saves=True)
        table.publish(sequence, ids, end)
        check_pages(table)
        start = end
    return sequence


def close(table: PageTable, sequence: SequencePages, ids: np.ndarray) -> None:
    table.publish_tail(sequence, ids, len(ids))
    table.close(sequence)
    check_pages(table)


def test_the_next_turn_goes_on_where_the_state_of_the_last_one_ended():
    table = table_of()
    first = tokens(*range(1, 11))
    close(table, run_through(table, first), first)
    again = table.open(tokens(*range(1, 11), 50, 51))
    assert again.found_tokens == 9  # the state was before the last token, which might have been wrong
    assert again.cached_tokens == 8
    copy = table.seat(again)
    assert copy is not None and copy.source != copy.target
    check_pages(table)


def test_another_answer_to_the_same_prompt_begins_at_the_prompts_last_border():
    table = table_of()
    ids = tokens(*range(1, 11))
    running = run_through(table, ids)
    assert table.open(tokens(*range(1, 10), 77, 78)).found_tokens == 8
    check_pages(table)
    close(table, running, ids)


def test_a_prompt_that_leaves_what_is_cached_keeps_a_state_where_it_does():
    table = table_of(slots=8, spare=4)
    long = tokens(*range(1, 22))
    close(table, run_through(table, long), long)
    branch = tokens(*range(1, 9), *range(60, 70))
    second = run_through(table, branch)
    assert second.cached_tokens == 0  # nothing was kept there
    close(table, second, branch)
    assert table.open(tokens(*range(1, 9), 90, 91, 92)).found_tokens == 8


def test_long_prompts_keep_states_between():
    states = StateTable(4, 2, 3)
    assert states.marks(0, 0, 2 * SPACING + 64, 64) == [SPACING, 2 * SPACING, 2 * SPACING + 64]
    assert states.marks(SPACING, SPACING, 2 * SPACING + 64, 64) == [2 * SPACING, 2 * SPACING + 64]


def test_the_snapshot_that_was_unused_for_longest_gives_way_and_running_sequences_keep_theirs():
    table = table_of(slots=4, spare=3)
    assert table.states is not None
    for first in (10, 20, 30, 40):
        ids = tokens(*range(first, first + 3))
        close(table, run_through(table, ids), ids)
    running = table.open(tokens(40, 41, 42, 43))
    assert running.found_tokens == 2
    table.seat(running)
    assert table.open(tokens(10, 11, 12, 13)).found_tokens == 0
    assert table.states.statistics.state_evictions == 1
    check_pages(table)


def test_an_evicted_page_takes_its_snapshot_with_it():
    table = table_of(pages=3)
    assert table.states is not None
    ids = tokens(*range(1, 10))
    close(table, run_through(table, ids), ids)
    assert table.states.snapshots
    table.clear()
    assert not table.states.snapshots and len(table.states.free) == 4
    check_pages(table)


def test_a_sequence_that_ends_in_the_middle_gives_back_all_its_slots():
    table = table_of()
    ids = tokens(*range(1, 12))
    sequence = table.open(ids)
    assert table.reserve(sequence, len(ids))
    table.seat(sequence)
    assert table.states is not None and sequence.state is not None
    step = table.states.advance(sequence.state, 0, len(ids), 1, saves=True)
    assert [position for position, _ in step.saves] == [8]
    check_pages(table)
    table.close(sequence)
    check_pages(table)
    assert len(table.states.free) == 4


def test_a_sequence_that_ends_while_it_is_computed_further_keeps_no_state_behind_its_last_page():
    table = table_of()
    assert table.states is not None
    ids = tokens(*range(1, 12))
    running = table.open(ids)
    assert table.reserve(running, len(ids)) and running.state is not None
    table.seat(running)
    table.states.advance(running.state, 0, 6, 0, saves=True)
    step = table.states.advance(running.state, 6, 5, 1, saves=True)
    assert [position for position, _ in step.saves] == [8]
    table.publish_tail(running, ids, 6)  # what is computed still is not known
    table.close(running)
    check_pages(table)
    assert table.states.saved == 0 and len(table.states.free) == 4


def test_no_more_is_saved_than_there_is_to_spare():
    table = table_of(slots=3, spare=1)
    sequences = []
    for first in (10, 40):
        ids = tokens(*range(first, first + 6))
        sequence = table.open(ids)
        assert table.reserve(sequence, 6)
        table.seat(sequence)
        assert table.states is not None and sequence.state is not None
        table.states.advance(sequence.state, 0, 6, 1, saves=True)
        sequences.append(sequence)
        check_pages(table)
    assert table.states is not None and table.states.saved == 1
    for sequence in sequences:
        table.close(sequence)
    check_pages(table)


@pytest.mark.parametrize(("total", "spare", "journal"), [(1, 1, 1), (4, 0, 1), (4, 4, 1), (4, 1, 0)])
def test_a_table_without_room_is_refused(total: int, spare: int, journal: int):
    with pytest.raises(ValueError, match="slots"):
        StateTable(total, spare, journal)
