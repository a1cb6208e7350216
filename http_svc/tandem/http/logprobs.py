"""Logprobs as OpenAI's two interfaces have them."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from typing import Any

import msgspec

from tandem.client import TopLogprobs, Vocabulary

LOWEST = -9999.0  # what cannot happen; JSON has no infinity
_AT_ONCE = 128  # tokens: with 64 others each, some 10 ms


class Entry(msgspec.Struct):
    """One token at its position."""

    token: str
    logprob: float
    bytes: list[int]


class Position(Entry):
    """The sampled token, and the most probable ones."""

    top_logprobs: list[Entry]


class ChatLogprobs(msgspec.Struct):
    """Of an answer in chat, or of a part of it."""

    content: list[Position]
    refusal: None = None


async def chat_logprobs(
    ids: Sequence[int], logprobs: Sequence[float], top: Sequence[TopLogprobs] | None, pieces: Sequence[bytes]
) -> ChatLogprobs:
    """Lets others run meanwhile where there are many."""
    content: list[Position] = []
    for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        others: list[Entry] = []
        if top is not None:
            told = zip(top[place].ids, top[place].logprobs, strict=True)
            others = [Entry(*_parts(other, value, pieces)) for other, value in told]
        content.append(Position(*_parts(token, logprob, pieces), others))
        if place % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    return ChatLogprobs(content)


def _parts(token: int, logprob: float, pieces: Sequence[bytes]) -> tuple[str, float, list[int]]:
    piece = pieces[token]
    return _text(piece), max(logprob, LOWEST), list(piece)


class CompletionLogprobs:
    """Of one text of the completions interface, part by part: offsets count its characters."""

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        """`top`: how many of the most probable tokens are told besides the sampled one."""
        self._pieces = vocabulary.pieces
        self._types = vocabulary.types
        self._top = top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._begun = False

    async def part(
        self, ids: Sequence[int], logprobs: Sequence[float | None], top: Sequence[TopLogprobs] | None, text: str
    ) -> dict[str, Any]:
        """The next tokens, and what they show. Lets others run meanwhile where there are many."""
        if not self._begun:
            self._begin(ids, text)
        offsets, others = [], []
        for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            offsets.append(max(0, self._offset))
            if self._types[token] != "control":
                self._offset += len(self._decoder.decode(self._pieces[token]))
            found = top[place] if top is not None else None
            others.append(None if logprob is None else self._others(token, logprob, found))
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return {
            "tokens": [_text(self._pieces[token]) for token in ids],
            "token_logprobs": [None if logprob is None else max(logprob, LOWEST) for logprob in logprobs],
            "top_logprobs": others if self._top else None,
            "text_offset": offsets,
        }

    def _begin(self, ids: Sequence[int], text: str) -> None:
        """The space that some vocabularies put in front of a text is in its first token, and not in the text. The text
        may have spaces of its own there: those are compared up to what is none."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        shown = ""
        for token in ids:
            if self._types[token] != "control":
                shown += decoder.decode(self._pieces[token])
                if shown.strip(" "):
                    break
        self._begun = bool(shown)
        if shown.startswith(" ") and not text.startswith(shown):
            self._offset = -1 if text.startswith(shown[1:]) or not text.startswith(" ") else 0

    def _others(self, token: int, logprob: float, top: TopLogprobs | None) -> dict[str, float]:
        told = {} if top is None else dict(zip(top.ids, top.logprobs, strict=True))
        told.setdefault(token, logprob)
        return {_text(self._pieces[each]): max(value, LOWEST) for each, value in told.items()}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
