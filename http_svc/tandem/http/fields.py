"""What a request may hold besides what its interface names: the sampling parameters of the contract, and our own.

A body is decoded into a struct at once, so that a field of the wrong type or name is refused by its place before
anything is made of it. Values are checked by the SDK, with the limits of the contract. A field of the type None is
known and not served: null, which many clients send for what was not given, is taken, and all else refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from tandem.client import Choices, GenerateOptions, Grammar, Guide, JsonSchema, Regex, StructuralTag
from tandem.client.sampling import LIMITS
from tandem.http.errors import ApiError, from_decoding, wrong
from tandem.limits.fields import Kind

MAX_CONTAINERS = 1 << 16  # lists and objects of a body
MAX_JSON_BYTES = 256 << 10  # of tools and template arguments together: Python walks through them

_TYPES: Mapping[Kind, Any] = {
    Kind.NUMBER: float | None,
    Kind.INTEGER: int | None,
    Kind.FLAG: bool | None,
    Kind.IDS: list[int] | None,
    Kind.SEQUENCES: list[list[int]] | None,
    Kind.BIASES: dict[int, float] | None,
}

Json = msgspec.Raw
ABSENT = msgspec.Raw()

F = TypeVar("F", bound=msgspec.Struct)
T = TypeVar("T")


class GuidedFields(msgspec.Struct, forbid_unknown_fields=True):
    """One of these, by the contract's names (docs/guided.md)."""

    json_schema: Json = ABSENT
    regex: str | None = None
    choices: list[str] | None = None
    grammar: str | None = None
    structural_tag: Json = ABSENT

    def guide(self) -> Guide:
        """As the SDK has it."""
        guides: list[Guide] = []
        if is_given(self.json_schema):
            guides.append(JsonSchema(text_of(self.json_schema)))
        if self.regex is not None:
            guides.append(Regex(self.regex))
        if self.choices is not None:
            guides.append(Choices(self.choices))
        if self.grammar is not None:
            guides.append(Grammar(self.grammar))
        if is_given(self.structural_tag):
            guides.append(StructuralTag(text_of(self.structural_tag)))
        if len(guides) != 1:
            raise wrong("guided", f"must have one of {', '.join(self.__struct_fields__)}")
        return guides[0]


class OwnFields(msgspec.Struct, kw_only=True):
    """Options of the SDK that are taken under their own names; sampling parameters join them in `decoder`."""

    preset: str | None = None
    strategy: str | None = None
    dry_breakers: str | list[str] | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    stop_sequences: list[list[int]] | None = None
    ignore_eos: bool | None = None
    include_stop: bool | None = None
    graphemes: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    bypass_cache: bool | None = None
    draft_tokens: int | None = None
    prompt_lookup: int | None = None
    max_reasoning_tokens: int | None = None
    guided: GuidedFields | None = None

    def own_options(self) -> dict[str, Any]:
        """The keywords of the SDK for what was given of these and of the sampling parameters."""
        given = {name: getattr(self, name) for name in (*LIMITS, *OWN)}
        if self.guided is not None:
            given["guided"] = self.guided.guide()
        return {name: value for name, value in given.items() if value is not None}


OWN = OwnFields.__struct_fields__


class GenerationFields(OwnFields, kw_only=True):
    """What chat and completions have in common."""

    model: str
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: str | None = None  # requests with one key go to the same worker
    # Ignored on purpose: they are about accounts and storage, and clients send them.
    user: Json = ABSENT
    metadata: Json = ABSENT
    store: Json = ABSENT
    service_tier: Json = ABSENT
    safety_identifier: Json = ABSENT
    prompt_cache_retention: Json = ABSENT
    prompt_cache_options: Json = ABSENT
    moderation: None = None

    def options(self) -> GenerateOptions:
        """The keywords of the SDK that this request stands for, those of its own interface aside."""
        found = self.own_options()
        found |= {name: value for name in ("n", "stop") if (value := getattr(self, name)) is not None}
        if self.prompt_cache_key:
            found["routing_key"] = self.prompt_cache_key
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "is for streams: set stream")
        if self.continuous_usage and not self.include_usage:
            raise wrong("stream_options.continuous_usage_stats", "needs include_usage to be true")
        return cast(GenerateOptions, found)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk of a stream tells the usage until then."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Of a stream; obfuscation is ignored."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's
    include_obfuscation: bool | None = None


def decoder(cls: type[F]) -> Callable[[bytes], F]:
    """Makes `cls` of a body, with the contract's sampling parameters besides its own fields. Raises ApiError."""
    more: list[tuple[str, Any, Any]] = []
    if issubclass(cls, OwnFields):
        more = [(name, _TYPES[limit.kind], None) for name, limit in LIMITS.items()]
    whole = msgspec.defstruct(cls.__name__, more, bases=(cls,), kw_only=True, forbid_unknown_fields=True)
    decode = msgspec.json.Decoder(whole).decode

    def made(body: bytes) -> F:
        try:
            if not body.isascii():
                body.decode()  # fields that are kept as they are, or passed over, are not looked at below
            check_containers(body, "the body")
            return cast(F, decode(body))
        except RecursionError:
            raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
        except msgspec.MsgspecError as error:
            raise from_decoding(error) from None
        except UnicodeDecodeError:
            raise ApiError(400, "the body is not valid UTF-8", code="invalid_json") from None

    return made


def check_containers(text: bytes, what: str) -> None:
    """Raises ApiError for JSON that would take Python long to make: a MiB of empty lists takes it a third of a second,
    in which nobody else is served. What strings hold does not count, and is looked at only where it matters."""
    if _containers(text) > MAX_CONTAINERS and _containers(_without_strings(text)) > MAX_CONTAINERS:
        raise ApiError(413, f"{what} has more than {MAX_CONTAINERS} lists and objects", code="request_too_large")


def _containers(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _without_strings(text: bytes) -> bytes:
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def is_given(value: Json) -> bool:
    """Whether a field has a value."""
    raw = bytes(value)
    return bool(raw) and raw != b"null"


def text_of(value: Json) -> str:
    """JSON as it was written."""
    return bytes(value).decode()


def object_of(value: Json, param: str) -> dict[str, Any]:
    """A JSON object; an empty one where it is not given."""
    if not is_given(value):
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise wrong(param, f"must be an object: {error}") from None


def decoded(given: Json, kind: type[T], param: str) -> T:
    """A part of a body that was kept as it is. Raises ApiError."""
    try:
        return msgspec.json.decode(given, type=kind)
    except msgspec.MsgspecError as error:
        raise from_decoding(error, param) from None


def check_size(values: list[Json], param: str) -> None:
    """Raises ApiError where these are too large."""
    if sum(len(bytes(value)) for value in values) > MAX_JSON_BYTES:
        raise wrong(param, f"must have at most {MAX_JSON_BYTES} bytes", "request_too_large")
