"""The patterns by which byte-pair vocabularies cut text, named as GGUF files name them."""

from __future__ import annotations

# Meta publishes this with `(?i:'s|'t|...)`, which also takes U+017F (long s) for an s; llama.cpp spells it out.
LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
