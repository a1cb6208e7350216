"""The error of tokenizer files."""

from __future__ import annotations

from pathlib import Path

from tandem.common.gguf import one_line


class FormatError(Exception):
    """A tokenizer cannot be read. The message is one line with the file, what is wrong, and what was expected."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = one_line(problem)
        super().__init__(f"{path}: {self.problem}")
