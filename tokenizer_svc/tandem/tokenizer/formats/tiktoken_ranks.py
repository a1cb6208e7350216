"""tiktoken rank files: one `base64 rank` a line, ids equal to ranks, pattern and special tokens not in the file.

Those of Meta's Llama 3 are known by their number of ranks; of others (cl100k, o200k) the operator says the pattern. The
special tokens are the operator's, or those of a `tokenizer_config.json` beside the file, or Meta's for the version.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.ids import check_reach, padded
from tandem.tokenizer.formats.roles import CONTROL_TEXTS, end_of_generation_ids
from tandem.tokenizer.formats.sidecar import AddedToken, Sidecar, read_json_object
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import LLAMA3, PRE_TOKENIZERS
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabulary import SpecialToken, TokenTable, TokenType

LLAMA3_RANKS = 128_000
_LLAMA3_SPECIALS = 256
_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


@dataclass(frozen=True, slots=True)
class RankSettings:
    """What an operator says of a rank file. `pattern` is a regular expression, or a name that GGUF files give to one;
    `specials` are the texts of special tokens by id."""

    pattern: str = ""
    specials: Mapping[int, str] = field(default_factory=dict)

    @property
    def patterns(self) -> Sequence[str]:
        known = PRE_TOKENIZERS.get(self.pattern)
        return (self.pattern or LLAMA3,) if known is None else known.patterns


def is_tiktoken_ranks(head: bytes) -> bool:
    """Returns True when a file that begins with `head` is a rank file."""
    return _FIRST_LINE.match(head) is not None


def llama3_special_texts(version: str) -> list[str]:
    """Returns Meta's special tokens in id order, from id 128000 on, of version "3.0" or "3.1" (also right for 3.2 and
    3.3)."""
    named = {
        0: "<|begin_of_text|>",
        1: "<|end_of_text|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        9: "<|eot_id|>",
    }
    if version == "3.1":
        named |= {4: "<|finetune_right_pad_id|>", 8: "<|eom_id|>", 10: "<|python_tag|>"}
    elif version != "3.0":
        raise ValueError(f"no special tokens are known for Llama version {version!r}, only for 3.0 and 3.1")
    texts: list[str] = []
    reserved = 0
    for place in range(_LLAMA3_SPECIALS):
        if place in named:
            texts.append(named[place])
        else:
            texts.append(f"<|reserved_special_token_{reserved}|>")
            reserved += 1
    return texts


def load(path: Path, data: bytes, sidecar: Sidecar, llama3_version: str, settings: RankSettings) -> Tokenizer:
    """Loads a rank file. `llama3_version` is "3.0", "3.1" or "auto"; the operator's special tokens take precedence over
    the sidecar's, and those over Meta's. Raises FormatError."""
    pieces = _read_ranks(path, data)
    if len(pieces) != LLAMA3_RANKS and not settings.pattern:
        raise FormatError(
            path,
            f"has {len(pieces)} ranks; the pattern that cuts text is known for Llama 3 only, which has {LLAMA3_RANKS}: "
            "say it with --rank-pattern NAME=PATTERN",
        )
    if settings.specials:
        added: Mapping[int, AddedToken] = {
            index: AddedToken(index, text, special=True) for index, text in settings.specials.items()
        }
    elif sidecar.added_tokens or settings.pattern:
        added = sidecar.added_tokens
    else:
        version = _version_of(path.parent) if llama3_version == "auto" else llama3_version
        texts = llama3_special_texts(version)
        added = {
            len(pieces) + place: AddedToken(len(pieces) + place, text, special=True) for place, text in enumerate(texts)
        }
    return _build(path, pieces, added, sidecar, settings)


def _build(
    path: Path, pieces: list[bytes], added: Mapping[int, AddedToken], sidecar: Sidecar, settings: RankSettings
) -> Tokenizer:
    size = max([len(pieces) - 1, *added]) + 1
    try:
        known = len(pieces) + sum(index >= len(pieces) for index in added)
        check_reach(size - 1, known, "added_tokens_decoder beside it")
    except ValueError as error:
        raise FormatError(path, str(error)) from None
    types = bytearray([TokenType.NORMAL] * len(pieces) + [TokenType.UNUSED] * (size - len(pieces)))
    table = [*pieces, *([b""] * (size - len(pieces)))]
    specials: list[SpecialToken] = []
    for index, token in sorted(added.items()):
        if index < len(pieces) and pieces[index] != token.text.encode():
            raise FormatError(path, f"rank {index} and the special token {token.text!r} beside it have the same id")
        control = token.special or token.text in CONTROL_TEXTS
        kind = TokenType.CONTROL if control else TokenType.USER_DEFINED
        table[index] = token.text.encode()
        types[index] = kind
        specials.append(SpecialToken(index, token.text, kind, token.lstrip, token.rstrip))
    ids = {token.text: token.id for token in specials}
    if len(ids) != len(specials):
        raise FormatError(path, "two special tokens beside it have the same text")
    texts = sidecar.special_texts

    def role(name: str, usual: str) -> int | None:
        text = texts.get(name)
        if text is None:
            return ids.get(usual)
        if text not in ids:
            raise FormatError(path, f"tokenizer_config.json beside it names {name} {text!r}, which is no special token")
        return ids[text]

    bos_id = role("bos_token", "<|begin_of_text|>")
    eos_id = role("eos_token", "<|endoftext|>" if settings.pattern else "<|end_of_text|>")
    config = TokenizerConfig(
        source="tiktoken",
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=role("pad_token", "<|finetune_right_pad_id|>"),
        end_of_generation_ids=end_of_generation_ids(((t.id, t.text) for t in specials), eos_id),
        adds_bos=bos_id is not None and sidecar.add_bos is not False,
        adds_eos=bool(sidecar.add_eos) and eos_id is not None,
        clean_spaces=bool(sidecar.clean_spaces),
        chat_template=sidecar.chat_template,
    )
    try:
        vocabulary = BpeVocabulary([(piece, index) for index, piece in enumerate(pieces)], settings.patterns)
        whole = TokenTable(table, bytes(types), tuple(specials))
        return Tokenizer(vocabulary, padded(whole, sidecar.model_ids), config)
    except ValueError as error:
        raise FormatError(path, str(error)) from None


def _read_ranks(path: Path, data: bytes) -> list[bytes]:
    """Returns the bytes of each rank, checked to be ranks 0, 1, 2, ... with no bytes twice."""
    lines = data.split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    pieces: list[bytes] = []
    for number, line in enumerate(lines):
        fields = line.split()
        if len(fields) != 2:
            raise FormatError(path, f"line {number + 1} is not `base64 rank`; the file may be truncated")
        try:
            piece = base64.b64decode(fields[0], validate=True)
        except binascii.Error:
            raise FormatError(path, f"line {number + 1} is not valid base64") from None
        if fields[1] != b"%d" % number:
            raise FormatError(
                path, f"line {number + 1} has rank {fields[1].decode(errors='replace')}, expected {number}"
            )
        if not piece:
            raise FormatError(path, f"line {number + 1} has an empty token")
        pieces.append(piece)
    if len(set(pieces)) != len(pieces):
        raise FormatError(path, "a token stands in it twice")
    return pieces


def _version_of(folder: Path) -> str:
    """Returns the version: Meta's params.json has `use_scaled_rope` from 3.1 on. The table of 3.1 is that of 3.0 with
    names for three reserved tokens, so a file without params.json gets it."""
    path = folder / "params.json"
    if path.is_file():
        return "3.1" if read_json_object(path).get("use_scaled_rope") else "3.0"
    return "3.1"
