"""What a caller wants of an answer to a conversation: calls of tools, how long it may think, and a record to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from tandem.client.errors import FieldViolation
from tandem.client.tools import Tool, tool_name, tool_schema
from tandem.client.validation import UINT32_MAX, Flag, Integer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

# "auto": the model decides; "none": it sees no tools; "required": it calls one or several; names: it calls these.
ToolChoice = Literal["auto", "none", "required"] | Sequence[str]


class ResponseFormat(Protocol):
    """A class that is made of JSON and tells its schema, as pydantic's models."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """Returns the schema."""
        ...

    @classmethod
    def model_validate_json(cls, json_data: str) -> Any:
        """Makes one of JSON. Raises ValueError."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """The options of a plan that the tokenizer service has to say something to."""

    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_reasoning_tokens: int | None = None

    @property
    def shows_tools(self) -> bool:
        """True where the model sees the tools."""
        return self.tool_choice != "none"

    @property
    def is_forced(self) -> bool:
        """True where the answer has to call a tool."""
        return self.tool_choice not in ("auto", "none")

    def choice(
        self, tools: Sequence[Tool], *, behind_reasoning: bool, content_schema: str = ""
    ) -> pb.CallChoice | None:
        """Returns the message; None where the answer is as free as the model is. With `content_schema`, an answer that
        calls no tool is JSON of it."""
        strict = self.shows_tools and any(map(_is_strict, tools))
        free = self.parallel_tool_calls and not strict and not content_schema
        if not self.is_forced and (not tools or not self.shows_tools or free):
            return None
        return pb.CallChoice(
            required=self.is_forced,
            names=() if isinstance(self.tool_choice, str) else self.tool_choice,
            single=not self.parallel_tool_calls,
            behind_reasoning=behind_reasoning,
            content_schema=content_schema,
        )

    def violations(self, given: Mapping[str, Any], tools: Sequence[Tool], *, is_chat: bool) -> Iterator[FieldViolation]:
        """Yields what is wrong with these, and between them and other options."""
        choice = self.tool_choice
        names = not isinstance(choice, str) and isinstance(choice, Sequence) and bool(choice)
        if choice not in ("auto", "none", "required") and not (names and all(isinstance(name, str) for name in choice)):
            yield FieldViolation("tool_choice", "must be 'auto', 'none', 'required' or a list of names of tools")
            return
        yield from Flag().problems("parallel_tool_calls", self.parallel_tool_calls)
        if self.max_reasoning_tokens is not None:
            yield from Integer(0, UINT32_MAX).problems("max_reasoning_tokens", self.max_reasoning_tokens)
            if given.get("reasoning") is not None:
                yield FieldViolation("max_reasoning_tokens", "cannot be beside reasoning, which has its own")
            elif not is_chat:
                yield FieldViolation("max_reasoning_tokens", "needs a conversation; with other prompts use reasoning")
        if self.is_forced:
            known = [tool_name(tool) for tool in tools]
            missing = [] if isinstance(choice, str) else [name for name in choice if name not in known]
            if missing:
                yield FieldViolation("tool_choice", f"names no tool: {missing[0]!r}")
            elif not is_chat or not tools:
                yield FieldViolation("tool_choice", "needs a conversation with tools")
            if given.get("guided") is not None:
                yield FieldViolation("guided", "cannot be beside tool_choice: the calls are guided")
            if given.get("answer_format") == "none" or not given.get("detokenize", True):
                yield FieldViolation("tool_choice", "needs an answer that is parsed")


def _is_strict(tool: Tool) -> bool:
    schema = tool_schema(tool)
    inner = schema.get("function", schema)
    return schema.get("strict") is True or (isinstance(inner, Mapping) and inner.get("strict") is True)
