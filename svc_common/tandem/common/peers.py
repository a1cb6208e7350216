"""Connects one of our services, or a health check, to another one: in plain text, or by TLS and with a token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # settings name these files, and are read before anything is connected
    import grpc


@dataclass(frozen=True, slots=True)
class PeerFiles:
    """Names PEM files and token files, read whenever a connection is made. All methods raise OSError or ValueError."""

    tls: bool = False  # with the system's authorities
    ca: Path | None = None  # with these authorities instead
    server_name: str = ""  # in the server's certificate, where it is not the host of the address
    certificate: Path | None = None  # our own, for mutual TLS
    key: Path | None = None
    token: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the channel's credentials; None means a connection in plain text."""
        if not self.tls and self.ca is None:
            return None
        import grpc

        return grpc.ssl_channel_credentials(*(_pem(path) for path in (self.ca, self.key, self.certificate)))

    def options(self) -> list[tuple[str, str | int]]:
        """Returns the options of the channel."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of each call."""
        if self.token is None:
            return ()
        try:
            text = self.token.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # its own words would quote the file
            raise ValueError(f"{self.token} is not UTF-8 text") from None
        lines = (line.strip() for line in text.splitlines())
        token = next((line for line in lines if line and not line.startswith("#")), "")
        if not (token and token.isascii() and token.isprintable()):  # what a header can carry
            raise ValueError(f"{self.token} holds no token of printable ASCII characters")
        return (("authorization", f"Bearer {token}"),)


def _pem(path: Path | None) -> bytes | None:
    content = None if path is None else path.read_bytes()
    if content is not None and b"-----BEGIN " not in content:  # with nothing, gRPC would trust the system's authorities
        raise ValueError(f"there is no PEM block in {path}")
    return content
