"""Events of which a stream has many are made by filling in their text: as if each were made anew."""

from __future__ import annotations

import pytest

from tandem.http.chat import ChatChunk, ChunkChoice, Delta
from tandem.http.completions import Choice, Completion
from tandem.http.sse import HOLE, cut, event, filled

TEXTS = ["", "word", '"\\/', "\0\n\r\t\x1f\x7f", "é – 文 🚀 \u2028", "data: {}\n\n", "%b %s {}"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", TEXTS)
def test_an_event_that_is_filled_in_is_the_event(model: str, text: str) -> None:
    def completion(text: str) -> bytes:
        return event(Completion("an-id", "text_completion", 1, model, [Choice(3, text)], None))

    def chat(text: str) -> bytes:
        return event(ChatChunk("an-id", "chat.completion.chunk", 1, model, [ChunkChoice(3, Delta(content=text))]))

    for made in (completion, chat):
        assert filled(cut(made(HOLE)), text) == made(text)
