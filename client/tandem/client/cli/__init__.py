"""The `tandem` command line."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from tandem.client.cli.bench import bench
from tandem.client.cli.chat import chat
from tandem.client.cli.generate import generate
from tandem.client.cli.models import convert, inspect
from tandem.client.cli.operate import COMMANDS
from tandem.client.cli.pull import pull
from tandem.client.cli.run import run, serve
from tandem.client.cli.show import show
from tandem.client.cli.status import status
from tandem.client.cli.tokens import detokenize, tokenize, vocabulary
from tandem.client.cli.top import top

app = typer.Typer(
    name="tandem",
    help="Run, serve and use Llama-family language models: a tokenizer service and inference workers over gRPC.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run,
    chat,
    serve,
    generate,
    tokenize,
    detokenize,
    vocabulary,
    show,
    status,
    top,
    bench,
    pull,
    *COMMANDS,
    inspect,
    convert,
):
    app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"tandem {version('tandem-llm')}")
        except PackageNotFoundError:
            typer.echo("tandem (not installed)")
        raise typer.Exit


@app.callback()
def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point of the `tandem` command. Exit codes: 1 for errors, 2 for usage, 128 + n for signal n."""
    app()
