"""`tandem generate`: one completion from services that run somewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tandem.client.answers import AnswerEvent, ReasoningEvent, ToolCallEvent
from tandem.client.async_client import AsyncClient
from tandem.client.cli import options as o
from tandem.client.cli.batch import answer_all, as_dictionary, read_prompts
from tandem.client.cli.connection_flags import ConnectionFlags, with_connection_flags
from tandem.client.cli.generation_flags import GenerationFlags, with_generation_flags
from tandem.client.cli.services import interruptible
from tandem.client.cli.terminal import CommandError, TextStream, print_statistics, reporting_errors
from tandem.client.params import GenerateOptions
from tandem.client.types import Conversation, GenerationResult

_LOGPROBS = "Logprobs"
_MANY = "Many prompts"


@with_generation_flags()
@with_connection_flags
def generate(
    connection: ConnectionFlags,
    flags: GenerationFlags,
    prompt: Annotated[
        str | None, typer.Argument(help='The text to continue; "-" (or none in a pipe): standard input.')
    ] = None,
    tokenizer_address: o.TokenizerAddress = "",
    worker_address: o.WorkerAddresses = None,
    n: o.N = 1,
    best_of: o.BestOf = None,
    length_penalty: o.LengthPenalty = None,
    special: o.Special = "text",
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="With --json: logprob of each token.", rich_help_panel=_LOGPROBS)
    ] = False,
    top_logprobs: Annotated[
        int | None,
        typer.Option(
            "--top-logprobs",
            help="Logprobs of the most probable tokens at each position, up to 64.",
            rich_help_panel=_LOGPROBS,
        ),
    ] = None,
    logprob_id: Annotated[
        list[int] | None,
        typer.Option(
            "--logprob-id", help="Logprob of this id at each position; repeatable.", rich_help_panel=_LOGPROBS
        ),
    ] = None,
    processed_logprobs: Annotated[
        bool,
        typer.Option("--processed-logprobs", help="Logprobs after all sampling stages.", rich_help_panel=_LOGPROBS),
    ] = False,
    prompt_logprobs: Annotated[
        bool,
        typer.Option(
            "--prompt-logprobs",
            help="Logprobs of the prompt; --max-tokens 0 to generate nothing.",
            rich_help_panel=_LOGPROBS,
        ),
    ] = False,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="With --json: text and bytes of each token.", rich_help_panel=_LOGPROBS)
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help='A prompt a line; of a .jsonl file, objects with "prompt" and options of the SDK. An object a line '
            "comes as each has ended.",
            rich_help_panel=_MANY,
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="With --prompts: how many run at a time.", rich_help_panel=_MANY)
    ] = 64,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all results at the end.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print statistics on standard error at the end.")] = False,
) -> None:
    """Generate a continuation of a text and stream it."""
    with reporting_errors():
        tokenizer = o.required_tokenizer(tokenizer_address)
        workers = o.worker_addresses(worker_address)
        credentials = connection()
        text = o.text_argument(prompt) if prompts is None else ""
        if prompts is not None and prompt is not None:
            raise CommandError("give a prompt or --prompts", exit_code=2)
        wanted = flags()
        wanted["special_tokens"] = special  # type: ignore[typeddict-item]  # checked with everything else
        wanted["logprobs"], wanted["top_logprobs"], wanted["logprob_ids"] = logprobs, top_logprobs, logprob_id or []
        wanted["processed_logprobs"], wanted["prompt_logprobs"] = processed_logprobs, prompt_logprobs
        wanted["echo"], wanted["pieces"] = echo, pieces
        wanted["n"], wanted["best_of"], wanted["length_penalty"] = n, best_of, length_penalty
        if prompts is not None:
            client = AsyncClient(tokenizer, workers, credentials=credentials)
            if not interruptible(answer_all(client, read_prompts(prompts), wanted, concurrency)):
                raise typer.Exit(1)
            return
        result = interruptible(
            _generate(AsyncClient(tokenizer, workers, credentials=credentials), text, wanted, as_json)
        )
        if stats:
            print_statistics(result)


async def _generate(client: AsyncClient, prompt: str, wanted: GenerateOptions, as_json: bool) -> GenerationResult:
    async with client:
        if not as_json and wanted.get("n", 1) > 1:
            return await _several(client, prompt, wanted)
        if not as_json:
            return await stream_to_terminal(client, prompt, wanted, show_prompt=False)
        result = await client.generate(prompt, **wanted)
        out = TextStream()
        out.write(json.dumps(as_dictionary(result), ensure_ascii=False) + "\n")
        await out.flushed()
        return result


async def _several(client: AsyncClient, prompt: str, wanted: GenerateOptions) -> GenerationResult:
    """Prints several outputs. They grow at the same time, so each is written whole, under its number."""
    result = await client.generate(prompt, **wanted)
    out = TextStream()
    for output in result.outputs:
        out.write(f"--- {output.index + 1} of {len(result.outputs)}\n", dim=True)
        out.write(output.text)
        out.end_line()
        if not out.terminal:
            out.write("\n")
    await out.flushed()
    return result


async def stream_to_terminal(
    client: AsyncClient, prompt: str | Conversation, wanted: GenerateOptions, *, show_prompt: bool
) -> GenerationResult:
    """Writes the answer to standard output as it comes; on a terminal with the prompt before it where that is asked
    for."""
    out = TextStream()
    answer = _Answer(out)
    async with client.stream(prompt, **wanted) as stream:
        if show_prompt and out.terminal and isinstance(prompt, str):
            out.write(prompt, dim=True)
        try:
            async for chunk in stream:
                if isinstance(prompt, Conversation):
                    answer.write(chunk.events)
                else:
                    out.write(chunk.text)
        finally:
            out.end_line()
        await out.flushed()
    return stream.result


class _Answer:
    """Writes what an answer says: on a terminal its reasoning too, dimmed; calls of tools in a line each."""

    def __init__(self, out: TextStream) -> None:
        self._out = out
        self._last: type[AnswerEvent] | None = None

    def write(self, events: Sequence[AnswerEvent]) -> None:
        for event in events:
            if isinstance(event, ReasoningEvent) and not self._out.terminal:
                continue
            if self._last not in (None, type(event)) or (isinstance(event, ToolCallEvent) and event.name):
                self._out.end_line()
            self._last = type(event)
            if isinstance(event, ToolCallEvent):
                self._out.write(f"{event.name} " if event.name else "", dim=True)
                self._out.write(event.arguments)
            else:
                self._out.write(event.text, dim=isinstance(event, ReasoningEvent))
