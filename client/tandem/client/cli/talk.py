"""A conversation at a terminal: turns, slash commands, and what is left out when the context is full.

    transcript   all messages; /save writes them
    context      the system message, and the transcript from `first` on: what the model is shown

A turn is a user's message with its answer. An answer that is stopped stays as far as it came; after an error the
message is forgotten, and /retry sends it again. Where the model called tools, what is typed next is what they
gave, call by call, and then it answers.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tandem.client.answers import ToolCall
from tandem.client.async_client import AsyncClient
from tandem.client.cli.line_input import without_echo
from tandem.client.cli.terminal import (
    CommandError,
    TextStream,
    complain,
    errors,
    finish_words,
    harmless,
    output,
    print_statistics,
)
from tandem.client.errors import TandemError
from tandem.client.params import GenerateOptions
from tandem.client.plan import make_plan
from tandem.client.tools import tool_name
from tandem.client.types import ChatMessage, Conversation, GenerationResult

ANSWER_SHARE = 4  # a quarter of the context is kept free for an answer of unknown length
COMMANDS = {
    "/help": "this list",
    "/clear": "forget the conversation; the system message stays",
    "/system [TEXT]": "show the system message, or set it; - removes it",
    "/params [NAME=VALUE ...]": "show what differs from the model's defaults, or set it; NAME= resets",
    "/retry": "answer the last message again",
    "/continue": "go on with the last answer, which was stopped or as long as it may be",
    "/tokens [TEXT]": "count the tokens of the conversation, or show those of a text",
    "/tools [FILE]": "show the tools, or read them (a JSON list) from a file; - removes them",
    "/save FILE": "write the conversation, as JSON",
    "/load FILE": "read one, instead of this",
    "/exit": "leave, as Ctrl-D does",
}
KEYS = "Enter sends, Alt-Enter begins a line, Ctrl-C stops an answer; a message that begins with / is written //"


class Talk:
    """One conversation, and what is done with it."""

    def __init__(
        self,
        client: AsyncClient,
        empty: Conversation,
        system: str | None,
        wanted: GenerateOptions,
        *,
        statistics: bool = False,
    ) -> None:
        self.transcript: list[ChatMessage] = []
        self._client = client
        self._empty = empty
        self._system = system
        self._wanted = wanted
        unset: tuple[object, ...] = ("", [], None)
        self._given = {name for name, value in wanted.items() if value not in unset and value is not False}  # by flags
        self._given.discard("timeout")
        self._statistics = statistics
        self._first = 0  # in the transcript: messages before it are not shown to the model any more
        self._unanswered: ChatMessage | None = None
        self._model = ""
        self._context: int | None = None
        self._answering: asyncio.Task[GenerationResult] | None = None

    async def begin(self) -> None:
        """Asks what is served, and says it with how to leave. Raises TandemError, also where the template fails."""
        trial = replace(self._conversation(), messages=[*self._conversation().messages, ChatMessage("user", "Hello")])
        await self._client.encode_chat(trial, tokenizer=self._wanted.get("tokenizer", ""))
        models = [model for model in (await self._client.get_models()).values() if model is not None]
        if models:
            self._model, self._context = models[0].name, models[0].context_length or None
        context = f", {self._context} tokens of context" if self._context else ""
        name = Text(self._model or "a model that does not tell its name", style="bold")
        errors.print(Text.assemble(name, context, ". /help lists commands, Ctrl-D leaves."))

    def interrupt(self) -> bool:
        """Stops the answer that is being made, if there is one; returns whether there was."""
        return self._answering is not None and self._answering.cancel()

    async def take(self, line: str) -> bool:
        """Does what a line says; returns False when it says to leave. Errors are told, and the talk goes on."""
        try:
            if line.startswith("//"):
                await self.say(line[1:])
            elif line.startswith("/"):
                return await self._command(line)
            elif line.strip():
                await self.say(line)
        except (CommandError, TandemError) as error:
            complain(str(error))
        return True

    async def say(self, text: str) -> None:
        """Adds the user's message and its answer, which is shown as it comes. Raises TandemError; then the transcript
        is as before."""
        called = self._open_calls()
        message = ChatMessage("user", text)
        if called:
            message = ChatMessage("tool", text, name=called[0].name, tool_call_id=called[0].id)
        self.transcript.append(message)
        if len(called) > 1:
            _tell(f"and what does {called[1].name} give?")
            return
        self._unanswered = message
        try:
            answer = await self._answer(await self._fitting())
        except BaseException:
            self.transcript.pop()
            raise
        if answer.content or answer.tool_calls:
            self.transcript.append(answer)
            self._unanswered = None
        else:
            self.transcript.pop()
            errors.print(Text("no answer: the message is forgotten; /retry sends it again", style="dim"))
        _ask_for_results(answer)

    async def _continue(self, rest: str) -> None:
        last = self.transcript[-1] if self.transcript else None
        if last is None or last.role != "assistant" or last.tool_calls:
            raise CommandError("there is no answer to continue")
        more = await self._answer(replace(await self._fitting(), continue_final_message=True))
        text = (last.content or "") + (more.content or "")
        self.transcript[-1] = replace(last, content=text, tool_calls=more.tool_calls)
        _ask_for_results(more)

    def _open_calls(self) -> Sequence[ToolCall]:
        """Returns the calls at the end of the transcript of which it is not said yet what they gave."""
        results = 0
        while results < len(self.transcript) and self.transcript[-1 - results].role == "tool":
            results += 1
        asked = self.transcript[-1 - results] if results < len(self.transcript) else None
        return asked.tool_calls[results:] if asked is not None else ()

    # --- answers

    def _conversation(self) -> Conversation:
        system = [] if self._system is None else [ChatMessage("system", self._system)]
        return replace(self._empty, messages=[*system, *self.transcript[self._first :]])

    async def _fitting(self) -> Conversation:
        """Returns the conversation without the oldest turns that leave no room for an answer."""
        left_out = 0
        while self._context is not None:
            encoding = await self._client.encode_chat(
                self._conversation(), tokenizer=self._wanted.get("tokenizer", ""), timeout=self._wanted.get("timeout")
            )
            room = min(self._wanted.get("max_tokens") or self._context, self._context // ANSWER_SHARE)
            turns = [
                index for index in range(self._first + 1, len(self.transcript))
                if self.transcript[index].role == "user"
            ]  # fmt: skip
            if len(encoding) + room <= self._context or not turns:
                break
            self._first = turns[0]
            left_out += 1
        if left_out:
            words = f"the context is full: the oldest {'turn is' if left_out == 1 else f'{left_out} turns are'}"
            errors.print(Text(f"{words} not shown to the model any more", style="dim"))
        return self._conversation()

    async def _answer(self, conversation: Conversation) -> ChatMessage:
        """Shows an answer as it comes, and returns it: as far as it came when it is stopped."""
        screen = _Screen() if output().is_terminal else _Pipe()
        self._answering = asyncio.ensure_future(self._stream(conversation, screen))
        try:
            await asyncio.wait([self._answering])
            if self._answering.cancelled():
                errors.print(Text("stopped", style="dim"))
                return ChatMessage("assistant", screen.text)
            result = self._answering.result()
        except asyncio.CancelledError:
            self._answering.cancel()
            await asyncio.wait([self._answering])
            raise
        finally:
            self._answering = None
        if self._statistics:
            print_statistics(result)
        elif errors.is_terminal:
            errors.print(Text(_summary(result, self._context), style="dim"))
        for call in result.tool_calls:
            errors.print(Text(harmless(f"calls {call.name}({call.arguments})"), style="cyan"))
        return ChatMessage("assistant", screen.text or None, tool_calls=result.tool_calls)

    async def _stream(self, conversation: Conversation, screen: _Screen | _Pipe) -> GenerationResult:
        with without_echo(), screen:
            async with self._client.stream_chat(conversation, **self._wanted) as stream:
                async for chunk in stream:
                    if chunk.reasoning:
                        await screen.aside(chunk.reasoning)
                    await screen.show(chunk.content, len(chunk.ids))
            return stream.result

    # --- commands

    async def _command(self, line: str) -> bool:
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if name in ("/exit", "/quit", "/bye"):
            return False
        handlers: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/clear": self._clear,
            "/system": self._set_system,
            "/params": self._params,
            "/retry": self._retry,
            "/continue": self._continue,
            "/tokens": self._tokens,
            "/tools": self._tools,
            "/save": self._save,
            "/load": self._load,
        }
        handler = handlers.get(name)
        if handler is None:
            raise CommandError(f"there is no command {name}; /help lists them")
        await handler(rest)
        return True

    async def _help(self, rest: str) -> None:
        width = max(map(len, COMMANDS))
        for name, words in COMMANDS.items():
            errors.print(Text.assemble((f"{name:<{width}}  ", "bold"), words))
        errors.print(Text(KEYS, style="dim"))

    async def _clear(self, rest: str) -> None:
        self.transcript.clear()
        self._first = 0
        self._unanswered = None
        _tell("the conversation is empty")

    async def _set_system(self, rest: str) -> None:
        if rest:
            self._system = None if rest == "-" else rest
        _tell("no system message" if self._system is None else f"system: {self._system}")

    async def _params(self, rest: str) -> None:
        changed: dict[str, Any] = dict(self._wanted)
        for word in _words(rest):
            name, equals, value = word.partition("=")
            if not equals or not name.isidentifier():
                raise CommandError(f"{word!r} is not NAME=VALUE, such as temperature=0.7")
            if value:
                changed[name] = _value(value)
                self._given.add(name)
            else:
                changed.pop(name, None)
                self._given.discard(name)
        checked: GenerateOptions = changed  # type: ignore[assignment]  # make_plan checks it
        try:
            make_plan(replace(self._empty, messages=[ChatMessage("user", "")]), checked, None)  # with its tools
        except TypeError as error:
            raise CommandError(str(error)) from None
        self._wanted = checked
        shown = " ".join(
            f"{name}={json.dumps(changed[name], default=str)}" for name in sorted(self._given & {*changed})
        )
        _tell(shown or "the model's defaults")

    async def _retry(self, rest: str) -> None:
        if self._unanswered is not None:
            await self.say(self._unanswered.content or "")
            return
        while self.transcript and self.transcript[-1].role != "user":
            self.transcript.pop()
        if not self.transcript:
            raise CommandError("there is nothing to answer again")
        said = self.transcript.pop()
        self._first = min(self._first, len(self.transcript))
        await self.say(said.content or "")

    async def _tokens(self, rest: str) -> None:
        name = self._wanted.get("tokenizer", "")
        if rest:
            encoding = await self._client.encode(rest, tokenizer=name, add_special=False, pieces=True)
            pieces = [repr(harmless(piece.decode(errors="replace"))) for piece in encoding.pieces]
            _tell(f"{len(encoding)}: {' '.join(f'{i}={p}' for i, p in zip(encoding.ids, pieces, strict=True))}")
            return
        if not self._conversation().messages:
            raise CommandError("the conversation is empty")
        chat = await self._client.encode_chat(self._conversation(), tokenizer=name, content_ranges=True)
        content = sum(end - start for start, end in chat.content_ranges)
        of = f" of {self._context}" if self._context else ""
        _tell(f"{len(chat)}{of} tokens: {content} of messages, {len(chat) - content} of the template")

    async def _tools(self, rest: str) -> None:
        if rest == "-":
            self._empty = replace(self._empty, tools=[])
        elif rest:
            self._empty = replace(self._empty, tools=read_tools(rest))
        names = [tool_name(tool) or "?" for tool in self._empty.tools]
        _tell(f"tools: {', '.join(names)}" if names else "no tools")

    async def _save(self, rest: str) -> None:
        if not rest:
            raise CommandError("/save needs a file")
        system = [] if self._system is None else [ChatMessage("system", self._system)]
        messages = [_as_json(message) for message in (*system, *self.transcript)]
        _write_json(rest, {"messages": messages})
        _tell(f"{len(messages)} messages are in {rest}")

    async def _load(self, rest: str) -> None:
        if not rest:
            raise CommandError("/load needs a file")
        found = _read_json(rest)
        listed = found.get("messages") if isinstance(found, dict) else found
        if not isinstance(listed, list) or not all(_is_message(each) for each in listed):
            raise CommandError(f"{rest}: has no list of messages with role and content")
        messages = [_from_json(each) for each in listed]
        system = messages.pop(0).content if messages and messages[0].role == "system" else None
        self._unanswered = messages.pop() if messages and messages[-1].role == "user" else None
        self._system, self.transcript, self._first = system, messages, 0
        _tell(f"{len(listed)} messages" + ("; /retry answers the last" if self._unanswered else ""))


class _Pipe:
    """An answer in a pipe or a file: its text and nothing else."""

    def __init__(self) -> None:
        self.text = ""
        self._out = TextStream()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._out.write("\n")

    async def aside(self, text: str) -> None:
        """Shows no reasoning."""

    async def show(self, text: str, tokens: int) -> None:
        self.text += text
        self._out.write(text)
        await self._out.flushed()


class _Screen:
    """An answer on a terminal: finished lines scroll by; below them are the line that grows, and the speed."""

    def __init__(self) -> None:
        self.text = ""
        self._console = output()
        self._live = Live(console=self._console, refresh_per_second=10, transient=True)
        self._line = ""  # that grows
        self._style = ""
        self._tokens = 0
        self._began = 0.0

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        if self._line:
            self._console.print(Text(self._line, style=self._style))

    async def aside(self, text: str) -> None:
        """Shows reasoning, dimmed."""
        self._write(text, "dim")

    async def show(self, text: str, tokens: int) -> None:
        self.text += text
        self._tokens += tokens
        self._write(text, "" if text else self._style)

    def _write(self, text: str, style: str) -> None:
        now = time.monotonic()
        self._began = self._began or now
        if style != self._style and self._line:
            self._console.print(Text(self._line, style=self._style))
            self._line = ""
        self._style = style
        *lines, self._line = (self._line + harmless(text)).split("\n")
        # What grows must stay smaller than the screen, which is drawn again each time.
        longest = self._console.width * max(1, self._console.height // 3)
        while len(self._line) > longest:
            lines.append(self._line[: self._console.width])
            self._line = self._line[self._console.width :]
        for line in lines:
            self._console.print(Text(line, style=style))
        speed = f", {(self._tokens - 1) / (now - self._began):.0f} tokens/s" if now > self._began else ""
        status = Text(f"{self._tokens} tokens{speed}. Ctrl-C stops.", style="dim")
        self._live.update(Group(Text(self._line, style=style), status))


def _summary(result: GenerationResult, context: int | None) -> str:
    usage, speed = result.usage, result.tokens_per_second
    used = usage.prompt_tokens + usage.completion_tokens
    return ", ".join(
        [
            f"{usage.completion_tokens} tokens",
            *([f"{speed:.0f} tokens/s"] if speed is not None else []),
            f"{used}{f' of {context}' if context else ''} in the context",
            f"ended by {finish_words(result)}",
        ]
    )


def _ask_for_results(answer: ChatMessage) -> None:
    if answer.tool_calls:
        _tell(f"what does {answer.tool_calls[0].name} give? /retry asks again")


def _tell(words: str) -> None:
    errors.print(Text(harmless(words), style="dim"))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CommandError(f"cannot be read: {error}") from None


def _value(text: str) -> Any:
    """Returns a number, a flag, a list or an object as JSON has it; anything else is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_tools(name: str) -> list[dict[str, Any]]:
    """Returns the tools of a file. Raises CommandError."""
    tools = _read_json(name)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise CommandError(f"{name}: is not a JSON list of objects")
    return tools


