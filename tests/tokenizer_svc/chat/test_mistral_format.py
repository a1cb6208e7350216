"""Conversations of tokenizers that are a `tekken.json`, as mistral-common 1.13.1 writes them, and beside it where it is
installed; its demands on numpy keep it out of the development environment."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tandem.client import Conversation
from tandem.client.conversations import chat_request
from tandem.tokenizer.chat.formats import template_of
from tandem.tokenizer.chat.json_text import read_question
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.rpc.chat_validation import chat_question
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *(
        "[SUFFIX]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[TOOL_CONTENT]",
        "[ARGS]",
        "[CALL_ID]",
        "[THINK]",
        "[/THINK]",
        "[MODEL_SETTINGS]",
        "[/MODEL_SETTINGS]",
    ),
)
VERSIONS = ("v3", "v7", "v11", "v13", "v15")
ARGUMENTS = {"town": "Zürich", "days": 2}
TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}
TOOLS_TEXT = f"[AVAILABLE_TOOLS][{json.dumps(TOOL)}][/AVAILABLE_TOOLS]"


def said(role: str, content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calls(*ids: str, content: str = "") -> dict[str, Any]:
    listed = [{"id": each, "type": "function", "function": {"name": "now", "arguments": ARGUMENTS}} for each in ids]
    return said("assistant", content, tool_calls=listed)


def result(content: str, call: str) -> dict[str, Any]:
    return said("tool", content, name="now", tool_call_id=call)


A, B = "123456789", "abcdefghi"
CONVERSATIONS = {
    "one": [said("user", "Hi")],
    "system": [said("system", "S"), said("user", "Hi "), said("assistant", "Hello  "), said("user", "So?")],
    "two systems": [said("system", "S"), said("system", "T"), said("user", "c")],
    "two of the user": [said("user", "a"), said("user", "b")],
    "no user": [said("system", "S")],
    "a call": [
        *(said("system", "S"), said("user", "W?"), calls(A), result('{"b": 1, "a": 2}', A)),
        *(said("assistant", "Fine."), said("user", "Thanks")),
    ],
    "two calls": [said("user", "W?"), calls(A, B), result("25", A), result('warm "x"', B)],
}
TALKED = [said("user", "W?"), calls(A, content="Let me see"), result("1.5", A)]
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
LIST_A = f'[TOOL_CALLS][{{"name": "now", "arguments": {JSON}, "id": "{A}"}}]'
LIST_AB = f'{LIST_A[:-1]}, {{"name": "now", "arguments": {JSON}, "id": "{B}"}}]'
BEGIN = "[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]"
EXPECTED = {
    ("v3", "one"): "<s>{}[INST]Hi[/INST]",
    ("v3", "system"): "<s>[INST]Hi [/INST]Hello</s>{}[INST]S\n\nSo?[/INST]",
    ("v3", "two systems"): "<s>{}[INST]S\n\nT\n\nc[/INST]",
    ("v3", "two of the user"): "<s>{}[INST]a\n\nb[/INST]",
    ("v3", "no user"): "<s>{}[INST]S\n\n[/INST]",
    ("v3", "a call"): f'<s>[INST]W?[/INST]{LIST_A}</s>[TOOL_RESULTS]{{"content": {{"b": 1, "a": 2}}, "call_id": "{A}"}}'
    "[/TOOL_RESULTS]Fine.</s>{}[INST]S\n\nThanks[/INST]",
    ("v3", "two calls"): f'<s>{{}}[INST]W?[/INST]{LIST_AB}</s>[TOOL_RESULTS]{{"content": 25, "call_id": "{A}"}}'
    f'[/TOOL_RESULTS][TOOL_RESULTS]{{"content": "warm \\"x\\"", "call_id": "{B}"}}[/TOOL_RESULTS]',
    ("v7", "system"): f"<s>{BEGIN}[INST]Hi [/INST]Hello</s>{{}}[INST]So?[/INST]",
    ("v7", "two systems"): f"<s>{BEGIN}[SYSTEM_PROMPT]T[/SYSTEM_PROMPT]{{}}[INST]c[/INST]",
    ("v7", "no user"): f"<s>{BEGIN}",
    ("v7", "a call"): f"<s>{BEGIN}[INST]W?[/INST]{LIST_A}</s>[TOOL_RESULTS]{A}[TOOL_CONTENT]"
    '{"b": 1, "a": 2}[/TOOL_RESULTS]Fine.</s>{}[INST]Thanks[/INST]',
    ("v7", "two calls"): f"<s>{{}}[INST]W?[/INST]{LIST_AB}</s>[TOOL_RESULTS]{A}[TOOL_CONTENT]25[/TOOL_RESULTS]"
    f'[TOOL_RESULTS]{B}[TOOL_CONTENT]warm "x"[/TOOL_RESULTS]',
    ("v11", "a call"): f"<s>{BEGIN}[INST]W?[/INST][TOOL_CALLS]now[CALL_ID]{A}[ARGS]{JSON}</s>[TOOL_RESULTS]{A}"
    '[TOOL_CONTENT]{"b": 1, "a": 2}[/TOOL_RESULTS]Fine.</s>{}[INST]Thanks[/INST]',
    ("v11", "two calls"): f"<s>{{}}[INST]W?[/INST][TOOL_CALLS]now[CALL_ID]{A}[ARGS]{JSON}[TOOL_CALLS]now[CALL_ID]{B}"
    f"[ARGS]{JSON}</s>[TOOL_RESULTS]{A}[TOOL_CONTENT]25[/TOOL_RESULTS]"
    f'[TOOL_RESULTS]{B}[TOOL_CONTENT]warm "x"[/TOOL_RESULTS]',
    ("v13", "system"): f"<s>{BEGIN}{{}}[INST]Hi [/INST]Hello</s>[INST]So?[/INST]",
    ("v13", "a call"): f"<s>{BEGIN}{{}}[INST]W?[/INST][TOOL_CALLS]now[ARGS]{JSON}</s>[TOOL_RESULTS]"
    '{"b": 1, "a": 2}[/TOOL_RESULTS]Fine.</s>[INST]Thanks[/INST]',
    ("v13", "two calls"): f"<s>{{}}[INST]W?[/INST][TOOL_CALLS]now[ARGS]{JSON}[TOOL_CALLS]now[ARGS]{JSON}</s>"
    '[TOOL_RESULTS]25[/TOOL_RESULTS][TOOL_RESULTS]warm "x"[/TOOL_RESULTS]',
}


def tekken(folder: Path, version: str, pieces: list[bytes], pattern: str) -> Path:
    texts = [base64.b64encode(piece).decode() for piece in pieces]
    vocab = [{"rank": rank, "token_bytes": text, "token_str": None} for rank, text in enumerate(texts)]
    config = {"pattern": pattern, "default_vocab_size": len(pieces) + 1000, "default_num_special_tokens": 1000}
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(SPECIALS)]
    content = {"config": config | {"num_vocab_tokens": len(pieces), "version": version}, "vocab": vocab}
    if version == "v15":
        content["model_settings_builder"] = {}  # of no settings
    path = folder / "tekken.json"
    path.write_text(json.dumps(content | {"special_tokens": special}))
    return path


def small(folder: Path, version: str) -> Tokenizer:
    return load_tokenizer(tekken(folder, version, [bytes([byte]) for byte in range(256)], r"\p{L}+|[^\p{L}]"))


def written(tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str | None:
    request = chat_request(Conversation(messages, tools=tools), "")
    question = chat_question(
        pb.EncodeChatRequest.FromString(request.SerializeToString()),
        tokenizer,
        template_of(tokenizer),
        TokenizerSettings(),
    )
    try:
        return "".join(text for _, text in render(read_question(json.loads(json.dumps(question))), 1 << 20))
    except RenderError:
        return None


@pytest.mark.parametrize("version", VERSIONS)
def test_conversations_are_those_of_the_version(tmp_path: Path, version: str) -> None:
    tokenizer = small(tmp_path, version)
    until = VERSIONS[VERSIONS.index(version) :: -1]
    for name, tools in itertools.product(CONVERSATIONS, ([], [TOOL])):
        latest = next(each for each in until if (each, name) in EXPECTED)
        expected = EXPECTED[latest, name].replace("{}", TOOLS_TEXT if tools else "", 1)
        assert written(tokenizer, CONVERSATIONS[name], tools) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_what_has_no_place_is_refused(tmp_path: Path, version: str) -> None:
    tokenizer = small(tmp_path, version)
    for messages in (
        [said("user", "a"), said("assistant", "b"), said("system", "S"), said("user", "c")],
        [said("user", "a"), said("assistant", "b"), said("assistant", "c")],
        [said("user", "a"), said("developer", "b")],
    ):
        assert written(tokenizer, messages, []) is None


def test_thoughts_stand_before_an_answer_where_the_model_has_them(tmp_path: Path) -> None:
    messages = [said("user", "a"), said("assistant", "b", reasoning_content="Hm."), said("user", "c")]
    for version, thought in (("v13", "[THINK]Hm.[/THINK]"), ("v11", "")):
        assert written(small(tmp_path, version), messages, []) == f"<s>[INST]a[/INST]{thought}b</s>[INST]c[/INST]"


def test_a_file_without_a_version_or_its_tokens_has_no_template(tmp_path: Path) -> None:
    path = tekken(tmp_path, "v13", [bytes([byte]) for byte in range(256)], r"\p{L}+|[^\p{L}]")
    content = json.loads(path.read_text())
    for version, token in (
        ("", ""),
        ("vX", ""),
        ("v2", ""),
        ("v16", ""),
        ("v13", "[ARGS]"),
        ("v7", "[SYSTEM_PROMPT]"),
        ("v3", "[INST]"),
    ):
        special = [each for each in content["special_tokens"] if each["token_str"] != token]
        config = content["config"] | {"version": version}
        path.write_text(json.dumps(content | {"config": config, "special_tokens": special}))
        assert template_of(load_tokenizer(path)) is None, (version, token)


@pytest.mark.parametrize("version", VERSIONS)
def test_ids_are_those_of_mistral_common(tmp_path: Path, version: str) -> None:
    common = pytest.importorskip("mistral_common", reason="mistral-common is not installed")
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
    request = pytest.importorskip("mistral_common.protocol.instruct.request").ChatCompletionRequest
    whole = json.loads((Path(common.__file__).parent / "data/tekken_240911.json").read_text())
    pieces = [base64.b64decode(each["token_bytes"]) for each in whole["vocab"][: 131072 - 1000]]
    path = tekken(tmp_path, version, pieces, whole["config"]["pattern"])
    theirs, ours = mistral.MistralTokenizer.from_file(str(path)), load_tokenizer(path)
    conversations = CONVERSATIONS | ({"talked": TALKED} if version != "v3" else {})
    for (name, messages), tools in itertools.product(conversations.items(), ([], [TOOL])):
        told = json.loads(json.dumps(messages))
        for call in itertools.chain.from_iterable(message.get("tool_calls", ()) for message in told):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        expected = theirs.encode_chat_completion(request(messages=told, tools=tools or None)).tokens
        question = chat_request(Conversation(messages, tools=tools), "")
        asked = chat_question(question, ours, template_of(ours), TokenizerSettings())
        runs = render(read_question(json.loads(json.dumps(asked))), 1 << 20)
        ids = [index for origin, text in runs for index in ours.encode(text, False, origin == 0)]
        if version == "v3" and any(
            each["role"] == "tool" for each in messages
        ):  # the object is cut where content begins
            ids, expected = ([each for each in some if each < 1000] for some in (ids, expected))
        assert ids == expected, name
