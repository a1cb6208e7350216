"""Under PLAIN and REJECT no token of a tokenizer's list comes out of text, and in chats only what templates write."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.chat.encoding import encode_runs
from tandem.tokenizer.chat.template import ROLES, render
from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.encoding import Policy, Segment, SpecialTokenInText
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.vocabulary import TokenType, VocabularyType
from tests.conftest import REPOSITORY

DATA = REPOSITORY.parent / "shared" / "data"
FOLDERS = ("llama2", "llama3", "phi-2", "t5-small", "sentencepiece/test_model.model")
FILES = [*sorted((DATA / "vocabularies").glob("*.gguf")), *(DATA / "formats" / name for name in FOLDERS)]
# They spell only characters, and change others.
LOSSY = (VocabularyType.WPM, VocabularyType.UGM)
USER_DEFINED_PIECES = ("▁the", "ing", "e", "▁t", "▁quick", "é")

load = cache(load_tokenizer)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def tokenizer(request: pytest.FixtureRequest, shared_data: Path) -> Tokenizer:
    return load(request.param)


def listed(tokenizer: Tokenizer) -> set[int]:
    """The ids that must not come out of untrusted text."""
    blank = {token.id for token in tokenizer.table.specials if token.text.replace("▁", " ").isspace()}
    return {token.id for token in tokenizer.table.specials} - blank - {tokenizer.config.unk_id}


def check(tokenizer: Tokenizer, text: str) -> None:
    segments = [Segment(text, Policy.PLAIN)]
    encoding = tokenizer.encode_segments(segments, add_special=False, with_offsets=True)
    ids = encoding.ids
    assert not listed(tokenizer).intersection(ids), text
    assert tokenizer.encode_segments(segments, add_special=False).ids == ids
    cached = tokenizer.with_cache(EncodeCache(1 << 20))
    for policy in (Policy.TEXT, Policy.PLAIN, Policy.TEXT, Policy.PLAIN):  # what one remembers is not the other's
        found = cached.encode_segments([Segment(text, policy)], add_special=False).ids
        assert found == tokenizer.encode_segments([Segment(text, policy)], add_special=False).ids
    assert encoding.byte_offsets == sorted(encoding.byte_offsets or [])
    if tokenizer.type not in LOSSY:
        plain = text.replace("▁", " ") if tokenizer.type == VocabularyType.SPM else text
        assert tokenizer.decode(ids, unparse_special=True) == plain
    with suppress(SpecialTokenInText):
        assert tokenizer.encode_segments([Segment(text, Policy.REJECT)], add_special=False).ids == ids


def test_the_text_of_no_listed_token_becomes_it(tokenizer: Tokenizer) -> None:
    texts = list(dict.fromkeys(token.text for token in tokenizer.table.specials if token.text))
    for text in texts[:300]:
        check(tokenizer, text)
        check(tokenizer, f"a{text}b {text} \n{text}")
    check(tokenizer, "".join(texts[:300]))


@pytest.mark.usefixtures("shared_data")
@given(data=st.data())
def test_no_text_becomes_a_listed_token(data: st.DataObject) -> None:
    tokenizer = load(data.draw(st.sampled_from(FILES)))
    specials = [token.text for token in tokenizer.table.specials if token.text]
    words = st.sampled_from(specials) | st.sampled_from(["  ", "\n", " a", "<|", "|>", "é", "õ", "▁", "[PAD", "5]"])
    part = (
        words | st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=5) | words.map(lambda t: t[1:])
    )
    check(tokenizer, "".join(data.draw(st.lists(part, max_size=8))))


def with_user_defined(pieces: Collection[str], path: Path, tmp_path: Path) -> Tokenizer:
    """A model some of whose ordinary pieces are USER_DEFINED: its vocabulary makes them of any text."""
    model = ModelProto()
    model.ParseFromString(path.read_bytes())
    for piece in model.pieces:
        if piece.piece in pieces:
            piece.type = TokenType.USER_DEFINED
    file = tmp_path / "tokenizer.model"
    file.write_bytes(model.SerializeToString())
    return load_tokenizer(file)


@pytest.mark.parametrize("name", ["llama2/tokenizer.model", "sentencepiece/test_model.model"])
def test_what_the_vocabulary_itself_would_make_is_spelt_by_smaller_pieces(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    tokenizer = with_user_defined(USER_DEFINED_PIECES, shared_data / "formats" / name, tmp_path)
    assert len(listed(tokenizer)) > 4
    text = "the   thing\n\n éte the quickest▁the"
    assert listed(tokenizer).intersection(tokenizer.encode_segments([Segment(text)]).ids)
    for part in (text, *text.split(), text * 20):
        check(tokenizer, part)


def test_user_defined_tokens_of_white_space_alone_stay_tokens(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = with_user_defined(("▁▁▁", "▁the"), shared_data / "formats/llama2/tokenizer.model", tmp_path)
    id_of = {token.text: token.id for token in tokenizer.table.specials}
    ids = tokenizer.encode_segments([Segment("a   b the", Policy.PLAIN)]).ids
    assert id_of["   "] in ids
    assert id_of[" the"] not in ids


def test_reject_refuses_control_tokens_alone(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = with_user_defined(["▁the"], shared_data / "formats/llama2/tokenizer.model", tmp_path)
    assert tokenizer.encode_segments([Segment("a the", Policy.REJECT)])
    with pytest.raises(SpecialTokenInText):
        tokenizer.encode_segments([Segment("a</s>", Policy.REJECT)])


@pytest.mark.parametrize("name", ["ggml-vocab-gpt-neox", "ggml-vocab-phi-3", "phi-2"])
def test_ordinary_text_has_the_ids_that_it_has_under_text(name: str, shared_data: Path) -> None:
    [path] = [path for path in FILES if path.stem == name]
    text = "def f(x):\n        return x  # 1 < 2\n\n\t\tpass\n" + "Grüße, 龘 👩‍🚀" + " " * 40 + "x"
    plain, as_text = (load(path).encode_segments([Segment(text, policy)]).ids for policy in (Policy.PLAIN, Policy.TEXT))
    assert plain == as_text


# -- chats

LISTED = ("<|user|>", "<|end|>", "<think>", "<tool_call>", "<|a|>")


@pytest.fixture(scope="module")
def chatty(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Llama 2's vocabulary with tokens of both kinds."""
    folder = tmp_path_factory.mktemp("chatty")
    (folder / "tokenizer.model").write_bytes((shared_data / "formats/llama2/tokenizer.model").read_bytes())
    added = {
        str(32_000 + number): {"content": text, "special": text.startswith("<|")} for number, text in enumerate(LISTED)
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return load_tokenizer(folder)


def listed_in(tokenizer: Tokenizer, template: str, policy: Policy = Policy.PLAIN, **message: Any) -> list[str]:
    """The texts of listed tokens in a conversation of one message."""
    question = {
        "template": "{% set m = messages[0] %}" + template,
        "messages": [{"role": "user", "content": "", **message}],
        "tools": [{"name": "<|a|>", "<think>": 1}],
        "add_generation_prompt": True,
        "arguments": {"x": "<|a|><think>", "eos": "<|end|>"},
        "special_tokens": {"eos_token": "<|end|>"},
    }
    ids = encode_runs(tokenizer, render(question, 10_000), False, policy).ids
    texts = {token.id: token.text for token in tokenizer.table.specials}
    return [texts[index] for index in ids if index in texts]


def test_tokens_that_the_template_writes_are_tokens(chatty: Tokenizer) -> None:
    assert listed_in(chatty, "<|user|>{{ m.content }}<think>{{ eos_token }}", content="hi") == [
        "<|user|>", "<think>", "<|end|>",
    ]  # fmt: skip


EVERYTHING = (
    "{{ m.content }}{{ m.name }}{{ m.tool_call_id }}{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].id }}"
    "{{ m.tool_calls | tojson }}{{ tools | tojson(indent=1, sort_keys=true, separators=('<', '|a|>')) }}{{ tools }}"
    "{{ x }}{{ m | tojson(ensure_ascii=true) }}{{ eos }}{{ m }}{{ m.content | safe }}{{ m.content | e | safe }}"
    "{{ x | tojson }}{{ tools[0].keys() | first }}{{ m.content.split('h') | join('') }}{{ m.content | list | join }}"
)


@pytest.mark.parametrize("text", LISTED)
def test_nothing_that_a_caller_gives_becomes_a_listed_token(chatty: Tokenizer, text: str) -> None:
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": {text: [text]}}}
    given = {"content": text, "name": text, "tool_call_id": text, "tool_calls": [call]}
    assert listed_in(chatty, EVERYTHING, **given) == []
    user_defined = [each for each in listed_in(chatty, EVERYTHING, Policy.TEXT, **given) if each != text]
    assert set(user_defined) <= {"<think>"}  # of the tools and arguments
    assert (text in listed_in(chatty, "{{ m.content }}", Policy.TEXT, **given)) is (text in ("<think>", "<tool_call>"))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ '<|' + m.role + '|>' }}", {"role": "end"}),
        ("{{ '<|' ~ m.role ~ '|>' }}", {"role": "a"}),
        ("<|{{ m.role }}|>", {"role": "end"}),
        ("<|{{ m.role.lower() }}|>", {"role": "END"}),
        ("<|{{ m.role | trim }}|>", {"role": "a"}),
        ("{{ '<|%s|>' | format(m.role) }}", {"role": "a"}),
        ("{{ ['<|', m.role, '|>'] | join }}", {"role": "a"}),
        ("{{ '<' + m.role }}", {"role": "think>"}),
        ("<|{{ m.name }}|>", {"name": "user"}),
        ("<{{ m.content }}>", {"content": "think"}),
        ("<{{ m.content }}", {"content": "think>"}),
        ("{{ m.content }}think>", {"content": "<"}),
        ("{{ m.content }}{{ m.name }}", {"content": "<th", "name": "ink>"}),
        ("{{ '<|b|>' | replace('b', m.content) }}", {"content": "a"}),
        ("{{ m.content.replace('x', '|') }}", {"content": "<xaxend"}),
        ("<|{{ m.tool_calls[0].function.name }}|>", {"tool_calls": [{"function": {"name": "a"}}]}),
    ],
)
def test_no_token_is_made_of_what_template_and_caller_wrote(
    chatty: Tokenizer, template: str, message: dict[str, Any]
) -> None:
    assert listed_in(chatty, template, **message) == []


