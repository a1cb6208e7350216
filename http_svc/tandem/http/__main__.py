"""`python -m tandem.http --tokenizer-address HOST:PORT --worker-address HOST:PORT`: the HTTP door."""

from __future__ import annotations

import sys

from tandem.common.early_stop import leave_at_signals


def main() -> int:
    """Runs the server until it is told to stop; returns the exit code."""
    leave_at_signals()
    from tandem.common.run_service import run_server
    from tandem.common.settings import load_settings
    from tandem.http.server import HttpServer
    from tandem.http.settings import HttpSettings

    settings = load_settings(HttpSettings, sys.argv[1:])
    return run_server(lambda: HttpServer(settings), settings, "tandem-http")


if __name__ == "__main__":
    raise SystemExit(main())
