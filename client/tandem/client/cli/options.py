"""Flags that several commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tandem.client.cli.terminal import CommandError, is_terminal
from tandem.client.environment import TOKENIZER_VARIABLE, WORKER_VARIABLE
from tandem.client.guided import Choices, Grammar, Guide, JsonSchema, Regex, StructuralTag

HTTP_VARIABLE = "OPENAI_BASE_URL"  # where OpenAI's clients look

_CONNECTION, _SERVICES, _SEVERAL = "Connection", "Services", "Several outputs"

N = Annotated[int, typer.Option("--n", help="Number of outputs.", rich_help_panel=_SEVERAL)]
BestOf = Annotated[
    int | None,
    typer.Option("--best-of", help="Generate this many outputs and show the best --n.", rich_help_panel=_SEVERAL),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option("--length-penalty", help="Rank by total logprob / length^this; default 1.", rich_help_panel=_SEVERAL),
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
        "--model",
        "-m",
        help="Checkpoint folder, or the name of a pulled model; default: the demo model.",
        rich_help_panel=_SERVICES,
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


def guide(
    json_schema: Path | None,
    regex: str | None,
    choices: list[str] | None,
    grammar: Path | None,
    structural_tag: Path | None,
) -> Guide | None:
    """Returns the guide that the flags set; at most one may be given."""
    given = {"--json-schema": json_schema, "--regex": regex, "--choice": choices or None, "--grammar": grammar}
    given["--structural-tag"] = structural_tag
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise CommandError(f"give one of {', '.join(named)}", exit_code=2)
    if json_schema is not None:
        return JsonSchema(_read("--json-schema", json_schema))
    if grammar is not None:
        return Grammar(_read("--grammar", grammar))
    if structural_tag is not None:
        return StructuralTag(_read("--structural-tag", structural_tag))
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
    if text is None and is_terminal(sys.stdin):
        raise CommandError("give a text, or pipe one into standard input", exit_code=2)
    try:
        return standard_input().decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"standard input is not valid UTF-8 (byte {error.start})") from None


def standard_input() -> bytes:
    """Returns all of standard input."""
    if sys.stdin is None:
        raise CommandError("standard input is closed")
    return sys.stdin.buffer.read()


def required_tokenizer(address: str) -> str:
    if not address:
        raise CommandError(
            f"no tokenizer address: give --tokenizer-address HOST:PORT or set {TOKENIZER_VARIABLE}", exit_code=2
        )
    return address
