"""TLS, mutual TLS and bearer tokens, against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tandem.client import AsyncClient, ConfigurationError, Credentials, UnauthenticatedError, UnavailableError
from tandem.client.cli.connection_flags import CONNECTION_FLAGS, _credentials
from tandem.client.cli.terminal import CommandError
from tandem.inference.v1 import admin_pb2_grpc, inference_pb2_grpc
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from tests import prepared
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker

pytest.importorskip("cryptography", reason="certificates for the tests are made with it")
from tests.svc_common.certificates import Authority

TOKEN = "correct horse"
PEM = b"-----BEGIN PRIVATE KEY-----"


class TokenGate(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation, details):
        metadata = dict(details.invocation_metadata)
        if metadata.get("authorization") == f"Bearer {TOKEN}":
            return await continuation(details)

        async def refuse(request, context):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

        return grpc.unary_unary_rpc_method_handler(refuse)


@asynccontextmanager
async def both_in_one(credentials: grpc.ServerCredentials | None, *, gate: bool = False) -> AsyncIterator[str]:
    server = grpc.aio.server(interceptors=[TokenGate()] if gate else [])
    worker = CountingWorker([*ids_of_text(TEXT), EOS])
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(ByteTokenizer(), server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(worker, server)
    admin_pb2_grpc.add_WorkerAdminServiceServicer_to_server(worker, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("test authority")


async def test_tls_with_an_authority_of_ones_own(authority: Authority, tmp_path: Path) -> None:
    signed = authority.sign("server")
    file = tmp_path / "ca.pem"
    file.write_bytes(authority.certificate)
    async with both_in_one(grpc.ssl_server_credentials([(signed.key, signed.certificate)])) as address:
        for material in (authority.certificate, file, str(file)):
            credentials = Credentials(root_certificates=material)
            async with AsyncClient(address, address, credentials=credentials, timeout=30) as client:
                assert (await client.generate("Hi", seed=0)).text == TEXT
        for wrong in (None, Credentials(root_certificates=Authority("another").certificate)):
            async with AsyncClient(address, credentials=wrong, timeout=60) as client:
                with pytest.raises(UnavailableError):
                    await client.encode("Hi")


async def test_mutual_tls(authority: Authority) -> None:
    server, own = authority.sign("server"), authority.sign("client")
    demanding = grpc.ssl_server_credentials(
        [(server.key, server.certificate)], root_certificates=authority.certificate, require_client_auth=True
    )
    async with both_in_one(demanding) as address:
        whole = Credentials(
            root_certificates=authority.certificate, private_key=own.key, certificate_chain=own.certificate
        )
        async with AsyncClient(address, address, credentials=whole, timeout=30) as client:
            assert (await client.generate("Hi", seed=0)).text == TEXT
        without = Credentials(root_certificates=authority.certificate)
        async with AsyncClient(address, credentials=without, timeout=60) as client:
            with pytest.raises(UnavailableError):
                await client.encode("Hi")


async def test_each_call_carries_the_bearer_token(authority: Authority) -> None:
    asked = 0

    def rotating() -> str:
        nonlocal asked
        asked += 1
        return TOKEN

    async with both_in_one(None, gate=True) as address:
        async with AsyncClient(
            address, address, credentials=Credentials(tls=False, bearer_token=rotating), timeout=30
        ) as client:
            result = await client.generate("Hi", seed=0)
            assert result.text == TEXT
            assert list((await client.get_models()).values())[0] is not None  # noqa: RUF015
        assert asked >= 4, "encode, model, generate, decode"
        for credentials in (None, Credentials(tls=False, bearer_token="wrong")):
            async with AsyncClient(address, address, credentials=credentials, timeout=60) as client:
                with pytest.raises(UnauthenticatedError, match="who are you"):
                    await client.encode("Hi")
                with pytest.raises(UnauthenticatedError):
                    await client.generate([5], detokenize=False)


async def test_credentials_that_cannot_work_are_named(tmp_path: Path) -> None:
    for credentials, words in (
        (Credentials(root_certificates=tmp_path / "none"), "root_certificates: cannot read"),
        (Credentials(private_key=b"key"), "certificate_chain"),
        (Credentials(certificate_chain=b"chain"), "private_key"),
    ):
        client = AsyncClient("a:1", credentials=credentials)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=words):
                await client.encode("x")
        await client.close()


async def command(*arguments: str) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error of `tandem ARGUMENTS`."""
    environment = {"NO_COLOR": "1", "PATH": ""}
    done = await asyncio.to_thread(prepared.run, "tandem.client.cli", *arguments, environment=environment)
    return done.returncode, done.stdout, done.stderr


