"""Whom a load asks: our services through the SDK, or any server with OpenAI's interface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tandem.client.async_client import AsyncClient
from tandem.client.errors import StatusError, TandemError
from tandem.client.params import GenerateOptions
from tandem.client.types import ChatMessage, Prompt
from tandem.client.types import Conversation as Chat

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a conversation so far."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """One request: everything that was said so far, or as one text where the target does not chat."""

    said: Sequence[Said]
    max_tokens: int
    seed: int

    @property
    def text(self) -> str:
        """All of it in a row."""
        return "".join(each.text for each in self.said)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and what it cost."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Refused(Exception):  # noqa: N818  # one that is counted, and ends nothing
    """A request that got no answer; its words are a short kind, such as "RESOURCE_EXHAUSTED" or "HTTP 429"."""


class Target(Protocol):
    """Somebody who answers. `arrived` is called whenever tokens have come."""

    name: str

    async def ask(self, question: Question, arrived: Callable[[], None]) -> Answered:
        """Returns the answer; raises Refused."""


class Services:
    """Tokenizer and workers by the SDK, which chooses the worker."""

    def __init__(self, client: AsyncClient, name: str, *, chat: bool, fixed: GenerateOptions) -> None:
        self.name = name
        self._client, self._chat, self._fixed = client, chat, fixed

    async def ask(self, question: Question, arrived: Callable[[], None]) -> Answered:
        """Implements Target."""
        prompt: Prompt = question.text
        if self._chat:
            prompt = Chat([ChatMessage(each.role, each.text) for each in question.said])
        options: GenerateOptions = {"max_tokens": question.max_tokens, "seed": question.seed, **self._fixed}
        try:
            async with self._client.stream(prompt, **options) as stream:
                async for chunk in stream:
                    if chunk.ids:
                        arrived()
            usage = stream.result.usage
        except StatusError as error:
            raise Refused(error.code.name) from error
        except TandemError as error:
            raise Refused(type(error).__name__) from error
        cached = usage.cached_prompt_tokens or 0
        return Answered(stream.result.text, usage.prompt_tokens, cached, usage.completion_tokens)


class OpenAIServer:
    """A server with `/completions` and `/chat/completions`, by streams of server-sent events."""

    def __init__(
        self, http: httpx.AsyncClient, base_url: str, model: str, *, chat: bool, fixed: dict[str, Any]
    ) -> None:
        self.name = base_url
        self._http, self._url = http, base_url.rstrip("/") + ("/chat/completions" if chat else "/completions")
        self._model, self._chat, self._fixed = model, chat, fixed

    async def ask(self, question: Question, arrived: Callable[[], None]) -> Answered:
        """Implements Target."""
        import httpx

        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": question.max_tokens,
            "seed": question.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._fixed,
        }
        if self._chat:
            body["messages"] = [{"role": each.role, "content": each.text} for each in question.said]
        else:
            body["prompt"] = question.text
        text, usage = "", None
        try:
            async with self._http.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    raise Refused(f"HTTP {response.status_code}")
                async for data in _events(response.aiter_lines()):
                    with _reading("an event"):
                        event = json.loads(data)
                        if "error" in event:
                            raise Refused("an error within the stream")
                        usage = event.get("usage") or usage
                        come = [new for choice in event.get("choices", ()) if (new := self._new(choice))]
                    for new in come:
                        text += new
                        arrived()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Refused(type(error).__name__) from error
        if usage is None:
            raise Refused("no usage at the end of the stream")
        with _reading("a usage"):
            cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            return Answered(text, int(usage["prompt_tokens"]), cached, int(usage["completion_tokens"]))

    def _new(self, choice: dict[str, Any]) -> str:
        said = choice.get("delta", {}) if self._chat else choice
        return "".join([said.get("reasoning_content") or "", said.get("content") or said.get("text") or ""])


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            yield data


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """A server may say anything: it is counted against it, and ends nothing."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Refused(f"{what} that cannot be read") from error


@asynccontextmanager
async def openai_server(
    base_url: str, model: str, key: str, timeout: float, *, chat: bool, fixed: dict[str, Any]
) -> AsyncIterator[OpenAIServer]:
    """Opens the connections; without a `model` the first that the server lists. Raises Refused, or ImportError where
    httpx is not installed."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers) as http:
        if not model:
            try:
                listed = await http.get(base_url.rstrip("/") + "/models")
                listed.raise_for_status()
                model = str(listed.json()["data"][0]["id"])
            except (httpx.HTTPError, httpx.InvalidURL, LookupError, ValueError, TypeError) as error:
                why = type(error).__name__
                if isinstance(error, httpx.HTTPStatusError):
                    why = f"HTTP {error.response.status_code}"
                raise Refused(f"it does not list its models ({why}): give --model, or another --base-url") from error
        yield OpenAIServer(http, base_url, model, chat=chat, fixed=fixed)
