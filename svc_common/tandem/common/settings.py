"""Reads settings from flags, environment, a TOML file and defaults, in that order of precedence.

One field gives one flag (`--log-level`), one environment variable (`TANDEM_WORKER_LOG_LEVEL`) and one key of the file
(`log_level` or `log-level`). pydantic-settings makes the flags and reads the variables. What it lacks is here: it
forgets which source a value came from, takes a file that is missing for an empty one, splits repeated flags at commas,
and is silent about variables that mean nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tandem.common.logs import JsonFormatter
from tandem.common.version import version

S = TypeVar("S", bound="ServerSettings")

# Kubernetes tells containers about Services by variables such as TANDEM_WORKER_PORT=tcp://10.0.0.7:50051.
_SERVICE_LINK_NAME = re.compile(r"SERVICE_(HOST|PORT).*|PORT_\d+_(TCP|UDP|SCTP).*")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")

_OF_CLIENTS = "ADDRESS"  # TANDEM_WORKER_ADDRESS tells `tandem` where a worker is, not a worker

_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH", "tuple[str,...]": "TEXT"}


def _items(value: object) -> object:
    """Reads a list from one variable: as JSON, or as items between commas."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",") if item.strip()]
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"looks like JSON and is not: {error}") from None


Strings = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_items)]


class ServerSettings(BaseSettings):
    """Settings of every server. A server's own class sets `cli_prog_name` and `env_prefix`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        protected_namespaces=(),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_show_env_vars=True,
        cli_hide_none_type=True,
        cli_parse_none_str="\0",  # which nobody can type: "null" and "none" are names
    )

    config: Path | None = Field(default=None, description="TOML file with settings")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 or :: for all")
    port: int = Field(default=0, ge=0, le=65535, description="port to listen on; 0: a free one")
    metrics_host: str = Field(default="127.0.0.1", min_length=1, description="address of the metrics port")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="port of /metrics and /healthz; 0: a free one")
    metrics_enabled: bool = Field(default=True, description="open the metrics port")
    log_format: Literal["human", "json"] = Field(default="human", description="for a terminal or for a collector")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="lowest level shown")
    max_message_bytes: int = Field(
        default=16 << 20,
        ge=1024,
        le=(1 << 31) - 1,
        description="length of the longest request message that is accepted",
    )
    max_concurrent_calls: int = Field(
        default=4096, ge=1, description="calls that may be open at once; more are refused with a time to retry after"
    )
    drain_propagation_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="seconds in which requests are still accepted after health says NOT_SERVING",
    )
    drain_grace_seconds: float = Field(
        default=30.0, ge=0, le=86400, description="seconds for running requests to finish before a stop"
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file of the server's certificate chain: only TLS is spoken then; read again on change",
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
        default=False, description="stop when standard input ends: a parent process holds it open while it lives"
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s]+$",
        description="export spans of requests by OTLP over gRPC to this collector, such as http://collector:4317",
    )
    trace_share: float = Field(
        default=1.0, ge=0, le=1, description="share of the requests whose callers do not trace that get spans"
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: give both or neither")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self

    @model_validator(mode="after")
    def _tracing_has_its_package(self) -> Self:
        if self.otlp_endpoint and find_spec("opentelemetry.exporter") is None:
            raise ValueError("otlp_endpoint needs OpenTelemetry: pip install 'tandem-llm[otel]'")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Reads neither flags nor variables where settings are made in code; `load_settings` does."""
        return (init_settings,)


class ServiceSettings(ServerSettings):
    """Settings of every gRPC service."""

    reflection: bool = Field(default=False, description="gRPC server reflection, for grpcurl and the like")


def load_settings(cls: type[S], argv: Sequence[str]) -> S:
    """Reads `argv` (without the program's name), the environment and the file of `--config`.

    Ends the process, as a command line does: `--help` and `--version` with exit code 0; wrong settings with one
    line each on standard error and exit code 2.
    """
    flags, (environment, ignored) = _flags(cls, argv), _environment(cls)
    config = flags.get("config", environment.get("config"))
    file = _file(cls, str(config)) if config else {}
    values = file | environment | flags
    try:
        settings = cls(**values)
    except ValidationError as error:
        _warn(cls, ignored)
        sources = dict.fromkeys(file, str(config)) | {name: _variable(cls, name) for name in environment}
        _fail(cls, _explain(cls, error, sources | dict.fromkeys(flags, "the command line")))
    _warn(cls, ignored, in_json=settings.log_format == "json")
    return settings


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help lists the flags\n")


