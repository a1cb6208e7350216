"""Bearer tokens: only who has one gets in, probes excepted, and rotation needs no restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2

from tandem.common import bearer_tokens as tokens
from tandem.common.bearer_tokens import BearerTokens
from tandem.common.errors import StartError
from tandem.common.run_service import run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_client import ask, handled, health_of
from tests.svc_common.probe_service import ADMIN, KINDS, NAME, ProbeService

OLD, NEW = "old-token-0123456789", "new-token-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# callers\n\n{OLD}\n  second-token-0123456789  \n")
    return path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that the test moves."""
    now = [time.monotonic()]
    monkeypatch.setattr(tokens.time, "monotonic", lambda: now[0])
    yield now
    monkeypatch.undo()


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


async def test_every_kind_of_call_needs_a_token_and_health_does_not(file: Path) -> None:
    service = ProbeService()
    async with (
        run_in_loop(service, ServiceSettings(auth_token_file=file)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await health_of(channel, NAME) == "SERVING"
        for kind in KINDS:
            assert (await ask(channel, kind, "x", metadata=bearer(OLD))).words == ["x"]
            for metadata in ([], bearer("wrong-token-0123456789"), bearer(""), [("authorization", OLD)]):
                refused = await ask(channel, kind, "x", metadata=metadata)
                assert refused.code is grpc.StatusCode.UNAUTHENTICATED
                assert refused.detail(error_details_pb2.ErrorInfo).reason == "UNAUTHENTICATED"
            assert handled(service.metrics.registry, kind, "UNAUTHENTICATED") == 4
        assert (await ask(channel, "UnaryUnary", "x", service=ADMIN)).code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("token", [OLD, "second-token-0123456789"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_each_token_of_the_file_is_good(file: Path, token: str, scheme: str) -> None:
    known = BearerTokens(file)
    known.load()
    assert known.refusal([("x", "y"), ("authorization", f"{scheme} {token}")]) is None
    assert known.refusal([("authorization", f"{scheme} {token}x")]) is not None
    assert known.refusal([("authorization", f"{scheme} # callers")]) is not None


def test_before_the_file_is_read_nobody_gets_in(file: Path) -> None:
    assert BearerTokens(file).refusal(bearer(OLD)) is not None


def test_a_changed_file_is_followed_and_a_broken_one_is_not(
    file: Path, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    known = BearerTokens(file)
    known.load()
    file.write_text(NEW)
    assert known.refusal(bearer(OLD)) is None  # looked at once a second, not at every call
    clock[0] += 2
    assert known.refusal(bearer(OLD)) is not None
    assert known.refusal(bearer(NEW)) is None
    for spoil in (lambda: file.write_text(""), lambda: file.write_bytes(b"\xff\xfe"), file.unlink):
        spoil()
        clock[0] += 2
        assert known.refusal(bearer(NEW)) is None
    assert caplog.text.count("stay in use") == 3
    assert not any(token in caplog.text for token in (OLD, NEW)), "secrets are not logged"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no token"),
        (b"# only\n\n", "no token"),
        (b"short\n", "fewer than 16"),
        (b"\xff" * 20, "not UTF-8"),
        (b"\xef\xbb\xbf" + b"t" * 20, "printable ASCII"),
        (b"t" * 20 + b"\n" + "é".encode() * 20, "printable ASCII"),
        (b"a-token-of-twenty-ch\n" * 100_000, "larger than 256 KiB"),
    ],
    ids=["empty", "comments", "short", "not UTF-8", "byte order mark", "not ASCII", "huge"],
)
def test_a_file_without_decent_tokens_ends_the_start(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(StartError, match=words) as caught:
        BearerTokens(path).load()
    assert "short" not in str(caught.value)


def test_what_is_no_file_ends_the_start(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "Is a directory"), (Path("/dev/zero"), "larger than 256 KiB")):
        with pytest.raises(StartError, match=f"auth_token_file {path}: .*{words}"):
            BearerTokens(path).load()


async def test_tokens_in_clear_text_beyond_this_machine_are_warned_about(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_in_loop(ProbeService(), ServiceSettings(auth_token_file=file, host="0.0.0.0")):
        pass
    assert "clear text" in caplog.text
    caplog.clear()
    async with run_in_loop(ProbeService(), ServiceSettings(auth_token_file=file)):
        pass
    assert "clear text" not in caplog.text


def test_a_token_has_the_name_of_its_line_and_rotated_ones_share_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"team-a: {OLD}\nteam-a:  {NEW}\nanother token with blanks\n")
    known = BearerTokens(path)
    known.load()
    assert [known.name(bearer(token)) for token in (OLD, NEW)] == ["team-a", "team-a"]
    nameless = known.name(bearer("another token with blanks"))
    assert nameless is not None and len(nameless) == 16 and "token" not in nameless
    assert known.name(bearer("team-a")) is None
    assert known.name([]) is None
