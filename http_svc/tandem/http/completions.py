"""POST /v1/completions: texts or token ids go on.

The control tokens of a text are plain characters unless the caller says else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.client import (
    AsyncStream,
    Chunk,
    GenerateOptions,
    GenerationResult,
    Output,
    Prompt,
    TandemError,
    Usage,
    Vocabulary,
)
from tandem.http.answers import RunningUsage, UsageBody, finish_reason, usage_of, usage_until
from tandem.http.call import Call, body_of, call_of
from tandem.http.errors import wrong
from tandem.http.fields import GenerationFields, decoder
from tandem.http.logprobs import CompletionLogprobs
from tandem.http.sse import HOLE, Events, EventStream, Relay, Told, cut, event, filled
from tandem.http.upstream import Upstream

MAX_PROMPTS = 128
MAX_CHOICES = 1024  # of all prompts together
DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionFields(GenerationFields, kw_only=True):
    """The body of a request. Streams of several prompts and their logprobs come as they are made."""

    prompt: str | list[str | int | list[int]]
    max_tokens: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    length_penalty: float | None = None
    special_tokens: str | None = None
    add_special: bool | None = None
    suffix: None = None

    def prompts(self) -> list[Prompt]:
        """One or several. Raises ApiError."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise wrong("prompt", "must not be empty")
        kinds = {type(each) for each in given}
        if kinds == {int}:
            return [cast(list[int], given)]
        if len(kinds) > 1:
            raise wrong("prompt", "must be a text, ids, a list of texts or a list of lists of ids")
        if len(given) > MAX_PROMPTS:
            raise wrong("prompt", f"must have at most {MAX_PROMPTS} elements, not {len(given)}")
        if (self.n or 1) * len(given) > MAX_CHOICES:
            raise wrong("n", f"must be at most {MAX_CHOICES // len(given)} with {len(given)} prompts")
        return cast(list[Prompt], given)

    @property
    def is_batch(self) -> bool:
        """Whether the prompt is a list of prompts, of one perhaps."""
        return not isinstance(self.prompt, str) and not isinstance(self.prompt[0], int)

    def generation(self) -> GenerateOptions:
        """The keywords of the SDK. Raises ApiError."""
        found = self.options()
        found["max_tokens"] = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        for name in ("best_of", "length_penalty", "special_tokens", "add_special", "echo"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.logprobs is not None:
            found["logprobs"] = True
            found["top_logprobs"] = self.logprobs or None
            if self.echo and self.stream:
                raise wrong("stream", "cannot be true with both echo and logprobs", "not_served")
            if self.echo and not found.get("stop"):
                # Who scores a text has one token generated and takes it off: an EOS, which no text shows, is one too.
                found.setdefault("include_stop", True)
        if self.echo and (self.logprobs is not None or self.max_tokens == 0):
            found["prompt_logprobs"] = True  # also what allows that nothing is generated
        return found


read_completion = decoder(CompletionFields)


class Choice(msgspec.Struct):
    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, omit_defaults=True):
    """A whole answer, or a chunk of one."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[Choice | msgspec.Raw]  # those of a whole answer are encoded one by one: they may be large
    usage: UsageBody | RunningUsage | msgspec.UnsetType | None = msgspec.UNSET


class Completions:
    """The endpoint."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def create(self, request: Request) -> Response:
        """The answer."""
        call, fields = call_of(request), read_completion(await body_of(request))
        call.stream = bool(fields.stream)
        prompts, options = fields.prompts(), fields.generation()
        call.names |= {"prompts": "prompt", "top_logprobs": "logprobs", "routing_key": "prompt_cache_key"}
        if fields.is_batch and len(prompts) == 1:
            call.names["prompt"] = "prompt[0]"
        await self._upstream.check_model(fields.model, call)
        options |= cast(GenerateOptions, self._upstream.options(call, fields.model, fields.cache_salt or ""))
        vocabulary = await self._upstream.vocabulary() if fields.logprobs is not None else None
        answer = _Answers(call, fields, vocabulary)
        client = self._upstream.client
        if fields.stream:
            streams: list[AsyncStream] = []
            for place, prompt in enumerate(prompts):
                own = cast(GenerateOptions, {**options, "request_id": f"{call.request_id}-{place}"})
                try:
                    streams.append(client.stream(prompt, **own))
                except TandemError as error:
                    error.prompt_index = place if len(prompts) > 1 else None
                    raise
            return EventStream(request, answer.events(streams))
        if fields.is_batch:
            results = await client.generate_batch(prompts, **options)
        else:
            results = [await client.generate(prompts[0], **options)]
        return Response(msgspec.json.encode(await answer.whole(results)), media_type="application/json")


