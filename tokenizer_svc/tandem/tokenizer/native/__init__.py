"""C functions of this package, which work without the interpreter lock.

The sources are compiled by the machine's C compiler (`CC`, else cc, gcc or clang) when a tokenizer is first loaded,
which takes a second, and kept in `$XDG_CACHE_HOME/tandem` (`~/.cache/tandem`), or beside the package by
`python -m tandem.tokenizer.native`, for images without a compiler; `tandem.common.compiled` says what is loaded. Where
there is neither, and for patterns that are not understood here, tiktoken, sentencepiece and Python do the same, slower.
"""