def _flags(cls: type[ServerSettings], argv: Sequence[str]) -> dict[str, Any]:
    """Returns the flags that were given. Prints help or version and exits when asked to."""

    def add(parser: _Parser, *names: str, **told: Any) -> None:
        told["help"] = re.sub(r" \(default: (\0|\(\)|)\)", "", told["help"])
        kind = told.get("metavar", "")
        parser.add_argument(*names, **told | {"metavar": _METAVARS.get(kind, kind)})

    def parse(parser: _Parser, given: list[str]) -> dict[str, Any]:
        found = vars(parser.parse_args(given))
        return {name: json.dumps(value) if isinstance(value, list) else value for name, value in found.items()}

    prog = _prog(cls)
    parser = _Parser(prog=prog, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{prog} {version()}", help="show the version and exit")
    return CliSettingsSource[_Parser](
        cls, cli_parse_args=list(argv), root_parser=parser, add_argument_method=add, parse_args_method=parse
    )()


def _environment(cls: type[ServerSettings]) -> tuple[dict[str, Any], list[str]]:
    """Returns the variables with our prefix, and what is to be said of those that mean nothing."""
    values, ignored = EnvSettingsSource(cls)(), []
    for variable, text in sorted(os.environ.items()):
        suffix = variable.removeprefix(_variable(cls, ""))
        if suffix in (variable, _OF_CLIENTS) or _SERVICE_LINK_NAME.fullmatch(suffix):
            continue
        if suffix == "PORT" and _SERVICE_LINK_VALUE.match(text):
            values.pop("port", None)
            ignored.append(
                f"{variable}={text} is a Kubernetes service link and no port: ignored (enableServiceLinks: false)"
            )
        elif suffix.lower() not in cls.model_fields:
            ignored.append(f"{variable} is no setting of this service: ignored")
    return values, ignored


def _warn(cls: type[ServerSettings], problems: Sequence[str], *, in_json: bool = False) -> None:
    """Tells what is no error. The log is not set up yet, but whoever reads it may want nothing but JSON."""
    for problem in problems:
        line = f"{_prog(cls)}: warning: {problem}"
        if in_json:
            record = {"name": __name__, "levelname": "WARNING", "levelno": logging.WARNING, "msg": problem}
            line = JsonFormatter(_prog(cls)).format(logging.makeLogRecord(record))
        print(line, file=sys.stderr)  # noqa: T201


def _file(cls: type[ServerSettings], path: str) -> dict[str, Any]:
    """Returns the keys of a TOML file; an unknown one is an error."""
    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        _fail(cls, [f"--config {path}: {error.strerror}"])
    except ValueError as error:
        _fail(cls, [f"--config {path}: not TOML: {error}"])
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in cls.model_fields or name == "config":
            _fail(cls, [f"--config {path}: unknown setting {key!r}"])
        if name in values:
            _fail(cls, [f"--config {path}: {name!r} is given twice, with dashes and with underscores"])
        values[name] = value
    return values


def _explain(cls: type[ServerSettings], error: ValidationError, sources: dict[str, str]) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False):
        words = problem["msg"].removeprefix("Value error, ")
        if problem["loc"]:
            name = str(problem["loc"][0])
            if name in sources:
                words += f", not {problem['input']!r} from {sources[name]}"
            elif problem["type"] == "missing":
                words = "required"
            words = f"--{name.replace('_', '-')} ({_variable(cls, name)}): {words}"
        lines.append(words)
    return lines


def _prog(cls: type[ServerSettings]) -> str:
    return cls.model_config.get("cli_prog_name") or cls.__name__


def _variable(cls: type[ServerSettings], name: str) -> str:
    """Returns the environment variable of a setting."""
    return f"{cls.model_config.get('env_prefix', '')}{name.upper()}"


def _fail(cls: type[ServerSettings], lines: Sequence[str]) -> NoReturn:
    for line in lines:
        print(f"{_prog(cls)}: {line}".replace("\n", " "), file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
