"""The flags of a connection: TLS, mutual TLS and a bearer token, once for every command that connects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.client.async_client import AsyncClient
from tandem.client.cli.options import required_tokenizer
from tandem.client.cli.shared_flags import with_shared_flags
from tandem.client.cli.terminal import CommandError
from tandem.client.environment import first_token
from tandem.client.settings import Credentials

ConnectionFlags = Callable[[], Credentials | None]  # raises CommandError

_PANEL = "Connection"


def _file(flag: str, words: str) -> tuple[Any, Any]:
    variable = f"TANDEM_{flag.removeprefix('--').replace('-', '_').upper()}"
    return Annotated[Path | None, typer.Option(flag, help=words, envvar=variable, rich_help_panel=_PANEL)], None


CONNECTION_FLAGS: dict[str, tuple[Any, Any]] = {
    "tls": (
        Annotated[
            bool,
            typer.Option(
                "--tls", help="Connect with TLS and the system's certificate authorities.", rich_help_panel=_PANEL
            ),
        ],
        False,
    ),
    "ca_file": _file("--ca-file", "Connect by TLS, with the authorities in this PEM file."),
    "server_name": (
        Annotated[
            str,
            typer.Option(
                "--server-name",
                help="Name in the servers' certificates, if it differs from the host.",
                envvar="TANDEM_SERVER_NAME",
                rich_help_panel=_PANEL,
            ),
        ],
        "",
    ),
    "certificate_file": _file("--certificate-file", "PEM file of our own certificate, for mutual TLS."),
    "key_file": _file("--key-file", "PEM file of its private key."),
    "token_file": _file("--token-file", "File whose first token is the bearer token to send."),
}


def _credentials(given: dict[str, Any]) -> Credentials | None:
    """Returns the credentials; None means a plain connection without a token."""
    tls = given["tls"] or given["ca_file"] is not None
    certificate, key, token_file = given["certificate_file"], given["key_file"], given["token_file"]
    if (certificate is None) != (key is None):
        raise CommandError("--certificate-file and --key-file go together: give both or neither", exit_code=2)
    for flag, value in (("--certificate-file", certificate), ("--server-name", given["server_name"])):
        if value and not tls:
            raise CommandError(f"{flag} needs --tls or --ca-file", exit_code=2)
    if not tls and token_file is None:
        return None
    token = None
    if token_file is not None:
        try:
            token = first_token(token_file.read_text(encoding="utf-8"))
        except UnicodeDecodeError:  # its own words would quote the file
            raise CommandError(f"--token-file {token_file}: is not UTF-8 text") from None
        except OSError as error:
            raise CommandError(f"--token-file {token_file}: {error.strerror}") from None
        if not (token.isascii() and token.isprintable() and token):
            raise CommandError(f"--token-file {token_file}: holds no token of printable ASCII characters")
    return Credentials(
        tls=tls,
        root_certificates=given["ca_file"],
        private_key=key,
        certificate_chain=certificate,
        server_name=given["server_name"] or None,
        bearer_token=token,
    )


with_connection_flags = with_shared_flags("connection", CONNECTION_FLAGS, _credentials)
"""Decorates a command that takes `connection: ConnectionFlags` among its parameters."""


def tokenizer_client(address: str, connection: ConnectionFlags) -> AsyncClient:
    """Returns the client of a command that asks the tokenizer service alone. Raises CommandError."""
    return AsyncClient(required_tokenizer(address), credentials=connection())
