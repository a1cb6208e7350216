"""The worker asks a tokenizer service that is secured as well, and says what is wrong where it may not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from pydantic import ValidationError

from tandem.common.errors import StartError
from tandem.common.run_service import Lifecycle
from tandem.worker.engine.process.messages import EngineInfo, Vocabulary
from tandem.worker.front.server import WorkerService
from tandem.worker.front.tokenizer_check import TokenizerCheck
from tandem.worker.settings import WorkerSettings
from tests.integration.worker_process import service_process
from tests.svc_common.certificates import Authority

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
TOKEN = "a token of many characters"
MODEL = cast(EngineInfo, SimpleNamespace(vocabulary_size=2048))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("ours")


@pytest.fixture(scope="module")
def files(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority, certificates of server and worker, tokens."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "other.pem").write_bytes(Authority("theirs").certificate)
    authority.sign("server", "tokenizer.test").write(folder, "server")
    authority.sign("worker").write(folder, "worker")
    (folder / "token").write_text(f"# for workers\n\n{TOKEN}\n")
    (folder / "wrong").write_text("another token of many characters\n")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(files: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    flags = [f"--tls-certificate={files / 'server.pem'}", f"--tls-key={files / 'server.key'}"]
    flags += [f"--tls-client-ca={files / 'ca.pem'}", f"--auth-token-file={files / 'token'}"]
    folder = tmp_path_factory.mktemp("tokenizer")
    async with service_process("tandem.tokenizer", folder, f"--tokenizer=demo={DEMO}", *flags) as (address, _):
        yield address


def settings(files: Path, address: str, **changed: Any) -> WorkerSettings:
    """Right ones but for what is `changed`."""
    fields: dict[str, Any] = {
        "tokenizer_tls_ca": files / "ca.pem",
        "tokenizer_tls_server_name": "tokenizer.test",
        "tokenizer_tls_certificate": files / "worker.pem",
        "tokenizer_tls_key": files / "worker.key",
        "tokenizer_token_file": files / "token",
        "tokenizer_wait_seconds": 30,
    }
    return WorkerSettings(model=str(DEMO), tokenizer_address=address, **(fields | changed))


async def check_tokenizer(worker: WorkerSettings, info: EngineInfo) -> tuple[str, Vocabulary]:
    """As a worker whose model is loaded at once."""
    check = TokenizerCheck(worker)
    try:
        return await check.against(info)
    finally:
        await check.stop()


@pytest.mark.asyncio(loop_scope="module")
async def test_by_mutual_tls_and_with_a_token(files: Path, address: str) -> None:
    fingerprint, vocabulary = await check_tokenizer(settings(files, address), MODEL)
    assert len(fingerprint) == 64
    assert sum(1 for _ in vocabulary.each()) == 2048


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_its_token_it_says_so(files: Path, address: str, token: str | None) -> None:
    wrong = settings(files, address, tokenizer_token_file=files / token if token else None)
    with pytest.raises(StartError, match=f"tokenizer_address {address}: UNAUTHENTICATED: .*tokenizer_token_file"):
        await check_tokenizer(wrong, MODEL)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"tokenizer_tls_ca": "other.pem"}, "CERTIFICATE_VERIFY_FAILED"),
        ({"tokenizer_tls_server_name": "another.test"}, "Hostname Verification"),
        ({"tokenizer_tls_certificate": None, "tokenizer_tls_key": None}, "failed to connect"),
    ],
    ids=["another authority", "another name", "no certificate of its own"],
)
async def test_a_connection_that_cannot_be_made_ends_the_wait_and_says_why(
    files: Path, address: str, changed: dict[str, str | None], why: str
) -> None:
    changed = {name: str(files / value) if value and ".pem" in value else value for name, value in changed.items()}
    wrong = settings(files, address, tokenizer_wait_seconds=0.5, **changed)
    with pytest.raises(StartError, match=f"tokenizer_address {address}: UNAVAILABLE: .*{why}.*0.5 s"):
        await check_tokenizer(wrong, MODEL)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_plain_question_to_a_service_with_tls_says_what_may_be_missing(address: str) -> None:
    plain = WorkerSettings(model=str(DEMO), tokenizer_address=address, tokenizer_wait_seconds=0.5)
    with pytest.raises(StartError, match=r"UNAVAILABLE: .*if it speaks TLS, set tokenizer_tls_ca"):
        await check_tokenizer(plain, MODEL)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "holds no token"), (b"# \n", "holds no token"), (b"\xc3\xa9" * 20, "ASCII"), (b"secret\xff", "not UTF-8")],
    ids=["empty", "comments", "not ASCII", "not UTF-8"],
)
async def test_a_token_file_without_a_token_ends_the_start_before_the_model_is_loaded(
    content: bytes, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    service = WorkerService(
        WorkerSettings(model=str(tmp_path / "none"), tokenizer_address="127.0.0.1:1", tokenizer_token_file=file)
    )
    with pytest.raises(StartError, match=f"^tokenizer_address 127.0.0.1:1: {file} .*{words}") as caught:
        await service.start(Lifecycle())
    assert "secret" not in str(caught.value)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("field", ["tokenizer_tls_ca", "tokenizer_tls_key", "tokenizer_token_file"])
async def test_a_file_that_is_not_there_is_named(files: Path, address: str, field: str) -> None:
    wrong = settings(files, address, **{field: files / "missing"})
    with pytest.raises(StartError, match=r"tokenizer_address .*No such file.*missing"):
        await check_tokenizer(wrong, MODEL)


@pytest.mark.parametrize("field", ["tokenizer_tls_ca", "tokenizer_tls_key"])
async def test_a_file_without_pem_is_named(files: Path, field: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.pem"
    file.touch()
    with pytest.raises(StartError, match=f"there is no PEM block in {file}"):
        await check_tokenizer(settings(files, "127.0.0.1:1", **{field: file}), MODEL)


@pytest.mark.parametrize(
    "fields",
    [
        {"tokenizer_tls_ca": "a", "tokenizer_tls_key": "k"},
        {"tokenizer_tls_certificate": "c", "tokenizer_tls_key": "k"},
        {"tokenizer_tls_server_name": "n"},
    ],
    ids=["key alone", "certificate without TLS", "name without TLS"],
)
def test_settings_that_do_not_go_together_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="tokenizer_tls"):
        WorkerSettings(model="x", **fields)  # type: ignore[arg-type]


async def test_a_service_that_starts_later_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plain = WorkerSettings(model=str(DEMO), tokenizer_address=f"127.0.0.1:{port}")
    caplog.set_level("INFO", "tandem.worker")
    asked = asyncio.create_task(check_tokenizer(plain, MODEL))
    async with service_process("tandem.tokenizer", tmp_path, f"--tokenizer=demo={DEMO}", f"--port={port}"):
        fingerprint, _ = await asked
    assert len(fingerprint) == 64
    assert f"waiting for the tokenizer at 127.0.0.1:{port}" in caplog.text


@pytest.mark.asyncio(loop_scope="module")
async def test_its_address_may_come_in_a_file_later(files: Path, address: str, tmp_path: Path) -> None:
    file, written = tmp_path / "address.json", tmp_path / "written"
    asked = asyncio.create_task(check_tokenizer(settings(files, "", tokenizer_address_file=file), MODEL))
    await asyncio.sleep(0)  # it looks for the file
    written.write_text(json.dumps({"address": address, "pid": 1}))
    written.rename(file)
    fingerprint, _ = await asked
    assert len(fingerprint) == 64


@pytest.mark.asyncio(loop_scope="module")
async def test_the_service_is_asked_while_the_model_loads(files: Path, address: str) -> None:
    before = asyncio.all_tasks()
    check = TokenizerCheck(settings(files, address))
    await asyncio.wait(asyncio.all_tasks() - before)  # it has asked, and nobody has said yet what the model is
    fingerprint, _ = await check.against(MODEL)
    assert len(fingerprint) == 64


async def test_while_the_model_loads_the_service_may_take_any_time(tmp_path: Path) -> None:
    file = tmp_path / "address.json"
    waiting = WorkerSettings(model=str(DEMO), tokenizer_address_file=file, tokenizer_wait_seconds=1e-9)
    before = asyncio.all_tasks()
    check = TokenizerCheck(waiting)
    assert not (await asyncio.wait(asyncio.all_tasks() - before, timeout=0.05))[0]
    with pytest.raises(StartError, match="no tokenizer service has written it"):
        await check.against(MODEL)
    await check.stop()


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no tokenizer service has written it .*0.1 s"), ("{}", "not what"), ("[", "not what")]
)
async def test_a_file_without_an_address_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "address.json"
    if content is not None:
        file.write_text(content)
    waiting = WorkerSettings(model=str(DEMO), tokenizer_address_file=file, tokenizer_wait_seconds=0.1)
    with pytest.raises(StartError, match=f"^tokenizer_address_file {file}: .*{words}"):
        await check_tokenizer(waiting, MODEL)
