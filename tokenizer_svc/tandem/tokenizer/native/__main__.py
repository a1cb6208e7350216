"""`python -m tandem.tokenizer.native`: compiles the functions beside their sources, for images without a compiler."""

from __future__ import annotations

from tandem.tokenizer.native.library import SOURCES

SOURCES.main()
