"""Byte-pair encoding: `pre_tokenizers` cut text into pieces, then pairs of neighbours merge by rank.

| file | what it does |
|---|---|
| `vocabulary` | a byte-level vocabulary (GPT-2, Llama 3); everything else here serves it, and `spm_merging` |
| `compiled_bpe` | both steps in C, by `pre_tokenize.c` and `merge.c` |
| `pattern_parser`, `pattern_compiler` | regular expressions as the small programs that `pre_tokenize.c` runs |
| `tiktoken_bpe` | both steps without the C functions |
| `merges` | lists of merges, and what follows from them |
"""
