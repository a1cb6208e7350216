"""Flags that several commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tandem.client.cli.terminal import CommandError
from tandem.client.guided import Choices, Grammar, Guide, JsonSchema, Regex

TOKENIZER_VARIABLE = "TANDEM_TOKENIZER_ADDRESS"
WORKER_VARIABLE = "TANDEM_WORKER_ADDRESS"
HTTP_VARIABLE = "OPENAI_BASE_URL"  # where OpenAI's clients look

_STOPPING, _CONNECTION, _SERVICES = "Stopping", "Connection", "Services"
_SEVERAL, _GUIDED, _SPECULATION = "Several outputs", "Guided decoding", "Speculation"

MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", "-n", help="Maximum number of tokens to generate.", rich_help_panel=_STOPPING),
]
MinTokens = Annotated[
    int | None, typer.Option("--min-tokens", help="Minimum number of tokens to generate.", rich_help_panel=_STOPPING)
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Stop string; repeatable. \\n and \\t are unescaped.", rich_help_panel=_STOPPING),
]
StopIds = Annotated[
    list[int] | None,
    typer.Option("--stop-id", help="Stop token id; repeatable.", rich_help_panel=_STOPPING),
]
StopSequences = Annotated[
    list[str] | None,
    typer.Option("--stop-sequence", help="Stop sequence of ids, such as 5,6; repeatable.", rich_help_panel=_STOPPING),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Ignore the model's end-of-sequence ids.", rich_help_panel=_STOPPING)
]
IncludeStop = Annotated[
    bool, typer.Option("--include-stop", help="Include the matched stop in the text.", rich_help_panel=_STOPPING)
]
N = Annotated[int, typer.Option("--n", help="Number of outputs.", rich_help_panel=_SEVERAL)]
BestOf = Annotated[
    int | None,
    typer.Option("--best-of", help="Generate this many outputs and show the best --n.", rich_help_panel=_SEVERAL),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option("--length-penalty", help="Rank by total logprob / length^this; default 1.", rich_help_panel=_SEVERAL),
]
JsonSchemaFile = Annotated[
    Path | None,
    typer.Option("--json-schema", help="File with the JSON schema of the answer.", rich_help_panel=_GUIDED),
]
RegexPattern = Annotated[
    str | None,
    typer.Option("--regex", help="Regular expression that the whole answer matches.", rich_help_panel=_GUIDED),
]
Choice = Annotated[
    list[str] | None, typer.Option("--choice", help="A possible answer; repeatable.", rich_help_panel=_GUIDED)
]
GrammarFile = Annotated[
    Path | None, typer.Option("--grammar", help="File with a Lark grammar of the answer.", rich_help_panel=_GUIDED)
]
DraftTokens = Annotated[
    int | None,
    typer.Option(
        "--draft-tokens",
        help="Maximum number of draft tokens per step; 0: no speculation.",
        rich_help_panel=_SPECULATION,
    ),
]
PromptLookup = Annotated[
    int | None,
    typer.Option("--prompt-lookup", help="Length of the n-gram for prompt lookup.", rich_help_panel=_SPECULATION),
]
Special = Annotated[
    str,
    typer.Option(
        "--special",
        help="Special tokens in the text: text (control tokens are characters), plain (all are), parse, or reject.",
    ),
]
ChatSpecial = Annotated[
    str,
    typer.Option(
        "--special", help="Special tokens in messages: plain (all are plain characters), or text (control tokens are)."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", help="Timeout of the whole command in seconds; 0: no limit.", rich_help_panel=_CONNECTION
    ),
]
TokenizerAddress = Annotated[
    str,
    typer.Option(
        "--tokenizer-address",
        help="HOST:PORT of the tokenizer service.",
        envvar=TOKENIZER_VARIABLE,
        rich_help_panel=_CONNECTION,
    ),
]
WorkerAddresses = Annotated[
    list[str] | None,
    typer.Option(
        "--worker-address",
        help="HOST:PORT of a worker, or dns:///NAME:PORT for all addresses of a name; repeatable. "
        f"Commas separate several in {WORKER_VARIABLE}.",
        rich_help_panel=_CONNECTION,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        "--model", "-m", help="Checkpoint folder; default: models/demo of the source tree.", rich_help_panel=_SERVICES
    ),
]
TokenizerPath = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="Tokenizer file; default: the model folder's.", rich_help_panel=_SERVICES),
]
Quantize = Annotated[
    Literal["auto", "none", "int8", "int4", "fp8"] | None,
    typer.Option(
        "--quantize",
        help="Weights: as in the checkpoint (auto), not quantized (none), or quantized to int8, int4 or fp8 at load.",
        rich_help_panel=_SERVICES,
    ),
]
WorkerFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--worker-flag",
        help="Flag for the worker, such as --worker-flag=--threads=4; repeatable.",
        rich_help_panel=_SERVICES,
    ),
]
TokenizerFlags = Annotated[
    list[str] | None,
    typer.Option("--tokenizer-flag", help="Flag for the tokenizer service; repeatable.", rich_help_panel=_SERVICES),
]
HttpFlags = Annotated[
    list[str] | None,
    typer.Option("--http-flag", help="Flag for the HTTP server; repeatable.", rich_help_panel=_SERVICES),
]


def guide(json_schema: Path | None, regex: str | None, choices: list[str] | None, grammar: Path | None) -> Guide | None:
    """Returns the guide that the flags set; at most one may be given."""
    given = {"--json-schema": json_schema, "--regex": regex, "--choice": choices or None, "--grammar": grammar}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise CommandError(f"give one of {', '.join(named)}", exit_code=2)
    if json_schema is not None:
        return JsonSchema(_read("--json-schema", json_schema))
    if grammar is not None:
        return Grammar(_read("--grammar", grammar))
    if regex is not None:
        return Regex(regex)
    return Choices(choices) if choices else None


def _read(flag: str, path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise CommandError(f"{flag} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{flag} {path}: not valid UTF-8 (byte {error.start})") from None


def worker_flags(quantize: str | None, others: list[str] | None) -> list[str]:
    """Returns the flags that the worker is started with, beside its model and addresses; the caller's own flags come
    last and win."""
    return [*([f"--quantize={quantize}"] if quantize else []), *(others or [])]


def given_workers(given: list[str] | None) -> list[str]:
    """Returns the addresses from the flags, or else from the environment."""
    return given or [one.strip() for one in os.environ.get(WORKER_VARIABLE, "").split(",") if one.strip()]


def worker_addresses(given: list[str] | None) -> list[str]:
    """Returns the addresses from the flags, or else from the environment. Having none is a usage error."""
    addresses = given_workers(given)
    if not addresses:
        raise CommandError(f"no worker address: give --worker-address HOST:PORT or set {WORKER_VARIABLE}", exit_code=2)
    return addresses


def unescaped(text: str) -> str:
    r"""Resolves escapes such as \n, which are hard to type in a shell."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def text_argument(text: str | None, default: str | None = None) -> str:
    """Returns the text itself; for "-", and without a text where there is no default, that of standard input."""
    text = default if text is None else text
    if text is not None and text != "-":
        return text
    if text is None and sys.stdin.isatty():
        raise CommandError("give a text, or pipe one into standard input", exit_code=2)
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"standard input is not valid UTF-8 (byte {error.start})") from None


def required_tokenizer(address: str) -> str:
    if not address:
        raise CommandError(
            f"no tokenizer address: give --tokenizer-address HOST:PORT or set {TOKENIZER_VARIABLE}", exit_code=2
        )
    return address
