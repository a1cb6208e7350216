"""Conversations: the SDK's `encode_chat`, `chat` and `stream_chat`, and `tandem chat`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tandem.client import (
    AsyncClient,
    ChatMessage,
    Client,
    Conversation,
    FailedPreconditionError,
    InvalidArgumentError,
    ToolCall,
)
from tandem.tokenizer.v1 import tokenizer_pb2
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import CONTROL, CONTROL_TEXT, FINGERPRINT, FIRST_BYTE, TEXT, ids_of_text
from tests.client.fakes import ServersThread
from tests.client.test_cli import TANDEM, environment, on_a_terminal, tandem

USER = [ChatMessage("user", "Hi <|control|>")]


def prompt_of(*messages: tuple[str, str]) -> list[int]:
    """What the fake tokenizer makes of a conversation."""
    ids: list[int] = []
    for role, content in messages:
        ids += [CONTROL, *ids_of_text(f"{role}\n{content}\n")]
    return [*ids, CONTROL, *ids_of_text("assistant\n")]


async def test_a_conversation_is_encoded_and_shown(client: AsyncClient) -> None:
    encoding = await client.encode_chat(USER, rendered_text=True, content_ranges=True, pieces=True)
    assert encoding.ids == prompt_of(("user", "Hi <|control|>"))
    assert encoding.rendered_text == f"{CONTROL_TEXT}user\nHi {CONTROL_TEXT}\n{CONTROL_TEXT}assistant\n"
    [(start, end)] = encoding.content_ranges
    assert b"".join(encoding.pieces[start:end]) == b"Hi <|control|>"
    assert (encoding.fingerprint, encoding.total_tokens) == (FINGERPRINT, len(encoding.ids))
    bare = await client.encode_chat(Conversation(USER, add_generation_prompt=False))
    assert bare.ids == encoding.ids[: -1 - len("assistant\n")]
    assert (bare.rendered_text, bare.content_ranges, bare.pieces) == ("", [], [])


async def test_answers_to_a_conversation(client: AsyncClient) -> None:
    whole = await client.chat(USER, seed=0, max_tokens=9)
    async with client.stream_chat(USER, seed=0, max_tokens=9) as stream:
        assert "".join([chunk.text async for chunk in stream]) == whole.text == TEXT[:9]
    batch = await client.generate_batch(["plain", Conversation(USER)], seed=0, max_tokens=9)
    encoded = await client.generate(await client.encode_chat(USER), seed=0, max_tokens=9)
    for result in (whole, stream.result, batch[1], encoded):
        assert result.prompt_ids == prompt_of(("user", "Hi <|control|>"))


async def test_an_answer_may_continue_the_last_message(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    begun = Conversation([*USER, {"role": "assistant", "content": "Sure: "}], continue_final_message=True)
    encoding = await client.encode_chat(begun, rendered_text=True)
    assert encoding.rendered_text.endswith("assistant\nSure: ")
    answer = await client.chat(begun, seed=0, max_tokens=9)
    assert (answer.prompt_ids, answer.text, answer.content) == (encoding.ids, TEXT[:9], TEXT[:9])
    assert [request.HasField("answer") for request in tokenizer.chats] == [False, True]


async def test_both_ways_to_write_a_message_are_one(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    tool = {"name": "add", "parameters": {"type": "object", "required": ["a"], "deep": [1, None, True]}}
    arguments = '{"a": 1, "b": [2.5, "x"]}'
    classes = [
        ChatMessage("assistant", tool_calls=[ToolCall("add", arguments, "c1")]),
        ChatMessage("tool", "3.5", name="add", tool_call_id="c1"),
    ]
    mappings = [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}},
        ]},
        {"role": "tool", "content": "3.5", "name": "add", "tool_call_id": "c1"},
    ]  # fmt: skip
    for messages in (classes, mappings):
        await client.encode_chat(
            Conversation(messages, tools=[tool], chat_template="T", template_arguments={"mood": "good"})
        )
    left, right = tokenizer.chats
    assert left == right
    assert list(json.loads(left.tools[0]).items()) == list(tool.items())
    assert json.loads(left.messages[0].tool_calls[0].arguments) == {"a": 1, "b": [2.5, "x"]}
    assert not left.messages[0].HasField("content")
    assert (left.messages[1].name, left.messages[1].tool_call_id, left.chat_template) == ("add", "c1", "T")
    assert left.template_arguments == '{"mood":"good"}'


async def test_json_is_sent_in_the_order_and_to_the_digit_that_was_given(
    client: AsyncClient, tokenizer: ByteTokenizer
) -> None:
    given = {"z": {"y": 2**53 + 1, "x": [0.1, -0.0, 1e22]}, "a": "é\u2028", "naïve": None}
    messages = [ChatMessage("assistant", tool_calls=[ToolCall("f", MappingProxyType(given))])]
    await client.encode_chat(Conversation(messages, tools=[given], template_arguments=given))
    [sent] = tokenizer.chats
    for text in (sent.tools[0], sent.template_arguments, sent.messages[0].tool_calls[0].arguments):
        assert json.dumps(json.loads(text)) == json.dumps(given)
        assert "é" in text


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([], ["messages"]),
        ("text", ["messages"]),
        (["text"], ["messages[0]"]),
        ([{"role": "user", "content": "x", "mood": 1}], ["messages[0]"]),
        ([{"content": "x"}, ChatMessage("user", "\ud800")], ["messages[0].role", "messages[1].content"]),
        ([{"role": "assistant", "tool_calls": [{}]}], ["messages[0].tool_calls[0]"]),
        ([{"role": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
         ["messages[0].tool_calls[0].arguments"]),
        ([ChatMessage("a", tool_calls=[ToolCall("f", "[]")])], ["messages[0].tool_calls[0].arguments"]),
        (Conversation(USER, tools=[{"x": object()}, {"x": float("nan")}, {"x": "\ud800"}, {1: 2}]),
         ["tools[0]", "tools[1]", "tools[2]", "tools[3]"]),
        (Conversation(USER, special_tokens="parse"), ["special_tokens"]),  # type: ignore[arg-type]
        (Conversation(USER, special_tokens=[]), ["special_tokens"]),  # type: ignore[arg-type]
        (Conversation(USER, tools=None), ["tools"]),  # type: ignore[arg-type]
        (Conversation(USER, template_arguments=3), ["template_arguments"]),  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_conversation_is_named(
    client: AsyncClient, messages: Any, fields: list[str]
) -> None:
    for call in (client.encode_chat, client.chat):
        with pytest.raises(InvalidArgumentError) as caught:
            await call(messages)
        assert [violation.field for violation in caught.value.violations] == fields
    if isinstance(messages, Conversation):
        with pytest.raises(InvalidArgumentError) as caught:
            await client.generate(messages)
        assert caught.value.violations[0].field == f"prompt.{fields[0]}"


async def test_what_becomes_of_special_tokens_in_messages_is_sent(
    client: AsyncClient, tokenizer: ByteTokenizer
) -> None:
    for conversation in (USER, Conversation(USER), Conversation(USER, special_tokens="text")):
        await client.encode_chat(conversation)
    plain, text = tokenizer_pb2.SPECIAL_TOKEN_POLICY_PLAIN, tokenizer_pb2.SPECIAL_TOKEN_POLICY_TEXT
    assert [request.special_tokens for request in tokenizer.chats] == [plain, plain, text]


async def test_a_model_without_a_template_is_a_failed_precondition(
    client: AsyncClient, tokenizer: ByteTokenizer
) -> None:
    tokenizer.has_chat_template = False
    with pytest.raises(FailedPreconditionError) as caught:
        await client.chat(USER)
    assert caught.value.reason == "NO_CHAT_TEMPLATE"
    assert (await client.chat(Conversation(USER, chat_template="T"), seed=0, max_tokens=3)).text == TEXT[:3]


def test_the_synchronous_client_reads_alike(servers: ServersThread) -> None:
    with Client(servers.tokenizer_address, servers.worker_address) as client:
        assert client.encode_chat(USER).ids == prompt_of(("user", "Hi <|control|>"))
        assert client.chat(USER, seed=0, max_tokens=5).text == TEXT[:5]
        with client.stream_chat(USER, seed=0, max_tokens=5) as stream:
            assert "".join(chunk.text for chunk in stream) == TEXT[:5]


# -- tandem chat


def test_one_message_and_its_answer(servers: ServersThread) -> None:
    for arguments, given in ((["Hi"], ""), (["-"], "Hi"), ([], "Hi")):
        done = tandem(servers, "chat", *arguments, "--system", "Be brief", "--seed", "0", given=given)
        assert (done.returncode, done.stdout, done.stderr) == (0, TEXT, "")
    expected = prompt_of(("system", "Be brief"), ("user", "Hi"))
    assert [list(seen.request.prompt_ids) for seen in servers.worker.seen] == [expected] * 3


def test_an_answer_may_be_begun(servers: ServersThread) -> None:
    done = tandem(servers, "chat", "Hi", "--begin", "Sure: ", "--seed", "0", "--max-tokens", "5")
    assert (done.returncode, done.stdout) == (0, TEXT[:5])
    [seen] = servers.worker.seen
    assert bytes(index - FIRST_BYTE for index in seen.request.prompt_ids[-6:]) == b"Sure: "
    shown = tandem(servers, "chat", "Hi", "--begin", "Sure: ", "--show-prompt", "--json")
    assert json.loads(shown.stdout)["ids"] == list(seen.request.prompt_ids)


def test_the_prompt_is_shown_without_an_answer(servers: ServersThread) -> None:
    done = tandem(servers, "chat", "a b", "--show-prompt")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    *rows, count = [line.split() for line in done.stdout.splitlines()]
    assert [int(row[1]) for row in rows] == prompt_of(("user", "a b"))
    assert [row[3] for row in rows if row[2] == "content"] == ["'a'", "'", "'b'"]
    assert " ".join(count).startswith("21 tokens: 3 content, 18 template; ")
    shown = json.loads(tandem(servers, "chat", "a b", "--show-prompt", "--json").stdout)
    assert (shown["ids"], shown["content_ranges"], shown["tokens"]) == (prompt_of(("user", "a b")), [[6, 9]], 21)
    assert bytes.fromhex("".join(shown["pieces_hex"])).decode() == shown["rendered_text"]
    assert not servers.worker.seen
    code, terminal = on_a_terminal(servers, "chat", "ab", "--show-prompt")
    assert code == 0
    assert len({style for style in terminal.split("\x1b[") if style.startswith(("36m", "1;33m"))}) > 1


def test_showing_a_prompt_needs_no_worker(servers: ServersThread) -> None:
    command = [*TANDEM, "chat", "a", "--show-prompt", "--tokenizer-address", servers.tokenizer_address]
    done = subprocess.run(command, env=environment(None), capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_special_tokens_of_messages_are_chosen_by_a_flag(servers: ServersThread) -> None:
    for flags in ([], ["--special", "text"]):
        assert tandem(servers, "chat", "Hi", "--seed", "0", *flags).returncode == 0
    chosen = [request.special_tokens for request in servers.tokenizer.chats[-2:]]
    assert chosen == [tokenizer_pb2.SPECIAL_TOKEN_POLICY_PLAIN, tokenizer_pb2.SPECIAL_TOKEN_POLICY_TEXT]
    wrong = tandem(servers, "chat", "Hi", "--special", "parse")
    assert wrong.returncode != 0
    assert "special_tokens" in wrong.stderr


def test_a_model_without_a_template_says_what_to_do(servers: ServersThread, tmp_path: Any) -> None:
    servers.tokenizer.has_chat_template = False
    done = tandem(servers, "chat", "Hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: this model has no chat template")
    assert "--chat-template FILE" in done.stderr
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }}")
    assert tandem(servers, "chat", "Hi", "--seed", "0", "--chat-template", str(file)).stdout == TEXT
    assert servers.tokenizer.chats[-1].chat_template == file.read_text()
    missing = tandem(servers, "chat", "Hi", "--chat-template", str(tmp_path / "none"))
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--tokenizer-address", "127.0.0.1:1"], ["--worker-address", "127.0.0.1:1"]])
def test_one_address_alone_is_wrong_usage(arguments: list[str]) -> None:
    done = tandem(None, "chat", "Hi", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no ")


@pytest.mark.parametrize("flag", ["--tls", "--ca-file=x", "--token-file=x", "--worker-address=127.0.0.1:1"])
def test_flags_of_running_services_are_wrong_usage_where_both_are_started(flag: str) -> None:
    done = tandem(None, "chat", "Hi", "--model", ".", flag)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {flag.partition('=')[0]} is for services that run")


async def test_flags_of_encode_chat_are_checked(client: AsyncClient) -> None:
    for flag in ("rendered_text", "content_ranges", "pieces"):
        with pytest.raises(InvalidArgumentError) as caught:
            await client.encode_chat(USER, **{flag: 1})  # type: ignore[arg-type]
        assert [violation.field for violation in caught.value.violations] == [flag]


def test_flags_choose_tools_and_bound_reasoning(servers: ServersThread, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "f", "parameters": {"type": "object"}}, {"name": "g"}]')
    flags = ["--tools", str(tools), "--tool-choice", "g", "--tool-choice", "f", "--one-call", "-n", "2"]
    done = tandem(servers, "chat", "Hi", *flags, "--max-reasoning-tokens", "4")
    assert done.returncode == 0, done.stderr
    request = servers.tokenizer.chats[0]
    assert [json.loads(tool)["name"] for tool in request.tools] == ["f", "g"]
    calls = request.answer.calls
    assert (list(calls.names), calls.required, calls.single, calls.behind_reasoning) == (["g", "f"], True, True, True)
    done = tandem(servers, "chat", "Hi", "--tool-choice", "required")
    assert done.returncode == 1 and "needs a conversation with tools" in done.stderr
