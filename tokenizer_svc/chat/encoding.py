"""A rendered conversation to ids: control tokens are found in what the template wrote, and nowhere else.

All other text is encoded as it stands, across the borders between template and content, so that an ordinary
conversation gets exactly the ids that its rendered text has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tokenizer_svc.chat.origin import Origin
from tokenizer_svc.encoding import Policy, Segment
from tokenizer_svc.tokenizer import Tokenizer

_FOREIGN = "\ud800"  # in no control token


@dataclass(frozen=True, slots=True)
class ChatEncoding:
    """`content_ranges` are [start, end) of ids that hold any of a message's content."""

    ids: list[int]
    content_ranges: list[tuple[int, int]]


def encode_runs(tokenizer: Tokenizer, runs: Sequence[tuple[Origin, str]], with_ranges: bool) -> ChatEncoding:
    """Ids of a rendered conversation."""
    text = "".join(part for _, part in runs)
    visible = "".join(part if origin == Origin.TEMPLATE else _FOREIGN * len(part) for origin, part in runs)
    segments: list[Segment] = []
    places: list[int] = []  # of each kept character in the rendered text
    for start, end, token in tokenizer.control_splitter.split(visible):
        policy = Policy.TEXT if token is None else Policy.PARSE_LISTED
        segments.append(Segment(text[start:end], policy, frozenset(() if token is None else (token,))))
        if with_ranges:
            places += range(start, end)
    encoding = tokenizer.encode_segments(segments, add_special=False, with_offsets=with_ranges)
    if encoding.code_point_offsets is None or not encoding.ids:
        return ChatEncoding(encoding.ids, [])
    is_content = [origin == Origin.CONTENT for origin, part in runs for _ in part]
    counted = list(accumulate((is_content[place] for place in places), initial=0))
    ends = [*encoding.code_point_offsets[1:], len(places)]
    ranges: list[tuple[int, int]] = []
    for index, (start, end) in enumerate(zip(encoding.code_point_offsets, ends, strict=True)):
        # A character of several tokens starts in the first of them, and is in all.
        if counted[min(max(end, start + 1), len(places))] > counted[start]:
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            else:
                ranges.append((index, index + 1))
    return ChatEncoding(encoding.ids, ranges)
