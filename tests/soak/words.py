"""Texts as the demo model knows them."""

from __future__ import annotations

from random import Random

WORDS = (
    "the",
    "king",
    "of",
    "night",
    "and",
    "day",
    "shall",
    "not",
    "come",
    "to",
    "thee",
    "my lord",
    "what",
    "is",
    "it",
)


def text(random: Random, most: int = 200) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(1, most)))
