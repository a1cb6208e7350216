"""A fact about this machine is believed if it was measured with the same, and nobody else could have written it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.common.kept_facts import keep_fact, kept_fact

ABOUT = {"processor": "some", "threads": 2}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a fact that was kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_fact("rows", ABOUT) is None
    keep_fact("rows", ABOUT, [4, 512])
    (file,) = (tmp_path / "tandem").iterdir()
    return file


def test_a_fact_comes_back_for_what_it_was_measured_with(file: Path) -> None:
    assert kept_fact("rows", dict(reversed(ABOUT.items()))) == [4, 512]
    assert kept_fact("columns", ABOUT) is None
    assert kept_fact("rows", ABOUT | {"threads": 1}) is None
    keep_fact("rows", ABOUT, [8, 512])
    assert kept_fact("rows", ABOUT) == [8, 512]


def test_a_fact_that_is_asked_for_is_not_old(file: Path) -> None:
    os.utime(file, (0, 0))
    assert kept_fact("rows", ABOUT | {"threads": 1}) is None
    assert file.stat().st_mtime == 0
    assert kept_fact("rows", ABOUT) == [4, 512]
    assert file.stat().st_mtime > 0


@pytest.mark.parametrize("content", ["", '{"about": ', "[]", '{"about": "else", "fact": [1, 1]}', "\xff"])
def test_what_is_damaged_is_not_believed(file: Path, content: str) -> None:
    file.write_bytes(content.encode("latin-1"))
    assert kept_fact("rows", ABOUT) is None


@pytest.mark.parametrize("writable", ["folder", "file"])
def test_what_others_may_write_is_not_believed(file: Path, writable: str) -> None:
    (file if writable == "file" else file.parent).chmod(0o777)
    assert kept_fact("rows", ABOUT) is None


def test_a_link_is_not_believed(file: Path) -> None:
    file.rename(file.parent / "elsewhere")
    file.symlink_to("elsewhere")
    assert kept_fact("rows", ABOUT) is None


def test_where_nothing_can_be_kept_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "plain"))
    keep_fact("rows", ABOUT, 4)
    assert kept_fact("rows", ABOUT) is None
