"""An error on the wire always fits, and says the same in all its places."""

from __future__ import annotations

import math

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from tandem.common.errors import FieldViolation, ServiceError
from tandem.common.rich_status import clip, to_wire

_SOFT_LIMIT = 8 * 1024  # bytes of trailers that gRPC clients accept for sure

any_text = st.text(st.characters(exclude_categories=()), max_size=400)
violations = st.lists(st.builds(FieldViolation, any_text, any_text), max_size=40)


def percent_encoded(message: str) -> int:
    return sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message.encode())


@given(
    message=st.text(st.characters(exclude_categories=()), max_size=3000),
    reason=any_text,
    violations=violations,
    retry_after=st.none() | st.floats(),
    metadata=st.dictionaries(any_text, any_text, max_size=20),
)
def test_any_error_fits_into_the_trailers_of_a_default_client(
    message: str,
    reason: str,
    violations: list[FieldViolation],
    retry_after: float | None,
    metadata: dict[str, str],
) -> None:
    error = ServiceError(
        grpc.StatusCode.INTERNAL,
        message,
        reason=reason,
        violations=violations,
        retry_after=retry_after,
        metadata=metadata,
    )
    code, words, trailers = to_wire(error)
    raw = dict(trailers)["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    assert percent_encoded(words) + len(raw) * 4 / 3 + 512 < _SOFT_LIMIT
    status = status_pb2.Status.FromString(raw)
    assert (status.code, status.message) == (code.value[0], words)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "tandem"
    assert info.reason == clip(reason, 63)


@given(text=st.text(max_size=200), limit=st.integers(3, 100))
def test_a_clipped_text_is_within_its_bytes_and_begins_alike(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped.encode()) <= limit
    assert clipped == text or text.startswith(clipped.removesuffix("…"))


def test_the_first_violations_arrive_when_not_all_fit() -> None:
    many = [FieldViolation(f"ids[{i}]", "not below the vocabulary size of 512") for i in range(1000)]
    _, _, trailers = to_wire(ServiceError(grpc.StatusCode.INVALID_ARGUMENT, "m", reason="R", violations=many))
    status = status_pb2.Status.FromString(dict(trailers)["grpc-status-details-bin"])
    bad_request = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad_request)
    fields = [violation.field for violation in bad_request.field_violations]
    assert len(fields) > 10
    assert fields == [violation.field for violation in many[: len(fields)]]


def test_metadata_that_does_not_fit_leaves_room_for_the_violations() -> None:
    error = ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "m",
        reason="R",
        violations=[FieldViolation("text", "too long")],
        metadata={f"key-{i}": "v" * 1000 for i in range(100)},
    )
    status = status_pb2.Status.FromString(dict(to_wire(error)[2])["grpc-status-details-bin"])
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info) and status.details[1].Unpack(bad_request)
    assert 1 <= len(info.metadata) < 10
    assert bad_request.field_violations[0].field == "text"
    assert status.ByteSize() < 3000


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0.0, "0"), (1.5, "1500"), (0.0004, "0"), (-3.0, "0"), (math.inf, "3600000"), (math.nan, None), (None, None)],
)
def test_retry_advice_is_a_whole_number_of_milliseconds_or_absent(
    seconds: float | None, milliseconds: str | None
) -> None:
    error = ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, "m", reason="R", retry_after=seconds)
    assert dict(to_wire(error)[2]).get("grpc-retry-pushback-ms") == milliseconds
