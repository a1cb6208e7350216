"""Budgets of reasoning on a model whose marks are tokens: the demo model, two of whose rare ids are renamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.client import AsyncClient, Choices, Conversation, InvalidArgumentError
from tests.client.test_real_services import Process

pytest.importorskip("torch", reason="the worker needs torch")

pytestmark = pytest.mark.slow

THINK, END_THINK = 2046, 2047
TEMPLATE = """{{ bos_token }}{% for message in messages %}{{ message.content }}
{% endfor %}ROMEO:
{% if enable_thinking %}<think>{% endif %}"""
MESSAGES: list[Any] = [{"role": "user", "content": "O Romeo?"}]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[tuple[str, str]]:
    model, folder = repository / "models" / "demo", tmp_path_factory.mktemp("thinks")
    pieces = ModelProto.FromString((model / "tokenizer.model").read_bytes())
    for token, mark in ((THINK, "<think>"), (END_THINK, "</think>")):
        pieces.pieces[token].piece, pieces.pieces[token].type = mark, ModelProto.SentencePiece.CONTROL
    (folder / "tokenizer.model").write_bytes(pieces.SerializeToString())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    logs = tmp_path_factory.mktemp("logs")
    tokenizer = Process(logs, "tandem.tokenizer", f"--tokenizer=thinks={folder}")
    address = tokenizer.address()
    worker = Process(logs, "tandem.worker", f"--model={model}", f"--tokenizer-address={address}", "--threads=1")
    yield address, worker.address()
    worker.stop()
    tokenizer.stop()


@pytest.fixture
async def client(services: tuple[str, str]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(*services, timeout=60) as client:
        yield client


async def test_a_budget_ends_the_reasoning_that_the_prompt_has_begun(client: AsyncClient) -> None:
    asked: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    begun = Conversation(MESSAGES, template_arguments={"enable_thinking": True})
    free = await client.chat(begun, **asked)
    assert free.prompt_ids[-1] == THINK and END_THINK not in free.output_ids
    assert free.reasoning and not free.content
    answer = await client.chat(begun, **asked, max_reasoning_tokens=5)
    assert answer.output_ids[:6] == [*free.output_ids[:5], END_THINK]
    assert answer.reasoning == (await client.decode(answer.output_ids[:5])).strip() and answer.content
    assert (answer.usage.reasoning_tokens, answer.reasoning_tokens) == (5, 6), "the tokenizer counts the marks too"
    for budget in (0, 3):
        held = await client.chat(begun, **asked, max_reasoning_tokens=budget, guided=Choices(["yes"]))
        assert held.output_ids[budget] == END_THINK and held.content == "yes"
        assert held.usage.reasoning_tokens == budget
    with pytest.raises(InvalidArgumentError, match="marks are tokens"):
        await client.chat(begun, **asked, max_reasoning_tokens=5, answer_format="cohere")


async def test_a_guided_answer_may_think_before_it_where_it_has_a_budget(client: AsyncClient) -> None:
    asked: dict[str, Any] = {"guided": Choices(["yes", "no"]), "max_tokens": 40, "temperature": 0}
    wants: dict[str, Any] = {"logit_bias": {THINK: 100}, "banned_sequences": [[THINK, THINK]]}
    thought = await client.chat(MESSAGES, **asked, **wants, max_reasoning_tokens=6)
    assert thought.output_ids[0] == THINK and thought.output_ids[7] == END_THINK
    assert thought.content in ("yes", "no") and thought.usage.reasoning_tokens == 6
    again = await client.chat(MESSAGES, **asked, **wants, max_reasoning_tokens=6, draft_tokens=4)
    assert again.output_ids == thought.output_ids
    # It does not want to; it may not.
    for options in ({"max_reasoning_tokens": 6, "logit_bias": {THINK: -100}}, wants):
        plain = await client.chat(MESSAGES, **asked, **options)
        assert plain.content in ("yes", "no") and not plain.reasoning and THINK not in plain.output_ids
        assert plain.usage.reasoning_tokens == 0


async def test_reasoning_that_was_begun_goes_on_until_its_mark(client: AsyncClient) -> None:
    """The mark comes of a bias here; the reasoning is begun by the content of the last message."""
    asked: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    text = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>\nO, she"}]
    begun = Conversation(messages, chat_template=text, continue_final_message=True)
    answer = await client.chat(begun, **asked, answer_format="hermes")
    assert answer.reasoning and not answer.content
    ended = await client.chat(begun, **asked, answer_format="hermes", logit_bias={END_THINK: 100},
                              banned_sequences=[[END_THINK, END_THINK]])  # fmt: skip
    assert ended.output_ids[0] == END_THINK and ended.content and not ended.reasoning
    other = await client.chat(
        Conversation([*MESSAGES, {"role": "assistant", "content": "O, she"}], chat_template=text,
                     continue_final_message=True),
        **asked, answer_format="hermes",
    )  # fmt: skip
    assert other.content == other.text and not other.reasoning
