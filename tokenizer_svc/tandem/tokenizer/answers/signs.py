"""How a chat template gives the format of its model's answers away."""

from __future__ import annotations

from tandem.tokenizer.answers.formats import FORMATS, M3_MARK, Format

# What a template has to contain, all of it, the first row that fits.
_SIGNS = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("gemma4", ("<|turn>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("dsml", ("｜DSML｜",)),
    ("hunyuan3", ("<tool_sep",)),
    ("hunyuan3", ("<tool_calls", "<arg_key")),
    ("minimax-m3", (M3_MARK,)),
    ("seed", ("<seed:tool_call>",)),
    ("minimax", ("<minimax:tool_call>",)),
    ("qwen3-coder", ("<function=", "<parameter=")),
    ("glm", ("<arg_key>",)),
    ("deepseek", ("<｜tool▁call▁begin｜>",)),
    ("kimi", ("<|tool_call_begin|>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("gemma", ("<start_function_call>",)),
    ("gemma", ("<start_of_turn>", "tool_code")),
    ("granite", ("<|start_of_role|>",)),
    ("phi4", ("<|tool_call|>",)),
    ("phi4", ("functools[",)),
    ("olmo3", ("<function_calls>",)),
    ("hunyuan", ("<answer>", "<tool_calls>")),
    ("hunyuan", ("<answer>", "<|extra_0|>")),
    ("hunyuan", ("<answer>", "<｜hy_")),
    ("apriel", ("[BEGIN FINAL RESPONSE]",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("jamba", ("<tool_calls>",)),
    ("ernie", ("<response>", "</think>")),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("func_name1(",)),
    ("llama3", ("<|start_header_id|>", "<|python_tag|>")),
    ("llama3", ("<|start_header_id|>", '"parameters"')),
    ("lfm2", ("<|im_start|>", "List of tools: ")),
    ("think", ("<think>",)),
    ("think", ("</think>",)),
)


def format_of(template: str | None) -> Format | None:
    """Returns the format that a chat template speaks of, or None where it speaks of none."""
    if template is None:
        return None
    name = next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), None)
    return None if name is None else FORMATS[name]
