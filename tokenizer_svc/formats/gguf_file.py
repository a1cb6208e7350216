"""GGUF files: all five vocabulary types, from the metadata alone; the tensors are never read.

What the metadata leave out goes as in llama.cpp: defaults by vocabulary type, some more by the name of the
pre-tokenizer, and `lstrip`/`rstrip` by the name of the model.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from svc_common.gguf import MAGIC, GgufError, read_metadata
from tokenizer_svc.formats.byte_alphabet import from_alphabet
from tokenizer_svc.formats.errors import FormatError
from tokenizer_svc.formats.roles import CONTROL_TEXTS, end_of_generation_ids
from tokenizer_svc.formats.rwkv_text import unescape
from tokenizer_svc.tokenizer import Tokenizer, TokenizerConfig
from tokenizer_svc.vocabularies.bpe import BpeVocabulary
from tokenizer_svc.vocabularies.patterns import PRE_TOKENIZERS, PreTokenizer
from tokenizer_svc.vocabularies.raw_bpe import RawBpeVocabulary
from tokenizer_svc.vocabularies.rwkv import RwkvVocabulary
from tokenizer_svc.vocabularies.spm import SPACE, SpmVocabulary
from tokenizer_svc.vocabularies.ugm import UgmVocabulary
from tokenizer_svc.vocabularies.wpm import WpmVocabulary
from tokenizer_svc.vocabulary import CONTROL_TYPES, SpecialToken, TokenTable, TokenType, Vocabulary

logger = logging.getLogger("tokenizer_svc")

_PREFIX = "tokenizer.ggml."
_OTHER_KEYS = frozenset({"tokenizer.chat_template", "general.name", "general.architecture"})
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MASK_SWALLOWS_LEFT = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_SPACE_BYTES = SPACE.encode()


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What goes without saying for one `tokenizer.ggml.model`."""

    adds_bos: bool = False
    adds_eos: bool = False
    adds_sep: bool = False
    space_prefix: bool = False
    clean_spaces: bool = False
    ids: Mapping[str, int] = field(default_factory=dict)


_DEFAULTS = {
    "llama": _Defaults(adds_bos=True, space_prefix=True, ids={"bos": 1, "eos": 2, "unknown": 0}),
    "gpt2": _Defaults(),
    "bert": _Defaults(
        adds_bos=True,
        adds_sep=True,
        clean_spaces=True,
        ids={"bos": 101, "unknown": 100, "seperator": 102, "padding": 0},
    ),
    "t5": _Defaults(adds_eos=True, ids={"eos": 1, "unknown": 2, "padding": 0}),
    "rwkv": _Defaults(),
}


