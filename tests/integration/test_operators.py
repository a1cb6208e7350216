"""What operators do to a worker that runs, from the SDK and the command line, and who else may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tandem.client import (
    AsyncClient,
    Credentials,
    FailoverSettings,
    UnauthenticatedError,
    UnavailableError,
    WorkerState,
)
from tests import prepared
from tests.integration.worker_process import threaded_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEMO = Path(__file__).parents[2] / "models" / "demo"
TOKEN = "an operator's token"
OPERATOR = Credentials(tls=False, bearer_token=TOKEN)
NO_FAILOVER = FailoverSettings(attempts=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secrets") / "operators"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(token: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    flags = [f"--model={DEMO}", "--kv-cache-tokens=4096", "--page-size=16", f"--admin-token-file={token}"]
    async with threaded_worker(tmp_path_factory.mktemp("worker"), *flags) as worker:
        yield worker.address


async def command(*arguments: str) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error of `tandem ARGUMENTS`."""
    done = await asyncio.to_thread(prepared.run, "tandem.client.cli", *arguments)
    return done.returncode, done.stdout, done.stderr


async def test_a_drained_worker_finishes_what_it_has_and_takes_requests_again(address: str, token: Path) -> None:
    flags = [f"--worker-address={address}", f"--token-file={token}"]
    async with (
        AsyncClient(worker=address, failover=NO_FAILOVER, timeout=120) as caller,
        AsyncClient(worker=address, credentials=OPERATOR, timeout=120) as operator,
    ):
        stream = caller.stream([1, 494], detokenize=False, max_tokens=300, ignore_eos=True, seed=1)
        await anext(stream)
        assert await operator.set_draining(True) == {address: WorkerState.DRAINING}
        with pytest.raises(UnavailableError) as refused:
            await caller.generate([1], detokenize=False, max_tokens=1)
        assert refused.value.reason == "DRAINING"
        waiting = asyncio.create_task(command("drain", "--wait", *flags))
        async for _ in stream:
            pass
        assert len(stream.result.output_ids) == 300
        code, told, _ = await waiting
        assert (code, told) == (0, f"{address}: draining\nidle\n")
        load = (await operator.get_loads(check_integrity=True))[address]
        assert load.idle and load.integrity_error == "" and load.output_tokens >= 300

        assert await command("drain", "--end", *flags) == (0, f"{address}: serving\n", "")
        assert (await caller.generate([1], detokenize=False, max_tokens=1)).output_ids


async def test_a_cleared_cache_is_cold(address: str, token: Path) -> None:
    prompt = list(range(3, 103))
    async with (
        AsyncClient(worker=address, timeout=120) as caller,
        AsyncClient(worker=address, credentials=OPERATOR, timeout=120) as operator,
    ):

        async def cached() -> int | None:
            result = await caller.generate(prompt, detokenize=False, max_tokens=1)
            return result.usage.cached_prompt_tokens

        await cached()
        assert await cached() == 99, "all but the last, which is computed for its logits"
        cleared = await operator.clear_prefix_cache()
        assert cleared[address] >= 6
        assert (await operator.get_loads())[address].pages_cached == 0
        assert await cached() == 0
        code, told, _ = await command("clear-cache", f"--worker-address={address}", f"--token-file={token}")
        assert code == 0 and told.startswith(f"{address}: ") and told.endswith(" pages cleared\n")


async def test_who_is_no_operator_may_look_and_not_touch(address: str) -> None:
    async with AsyncClient(worker=address, failover=NO_FAILOVER, timeout=60) as caller:
        attempts = (caller.set_draining(True), caller.clear_prefix_cache(), caller.get_loads(check_integrity=True))
        for attempt in attempts:
            with pytest.raises(UnauthenticatedError):
                await attempt
        assert (await caller.get_loads())[address].integrity_error is None
        assert (await caller.generate([1], detokenize=False, max_tokens=1)).output_ids
    code, _, errors = await command("drain", f"--worker-address={address}")
    assert code == 1 and "asks for a bearer token" in errors


async def test_status_has_an_operator_check_the_page_table_where_it_is_asked_to(address: str, token: Path) -> None:
    code, _, errors = await command("status", "--check", f"--worker-address={address}")
    assert code != 0 and "asks for a bearer token" in errors
    code, told, _ = await command("status", "--check", f"--worker-address={address}", f"--token-file={token}")
    assert code == 0 and "page table" in told and "right" in told
    assert "page table" not in (await command("status", f"--worker-address={address}"))[1]


@pytest.mark.parametrize(
    "wrong",
    [["--end", "--wait"], [], ["--timeout=-1"], ["--timeout=nan"]],
    ids=["end and wait", "no worker", "a negative timeout", "no number"],
)
async def test_wrong_usage_is_told(wrong: list[str]) -> None:
    workers = ["--worker-address=127.0.0.1:1"] if wrong else []
    code, _, errors = await command("drain", *wrong, *workers)
    assert code == 2 and "--" in errors
