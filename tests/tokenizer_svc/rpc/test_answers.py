"""Answers as events over the wire."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tandem.tokenizer.answers.events import Event, Kind, joined
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tests.tokenizer_svc.answers.answers import TOOLS, Answer, cut, said, written

Request, Open = pb.DecodeStreamRequest, pb.DecodeStreamOpen
CALL: Any = ("look_up", {"city": "Köln \N{CAT}", "n": [1, None]})


async def exchange(stub: Any, requests: Sequence[Request]) -> list[pb.DecodeStreamResponse]:
    async def send() -> AsyncIterator[Request]:
        for request in requests:
            yield request

    return [response async for response in stub.DecodeStream(send())]


def events_of(responses: Sequence[pb.DecodeStreamResponse]) -> list[Event]:
    """What the responses tell, as the parser has it."""
    found: list[Event] = []
    for event in (event for response in responses for event in response.events):
        match event.WhichOneof("event"):
            case "content":
                found.append(Event(Kind.CONTENT, event.content))
            case "reasoning":
                found.append(Event(Kind.REASONING, event.reasoning))
            case "broken_call":
                index = event.broken_call.index if event.broken_call.HasField("index") else None
                found.append(Event(Kind.BROKEN, event.broken_call.text, index))
            case _:
                call = event.tool_call
                kind = Kind.CALL if call.name else Kind.CALL_END if call.complete else Kind.ARGUMENTS
                found.append(Event(kind, call.arguments, call.index, call.name, call.id))
    return joined(found)


async def ask(stub: Any, parts: Sequence[Sequence[int]], **options: Any) -> tuple[str, list[Event]]:
    """The text and the events of ids that come in parts."""
    requests = [Request(open=Open(**options)), *(Request(ids=part) for part in parts), Request(end=True)]
    responses = await exchange(stub, requests)
    return "".join(response.text for response in responses), events_of(responses)


async def test_events_are_the_same_for_any_cut_and_the_text_is_all_that_was_written(
    start_service: Any, shared_data: Path
) -> None:
    running = await start_service()
    small = load_tokenizer(shared_data / "models/stories260K/meta")
    text, meant = written("hermes", Answer("hm", "see", [CALL, ("f", {})]))
    ids = small.encode(text, add_special=False)
    answer = pb.AnswerParsing(format="hermes", tools=list(map(json.dumps, TOOLS)))
    whole, events = await ask(running.stub, [ids], answer=answer)
    assert whole == text and said(events) == meant
    chance = random.Random(1)
    for _ in range(20):
        places = [len(part) for part in cut("x" * len(ids), chance)]
        parts = [ids[sum(places[:n]) : sum(places[: n + 1])] for n in range(len(places))]
        assert await ask(running.stub, parts, answer=answer) == (whole, events)


async def test_a_stop_string_ends_the_events_with_the_text(start_service: Any, shared_data: Path) -> None:
    running = await start_service()
    small = load_tokenizer(shared_data / "models/stories260K/meta")
    ids = small.encode("<think>one</think>two three four", add_special=False)
    options: dict[str, Any] = {"answer": pb.AnswerParsing(format="think"), "stop_strings": [" three"]}
    for parts in ([ids], [[each] for each in ids]):
        assert await ask(running.stub, parts, **options) == (
            "<think>one</think>two",
            [Event(Kind.REASONING, "one"), Event(Kind.CONTENT, "two")],
        )


def llama3(shared_data: Path, folder: Path, template: str) -> Path:
    """Llama 3's vocabulary with a template."""
    target = folder / "llama3"
    target.mkdir()
    (target / "tokenizer.model").symlink_to(shared_data / "formats/llama3/tokenizer.model")
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return target


async def test_the_template_gives_the_format_away_and_its_control_tokens_are_seen(
    start_service: Any, shared_data: Path, tmp_path: Path
) -> None:
    template = (shared_data / "chat/templates/meta-llama-Llama-3.1-8B-Instruct.jinja").read_text()
    folder = llama3(shared_data, tmp_path, template)
    running = await start_service(tokenizer=(f"llama={folder}",), metrics_enabled=False)
    told = (await running.stub.GetTokenizer(pb.GetTokenizerRequest())).tokenizer
    assert told.answer_format == "llama3"
    tokenizer = load_tokenizer(folder)
    [tag, end] = (
        next(token.id for token in tokenizer.table.specials if token.text == text)
        for text in ("<|python_tag|>", "<|eot_id|>")
    )
    ids = [tag, *tokenizer.encode('{"name": "f", "parameters": {"a": 1}}', add_special=False), end]
    text, events = await ask(running.stub, [[each] for each in ids], answer=pb.AnswerParsing())
    assert text == '<|python_tag|>{"name": "f", "parameters": {"a": 1}}'  # the end of the turn means nothing here
    assert said(events) == Answer(calls=[("f", {"a": 1})])
    text, events = await ask(running.stub, [ids], answer=pb.AnswerParsing(without_calls=True))
    assert text == '{"name": "f", "parameters": {"a": 1}}' and events == [Event(Kind.CONTENT, text)]
    plain, none = await ask(running.stub, [ids])
    assert plain == text and none == []
    registry = running.service.metrics.registry
    labels = {"tokenizer": "llama", "format": "llama3", "result": "complete"}
    assert registry.get_sample_value("tandem_tokenizer_tool_calls_total", labels) == 1


