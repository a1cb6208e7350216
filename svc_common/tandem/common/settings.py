"""Settings from flags, environment, a TOML file and defaults, in that order of precedence.

One field gives one flag (`--log-level`), one environment variable (`TANDEM_WORKER_LOG_LEVEL`) and one key of the file
(`log_level` or `log-level`). Values are checked once, together, and each that is wrong gets a line that says where it
came from.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tandem.common.settings_sources import Given, SettingsError, from_environment, from_file, from_flags

S = TypeVar("S", bound="ServiceSettings")


class ServiceSettings(BaseModel):
    """What every service can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 or :: for all")
    port: int = Field(default=0, ge=0, le=65535, description="port of gRPC; 0: a free one")
    metrics_host: str = Field(default="127.0.0.1", min_length=1, description="address of the metrics port")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="port of /metrics and /healthz; 0: a free one")
    metrics_enabled: bool = Field(default=True, description="open the metrics port")
    log_format: Literal["human", "json"] = Field(default="human", description="for a terminal or for a collector")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="lowest level shown")
    reflection: bool = Field(default=False, description="gRPC server reflection, for grpcurl and the like")
    max_message_bytes: int = Field(
        default=16 << 20, ge=1024, le=(1 << 31) - 1, description="longest request message that is accepted"
    )
    max_concurrent_calls: int = Field(
        default=4096, ge=1, description="calls that may be open at once; more are refused with advice when to come back"
    )
    drain_propagation_seconds: float = Field(
        default=0.0, ge=0, le=3600, description="still accept for so long after health has said NOT_SERVING"
    )
    drain_grace_seconds: float = Field(
        default=30.0, ge=0, le=86400, description="let running requests finish for so long before a stop"
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file of the server's certificate chain: gRPC speaks TLS only; read again on change",
    )
    tls_key: Path | None = Field(default=None, description="PEM file of the certificate's private key")
    tls_client_ca: Path | None = Field(
        default=None, description="PEM file of the authorities whose client certificates are let in (mutual TLS)"
    )
    auth_token_file: Path | None = Field(
        default=None,
        description="file of bearer tokens, one a line: every call but health's must carry one; read again on change",
    )
    address_file: Path | None = Field(
        default=None, description="write the addresses here, as JSON, once requests are served"
    )
    exit_when_stdin_closes: bool = Field(
        default=False, description="stop when standard input ends: our parent holds it open as long as it lives"
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: give both or neither")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self


def load_settings(cls: type[S], argv: Sequence[str], *, prog: str, env_prefix: str) -> S:
    """Reads `argv` (without the program's name), the environment and the file of `--config`.

    Ends the process, as a command line does: `--help` and `--version` with exit code 0; wrong settings with one
    line each on standard error and exit code 2.
    """
    try:
        flags, config = from_flags(cls, argv, prog=prog, env_prefix=env_prefix)
        environment, warnings = from_environment(cls, env_prefix)
        config = config or environment.pop("config", None)
        file = from_file(cls, Path(str(config.value))) if config else {}
    except SettingsError as error:
        _fail(prog, [str(error)])
    for warning in warnings:
        print(f"{prog}: warning: {warning}", file=sys.stderr)  # noqa: T201  (the log is not set up yet)
    given = {**file, **environment, **flags}
    try:
        return cls.model_validate({name: each.value for name, each in given.items()})
    except ValidationError as error:
        _fail(prog, _explain(error, given, env_prefix))


def _explain(error: ValidationError, given: dict[str, Given], env_prefix: str) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False):
        words = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            lines.append(words)
            continue
        name = str(problem["loc"][0])
        where = f"--{name.replace('_', '-')} ({env_prefix}{name.upper()})"
        if name not in given:
            lines.append(f"{where}: required" if problem["type"] == "missing" else f"{where}: {words}")
        else:
            lines.append(f"{where}: {words}, not {problem['input']!r} from {given[name].source}")
    return lines


def _fail(prog: str, lines: Sequence[str]) -> NoReturn:
    for line in lines:
        print(f"{prog}: {line}".replace("\n", " "), file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
