"""`python -m worker_svc.model.native`: compiles the operations beside their sources, for images without a compiler."""

from __future__ import annotations

import subprocess
import sys

from worker_svc.model.native.library import PREBUILT, compile_to

try:
    compile_to(PREBUILT)
except (OSError, subprocess.SubprocessError) as problem:
    raise SystemExit(str(problem)) from problem
sys.stdout.write(f"{PREBUILT}\n")
