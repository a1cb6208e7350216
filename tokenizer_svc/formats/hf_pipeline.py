"""What the normalizer, pre-tokenizer and post-processor of a `tokenizer.json` amount to.

| step of the pipeline                                  | becomes                                          |
|-------------------------------------------------------|--------------------------------------------------|
| ByteLevel; Split, Digits, Punctuation in front of it  | patterns that cut text one after the other       |
| Metaspace; Prepend and Replace of spaces by U+2581    | SentencePiece's spaces, with or without a prefix |
| WhitespaceSplit; Replace of several spaces; Strip     | white space merges                               |
| Precompiled                                           | SentencePiece's character map                    |
| NFC                                                   | text is composed first                           |
| BertNormalizer, BertPreTokenizer                      | BERT's words                                     |
| TemplateProcessing, BertProcessing, RobertaProcessing | what add_special adds                            |

Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizer_svc.vocabularies.patterns import GPT2

_SPACE = "▁"
_PUNCTUATION = r"[\p{P}$+<=>^`|~]"
# Spelt out as llama.cpp does, so that the same vocabulary is the same in every format.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPELT_OUT = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"


@dataclass(slots=True)
class Pipeline:
    """The steps in front of the model."""

    byte_level: bool = False
    cuts: list[str] = field(default_factory=list)
    metaspace: bool = False
    space_prefix: bool = False
    merges_white_space: bool = False
    charsmap: str | None = None
    nfc: bool = False
    bert: bool | None = None  # BERT's words; whether they are lower-cased


def read_pipeline(content: Mapping[str, Any]) -> Pipeline:
    """Raises ValueError for a step that is not served."""
    pipeline = Pipeline()
    for step in _steps(content.get("normalizer"), "normalizers"):
        _normalizer(step, pipeline)
    for step in _steps(content.get("pre_tokenizer"), "pretokenizers"):
        _pre_tokenizer(step, pipeline)
    return pipeline


def template_ends(post_processor: Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    """The tokens that the post-processor puts in front of a single text and behind it. Raises ValueError."""
    front: list[str] = []
    back: list[str] = []
    for step in _steps(post_processor, "processors"):
        match step["type"]:
            case "ByteLevel":
                continue
            case "BertProcessing" | "RobertaProcessing":
                front.append(step["cls"][0])
                back.append(step["sep"][0])
            case "TemplateProcessing":
                side = front
                for part in step["single"]:
                    if "Sequence" in part:
                        side = back
                    else:
                        side.append(part["SpecialToken"]["id"])
            case other:
                raise ValueError(f"the post-processor {other} is not served")
    return front, back


def _steps(step: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for each in step[inner]:
            yield from _steps(each, inner)
    else:
        yield step


def _normalizer(step: Mapping[str, Any], pipeline: Pipeline) -> None:
    match step["type"]:
        case "NFC":
            pipeline.nfc = True
        case "Precompiled":
            pipeline.charsmap = step["precompiled_charsmap"]
        case "Prepend" if step["prepend"] == _SPACE:
            pipeline.space_prefix = True
        case "Replace" if step["pattern"] == {"String": " "} and step["content"] == _SPACE:
            pipeline.metaspace = True
        case "Replace" if step["pattern"] == {"Regex": " {2,}"} and step["content"] in (" ", _SPACE):
            pipeline.merges_white_space = True
        case "Strip" if step.get("strip_left") in (False, None) and step.get("strip_right"):
            pipeline.merges_white_space = True
        case "BertNormalizer" if step.get("clean_text", True) and step.get("handle_chinese_chars", True):
            lowercase = bool(step.get("lowercase", True))
            if step.get("strip_accents") not in (None, lowercase):
                raise ValueError("a BertNormalizer that lower-cases without stripping accents is not served")
            pipeline.bert = lowercase
        case other:
            raise ValueError(f"the normalizer {other} is not served in this form")


def _pre_tokenizer(step: Mapping[str, Any], pipeline: Pipeline) -> None:
    match step["type"]:
        case "ByteLevel":
            if step.get("add_prefix_space"):
                raise ValueError("the pre-tokenizer ByteLevel with add_prefix_space is not served")
            pipeline.byte_level = True
            if step.get("use_regex", True):
                pipeline.cuts.append(GPT2)
        case "Split":
            pipeline.cuts.append(_split(step))
        case "Digits":
            pipeline.cuts.append(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")
        case "Punctuation" if step.get("behavior", "Isolated") in ("Isolated", "Contiguous"):
            pipeline.cuts.append(_PUNCTUATION + ("+" if step.get("behavior") == "Contiguous" else ""))
        case "Metaspace" if step.get("replacement", _SPACE) == _SPACE:
            pipeline.metaspace = True
            scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
            pipeline.space_prefix = pipeline.space_prefix or scheme != "never"
        case "WhitespaceSplit":
            pipeline.merges_white_space = True
        case "BertPreTokenizer":
            if pipeline.bert is None:
                raise ValueError("the pre-tokenizer BertPreTokenizer without a BertNormalizer is not served")
        case other:
            raise ValueError(f"the pre-tokenizer {other} is not served in this form")


def _split(step: Mapping[str, Any]) -> str:
    """A split whose matches are pieces. One that removes what is between them must have a pattern without gaps."""
    pattern = step["pattern"].get("Regex")
    behaviour, invert = step["behavior"], bool(step.get("invert"))
    if not isinstance(pattern, str):
        raise ValueError(f"the pre-tokenizer Split by {step['pattern']} is not served")
    complete = pattern.endswith((r"|\s+", r"|\s"))
    if not ((behaviour == "Isolated" and not invert) or (behaviour == "Removed" and invert and complete)):
        raise ValueError(f"the pre-tokenizer Split with the behaviour {behaviour}, invert {invert}, is not served")
    return pattern.replace(_CONTRACTIONS, _SPELT_OUT)
