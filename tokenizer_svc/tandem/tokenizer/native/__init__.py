"""Encoding and joining in C, without the interpreter lock.

The sources are compiled by the machine's C compiler (`CC`, else cc, gcc or clang) when a tokenizer is first loaded,
which takes a second, and kept in `$XDG_CACHE_HOME/tandem` (`~/.cache/tandem`), or beside them by
`python -m tandem.tokenizer.native`, for images without a compiler; `tandem.common.compiled` says what is loaded. Where
there is neither, and for patterns not understood here, tiktoken, `regex` and Python do the same, slower.
"""
