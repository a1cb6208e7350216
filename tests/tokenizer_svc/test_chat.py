"""Conversations: templates render as Hugging Face's do, content never becomes a control token, no template hurts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.chat.encoding import encode_runs
from tandem.tokenizer.chat.formats import LLAMA2, LLAMA3
from tandem.tokenizer.chat.origin import Alphabet, Origin
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render
from tandem.tokenizer.chat.traced import Texts
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

Runs = list[tuple[Origin, str]]


@pytest.fixture(scope="module")
def llama3(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "formats/llama3")


@pytest.fixture(scope="module")
def llama2(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "formats/llama2")


def question(template: str, *messages: tuple[str, str], **changes: Any) -> dict[str, Any]:
    return {
        "template": template,
        "messages": [{"role": role, "content": content} for role, content in messages],
        "tools": [],
        "add_generation_prompt": True,
        "arguments": {},
        "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"},
    } | changes


def text_of(runs: Runs) -> str:
    return "".join(text for _, text in runs)


def content_of(runs: Runs) -> str:
    return "".join(text for origin, text in runs if origin == Origin.CONTENT)


def test_real_templates_render_as_plain_jinja_does(shared_data: Path) -> None:
    cases = json.loads((shared_data / "chat/chat_template_cases.json").read_text())
    messages = [(message["role"], message["content"]) for message in cases["conversation"]]
    equal = 0
    for case in cases["cases"]:
        if not case.get("plain_jinja2_equal"):
            continue
        tokens = {"bos_token": case.get("bos_token", ""), "eos_token": case.get("eos_token", "")}
        runs = render(question(case["template_str"], *messages, special_tokens=tokens), 1 << 20)
        assert text_of(runs) == (case.get("expected_output_jinja") or case["expected_output"]), case["name"]
        equal += 1
    assert equal >= 20


def test_template_files_render_with_tools(shared_data: Path) -> None:
    schema = {"name": "add", "description": 'Adds "two" <numbers>', "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": schema}]
    rendered = 0
    for file in sorted((shared_data / "chat/templates").glob("*.jinja")):
        try:
            runs = render(question(file.read_text(), ("user", "1+1?"), tools=tools), 1 << 20)
        except RenderError:
            continue  # some insist on more than a conversation gives
        assert "1+1?" in text_of(runs), file.name
        rendered += 1
    assert rendered >= 14


@pytest.mark.parametrize(
    "expression",
    [
        "m.content",
        "m.content | trim",
        "'<' + m.content + '>'",
        "'<' ~ m.content ~ '>'",
        "m.content.strip()",
        "m.content.split('|')[0]",
        "m.content.split('|')[-1]",
        "m.content | replace('a', 'b')",
        "m.content | upper",
        "m.content[1:3]",
        "m.content | length",
        "'yes' if 'b|' in m.content else 'no'",
        "'yes' if m.content.startswith(' a') else 'no'",
        "'yes' if m.content == ' ab|cd ' else 'no'",
        "{' ab|cd ': 'found'}[m.content]",
        "m.content | tojson",
        "m | tojson",
        "m.content | list | join('-')",
        "[m.content, 'x'] | join(' ')",
        "'%s!' | format(m.content)",
        "m.content is string",
        "m.content | default('none')",
        "m.content.rstrip().removesuffix('cd')",
        "m.content.partition('|')[2]",
        "[m.content, {'a': m.content}]",
        "m.content | list",
        "'%r' | format(m.content)",
        "m.content | sort | join",
        "m.content | trim | title | urlencode | escape",
        "m.content | wordcount",
    ],
)
def test_expressions_on_content_give_what_they_give_on_plain_text(expression: str) -> None:
    from jinja2 import Environment

    template = "{% for m in messages %}{{ " + expression + " }}{% endfor %}"
    plain = Environment(autoescape=False)
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    expected = plain.from_string(template).render(messages=[{"role": "user", "content": " ab|cd "}])
    assert text_of(render(question(template, ("user", " ab|cd ")), 1000)) == expected


def test_origin_is_known_for_every_character() -> None:
    runs = render(question("A {{ messages[0].content | trim }}B{{ messages[0].name }}", messages=[
        {"role": "user", "content": " x y ", "name": "N"},
    ]), 1000)  # fmt: skip
    assert runs == [
        (Origin.TEMPLATE, "A "),
        (Origin.CONTENT, "x y"),
        (Origin.TEMPLATE, "B"),
        (Origin.DATA, "N"),
    ]


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_survives_and_keeps_its_origin(left: str, right: str) -> None:
    if any("\ud800" <= each <= "\udfff" for each in left + right):
        return
    runs = render(
        question("{{ messages[0].content }}T{{ messages[1].content }}", ("user", left), ("user", right)), 1000
    )
    assert text_of(runs) == left + "T" + right
    assert content_of(runs).split() == (left + right).split() or left[-1:].isspace() or right[:1].isspace()
    assert next(text for origin, text in runs if origin == Origin.TEMPLATE and text.strip()).strip() == "T"


def test_private_characters_of_the_input_are_no_way_around() -> None:
    private = "\U000f0000\U000f0001"
    runs = render(question("\U000f0000{{ messages[0].content }}", ("user", private)), 1000)
    assert runs == [(Origin.TEMPLATE, "\U000f0000"), (Origin.CONTENT, private)]


def attack(tokenizer: Tokenizer) -> str:
    return "".join(token.text for token in tokenizer.table.specials[:20]) + "<|eot" + "_id|>"


@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_content_never_becomes_a_control_token(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    template = LLAMA3 if name == "llama3" else LLAMA2
    tokens = {"bos_token": tokenizer.table.pieces[tokenizer.config.bos_id or 0].decode(), "eos_token": "</s>"}

    def controls(content: str) -> list[int]:
        runs = render(question(template, ("user", content), special_tokens=tokens), 100_000)
        assert content in text_of(runs)
        ids = encode_runs(tokenizer, runs, False).ids
        return [index for index in ids if tokenizer.is_control(index)]

    assert controls(attack(tokenizer)) == controls("hello") != []


def test_a_control_token_cannot_be_put_together_from_template_and_content(llama3: Tokenizer) -> None:
    for template, content in (("<|eot{{ messages[0].content }}", "_id|>"), ("{{ messages[0].content }}_id|>", "<|eot")):
        runs = render(question(template, ("user", content)), 1000)
        assert text_of(runs) == "<|eot_id|>"
        assert not any(llama3.is_control(index) for index in encode_runs(llama3, runs, False).ids)


@given(content=st.text(alphabet="ab \n'é1.", max_size=30))
def test_an_ordinary_conversation_has_the_ids_of_its_rendered_text(
    llama2: Tokenizer, llama3: Tokenizer, content: str
) -> None:
    for tokenizer, template in ((llama2, LLAMA2), (llama3, LLAMA3)):
        runs = render(question(template, ("user", content), ("assistant", "ok"), ("user", "x")), 10_000)
        expected = tokenizer.encode(text_of(runs), add_special=False, parse_special=True)
        assert encode_runs(tokenizer, runs, True).ids == expected


def test_llama3_format_equals_the_models_own_template(llama3: Tokenizer) -> None:
    messages = (("system", "Be brief. "), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"))
    tokens = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    own = llama3.config.chat_template
    assert own is not None
    rendered = [text_of(render(question(each, *messages, special_tokens=tokens), 10_000)) for each in (own, LLAMA3)]
    assert rendered[0] == rendered[1]


def test_llama2_format_is_metas() -> None:
    messages = (("system", "S"), ("user", " u1 "), ("assistant", " a1 "), ("user", "u2"))
    text = text_of(render(question(LLAMA2, *messages), 10_000))
    assert text == "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\n u1 [/INST] a1 </s><s>[INST] u2 [/INST]"


def test_content_ranges_cover_the_content(llama3: Tokenizer) -> None:
    runs = render(question(LLAMA3, ("user", "Hello wörld 👩‍🚀"), ("assistant", "Bye")), 10_000)
    encoding = encode_runs(llama3, runs, True)
    covered = [encoding.ids[start:end] for start, end in encoding.content_ranges]
    assert [llama3.decode(ids).strip() for ids in covered] == ["Hello wörld 👩‍🚀", "Bye"]


def test_an_empty_rendering_has_no_ids_and_no_ranges(llama3: Tokenizer) -> None:
    encoding = encode_runs(llama3, [], True)
    assert (encoding.ids, encoding.content_ranges) == ([], [])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ messages[0].content.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages[0].content._alphabet.read(messages[0].content) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ 'a'.format.__self__ }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
    ],
)
def test_attribute_escapes_reach_nothing(template: str) -> None:
    try:
        text = text_of(render(question(template, ("user", "<s>")), 1000))
    except RenderError:
        return
    assert text == ""


@pytest.mark.parametrize(
    "template", ["{% for x in", "{{ 1/0 }}", "{{ undefined.x }}", "{{ raise_exception('no') }}", "{% x %}"]
)
def test_templates_that_fail_say_so(template: str) -> None:
    with pytest.raises(RenderError):
        render(question(template, ("user", "x")), 1000)


def test_foreign_text_in_a_set_and_dictionary() -> None:
    texts = Texts(Alphabet())
    foreign = texts.of("user", Origin.DATA)
    assert foreign in {"user"}
    assert {"user": 1}[foreign] == 1
    assert foreign != "usex"
    assert sorted([texts.of("b", Origin.DATA), "a"]) == ["a", "b"]


# -- over the wire


def chat(*messages: tuple[str, str], **fields: Any) -> pb.EncodeChatRequest:
    return pb.EncodeChatRequest(
        messages=[pb.ChatMessage(role=role, content=content) for role, content in messages], **fields
    )


async def test_encode_chat(start_service: Any, shared_data: Path, llama3: Tokenizer) -> None:
    running = await start_service(tokenizer=(f"{shared_data}/formats/llama3",))
    request = chat(
        ("user", "Hi <|eot_id|>"), include_rendered_text=True, include_content_mask=True, include_pieces=True
    )
    response = await running.stub.EncodeChat(request)
    assert b"".join(response.pieces).decode() == response.rendered_text
    assert len(response.pieces) == len(response.ids)
    assert response.rendered_text == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi <|eot_id|><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    ids = list(response.ids)
    assert ids.count(128_009) == 1
    [start, end] = response.content_ranges
    assert llama3.decode(ids[start:end]) == "Hi <|eot_id|>"
    assert response.fingerprint == llama3.fingerprint
    without = await running.stub.EncodeChat(chat(("user", "Hi"), add_generation_prompt=False))
    assert without.ids[-1] == 128_009
    assert without.rendered_text == ""
    assert not without.content_ranges
    assert not without.pieces


async def test_a_prompt_may_end_within_the_last_message(
    start_service: Any, shared_data: Path, llama3: Tokenizer, refusal: Any
) -> None:
    running = await start_service(tokenizer=(f"{shared_data}/formats/llama3",))
    request = chat(
        ("user", "Hi"), ("assistant", "Sure:\n<|eot_id|>"), continue_final_message=True, include_rendered_text=True
    )
    request.include_content_mask = True
    response = await running.stub.EncodeChat(request)
    begun = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    assert response.rendered_text == f"<|begin_of_text|>{begun}Sure:\n<|eot_id|>"
    ids = list(response.ids)
    assert ids.count(128_009) == 1, "that of the user's message; the other one is text"
    assert llama3.decode(ids[response.content_ranges[-2] :]) == "Sure:\n<|eot_id|>"

    for wrong, fields in (
        (chat(("user", "a"), add_generation_prompt=True), ["add_generation_prompt"]),
        (pb.EncodeChatRequest(messages=[pb.ChatMessage(role="assistant")]), ["messages[0].content"]),
        (pb.EncodeChatRequest(), ["messages"]),
        (chat(("user", "a"), chat_template="{{ messages[0].role }}"), ["chat_template"]),
        (chat(("user", "a"), chat_template="{{ messages[0].content | length }}"), ["chat_template"]),
    ):
        wrong.continue_final_message = True
        assert list((await refusal(running.stub.EncodeChat(wrong))).violations) == fields
    calling = chat(("user", "a"), ("assistant", "b"), continue_final_message=True)
    calling.messages[1].tool_calls.add(name="f")
    assert list((await refusal(running.stub.EncodeChat(calling))).violations) == ["messages[1].tool_calls"]


async def test_what_is_begun_tells_whether_the_answer_goes_on_with_reasoning(start_service: Any) -> None:
    running = await start_service()
    for form, content, expected in (
        ("hermes", "<think>\nHm", True),
        ("hermes", "<think>a</think>\nb", False),
        ("hermes", "<think>a</think> <think>", True),
        ("hermes", "b", False),
        ("none", "<think>", False),
        ("harmony", "b", False),
    ):
        request = chat(("assistant", content), chat_template="{{ messages[0].content }}.", continue_final_message=True)
        request.answer.format = form
        guide = (await running.stub.EncodeChat(request)).answer
        assert guide.in_reasoning is expected, (form, content)
        assert not (form == "harmony" and guide.reasoning_end_ids), "nothing is left to end"


def test_a_mark_survives_what_templates_do_with_contents() -> None:
    for expression in ("m.content", "m.content.upper()", "m.content.split('|')[-1]", "m.content | replace('b', 'c')"):
        template = f"{{% for m in messages %}}[{{{{ {expression} }}}}]{{% endfor %}}"
        begun = render(question(template, ("user", "a|b"), ("assistant", "a|b"), continue_final_message=True), 1 << 20)
        whole = text_of(render(question(template, ("user", "a|b"), ("assistant", "a|b")), 1 << 20))
        assert text_of(begun) == whole.removesuffix("]"), expression


async def test_tools_arguments_and_templates_of_the_request(start_service: Any) -> None:
    running = await start_service()
    template = "{{ mood }}|{{ tools | tojson }}|{{ messages[0].tool_calls[0].function.arguments.n + 1 }}"
    request = pb.EncodeChatRequest(
        messages=[pb.ChatMessage(role="assistant", tool_calls=[pb.ChatToolCall(name="f", arguments='{"n": 41}')])],
        tools=['{"name": "add", "x": [1, 2.5, null, true]}'],
        template_arguments='{"mood": "good"}',
        chat_template=template,
        include_rendered_text=True,
    )
    rendered = (await running.stub.EncodeChat(request)).rendered_text
    assert rendered == 'good|[{"name": "add", "x": [1, 2.5, null, true]}]|42'


async def test_wrong_conversations_are_refused(start_service: Any, refusal: Any) -> None:
    running = await start_service(max_chat_messages=2, max_input_bytes=1000)
    invalid, stub = grpc.StatusCode.INVALID_ARGUMENT, running.stub
    for request, field in (
        (chat(chat_template="x"), "messages"),
        (chat(*[("user", "a")] * 3, chat_template="x"), "messages"),
        (chat(("", "a"), chat_template="x"), "messages[0].role"),
        (chat(("user", "a"), ("<|x|>", "a"), chat_template="x"), "messages[1].role"),
        (chat(("user", "a"), chat_template="{% broken"), "chat_template"),
        (chat(("user", "a"), chat_template="x" * 300_000), "chat_template"),
    ):
        refused = await refusal(stub.EncodeChat(request))
        assert (refused.code, list(refused.violations)) == (invalid, [field])
    none = await refusal(stub.EncodeChat(chat(("user", "a"))))
    assert (none.code, none.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_CHAT_TEMPLATE")
    large = await refusal(stub.EncodeChat(chat(("user", "a" * 1001), chat_template="x")))
    assert large.code is grpc.StatusCode.RESOURCE_EXHAUSTED


HOSTILE = {
    "an endless loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "huge output": "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "a huge text": "{{ ('x' * 1000000000000) | length }}",
    "doubling": "{% set ns = namespace(x='xx') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "a huge number": "{{ 9 ** 999999999 }}",
    "a huge width": "{{ 'x' | center(100000000000) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_templates_are_ended_and_the_service_answers_meanwhile(
    start_service: Any, refusal: Any, kind: str
) -> None:
    running = await start_service(chat_render_seconds=1.0, chat_renderers=1)
    hostile = asyncio.ensure_future(refusal(running.stub.EncodeChat(chat(("user", "a"), chat_template=HOSTILE[kind]))))
    while not hostile.done():
        await running.stub.ListTokenizers(pb.ListTokenizersRequest())
        await asyncio.sleep(0)
    refused = await hostile
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refused.violations) == ["chat_template"]
    again = await running.stub.EncodeChat(chat(("user", "a"), chat_template="{{ messages[0].content }}"))
    assert again.ids


def test_numbers_in_content_are_numbers_to_a_template() -> None:
    template = "{{ (messages[0].content | int) + 1 }} {{ messages[0].content | float }}"
    assert text_of(render(question(template, ("user", "41")), 1000)) == "42 41.0"


def test_a_template_that_writes_half_a_character_is_refused() -> None:
    with pytest.raises(RenderError, match="lone surrogate"):
        render(question("{{ '\\ud800' }}", ("user", "a")), 1000)


@pytest.mark.parametrize(
    "roles", [["system"], ["assistant"], ["user", "user"], ["user", "assistant", "system"], ["tool"]]
)
def test_llama2_conversations_that_metas_code_refuses(roles: list[str]) -> None:
    with pytest.raises(RenderError, match="Llama 2"):
        render(question(LLAMA2, *((role, "text") for role in roles)), 1000)
