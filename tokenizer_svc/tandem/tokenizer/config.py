"""The model's settings of its tokenizer, and the fingerprint of everything that decides its behaviour."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

from tandem.tokenizer.vocabulary import TokenTable, Vocabulary


class Part(NamedTuple):
    """One of two texts, or a token that stands around them, with the type id that a model is told for it."""

    token: int | None  # None: the next of the texts
    type_id: int = 0


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
    tekken_version: str = ""  # of Mistral's conversations, which its files state instead of a template
    around: tuple[tuple[int, ...], tuple[int, ...]] | None = (
        None  # what add_special adds, where the flags do not say it
    )
    around_pair: tuple[Part, ...] | None = None  # likewise for two texts

    def added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns what add_special puts in front of a text and behind it."""
        if self.around is not None:
            return self.around
        front = (self.bos_id,) if self.adds_bos and self.bos_id is not None else ()
        if self.adds_sep and self.sep_id is not None:
            return front, (self.sep_id,)
        return front, (self.eos_id,) if self.adds_eos and self.eos_id is not None else ()

    def dropped(self) -> tuple[tuple[int, ...], int | None]:
        """Returns what remove_special drops: at the front as many of these as stand there, and at the back one."""
        front, back = self.added()
        return front, back[-1] if back and not self.adds_sep else None

    def pair(self) -> tuple[Part, ...]:
        """Returns what add_special makes of two texts: as of each alone, but of WPM's [CLS] there is only one."""
        if self.around_pair is not None:
            return self.around_pair
        front, back = self.added()
        again = () if self.adds_sep else front
        first, second = (*front, None, *back), (*again, None, *back)
        return (*(Part(token) for token in first), *(Part(token, 1) for token in second))


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
    if config.around is not None:
        add("around", repr(config.around).encode())
    if config.around_pair is not None:
        add("around a pair", repr([tuple(part) for part in config.around_pair]).encode())
    if config.leftmost_specials:
        add("specials", b"leftmost first")
    for item in vocabulary.behaviour():
        add("vocabulary", item)
    return digest.hexdigest()
