"""Reads the normalizer, pre-tokenizer and post-processor of a `tokenizer.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

from tandem.tokenizer.config import Part
from tandem.tokenizer.formats.hf_patterns import takes_all, translated
from tandem.tokenizer.library_characters import ONE_OF_PUNCTUATION, PUNCTUATION
from tandem.tokenizer.normalizing import STEPS
from tandem.tokenizer.vocabularies.bpe.pattern_parser import NotUnderstood, parse
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import GPT2, PUBLISHED_WORDS, WORDS
from tandem.tokenizer.vocabularies.words import Cut

Step: TypeAlias = Mapping[str, Any]
# When a space is put in front of a text: never; always; unless one is there; at the beginning of all text, unless ...
SpacePrefix: TypeAlias = Literal["never", "prepend", "always", "first"]

_SPACE = "▁"
# Each match of P as a piece; all that follow one another; with what is in front of it, or behind, that does not match.
_PIECES = {
    "Isolated": "P",
    "Contiguous": "(?:P)+",
    "MergedWithPrevious": r"(?:(?!P)[\s\S])+(?:P)?|P",
    "MergedWithNext": r"P(?:(?!P)[\s\S])*",
}
_MAKE_NO_SPACE = frozenset({"NFC", "NFD", "Lowercase"})
_OF_DIGITS = re.compile(r"(?:\[0-9\]|\{\d+(?:,\d*)?\}|\+)+")  # patterns of ASCII digits and nothing else


@dataclass(slots=True)
class Pipeline:
    """The steps before the model."""

    byte_level: bool = False
    cuts: list[str] = field(default_factory=list)
    cuts_at_number_bytes: bool = False  # digits are searched behind ByteLevel, where parts of other characters look so
    metaspace: bool = False
    replaces_spaces: bool = False  # in the normalizer, where added tokens see it
    cuts_at_spaces: bool = False  # no token goes on behind a space
    space_prefix: SpacePrefix = "never"
    merges_white_space: bool = False
    charsmap: str | None = None
    forms: tuple[str, ...] = ()  # what normalizers do that need no table
    bert: bool | None = None  # BERT's words; whether they are lower-cased
    words: list[Cut] | None = None  # what cuts text into words that are tokens as a whole


def read_pipeline(content: Mapping[str, Any]) -> Pipeline:
    """Reads the steps before the model. Raises ValueError for a step that is not supported."""
    normalizers = list(_steps(content.get("normalizer"), "normalizers"))
    pre_tokenizers = list(_steps(content.get("pre_tokenizer"), "pretokenizers"))
    if any(step["type"] == "ByteLevel" for step in pre_tokenizers):
        return _byte_level(normalizers, pre_tokenizers)
    if any(step["type"] == "BertNormalizer" for step in normalizers):
        return _bert(normalizers, pre_tokenizers)
    if content["model"].get("type") == "WordLevel" or _cuts_words(content["model"], normalizers, pre_tokenizers):
        return _words(normalizers, pre_tokenizers)
    return _metaspace(normalizers, pre_tokenizers)


class Template(NamedTuple):
    """What a post-processor puts around one text, and around two."""

    front: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    pair: tuple[Part, ...] = (Part(None), Part(None, 1))


def read_template(post_processor: Step | None) -> Template:
    """Reads the post-processor. Raises ValueError for one that is not supported."""
    steps = [step for step in _steps(post_processor, "processors") if step["type"] != "ByteLevel"]
    if not steps:
        return Template()
    if len(steps) > 1:
        raise ValueError(
            f"the post-processors {' and '.join(step['type'] for step in steps)} together are not supported"
        )
    [step] = steps
    match step["type"]:
        case "BertProcessing":
            cls, sep = step["cls"][1], step["sep"][1]
            return Template((cls,), (sep,), (Part(cls), Part(None), Part(sep), Part(None, 1), Part(sep, 1)))
        case "RobertaProcessing":
            cls, sep = step["cls"][1], step["sep"][1]
            return Template((cls,), (sep,), tuple(map(Part, (cls, None, sep, sep, None, sep))))
        case "TemplateProcessing":
            single = [part.token for part in _parts(step, "single", "A")]
            text = single.index(None)
            front, back = (tuple(filter(_is_token, side)) for side in (single[:text], single[text + 1 :]))
            pair = _parts(step, "pair", "AB") if step.get("pair") else Template().pair
            return Template(front, back, tuple(pair))
        case other:
            raise ValueError(f"the post-processor {other} is not supported")


def _is_token(token: int | None) -> TypeGuard[int]:
    return token is not None


def _parts(step: Step, name: str, texts: str) -> list[Part]:
    parts: list[Part] = []
    found = ""
    for each in step[name]:
        kind, part = next(iter(each.items()))
        type_id = part.get("type_id", 0)
        if kind == "Sequence":
            text = part.get("id", "A")
            if text not in ("A", "B"):
                raise ValueError(f"the post-processor TemplateProcessing has a text {text!r} in {name}, not A or B")
            found += text
            parts.append(Part(None, type_id))
        else:
            parts += (Part(token, type_id) for token in step["special_tokens"][part["id"]]["ids"])
    if found != texts:
        raise ValueError(
            f"the post-processor TemplateProcessing has the texts {found or 'none'} in {name}, expected {texts}"
        )
    return parts


def _steps(step: Step | None, inner: str) -> Iterator[Step]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for each in step[inner]:
            yield from _steps(each, inner)
    else:
        yield step


def _refusal(role: str, step: Step) -> ValueError:
    return ValueError(f"the {role} {step['type']} is not supported in this form, at this place or with this normalizer")


# --- byte level


def _byte_level(normalizers: Sequence[Step], pre_tokenizers: Sequence[Step]) -> Pipeline:
    for step in normalizers:
        if step["type"] not in STEPS:
            raise _refusal("normalizer", step)
    pipeline = Pipeline(forms=tuple(step["type"] for step in normalizers))
    for step in pre_tokenizers:
        if pipeline.byte_level:  # what comes now sees bytes, each as one character
            pipeline.cuts.append(_cut_of_digits(step, pipeline))
        elif step["type"] == "ByteLevel":
            if step.get("add_prefix_space"):
                if pipeline.cuts or not _MAKE_NO_SPACE.issuperset(pipeline.forms):
                    raise ValueError("the pre-tokenizer ByteLevel with add_prefix_space is not supported behind others")
                pipeline.space_prefix = "always"
            pipeline.byte_level = True
            if step.get("use_regex", True):
                pipeline.cuts.append(GPT2)
        else:
            pipeline.cuts.append(_cut(step))
    return pipeline


def _cut(step: Step) -> str:
    match step["type"]:
        case "Split":
            return _split(step)
        case "Digits":
            return r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
        case "Punctuation" if step.get("behavior", "Isolated") in _PIECES:
            behaviour: str = step.get("behavior", "Isolated")
            return _PIECES[behaviour].replace("P", f"[{PUNCTUATION}]")
    raise _refusal("pre-tokenizer", step)


def _cut_of_digits(step: Step, pipeline: Pipeline) -> str:
    match step["type"]:
        case "Digits":
            pipeline.cuts_at_number_bytes = True
            return "[0-9]" if step.get("individual_digits") else "[0-9]+"
        case "Split" if _OF_DIGITS.fullmatch(step["pattern"].get("Regex", "")):
            return _split(step)
    raise _refusal("pre-tokenizer", step)


def _split(step: Step) -> str:
    """Reads a split whose matches are pieces. One that removes the text between them must have a pattern without
    gaps."""
    pattern, literal = step["pattern"].get("Regex"), step["pattern"].get("String")
    behaviour, invert = step["behavior"], bool(step.get("invert"))
    if isinstance(pattern, str):
        cut = translated(pattern.replace(PUBLISHED_WORDS, WORDS))
    elif isinstance(literal, str) and literal:
        cut = re.escape(literal)
    else:
        raise ValueError(f"the pre-tokenizer Split by {step['pattern']} is not supported")
    if behaviour == "Isolated" or (behaviour == "Removed" and invert and takes_all(cut)):
        return cut
    if invert or behaviour not in _PIECES:
        raise ValueError(f"the pre-tokenizer Split with the behaviour {behaviour}, invert {invert}, is not supported")
    try:
        parse(cut)
    except NotUnderstood as error:
        raise ValueError(f"the pre-tokenizer Split with the behaviour {behaviour} by a pattern: {error}") from None
    return _PIECES[behaviour].replace("P", f"(?:{cut})")


# --- whole words

_WHITE = r"\p{White_Space}"
_WORD_CHARACTER = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"  # \w to the library's other engine
_WORD_CUTS = {
    "Whitespace": [Cut(f"[{_WORD_CHARACTER}]+|[^{_WORD_CHARACTER}{_WHITE}]+", keeps=False)],
    "WhitespaceSplit": [Cut(f"[^{_WHITE}]+", keeps=False)],
    "BertPreTokenizer": [Cut(f"[^{_WHITE}]+", keeps=False), Cut(ONE_OF_PUNCTUATION, keeps=True)],
}


def _cuts_words(model: Step, normalizers: Sequence[Step], pre_tokenizers: Sequence[Step]) -> bool:
    """Tells whether byte pairs are those of characters of whole words, in which spaces are nothing."""
    kinds = {step["type"] for step in pre_tokenizers}
    unmarked = "Metaspace" not in kinds and all(step["type"] in STEPS for step in normalizers)
    return "merges" in model and unmarked and not kinds.isdisjoint(_WORD_CUTS)


def _words(normalizers: Sequence[Step], pre_tokenizers: Sequence[Step]) -> Pipeline:
    for step in normalizers:
        if step["type"] not in STEPS:
            raise _refusal("normalizer", step)
    cuts: list[Cut] = []
    for step in pre_tokenizers:
        cuts += _WORD_CUTS.get(step["type"]) or [Cut(_cut(step), keeps=True)]
    return Pipeline(forms=tuple(step["type"] for step in normalizers), words=cuts)


# --- metaspace


def _metaspace(normalizers: Sequence[Step], pre_tokenizers: Sequence[Step]) -> Pipeline:
    found = _Metaspace()
    for step in normalizers:
        found.normalize(step)
    for step in pre_tokenizers:
        found.cut(step)
    return found.finished()


class _Metaspace:
    """Reads the steps of a metaspace pipeline, one after the other."""

    def __init__(self) -> None:
        self._pipeline = Pipeline()
        self._strips = self._merges = self._words = False  # what is done to white space
        self._marks_merged = False  # what several spaces become is U+2581, no space
        self._scheme: Any = "never"

    def normalize(self, step: Step) -> None:
        pipeline = self._pipeline
        match step["type"]:
            case form if form in STEPS and pipeline.space_prefix == "never" and not self._is_mapped():
                pipeline.forms += (form,)
            case "Prepend" if step["prepend"] == _SPACE and pipeline.space_prefix == "never":
                pipeline.space_prefix = "prepend"
            case "Replace" if step["pattern"] == {"String": " "} and step["content"] == _SPACE:
                pipeline.replaces_spaces = True
            case "Precompiled" if not self._is_mapped() and not self._is_changed():
                pipeline.charsmap = step["precompiled_charsmap"]
            case "Replace" if (
                not pipeline.forms and step["pattern"] == {"Regex": " {2,}"} and step["content"] in (" ", _SPACE)
            ):
                self._merges = True
                self._marks_merged |= step["content"] == _SPACE
            case "Strip" if not self._merges and not pipeline.forms and _strips_right_alone(step):
                self._strips = True
            case _:
                raise _refusal("normalizer", step)

    def _is_mapped(self) -> bool:
        """Tells whether characters have been mapped, or spaces replaced: other steps would see the result."""
        return self._pipeline.charsmap is not None or self._pipeline.replaces_spaces

    def _is_changed(self) -> bool:
        """Tells whether a step has already changed the text that a map of characters would see."""
        return bool(self._pipeline.forms) or self._merges or self._strips

    def cut(self, step: Step) -> None:
        pipeline = self._pipeline
        match step["type"]:
            case "Split" if step["pattern"] == {"String": " "} and (pipeline.replaces_spaces or pipeline.metaspace):
                pass
            case "WhitespaceSplit" if not pipeline.metaspace and not pipeline.forms:
                self._words = True
            case "Metaspace" if step.get("replacement", _SPACE) == _SPACE and not pipeline.metaspace:
                pipeline.metaspace = True
                pipeline.cuts_at_spaces = bool(step.get("split", True))
                # Older files say it by a flag alone.
                by_flag = "always" if step.get("add_prefix_space", True) else "never"
                self._scheme = step.get("prepend_scheme") or by_flag
            case _:
                raise _refusal("pre-tokenizer", step)

    def finished(self) -> Pipeline:
        pipeline = self._pipeline
        if self._scheme not in ("never", "always", "first"):
            raise ValueError(f"the pre-tokenizer Metaspace with prepend_scheme {self._scheme!r} is not supported")
        if pipeline.space_prefix == "never":
            pipeline.space_prefix = self._scheme
        pipeline.metaspace = pipeline.metaspace or pipeline.replaces_spaces
        pipeline.cuts_at_spaces |= self._words
        # White space merges where both the ends are stripped and what is within, of the spaces that a map makes of it.
        pipeline.merges_white_space = self._words or (self._merges and self._strips)
        mapped = pipeline.charsmap is not None and not pipeline.replaces_spaces
        marked = self._words and self._marks_merged  # a word of white space would stay
        always = self._scheme == "always" or not self._words
        fits = pipeline.merges_white_space and mapped and always and not marked
        if (self._merges or self._strips or self._words) and not fits:
            raise ValueError("these steps that strip or split at white space are not supported together")
        if pipeline.charsmap is not None and pipeline.space_prefix == "prepend":
            raise ValueError("the normalizers Precompiled and Prepend are not supported together")
        return pipeline


def _strips_right_alone(step: Step) -> bool:
    return bool(step.get("strip_right")) and not step.get("strip_left")


# --- BERT


def _bert(normalizers: Sequence[Step], pre_tokenizers: Sequence[Step]) -> Pipeline:
    step = normalizers[0]
    if len(normalizers) != 1 or not (step.get("clean_text", True) and step.get("handle_chinese_chars", True)):
        raise _refusal("normalizer", step)
    if [each["type"] for each in pre_tokenizers] != ["BertPreTokenizer"]:
        raise ValueError("a BertNormalizer without the one pre-tokenizer BertPreTokenizer is not supported")
    lowercase = bool(step.get("lowercase", True))
    if step.get("strip_accents") not in (None, lowercase):
        raise ValueError("a BertNormalizer that lower-cases without stripping accents is not supported")
    return Pipeline(bert=lowercase)
