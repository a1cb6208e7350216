"""`python -m tandem.tokenizer --tokenizer NAME=PATH`: the tokenizer service."""

from __future__ import annotations

import gc
import sys

from tandem.common.early_stop import leave_at_signals

_SWITCH_SECONDS = 0.001  # how long a thread may keep the interpreter when another wants it; Python's own is 0.005


def main() -> int:
    """Runs the service until it is told to stop; returns the exit code."""
    leave_at_signals()
    gc.disable()  # until all is imported, which stays: looking for what could go takes a tenth of that time
    from tandem.common.allocator import return_large_blocks
    from tandem.common.run_service import run_service
    from tandem.common.settings import load_settings
    from tandem.tokenizer.rpc.server import TokenizerService
    from tandem.tokenizer.settings import TokenizerSettings

    gc.freeze()
    gc.enable()
    sys.setswitchinterval(_SWITCH_SECONDS)  # each step of a health probe waits for it behind large inputs
    return_large_blocks()
    settings = load_settings(TokenizerSettings, sys.argv[1:])
    return run_service(TokenizerService(settings), settings)


if __name__ == "__main__":
    raise SystemExit(main())