def test_a_template_may_write_a_token_around_the_roles_it_is_written_for(chatty: Tokenizer) -> None:
    """As Phi-3's does."""
    assert listed_in(chatty, "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}", role="user", content="<|a|>") == [
        "<|user|>", "<|end|>",
    ]  # fmt: skip


def test_the_contract_names_these_roles(repository: Path) -> None:
    contract = (repository / "protos/tandem/tokenizer/v1/tokenizer.proto").read_text(encoding="utf-8")
    named = contract.partition("where it is one of ")[2].partition(";")[0].replace("//", "")
    assert {role.strip() for role in named.split(",")} == ROLES


def roles_and_texts() -> Iterator[tuple[str, str]]:
    for text in LISTED:
        for cut in range(1, len(text)):
            yield text[:cut], text[cut:]


def test_no_place_to_cut_a_token_makes_it_one(chatty: Tokenizer) -> None:
    for left, right in roles_and_texts():
        for template in (f"{left}{{{{ m.content }}}}", "{{ m.role }}{{ m.content }}"):
            assert listed_in(chatty, template, content=right, role=left) == []
        assert listed_in(chatty, f"{{{{ m.content }}}}{right}", content=left) == []


async def test_chats_over_the_wire_are_plain_unless_they_say_text(
    start_service: Any, refusal: Any, shared_data: Path
) -> None:
    running = await start_service(tokenizer=(f"{shared_data}/formats/phi-2",))
    load_phi = load(shared_data / "formats/phi-2")
    indent = next(token for token in load_phi.table.specials if token.text == "    ")
    request = pb.EncodeChatRequest(
        messages=[pb.ChatMessage(role="user", content="<|endoftext|>x    y")], chat_template="{{ messages[0].content }}"
    )
    plain = await running.stub.EncodeChat(request)
    assert indent.id in plain.ids
    assert load_phi.config.eos_id not in plain.ids
    request.special_tokens = pb.SPECIAL_TOKEN_POLICY_TEXT
    assert (await running.stub.EncodeChat(request)).ids == plain.ids
    for policy in (pb.SPECIAL_TOKEN_POLICY_PARSE, pb.SPECIAL_TOKEN_POLICY_REJECT, 77):
        request.special_tokens = policy
        refused = await refusal(running.stub.EncodeChat(request))
        assert (refused.code, list(refused.violations)) == (grpc.StatusCode.INVALID_ARGUMENT, ["special_tokens"])
