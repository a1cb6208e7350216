"""Mistral's `tekken.json`: byte pairs in base64 in the order of their ranks, the pattern of pieces, special tokens.

The special tokens come first: a rank's id is the rank plus their number. A file may have more ranks than the model has
ids, and leave its special tokens out: then they are those that Mistral's first files had.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.ids import padded
from tandem.tokenizer.formats.roles import end_of_generation_ids
from tandem.tokenizer.formats.sidecar import Sidecar
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabulary import SpecialToken, TokenTable, TokenType

_FIRST_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_MOST_TOKENS = 1 << 22
_CONFIG = frozenset(("pattern", "num_vocab_tokens", "default_vocab_size", "default_num_special_tokens", "version"))


def is_tekken(content: Mapping[str, Any]) -> bool:
    """Returns True when the JSON of a file is of this format."""
    config = content.get("config")
    return isinstance(config, dict) and "default_vocab_size" in config and isinstance(content.get("vocab"), list)


def load(path: Path, content: Mapping[str, Any], sidecar: Sidecar) -> Tokenizer:
    """Loads a `tekken.json`. Raises FormatError."""
    try:
        return _load(content, sidecar)
    except ValueError as error:
        raise FormatError(path, str(error)) from None


def _load(content: Mapping[str, Any], sidecar: Sidecar) -> Tokenizer:
    config: Mapping[str, Any] = content["config"]
    if unknown := sorted(config.keys() - _CONFIG):
        raise ValueError(f"config.{unknown[0]} is not known, and may change what a text's tokens are")
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        raise ValueError(f"config.pattern is {pattern!r:.80}, expected a text")
    size = _number(config, "default_vocab_size", _MOST_TOKENS)
    count = _number(config, "default_num_special_tokens", size - 1)
    specials = _specials(content, count)
    pieces = _ranks(content["vocab"], size - count)
    ids = {token.text: token.id for token in specials}
    if len(ids) != len(specials):
        raise ValueError("special_tokens has the same token_str twice")
    eos_id = ids.get("</s>")
    types = bytes(token.type for token in specials) + bytes([TokenType.NORMAL]) * len(pieces)
    vocabulary = BpeVocabulary([(piece, count + rank) for rank, piece in enumerate(pieces)], (pattern,))
    table = TokenTable([*(token.text.encode() for token in specials), *pieces], types, specials)
    bos_id = ids.get("<s>")
    return Tokenizer(
        vocabulary,
        padded(table, sidecar.model_ids),
        TokenizerConfig(
            source="tekken",
            bos_id=bos_id,
            eos_id=eos_id,
            unk_id=ids.get("<unk>"),
            pad_id=ids.get("<pad>"),
            end_of_generation_ids=end_of_generation_ids(((token.id, token.text) for token in specials), eos_id),
            adds_bos=bos_id is not None if sidecar.add_bos is None else sidecar.add_bos and bos_id is not None,
            adds_eos=bool(sidecar.add_eos) and eos_id is not None,
            chat_template=sidecar.chat_template,
            tekken_version=str(config.get("version") or ""),
        ),
    )


def _number(config: Mapping[str, Any], key: str, most: int) -> int:
    value = config.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"config.{key} is {value!r:.80}, expected a whole number from 1 to {most}")
    return value


def _specials(content: Mapping[str, Any], count: int) -> tuple[SpecialToken, ...]:
    """Reads the special tokens in the order of their ids; those that the file leaves out have names of their own."""
    listed = content.get("special_tokens")
    if not listed:
        listed = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(_FIRST_SPECIALS)]
    if not isinstance(listed, list):
        raise ValueError(f"special_tokens is {listed!r:.80}, expected a list")
    found: dict[int, SpecialToken] = {}
    for place, entry in enumerate(listed):
        rank, text = (entry.get(key) if isinstance(entry, dict) else None for key in ("rank", "token_str"))
        if type(rank) is not int or not 0 <= rank < count or not isinstance(text, str) or not text or rank in found:
            raise ValueError(
                f"special_tokens[{place}] is {entry!r:.80}, expected a token_str and a rank of its own below {count}"
            )
        kind = TokenType.CONTROL if entry.get("is_control", True) else TokenType.USER_DEFINED
        found[rank] = SpecialToken(rank, text, TokenType.UNKNOWN if text == "<unk>" else kind)
    return tuple(found.get(rank) or SpecialToken(rank, f"<SPECIAL_{rank}>", TokenType.CONTROL) for rank in range(count))


def _ranks(vocab: list[Any], count: int) -> list[bytes]:
    """Returns the bytes of the first ranks, checked to be 0, 1, 2, ... with no bytes twice."""
    if len(vocab) < count:
        raise ValueError(f"vocab has {len(vocab)} tokens, but the config makes it at least {count}")
    pieces: list[bytes] = []
    for rank, entry in enumerate(vocab[:count]):
        try:
            if entry["rank"] != rank or type(entry["rank"]) is not int:
                raise ValueError(f"vocab[{rank}] has the rank {entry['rank']!r:.80}")
            piece = base64.b64decode(entry["token_bytes"], validate=True)
        except (TypeError, KeyError, binascii.Error):
            raise ValueError(f"vocab[{rank}] is {entry!r:.80}, expected a rank and token_bytes in base64") from None
        if not piece:
            raise ValueError(f"vocab[{rank}] has no bytes")
        pieces.append(piece)
    if len(set(pieces)) != len(pieces):
        raise ValueError("vocab has the same bytes twice")
    return pieces
