"""Validates requests and turns them into plain arguments. Every violated field is named, with what is allowed; limits
on size are checked here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tandem.common.contract import limit_violations
from tandem.common.errors import FieldViolation, ServiceError, invalid_argument, resource_exhausted
from tandem.limits.fields import limits_of
from tandem.tokenizer.answers.formats import FORMATS
from tandem.tokenizer.arrays import Ids, Places
from tandem.tokenizer.encoding import Policy, Segment, TokenIdError
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

_OPEN_LIMITS = limits_of(pb.DecodeStreamOpen.DESCRIPTOR)
_ANSWER_LIMITS = limits_of(pb.AnswerParsing.DESCRIPTOR)
_STREAM_LIMITS = limits_of(pb.DecodeStreamRequest.DESCRIPTOR)
MAX_STREAM_BATCH = _STREAM_LIMITS["batch"].bound
MAX_STREAM_KEY_BYTES = _STREAM_LIMITS["stream_key"].bound
MAX_TOOLS_BYTES = 256 << 10  # of one stream: they are read in the event loop, some milliseconds
_MAX_VIOLATIONS = 32
_LITTLE = 1024  # inputs, segments and ids together: what looking at them takes, two or three milliseconds
_TEXT_POLICIES = (int(pb.SPECIAL_TOKEN_POLICY_UNSPECIFIED), int(pb.SPECIAL_TOKEN_POLICY_TEXT))


class EncodeJob(NamedTuple):
    """One input, ready to be encoded."""

    number: int  # its place in a batch; -1 for a single request
    segments: tuple[Segment, ...]
    add_special: bool
    max_tokens: int | None
    cut_left: bool
    size: int  # bytes of text
    pair: tuple[Segment, ...] = ()  # the second text, where there is one

    @property
    def field(self) -> str:
        """The input's path in the request, for errors that only encoding finds."""
        return _path(self.number)


def _path(index: int) -> str:
    return "input" if index < 0 else f"inputs[{index}]"


class Violations:
    """Collects all violations, so that a caller gets them at once."""

    def __init__(self) -> None:
        self._found: list[FieldViolation] = []

    def add(self, field: str, description: str) -> None:
        if len(self._found) < _MAX_VIOLATIONS:
            self._found.append(FieldViolation(field, description))

    def raise_any(self) -> None:
        """Raises INVALID_ARGUMENT if there are violations."""
        if self._found:
            raise invalid_argument(self._found)


