"""Byte-pair encoding: `pre_tokenizers` cut text into pieces, then neighbours merge in the order of merge ranks."""
