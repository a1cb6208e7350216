"""Which tokens end an answer. Files rarely say; as in llama.cpp, the text of a token does.

A token of such a text is a control token whatever its file calls it: otherwise untrusted text could end an answer.
"""

from __future__ import annotations

from collections.abc import Iterable

END_OF_GENERATION_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
    }
)


def end_of_generation_ids(texts: Iterable[tuple[int, str]], eos_id: int | None) -> frozenset[int]:
    """The ids among (id, text) of special tokens that end an answer, and `eos_id`."""
    found = {index for index, text in texts if text in END_OF_GENERATION_TEXTS}
    return frozenset(found if eos_id is None else found | {eos_id})
