"""The version of the installed distribution. A file of its own: who reads settings wants no metrics."""

from __future__ import annotations


def version() -> str:
    """Returns the version of the installed distribution."""
    import importlib.metadata  # with what reads e-mail; seldom asked for

    try:
        return importlib.metadata.version("tandem-llm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
