"""Requests with which engines die are counted, and at some point not computed again; others are forgiven."""

from __future__ import annotations

import asyncio

import pytest

from tandem.worker.engine.process.suspects import MAX_SUSPECTS, SuspectNote
from tandem.worker.front.quarantine import (
    MAX_SUSPICIONS,
    REMEMBERED_REQUESTS,
    REMEMBERED_SECONDS,
    Probation,
    Quarantine,
    digest,
    told_suspicions,
)

KEY = digest(b"request")


def test_the_only_suspect_of_a_crash_is_quarantined_at_once():
    quarantine = Quarantine()
    assert quarantine.suspect(KEY, 0, alone=True, crashed=True)
    assert quarantine.holds(KEY)


@pytest.mark.parametrize(("alone", "crashed"), [(False, True), (True, False), (False, False)])
def test_who_may_have_been_there_by_bad_luck_gets_more_chances(alone: bool, crashed: bool):
    quarantine = Quarantine()
    for before in range(MAX_SUSPICIONS - 1):
        assert not quarantine.suspect(KEY, before, alone=alone, crashed=crashed)
        assert not quarantine.holds(KEY)
        assert quarantine.count(KEY) == before + 1
    assert quarantine.suspect(KEY, MAX_SUSPICIONS - 1, alone=alone, crashed=crashed)
    assert quarantine.holds(KEY)


def test_a_token_clears_a_request():
    quarantine = Quarantine()
    quarantine.suspect(KEY, 0, alone=False, crashed=True)
    assert quarantine
    quarantine.clear(KEY)
    assert quarantine.count(KEY) == 0
    assert not quarantine


def test_suspicions_are_forgotten_after_a_while_and_bounded_in_number():
    now = 0.0
    quarantine = Quarantine(lambda: now)
    for number in range(REMEMBERED_REQUESTS + 10):
        quarantine.suspect(digest(b"%d" % number), 0, alone=True, crashed=True)
    assert not quarantine.holds(digest(b"9"))
    assert quarantine.holds(digest(b"10"))
    now = REMEMBERED_SECONDS
    assert not quarantine
    assert not quarantine.holds(digest(b"10"))


@pytest.mark.parametrize("told", [None, "", "-1", "x", "1e3", "٣", b"\xff", "9" * 100, b"1" * 5000])
def test_a_count_that_makes_no_sense_is_none_or_bounded(told: str | bytes | None):
    assert 0 <= told_suspicions(told) < MAX_SUSPICIONS


def test_a_count_is_taken_from_metadata():
    assert [told_suspicions(told) for told in ("0", "1", b"2", "7")] == [0, 1, 2, MAX_SUSPICIONS - 1]


async def test_suspected_requests_have_their_first_step_one_after_the_other():
    probation = Probation()
    first, second, third = object(), object(), object()
    await probation.enter(first)
    waiting = asyncio.create_task(probation.enter(second))
    leaving = asyncio.create_task(probation.enter(third))
    await asyncio.sleep(0)
    assert not waiting.done()
    probation.leave(second)  # it is not its turn
    await asyncio.sleep(0)
    assert not waiting.done()
    leaving.cancel()
    probation.leave(first)
    await waiting
    probation.leave(first)  # a second time
    probation.leave(second)
    await probation.enter(third)


def test_a_note_is_read_by_whoever_has_its_descriptor():
    note = SuspectNote()
    assert note.read() == ()
    other = SuspectNote(note.descriptor)
    other.write([3, 2**40])
    assert note.read() == (3, 2**40)
    other.write(range(MAX_SUSPECTS + 5))
    assert note.read() == tuple(range(MAX_SUSPECTS))
    other.write([])
    assert note.read() == ()
    note.close()
