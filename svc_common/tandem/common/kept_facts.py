"""Keeps what was measured about this machine, so that the next start need not measure it again.

A fact lies beside the compiled libraries (`~/.cache/tandem`) as `fact-NAME-HASH.json`, and says what it was measured
with; HASH is that of this. It is believed if that is what is asked about now, and if nobody could have written it but
this user and root. Whatever is wrong with it, or with the folder, it is measured again: a fact saves time and no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.common.compiled import cache_folder, mark_used, unsafe


def kept_fact(name: str, about: Mapping[str, object]) -> Any | None:
    """Returns what was kept under this name with the same `about`; None where nothing can be believed."""
    path, said = _place(name, about)
    if path is None or unsafe(path.parent) or unsafe(path):
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        if found["about"] != said:
            return None
        mark_used(path)
        return found["fact"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep_fact(name: str, about: Mapping[str, object], fact: object) -> None:
    """Keeps what JSON can hold; does nothing where it cannot be kept."""
    path, said = _place(name, about)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".making-")  # of mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"about": said, "fact": fact}, file)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _place(name: str, about: Mapping[str, object]) -> tuple[Path | None, str]:
    said = json.dumps(about, sort_keys=True)
    folder = cache_folder()
    return folder and folder / f"fact-{name}-{hashlib.sha256(said.encode()).hexdigest()[:32]}.json", said
