"""The places that settings come from: the command line, the environment, a TOML file.

Each answers {field: value as given and where it was given}; nothing is checked here beyond its own grammar.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tandem.common.metrics import version

# Kubernetes tells containers about Services by variables such as TANDEM_WORKER_PORT=tcp://10.0.0.7:50051.
_SERVICE_LINK_NAME = re.compile(r"(SERVICE_(HOST|PORT).*|PORT_\d+_(TCP|UDP|SCTP).*)")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


class SettingsError(Exception):
    """One line about something that cannot be read."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody wrote it."""

    value: object
    source: str  # "the command line", "the environment", "FILE"


def from_flags(
    cls: type[BaseModel], argv: Sequence[str], *, prog: str, env_prefix: str
) -> tuple[dict[str, Given], Given | None]:
    """The flags that were given, and --config. Prints help or version and exits when asked to."""
    parser = _Parser(prog=prog, allow_abbrev=False, argument_default=argparse.SUPPRESS, add_help=False)
    parser.add_argument("-h", "--help", action="help", help="show this and exit")
    parser.add_argument("--version", action="version", version=f"{prog} {version()}", help="show the version and exit")
    parser.add_argument("--config", metavar="FILE", help=f"TOML file with settings ({env_prefix}CONFIG)")
    for name, field in cls.model_fields.items():
        _add_flag(parser, name, field, env_prefix)
    found = vars(parser.parse_args(list(argv)))
    config = Given(found.pop("config"), "the command line") if "config" in found else None
    values = {
        name: Given(_collected(cls.model_fields[name], value), "the command line") for name, value in found.items()
    }
    return values, config


def from_environment(
    cls: type[BaseModel], env_prefix: str, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Given], list[str]]:
    """The variables with our prefix, and warnings about those that mean nothing. "config" may be among them."""
    values: dict[str, Given] = {}
    warnings: list[str] = []
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        if not variable.startswith(env_prefix):
            continue
        suffix = variable.removeprefix(env_prefix)
        name = suffix.lower()
        if _SERVICE_LINK_NAME.fullmatch(suffix):
            continue
        if name == "port" and _SERVICE_LINK_VALUE.match(text):
            warnings.append(
                f"{variable}={text} is a Kubernetes service link and no port: ignored (enableServiceLinks: false)"
            )
        elif name == "config":
            values[name] = Given(text, variable)
        elif name in cls.model_fields:
            values[name] = Given(_from_text(cls.model_fields[name], text, variable), variable)
        else:
            warnings.append(f"{variable} is no setting of this service: ignored")
    return values, warnings


def from_file(cls: type[BaseModel], path: Path) -> dict[str, Given]:
    """The keys of a TOML file; an unknown one is an error."""
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {path}: not TOML: {error}") from None
    values: dict[str, Given] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in cls.model_fields:
            raise SettingsError(f"--config {path}: unknown setting {key!r}")
        if name in values:
            raise SettingsError(f"--config {path}: {name!r} is given twice, with dashes and with underscores")
        values[name] = Given(value, str(path))
    return values


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help lists the flags\n")


def _add_flag(parser: argparse.ArgumentParser, name: str, field: FieldInfo, env_prefix: str) -> None:
    kind = _kind(field.annotation)
    words = f"{field.description or ''} ({_default(field)}{env_prefix}{name.upper()})".replace("%", "%%").strip()
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=words)
        return
    parser.add_argument(
        flag,
        dest=name,
        action="append" if _is_collection(kind) else "store",
        metavar=_metavar(field),
        help=words,
    )


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=False)
    if field.is_required():
        return "required; "
    if default is PydanticUndefined or default is None or default == "" or default == ():
        return ""
    return f"default {str(default).lower() if isinstance(default, bool) else default}; "


def _metavar(field: FieldInfo) -> str:
    kind = _kind(field.annotation)
    origin = get_origin(kind)
    if origin is Literal:
        return "{" + ",".join(str(each) for each in get_args(kind)) + "}"
    if _is_mapping(kind):
        return "NAME=VALUE"
    if _is_collection(kind):
        kind = next(iter(get_args(kind)), str)
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _kind(annotation: Any) -> Any:
    """The type without Optional and Annotated."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [each for each in get_args(annotation) if each is not type(None)]
        if len(others) == 1:
            return _kind(others[0])
    return annotation


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_collection(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return _is_mapping(kind) or (isinstance(origin, type) and issubclass(origin, (list, tuple, set, frozenset)))


def _collected(field: FieldInfo, value: Any) -> object:
    """Repeated NAME=VALUE flags of a mapping become one mapping."""
    return _to_mapping(value, "flag") if _is_mapping(_kind(field.annotation)) else value


def _from_text(field: FieldInfo, text: str, variable: str) -> object:
    """A collection in one variable: JSON, or items between commas."""
    kind = _kind(field.annotation)
    if not _is_collection(kind):
        return text
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise SettingsError(f"{variable}: looks like JSON and is not: {error}") from None
    items = [item.strip() for item in text.split(",") if item.strip()]
    return _to_mapping(items, variable) if _is_mapping(kind) else items


def _to_mapping(items: Sequence[str], where: str) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise SettingsError(f"{where}: {item!r} is not NAME=VALUE")
        if name in mapping:
            raise SettingsError(f"{where}: {name!r} is given twice")
        mapping[name] = value
    return mapping
