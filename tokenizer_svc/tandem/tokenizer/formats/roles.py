"""Tokens with a role that files rarely state. As in llama.cpp, the token's text decides."""

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

_FILL_IN_END_TEXTS = frozenset(
    {"<|fim_pad|>", "<fim-pad>", "<fim_pad>"}
    | {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}
    | {"<|file_sep|>"}
)
_FILL_IN_TEXTS = frozenset(
    {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"}
    | {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"}
    | {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"}
)
CONTROL_TEXTS = END_OF_GENERATION_TEXTS | _FILL_IN_END_TEXTS | _FILL_IN_TEXTS


def end_of_generation_ids(texts: Iterable[tuple[int, str]], eos_id: int | None) -> frozenset[int]:
    """Returns the ids among (id, text) of special tokens that end an answer, and `eos_id`."""
    found = {index for index, text in texts if text in END_OF_GENERATION_TEXTS or text in _FILL_IN_END_TEXTS}
    return frozenset(found if eos_id is None else found | {eos_id})
