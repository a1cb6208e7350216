"""A program that forks, as `python -m tests.client.forking TOKENIZER WORKER SHAPE`; children do what a user's would."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable

from tandem.client import AsyncClient, Client, ConfigurationError, StatusError

TOKENIZER, WORKER, SHAPE = sys.argv[1:4]
# Two workers: their health is watched by streams that are open until the client is closed.
WORKERS = [WORKER, "127.0.0.1:1"]
kept: list[object] = []


def use(_: int = 0) -> str:
    with Client(TOKENIZER, WORKERS, timeout=30) as client:
        with client.stream("Hi", seed=0) as stream:
            text = "".join(chunk.text for chunk in stream)
        assert client.generate("Hi", seed=0).text == text
        return text


async def use_async() -> str:
    async with AsyncClient(TOKENIZER, WORKERS, timeout=30) as client:
        return (await client.generate("Hi", seed=0)).text


def in_child(work: Callable[[], object], leave: Callable[[int], object] = os._exit) -> int:
    """Starts a child that does `work` and leaves with 0; its process id."""
    child = os.fork()
    if child:
        return child
    signal.alarm(60)
    try:
        work()
    except BaseException as error:
        print("child:", repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    leave(0)
    raise AssertionError


def reap(*children: int) -> None:
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(codes), codes


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except ConfigurationError as error:
        words = str(error)
    else:
        words = "it was not refused"
    assert "forked while a client" in words, words


def keep_what_users_keep() -> None:
    client = Client(TOKENIZER, WORKERS, timeout=30)
    ended, cancelled = client.stream("Hi", seed=0), client.stream("Hi", seed=0)
    ended.collect()
    next(cancelled)
    errors: list[StatusError] = []
    for call in (lambda: client.get_tokenizer("none"), lambda: client.generate("Hi", timeout=1e-9)):
        try:
            call()
        except StatusError as error:
            errors.append(error)
    assert len(errors) == 2
    client.close()
    kept.extend((client, ended, cancelled, *errors))


def with_one_open() -> None:
    client, other = Client(TOKENIZER, WORKER, timeout=30), Client(TOKENIZER)
    assert client.encode("Hi").ids
    stream = client.stream("Hi", seed=0)
    stream.collect()

    def child() -> None:
        refused(lambda: client.encode("Hi"))
        refused(use)
        refused(lambda: other.encode("Hi"))
        refused(lambda: asyncio.run(use_async()))
        stream.close()
        client.close()
        with client:
            pass

    reap(in_child(child, sys.exit), in_child(child))
    assert client.generate("Hi", seed=0).text
    client.close()


async def with_one_open_async() -> None:
    async with AsyncClient(TOKENIZER, WORKER, timeout=30) as client:
        assert (await client.encode("Hi")).ids
        reap(in_child(lambda: refused(use)))
        assert (await client.encode("Hi")).ids


def main() -> None:
    match SHAPE:
        case "fork":  # gunicorn --preload, Celery prefork: warm up, then children that live side by side
            use()
            reap(*(in_child(lambda: [use(), use()]) for _ in range(4)))
            use()
        case "asynchronous":
            asyncio.run(use_async())
            reap(*(in_child(lambda: asyncio.run(use_async())) for _ in range(4)), in_child(use))
            asyncio.run(use_async())
        case "pool":
            text = use()
            with multiprocessing.get_context("fork").Pool(3) as pool:
                assert pool.map(use, range(6)) == [text] * 6
        case "ends as programs do":
            use()
            reap(in_child(use, sys.exit))
        case "grandchild":
            use()
            reap(in_child(lambda: [use(), reap(in_child(use))]))
        case "kept":
            keep_what_users_keep()
            reap(in_child(use))
        case "not used yet":
            client = Client(TOKENIZER, WORKER, timeout=30)
            reap(in_child(lambda: client.generate("Hi", seed=0)))
            client.close()
        case "open":
            with_one_open()
        case "open asynchronous":
            asyncio.run(with_one_open_async())
        case _:
            raise AssertionError(SHAPE)


if __name__ == "__main__":
    main()
