"""Several tokenizers: on demand, within a limit, and loaded again while streams go on."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.common.errors import StartError
from tandem.tokenizer.v1 import tokenizer_pb2 as pb


def copies(shared_data: Path, folder: Path, *names: str) -> tuple[str, ...]:
    for name in names:
        (folder / name).mkdir()
        shutil.copyfile(shared_data / "models/stories260K/meta/tokenizer.model", folder / name / "tokenizer.model")
    return tuple(str(folder / name) for name in names)


async def loaded(stub: Any) -> list[str]:
    return [each.name for each in (await stub.ListTokenizers(pb.ListTokenizersRequest())).tokenizers]


async def test_on_demand_the_least_recently_used_is_dropped_but_never_the_default(
    start_service: Any, shared_data: Path, tmp_path: Path
) -> None:
    paths = copies(shared_data, tmp_path, "one", "two", "three", "four")
    running = await start_service(tokenizer=paths, load_on_demand=True, max_loaded_tokenizers=3)
    assert await loaded(running.stub) == ["one"]
    for name, expected in (
        ("two", ["one", "two"]),
        ("three", ["one", "three", "two"]),
        ("two", ["one", "three", "two"]),
        ("four", ["one", "four", "two"]),
        ("", ["one", "four", "two"]),
    ):
        await running.stub.GetTokenizer(pb.GetTokenizerRequest(tokenizer=name))
        assert await loaded(running.stub) == expected


async def test_a_stream_may_be_the_first_to_ask(start_service: Any, shared_data: Path, tmp_path: Path) -> None:
    running = await start_service(tokenizer=copies(shared_data, tmp_path, "one", "two"), load_on_demand=True)
    call = running.stub.DecodeStream()
    await call.write(pb.DecodeStreamRequest(open=pb.DecodeStreamOpen(tokenizer="two"), ids=[300], end=True))
    assert (await call.read()).done
    await call.done_writing()


async def test_a_file_that_is_broken_on_demand_fails_the_call_only(
    start_service: Any, refusal: Any, shared_data: Path, tmp_path: Path
) -> None:
    paths = copies(shared_data, tmp_path, "one", "two")
    (tmp_path / "two" / "tokenizer.model").write_bytes(b"broken")
    running = await start_service(tokenizer=paths, load_on_demand=True)
    refused = await refusal(running.stub.GetTokenizer(pb.GetTokenizerRequest(tokenizer="two")))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TOKENIZER_UNREADABLE")
    assert str(tmp_path) not in refused.message
    assert await loaded(running.stub) == ["one"]


async def test_more_tokenizers_than_may_be_loaded_are_refused_at_start(
    start_service: Any, shared_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="max_loaded_tokenizers"):
        await start_service(tokenizer=copies(shared_data, tmp_path, "a", "b", "c"), max_loaded_tokenizers=2)


async def test_reload_by_signal_drops_no_stream(start_service: Any, shared_data: Path, tmp_path: Path) -> None:
    running = await start_service(tokenizer=copies(shared_data, tmp_path, "one"))
    stub = running.stub

    async def fingerprint() -> str:
        return (await stub.GetTokenizer(pb.GetTokenizerRequest())).tokenizer.fingerprint

    before = await fingerprint()
    call = stub.DecodeStream()
    await call.write(pb.DecodeStreamRequest(open=pb.DecodeStreamOpen(), ids=[300]))
    first = await call.read()
    shutil.copyfile(shared_data / "formats/llama2/tokenizer.model", tmp_path / "one" / "tokenizer.model")
    os.kill(os.getpid(), signal.SIGHUP)
    while await fingerprint() == before:
        pass
    await call.write(pb.DecodeStreamRequest(ids=[300], end=True))
    second = await call.read()
    assert (second.done, second.ids_consumed) == (True, 2)
    assert second.text.strip() == first.text.strip()
    await call.done_writing()

    (tmp_path / "one" / "tokenizer.model").write_bytes(b"broken")
    after = await fingerprint()
    await running.service._loaded.reload()
    assert await fingerprint() == after


async def test_the_cache_serves_over_the_wire_and_is_counted(start_service: Any) -> None:
    running = await start_service()
    text = "a text that is long enough to be remembered by the cache"
    request = pb.EncodeRequest(input=pb.EncodeInput(segments=[pb.TextSegment(text=text)]))
    first = await running.stub.Encode(request)
    assert await running.stub.Encode(request) == first
    value = running.service.metrics.registry.get_sample_value
    name = "tandem_tokenizer_cache_lookups_total"
    assert value(name, {"tokenizer": "small", "result": "hit"}) == 1
    assert value(name, {"tokenizer": "small", "result": "miss"}) == 1
    assert (value("tandem_tokenizer_cache_bytes", {"tokenizer": "small"}) or 0) > 0
