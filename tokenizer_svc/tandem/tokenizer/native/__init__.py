"""C functions of this package, which work without the interpreter lock.

A wheel brings them compiled; else the machine's C compiler (`CC`, else cc, gcc or clang) makes them when a tokenizer is
first loaded, which takes a second; `tandem.common.compiled` says what is loaded. Where there is neither, and for
patterns that are not understood here, tiktoken, sentencepiece and Python do the same, slower.
"""
