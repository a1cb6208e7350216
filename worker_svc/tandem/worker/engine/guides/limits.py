"""Limits what a guide may be and cost; docs/guided.md lists them for callers."""

from __future__ import annotations

from dataclasses import dataclass

# llguidance recurses along references: at 8 MiB of stack it takes some 1,000 of a schema's and 2,000 of a grammar's.
MAX_REFERENCE_DEPTH = 256  # $ref that lead to each other in a JSON schema
MAX_RULE_DEPTH = 512  # rules and terminals that lead to each other in a Lark grammar
STACK_BYTES = 8 << 20  # of a guide's process, so that the same guide is served or refused everywhere

# Counters of llguidance: the same on every machine. Its defaults but for these, which are lower because one guide must
# not take much memory.
MAX_LEXER_STATES = 50_000
MAX_GRAMMAR_SIZE = 200_000

GUIDE_NICE = 10  # of guides' processes: a tenth of the weight of the engine's and the front's

COMPILERS = 3  # guides that are compiled at once, for callers; one caller has all but one of them at most
# Processes that nobody uses stay, for callers who ask again with the same guide: each is a process, two descriptors of
# the engine and some 4 MB, for what a plain schema's compilation takes, a few ms. Together they stay within the memory
# that one guide may take.
KEPT_GUIDES = 16
KEPT_SECONDS = 60.0
# New guides are refused where those in use take this share of their memory together, so that these have room to grow;
# where they take all of it, the largest is ended.
ADMITTED_SHARE = 0.75
MAX_DEATHS = 1  # of its process that a request survives: it may have been killed for no fault of its guide
DEFAULT_STARVED_SECONDS = 30.0  # that a process which owes an answer may get no processor time, before it is made again

DEFAULT_COMPILE_SECONDS = 5.0
DEFAULT_MASK_SECONDS = 2.0
DEFAULT_MEMORY_MB = 512
DEFAULT_TOTAL_MEMORY_MB = 2048


@dataclass(frozen=True, slots=True)
class GuideLimits:
    """The limits that an operator may choose."""

    compile_seconds: float = DEFAULT_COMPILE_SECONDS  # of processor time
    mask_seconds: float = DEFAULT_MASK_SECONDS  # of processor time, each mask
    memory_bytes: int = DEFAULT_MEMORY_MB << 20  # of one guide, beside the vocabulary
    total_memory_bytes: int = DEFAULT_TOTAL_MEMORY_MB << 20  # of all guides
    starved_seconds: float = DEFAULT_STARVED_SECONDS  # without processor time, of what owes an answer
