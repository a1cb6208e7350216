"""A short run of `make chaos`: one fault of each kind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.chaos.__main__ import clean, run, table

pytestmark = pytest.mark.slow

KINDS = [
    "SIGKILL engine",
    "SIGSTOP engine",
    "SIGTERM worker's front",
    "worker's network cut",
    "tokenizer's network slow",
]


async def test_no_answer_is_lost_altered_or_doubled_whatever_is_broken():
    # A path that is short enough for sockets.
    with tempfile.TemporaryDirectory(prefix="tandem-chaos-", dir="/tmp") as folder:
        rounds = await run(Path(folder), KINDS, streams=8, tokens=60, say=False)
    assert sum(each.tally.right for each in rounds) >= 8, "there was something to lose"
    assert clean(rounds), f"{table(rounds)}\n{[dict(each.tally.reasons) for each in rounds]}"
