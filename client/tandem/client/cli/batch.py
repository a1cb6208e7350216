"""Many prompts of a file: what came of each as a line of JSON, and a bar on standard error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tandem.client.async_client import AsyncClient
from tandem.client.cli.terminal import CommandError, TextStream, errors
from tandem.client.params import GenerateOptions
from tandem.client.types import GenerationResult

Asked = tuple[str, GenerateOptions]


def read_prompts(path: Path) -> list[Asked]:
    """Returns the prompts of a file, each with options of its own. Raises CommandError with the line."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise CommandError(f"--prompts {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"--prompts {path}: not valid UTF-8 (byte {error.start})") from None
    if path.suffix != ".jsonl":
        return [(line, {}) for line in lines]
    found: list[Asked] = []
    for number, line in enumerate(lines, 1):
        try:
            asked = json.loads(line)
        except ValueError:
            asked = None
        if not isinstance(asked, dict) or not isinstance(asked.get("prompt"), str):
            raise CommandError(f'--prompts {path}: line {number} is no object with a text as "prompt"')
        unknown = sorted(asked.keys() - {"prompt"} - GenerateOptions.__optional_keys__)
        if unknown:
            raise CommandError(f"--prompts {path}: line {number} has an unknown option: {unknown[0]}")
        found.append((asked.pop("prompt"), cast(GenerateOptions, asked)))
    return found


async def answer_all(client: AsyncClient, prompts: Sequence[Asked], wanted: GenerateOptions, concurrency: int) -> bool:
    """Writes a line as each prompt has ended, whether by a result or an error; returns whether all have results."""
    out = TextStream()
    good = True
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("prompts"), TimeElapsedColumn())
    events = client.stream_batch(
        [prompt for prompt, _ in prompts], concurrency=concurrency, each=[own for _, own in prompts], **wanted
    )
    async with client:
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
            bar = progress.add_task("", total=len(prompts))
            async for event in events:
                if event.chunk is not None:
                    continue
                told: dict[str, Any] = {"index": event.index, "request_id": event.request_id}
                if event.result is not None:
                    told |= as_dictionary(event.result)
                else:
                    told["error"] = str(event.error)
                    good = False
                out.write(json.dumps(told, ensure_ascii=False) + "\n")
                progress.advance(bar)
        await out.flushed()
    return good


def as_dictionary(result: GenerationResult) -> dict[str, Any]:
    """Returns all fields of a result, for JSON: pieces as texts, and in hexadecimal."""
    found: dict[str, Any] = _plain(dataclasses.asdict(result))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _plain(each) for name, each in value.items() if name != "pieces"}
    if pieces := value.get("pieces"):
        found["pieces"] = [piece.decode(errors="replace") for piece in pieces]
        found["pieces_hex"] = [piece.hex() for piece in pieces]
    return found
