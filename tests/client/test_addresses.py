"""Addresses as people write them, and what is said about those that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.client import AsyncClient, Client, ConfigurationError, UnimplementedError
from tandem.client.addresses import tokenizer_address, worker_addresses
from tests.client.byte_vocabulary import TEXT
from tests.client.fakes import ServersThread


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost:50052", ["localhost:50052"]),
        (50052, ["localhost:50052"]),
        ("50052", ["localhost:50052"]),
        ("a:1, b:2,[::1]:3", ["a:1", "b:2", "[::1]:3"]),
        (["a:1,b:2", 3], ["a:1", "b:2", "localhost:3"]),
        ("unix:/run/a,b", ["unix:/run/a,b"]),
        ("ipv4:10.0.0.1:5,10.0.0.2:5", ["ipv4:10.0.0.1:5,10.0.0.2:5"]),
        ("dns:///worker:5", ["dns:///worker:5"]),
        ("a:1,dns:///worker:5", ["a:1", "dns:///worker:5"]),
    ],
)
def test_addresses_are_read_as_they_are_meant(given: Any, meant: list[str]) -> None:
    assert worker_addresses(given) == meant
    if len(meant) == 1:
        assert tokenizer_address(given) == meant[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("http://a:1/v1", "'http://a:1/v1' is a URL; give 'a:1'"),
        ("https://a:1", "give 'a:1', with Credentials() for TLS"),
        ("localhost", "'localhost' has no port; give HOST:PORT, such as 'localhost:50051'"),
        ("[::1]", "has no port"),
        ("::1:5", "an IPv6 address stands in brackets"),
        ("a:0", "the port of 'a:0' must be 1 to 65535"),
        (70000, "the port of 70000 must be 1 to 65535"),
        ("a:port", "'a:port' is not HOST:PORT"),
        ("a b:1", "is not HOST:PORT"),
        ("a:1,", "is not HOST:PORT"),
        ("", "an address is a text such as 'localhost:50051' or a port number, not ''"),
        (True, "not True"),
        (1.5, "not 1.5"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(given: Any, words: str) -> None:
    for name in ("tokenizer", "worker"):
        value = [given] if name == "worker" and isinstance(given, float) else given
        with pytest.raises(ConfigurationError) as caught:
            AsyncClient(**{name: value})
        assert words in str(caught.value)
        assert name in str(caught.value)


def test_a_tokenizer_is_one_address_and_workers_are_different() -> None:
    with pytest.raises(ConfigurationError, match="tokenizer is one address, and 'a:1,b:2' has 2"):
        AsyncClient("a:1,b:2")
    with pytest.raises(ConfigurationError, match="only once"):
        AsyncClient("a:1", ["localhost:5", 5])


def test_the_environment_configures_a_client_without_addresses(
    servers: ServersThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="TANDEM_TOKENIZER_ADDRESS"):
        Client()
    monkeypatch.setenv("TANDEM_TOKENIZER_ADDRESS", servers.tokenizer_address)
    monkeypatch.setenv("TANDEM_WORKER_ADDRESS", servers.worker_address)
    with Client() as client:
        assert client.generate("Hi", seed=0, max_tokens=4).text == TEXT[:4]
    with Client(worker=servers.worker_address) as client, pytest.raises(ConfigurationError):
        client.encode("Hi")  # what is given is all there is
    token = tmp_path / "token"
    monkeypatch.setenv("TANDEM_TOKEN_FILE", str(token))
    with pytest.raises(ConfigurationError, match="TANDEM_TOKEN_FILE"):
        Client()
    token.write_text("# ours\nhush\n")
    with Client() as client:
        assert client.encode("Hi").ids
    assert servers.tokenizer.metadata[-1]["authorization"] == "Bearer hush"


async def test_swapped_services_are_named(servers: ServersThread) -> None:
    swapped: dict[str, Any] = {"tokenizer": servers.worker_address, "worker": servers.tokenizer_address}
    async with AsyncClient(**swapped) as client:
        with pytest.raises(UnimplementedError, match="there is no tokenizer service at this address: is it a worker's"):
            await client.encode("Hi")
        with pytest.raises(UnimplementedError, match="there is no worker at this address: is it a tokenizer"):
            await client.generate([1, 2], detokenize=False)
