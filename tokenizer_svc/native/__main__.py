"""`python -m tokenizer_svc.native`: compiles the functions beside their sources, for images without a compiler."""

from __future__ import annotations

from tokenizer_svc.native.library import SOURCES

SOURCES.main()
