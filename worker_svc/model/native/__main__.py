"""`python -m worker_svc.model.native`: compiles the operations beside their sources, for images without a compiler."""

from __future__ import annotations

from worker_svc.model.native.library import SOURCES

SOURCES.main()
