"""What a gateway's request becomes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip(
    "smg_grpc_proto", reason="the gateway's contract is not installed: pip install 'tandem-llm[gateway]'"
)

from smg_grpc_proto import vllm_engine_pb2 as vllm

from tandem.common.errors import ServiceError
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.engine.guides.structural_tags import lark_of, read_tags
from tandem.worker.front.gateway.requests import translated

# As smg sends a request that names nothing.
PLAIN = {"top_p": 1.0, "repetition_penalty": 1.0, "skip_special_tokens": True, "n": 1}


def ours(context: int = 512, ids: tuple[int, ...] = (1, 5, 9), **params: object) -> pb.GenerateRequest:
    request = vllm.GenerateRequest(
        request_id="r",
        tokenized=vllm.TokenizedInput(input_ids=ids),
        sampling_params=vllm.SamplingParams(**PLAIN | params),
    )
    return translated(request, context)


def violations(**params: object) -> list[str]:
    with pytest.raises(ServiceError) as caught:
        ours(**params)
    return [each.field for each in caught.value.violations]


def test_a_plain_request_leaves_to_the_worker_what_it_does_not_say() -> None:
    request = ours()
    assert (request.request_id, list(request.prompt_ids)) == ("r", [1, 5, 9])
    for name in ("temperature", "seed", "repetition_window"):
        assert not request.sampling.HasField(name)
    assert not request.stopping.HasField("max_tokens") and not request.HasField("n") and not request.HasField("guided")
    assert not request.output.logprobs


def test_every_number_arrives() -> None:
    request = ours(
        temperature=0.0,
        top_k=40,
        top_p=0.5,
        min_p=0.25,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        max_tokens=7,
        min_tokens=3,
        stop_token_ids=[4, 6],
        ignore_eos=True,
        n=3,
        seed=5,
        logit_bias={8: -100.0},
        logprobs=2,
        prompt_logprobs=4,
    )
    sampling, stopping, output = request.sampling, request.stopping, request.output
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 40, 0.5, 0.25)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.5)
    assert sampling.repetition_window > 1 << 30 and sampling.seed == 5
    assert [(each.id, each.bias) for each in sampling.logit_bias] == [(8, -100.0)]
    assert (stopping.max_tokens, stopping.min_tokens, list(stopping.stop_token_ids)) == (7, 3, [4, 6])
    assert stopping.ignore_eos and request.n == 3
    assert output.logprobs and output.prompt_logprobs and output.top_logprobs == 4


def test_zero_that_no_request_can_mean_is_off_and_a_negative_seed_is_a_seed() -> None:
    request = ours(top_p=0.0, repetition_penalty=0.0, seed=-1)
    assert (request.sampling.top_p, request.sampling.repetition_penalty) == (1.0, 1.0)
    assert request.sampling.seed == (1 << 64) - 1


@pytest.mark.parametrize(("most", "left"), [(2, [5, 9]), (3, [1, 5, 9]), (9, [1, 5, 9]), (-1, [5, 9]), (0, [1, 5, 9])])
def test_prompts_are_truncated_from_the_left(most: int, left: list[int]) -> None:
    assert list(ours(context=3, truncate_prompt_tokens=most).prompt_ids) == left


@pytest.mark.parametrize(
    ("constraint", "guided"),
    [
        ({"json_schema": "{}"}, pb.GuidedDecoding(json_schema="{}")),
        ({"regex": "a+"}, pb.GuidedDecoding(regex="a+")),
        ({"grammar": 'start: "a"'}, pb.GuidedDecoding(grammar='start: "a"')),
        ({"json_object": True}, pb.GuidedDecoding(json_schema='{"type": "object"}')),
        (
            {"choice": vllm.ChoiceConstraint(choices=["a", "b"])},
            pb.GuidedDecoding(choices=pb.ChoiceList(choices=["a", "b"])),
        ),
    ],
)
def test_constraints_become_guides(constraint: dict[str, object], guided: pb.GuidedDecoding) -> None:
    assert ours(**constraint).guided == guided


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TAGS = [
    {
        "type": "structural_tag",
        "structures": [{"begin": "<tool=weather>", "schema": SCHEMA, "end": "</tool>"}],
        "triggers": ["<tool="],
    },
    {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<tool="],
            "tags": [{"begin": "<tool=weather>", "content": {"json_schema": SCHEMA}, "end": "</tool>"}],
        },
    },
]


@pytest.mark.parametrize("tag", TAGS)
def test_a_structural_tag_allows_free_text_and_binds_what_a_trigger_begins(tag: dict[str, object]) -> None:
    llguidance = pytest.importorskip("llguidance")
    guide = ours(structural_tag=json.dumps(tag)).guided.structural_tag
    grammar = lark_of(read_tags(guide), {})
    vocabulary = [bytes([byte]) for byte in range(256)] + [b"<eos>"]

    class Bytes:
        eos_token_id, bos_token_id, tokens, special_token_ids = 256, None, vocabulary, [256]

        def __call__(self, text: str) -> list[int]:
            return list(text.encode())

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))

    def accepts(text: str) -> bool:
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        data = list(text.encode())
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

    assert accepts("no tool at all")
    assert accepts('look: <tool=weather>{"city": "Rome"}</tool> and on')
    assert not accepts('look: <tool=weather>{"city": "Paris"}</tool>')
    assert not accepts("look: <tool=other>{}</tool>")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"logprobs": -1}, "sampling_params.logprobs"),
        ({"prompt_logprobs": -1}, "sampling_params.prompt_logprobs"),
        ({"truncate_prompt_tokens": -2}, "sampling_params.truncate_prompt_tokens"),
        ({"logit_bias": {-1: 1.0}}, "sampling_params.logit_bias"),
        ({"grammar": 'root ::= "a"'}, "sampling_params.grammar"),
        ({"structural_tag": "{"}, "sampling_params.structural_tag"),
        ({"structural_tag": '{"structures": [], "triggers": []}'}, "sampling_params.structural_tag"),
        ({"structural_tag": '{"format": {"type": "sequence"}}'}, "sampling_params.structural_tag"),
        ({"structural_tag": "[" * 3000}, "sampling_params.structural_tag"),
    ],
)
def test_what_has_no_translation_is_named(params: dict[str, object], field: str) -> None:
    assert violations(**params) == [field]


def test_a_request_without_ids_or_for_another_rank_is_refused() -> None:
    for request, field in (
        (vllm.GenerateRequest(), "tokenized"),
        (
            vllm.GenerateRequest(tokenized=vllm.TokenizedInput(input_ids=[1]), data_parallel_rank=1),
            "data_parallel_rank",
        ),
    ):
        with pytest.raises(ServiceError) as caught:
            translated(request, 512)
        assert [each.field for each in caught.value.violations] == [field]
