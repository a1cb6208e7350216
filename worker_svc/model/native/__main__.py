"""`python -m worker_svc.model.native`: compiles the products beside their source, for images without a compiler."""

from __future__ import annotations

import subprocess
import sys

from worker_svc.model.native import _PREBUILT, compile_to

try:
    compile_to(_PREBUILT)
except (OSError, subprocess.SubprocessError) as problem:
    raise SystemExit(str(problem)) from problem
sys.stdout.write(f"{_PREBUILT}\n")
