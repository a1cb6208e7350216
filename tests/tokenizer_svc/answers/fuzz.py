"""Reads answers of every format in many cuts, and with many mutations: `make parsers CUTS=10000 MUTATED=1000`."""

from __future__ import annotations

import argparse
import random
import time

from tests.tokenizer_svc.answers.answers import WRITERS, cut, parse
from tests.tokenizer_svc.answers.test_parser import check_mutated, numbered

_CUTS_OF_ONE = 50  # cuts of an answer before the next one


def main() -> None:
    """Raises AssertionError, with variant and seed, where a parser does not keep what it promises."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cuts", type=int, default=10_000)
    arguments.add_argument("--mutated", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    given = arguments.parse_args()
    print(f"seed {given.seed}", flush=True)
    for variant in WRITERS:
        began = time.monotonic()
        chance = random.Random(f"{given.seed}:{variant}")
        for number in range(given.cuts):
            if number % _CUTS_OF_ONE == 0:
                text = numbered(variant, chance)
                whole = parse(variant, [text])
            parts = cut(text, chance)
            assert parse(variant, parts) == whole, (variant, parts)
        for _ in range(given.mutated):
            check_mutated(variant, chance.getrandbits(64))
        seconds = time.monotonic() - began
        print(f"{variant}: {given.cuts} cuts, {given.mutated} mutated, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
