"""Models that `tandem pull` has fetched: a folder for each, found by the name that was pulled.

    $TANDEM_MODELS, or ~/.local/share/tandem/models
        ORGANISATION/NAME                the newest revision when it was pulled
        ORGANISATION/NAME@REVISION       a revision that was asked for
        ORGANISATION/NAME+FILE           one GGUF file of several

A folder is whole when it has the record, which is written last.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RECORD = ".tandem-pull.json"


def models_folder() -> Path:
    """Returns the folder of all models that were pulled."""
    given = os.environ.get("TANDEM_MODELS")
    if given:
        return Path(given)
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "tandem" / "models"


def pulled(name: str) -> Path | None:
    """Returns the folder of a model that was pulled under this name, or None."""
    parts = name.split("/")
    if len(parts) != 2 or any(part in ("", ".", "..") for part in parts):
        return None
    folder = models_folder().joinpath(*parts)
    return folder if (folder / RECORD).is_file() else None


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Marks a folder as whole."""
    partial = folder / f"{RECORD}.partial"
    partial.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    partial.replace(folder / RECORD)