def is_gguf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a GGUF file."""
    return head.startswith(MAGIC)


def load(path: Path) -> Tokenizer:
    """Raises FormatError."""
    try:
        metadata = read_metadata(path, lambda key: key.startswith(_PREFIX) or key in _OTHER_KEYS)
    except GgufError as error:
        raise FormatError(error.path, error.problem) from None
    return _Loader(path, metadata).load()


class _Loader:
    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self._path = path
        self._metadata = metadata
        self._model: str = self._get("model", str, "")
        if self._model not in _DEFAULTS:
            named = f"has the vocabulary type {self._model!r}" if self._model else "has no vocabulary"
            raise FormatError(path, f"{named}; known are {', '.join(_DEFAULTS)}")
        self._defaults = _DEFAULTS[self._model]
        self._texts = self._read_texts()
        self._types = self._read_types()
        self._scores = self._read_scores()

    def load(self) -> Tokenizer:
        pre = self._pre_tokenizer()
        specials = self._specials()
        try:
            vocabulary, pieces = self._vocabulary(pre)
            table = TokenTable(pieces, bytes(self._types), specials, self._scores)
            return Tokenizer(vocabulary, table, self._config(pre, specials), self._unguarded(pieces))
        except (ValueError, RuntimeError) as error:  # sentencepiece reports a bad model as RuntimeError
            raise FormatError(self._path, f"its vocabulary cannot be used: {error}") from None

    # -- reading

    def _get(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = self._metadata.get(_PREFIX + name, default)
        if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise FormatError(self._path, f"{_PREFIX}{name} has the wrong type {type(value).__name__}")
        return value

    def _read_texts(self) -> list[str]:
        raw: list[bytes] = self._get("tokens", list, [])
        if not raw:
            raise FormatError(self._path, f"has no {_PREFIX}tokens")
        try:
            return [token.decode() for token in raw]
        except UnicodeDecodeError:
            index = next(index for index, token in enumerate(raw) if token.decode("utf-8", "replace").encode() != token)
            raise FormatError(self._path, f"{_PREFIX}tokens[{index}] is not valid UTF-8") from None

    def _read_types(self) -> bytearray:
        given = self._get("token_type", array, None)
        if given is None:
            types = bytearray([TokenType.NORMAL]) * len(self._texts)
        else:
            self._check_length("token_type", given)
            if any(kind not in range(7) for kind in set(given)):
                raise FormatError(self._path, f"{_PREFIX}token_type holds numbers outside of 0 to 6")
            types = bytearray(int(kind) or TokenType.UNUSED for kind in given)
        if not CONTROL_TEXTS.isdisjoint(self._texts):
            for index, text in enumerate(self._texts):
                if text in CONTROL_TEXTS and types[index] not in CONTROL_TYPES:
                    types[index] = TokenType.CONTROL
        return types

    def _read_scores(self) -> array[float] | None:
        given = self._get("scores", array, None)
        if self._model not in ("llama", "t5"):
            return None
        if given is None:
            raise FormatError(self._path, f"has no {_PREFIX}scores, which the vocabulary type {self._model} needs")
        self._check_length("scores", given)
        return array("f", given)

    def _check_length(self, name: str, values: Sequence[Any]) -> None:
        if len(values) != len(self._texts):
            raise FormatError(self._path, f"{_PREFIX}{name} has {len(values)} entries for {len(self._texts)} tokens")

    def _id(self, name: str) -> int | None:
        value = self._get(f"{name}_token_id", int, None)
        if value is None:
            default = self._defaults.ids.get(name)
            return default if default is not None and default < len(self._texts) else None
        if not 0 <= value < len(self._texts):
            # Converters write 2^32 - 1 for none; llama.cpp warns and goes on without.
            logger.warning("%s: %s%s_token_id is %d, which is no id: ignored", self._path, _PREFIX, name, value)
            return None
        return int(value)

    def _flag(self, name: str, default: bool) -> bool:
        return bool(self._get(name, bool, default))

    def _pre_tokenizer(self) -> PreTokenizer:
        name: str = self._get("pre", str, "")
        if self._model != "gpt2":
            return PRE_TOKENIZERS["default"]
        if not name:
            logger.warning("%s: names no pre-tokenizer (%spre); the default one may be wrong", self._path, _PREFIX)
            return PRE_TOKENIZERS["default"]
        if name not in PRE_TOKENIZERS:
            raise FormatError(self._path, f"has the unknown pre-tokenizer {name!r}; known: {' '.join(PRE_TOKENIZERS)}")
        return PRE_TOKENIZERS[name]

    def _config(self, pre: PreTokenizer, specials: Sequence[SpecialToken]) -> TokenizerConfig:
        byte_pairs = self._model == "gpt2"
        eos_id = self._id("eos")
        bos_id = self._id("bos")
        if self._model == "bert" and _PREFIX + "bos_token_id" not in self._metadata:
            bos_id = self._id("cls") if self._id("cls") is not None else bos_id
        sep_id = self._id("seperator")  # so it is spelt in the files
        adds_bos = self._flag("add_bos_token", pre.adds_bos if byte_pairs else self._defaults.adds_bos)
        adds_eos = self._flag("add_eos_token", self._defaults.adds_eos)
        space_prefix = self._defaults.space_prefix if not byte_pairs else False
        return TokenizerConfig(
            source="gguf",
            bos_id=bos_id,
            eos_id=eos_id,
            unk_id=self._id("unknown"),
            pad_id=self._id("padding"),
            sep_id=sep_id,
            end_of_generation_ids=end_of_generation_ids(((t.id, t.text) for t in specials), eos_id),
            adds_bos=adds_bos and bos_id is not None,
            adds_eos=adds_eos and eos_id is not None,
            adds_sep=self._defaults.adds_sep and sep_id is not None,
            adds_space_prefix=self._flag("add_space_prefix", space_prefix) and not byte_pairs,
            clean_spaces=pre.clean_spaces if byte_pairs else self._defaults.clean_spaces,
            chat_template=self._chat_template(),
        )

    def _chat_template(self) -> str | None:
        template = self._metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def _specials(self) -> tuple[SpecialToken, ...]:
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        name = str(self._metadata.get("general.name", "")).lower()
        pre = str(self._metadata.get(_PREFIX + "pre", ""))
        phi3 = "phi-3" in name or "phi3" in name
        architecture = str(self._metadata.get("general.architecture", ""))
        mask = any(known in pre for known in _MASK_SWALLOWS_LEFT) or architecture in ("nomic-bert-moe", "jina-bert-v3")
        swallows_left = {"<mask>"} if mask else {"[MASK]"} if "modern-bert" in name else set()
        swallows_nothing = {"<unk>", "<s>", "<|endoftext|>"}
        return tuple(
            SpecialToken(
                index,
                text,
                TokenType(self._types[index]),
                lstrip=text in swallows_left,
                rstrip=phi3 and text not in swallows_nothing,
            )
            for index, text in enumerate(self._texts)
            if self._types[index] in kinds
        )

    # -- building

    def _vocabulary(self, pre: PreTokenizer) -> tuple[Vocabulary, list[bytes]]:
        match self._model:
            case "gpt2" if pre.raw_text:
                return self._raw_byte_pairs(pre)
            case "gpt2":
                return self._byte_pairs(pre)
            case "llama":
                pieces = self._sentencepiece_pieces()
                return SpmVocabulary(self._scored()), pieces
            case "t5":
                pieces = self._sentencepiece_pieces()
                return UgmVocabulary(self._scored()), pieces
            case "bert":
                return self._word_pieces(), self._sentencepiece_pieces()
            case _:
                pieces = [self._unescaped(index, text) for index, text in enumerate(self._texts)]
                text = [(piece, index) for index, piece in enumerate(pieces) if self._types[index] not in CONTROL_TYPES]
                return RwkvVocabulary(text, self._id("unknown")), pieces

    def _unguarded(self, pieces: list[bytes]) -> Vocabulary | None:
        """llama.cpp puts control tokens into RWKV's tree with all others."""
        if self._model != "rwkv":
            return None
        return RwkvVocabulary([(piece, index) for index, piece in enumerate(pieces)], self._id("unknown"))

    def _unescaped(self, index: int, text: str) -> bytes:
        try:
            return unescape(text)
        except ValueError as error:
            raise ValueError(f"token {index} {error}") from None

    def _merge_products(self) -> dict[bytes, None]:
        """What the merges make, each once, in the order of the merges."""
        merges: list[bytes] | None = self._get("merges", list, None)
        if merges is None:
            raise ValueError(f"there are no {_PREFIX}merges")
        for number, merge in enumerate(merges):
            if merge.count(b" ") != 1 or merge.startswith(b" ") or merge.endswith(b" "):
                raise ValueError(f"{_PREFIX}merges[{number}] is not two tokens")
        return dict.fromkeys([merge.replace(b" ", b"") for merge in merges])

    def _ids_by_text(self) -> dict[bytes, int]:
        ids = {text.encode(): index for index, text in enumerate(self._texts)}
        if len(ids) != len(self._texts):
            logger.warning("%s: %d tokens have the text of another", self._path, len(self._texts) - len(ids))
        return ids

    def _byte_pairs(self, pre: PreTokenizer) -> tuple[BpeVocabulary, list[bytes]]:
        """Tokens in GPT-2's alphabet of bytes. Ranks are single bytes in id order, then what the merges make."""
        pieces = [
            from_alphabet(text) if kind == TokenType.NORMAL else self._shown(index, text)
            for index, (text, kind) in enumerate(zip(self._texts, self._types, strict=True))
        ]
        ids = self._ids_by_text()
        ranked: dict[bytes, int] = {}
        for index, piece in enumerate(pieces):
            if len(piece) == 1 and self._types[index] == TokenType.NORMAL:
                ranked.setdefault(piece, index)
        for product in self._merge_products():
            found = ids.get(product)
            if found is None:
                raise ValueError(f"a merge makes {product.decode(errors='replace')!r}, which is no token")
            if self._types[found] == TokenType.NORMAL:
                ranked.setdefault(pieces[found], found)
        whole = (
            {
                piece: index
                for index, (piece, kind) in enumerate(zip(pieces, self._types, strict=True))
                if kind == TokenType.NORMAL and piece not in ranked
            }
            if pre.ignore_merges
            else {}
        )
        return BpeVocabulary(list(ranked.items()), pre.patterns, whole), pieces

    def _raw_byte_pairs(self, pre: PreTokenizer) -> tuple[RawBpeVocabulary, list[bytes]]:
        """Pieces that no merge makes, but for single characters, can only come from the text of special tokens."""
        rank = {product: number for number, product in enumerate(self._merge_products())}
        scores = array("f", bytes(4 * len(self._texts)))
        kinds = bytearray(self._types)
        for index, text in enumerate(self._texts):
            made_by = rank.get(text.encode())
            if made_by is not None:
                scores[index] = -made_by
            elif kinds[index] != TokenType.BYTE and len(text) > 1:
                kinds[index] = TokenType.CONTROL
        unk_id = self._id("unknown")
        return (
            RawBpeVocabulary(self._sentencepiece(scores, kinds, 0 if unk_id is None else unk_id), pre.patterns),
            self._sentencepiece_pieces(),
        )

    def _shown(self, index: int, text: str) -> bytes:
        return b"" if self._types[index] == TokenType.UNUSED else text.encode()

    def _sentencepiece_pieces(self) -> list[bytes]:
        pieces: list[bytes] = []
        for index, text in enumerate(self._texts):
            match self._types[index]:
                case TokenType.NORMAL:
                    pieces.append(text.encode().replace(_SPACE_BYTES, b" "))
                case TokenType.BYTE:
                    found = _BYTE_PIECE.fullmatch(text)
                    if found is None:
                        raise FormatError(self._path, f"token {index} is a byte, but its text is {text!r}")
                    pieces.append(bytes([int(found[1], 16)]))
                case _:
                    pieces.append(self._shown(index, text))
        return pieces

    def _scored(self) -> ModelProto:
        unk_id = self._id("unknown")
        if unk_id is None:
            raise ValueError("there is no unknown token")
        assert self._scores is not None
        return self._sentencepiece(self._scores, self._types, unk_id)

    def _sentencepiece(self, scores: Sequence[float], kinds: Sequence[int], unk_id: int) -> ModelProto:
        """The model as the sentencepiece library wants it. Only text that no special token was found in comes to it, so
        USER_DEFINED tokens are ordinary pieces there, as for llama.cpp; CONTROL tokens can never come out of text."""
        model = ModelProto()
        model.trainer_spec.model_type = model.trainer_spec.UNIGRAM if self._model == "t5" else model.trainer_spec.BPE
        normalizer = model.normalizer_spec
        normalizer.name = "gguf"
        normalizer.add_dummy_prefix = False
        normalizer.remove_extra_whitespaces = self._flag("remove_extra_whitespaces", False)
        charsmap = self._get("precompiled_charsmap", array, None)
        if charsmap is not None and self._model == "t5":
            normalizer.precompiled_charsmap = charsmap.tobytes()
        seen: set[str] = set()
        for index, (text, kind) in enumerate(zip(self._texts, kinds, strict=True)):
            if index == unk_id:
                kind = TokenType.UNKNOWN
            elif kind == TokenType.UNKNOWN:
                kind = TokenType.CONTROL
            elif kind in (TokenType.USER_DEFINED, TokenType.UNUSED):
                kind = TokenType.NORMAL
            if not text or text in seen:
                text, kind = f"<no text {index}>", TokenType.CONTROL
            seen.add(text)
            model.pieces.add(piece=text, score=scores[index], type=kind)
        model.trainer_spec.unk_id = unk_id
        model.trainer_spec.byte_fallback = sum(kind == TokenType.BYTE for kind in self._types) == 256
        return model

    def _word_pieces(self) -> WpmVocabulary:
        """A piece that begins a word has U+2581 in front; one that goes on has nothing."""
        begin: dict[str, int] = {}
        inside: dict[str, int] = {}
        for index, text in enumerate(self._texts):
            if self._types[index] == TokenType.NORMAL:
                pieces = begin if text.startswith(SPACE) else inside
                pieces.setdefault(text.removeprefix(SPACE), index)
        unk_id = self._id("unknown")
        if unk_id is None:
            raise ValueError("there is no unknown token")
        return WpmVocabulary(begin, inside, unk_id)
