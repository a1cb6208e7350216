"""What a handler raises is clear to programs and to people."""

from __future__ import annotations

import grpc
import pytest

from tandem.common import errors
from tandem.common.errors import FieldViolation, ServiceError


def test_an_invalid_argument_names_every_field_in_words() -> None:
    error = errors.invalid_argument([FieldViolation("top_p", "too big"), FieldViolation("seed", "negative")])
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.message == "top_p: too big; seed: negative"
    assert [violation.field for violation in error.violations] == ["top_p", "seed"]


def test_a_long_list_of_violations_is_cut_in_the_message_and_whole_in_the_error() -> None:
    error = errors.invalid_argument([FieldViolation(f"ids[{i}]", "unknown") for i in range(20)])
    assert error.message.endswith("; and 12 more")
    assert len(error.violations) == 20


def test_not_found_says_what_would_have_worked() -> None:
    error = errors.not_found("model", "lama", ["llama", "demo"])
    assert error.message == "unknown model 'lama'; served here: 'llama', 'demo'"
    assert (error.reason, error.metadata) == ("MODEL_NOT_FOUND", {"model": "lama"})


def test_unimplemented_names_every_field_for_people_and_programs() -> None:
    error = errors.unimplemented(["sampling.n", "guided.regex"])
    assert error.reason == "FIELD_NOT_SERVED"
    assert error.metadata["fields"] == "sampling.n,guided.regex"
    assert "sampling.n, guided.regex" in error.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.resource_exhausted("x", reason="R", retry_after=1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.unavailable("x", reason="R"), grpc.StatusCode.UNAVAILABLE),
        (errors.failed_precondition("x", reason="R"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.already_exists("x", reason="R"), grpc.StatusCode.ALREADY_EXISTS),
        (errors.internal("x", reason="R"), grpc.StatusCode.INTERNAL),
    ],
)
def test_each_kind_has_its_code_and_keeps_its_reason(error: ServiceError, code: grpc.StatusCode) -> None:
    assert error.code is code
    assert (error.reason, error.message) == ("R", "x")
    assert str(error) == f"{code.name} R: x"
