"""`tandem chat`: a conversation with a model, or the prompt that its chat template makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from tandem.client.async_client import AsyncClient
from tandem.client.cli import options as o
from tandem.client.cli.connection_flags import CONNECTION_FLAGS, ConnectionFlags, with_connection_flags
from tandem.client.cli.generate import stream_to_terminal
from tandem.client.cli.generation_flags import GenerationFlags, with_generation_flags
from tandem.client.cli.line_input import default_history, typed_lines
from tandem.client.cli.run import print_line, progress_on_terminal
from tandem.client.cli.services import ServicePlan, find_model, interruptible, running_services
from tandem.client.cli.talk import COMMANDS, Talk, read_tools
from tandem.client.cli.terminal import CommandError, harmless, is_terminal, output, print_statistics, reporting_errors
from tandem.client.errors import FailedPreconditionError
from tandem.client.params import GenerateOptions
from tandem.client.types import ChatEncoding, ChatMessage, Conversation

T = TypeVar("T")

_TOOLS = "Tools"
_TEMPLATE_STYLE, _CONTENT_STYLE = "cyan", "bold yellow"


@with_generation_flags()
@with_connection_flags
def chat(
    context: typer.Context,
    connection: ConnectionFlags,
    flags: GenerationFlags,
    message: Annotated[
        str | None,
        typer.Argument(
            help='One message and its answer; "-" (or none in a pipe): standard input. None: a conversation.'
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System message at the beginning.")] = None,
    begin: Annotated[
        str | None,
        typer.Option("--begin", help="The beginning of the answer to one message, with which the model goes on."),
    ] = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Show the rendered prompt and its tokens instead of an answer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --show-prompt: print one JSON object.")] = False,
    chat_template: Annotated[
        Path | None, typer.Option("--chat-template", help="A Jinja file to use instead of the model's own template.")
    ] = None,
    special: o.ChatSpecial = "plain",
    tools: Annotated[
        Path | None,
        typer.Option("--tools", help="A JSON list of tools that the model may call.", rich_help_panel=_TOOLS),
    ] = None,
    tool_choice: Annotated[
        list[str] | None,
        typer.Option(
            "--tool-choice",
            help="auto, none, required, or the name of a tool that must be called; names are repeatable.",
            rich_help_panel=_TOOLS,
        ),
    ] = None,
    one_call: Annotated[
        bool, typer.Option("--one-call", help="At most one call of a tool.", rich_help_panel=_TOOLS)
    ] = False,
    max_reasoning_tokens: Annotated[
        int | None,
        typer.Option("--max-reasoning-tokens", help="Tokens of reasoning after which the model must answer."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the tokenizer; default: the service's default.")] = "",
    model: o.Model = None,
    tokenizer: o.TokenizerPath = None,
    quantize: o.Quantize = None,
    worker_flag: o.WorkerFlags = None,
    tokenizer_flag: o.TokenizerFlags = None,
    tokenizer_address: o.TokenizerAddress = "",
    worker_address: o.WorkerAddresses = None,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            help='File that remembers what was typed; "": none. Default: tandem/chat_history of the state folder.',
        ),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print statistics on standard error after each answer.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of services started here.")] = False,
) -> None:
    """Chat with a model, on running services or on services started for it."""
    with reporting_errors():
        template = "" if chat_template is None else _read_template(chat_template)
        first = None if message is None and is_terminal(sys.stdin) and not show_prompt else o.text_argument(message)
        if begin is not None and first is None and not show_prompt:
            raise CommandError("--begin is for the answer to one message, and there is none", exit_code=2)
        begun = [] if begin is None else [ChatMessage("assistant", begin)]
        wanted = flags()
        wanted["tokenizer"] = name
        if tool_choice:
            alone = len(tool_choice) == 1 and tool_choice[0] in ("auto", "none", "required")
            wanted["tool_choice"] = tool_choice[0] if alone else tool_choice
        if one_call:
            wanted["parallel_tool_calls"] = False
        if max_reasoning_tokens is not None:
            wanted["max_reasoning_tokens"] = max_reasoning_tokens
        messages = [] if system is None else [ChatMessage("system", system)]
        talks: list[Talk] = []  # at most one, once it has begun
        empty = Conversation(
            [],
            tools=[] if tools is None else read_tools(str(tools)),
            chat_template=template,
            continue_final_message=bool(begun),
            special_tokens=special,  # type: ignore[arg-type]  # checked later
        )

        async def work(client: AsyncClient) -> None:
            if show_prompt:
                conversation = replace(empty, messages=[*messages, ChatMessage("user", first or ""), *begun])
                encoding = await client.encode_chat(
                    conversation, tokenizer=name, rendered_text=True, content_ranges=True, pieces=True,
                    timeout=wanted["timeout"],
                )  # fmt: skip
                (_print_json if as_json else _print_prompt)(encoding)
            elif first is not None:
                conversation = replace(empty, messages=[*messages, ChatMessage("user", first), *begun])
                await _answer_once(client, conversation, wanted, stats)
            else:
                talk = Talk(client, empty, system, wanted, statistics=stats)
                talks.append(talk)
                await _converse(talk, None if history == "" else Path(history or default_history()))

        if model is None and (tokenizer_address or o.given_workers(worker_address)):
            workers = [] if show_prompt else o.worker_addresses(worker_address)
            credentials = connection()
            address = o.required_tokenizer(tokenizer_address)
            client = AsyncClient(address, workers, credentials=credentials)
            interruptible(_with_template_errors(_at(client, work)), lambda: any(talk.interrupt() for talk in talks))
            return
        _refuse_flags_of_running_services(context)
        folder, tokenizer_path = find_model(model, tokenizer)
        plan = ServicePlan(
            model=folder,
            tokenizer=tokenizer_path,
            log_level="info" if verbose else "warning",
            worker_flags=o.worker_flags(quantize, worker_flag),
            tokenizer_flags=tokenizer_flag or (),
            with_worker=not show_prompt,
        )
        interruptible(
            _with_template_errors(_started(plan, work, verbose)), lambda: any(talk.interrupt() for talk in talks)
        )


def _refuse_flags_of_running_services(context: typer.Context) -> None:
    """Refuses flags that connect to running services. Their environment variables may be meant for other commands; a
    flag is not."""
    names = ("tokenizer_address", "worker_address", *CONNECTION_FLAGS)
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [
        f"--{name.replace('_', '-')}"
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    ]
    if given:
        words = "is for services that run" if len(given) == 1 else "are for services that run"
        raise CommandError(f"{', '.join(given)} {words}, and here both would be started", exit_code=2)


async def _at(client: AsyncClient, work: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async with client:
        await work(client)


async def _started(plan: ServicePlan, work: Callable[[AsyncClient], Coroutine[Any, Any, None]], verbose: bool) -> None:
    with progress_on_terminal(spinner=not verbose) as progress:
        async with running_services(plan, progress=progress, on_line=print_line if verbose else None) as services:
            progress("")
            workers = [services.worker_address] if services.worker_address else []
            async with AsyncClient(services.tokenizer_address, workers) as client:
                await services.run(work(client))
            progress("stopping")


async def _with_template_errors(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except FailedPreconditionError as error:
        if error.reason != "NO_CHAT_TEMPLATE":
            raise
        raise CommandError(
            "this model has no chat template, so it was most likely not trained to chat: give one with "
            "--chat-template FILE, or let `tandem run` or `tandem generate` continue a text"
        ) from None


async def _converse(talk: Talk, history: Path | None) -> None:
    """Holds a conversation at the terminal until the end of the input."""
    await talk.begin()
    names = [name.partition(" ")[0] for name in COMMANDS]
    async with aclosing(typed_lines(history, names)) as lines:
        async for line in lines:
            if not await talk.take(line):
                return


async def _answer_once(client: AsyncClient, conversation: Conversation, wanted: GenerateOptions, stats: bool) -> None:
    result = await stream_to_terminal(client, conversation, wanted, show_prompt=False)
    if stats:
        print_statistics(result)


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--chat-template {file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}") from None


def _is_content(encoding: ChatEncoding) -> list[bool]:
    found = [False] * len(encoding.ids)
    for start, end in encoding.content_ranges:
        found[start:end] = [True] * (end - start)
    return found


def _print_prompt(encoding: ChatEncoding) -> None:
    """Prints the prompt in two colours, then one line for each token, then their number."""
    out = output()
    content = _is_content(encoding)
    pieces = [harmless(piece.decode(errors="replace")) for piece in encoding.pieces]
    if out.is_terminal:
        line = Text()
        for piece, inside in zip(pieces, content, strict=True):
            line.append(piece, style=_CONTENT_STYLE if inside else _TEMPLATE_STYLE)
        out.print(line)
    width = len(str(max(encoding.ids, default=0)))
    for index, (token, piece, inside) in enumerate(zip(encoding.ids, pieces, content, strict=True)):
        row = Text(f"{index:>6}  {token:>{width}}  {'content ' if inside else 'template'}  ")
        row.append(repr(piece), style=_CONTENT_STYLE if inside else _TEMPLATE_STYLE)
        out.print(row)
    count = sum(content)
    total = len(encoding.ids)
    words = f"{total} tokens: {count} content, {total - count} template; {len(encoding.rendered_text)} characters"
    out.print(Text(words, style="dim"))


def _print_json(encoding: ChatEncoding) -> None:
    shown = {
        "rendered_text": encoding.rendered_text,
        "ids": encoding.ids,
        "pieces": [piece.decode(errors="replace") for piece in encoding.pieces],
        "pieces_hex": [piece.hex() for piece in encoding.pieces],
        "content_ranges": encoding.content_ranges,
        "tokens": len(encoding.ids),
        "fingerprint": encoding.fingerprint,
    }
    output().print(Text(json.dumps(shown, ensure_ascii=False)))
