"""Encodes a rendered conversation: special tokens are found in what the template wrote, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.tokenizer.arrays import NONE, Ids
from tandem.tokenizer.chat.origin import Origin
from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatEncoding:
    """The ids of a conversation. `content_ranges` are the [start, end) of ids that hold any of a message's content."""

    id_array: Ids
    borders: Ids  # the starts and ends of the ranges by turns

    @property
    def ids(self) -> list[int]:
        found: list[int] = self.id_array.tolist()
        return found

    @property
    def content_ranges(self) -> list[tuple[int, int]]:
        borders: list[int] = self.borders.tolist()
        return list(zip(borders[::2], borders[1::2], strict=True))


def encode_runs(
    tokenizer: Tokenizer, runs: Sequence[tuple[Origin, str]], with_ranges: bool, policy: Policy = Policy.PLAIN
) -> ChatEncoding:
    """Returns the ids of a rendered conversation. `policy` applies to all text that the template did not write: PLAIN,
    or TEXT, which turns the text of USER_DEFINED tokens into these tokens."""
    text = "".join(part for _, part in runs)
    splitter = tokenizer.meaning_splitter if policy is Policy.PLAIN else tokenizer.control_splitter
    visible = "".join(part if origin == Origin.TEMPLATE else splitter.masked(part) for origin, part in runs)
    segments: list[Segment] = []
    places: list[NDArray[np.int64]] = []  # of the kept characters in the rendered text
    for start, end, token in splitter.split(visible):
        segments.append(Segment(text[start:end], policy if token is None else Policy.PARSE))
        places.append(np.arange(start, end))
    encoding = tokenizer.encode_segments(segments, add_special=False, with_offsets=with_ranges)
    starts = encoding.code_point_offset_array
    if starts is None or not len(starts):
        return ChatEncoding(encoding.id_array, NONE)
    is_content = np.repeat([origin == Origin.CONTENT for origin, _ in runs], [len(part) for _, part in runs])
    content_before = np.concatenate(([0], np.cumsum(is_content[np.concatenate(places)])))
    ends = np.concatenate((starts[1:], [len(content_before) - 1]))
    # A character of several tokens starts in the first of them, and is in all.
    ends = np.minimum(np.maximum(ends, starts + 1), len(content_before) - 1)
    holds_content = content_before[ends] > content_before[starts]
    borders = np.flatnonzero(np.diff(holds_content, prepend=False, append=False)).astype(np.uint32)
    return ChatEncoding(encoding.id_array, borders)
