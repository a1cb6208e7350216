"""`tandem show`: what a tokenizer, its chat template and its answers are like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tandem.client.async_client import AsyncClient
from tandem.client.cli import options as o
from tandem.client.cli.connection_flags import ConnectionFlags, tokenizer_client, with_connection_flags
from tandem.client.cli.services import interruptible
from tandem.client.cli.terminal import harmless, reporting_errors
from tandem.client.errors import FailedPreconditionError, InvalidArgumentError
from tandem.client.types import SpecialToken, TokenizerInfo

_MOST_NAMED = 8  # tokens of one rule; --json has all
_TALK = [
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Who is there?"},
]


@with_connection_flags
def show(
    connection: ConnectionFlags,
    tokenizer_address: o.TokenizerAddress = "",
    name: Annotated[str, typer.Option("--name", help="Name of the tokenizer; default: the service's default.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    timeout: o.Timeout = 60.0,
) -> None:
    """Show what a tokenizer is: vocabulary, control tokens, how its chat template writes, how answers are read."""
    with reporting_errors():
        client = tokenizer_client(tokenizer_address, connection)
        info, prompt = interruptible(_ask(client, name, timeout or None))
        if as_json:
            typer.echo(json.dumps({**asdict(info), "chat_prompt": prompt}, ensure_ascii=False))
            return
        for label, value in _lines(info):
            typer.echo(f"{label:<18}{harmless(value)}")
        if prompt is None:
            typer.echo("chat template     none")
        else:
            typer.echo("chat template     writes this prompt:\n")
            for line in prompt.splitlines():
                typer.echo(f"    {harmless(line)}")


async def _ask(client: AsyncClient, name: str, timeout: float | None) -> tuple[TokenizerInfo, str | None]:
    async with client:
        info = await client.get_tokenizer(name, timeout=timeout)
        for talk in (_TALK, _TALK[:1]):  # some templates take turns of other kinds only
            try:
                found = await client.encode_chat(talk, tokenizer=name, rendered_text=True, timeout=timeout)
            except InvalidArgumentError:
                continue
            except FailedPreconditionError:
                break
            return info, found.rendered_text
    return info, None


def _lines(info: TokenizerInfo) -> list[tuple[str, str]]:
    texts = {token.id: token.text for token in info.special_tokens}

    def told(*ids: int | None) -> str:
        return ", ".join(f"{id_} {texts.get(id_, '')}".rstrip() for id_ in ids if id_ is not None) or "none"

    control = sum(token.control for token in info.special_tokens)
    adds = ((info.front_ids, "in front"), (info.back_ids, "behind"))
    marks = told(*info.reasoning_begin_ids, *info.reasoning_end_ids)
    rules: dict[str, list[SpecialToken]] = {}
    for token in info.special_tokens:
        words = [name for name in ("lstrip", "rstrip", "single_word", "normalized") if getattr(token, name)]
        if words:
            rules.setdefault(", ".join(words), []).append(token)
    return [
        ("name", info.name),
        ("vocabulary", f"{info.vocabulary_type}, {info.vocabulary_size:,} ids, from a {info.source} file"),
        ("fingerprint", info.fingerprint),
        ("special tokens", f"{control} control, {len(info.special_tokens) - control} user-defined"),
        *((f"  {words}", _named(tokens)) for words, tokens in rules.items()),
        ("BOS", told(info.bos_id)),
        ("ends an answer", told(*info.end_of_generation_ids)),
        ("adds", "; ".join(f"{told(*ids)} {where}" for ids, where in adds if ids) or "nothing"),
        ("answer format", info.answer_format or "none known: all is content"),
        ("reasoning between", marks if marks != "none" else "no marks that are tokens"),
    ]


def _named(tokens: Sequence[SpecialToken]) -> str:
    more = f" and {len(tokens) - _MOST_NAMED} more" if len(tokens) > _MOST_NAMED else ""
    return ", ".join(f"{token.id} {token.text}" for token in tokens[:_MOST_NAMED]) + more
