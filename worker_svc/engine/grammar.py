"""Structured output: what a grammar allows next, as bit masks over the vocabulary.

    compile   JSON schema, regex, choices or Lark grammar -> matcher, off the step's thread; the latest are kept
    masks     of a step's rows, by a thread beside the forward pass (llguidance gives the interpreter lock back)
    consume   the sampled token, which moves the matcher on

A matcher is a pure function of the output so far, so preemption does not touch it and a resumed request replays its
output through a fresh one. Compiling and each mask are bounded by llguidance's own counters (limits below): what would
take longer is refused, whatever it is. llguidance is imported when the first vocabulary comes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import llguidance
    from llguidance._lib import JsonCompileOptions

MAX_GUIDE_BYTES = 65_536  # of a schema, regex, grammar, or all choices together
NO_VOCABULARY = "the worker does not know its vocabulary"
# A model that is unsure likes to write white space for ever: between two tokens of JSON nothing, one space, or a line
# break with its indentation. A schema that has "x-guidance" chooses for itself.
JSON_DEFAULTS: JsonCompileOptions = {"whitespace_pattern": r"[ ]|\n[ ]{0,16}"}
CACHED_GRAMMARS = 256
COMPILERS = 2  # at once
MAX_PLACE_CHECKS = 500  # sub-schemas tried to find the place of an error

# Counters of llguidance, not seconds: the same on every machine. Its defaults but for the first ones, which are lower
# because one grammar must not take the engine's memory or a step's time.
MAX_LEXER_STATES = 50_000
MAX_GRAMMAR_SIZE = 200_000


class Guide(NamedTuple):
    """What the output must match, as it was asked for."""

    kind: str  # "json_schema", "regex", "choices" (a JSON list) or "grammar" (Lark)
    text: str


class GuideError(ValueError):
    """The guide cannot be served; says what is wrong and where."""


def grammar_of(guide: Guide) -> str:
    """llguidance's form of a guide; raises GuideError."""
    from llguidance import LLMatcher

    try:
        match guide.kind:
            case "json_schema":
                own = '"x-guidance"' in guide.text
                return LLMatcher.grammar_from_json_schema(guide.text, defaults=None if own else JSON_DEFAULTS)
            case "regex":
                return LLMatcher.grammar_from_regex(guide.text)
            case "choices":
                alternatives = (json.dumps(choice, ensure_ascii=False) for choice in json.loads(guide.text))
                return LLMatcher.grammar_from_lark(f"start: {' | '.join(alternatives)}")
            case "grammar":
                return LLMatcher.grammar_from_lark(guide.text)
    except ValueError as error:
        raise GuideError(str(error)) from error
    raise AssertionError(guide.kind)


