"""`tandem tokenize`, `tandem detokenize` and `tandem vocabulary`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.text import Text

from tandem.client.async_client import AsyncClient
from tandem.client.cli import options as o
from tandem.client.cli.connection_flags import ConnectionFlags, tokenizer_client, with_connection_flags
from tandem.client.cli.services import interruptible
from tandem.client.cli.terminal import CommandError, TextStream, harmless, output, reporting_errors
from tandem.client.types import EncodePairOptions, EncodePairsOptions, Encoding, Vocabulary

_COLOURS = ("on dark_blue", "on dark_green", "on dark_red", "on purple4", "on dark_cyan")

_LINES_AT_ONCE = 4096
_PAIRS_AT_ONCE = 256


@with_connection_flags
def tokenize(
    connection: ConnectionFlags,
    text: Annotated[str | None, typer.Argument(help='The text; "-" (or none in a pipe): standard input.')] = None,
    tokenizer_address: o.TokenizerAddress = "",
    name: Annotated[str, typer.Option("--name", help="Name of the tokenizer; default: the service's default.")] = "",
    special: o.Special = "text",
    pair: Annotated[str | None, typer.Option("--pair", help="A second text, encoded with the first as a pair.")] = None,
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", help='Pairs, a JSON list of two texts a line; "-": standard input. A line for each.'),
    ] = None,
    add_special: Annotated[
        bool, typer.Option("--add-special/--no-add-special", help="Add BOS and EOS as the model expects.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    ids_only: Annotated[bool, typer.Option("--ids", help="Only the ids, in one line.")] = False,
    timeout: o.Timeout = 60.0,
) -> None:
    """Show the tokens of a text: ids, pieces and offsets."""
    with reporting_errors():
        client = tokenizer_client(tokenizer_address, connection)
        wanted: EncodePairOptions = {
            "tokenizer": name,
            "special_tokens": special,  # type: ignore[typeddict-item]  # checked with everything else
            "add_special": add_special,
            "offsets": True,
            "pieces": True,
            "timeout": timeout or None,
        }
        if pairs is not None:
            if text is not None or pair is not None:
                raise CommandError("give --pairs, or a text and its --pair, not both", exit_code=2)
            of_all = cast(EncodePairsOptions, wanted)
            interruptible(_encode_pairs(client, _read_pairs(pairs), of_all, ids_only))
            return
        content = o.text_argument(text)
        if pair is not None:
            wanted["pair"] = pair
        encoding = interruptible(_encode(client, content, wanted))
        if as_json:
            _plain(json.dumps(_dictionary(encoding), ensure_ascii=False))
        elif ids_only:
            _plain(" ".join(map(str, encoding.ids)))
        else:
            _show(content + (pair or ""), encoding)


@with_connection_flags
def detokenize(
    connection: ConnectionFlags,
    ids: Annotated[list[int], typer.Argument(help="Token ids.")],
    tokenizer_address: o.TokenizerAddress = "",
    name: Annotated[str, typer.Option("--name", help="Name of the tokenizer; default: the service's default.")] = "",
    remove_special: Annotated[
        bool, typer.Option("--remove-special", help="Drop a leading BOS and a trailing EOS.")
    ] = False,
    unparse_special: Annotated[
        bool, typer.Option("--unparse-special", help="Show control tokens as their text.")
    ] = False,
    timeout: o.Timeout = 60.0,
) -> None:
    """Show the text of token ids, as its exact bytes."""
    with reporting_errors():
        client = tokenizer_client(tokenizer_address, connection)
        interruptible(_decode(client, ids, name, remove_special, unparse_special, timeout or None))


@with_connection_flags
def vocabulary(
    connection: ConnectionFlags,
    tokenizer_address: o.TokenizerAddress = "",
    name: Annotated[str, typer.Option("--name", help="Name of the tokenizer; default: the service's default.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    timeout: o.Timeout = 60.0,
) -> None:
    """List every token that a tokenizer has: id, type, score and bytes."""
    with reporting_errors():
        client = tokenizer_client(tokenizer_address, connection)
        interruptible(_list(client, name, as_json, timeout or None))


async def _encode(client: AsyncClient, text: str, wanted: EncodePairOptions) -> Encoding:
    async with client:
        return await client.encode(text, **wanted)


async def _encode_pairs(
    client: AsyncClient, pairs: Sequence[tuple[str, str]], wanted: EncodePairsOptions, ids_only: bool
) -> None:
    out = TextStream()
    async with client:
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            some = pairs[start : start + _PAIRS_AT_ONCE]
            wanted["pairs"] = [second for _, second in some]
            for encoding in await client.encode_batch([first for first, _ in some], **wanted):
                line = " ".join(map(str, encoding.ids)) if ids_only else json.dumps(_dictionary(encoding))
                out.write(line + "\n")
            await out.flushed()


def _read_pairs(path: Path) -> list[tuple[str, str]]:
    """Returns the pairs of a file. Raises CommandError with the line."""
    try:
        lines = o.standard_input().splitlines() if str(path) == "-" else path.read_bytes().splitlines()
    except OSError as error:
        raise CommandError(f"--pairs {path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            pair = json.loads(line)
        except (ValueError, RecursionError):
            pair = None
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise CommandError(f"--pairs {path}: line {number} is no JSON list of two texts")
        found.append((pair[0], pair[1]))
    return found


async def _decode(
    client: AsyncClient, ids: list[int], name: str, remove_special: bool, unparse_special: bool, timeout: float | None
) -> None:
    async with client:
        raw = await client.decode_bytes(
            ids, tokenizer=name, remove_special=remove_special, unparse_special=unparse_special, timeout=timeout
        )
    out = TextStream()
    if out.terminal:
        out.write(raw.decode(errors="replace"))
        out.end_line()
    else:
        out.write_bytes(raw)
    await out.flushed()


async def _list(client: AsyncClient, name: str, as_json: bool, timeout: float | None) -> None:
    async with client:
        found = await client.get_vocabulary(name, timeout=timeout)
    out = TextStream()
    for first in range(0, len(found.pieces), _LINES_AT_ONCE):
        ids = range(first, min(first + _LINES_AT_ONCE, len(found.pieces)))
        out.write("".join((_json_line if as_json else _table_line)(found, token) for token in ids))
    await out.flushed()


def _json_line(found: Vocabulary, token: int) -> str:
    piece = found.pieces[token]
    row: dict[str, object] = {"id": token, "type": found.types[token], "piece": piece.decode(errors="replace")}
    row["piece_hex"] = piece.hex()
    if found.scores:
        row["score"] = found.scores[token]
    return json.dumps(row, ensure_ascii=False) + "\n"


def _table_line(found: Vocabulary, token: int) -> str:
    score = f"  {found.scores[token]:>10.4g}" if found.scores else ""
    return f"{token:>7}  {found.types[token]:<12}{score}  {_shown(found.pieces[token])}\n"


def _shown(piece: bytes) -> str:
    """Returns the piece as text where it is valid UTF-8, else as bytes."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return repr(piece)
    return repr(text if text.isprintable() else piece)


