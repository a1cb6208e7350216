"""Guided decoding over the wire, with the real tokenizer service: what comes out matches, and nobody else is disturbed.

`TANDEM_SCHEMAS` is how many generated JSON schemas are tried; a release is tried with 500.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest
import pytest_asyncio

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.integration.worker_process import Answer, Worker, running_worker, service_process

SCHEMAS = int(os.environ.get("TANDEM_SCHEMAS", "24"))
DEMO = Path(__file__).parents[2] / "models" / "demo"

pytestmark = pytest.mark.asyncio(loop_scope="module")

Schema = dict[str, Any]


class Services:
    """A worker that knows its vocabulary, and the tokenizer that it learned it from."""

    def __init__(self, worker: Worker, tokenizer: tokenizer_pb2_grpc.TokenizerServiceAsyncStub) -> None:
        self.worker, self._tokenizer = worker, tokenizer

    async def text(self, ids: list[int]) -> str:
        request = tokenizer_pb2.DecodeRequest(input=tokenizer_pb2.DecodeInput(ids=[7, *ids]))  # 7: no space is stripped
        whole = (await self._tokenizer.Decode(request)).decoded.text
        first = await self._tokenizer.Decode(tokenizer_pb2.DecodeRequest(input=tokenizer_pb2.DecodeInput(ids=[7])))
        return whole[len(first.decoded.text) :]

    async def encode(self, text: str) -> list[int]:
        segment = tokenizer_pb2.TextSegment(text=text)
        request = tokenizer_pb2.EncodeRequest(input=tokenizer_pb2.EncodeInput(segments=[segment], add_special=True))
        return list((await self._tokenizer.Encode(request)).encoding.ids)

    async def guided(self, seed: int = 1, max_tokens: int = 400, **guide: Any) -> tuple[str, Answer]:
        answer = await self.worker.generate(guided_request(seed, max_tokens, **guide))
        return await self.text(answer.ids), answer


def guided_request(seed: int, max_tokens: int, **guide: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt_ids=[1, 494, 410, 1987],
        sampling=pb.SamplingParams(seed=seed, temperature=1.0),
        stopping=pb.StoppingParams(max_tokens=max_tokens),
        output=pb.OutputOptions(logprobs=True),
        guided=pb.GuidedDecoding(**guide) if guide else None,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
    folder = tmp_path_factory.mktemp("guided")
    async with (
        service_process("tandem.tokenizer", folder, f"--tokenizer=demo={DEMO}") as (address, _),
        running_worker(
            folder,
            *(f"--model={DEMO}", f"--tokenizer-address={address}", "--kv-cache-tokens=16384"),
            "--speculate=always",  # else a busy machine's clock decides whether drafts are computed
        ) as worker,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield Services(worker, tokenizer_pb2_grpc.TokenizerServiceStub(channel))


def random_schema(draw: random.Random, depth: int = 0) -> Schema:
    """In the style of public API schemas, and bounded, so that every answer ends within max_tokens."""
    kinds = ["string", "integer", "number", "boolean", "enum", "const", "pattern", "null", "format"]
    if depth < 2:
        kinds += ["object", "object", "array", "anyOf", "ref"] * 2
    kind = "object" if depth == 0 and draw.random() < 0.7 else draw.choice(kinds)
    match kind:
        case "string":
            return {"type": "string", "minLength": draw.randint(0, 2), "maxLength": draw.randint(2, 8)}
        case "integer":
            low = draw.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + draw.choice([0, 7, 1000])}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": draw.choice([1, 10.5]), "multipleOf": 0.25}
        case "enum":
            return {"enum": draw.sample(["red", "gréen", 'q"uote', 3, 2.5, None, True, "", "long value"], 4)}
        case "const":
            return {"const": draw.choice(["fixed", 42, False])}
        case "pattern":
            pattern = draw.choice(["^[A-Z]{2}-[0-9]{3}$", "^(ab|cd)?x{1,4}$", "^[a-f0-9]{8}$"])
            return {"type": "string", "pattern": pattern}
        case "format":
            return {"type": "string", "format": draw.choice(["date", "uuid", "ipv4"])}
        case "object":
            names = draw.sample(["id", "name", "größe", "tags", "is valid", "x", "address"], draw.randint(1, 4))
            return {
                "type": "object",
                "properties": {name: random_schema(draw, depth + 1) for name in names},
                "required": draw.sample(names, draw.randint(0, len(names))),
                "additionalProperties": False,
            }
        case "array":
            low = draw.randint(0, 2)
            items = random_schema(draw, depth + 1)
            return {"type": "array", "items": items, "minItems": low, "maxItems": low + draw.randint(0, 2)}
        case "anyOf":
            return {"anyOf": [random_schema(draw, depth + 1) for _ in range(2)]}
        case "ref":
            inner = random_schema(draw, 2)
            return {"type": "array", "items": {"$ref": "#/$defs/it"}, "maxItems": 2, "$defs": {"it": inner}}
    return {"type": kind}


def hoisted(schema: Schema) -> Schema:
    """Definitions stand at the root, where references look for them, each under a name of its own."""
    definitions: Schema = {}

    def walk(node: object) -> object:
        if isinstance(node, list):
            return [walk(each) for each in node]
        if not isinstance(node, dict):
            return node
        node = dict(node)
        if "$defs" in node:
            name = f"it{len(definitions)}"
            definitions[name] = node.pop("$defs")["it"]
            node["items"] = {"$ref": f"#/$defs/{name}"}
        return {key: walk(value) for key, value in node.items()}

    result = walk(schema)
    assert isinstance(result, dict)
    return {**result, "$defs": definitions} if definitions else result


async def test_answers_validate_against_their_schemas_and_free_rows_do_not_notice(services: Services):
    schemas = [hoisted(random_schema(random.Random(number))) for number in range(SCHEMAS)]
    free = guided_request(seed=77, max_tokens=60)
    alone = await services.worker.generate(free)
    gate = asyncio.Semaphore(12)

    async def one(number: int, schema: Schema) -> tuple[str, Answer]:
        async with gate:
            # A small model is fond of white space.
            compact = json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}})
            return await services.guided(number, json_schema=compact)

    (*answers,) = await asyncio.gather(*(one(number, schema) for number, schema in enumerate(schemas)))
    crowded = await asyncio.gather(
        *(services.worker.generate(free) for _ in range(3)), *(one(n, s) for n, s in enumerate(schemas[:6]))
    )
    for schema, (text, answer) in zip(schemas, answers, strict=True):
        assert answer.finished is not None
        assert answer.finished.reason in (pb.FINISH_REASON_GRAMMAR_END, pb.FINISH_REASON_EOS), (schema, text)
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    for answer in crowded[:3]:
        assert isinstance(answer, Answer)
        assert answer.ids == alone.ids
        assert answer.logprobs == alone.logprobs, "not the same bits"
    assert [text for text, _ in crowded[3:]] == [text for text, _ in answers[:6]]  # type: ignore[misc]


# Eight tokens that were there before are not found in such short answers: all drafts are what the guide forces.
OF_THE_GUIDE = pb.SpeculationParams(max_draft_tokens=8, prompt_lookup_ngram=8)


@pytest.mark.parametrize("speculate", [False, True])
async def test_regex_choices_and_grammar_hold_and_ends_are_told(services: Services, speculate: bool):
    pattern = r"[0-9]{4}-[0-9]{2} (yes|no|maybe)"
    accepted = 0
    for seed in range(4):
        text, answer = await services.guided(seed, regex=pattern)
        assert re.fullmatch(pattern, text), text
        assert answer.finished is not None
        assert answer.finished.reason == pb.FINISH_REASON_GRAMMAR_END
        request = guided_request(seed, 400, regex=pattern)
        if speculate:
            request.speculation.CopyFrom(OF_THE_GUIDE)
        again = await services.worker.generate(request)
        assert (again.ids, again.logprobs) == (answer.ids, answer.logprobs)
        assert again.finished is not None
        assert not answer.finished.usage.draft_tokens_proposed
        accepted += again.finished.usage.draft_tokens_accepted
        text, _ = await services.guided(
            seed, choices=pb.ChoiceList(choices=["Ja", "Nein", 'say "hi"', "vielleicht \\ né\n"])
        )
        assert text in ["Ja", "Nein", 'say "hi"', "vielleicht \\ né\n"]
        text, _ = await services.guided(seed, grammar='start: "<" NAME ("," NAME)~2 ">"\nNAME: /[a-z]{1,5}/')
        assert re.fullmatch(r"<[a-z]{1,5}(,[a-z]{1,5}){2}>", text), text
    # What a guide forces is drafted where the guide's process tells it before the next step begins, which is the
    # machine's business: sooner or later it does.
    for seed in range(4, 300):
        if not speculate or accepted:
            break
        request = guided_request(seed, 400, regex=pattern)
        request.speculation.CopyFrom(OF_THE_GUIDE)
        more = (await services.worker.generate(request)).finished
        assert more is not None
        accepted += more.usage.draft_tokens_accepted
    assert bool(accepted) == speculate


async def test_a_guided_answer_is_resumed_forked_and_cut_like_any_other(services: Services):
    schema = json.dumps(
        {"type": "array", "items": {"type": "integer", "maximum": 999, "minimum": 0}, "minItems": 5, "maxItems": 5}
    )
    text, whole = await services.guided(3, json_schema=schema)
    assert len(json.loads(text)) == 5
    for cut in (1, len(whole.ids) // 2, len(whole.ids)):
        request = guided_request(3, 400, json_schema=schema)
        request.resumed_output_ids.extend(whole.ids[:cut])
        rest = await services.worker.generate(request)
        assert whole.ids[:cut] + rest.ids == whole.ids
        assert rest.finished is not None and whole.finished is not None
        assert rest.finished.reason == whole.finished.reason
    request = guided_request(3, 400, json_schema=schema)
    request.n = 4
    outputs: dict[int, list[int]] = {}
    async for message in services.worker.inference.Generate(request, timeout=120):
        outputs.setdefault(message.delta.index, []).extend(message.delta.ids)
    assert outputs[0] == whole.ids
    for ids in outputs.values():
        assert len(json.loads(await services.text(ids))) == 5
    short, answer = await services.guided(3, max_tokens=2, json_schema=schema)
    assert answer.finished is not None
    assert answer.finished.reason == pb.FINISH_REASON_MAX_TOKENS
    assert text.startswith(short)


async def test_a_guide_begins_behind_reasoning_that_ends_at_its_budget(services: Services):
    schema = json.dumps({"type": "array", "items": {"type": "integer", "maximum": 9}, "minItems": 3, "maxItems": 3})
    mark, budget = [700, 701], 7

    def request(**fields: Any) -> pb.GenerateRequest:
        asked = guided_request(3, 200, json_schema=schema, **fields)
        asked.reasoning.CopyFrom(pb.ReasoningParams(end_ids=mark, max_tokens=budget))
        return asked

    whole = await services.worker.generate(request())
    assert whole.ids[budget : budget + 2] == mark
    assert len(json.loads(await services.text(whole.ids[budget + 2 :]))) == 3
    assert whole.finished is not None
    assert whole.finished.usage.reasoning_tokens == budget
    for cut in (1, budget, budget + 1, budget + 2, budget + 4, len(whole.ids)):
        again = request()
        again.resumed_output_ids.extend(whole.ids[:cut])
        rest = await services.worker.generate(again)
        assert whole.ids[:cut] + rest.ids == whole.ids
        assert rest.finished is not None
        assert rest.finished.usage.reasoning_tokens == budget
    speculating = request()
    speculating.speculation.CopyFrom(pb.SpeculationParams(max_draft_tokens=6, prompt_lookup_ngram=1))
    assert (await services.worker.generate(speculating)).ids == whole.ids


async def test_min_tokens_and_ignore_eos_do_not_break_the_grammar(services: Services):
    request = guided_request(1, 50, regex="(ab|cd)+")
    request.stopping.min_tokens = 12
    answer = await services.worker.generate(request)
    assert len(answer.ids) >= 12
    assert re.fullmatch("(ab|cd)+[ac]?", await services.text(answer.ids))
    request = guided_request(1, 50, regex="(ab|cd){3}")
    request.stopping.ignore_eos = True
    request.stopping.min_tokens = 40
    answer = await services.worker.generate(request)
    assert answer.finished is not None
    assert answer.finished.reason == pb.FINISH_REASON_GRAMMAR_END
    assert re.fullmatch("(ab|cd){3}", await services.text(answer.ids))


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "type": ({"json_schema": '{"properties": {"a": {"items": {"type": "strin"}}}}'}, "guided.json_schema", "strin"),
    "syntax": ({"json_schema": '{"type": '}, "guided.json_schema", "line 1"),
    "no schema": ({"json_schema": "[1]"}, "guided.json_schema", "object"),
    "reference": ({"json_schema": '{"$ref": "#/nowhere"}'}, "guided.json_schema", "nowhere"),
    "keyword": ({"json_schema": '{"items": {"not": {}}}'}, "guided.json_schema", "/items"),
    "deep": ({"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000}, "guided.json_schema", "recursion"),
    "regex": ({"regex": "a(b"}, "guided.regex", "unclosed group"),
    "grammar": ({"grammar": "start: foo"}, "guided.grammar", "foo"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_guide_is_named_with_its_place_and_harms_nobody(services: Services, case: str):
    guide, field, words = WRONG[case]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await services.guided(1, max_tokens=5, **guide)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in (caught.value.details() or "")
    assert words in (caught.value.details() or "")
    text, _ = await services.guided(1, regex="ok")
    assert text == "ok"


HEAVY: dict[str, dict[str, Any]] = {
    "counted repetitions": {"regex": "((a{1,300}b?){1,300}c?){1,300}(x|xy|.{9,99}){5,500}"},
    "states": {"regex": "(.*a.{18}b|.*c.{17}d)(.*e.{18}f)"},
    "many keys": {"json_schema": json.dumps({"properties": {f"k{i}": {"type": "string"} for i in range(1500)}})},
    "many items": {"json_schema": '{"type": "array", "items": {"type": "string"}, "minItems": 100000000}'},
    "ambiguity": {"grammar": 'start: a a a a a a\na: "x" | a a | b a\nb: "x" | b b'},
}


@pytest.mark.parametrize("case", HEAVY)
async def test_a_heavy_guide_is_served_or_refused_and_harms_nobody(services: Services, case: str):
    with contextlib.suppress(grpc.aio.AioRpcError):
        await services.guided(1, max_tokens=30, **HEAVY[case])
    text, _ = await services.guided(1, regex="ok")
    assert text == "ok"
    load = await services.worker.settled()
    assert load.pages_referenced == 0
    server = await services.worker.admin.GetServer(admin_pb2.GetServerRequest())
    assert server.engine_restarts == 0


async def test_the_place_of_a_wrong_sub_schema_is_a_json_pointer(services: Services):
    schema = '{"properties": {"a/b": {"anyOf": [{"type": "string"}, {"type": "nonsense"}]}}}'
    with pytest.raises(grpc.aio.AioRpcError, match=r"/properties/a~1b/anyOf/1: .*nonsense"):
        await services.guided(1, json_schema=schema)


async def test_resumed_output_that_the_guide_does_not_allow_is_refused(services: Services):
    request = guided_request(1, 20, regex="[0-9]+")
    request.resumed_output_ids.extend(await services.encode("abc"))
    with pytest.raises(grpc.aio.AioRpcError, match="resumed_output_ids"):
        await services.worker.generate(request)