def _read_json(name: str) -> Any:
    path = Path(name).expanduser()
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: is not JSON: {error}") from None


def _write_json(name: str, value: object) -> None:
    """Writes a file whole or not at all."""
    path = Path(name).expanduser()
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", "utf-8")
        partial.replace(path)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # no name, or a lone surrogate in what was typed
        raise CommandError(f"{path}: {error}") from None


def _as_json(message: ChatMessage) -> dict[str, Any]:
    """Returns it as OpenAI's clients have it."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": str(call.arguments)}}
        for call in message.tool_calls
    ]
    found = {"role": message.role, "content": message.content, "name": message.name,
             "tool_calls": calls or None, "tool_call_id": message.tool_call_id}  # fmt: skip
    return {name: value for name, value in found.items() if value is not None or name == "content"}


def _from_json(value: Mapping[str, Any]) -> ChatMessage:
    calls = [
        ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id") or "")
        for call in value.get("tool_calls") or ()
    ]
    return ChatMessage(value["role"], value["content"], value.get("name"), calls, value.get("tool_call_id"))


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        return False
    texts = all(isinstance(value.get(name), str | None) for name in ("name", "tool_call_id"))
    return texts and (isinstance(value.get("content"), str) or (bool(calls) and value.get("content", "") is None))


def _is_call(value: object) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(name), str) for name in ("name", "arguments"))