async def test_a_prompt_that_ends_in_reasoning_is_seen_by_its_last_ids(start_service: Any, shared_data: Path) -> None:
    running = await start_service()
    small = load_tokenizer(shared_data / "models/stories260K/meta")
    ids = small.encode("hm</think>yes", add_special=False)
    opened, closed = (small.encode(text, add_special=False) for text in ("me: <think>\n", "<think></think>\n"))
    reasoned = [Event(Kind.REASONING, "hm"), Event(Kind.CONTENT, "yes")]
    for context, given, expected in (
        (opened, None, reasoned),
        (closed, None, [Event(Kind.CONTENT, " hm</think>yes")]),
        (closed, True, reasoned),
        (opened, False, [Event(Kind.CONTENT, " hm</think>yes")]),
    ):
        answer = pb.AnswerParsing(format="hermes", in_reasoning=given)
        assert (await ask(running.stub, [ids], answer=answer, context_ids=context))[1] == expected


async def test_what_is_wrong_with_the_parsing_is_named(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    for answer, field in (
        (pb.AnswerParsing(format="klingon"), "open.answer.format"),
        (pb.AnswerParsing(tools=["[]"]), "open.answer.tools[0]"),
        (pb.AnswerParsing(tools=["{"]), "open.answer.tools[0]"),
        (pb.AnswerParsing(tools=["[" * 100_000]), "open.answer.tools[0]"),
        (pb.AnswerParsing(tools=['{"a": "' + "x" * (1 << 18) + '"}']), "open.answer.tools"),
        (pb.AnswerParsing(tools=["{}"] * 1025), "open.answer.tools"),
    ):
        refused = await refusal(exchange(running.stub, [Request(open=Open(answer=answer))]))
        assert list(refused.violations) == [field], answer


GEMMA4_MARKERS = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>']
GEMMA4_TEMPLATE = (
    "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n"
    "{% if enable_thinking %}<|channel>{% else %}<|channel>thought\n<channel|>{% endif %}"
)


def gemma4(folder: Path) -> Path:
    """Single bytes, the control tokens of Gemma 4, and a template with its turns."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(models.BPE({sign: place for place, sign in enumerate(bytes_)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(GEMMA4_MARKERS)
    target = folder / "gemma4"
    target.mkdir()
    library.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": GEMMA4_TEMPLATE}))
    return target


async def test_gemma_4s_control_tokens_mark_its_thought_and_its_calls(start_service: Any, tmp_path: Path) -> None:
    folder = gemma4(tmp_path)
    running = await start_service(tokenizer=(f"gemma={folder}",))
    told = (await running.stub.GetTokenizer(pb.GetTokenizerRequest())).tokenizer
    assert told.answer_format == "gemma4"
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin, end = (library.token_to_id(mark) for mark in ("<|channel>", "<channel|>"))
    text, meant = written("gemma4", Answer("hm", "See.", [CALL, ("f", {})]))
    for thinks in (True, False):
        chat = pb.EncodeChatRequest(
            messages=[pb.ChatMessage(role="user", content="Hi <|channel>")],
            template_arguments=json.dumps({"enable_thinking": thinks}),
            tools=list(map(json.dumps, TOOLS)),
            answer=pb.AnswerGuiding(calls=pb.CallChoice(required=True)),
        )
        prompt = await running.stub.EncodeChat(chat)
        assert prompt.answer.in_reasoning is thinks and prompt.answer.grammar
        assert (list(prompt.answer.reasoning_begin_ids), list(prompt.answer.reasoning_end_ids)) == ([begin], [end])
        ids = library.encode(text.removeprefix("<|channel>") if thinks else text, add_special_tokens=False).ids
        ids.append(library.token_to_id("<turn|>"))  # which means nothing here
        for parts in ([ids], [[each] for each in ids]):
            said_text, events = await ask(
                running.stub, parts, answer=pb.AnswerParsing(tools=list(map(json.dumps, TOOLS))), context_ids=prompt.ids
            )
            assert said(events) == meant and said_text in text and "<turn|>" not in said_text


async def test_a_schema_of_what_is_no_call_needs_a_format_that_knows_calls(start_service: Any, tmp_path: Path) -> None:
    running = await start_service(tokenizer=(f"gemma={gemma4(tmp_path)}",))
    schema = '{"type": "object", "properties": {"sure": {"type": "boolean"}}}'

    async def asked(form: str = "", **calls: Any) -> pb.AnswerGuide:
        answer = pb.AnswerGuiding(format=form, calls=pb.CallChoice(**calls))
        messages = [pb.ChatMessage(role="user", content="Hi")]
        request = pb.EncodeChatRequest(messages=messages, tools=list(map(json.dumps, TOOLS)), answer=answer)
        return (await running.stub.EncodeChat(request)).answer

    assert '"sure"' in (await asked(content_schema=schema)).grammar
    assert '"sure"' in (await asked(content_schema=schema, single=True, behind_reasoning=True)).grammar
    assert not (await asked("none", content_schema=schema)).grammar
    for wrong in (
        {"content_schema": "{"},
        {"content_schema": schema, "required": True},
        {"content_schema": "x" * 65_537},
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(**wrong)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "answer.calls.content_schema" in (caught.value.details() or "")