@dataclass(slots=True)
class Matcher:
    """Where one request stands in its grammar."""

    _matcher: llguidance.LLMatcher
    failure: str = ""

    @property
    def ended(self) -> bool:
        """The grammar allows nothing more."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why it cannot go on, for example a limit; empty if it can."""
        return self.failure or self._matcher.get_error()

    def consume(self, token: int) -> None:
        """The next token of the output; `error` tells if it is none that is allowed."""
        self._matcher.consume_token(token)

    def allowed_prefix(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` could follow."""
        return self._matcher.validate_tokens(list(tokens))

    def forced(self) -> list[int]:
        """Tokens that must follow, in all likelihood: there is one text only, though other ids could spell it."""
        return self._matcher.compute_ff_tokens()

    def fresh(self) -> Matcher:
        """A copy that has consumed nothing."""
        copy = self._matcher.deep_copy()
        copy.reset()
        return Matcher(copy)


class _Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], special_ids: Sequence[int], eos_id: int) -> None:
        self.tokens = pieces
        self.special_token_ids = special_ids
        self.eos_token_id = eos_id
        self.tokenizer: llguidance.LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """Ids of a text that is forced. Longest pieces first: every spelling is allowed, and this one takes the fewest
        steps."""
        if not isinstance(text, str):
            raise TypeError("text only")
        return self.tokenizer.greedy_tokenize(text) if self.tokenizer is not None else []


class Grammars:
    """Compiles guides and fills masks; belongs to the engine's thread."""

    def __init__(self, vocabulary_size: int, eos_ids: Sequence[int]) -> None:
        self._vocabulary_size = vocabulary_size
        self.eos_ids = list(eos_ids)
        self._tokenizer: Future[llguidance.LLTokenizer] | None = None
        self._executor: llguidance.LLExecutor | None = None
        self._compiled: OrderedDict[Guide, Matcher] = OrderedDict()  # the latest used last
        self._lock = threading.Lock()  # of `_compiled`
        self._pending: dict[int, Future[str]] = {}
        self._compilers: ThreadPoolExecutor | None = None
        self._filler: ThreadPoolExecutor | None = None

    @property
    def words(self) -> int:
        """Width of a mask, in 32-bit words."""
        return -(-self._vocabulary_size // 32)

    # ------------------------------------------------------------------------------------------------ vocabulary

    def load(self, pieces: Sequence[bytes], special_ids: Sequence[int]) -> None:
        """Takes the bytes of each id, and which ids are no text; returns at once."""
        with self._lock:
            self._compiled.clear()
        self._compilers = self._compilers or ThreadPoolExecutor(COMPILERS, "grammar-compiler")
        self._filler = self._filler or ThreadPoolExecutor(1, "grammar-masks")
        self._tokenizer = self._compilers.submit(self._build, list(pieces), list(special_ids))

    def _build(self, pieces: list[bytes], special_ids: list[int]) -> llguidance.LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        # Ids that the tokenizer does not know have no text and are never allowed. A model without an end-of-sequence
        # id gets one behind its vocabulary.
        size = self._vocabulary_size + (not self.eos_ids)
        pieces += [b""] * (size - len(pieces))
        eos_ids = self.eos_ids or [self._vocabulary_size]
        vocabulary = _Vocabulary(pieces, sorted({*special_ids, *eos_ids}), eos_ids[0])
        tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=size, eos_token=eos_ids)
        vocabulary.tokenizer = tokenizer
        return tokenizer

    # ------------------------------------------------------------------------------------------------ compiling

    def compile(self, serial: int, guide: Guide, resumed: Sequence[int]) -> None:
        """Begins to compile a guide and to check that it allows the output `resumed`; `take_compiled` tells the end."""
        assert serial not in self._pending
        if self._tokenizer is None or self._compilers is None:
            future: Future[str] = Future()
            future.set_result(NO_VOCABULARY)
        else:
            future = self._compilers.submit(self._compile, self._tokenizer, guide, list(resumed))
        self._pending[serial] = future

    @property
    def compiling(self) -> bool:
        """Whether answers are on their way."""
        return bool(self._pending)

    def wait(self, seconds: float) -> None:
        """Returns when an answer is there, or after so long."""
        wait(self._pending.values(), timeout=seconds, return_when="FIRST_COMPLETED")

    def take_compiled(self) -> list[tuple[int, str]]:
        """The serials of what is compiled, each with what is wrong with it; empty: nothing."""
        done = [(serial, future) for serial, future in self._pending.items() if future.done()]
        for serial, _ in done:
            del self._pending[serial]
        return [(serial, future.result()) for serial, future in done]

    def matcher(self, guide: Guide) -> Matcher:
        """A matcher that has consumed nothing, of a guide that was compiled before; raises GuideError."""
        if self._tokenizer is None:
            raise GuideError(NO_VOCABULARY)
        return self._matcher(self._tokenizer, guide)

    def _compile(self, tokenizer: Future[llguidance.LLTokenizer], guide: Guide, resumed: list[int]) -> str:
        try:
            matcher = self._matcher(tokenizer, guide)
        except GuideError as error:
            return str(error)
        except Exception as error:  # of the vocabulary, which no request can help
            return f"{NO_VOCABULARY}: {error}"
        if matcher.allowed_prefix(resumed) < len(resumed):
            return f"the guide does not allow resumed_output_ids[{matcher.allowed_prefix(resumed)}]"
        return ""

    def _matcher(self, tokenizer: Future[llguidance.LLTokenizer], guide: Guide) -> Matcher:
        with self._lock:
            compiled = self._compiled.get(guide)
        if compiled is None:
            compiled = compile_guide(guide, tokenizer.result())
        with self._lock:
            self._compiled[guide] = compiled
            self._compiled.move_to_end(guide)
            while len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
            return compiled.fresh()

    # ------------------------------------------------------------------------------------------------ masks

    def fill(self, jobs: Sequence[tuple[Matcher, int, list[int]]], rows: int) -> Future[npt.NDArray[np.int32]]:
        """Masks `[rows, words]`, all ones but where a job (matcher, row, drafts) says what it allows at `row`, and
        after each draft in the rows that follow. The matchers must be left alone until it is done."""
        assert self._filler is not None, "there is a matcher, so there is a vocabulary"
        return self._filler.submit(self._fill, jobs, rows)

    def _fill(self, jobs: Sequence[tuple[Matcher, int, list[int]]], rows: int) -> npt.NDArray[np.int32]:
        from llguidance import LLExecutor
        from llguidance.numpy import (
            fill_next_token_bitmask_par,
            fill_next_token_bitmask_par_with_draft_tokens,
        )

        if self._executor is None:
            self._executor = LLExecutor(COMPILERS)
        wide = -(-(self._vocabulary_size + (not self.eos_ids)) // 32)
        masks = np.full((rows, wide), -1, dtype=np.int32)

        def fill(jobs: Sequence[tuple[Matcher, int, list[int]]]) -> None:
            assert self._executor is not None
            if plain := [(matcher._matcher, row) for matcher, row, drafts in jobs if not drafts]:
                fill_next_token_bitmask_par(self._executor, plain, masks)
            if drafted := [(matcher._matcher, row, drafts) for matcher, row, drafts in jobs if drafts]:
                fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, masks)

        try:
            fill(jobs)
        except BaseException:  # a Rust panic is no Exception; who caused it is found one by one
            for job in jobs:
                try:
                    fill([job])
                except BaseException as error:
                    job[0].failure = f"{type(error).__name__}: {error}"
        return np.ascontiguousarray(masks[:, : self.words])


def compile_guide(guide: Guide, tokenizer: llguidance.LLTokenizer) -> Matcher:
    """A matcher at the beginning; raises GuideError."""
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar_of(guide), log_level=0, limits=_limits())
    if matcher.is_error():
        reason = _one_line(matcher.get_error())
        place = _place(guide.text) if guide.kind == "json_schema" else ""
        raise GuideError(f"{place}: {reason}" if place else reason)
    return Matcher(matcher)


def _limits() -> llguidance.LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, max_grammar_size=MAX_GRAMMAR_SIZE, verbose_errors=False)


def _one_line(message: str) -> str:
    return " ".join(message.split())[:500]


def _place(schema_text: str) -> str:
    """The JSON pointer of the smallest sub-schema that cannot be compiled by itself; empty if it is the whole."""
    from llguidance import LLMatcher

    root = json.loads(schema_text)
    shared = {key: root[key] for key in ("$defs", "definitions") if isinstance(root, dict) and key in root}
    checks = 0

    def fails(schema: object) -> bool:
        nonlocal checks
        checks += 1
        if checks > MAX_PLACE_CHECKS:
            return False
        whole = {**shared, **schema} if isinstance(schema, dict) else schema
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(whole), defaults=JSON_DEFAULTS)
        except ValueError:
            return True
        return bool(LLMatcher.validate_grammar(grammar, limits=_limits()))

    pointer = ""
    schema = root
    while True:
        for path, child in _children(schema):
            if fails(child):
                pointer, schema = f"{pointer}/{path}", child
                break
        else:
            return pointer


def _children(schema: object) -> list[tuple[str, object]]:
    """The sub-schemas of a schema with their JSON pointers."""
    if not isinstance(schema, dict):
        return []
    found: list[tuple[str, object]] = []
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        inner = schema.get(key)
        if isinstance(inner, dict):
            found += [(f"{key}/{_escaped(name)}", child) for name, child in inner.items()]
    for key in ("anyOf", "allOf", "oneOf", "prefixItems"):
        inner = schema.get(key)
        if isinstance(inner, list):
            found += [(f"{key}/{index}", child) for index, child in enumerate(inner)]
    found += [(key, schema[key]) for key in ("items", "additionalProperties", "additionalItems") if key in schema]
    return [(path, child) for path, child in found if isinstance(child, dict | bool)]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
