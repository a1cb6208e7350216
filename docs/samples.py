"""Checks the types of the Python samples in README.md and docs/, strictly. The tests run them.

python docs/samples.py
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from mypy import api

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "api.md"  # of signatures


def samples() -> dict[str, str]:
    """Returns each sample by its page and its place there."""
    pages = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != GENERATED)]
    return {
        f"{page.stem}_{place}": code
        for page in pages
        for place, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    }


def main() -> int:
    """Returns mypy's exit code."""
    with tempfile.TemporaryDirectory() as name:
        files = []
        for sample, code in samples().items():
            files.append(str(Path(name, f"{sample}.py")))
            Path(files[-1]).write_text(code, encoding="utf-8")
        told, wrong, code = api.run(["--config-file", str(ROOT / "pyproject.toml"), *files])
    print(told, wrong, sep="", end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
