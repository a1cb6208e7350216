"""Encoding and joining in C, without the interpreter lock.

The sources are compiled by the machine's C compiler (`CC`, else cc, gcc or clang) when a tokenizer is first loaded,
which takes a second, and kept in `$XDG_CACHE_HOME/tandem` (`~/.cache/tandem`). A `libtext.so` beside them, made by
`python -m tokenizer_svc.native`, is taken as it is: for images without a compiler. Without either, and for patterns not
understood here, tiktoken, `regex` and Python do the same, slower.
"""
