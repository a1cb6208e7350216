"""The stop-sequence automaton against a search that looks at everything each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.worker.engine.stops import Match, StopSequences

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6)


def ends(sequences: list[list[int]], output: list[int]) -> Match | None:
    """The longest sequence that the output ends with, the first of equals."""
    found = [(len(s), -place) for place, s in enumerate(sequences) if output[len(output) - len(s) :] == s]
    found = [pair for pair in found if pair[0] <= len(output)]
    return Match(-max(found)[1], max(found)[0]) if found else None


def may_become(sequences: list[list[int]], output: list[int]) -> int:
    """The longest end of the output that begins a sequence."""
    beginnings = [s[:n] for s in sequences for n in range(1, len(s) + 1)]
    return max((len(b) for b in beginnings if len(b) <= len(output) and output[len(output) - len(b) :] == b), default=0)


@given(SEQUENCES, st.lists(st.integers(0, 4), max_size=30))
def test_states_know_what_has_ended_what_may_end_and_what_would(sequences, output):
    automaton = StopSequences(sequences)
    state = 0
    for length in range(len(output) + 1):
        known = output[:length]
        assert automaton.match(state) == ends(sequences, known)
        assert automaton.held(state) == may_become(sequences, known)
        assert automaton.completing(state) == {t for t in range(5) if ends(sequences, [*known, t])}
        assert automaton.after_all(known) == state
        if length < len(output):
            state = automaton.after(state, output[length])
