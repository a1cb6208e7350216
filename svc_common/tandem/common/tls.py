"""Reads PEM files for TLS and mutual TLS, again when they change: certificates are rotated while we run."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from tandem.common.errors import StartError

logger = logging.getLogger("tandem.common.tls")

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Names the certificate chain, the private key and, for mutual TLS, the authorities of client certificates."""

    certificate: Path
    key: Path
    client_ca: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path is not None)

    def stamp(self) -> Stamp:
        """Returns a value that changes when a file does. Raises OSError."""
        stats = [os.stat(path) for path in self.paths]  # noqa: PTH116  (follows the links of mounted secrets)
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in stats)

    def load(self) -> grpc.ServerCertificateConfiguration:
        """Reads and checks the files: gRPC itself would complain only when somebody connects. Raises StartError."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise StartError(f"tls_certificate {self.certificate}, tls_key {self.key}: {_words(error)}") from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError, ValueError) as error:
                raise StartError(f"tls_client_ca {self.client_ca}: {_words(error)}") from None
        return grpc.ssl_server_certificate_configuration(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.client_ca.read_bytes() if self.client_ca is not None else None,
        )


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Makes credentials that follow the files. Raises StartError when the files are unusable now.

    Files that are no good later (half of a rotation) are reported, and the certificate in use stays.
    """
    try:
        stamp = files.stamp()
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}") from None
    current = files.load()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Returns new credentials, or None for no change; gRPC calls it before each handshake."""
        nonlocal stamp
        try:
            now = files.stamp()
            if now == stamp:
                return None
            stamp = now
            loaded = files.load()
        except (OSError, StartError) as error:
            logger.error("%s; the certificate read before stays in use", error)
            return None
        logger.info("%s has changed: new connections get the new certificate", files.certificate)
        return loaded

    return grpc.dynamic_ssl_server_credentials(
        current,
        fetch,  # type: ignore[arg-type]  # None is documented
        require_client_authentication=files.client_ca is not None,
    )


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM that OpenSSL can read").replace("_", " ").lower()
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
