"""The synchronous client: the same calls, from any thread, without an event loop of the caller's."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandem.client import (
    AsyncClient,
    CancelledError,
    Client,
    ClientClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    ResultNotReadyError,
    Stream,
)
from tests.client.byte_vocabulary import TEXT
from tests.client.fakes import ServersThread


@pytest.fixture
def sync_client(servers: ServersThread) -> Iterator[Client]:
    with Client(servers.tokenizer_address, servers.worker_address, timeout=30) as client:
        yield client


def test_it_has_every_method_of_the_asynchronous_one() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    assert public(Client) == public(AsyncClient)
    from tandem.client import AsyncStream

    assert public(AsyncStream) - public(Stream) == {"next_chunk", "pass_on"}  # what an event loop is for


def test_every_call_works(sync_client: Client) -> None:
    encoding = sync_client.encode("Hi")
    assert sync_client.decode(encoding) == "Hi"
    assert sync_client.decode_bytes(encoding) == b"Hi"
    assert sync_client.decode_batch([encoding, []]) == ["Hi", ""]
    assert sync_client.count_tokens("Hi") == 3
    assert sync_client.count_tokens_batch(["Hi", ""]) == [3, 1]
    assert [e.ids for e in sync_client.encode_batch(["Hi"])] == [encoding.ids]
    assert sync_client.list_tokenizers()[0].name == sync_client.get_tokenizer().name
    assert sync_client.generate("Hi", seed=0).text == TEXT
    assert [r.text for r in sync_client.generate_batch(["a", "b"], seed=0)] == [TEXT, TEXT]
    assert next(iter(sync_client.get_models().values())) is not None


def test_a_stream_is_an_iterator_with_a_result(sync_client: Client) -> None:
    with sync_client.stream("Hi", seed=0) as stream:
        text = "".join(chunk.text for chunk in stream)
    assert text == stream.result.text == stream.text == TEXT
    assert stream.output_ids == stream.result.output_ids
    assert sync_client.stream("Hi", seed=0).collect().text == TEXT


def test_leaving_early_cancels(sync_client: Client, servers: ServersThread) -> None:
    servers.worker.pause_at = 5
    with sync_client.stream("Hi", seed=0) as stream:
        for _ in stream:
            break
        with pytest.raises(ResultNotReadyError):
            _ = stream.result
    servers.wait(servers.worker.seen[0].cancelled)
    with pytest.raises(CancelledError):
        _ = stream.result


def test_dropping_a_stream_cancels(sync_client: Client, servers: ServersThread) -> None:
    servers.worker.pause_at = 5
    for _ in sync_client.stream("Hi", seed=0):
        break
    gc.collect()
    servers.wait(servers.worker.seen[0].cancelled)
    assert servers.worker.seen[0].cancelled.is_set()


@pytest.mark.parametrize("where", ["in the loop", "in a call"])
def test_a_batch_that_was_dropped_is_ended_wherever_it_is_collected(
    sync_client: Client, servers: ServersThread, where: str
) -> None:
    async def collect() -> None:
        gc.collect()

    def drop() -> None:
        events = sync_client.stream_batch(["Hi"], seed=0)
        next(events)
        cycle: list[object] = [events]
        cycle.append(cycle)

    servers.worker.pause_at = 3
    gc.disable()
    try:
        drop()
        if where == "in the loop":
            assert sync_client._loop is not None
            sync_client._loop.submit(collect()).result(30)
        else:
            with sync_client._lock:
                gc.collect()
    finally:
        gc.enable()
    servers.wait(servers.worker.seen[0].cancelled)


def test_cancel_from_another_thread_wakes_the_reader(sync_client: Client, servers: ServersThread) -> None:
    servers.worker.pause_at = 0
    stream = sync_client.stream("Hi", seed=0)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(next, stream)
        servers.wait(servers.worker.paused)
        stream.cancel()
        with pytest.raises(CancelledError):
            reader.result(30)


def test_many_threads_share_one_client(sync_client: Client, servers: ServersThread) -> None:
    def one(number: int) -> None:
        with sync_client.stream(f"prompt {number}", seed=number, max_tokens=20, ignore_eos=True) as stream:
            ids = [i for chunk in stream for i in chunk.ids]
        assert ids == [servers.worker.token(p, number) for p in range(20)]
        assert sync_client.decode(sync_client.encode(str(number))) == str(number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(64)))


def test_closing_twice_is_nothing_and_using_after_it_is_an_error(servers: ServersThread) -> None:
    client = Client(servers.tokenizer_address, servers.worker_address)
    assert client.encode("Hi").ids
    stream = client.stream("Hi", seed=0)
    client.close()
    client.close()
    for call in (lambda: client.encode("Hi"), lambda: client.generate("Hi"), lambda: next(stream), client.get_models):
        with pytest.raises(ClientClosedError):
            call()
    with pytest.raises(ClientClosedError):
        client.stream("Hi")
    stream.close()
    unused = Client(servers.tokenizer_address)
    unused.close()
    with pytest.raises(ClientClosedError):
        unused.encode("Hi")


def test_closing_wakes_every_thread_that_waits(servers: ServersThread) -> None:
    client = Client(servers.tokenizer_address, servers.worker_address)
    servers.worker.pause_at = 0
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client.generate, "Hi", seed=0) for _ in range(4)]
        servers.wait(servers.worker.paused)
        client.close()
        for future in waiting:
            with pytest.raises(ClientClosedError):
                future.result(30)


def test_the_background_thread_ends_with_the_last_client(servers: ServersThread) -> None:
    def threads() -> int:
        return sum(thread.name == "tandem-client" for thread in threading.enumerate())

    first, second = Client(servers.tokenizer_address), Client(servers.tokenizer_address)
    assert threads() == 0, "a client that is not used has no thread"
    first.encode("x")
    second.encode("x")
    assert threads() == 1
    first.close()
    assert threads() == 1
    second.close()
    assert threads() == 0


def test_errors_and_deadlines_are_the_same(sync_client: Client, servers: ServersThread) -> None:
    with pytest.raises(InvalidArgumentError, match="temperature"):
        sync_client.generate("Hi", temperature=-1)
    with pytest.raises(InvalidArgumentError, match="temperature"):
        sync_client.stream("Hi", temperature=-1)
    servers.worker.pause_at = 3
    with pytest.raises(DeadlineExceededError):
        sync_client.generate("Hi", seed=0, timeout=0.3)


def test_it_can_be_used_where_an_event_loop_runs(sync_client: Client) -> None:
    async def inside() -> str:
        return sync_client.generate("Hi", seed=0).text

    assert asyncio.run(inside()) == TEXT


PROGRAM = """
import sys
from tandem.client import Client
client = Client(sys.argv[1], sys.argv[2])
stream = client.stream("Hi", seed=0)
print(next(stream).text[:1], flush=True)
# neither is closed
"""


def test_a_program_that_closes_nothing_ends_quietly(servers: ServersThread) -> None:
    servers.worker.pause_at = 5
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, servers.tokenizer_address, servers.worker_address],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, TEXT[0] + "\n", "")
    servers.wait(servers.worker.seen[0].cancelled)


INTERRUPTED = """
import sys
from tandem.client import Client
with Client(sys.argv[1], sys.argv[2]) as client:
    client.{call}
"""


@pytest.mark.parametrize("call", ['generate("Hi", seed=0)', 'stream("Hi", seed=0).collect()'])
def test_an_interrupt_ends_the_call_and_cancels(servers: ServersThread, call: str) -> None:
    servers.worker.pause_at = 5
    code = INTERRUPTED.format(call=call)
    process = subprocess.Popen(
        [sys.executable, "-c", code, servers.tokenizer_address, servers.worker_address], stderr=subprocess.PIPE
    )
    servers.wait(servers.worker.paused)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert stderr.decode().rstrip().endswith("KeyboardInterrupt")
    servers.wait(servers.worker.seen[0].cancelled)