async def test_every_command_connects_by_mutual_tls_with_a_token(authority: Authority, tmp_path: Path) -> None:
    server = authority.sign("server", "services.test")
    certificate, key = authority.sign("client").write(tmp_path, "client")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    flags = [f"--ca-file={tmp_path / 'ca.pem'}", "--server-name=services.test", f"--token-file={tmp_path / 'token'}"]
    own = [f"--certificate-file={certificate}", f"--key-file={key}"]
    demanding = grpc.ssl_server_credentials(
        [(server.key, server.certificate)], root_certificates=authority.certificate, require_client_auth=True
    )
    async with both_in_one(demanding, gate=True) as address:
        both = [f"--tokenizer-address={address}", f"--worker-address={address}"]
        assert await command("generate", "Hi", "--seed=0", *both, *flags, *own) == (0, TEXT, "")
        for name, here in (("status", both), ("top", [both[1], "--looks=1"]), ("tokenize", [both[0], "Hi"])):
            code, out, errors = await command(name, *here, *flags, *own)
            assert (code, errors) == (0, "") and out
        name = f"--worker-address=dns:///localhost:{address.rpartition(':')[2]}"
        code, _, errors = await command("top", name, "--looks=1", *flags, *own)
        assert (code, errors) == (0, ""), "--server-name counts for workers behind a name as well"
        code, _, errors = await command("tokenize", "Hi", both[0], "--timeout=2", *flags)
        assert code == 1 and address in errors, "without a certificate of its own"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ca-file=x", "--key-file=k"], "--certificate-file and --key-file go together"),
        (["--certificate-file=c", "--key-file=k"], "--certificate-file needs --tls or --ca-file"),
        (["--server-name=n"], "--server-name needs --tls or --ca-file"),
    ],
    ids=["key alone", "certificate without TLS", "name without TLS"],
)
async def test_flags_that_do_not_go_together_are_wrong_usage(flags: list[str], words: str) -> None:
    code, _, errors = await command("status", "--worker-address=127.0.0.1:1", *flags)
    assert code == 2 and words in errors


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no token"),
        (b"# nothing\n\n", "holds no token"),
        ("é".encode() * 20, "holds no token of printable ASCII"),
        (b"secret\xff", "is not UTF-8 text"),
    ],
    ids=["empty", "comments", "not ASCII", "not UTF-8"],
)
def test_a_token_file_without_a_token_is_named_and_not_quoted(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(CommandError) as caught:
        _credentials(dict.fromkeys(CONNECTION_FLAGS) | {"token_file": file})
    assert str(file) in str(caught.value) and words in str(caught.value) and "secret" not in str(caught.value)


def test_the_first_token_of_a_file_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"# new\n{TOKEN}\nthe old one\n")
    credentials = _credentials(dict.fromkeys(CONNECTION_FLAGS) | {"token_file": file})
    assert credentials is not None and credentials.bearer_token == TOKEN


@pytest.mark.parametrize("token", ["two\nlines", "é", 7])
def test_a_token_that_no_header_can_carry_is_refused(token: object) -> None:
    for given in (lambda: token, token):
        with pytest.raises(ConfigurationError, match="bearer_token must be one line of printable ASCII"):
            Credentials(tls=False, bearer_token=given).metadata()  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"garbage"])
@pytest.mark.parametrize("name", ["root_certificates", "private_key", "certificate_chain"])
async def test_what_is_no_pem_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.write_bytes(content)
    for given, where in ((content, "these bytes"), (file, str(file))):
        credentials: dict[str, Any] = {"private_key": PEM, "certificate_chain": PEM} | {name: given}
        client = AsyncClient(worker="127.0.0.1:1", credentials=Credentials(**credentials))
        with pytest.raises(ConfigurationError, match=f"{name}: there is no PEM block in {where}"):
            await client.get_models()
        await client.close()


def test_secrets_are_not_shown() -> None:
    credentials = Credentials(private_key=b"secret key", certificate_chain=b"c", bearer_token="secret token")
    assert "secret" not in repr(credentials)
