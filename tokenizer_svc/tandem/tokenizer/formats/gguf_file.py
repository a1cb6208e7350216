"""GGUF files: all five vocabulary types, from the metadata alone; the tensors are never read.

What the metadata leave out goes as in llama.cpp: defaults by vocabulary type (`gguf_fields`), some more by the name of
the pre-tokenizer, and `lstrip`/`rstrip` by the name of the model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tandem.common.gguf import MAGIC, GgufError, read_metadata
from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.formats import gguf_vocabularies
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.gguf_fields import PREFIX, GgufFields
from tandem.tokenizer.formats.roles import end_of_generation_ids
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from tandem.tokenizer.vocabulary import SpecialToken, TokenTable, TokenType

logger = logging.getLogger("tandem.tokenizer")

_OTHER_KEYS = frozenset({"tokenizer.chat_template", "general.name", "general.architecture"})
_MASK_SWALLOWS_LEFT = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_ENDS = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")  # ids that end an answer as eos does
_SPECIAL_TYPES = [TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED]


def is_gguf(head: bytes) -> bool:
    """Returns True when a file that begins with `head` is a GGUF file."""
    return head.startswith(MAGIC)


def load(path: Path) -> Tokenizer:
    """Loads the tokenizer of a GGUF file. Raises FormatError."""
    try:
        metadata = read_metadata(path, lambda key: key.startswith(PREFIX) or key in _OTHER_KEYS)
    except GgufError as error:
        raise FormatError(error.path, error.problem) from None
    fields = GgufFields(path, metadata)
    pre = _pre_tokenizer(fields)
    specials = _specials(fields)
    try:
        vocabulary, pieces = gguf_vocabularies.build(fields, pre)
        table = TokenTable(pieces, bytes(fields.types), specials, fields.scores)
        unguarded = gguf_vocabularies.unguarded(fields, pieces)
        return Tokenizer(vocabulary, table, _config(fields, pre, specials), unguarded)
    except (ValueError, RuntimeError) as error:  # sentencepiece reports a bad model as RuntimeError
        raise FormatError(path, f"its vocabulary cannot be used: {error}") from None


def _pre_tokenizer(fields: GgufFields) -> PreTokenizer:
    name: str = fields.get("pre", str, "")
    if fields.model != "gpt2":
        return PRE_TOKENIZERS["default"]
    if not name:
        logger.warning("%s: names no pre-tokenizer (%spre); the default one may be wrong", fields.path, PREFIX)
        return PRE_TOKENIZERS["default"]
    if name not in PRE_TOKENIZERS:
        known = " ".join(PRE_TOKENIZERS)
        raise FormatError(fields.path, f"has the unknown pre-tokenizer {name!r}; known: {known}")
    return PRE_TOKENIZERS[name]


def _config(fields: GgufFields, pre: PreTokenizer, specials: Sequence[SpecialToken]) -> TokenizerConfig:
    byte_pairs = fields.model == "gpt2"
    defaults = fields.defaults
    eos_id = fields.id("eos")
    bos_id = fields.id("bos")
    if fields.model == "bert" and not fields.has("bos_token_id"):
        bos_id = fields.id("cls") if fields.id("cls") is not None else bos_id
    sep_id = fields.id("seperator")  # so it is spelt in the files
    adds_bos = fields.flag("add_bos_token", pre.adds_bos if byte_pairs else defaults.adds_bos)
    adds_eos = fields.flag("add_eos_token", defaults.adds_eos)
    if fields.model in ("bert", "rwkv"):  # llama.cpp adds [CLS] and [SEP], or nothing, whatever the flags say
        adds_bos, adds_eos = defaults.adds_bos, defaults.adds_eos
    space_prefix = fields.flag("add_space_prefix", defaults.space_prefix)
    if fields.model == "t5":  # llama.cpp begins words with a space where it merges white space, the first one, too
        space_prefix |= fields.flag("remove_extra_whitespaces", False)
    named_ends = {index for name in _ENDS if (index := fields.id(name)) is not None}
    return TokenizerConfig(
        source="gguf",
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=fields.id("unknown"),
        pad_id=fields.id("padding"),
        sep_id=sep_id,
        end_of_generation_ids=end_of_generation_ids(((t.id, t.text) for t in specials), eos_id) | named_ends,
        adds_bos=adds_bos and bos_id is not None,
        adds_eos=adds_eos and eos_id is not None,
        adds_sep=defaults.adds_sep and sep_id is not None,
        adds_space_prefix=space_prefix and not byte_pairs,
        clean_spaces=pre.clean_spaces if byte_pairs else defaults.clean_spaces,
        chat_template=fields.text("tokenizer.chat_template") or None,
    )


def _specials(fields: GgufFields) -> tuple[SpecialToken, ...]:
    name = fields.text("general.name").lower()
    architecture = fields.text("general.architecture")
    pre = fields.text(PREFIX + "pre")
    phi3 = "phi-3" in name or "phi3" in name
    mask = any(known in pre for known in _MASK_SWALLOWS_LEFT) or architecture in ("nomic-bert-moe", "jina-bert-v3")
    swallows_left = {"<mask>"} if mask else {"[MASK]"} if "modern-bert" in name else set()
    swallows_nothing = {"<unk>", "<s>", "<|endoftext|>"}
    return tuple(
        SpecialToken(
            index,
            text := fields.texts[index],
            TokenType(fields.types[index]),
            lstrip=text in swallows_left,
            rstrip=phi3 and text not in swallows_nothing,
        )
        for index in np.flatnonzero(np.isin(np.frombuffer(fields.types, np.uint8), _SPECIAL_TYPES)).tolist()
    )
