"""Generates docs/api.md, the SDK's reference, from its signatures, docstrings and the comments at fields.

python docs/reference.py           write it; `make protos` does
python docs/reference.py --check   exit 1 if it is not what the sources give
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import tandem.client
from tandem.client import params, types

PAGE = Path(__file__).with_name("api.md")
HEAD = """# The SDK's reference

Made from the sources by `make protos`; [sdk.md](sdk.md) is the guide. Everything is imported from
`tandem.client`. `Client` has the methods of `AsyncClient`, without `await`. A keyword with `= ...` may be left out.
"""
KEYWORDS = ("CallOptions", "CountOptions", "EncodeOptions", "EncodePairOptions", "EncodePairsOptions")
KEYWORDS += ("EncodeChatOptions", "DecodeOptions", "GenerateOptions")


def page() -> str:
    """The text of docs/api.md."""
    public = [(name, getattr(tandem.client, name)) for name in tandem.client.__all__]
    classes = [(name, value) for name, value in public if inspect.isclass(value)]
    clients = [value for name, value in classes if name in {"AsyncClient", "AsyncStream"}]
    errors = [value for _, value in classes if issubclass(value, BaseException)]
    records = [value for _, value in classes if is_dataclass(value) and value not in errors]
    enums = [value for _, value in classes if issubclass(value, Enum)]
    words = [name for name, value in public if not inspect.isclass(value)]
    parts = [HEAD]
    for cls in clients:
        parts += [f"## {cls.__name__}\n", _text(cls), _constructor(cls), *_methods(cls)]
    parts += ["## Keywords\n"]
    for name in KEYWORDS:
        cls = getattr(params, name, None) or getattr(types, name)
        # SamplingOptions are the fields of SamplingParams, which have their table below.
        parents = [ast.unparse(base) for base in _source(cls)[1].bases if ast.unparse(base) != "TypedDict"]
        parents = ["SamplingParams" if parent == "SamplingOptions" else parent for parent in parents]
        inherited = f" Also those of {' and '.join(f'`{parent}`' for parent in parents)}." if parents else ""
        parts += [f"### {name}\n", _text(cls).rstrip() + inherited + "\n", _fields(cls)]
    parts += ["## Records\n"]
    for cls in records:
        parts += [f"### {cls.__name__}\n", _text(cls), _fields(*_own(cls)), *_methods(cls)]
    parts += ["## Enumerations\n"]
    for cls in enums:
        parts += [f"### {cls.__name__}\n", _text(cls), ", ".join(f"`{member.name}`" for member in cls) + "\n"]
    parts += ["## Exceptions\n", "| exception | is a | |\n|---|---|---|"]
    parts += [f"| `{cls.__name__}` | `{cls.__bases__[0].__name__}` | {_text(cls, flat=True)} |" for cls in errors]
    if words:
        parts += ["\n## Types\n", ", ".join(f"`{name}`" for name in words) + "\n"]
    return "\n".join(parts).rstrip() + "\n"


def _text(value: Any, *, flat: bool = False) -> str:
    text = inspect.cleandoc(value.__doc__ or "")
    return " ".join(text.split()).replace("|", "\\|") if flat else text + "\n"


def _constructor(cls: Any) -> str:
    return f"```python\n{_declaration('__init__', cls.__init__)}\n```\n" if cls.__name__.endswith("Client") else ""


def _own(cls: type) -> list[type]:
    """A class and those of its parents that have no section of their own."""
    parents = [parent for parent in cls.__mro__[1:] if parent.__module__.startswith("tandem.client.")]
    return [cls, *(parent for parent in parents if parent.__name__ not in tandem.client.__all__)]


def _methods(cls: type) -> Iterator[str]:
    for name, member in ((name, member) for part in _own(cls) for name, member in vars(part).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"**`{name}`**: {_text(member, flat=True)}\n"
        elif inspect.isfunction(member):
            yield f"```python\n{_declaration(name, member)}\n```\n\n{_text(member)}"


def _declaration(name: str, method: Any) -> str:
    """On one line where it fits; keywords are named by their table."""
    source = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    assert isinstance(source, ast.FunctionDef | ast.AsyncFunctionDef)
    start = "async def" if isinstance(source, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(source.returns)}" if source.returns else ""
    line = f"{start} {name}({ast.unparse(source.args)}){result}"
    if len(line) <= 110:
        return line
    arguments = re.sub(r", (?=\*|\w+: )", ",\n    ", ast.unparse(source.args))  # one a line
    return f"{start} {name}(\n    {arguments},\n){result}"


def _fields(*classes: type) -> str:
    """A table of classes' own fields with the comments that stand at them."""
    rows = []
    for lines, node in ((lines, node) for lines, source in map(_source, classes) for node in source.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            default = f"`{ast.unparse(node.value)}`" if node.value else ""
            annotation = ast.unparse(node.annotation).replace("|", "\\|")
            rows.append(f"| `{node.target.id}` | `{annotation}` | {default} | {_comment(lines, node)} |")
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows, ""]) if rows else ""


def _source(cls: type) -> tuple[list[str], ast.ClassDef]:
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    source = ast.parse("\n".join(lines)).body[0]
    assert isinstance(source, ast.ClassDef)
    return lines, source


def _comment(lines: list[str], node: ast.AnnAssign) -> str:
    """The comment behind a field, or the lines of comment above it."""
    assert node.end_lineno is not None
    for line in lines[node.lineno - 1 : node.end_lineno]:
        if "  # " in line:
            return line.split("  # ", 1)[1].replace("|", "\\|")
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("# "):
            break
        above.insert(0, line.strip()[2:])
    return " ".join(above).replace("|", "\\|")


def main() -> int:
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print("stale: docs/api.md (run: make protos)", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
