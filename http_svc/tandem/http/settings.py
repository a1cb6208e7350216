"""Settings of the HTTP door; each is a flag, an environment variable and a key of the configuration file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from tandem.client import Credentials
from tandem.common.peers import PeerFiles
from tandem.common.settings import ServerSettings, Strings

_TOKEN_AGAIN = 1.0  # seconds between two looks at the file of the token


class HttpSettings(ServerSettings):
    """What an operator may choose."""

    model_config = SettingsConfigDict(cli_prog_name="tandem-http", env_prefix="TANDEM_HTTP_")

    tokenizer_address: str = Field(min_length=1, description="HOST:PORT of the tokenizer service")
    worker_address: Strings = Field(
        min_length=1, description="HOST:PORT of a worker, or dns:///NAME:PORT for all that a name has; repeatable"
    )
    tokenizer_name: str = Field(default="", description="which of its tokenizers; empty: its default")
    upstream_tls: bool = Field(default=False, description="speak TLS with both services (system's authorities)")
    upstream_tls_ca: Path | None = Field(
        default=None, description="PEM file of the authorities of their certificates; with it, TLS is spoken"
    )
    upstream_tls_server_name: str = Field(
        default="", description="name in their certificates, when that is not the host of the address"
    )
    upstream_tls_certificate: Path | None = Field(
        default=None, description="PEM file of the certificate that the door shows to them (mutual TLS)"
    )
    upstream_tls_key: Path | None = Field(default=None, description="PEM file of that certificate's private key")
    upstream_token_file: Path | None = Field(
        default=None, description="file of the bearer token for both; read again on change"
    )
    max_message_bytes: int = Field(
        default=4 << 20, ge=1024, le=64 << 20, description="longest body of a request that is accepted"
    )
    request_seconds: float = Field(default=600.0, gt=0, le=86400, description="how long one request may take in all")
    stalled_reader_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="a caller who takes nothing of an answer for so long is cut off"
    )
    cache_per_caller: bool = Field(
        default=False,
        description="prompts share cached pages only with those of the same caller (bearer token's name, else address)",
    )
    page: bool = Field(default=True, description="serve a page to try the model, at /; it asks for no key itself")
    cors_origin: Strings = Field(default=(), description="origin whose pages may call from a browser, or *; repeatable")

    @model_validator(mode="after")
    def _upstream_is_whole(self) -> Self:
        if (self.upstream_tls_certificate is None) != (self.upstream_tls_key is None):
            raise ValueError("upstream_tls_certificate and upstream_tls_key go together: give both or neither")
        if not self.upstream_tls and self.upstream_tls_ca is None:
            for name in ("upstream_tls_certificate", "upstream_tls_server_name"):
                if getattr(self, name):
                    raise ValueError(f"{name} needs upstream_tls or upstream_tls_ca")
        return self

    def credentials(self) -> Credentials | None:
        """How both services are spoken to; None: plainly. Raises OSError or ValueError where the token is not good."""
        tls = self.upstream_tls or self.upstream_tls_ca is not None
        if not tls and self.upstream_token_file is None:
            return None
        token = None if self.upstream_token_file is None else _Token(self.upstream_token_file)
        return Credentials(
            tls=tls,
            root_certificates=self.upstream_tls_ca,
            certificate_chain=self.upstream_tls_certificate,
            private_key=self.upstream_tls_key,
            server_name=self.upstream_tls_server_name or None,
            bearer_token=token,
        )


class _Token:
    """The token of a file, as it is now; one that cannot be read any more stays what it was."""

    def __init__(self, path: Path) -> None:
        self._peer = PeerFiles(token=path)
        self._token, self._looked = self._read(), time.monotonic()

    def __call__(self) -> str:
        if time.monotonic() - self._looked > _TOKEN_AGAIN:
            self._looked = time.monotonic()
            try:
                self._token = self._read()
            except (OSError, ValueError):
                return self._token
        return self._token

    def _read(self) -> str:
        ((_, value),) = self._peer.metadata()
        return value.removeprefix("Bearer ")
