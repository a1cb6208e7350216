"""A folder with several chat templates: a request has the one that transformers chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tandem.tokenizer.chat.named_templates import template_for
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.sidecar import read_sidecar
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}]
D = "D{{ messages[0].content }}"
T = "T{{ tools | tojson }}{{ messages[0].content }}"


def named(**templates: str) -> list[dict[str, str]]:
    return [{"name": name, "template": template} for name, template in templates.items()]


FOLDERS: dict[str, dict[str, Any]] = {
    "one template": {"tokenizer_config.json": {"chat_template": D}},
    "a list": {"tokenizer_config.json": {"chat_template": named(default=D, tool_use=T, rag="R")}},
    "a list in another order": {"tokenizer_config.json": {"chat_template": named(rag="R", tool_use=T, default=D)}},
    "a list without one for tools": {"tokenizer_config.json": {"chat_template": named(default=D, rag="R")}},
    "a list without a default": {"tokenizer_config.json": {"chat_template": named(tool_use=T)}},
    "a name twice": {"tokenizer_config.json": {"chat_template": named(default="x") + named(default=D, tool_use=T)}},
    "files": {"chat_template.jinja": D, "additional_chat_templates/tool_use.jinja": T},
    "a file that means nothing here": {"chat_template.jinja": D, "additional_chat_templates/rag.jinja": "R"},
    "a file in place of a list": {
        "tokenizer_config.json": {"chat_template": named(default="x", tool_use="y")}, "chat_template.jinja": D,
    },
    "files in place of a list": {
        "tokenizer_config.json": {"chat_template": named(default="x", tool_use="y")},
        "chat_template.jinja": D,
        "additional_chat_templates/tool_use.jinja": T,
    },
}  # fmt: skip


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def theirs(folder: Path, tools: list[dict[str, Any]]) -> str | None:
    LibraryTokenizer(BPE()).save(str(folder / "tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "hi"}], tools=tools or None, tokenize=False, add_generation_prompt=False
        )
    except ValueError:
        return None
    assert isinstance(text, str)
    return text


def ours(folder: Path, tools: list[dict[str, Any]]) -> str | None:
    template = template_for(read_sidecar(folder).chat_template, bool(tools))
    question: dict[str, Any] = {
        "template": template, "messages": [{"role": "user", "content": "hi"}], "tools": tools,
        "add_generation_prompt": False, "arguments": {}, "special_tokens": {},
    }  # fmt: skip
    try:
        return "".join(text for _, text in render(question, 1000))
    except RenderError:
        return None


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", FOLDERS)
def test_the_template_is_the_one_that_transformers_chooses(
    tmp_path: Path, name: str, tools: list[dict[str, Any]]
) -> None:
    write(tmp_path, FOLDERS[name])
    expected = theirs(tmp_path, tools)
    assert ours(tmp_path, tools) == expected
    assert (expected is None) == (name == "a list without a default" and not tools)


def test_a_file_for_tools_goes_with_the_default_of_the_settings(tmp_path: Path) -> None:
    """transformers would refuse all requests without tools."""
    write(tmp_path, {**FOLDERS["one template"], "additional_chat_templates/tool_use.jinja": T})
    assert ours(tmp_path, []) == "Dhi"
    assert ours(tmp_path, TOOLS) == theirs(tmp_path, TOOLS)


def test_templates_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    for broken in ([{"name": "tool_use", "template": 3}], {"default": D}):
        write(tmp_path, {"tokenizer_config.json": {"chat_template": broken}})
        with pytest.raises(FormatError, match="neither a text nor a list"):
            read_sidecar(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_bytes(b"\xff")
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(FormatError, match="cannot be read"):
        read_sidecar(tmp_path)


async def test_tools_of_a_request_choose_over_the_wire(start_service: Any, shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes((shared_data / "models/stories260K/meta/tokenizer.model").read_bytes())
    write(tmp_path, {"tokenizer_config.json": {"chat_template": named(default=D, tool_use=T + "<tool_call>")}})
    assert load_tokenizer(tmp_path).config.chat_template == D
    running = await start_service(tokenizer=(str(tmp_path),))
    message = pb.ChatMessage(role="user", content="hi")
    plain = pb.EncodeChatRequest(messages=[message], include_rendered_text=True)
    assert (await running.stub.EncodeChat(plain)).rendered_text == "Dhi"
    with_tools = pb.EncodeChatRequest(messages=[message], tools=['{"a": 1}'], include_rendered_text=True)
    assert (await running.stub.EncodeChat(with_tools)).rendered_text == 'T[{"a": 1}]hi<tool_call>'
    [told] = (await running.stub.ListTokenizers(pb.ListTokenizersRequest())).tokenizers
    assert told.answer_format == "hermes", "calls are read as the template with tools has them"
