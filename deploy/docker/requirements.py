"""Prints what extras of pyproject.toml need, nested extras resolved.

    python requirements.py pyproject.toml tokenizer otel > requirements.txt

An image installs this list before it copies the sources, so that a change of code does not install torch again.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements_of(project: dict[str, object], *extras: str) -> list[str]:
    """The base dependencies and those of `extras`; an extra that names this project's other extras is unfolded."""
    name, optional = project["name"], project["optional-dependencies"]
    for extra in extras:
        if extra not in optional:
            raise SystemExit(f"pyproject.toml has no extra {extra!r}; it has {', '.join(optional)}")
    found: dict[str, None] = dict.fromkeys(project["dependencies"])
    waiting = [*extras]
    while waiting:
        for requirement in optional[waiting.pop()]:
            own = re.fullmatch(rf"{re.escape(name)}\[([\w,\s-]+)\]", requirement)
            if own:
                waiting += [part.strip() for part in own[1].split(",")]
            else:
                found[requirement] = None
    return list(found)


if __name__ == "__main__":
    pyproject, *extras = sys.argv[1:]
    print("\n".join(requirements_of(tomllib.loads(Path(pyproject).read_text())["project"], *extras)))
