"""`python -m tandem.worker.model.native`: compiles the C beside its sources, for images without a compiler."""

from __future__ import annotations

from tandem.worker.model.native.library import SOURCES

SOURCES.main()