class PlainTexts:
    """The inputs of a batch where each is one text that is not empty, of the policy TEXT, without truncation, and with
    the same `add_special`. Nearly all batches are such; they may have thousands of inputs, so the work for each is
    small."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.texts: list[str] = []
        self.sizes: list[int] = []  # bytes of each
        self.add_special = True

    def take(self, inputs: Sequence[pb.EncodeInput]) -> bool:
        """Adds inputs. Returns False where one of them is of another kind, or wrong; then none of them counts."""
        for message in inputs:
            plain = plain_text(message, self._longest)
            if plain is None:
                return False
            text, size, add_special = plain
            if add_special != self.add_special:
                if self.texts:
                    return False
                self.add_special = add_special
            self.texts.append(text)
            self.sizes.append(size)
        return True


def plain_text(message: pb.EncodeInput, longest: int) -> tuple[str, int, bool] | None:
    """Returns the text of an input that is one text of at most `longest` bytes and nothing else, as in `PlainTexts`,
    its bytes, and `add_special`; None for another input. Looks at one segment at most, however many there are."""
    segments = message.segments
    if len(segments) != 1 or message.pair or message.HasField("truncation"):
        return None
    segment = segments[0]
    text = segment.text
    size = len(text) if text.isascii() else len(text.encode())
    if not 0 < size <= longest or segment.special_tokens not in _TEXT_POLICIES or segment.parse_ids:
        return None
    return text, size, message.add_special or not message.HasField("add_special")


def have_little(inputs: Sequence[pb.EncodeInput]) -> bool:
    """Returns True when these have so few segments and ids that checking them all does not block others."""
    count = len(inputs)
    for message in inputs:
        count += len(message.segments) + len(message.pair)
        if count > _LITTLE:
            return False
        count += sum(len(segment.parse_ids) for each in (message.segments, message.pair) for segment in each)
    return count <= _LITTLE


def encode_jobs(inputs: Sequence[pb.EncodeInput], tokenizer: Tokenizer, settings: TokenizerSettings) -> list[EncodeJob]:
    """Returns the inputs of a batch. Raises ServiceError."""
    violations = Violations()
    jobs = [_encode_job(message, index, tokenizer, settings, violations) for index, message in enumerate(inputs)]
    violations.raise_any()
    return jobs


def read_batch(
    inputs: Sequence[pb.EncodeInput], tokenizer: Tokenizer, settings: TokenizerSettings, as_texts: bool
) -> PlainTexts | list[EncodeJob]:
    """Returns the inputs of a batch; with `as_texts` as PlainTexts, where all of them are such. Raises ServiceError."""
    plain = PlainTexts(settings.max_input_bytes)
    return plain if as_texts and plain.take(inputs) else encode_jobs(inputs, tokenizer, settings)


def encode_job(request: pb.EncodeRequest, tokenizer: Tokenizer, settings: TokenizerSettings) -> EncodeJob:
    """Returns the input of a single request. Raises ServiceError."""
    if not request.HasField("input"):
        raise invalid_argument([FieldViolation("input", "is required")])
    violations = Violations()
    job = _encode_job(request.input, -1, tokenizer, settings, violations)
    violations.raise_any()
    return job


def _encode_job(
    message: pb.EncodeInput, number: int, tokenizer: Tokenizer, settings: TokenizerSettings, violations: Violations
) -> EncodeJob:
    if not message.segments:
        violations.add(f"{_path(number)}.segments", "must have at least one segment")
    segments, size = _segments(message.segments, f"{_path(number)}.segments", tokenizer, violations)
    pair, more = _segments(message.pair, f"{_path(number)}.pair", tokenizer, violations)
    size += more
    if size > settings.max_input_bytes:
        raise resource_exhausted(
            f"{_path(number)}: {size} bytes of text; at most {settings.max_input_bytes} are taken in one input",
            reason="INPUT_TOO_LARGE",
            retry_after=None,
        )
    add_special = message.add_special if message.HasField("add_special") else True
    max_tokens: int | None = None
    cut_left = False
    if message.HasField("truncation"):
        truncation = message.truncation
        max_tokens = truncation.max_tokens
        counted = tokenizer.count_added_to_pairs if pair else tokenizer.count_added
        added = counted() if add_special else 0
        if max_tokens < max(1, added):
            violations.add(
                f"{_path(number)}.truncation.max_tokens",
                f"is {max_tokens}; at least {max(1, added)} is needed"
                + (", because add_special adds that many and they are never cut" if added > 1 else ""),
            )
        if truncation.side not in pb.TruncationSide.values():
            violations.add(f"{_path(number)}.truncation.side", f"has the unknown value {truncation.side}")
        cut_left = truncation.side == pb.TRUNCATION_SIDE_LEFT
    return EncodeJob(number, segments, add_special, max_tokens, cut_left, size, pair)


def _segments(
    messages: Sequence[pb.TextSegment], path: str, tokenizer: Tokenizer, violations: Violations
) -> tuple[tuple[Segment, ...], int]:
    """Returns the segments of a text, and its bytes."""
    segments: list[Segment] = []
    size = 0
    for index, segment in enumerate(messages):
        text = segment.text
        if text and segment.special_tokens in _TEXT_POLICIES and not segment.parse_ids:  # what most segments are
            size += len(text) if text.isascii() else len(text.encode())
            segments.append(Segment(text))
            continue
        place = f"{path}[{index}]"
        text, length = _text(segment, place, violations)
        size += length
        policy = _policy(segment, place, violations)
        segments.append(Segment(text, policy, _parse_ids(segment, place, tokenizer, violations)))
    return tuple(segments), size


def _text(segment: pb.TextSegment, place: str, violations: Violations) -> tuple[str, int]:
    match segment.WhichOneof("content"):
        case "text":
            return segment.text, len(segment.text.encode())
        case "text_bytes":
            raw = segment.text_bytes
            try:
                return raw.decode("utf-8"), len(raw)
            except UnicodeDecodeError as error:
                violations.add(f"{place}.text_bytes", f"is not valid UTF-8: {error.reason} at byte {error.start}")
                return "", len(raw)
        case _:
            violations.add(place, "must have text or text_bytes")
            return "", 0


def _policy(segment: pb.TextSegment, place: str, violations: Violations) -> Policy:
    value = segment.special_tokens or pb.SPECIAL_TOKEN_POLICY_TEXT
    try:
        return Policy(value)
    except ValueError:
        violations.add(f"{place}.special_tokens", f"has the unknown value {value}")
        return Policy.TEXT


def _parse_ids(segment: pb.TextSegment, place: str, tokenizer: Tokenizer, violations: Violations) -> frozenset[int]:
    listed = segment.special_tokens == pb.SPECIAL_TOKEN_POLICY_PARSE_LISTED
    if listed and not segment.parse_ids:
        violations.add(f"{place}.parse_ids", "is required with the policy PARSE_LISTED")
    if not listed and segment.parse_ids:
        violations.add(f"{place}.parse_ids", "is allowed only with the policy PARSE_LISTED")
        return frozenset()
    known: set[int] = set()
    for index, token_id in enumerate(segment.parse_ids):
        if token_id in known:
            continue
        if tokenizer.is_control(token_id):
            known.add(token_id)
        else:
            violations.add(f"{place}.parse_ids[{index}]", f"id {token_id} is not a control token")
    return frozenset(known)


class IdLists(NamedTuple):
    """The id lists of a request one behind the other. List n goes from `edges[n]` to `edges[n + 1]`."""

    ids: Ids
    edges: Places


def decode_inputs(inputs: Sequence[pb.DecodeInput], tokenizer: Tokenizer, settings: TokenizerSettings) -> IdLists:
    """Returns the id lists of a batch. Raises ServiceError."""
    check_batch(len(inputs), settings)
    return _id_lists(inputs, "inputs[{}].ids", tokenizer, settings)


def decode_input(request: pb.DecodeRequest, tokenizer: Tokenizer, settings: TokenizerSettings) -> IdLists:
    """Returns the ids of a single request as one list. Raises ServiceError."""
    if not request.HasField("input"):
        raise invalid_argument([FieldViolation("input", "is required")])
    return _id_lists([request.input], "input.ids", tokenizer, settings)


def _id_lists(
    messages: Sequence[pb.DecodeInput], path: str, tokenizer: Tokenizer, settings: TokenizerSettings
) -> IdLists:
    lists = [message.ids for message in messages]
    edges = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(list(map(len, lists)), out=edges[1:])
    if edges[-1] > settings.max_decode_ids:
        raise resource_exhausted(
            f"{edges[-1]} ids to decode; at most {settings.max_decode_ids} are taken in one call",
            reason="INPUT_TOO_LARGE",
            retry_after=None,
        )
    together = pb.DecodeInput().ids  # protobuf copies from list to list; Python would make an object of each id
    for each in lists:
        together.extend(each)
    ids = np.array(together, np.uint32)
    if len(ids) and ids.max() >= tokenizer.vocabulary_size:
        violations = Violations()
        for number, (begin, end) in enumerate(pairwise(edges.tolist())):
            check_ids(ids[begin:end], path.format(number), tokenizer, violations)
        violations.raise_any()
    return IdLists(ids, edges)


def check_ids(ids: Sequence[int] | Ids, field: str, tokenizer: Tokenizer, violations: Violations) -> None:
    """Adds a violation for the first id that the vocabulary does not have."""
    try:
        tokenizer.check_ids(ids)
    except TokenIdError as error:
        violations.add(
            f"{field}[{error.index}]",
            f"id {error.token_id} is out of the vocabulary, whose ids are 0 to {tokenizer.vocabulary_size - 1}",
        )


def check_stream_batch(request: pb.DecodeStreamRequest) -> None:
    """Raises ServiceError where the requests of a batch cannot come together."""
    violations = Violations()
    if len(request.batch) > MAX_STREAM_BATCH:
        violations.add("batch", f"has {len(request.batch)} entries; at most {MAX_STREAM_BATCH} are allowed")
    for field, _ in request.ListFields():
        if field.name != "batch":
            violations.add(field.name, "is not allowed beside `batch`")
    for index, each in enumerate(request.batch):
        if each.batch:
            violations.add(f"batch[{index}].batch", "is not allowed within a batch")
    violations.raise_any()


def check_open(message: pb.DecodeStreamOpen, tokenizer: Tokenizer, path: str) -> None:
    """Raises ServiceError where a stream's options are wrong; `path` is that of the message."""
    violations = Violations()
    if message.options.clean_spaces:
        violations.add(f"{path}.options.clean_spaces", "must be false: a stream never takes text back")
    if len(message.context_ids) <= _OPEN_LIMITS["context_ids"].bound:
        check_ids(list(message.context_ids), f"{path}.context_ids", tokenizer, violations)
    for each in limit_violations(message, _OPEN_LIMITS):
        violations.add(f"{path}.{each.field}", each.description)
    answer = message.answer
    if answer.format and answer.format not in FORMATS:
        violations.add(f"{path}.answer.format", f"is {answer.format[:64]!r}; known are {', '.join(FORMATS)}")
    for each in limit_violations(answer, _ANSWER_LIMITS):
        violations.add(f"{path}.answer.{each.field}", each.description)
    if (size := sum(len(tool.encode()) for tool in answer.tools)) > MAX_TOOLS_BYTES:
        violations.add(f"{path}.answer.tools", f"have {size} bytes in all; at most {MAX_TOOLS_BYTES} are taken")
    violations.raise_any()


def read_tools(texts: Sequence[str], path: str) -> list[dict[str, Any]]:
    """Returns tools that came as JSON. Raises ServiceError."""
    violations = Violations()
    found: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found.append(value)
        else:
            violations.add(f"{path}[{index}]", "is not a JSON object")
    violations.raise_any()
    return found


def check_batch(count: int, settings: TokenizerSettings) -> None:
    """Raises ServiceError where a batch has no inputs, or too many."""
    if not 1 <= count <= settings.max_batch_inputs:
        raise invalid_argument(
            [FieldViolation("inputs", f"has {count} entries; 1 to {settings.max_batch_inputs} are allowed")]
        )


def too_much_output(what: str, size: int, settings: TokenizerSettings) -> ServiceError:
    """Returns the error for an answer that is longer than a response may be."""
    return resource_exhausted(
        f"{what} of {size} bytes; at most {settings.max_output_bytes} are sent in one response",
        reason="OUTPUT_TOO_LARGE",
        retry_after=None,
    )
