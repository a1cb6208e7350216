"""`python -m tandem.worker.model.cpu.native`: compiles the C beside its sources, for images without a compiler."""

from __future__ import annotations

from tandem.worker.model.cpu.native.library import SOURCES

SOURCES.main()
