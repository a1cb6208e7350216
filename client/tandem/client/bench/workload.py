"""What is asked: conversations of one or several turns, made up or from a file.

A made-up text is a row of words drawn by chance, so that no two prompts share a beginning but where a shared prefix
was asked for. Its length is given in tokens; how many a word has, the target says (`Load.calibrate`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.client.bench.lengths import Lengths

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body "
    "information back parent face others level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says, and how long the answer may be."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns of one user, each asked when the one before is answered."""

    turns: Sequence[Turn]
    seed: int


def words(count: int, chance: random.Random) -> str:
    """Returns so many words in a row."""
    return " ".join(chance.choices(_WORDS, k=count))


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Conversations by lengths in tokens."""

    prompt: Lengths  # of each turn, without a shared prefix
    output: Lengths
    turns: Lengths
    prefixes: int  # how many prefixes there are; 0: none
    prefix_tokens: int
    tokens_per_word: float
    seed: int

    def __iter__(self) -> Iterator[Conversation]:
        chance = random.Random(self.seed)  # noqa: S311  # the same load again, not a secret
        beginnings = [self._text(self.prefix_tokens, chance) + "\n\n" for _ in range(self.prefixes)]
        while True:
            turns = []
            for number in range(self.turns.draw(chance)):
                beginning = chance.choice(beginnings) if beginnings and not number else ""
                text = beginning + self._text(self.prompt.draw(chance), chance)
                turns.append(Turn(text, self.output.draw(chance)))
            yield Conversation(turns, chance.getrandbits(31))

    def _text(self, tokens: int, chance: random.Random) -> str:
        return words(max(1, round(tokens / self.tokens_per_word)), chance)


def from_file(path: Path, output: Lengths, seed: int) -> list[Conversation]:
    """Reads one conversation a line: a JSON object with `prompt` (a text, or a list of them: one a turn) and perhaps
    `max_tokens`; of a file that does not end in .jsonl, each line is a prompt. Raises ValueError with the line."""
    chance = random.Random(seed)  # noqa: S311
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        texts: object = line
        most: object = None
        if path.suffix == ".jsonl":
            try:
                given = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from None
            if not isinstance(given, dict) or "prompt" not in given:
                raise ValueError(f"line {number} is not an object with a prompt")
            texts, most = given["prompt"], given.get("max_tokens")
        rows = [texts] if isinstance(texts, str) else texts
        if not isinstance(rows, list) or not rows or not all(isinstance(row, str) and row for row in rows):
            raise ValueError(f"line {number}: prompt is not a text or a list of texts, none of them empty")
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(f"line {number}: max_tokens is not a number from 1")
        turns = [Turn(row, most or output.draw(chance)) for row in rows]
        found.append(Conversation(turns, chance.getrandbits(31)))
    if not found:
        raise ValueError("there is no prompt in it")
    return found
