"""What the SDK refuses before anything is sent: everything at once, each by name, with what is allowed."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.client import (
    AsyncClient,
    Choices,
    ConfigurationError,
    ConnectionSettings,
    Encoding,
    FailoverSettings,
    Grammar,
    InvalidArgumentError,
    JsonSchema,
    Reasoning,
    Regex,
    SamplingParams,
    Segment,
)
from tandem.client.plan import make_plan
from tandem.client.text_calls import decode_ids
from tandem.client.validation import RULES, check, check_ids
from tandem.inference.v1 import inference_pb2

BIG = 2**64
WRONG: list[tuple[str, list[Any]]] = [
    ("sampling.temperature", [-0.1, math.nan, math.inf, 1e39, "1", True]),
    ("sampling.top_k", [-1, 2**32, 1.5, "1", True]),
    ("sampling.top_p", [-0.1, 1.1, math.nan]),
    ("sampling.min_p", [-0.1, 1.5, -math.inf]),
    ("sampling.repetition_penalty", [0, -1, math.nan, math.inf]),
    ("sampling.repetition_window", [-1, 2**32]),
    ("sampling.seed", [-1, BIG, 0.5]),
    ("preset", ["wild", 3]),
    ("dry_breakers", [["x"] * 65, 3]),
    ("strategy", ["topk", ""]),
    ("sampling.dynamic_temperature_range", [-1, math.nan]),
    ("sampling.dynamic_temperature_exponent", [-0.5, "1"]),
    ("sampling.temperature_last", [1]),
    ("sampling.tail_free_z", [-0.1, 1.1]),
    ("sampling.typical_p", [2, math.inf]),
    ("sampling.top_a", [-1, True]),
    ("sampling.top_n_sigma", [-0.1, math.inf]),
    ("sampling.adaptive_p_target", [-1.1, 1.1]),
    ("sampling.adaptive_p_decay", [-0.1, 1]),
    ("sampling.xtc_probability", [1.1]),
    ("sampling.xtc_threshold", [-0.1]),
    ("sampling.mirostat", [3, -1, 1.0]),
    ("sampling.mirostat_tau", [-1]),
    ("sampling.mirostat_eta", [math.nan]),
    ("sampling.repetition_decay", [-1, 0.5]),
    ("sampling.presence_penalty", [-2.1, 2.1]),
    ("sampling.frequency_penalty", [3, math.nan]),
    ("sampling.dry_multiplier", [-0.1]),
    ("sampling.dry_base", [0.9, math.inf]),
    ("sampling.dry_allowed_length", [0, 1.5]),
    ("sampling.dry_window", [-1]),
    ("sampling.dry_sequence_breakers", [[[1]] * 8193, "1"]),
    ("sampling.logit_bias", [[(1, 2.0)], 5, dict.fromkeys(range(4097), 0.0)]),
    ("sampling.allowed_ids", [5, "12", [1] * 65_537]),
    ("sampling.banned_ids", [5, [1] * 65_537]),
    ("sampling.banned_sequences", [[[1]] * 257, 7]),
    ("stopping.max_tokens", [0, -1, 2**32, 1.0]),
    ("stopping.min_tokens", [-1, 2**32]),
    ("stopping.stop", [["a"] * 65, 5, {"a"}, b"x"]),
    ("stopping.stop_token_ids", [[1] * 257, "1", 3]),
    ("stopping.ignore_eos", [1, "yes"]),
    ("stopping.include_stop", [0]),
    ("logprobs", [1]),
    ("top_logprobs", [-1, 65, True]),
    ("logprob_ids", [5, [1] * 129]),
    ("processed_logprobs", [1]),
    ("prompt_logprobs", ["yes"]),
    ("echo", [1]),
    ("detokenize", ["no"]),
    ("graphemes", [0]),
    ("answer_format", ["x" * 65, "\ud800", 1]),
    ("in_reasoning", [1, "no"]),
    ("stream_interval_tokens", [0, 2**32]),
    ("stream_max_delay_ms", [-1, 60_001]),
    ("tokenizer", [5, "\ud800"]),
    ("model", [5]),
    ("add_special", [1]),
    ("stopping.stop_sequences", [[[1]] * 65, 5, "12"]),
    ("n", [0, 65, 1.5]),
    ("best_of", [0, 65, True]),
    ("length_penalty", [-11, math.nan, "1"]),
    ("draft_tokens", [-1, 33]),
    ("prompt_lookup", [0, 9]),
    ("priority", [-101, 101, 0.5]),
    ("cache_salt", ["ä" * 129, 5]),
    ("bypass_cache", ["no"]),
    ("request_id", ["x" * 129, 5, "é", "a\nb", "\x7f"]),
    ("routing_key", ["x" * 1025, "é" * 513]),
]
RIGHT: list[tuple[str, list[Any]]] = [
    ("sampling.temperature", [0, 0.0, 2, 100.0, 3.4e38, np.float32(0.5)]),
    ("sampling.top_k", [0, 1, 2**32 - 1, np.int64(3)]),
    ("sampling.top_p", [0, 1, 0.5]),
    ("sampling.min_p", [0, 1.0]),
    ("sampling.repetition_penalty", [1e-6, 1, 2]),
    ("sampling.seed", [0, 2**64 - 1]),
    ("stopping.max_tokens", [1, 2**31, 2**32 - 1]),
    ("stopping.stop", ["x", ["a", "b"], ("🚀" * 256,), []]),
    ("stopping.stop_token_ids", [[], [0, 2**32 - 1], (1,)]),
    ("stopping.stop_sequences", [[], [[1, 2], (3,)]]),
    ("n", [1, 64]),
    ("best_of", [1, 64]),
    ("guided", [JsonSchema({}), JsonSchema("{}"), Regex("a|b"), Choices(["x"]), Grammar('start: "a"')]),
    ("priority", [-100, 0, 100]),
    ("cache_salt", ["", "ä" * 128]),
    ("request_id", ["", "x" * 128, "all of !~ {}"]),
    ("routing_key", ["", "é" * 512, "a\nb"]),
]


def _cases(table: list[tuple[str, list[Any]]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, values in table for value in values]


@pytest.mark.parametrize(("field", "value"), _cases(WRONG))
def test_a_wrong_value_is_named_with_what_is_allowed(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("Hi", {field.rpartition(".")[2]: value}, None)  # type: ignore[misc]
    (violation,) = caught.value.violations
    assert violation.field == field
    assert violation.description.startswith("must ")
    assert field in caught.value.message
    assert caught.value.service == "client"


@pytest.mark.parametrize(("field", "value"), _cases(RIGHT))
def test_a_right_value_becomes_a_request(field: str, value: Any) -> None:
    plan = make_plan("Hi", {field.rpartition(".")[2]: value}, None)  # type: ignore[misc]
    assert list(plan.request([1], "").prompt_ids) == [1]
    assert plan.decode_open([1]) is not None


@pytest.mark.parametrize("flag", [True, False, np.True_])
@pytest.mark.parametrize("before", [[], [1], [5, 256, 0, 1], [1] * 5000])
def test_a_flag_is_no_id(flag: Any, before: list[int]) -> None:
    ids = [*before, flag, 7]
    for prompt, options, field in [
        (ids, {}, "prompt"),
        (tuple(ids), {}, "prompt"),
        ("Hi", {"stop_token_ids": ids[-256:]}, "stopping.stop_token_ids"),
        ("Hi", {"allowed_ids": ids}, "sampling.allowed_ids"),
    ]:
        with pytest.raises(InvalidArgumentError) as caught:
            make_plan(prompt, options, None)
        (violation,) = caught.value.violations
        place = min(len(before), 254) if "stop" in field else len(before)
        assert violation.field == f"{field}[{place}]"
    with pytest.raises(InvalidArgumentError, match=r" ids\["):
        decode_ids(ids)


@pytest.mark.parametrize("ids", [[0, 1, 256, 1, 0], [2**32 - 1, 1], range(3), array("I", [0, 1]), [np.int64(1)]])
def test_small_ids_are_no_flags(ids: Any) -> None:
    assert check_ids("ids", ids) == check_ids("ids", np.array(ids)) == []


SETTINGS: list[tuple[type, str, list[Any]]] = [
    (FailoverSettings, "attempts", ["3", -1, 1.5, True, None]),
    *(
        (FailoverSettings, name, ["1", -1, math.nan, True, None])
        for name in ("restart_seconds", "initial_backoff_seconds", "max_backoff_seconds")
    ),
    *(
        (ConnectionSettings, name, ["x", 0, -1, math.nan, math.inf, None])
        for name in ("keepalive_seconds", "keepalive_timeout_seconds")
    ),
    (ConnectionSettings, "max_message_bytes", ["1", 0, -2, 2**31, 1.0, None]),
    (ConnectionSettings, "resolve_seconds", ["1", 0, -1, math.nan, None]),
    (ConnectionSettings, "probe_seconds", ["1", -1, math.nan, None]),
]


@pytest.mark.parametrize(("kind", "name", "wrong"), SETTINGS)
def test_settings_that_cannot_work_are_refused_where_they_are_made(kind: type, name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^{name} must be an? "):
            kind(**{name: value})


def test_settings_may_be_extreme() -> None:
    FailoverSettings(attempts=0, restart_seconds=math.inf, initial_backoff_seconds=0, max_backoff_seconds=np.float32(2))
    extreme = ConnectionSettings(keepalive_seconds=2e6, max_message_bytes=-1, resolve_seconds=math.inf, probe_seconds=0)
    options = dict(extreme.options())
    assert (options["grpc.keepalive_time_ms"], options["grpc.max_receive_message_length"]) == (2_000_000_000, -1)


@pytest.mark.parametrize("value", [[""], ["x" * 1025], ["ä" * 513], ["\udc80"], ["ok", 7]])
def test_a_wrong_stop_string_is_named_by_its_place(value: list[Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("Hi", {"stop": value}, None)
    assert [violation.field for violation in caught.value.violations] == [f"stopping.stop[{len(value) - 1}]"]


@pytest.mark.parametrize("value", [[[]], [[1] * 65], [7]])
def test_a_wrong_stop_sequence_is_named_by_its_place(value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("Hi", {"stop_sequences": [[1, 2], *value]}, None)
    assert [violation.field for violation in caught.value.violations] == ["stopping.stop_sequences[1]"]


@pytest.mark.parametrize(
    ("guide", "field"),
    [
        ("a regex?", "guided"),
        (Regex(""), "guided.regex"),
        (Regex("\ud800"), "guided.regex"),
        (Regex("a" * 65_537), "guided.regex"),
        (Grammar(7), "guided.grammar"),  # type: ignore[arg-type]
        (Choices([]), "guided.choices"),
        (Choices("ab"), "guided.choices"),
        (Choices(["a", ""]), "guided.choices[1]"),
        (Choices(["a"] * 1025), "guided.choices"),
        (JsonSchema({"a": object()}), "guided.json_schema"),
        (JsonSchema({"a": math.nan}), "guided.json_schema"),
    ],
)
def test_a_wrong_guide_is_named(guide: Any, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("Hi", {"guided": guide}, None)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert violation.description.startswith("must ")


@pytest.mark.parametrize(
    ("reasoning", "field"),
    [
        ("</think>", "reasoning"),
        (Reasoning(end_ids=[]), "reasoning.end_ids"),
        (Reasoning(end_ids=[1] * 65), "reasoning.end_ids"),
        (Reasoning(end_ids="5"), "reasoning.end_ids"),  # type: ignore[arg-type]
        (Reasoning(end_ids=[1, -1]), "reasoning.end_ids[1]"),
        (Reasoning(end_ids=[2**32]), "reasoning.end_ids[0]"),
        (Reasoning(end_ids=[1], max_tokens=-1), "reasoning.max_tokens"),
        (Reasoning(end_ids=[1], begin_ids=[-2]), "reasoning.begin_ids[0]"),
    ],
)
def test_wrong_reasoning_is_named(reasoning: Any, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("Hi", {"reasoning": reasoning, "guided": Regex("a")}, None)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert violation.description.startswith("must ")


def test_a_pydantic_model_is_a_guide() -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    request = make_plan("Hi", {"guided": person}, None).request([1], "")
    assert json.loads(request.guided.json_schema) == person.model_json_schema()


def test_fewer_samples_than_outputs_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="best_of must be at least n 3"):
        make_plan("Hi", {"n": 3, "best_of": 2}, None)


@pytest.mark.parametrize("value", [[-1], [2**32], [1, "2"], [1.5]])
def test_a_wrong_stop_id_is_named_by_its_place(value: list[Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("Hi", {"stop_token_ids": value}, None)
    assert [violation.field for violation in caught.value.violations] == [f"stopping.stop_token_ids[{len(value) - 1}]"]


def test_all_violations_are_named_at_once() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan(
            [],
            {
                "sampling": SamplingParams(temperature=-1, top_p=2),
                "max_tokens": 0,
                "priority": 1000,
                "timeout": 0,
                "metadata": {"Upper": "x"},
            },
            None,
        )
    fields = [violation.field for violation in caught.value.violations]
    assert fields == [
        "prompt",
        "sampling.temperature",
        "sampling.top_p",
        "stopping.max_tokens",
        "priority",
        "timeout",
        "metadata",
    ]


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ([], "prompt"),
        (b"bytes", "prompt"),
        (None, "prompt"),
        (5, "prompt"),
        ({"text": "x"}, "prompt"),
        ([1, -1], "prompt[1]"),
        ([1, 2**32], "prompt[1]"),
        ([1, "x"], "prompt[1]"),
        (["a", Segment("b")], "prompt.segments[0]"),
        ([Segment("a"), "b"], "prompt.segments[1]"),
        ("lone \ud800", "prompt"),
        ([Segment("a"), Segment("\ud800")], "prompt.segments[1].text"),
        (Segment(b"\xff"), "prompt.segments[0].text"),
        (Segment(5), "prompt.segments[0].text"),
        (Segment("a", "maybe"), "prompt.segments[0].special_tokens"),
        (Segment("a", "parse_listed"), "prompt.segments[0].parse_ids"),
        (Segment("a", "text", [1]), "prompt.segments[0].parse_ids"),
        (Segment("a", "parse_listed", [-1]), "prompt.segments[0].parse_ids[0]"),
        (Encoding([], ""), "prompt"),
    ],
)
def test_a_wrong_prompt_is_named(prompt: Any, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan(prompt, {}, None)
    assert [violation.field for violation in caught.value.violations] == [field]


def test_a_wrong_policy_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="special_tokens"):
        make_plan("Hi", {"special_tokens": "maybe"}, None)  # type: ignore[typeddict-item]
    with pytest.raises(InvalidArgumentError, match="Segment"):
        make_plan("Hi", {"special_tokens": "parse_listed"}, None)


def test_prompt_text_is_not_repeated_in_errors() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("secret words \ud800", {}, None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, 1e10, "5", True])
def test_a_wrong_timeout_is_named(timeout: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        make_plan("Hi", {"timeout": timeout}, None)
    with pytest.raises(InvalidArgumentError, match="timeout"):
        AsyncClient("a:1", "b:1", timeout=timeout)


@pytest.mark.parametrize(
    "metadata",
    [{"UPPER": "x"}, {"x-bin": "x"}, {"a b": "x"}, {"": "x"}, {"x": "ä"}, {"x": "a\nb"}, [("x", "y")], "x=y"],
    ids=str,
)
def test_metadata_that_grpc_cannot_carry_is_named(metadata: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="metadata"):
        make_plan("Hi", {"metadata": metadata}, None)


def test_unknown_options_are_type_errors() -> None:
    with pytest.raises(TypeError, match="tempreature"):
        make_plan("Hi", {"tempreature": 1}, None)  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="SamplingParams"):
        make_plan("Hi", {"sampling": {"temperature": 1}}, None)  # type: ignore[typeddict-item]


async def test_text_calls_check_their_arguments_too() -> None:
    client = AsyncClient("127.0.0.1:1", timeout=5)
    for call in (
        lambda: client.encode(5),  # type: ignore[arg-type]
        lambda: client.encode("", truncate_to=0),
        lambda: client.encode("x", timeout=-1),
        lambda: client.encode_batch("not a list"),
        lambda: client.encode_batch(["ok", 7]),  # type: ignore[list-item]
        lambda: client.count_tokens_batch("not a list"),
        lambda: client.decode("text"),  # type: ignore[arg-type]
        lambda: client.decode([-1]),
        lambda: client.decode_batch([[1], [2**32]]),
        lambda: client.decode([1], remove_special=1),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgumentError):
            await call()
    with pytest.raises(TypeError, match="unknown option: offset"):
        await client.encode("x", offset=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="worker"):
        await client.generate("x")
    with pytest.raises(ConfigurationError, match="worker"):
        await client.get_models()
    with pytest.raises(ConfigurationError, match="tokenizer"):
        await AsyncClient(worker="127.0.0.1:1").encode("x")
    with pytest.raises(ConfigurationError, match="tokenizer"):
        AsyncClient(worker="127.0.0.1:1").stream("x")
    with pytest.raises(InvalidArgumentError, match=r"prompts\[1\]"):
        await AsyncClient("a:1", "b:1").generate_batch(["ok", 5])  # type: ignore[list-item]
    for concurrency in (0, True, "2"):
        with pytest.raises(InvalidArgumentError, match="concurrency"):
            await AsyncClient("a:1", "b:1").generate_batch(["ok"], concurrency=concurrency)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{}, {"tokenizer": ""}, {"worker": ["a:1", "a:1"]}, {"worker": [0]}, {"tokenizer": -5}, {"worker": []}]
)
def test_a_client_without_usable_addresses_cannot_be_built(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        AsyncClient(**arguments)


@given(
    temperature=st.none() | st.floats(),
    top_p=st.none() | st.floats(),
    seed=st.none() | st.integers(),
    top_k=st.none() | st.integers(),
)
def test_what_passes_the_rules_survives_the_wire(
    temperature: float | None, top_p: float | None, seed: int | None, top_k: int | None
) -> None:
    options = {"temperature": temperature, "top_p": top_p, "seed": seed, "top_k": top_k}
    try:
        plan = make_plan([1], options, None)  # type: ignore[arg-type]
    except InvalidArgumentError:
        return
    request = inference_pb2.GenerateRequest.FromString(plan.request([1], "").SerializeToString())
    for name, value in options.items():
        assert request.sampling.HasField(name) is (value is not None)
        if value is not None:
            assert getattr(request.sampling, name) == pytest.approx(value, rel=1e-6, abs=1e-37)
            assert math.isfinite(getattr(request.sampling, name))


def test_every_rule_has_a_wrong_example_here() -> None:
    text_only = {"truncate_to", "offsets", "pieces", "remove_special", "unparse_special", "clean_spaces"}
    text_only |= {"rendered_text", "content_ranges"}
    assert {field for field, _ in WRONG} == set(RULES) - text_only
    assert check(dict.fromkeys(RULES)) == []


def test_what_is_wrong_between_fields_is_told_with_everything_else() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan(
            "Hi",
            {
                "temperature": -1,
                "max_tokens": 4,
                "min_tokens": 5,
                "mirostat": 2,
                "top_k": 5,
                "allowed_ids": [7, 8],
                "banned_ids": [7],
                "stop_token_ids": [8],
                "n": 3,
                "best_of": 2,
                "detokenize": False,
                "echo": True,
                "stop": "x",
                "priority": 101,
            },
            None,
        )
    assert {violation.field for violation in caught.value.violations} == {
        "sampling.temperature",
        "stopping.min_tokens",
        "sampling.top_k",
        "sampling.allowed_ids",
        "best_of",
        "echo",
        "stopping.stop",
        "priority",
    }


async def test_names_and_options_of_no_known_form_are_named(client: AsyncClient) -> None:
    calls: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("tokenizer", lambda: client.get_tokenizer("\ud800")),
        ("tokenizer", lambda: client.get_vocabulary(3)),  # type: ignore[arg-type]
        ("metadata", lambda: client.encode("x", metadata=[("x", "y")])),  # type: ignore[arg-type]
        ("each", lambda: client.generate_batch(["x"], each=["y"])),  # type: ignore[list-item]
        ("each", lambda: client.generate_batch(["x"], each={0: {}})),  # type: ignore[arg-type]
        ("answer_format", lambda: client.generate("x", answer_format="\ud800")),
        ("in_reasoning", lambda: client.generate("x", answer_format="hermes", in_reasoning="no")),  # type: ignore[arg-type]
    ]
    for field, call in calls:
        with pytest.raises(InvalidArgumentError) as caught:
            await call()
        assert [violation.field for violation in caught.value.violations] == [field]
