"""The model's settings of its tokenizer, and the fingerprint of everything that decides its behaviour."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from tandem.tokenizer.vocabulary import TokenTable, Vocabulary


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """The model's settings of its tokenizer, beside the vocabulary itself."""

    source: str  # the format it came from
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    sep_id: int | None = None
    end_of_generation_ids: frozenset[int] = frozenset()
    adds_bos: bool = False
    adds_eos: bool = False
    adds_sep: bool = False  # puts sep_id behind instead, and remove_special leaves it there, as in llama.cpp
    adds_space_prefix: bool = False
    prefix_spares_spaces: bool = False  # no prefix in front of a text that begins with a space, as `tokenizers` has it
    prefix_is_first: bool = False  # none behind a special token, as `tokenizers` may have it
    leftmost_specials: bool = False  # as `tokenizers` finds special tokens, where that is not what llama.cpp finds
    clean_spaces: bool = False  # the model's own wish; decoding does it only when asked
    chat_template: str | None = None


def fingerprint_of(vocabulary: Vocabulary, table: TokenTable, config: TokenizerConfig) -> str:
    """Returns the SHA-256 of everything that decides how text becomes ids and ids become text. It does not depend on
    the file format."""
    digest = hashlib.sha256(b"tandem tokenizer fingerprint, form 1\n")

    def add(label: str, data: bytes) -> None:
        digest.update(struct.pack("<I", len(label)) + label.encode() + struct.pack("<Q", len(data)) + data)

    add("type", vocabulary.type.name.encode())
    for name in ("bos_id", "eos_id", "unk_id", "pad_id", "sep_id"):
        add(name, str(getattr(config, name)).encode())
    if config.prefix_spares_spaces or config.prefix_is_first:
        add("prefix", repr((config.prefix_spares_spaces, config.prefix_is_first)).encode())
    add("end of generation", repr(sorted(config.end_of_generation_ids)).encode())
    add("adds", repr((config.adds_bos, config.adds_eos, config.adds_sep, config.adds_space_prefix)).encode())
    add("lengths", struct.pack(f"<{len(table)}I", *map(len, table.pieces)))
    add("pieces", b"".join(table.pieces))
    add("types", table.types)
    if table.scores is not None:
        add("scores", struct.pack(f"<{len(table)}f", *table.scores))
    for token in table.specials:
        add("special", repr((token.id, token.text, token.type.name, token.lstrip, token.rstrip)).encode())
        if token.single_word:
            add("single word", str(token.id).encode())
    if table.forms is not None:
        add("decoded lengths", struct.pack(f"<{len(table)}I", *map(len, table.forms.rest)))
        add("decoded", b"".join(table.forms.rest))
        add("decoded first", repr(sorted(table.forms.first.items())).encode())
    if config.leftmost_specials:
        add("specials", b"leftmost first")
    for item in vocabulary.behaviour():
        add("vocabulary", item)
    return digest.hexdigest()
