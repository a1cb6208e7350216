"""The compiled library is there wherever it can be made: other tests skip what needs it, and would all pass without."""

from __future__ import annotations

import shutil

import pytest

from tandem.common import compiled
from tandem.common.machine import processor_fact
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native.library import SOURCES


def test_the_library_is_there_where_the_processor_and_a_compiler_are() -> None:
    if not set(SOURCES.instructions) <= set(processor_fact("flags").split()):
        pytest.skip("no AVX2")
    if not any(map(shutil.which, compiled._COMPILERS)):
        pytest.skip("no C compiler")
    assert native.available(), "its sources do not compile: the log says why"
