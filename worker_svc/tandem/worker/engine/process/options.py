"""What the front tells the process of an engine before anything else."""

from __future__ import annotations

import msgspec


class ProcessOptions(msgspec.Struct):
    """The first line that an engine's process reads from its standard input, as JSON."""

    endpoint: str
    note: int  # descriptor of the `SuspectNote`
    log_format: str
    log_level: str
    config: dict[str, str | int | float | bool | list[str]]
