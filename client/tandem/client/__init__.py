"""The Tandem SDK: text in, text out, through a tokenizer service and inference workers.

from tandem.client import Client

with Client(tokenizer="localhost:50051", worker="localhost:50052") as client:
    with client.stream("Once upon a time", max_tokens=64) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem.client.interface import *  # noqa: F403  (type checkers see what it has)
else:
    # Read when gRPC is imported, where nobody has said otherwise; forks.py says why.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

    def __getattr__(name: str) -> object:
        """Imports all there is when something is asked for: the command line starts processes before."""
        if name.startswith("__") and name != "__all__":  # what tools look for in every module
            raise AttributeError(name)
        if find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        interface = import_module("tandem.client.interface")
        globals().update({each: getattr(interface, each) for each in ("__all__", *interface.__all__)})
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return [*globals(), *import_module("tandem.client.interface").__all__]