def _show(text: str, encoding: Encoding) -> None:
    """Prints the text with a background for each token, then one line for each token."""
    out = output()
    pieces = [harmless(piece.decode(errors="replace")) for piece in encoding.pieces]
    if out.is_terminal:
        line = Text()
        for piece, colour in zip(pieces, cycle(_COLOURS), strict=False):
            line.append(piece, style=colour)
        out.print(line)
    width = len(str(max(encoding.ids, default=0)))
    for index, (token, piece) in enumerate(zip(encoding.ids, pieces, strict=True)):
        row = Text(f"{encoding.byte_offsets[index]:>6}  {token:>{width}}  ")
        row.append(repr(piece), style=_COLOURS[index % len(_COLOURS)])
        out.print(row)
    size = len(text.encode())
    out.print(Text(f"{len(encoding.ids)} tokens, {len(text)} characters, {size} bytes", style="dim"))


def _dictionary(encoding: Encoding) -> dict[str, object]:
    return {
        "ids": encoding.ids,
        "pieces": [piece.decode(errors="replace") for piece in encoding.pieces],
        "pieces_hex": [piece.hex() for piece in encoding.pieces],
        "byte_offsets": encoding.byte_offsets,
        "byte_ends": encoding.byte_ends,
        "code_point_offsets": encoding.code_point_offsets,
        "code_point_ends": encoding.code_point_ends,
        **({"type_ids": encoding.type_ids} if encoding.type_ids else {}),
        "tokens": len(encoding.ids),
        "fingerprint": encoding.fingerprint,
    }


def _plain(line: str) -> None:
    output().print(Text(line))
