"""The settings of connections: transport, credentials, and failover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path

import grpc
import grpc.aio

from tandem.client.errors import ConfigurationError

ChannelOption = tuple[str, int | str]

_SHORTEST, _LONGEST = 0.001, 2e6  # seconds that gRPC can express in milliseconds
_MOST_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """The transport's settings. The defaults suit a local network and the servers of this project."""

    keepalive_seconds: float = 30.0  # a silent connection is probed this often, so that a vanished machine is noticed
    keepalive_timeout_seconds: float = 10.0
    max_message_bytes: int = 64 * 1024 * 1024  # received; the servers have their own limit for what they receive
    resolve_seconds: float = 10.0  # names of several workers (dns:///name:port) are looked up this often
    # A prompt that goes on from no earlier one waits at most this long for the loads of the few workers that it may go
    # to, where they are not known of late. 0: workers are not asked.
    probe_seconds: float = 0.01
    channel_options: Sequence[ChannelOption] = ()  # gRPC's own; they replace ours
    interceptors: Sequence[grpc.aio.ClientInterceptor] = ()  # of every RPC, the first outermost

    def __post_init__(self) -> None:
        _check_number("keepalive_seconds", self.keepalive_seconds, _SHORTEST, _LONGEST)
        _check_number("keepalive_timeout_seconds", self.keepalive_timeout_seconds, _SHORTEST, _LONGEST)
        if self.max_message_bytes != -1:  # gRPC's word for no limit
            _check_integer("max_message_bytes", self.max_message_bytes, 1, _MOST_BYTES)
        _check_number("resolve_seconds", self.resolve_seconds, _SHORTEST)
        _check_number("probe_seconds", self.probe_seconds, 0)

    def options(self) -> list[ChannelOption]:
        chosen: dict[str, int | str] = {
            "grpc.keepalive_time_ms": int(self.keepalive_seconds * 1000),
            "grpc.keepalive_timeout_ms": int(self.keepalive_timeout_seconds * 1000),
            "grpc.http2.max_pings_without_data": 0,
            "grpc.max_receive_message_length": self.max_message_bytes,
            "grpc.max_send_message_length": self.max_message_bytes,
            # A server that restarts is found again within about a second or two.
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 2000,
            # Whatever its name says, the time that a connection has to come about: with TLS over a long way it takes
            # hundreds of milliseconds, on a busy machine more. Attempts that are refused do not wait for it.
            "grpc.min_reconnect_backoff_ms": 5000,
            "grpc.enable_retries": 1,
        }
        chosen.update(self.channel_options)
        return list(chosen.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """TLS, mutual TLS, and a bearer token. PEM material is given as bytes or as the path of a file.

    The token travels as `authorization: Bearer ...` with each call. `tls=False` sends it over a plain connection: only
    for a network that encrypts by itself (a service mesh) or for loopback.
    """

    tls: bool = True
    root_certificates: bytes | Path | str | None = field(default=None, repr=False)  # None: the system's
    private_key: bytes | Path | str | None = field(default=None, repr=False)  # with certificate_chain: mutual TLS
    certificate_chain: bytes | Path | str | None = field(default=None, repr=False)
    server_name: str | None = None  # expected in the certificate, where it differs from the address
    # gRPC's own, such as those of ALTS or of a mesh; in place of the PEM material.
    channel: grpc.ChannelCredentials | None = field(default=None, repr=False)
    bearer_token: str | Callable[[], str] | None = field(default=None, repr=False)  # a function is asked for each call

    def __post_init__(self) -> None:
        if not callable(self.bearer_token):
            _check_token(self.bearer_token)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata that each call carries. Raises ConfigurationError."""
        if self.bearer_token is None:
            return ()
        token = self.bearer_token() if callable(self.bearer_token) else self.bearer_token
        _check_token(token)
        return (("authorization", f"Bearer {token}"),)

    def read(self) -> Credentials:
        """Returns the same credentials with the content of all files. Raises ConfigurationError."""
        if not self.tls:
            return self
        roots, key, chain = self.pem()
        return replace(self, root_certificates=roots, private_key=key, certificate_chain=chain)

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Returns root certificates, private key and certificate chain. Raises ConfigurationError."""
        return (
            _pem("root_certificates", self.root_certificates),
            _pem("private_key", self.private_key),
            _pem("certificate_chain", self.certificate_chain),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    """The settings of retries when a worker or the tokenizer goes away.

    A call is sent again; the rest of an answer goes to another worker, or to the same one when it is back. While
    servers restart the call waits for them, within its own timeout. `attempts` bounds the retries after other errors;
    anything new from the server resets the count.
    """

    attempts: int = 3  # in a row without anything new; 0: every error goes to the caller at once
    restart_seconds: float = 300.0  # waited in a row without anything new, also by a call that has no timeout
    initial_backoff_seconds: float = 0.2  # before the same server is asked again; doubles each time
    max_backoff_seconds: float = 2.0

    def __post_init__(self) -> None:
        _check_integer("attempts", self.attempts, 0)
        for name in ("restart_seconds", "initial_backoff_seconds", "max_backoff_seconds"):
            _check_number(name, getattr(self, name), 0)

    def backoff(self, attempt: int) -> float:
        """Returns the seconds to wait before attempt 1, 2, ..."""
        doubled = self.initial_backoff_seconds * 2.0 ** min(attempt - 1, 64)
        return min(doubled, self.max_backoff_seconds)


def open_channel(
    address: str, connection: ConnectionSettings, credentials: Credentials | None, authority: str = ""
) -> grpc.aio.Channel:
    """Returns a channel of the running event loop, which connects at the first call. `authority` is the server's
    "name:port" where the address does not tell it: its certificate is checked for that name, unless `server_name` says
    another."""
    options = connection.options()
    # gRPC refuses calls whose authority is not the name that it checked.
    if authority and (credentials is None or credentials.server_name is None):
        options.append(("grpc.default_authority", authority))
    if credentials is None or not credentials.tls:
        return grpc.aio.insecure_channel(address, options=options, interceptors=connection.interceptors)
    if (credentials.private_key is None) != (credentials.certificate_chain is None):
        raise ConfigurationError("mutual TLS needs both private_key and certificate_chain")
    if credentials.server_name is not None:
        options.append(("grpc.ssl_target_name_override", credentials.server_name))
    channel = credentials.channel or grpc.ssl_channel_credentials(*credentials.pem())
    return grpc.aio.secure_channel(address, channel, options=options, interceptors=connection.interceptors)


def _check_number(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Raises ConfigurationError for what is not a number in this range; without `high` infinity is."""
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= float(value) <= high:
        raise ConfigurationError(f"{name} must be a number {_range(low, high)}, not {value!r}")


def _check_integer(name: str, value: object, low: int, high: float = math.inf) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high:
        raise ConfigurationError(f"{name} must be an integer {_range(low, high)}, not {value!r}")


def _range(low: float, high: float) -> str:
    return f">= {low:g}" if high == math.inf else f"from {low:g} to {high:.10g}"


def _check_token(token: object) -> None:
    """Raises ConfigurationError for a token that cannot be sent: gRPC's own error is unclear, and logs the token."""
    if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
        raise ConfigurationError("bearer_token must be one line of printable ASCII characters")


def _pem(name: str, material: bytes | Path | str | None) -> bytes | None:
    if material is None:
        return None
    given = isinstance(material, bytes)
    try:
        content = material if isinstance(material, bytes) else Path(material).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot read {material!s}: {error.strerror}") from error
    if b"-----BEGIN " not in content:  # with nothing at all, gRPC would trust the system's authorities instead
        raise ConfigurationError(f"{name}: there is no PEM block in {'these bytes' if given else material!s}")
    return content