class _Answers:
    """Those to all prompts of a request; choices are numbered through."""

    def __init__(self, call: Call, fields: CompletionFields, vocabulary: Vocabulary | None) -> None:
        self._call = call
        self._id = f"cmpl-{call.request_id}"
        self._created = int(time.time())
        self._fields = fields
        self._vocabulary = vocabulary
        self._n = fields.n or 1
        self._counts = fields.continuous_usage
        self._told: RunningUsage | None = None  # in each chunk of a stream, where that was asked for
        self._around: dict[int, tuple[bytes, bytes]] = {}  # what is around the text of a choice

    async def whole(self, results: Sequence[GenerationResult]) -> Completion:
        self._call.usage = _sum([result.usage for result in results])
        choices = []
        for place, result in enumerate(results):
            for output in result.outputs:
                index, logprobs = place * self._n + output.index, await self._logprobs(result, output)
                choice = Choice(index, output.text, logprobs, finish_reason(output))
                choices.append(msgspec.Raw(msgspec.json.encode(choice)))
        return self._completion(choices, usage_of(self._call.usage))

    async def _logprobs(self, result: GenerationResult, output: Output) -> dict[str, Any] | None:
        if output.logprobs is None or self._vocabulary is None:
            return None
        told = CompletionLogprobs(self._vocabulary, self._fields.logprobs or 0)
        ids, logprobs, top = output.output_ids, list[float | None](output.logprobs), output.top_logprobs
        prompt = result.prompt_logprobs
        if self._fields.echo and prompt is not None:
            ids, logprobs = [*result.prompt_ids, *ids], [*prompt.logprobs, *logprobs]
            top = [*prompt.top_logprobs, *top] if prompt.top_logprobs is not None and top is not None else None
        return await told.part(ids, logprobs, top, output.text)

    async def events(self, streams: Sequence[AsyncStream]) -> Events:
        """What comes of all prompts, and why each choice ended; at the end the usage where it was asked for."""
        tellers = [
            CompletionLogprobs(self._vocabulary, self._fields.logprobs or 0)
            for _ in range(len(streams) * self._n)
            if self._vocabulary is not None
        ]

        def tell(place: int, chunk: Chunk | None) -> Told:
            if chunk is None:
                return b"".join(map(partial(self._end, place), streams[place].result.outputs))
            index = place * self._n + chunk.index
            if self._counts:
                before = 0 if self._told is None else self._told.completion_tokens
                self._told = usage_until(sum(len(each.prompt_ids) for each in streams), before + len(chunk.ids))
            if chunk.logprobs:
                return partial(self._scored, index, chunk, tellers[index])
            return self._text(index, chunk.text) if chunk.text else b""

        async with AsyncExitStack() as stack:
            for stream in streams:
                await stack.enter_async_context(stream)
            yield Relay(streams, tell)
            self._call.usage = _sum([stream.result.usage for stream in streams])
        if self._fields.include_usage:
            yield self._chunk([], usage_of(self._call.usage))

    def _text(self, index: int, text: str) -> bytes:
        if self._counts:
            return self._chunk([Choice(index, text)])
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = cut(self._chunk([Choice(index, HOLE)]))
        return filled(around, text)

    async def _scored(self, index: int, chunk: Chunk, teller: CompletionLogprobs) -> bytes:
        assert chunk.logprobs is not None
        logprobs = await teller.part(chunk.ids, chunk.logprobs, chunk.top_logprobs, chunk.text)
        return self._chunk([Choice(index, chunk.text, logprobs)])

    def _end(self, place: int, output: Output) -> bytes:
        return self._chunk([Choice(place * self._n + output.index, "", finish_reason=finish_reason(output))])

    def _chunk(self, choices: list[Choice], usage: UsageBody | None = None) -> bytes:
        """`usage` is there, as null, in all chunks of a stream that ends with one."""
        return event(self._completion(choices, usage or self._told if self._fields.include_usage else msgspec.UNSET))

    def _completion(
        self, choices: Sequence[Choice | msgspec.Raw], usage: UsageBody | RunningUsage | msgspec.UnsetType | None
    ) -> Completion:
        return Completion(self._id, "text_completion", self._created, self._fields.model, choices, usage)


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_prompt_tokens=sum(usage.cached_prompt_tokens or 0 for usage in usages),
    )
