"""The door as a server: callers who leave, crowds, drains, keys, certificates, bounds, metrics and the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import peft
import pytest
import torch
import transformers

from tandem.common.run_service import run_in_loop
from tandem.common.settings import ServerSettings
from tandem.http import protocol, upstream
from tandem.http.fields import OWN
from tandem.http.metrics import HttpMetrics
from tandem.http.server import HttpServer
from tandem.http.settings import HttpSettings
from tandem.tokenizer.rpc.server import TokenizerService
from tandem.tokenizer.settings import TokenizerSettings
from tests.http_svc.conftest import Stack, tokenizer_folder
from tests.integration.worker_process import running_worker, threaded_worker
from tests.svc_common.certificates import Authority

pytestmark = pytest.mark.slow

KEY = "a-key-of-at-least-sixteen-characters"
LONG: dict[str, Any] = {
    "model": "demo", "messages": [{"role": "user", "content": "Speak"}], "max_tokens": 400, "ignore_eos": True,
}  # fmt: skip
SHORT: dict[str, Any] = {**LONG, "max_tokens": 4}


@asynccontextmanager
async def running_door(stack: Stack, **settings: Any) -> AsyncIterator[HttpServer]:
    """A door of this test's own, on its event loop."""
    addresses = {"tokenizer_address": stack.tokenizer, "worker_address": (stack.worker,)}
    server = HttpServer(HttpSettings.model_validate({**addresses, **settings}))
    try:
        await server.bind()
        await server.start()
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def caller(server: HttpServer, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60, **options) as client:
        yield client


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await reached():
                return
            await asyncio.sleep(0.01)


async def works(stack: Stack, count: int) -> bool:
    return await stack.load() == (count, 0)


async def received(server: HttpServer) -> bool:
    """Whether all answers have come to the door, whatever of them was written."""
    return all(answer.done for answer in server._upstream.client._answers)


async def idle(server: HttpServer) -> bool:
    labels = {"route": "/v1/chat/completions"}
    return not server.metrics.registry.get_sample_value("tandem_http_in_flight", labels)


def left(server: HttpServer) -> float | None:
    """How many callers left before their answer was whole."""
    labels = {"route": "/v1/chat/completions", "status": "499"}
    return server.metrics.registry.get_sample_value("tandem_http_requests_total", labels)


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_ends_the_generation_at_the_worker(stack: Stack, stream: bool) -> None:
    await until(lambda: works(stack, 0))
    async with running_door(stack) as server:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({**LONG, "n": 8, "stream": stream}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await until(lambda: works(stack, 8))
        if stream:
            assert await reader.readuntil(b"data: ")
        writer.close()
        await until(lambda: works(stack, 0))
        await until(lambda: idle(server))
        assert left(server) == 1


async def test_sixty_four_streams_at_once_are_all_right(stack: Stack, async_client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "prompt": "ROMEO:", "max_tokens": 12}

    async def streamed(seed: int) -> str:
        stream = await async_client.completions.create(**asked, seed=seed, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    texts = await asyncio.gather(*map(streamed, range(64)))
    async with stack.client() as sdk:
        results = await asyncio.gather(*(sdk.generate("ROMEO:", max_tokens=12, seed=seed) for seed in range(64)))
    assert texts == [result.text for result in results]


async def test_a_drain_finishes_streams_and_refuses_what_is_new(stack: Stack) -> None:
    async with running_door(stack) as server, caller(server) as client:
        asked = {**LONG, "max_tokens": 200, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            lines = response.aiter_lines()
            await anext(lines)
            drain = asyncio.create_task(server.drain(propagation=0, grace=60))
            await asyncio.sleep(0)
            health = await client.get("/health")
            assert health.status_code == 503 and health.json() == {"status": "draining"}
            refused = await client.post("/v1/chat/completions", json=SHORT)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
            assert int(refused.headers["retry-after"]) >= 1 and refused.headers["connection"] == "close"
            assert not drain.done()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
        await drain


async def test_what_does_not_end_in_time_ends_with_an_error(stack: Stack) -> None:
    async with running_door(stack) as server, caller(server) as client:
        asked = {**LONG, "n": 16}
        whole = asyncio.create_task(client.post("/v1/chat/completions", json=asked))
        async with client.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await server.drain(propagation=0, grace=0)
            stop = asyncio.create_task(server.stop())
            rest = [line async for line in lines if line]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert error["code"] == "shutting_down" and "data: [DONE]" not in rest
        assert (await whole).status_code == 503
        await stop
    await until(lambda: works(stack, 0))


async def test_a_response_that_fails_in_the_middle_says_so_in_numbered_events(stack: Stack) -> None:
    asked = {"model": "demo", "input": "O Romeo?", "max_output_tokens": 400, "ignore_eos": True, "stream": True}
    async with running_door(stack) as server, caller(server) as client:
        async with client.stream("POST", "/v1/responses", json=asked) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            await server.drain(propagation=0, grace=0)
            stop = asyncio.create_task(server.stop())
            rest = [first, *[line async for line in lines if line]]
        await stop
    names = [line.removeprefix("event: ") for line in rest if line.startswith("event: ")]
    told = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith("data: ")]
    assert [event["type"] for event in told] == names and names[-2:] == ["error", "response.failed"]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    error, failed = told[-2], told[-1]["response"]
    assert error["code"] == error["error"]["code"] == failed["error"]["code"] == "shutting_down"
    assert failed["status"] == "failed" and error["message"] == failed["error"]["message"]
    await until(lambda: works(stack, 0))


async def test_a_door_without_services_says_so_and_starts_nevertheless(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "WAIT_SECONDS", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        async with running_door(stack, worker_address=(nobody,), request_seconds=3) as server:
            url = f"http://{server.address}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                with pytest.raises(openai.InternalServerError) as error:
                    await client.chat.completions.create(
                        model="demo", messages=SHORT["messages"], max_tokens=1, extra_body={"ignore_eos": True}
                    )
    assert error.value.status_code in (503, 504)


async def test_adapters_beside_the_model_are_models_of_their_own(stack: Stack, tmp_path: Path) -> None:
    torch.manual_seed(0)
    adapted = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(stack.model), peft.LoraConfig(r=4, target_modules=["q_proj"])
    )
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 0, 0.3)
    adapted.save_pretrained(tmp_path / "poems")
    flags = f"--model={stack.model}", f"--lora=poems={tmp_path / 'poems'}"
    async with (
        threaded_worker(tmp_path, *flags) as worker,
        running_door(stack, worker_address=(worker.address,)) as server,
    ):
        url = f"http://{server.address}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            listed = (await client.models.list()).data
            assert [(each.id, each.model_extra["parent"]) for each in listed] == [("demo", None), ("poems", "demo")]
            assert (await client.models.retrieve("poems")).id == "poems"
            answers = {}
            for name in ("demo", "poems"):
                whole = await client.completions.create(model=name, prompt="ROMEO:", max_tokens=12, temperature=0)
                streamed = await client.completions.create(
                    model=name, prompt="ROMEO:", max_tokens=12, temperature=0, stream=True
                )
                answers[name] = whole.choices[0].text
                assert whole.model == name
                assert "".join([part.choices[0].text async for part in streamed if part.choices]) == answers[name]
            assert answers["demo"] != answers["poems"]
            with pytest.raises(openai.NotFoundError, match="served are: demo, poems"):
                await client.completions.create(model="prose", prompt="ROMEO:", max_tokens=1)


async def test_before_it_has_started_health_and_requests_are_refused(stack: Stack) -> None:
    server = HttpServer(HttpSettings(tokenizer_address=stack.tokenizer, worker_address=(stack.worker,)))
    await server.bind()
    try:
        async with caller(server) as client:
            assert (await client.get("/health")).status_code == 503
            answer = await client.get("/v1/models")
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "starting"
            await server.start()
            assert (await client.get("/health")).status_code == 200
    finally:
        await server.stop()


async def test_keys_open_everything_but_health(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# of callers\nalice: {KEY}\n")
    async with running_door(stack, auth_token_file=keys, cache_per_caller=True) as server:
        url = f"http://{server.address}/v1"
        for key in ("wrong", ""):
            async with openai.AsyncOpenAI(base_url=url, api_key=key or "x", max_retries=0) as client:
                with pytest.raises(openai.AuthenticationError) as error:
                    await client.models.list()
                assert error.value.code == "invalid_api_key"
        async with caller(server) as plain:
            missing = await plain.get("/v1/models")
            assert missing.status_code == 401 and missing.headers["www-authenticate"] == "Bearer"
            assert (await plain.get("/health")).status_code == 200
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            answer = await client.chat.completions.create(
                model="demo", messages=SHORT["messages"], max_tokens=1, extra_body={"cache_salt": "s"}
            )
            assert answer.choices


async def test_certificates_are_followed(stack: Stack, tmp_path: Path) -> None:
    authority = Authority("ours")
    certificate, key = authority.sign("door").write(tmp_path, "door")
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    async with running_door(stack, tls_certificate=certificate, tls_key=key) as server:

        async def shown() -> bytes:
            host, _, port = server.address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
            try:
                return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            finally:
                writer.close()

        async with httpx.AsyncClient(base_url=f"https://{server.address}", verify=trusting) as client:
            assert (await client.get("/v1/models")).status_code == 200
        first = await shown()
        authority.sign("door").write(tmp_path, "door")

        async def changed() -> bool:
            with contextlib.suppress(ssl.SSLError):
                return await shown() != first
            return False

        await until(changed)


async def test_the_services_behind_may_want_a_token(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "WAIT_SECONDS", 0)
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    tokenizer = tokenizer_folder(tmp_path, stack.model)
    settings = TokenizerSettings(tokenizer=(f"demo={tokenizer}",), auth_token_file=keys, metrics_enabled=False)
    async with run_in_loop(TokenizerService(settings), settings) as address:
        for more, status in (({"upstream_token_file": keys}, 200), ({}, 500)):
            async with running_door(stack, tokenizer_address=address, **more) as server, caller(server) as client:
                answer = await client.post("/tokenize", json={"prompt": "O"})
                assert answer.status_code == status
                assert status == 200 or "token" not in answer.json()["error"]["message"]


async def test_more_requests_than_may_be_open_are_refused_with_advice(stack: Stack) -> None:
    async with running_door(stack, max_concurrent_calls=1) as server, caller(server) as client:
        async with client.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as response:
            await anext(response.aiter_lines())
            url = f"http://{server.address}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as other:
                with pytest.raises(openai.RateLimitError) as error:
                    await other.models.list()
            assert error.value.response.headers["retry-after"] == "1"
        await until(lambda: idle(server))
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_reader_who_stands_still_is_cut_off_and_holds_up_nobody(stack: Stack) -> None:
    await until(lambda: works(stack, 0))
    async with running_door(stack, stalled_reader_seconds=1) as server:
        body = json.dumps({**LONG, "n": 8, "logprobs": True, "top_logprobs": 64, "stream": True}).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = server.address.rpartition(":")
            connection.connect((host, int(port)))
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            await until(lambda: works(stack, 8))
            async with caller(server) as client:
                assert (await client.post("/v1/chat/completions", json=SHORT)).status_code == 200
            await until(lambda: idle(server))
        assert left(server) == 1
    await until(lambda: works(stack, 0))


async def test_a_slow_reader_gets_the_same_text_in_fewer_events(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = HttpServer._listen

    def with_small_buffers(server: HttpServer) -> socket.socket:
        listening = listen(server)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of its connections too
        return listening

    monkeypatch.setattr(HttpServer, "_listen", with_small_buffers)
    asked = {"model": "demo", "prompt": "ROMEO:", "max_tokens": 400, "n": 8, "seed": 5, "ignore_eos": True}
    async with running_door(stack) as server:
        body = json.dumps({**asked, "stream": True}).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            host, _, port = server.address.rpartition(":")
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (host, int(port)))
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            await loop.sock_sendall(connection, b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
            await until(lambda: works(stack, 8))
            await until(lambda: received(server))  # all has come to the door, and nothing is read
            raw = b""
            while not raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                raw += await loop.sock_recv(connection, 65536)
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in raw.splitlines() if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = ["".join(choice["text"] for choice in choices if choice["index"] == index) for index in range(8)]
    async with stack.client() as sdk:
        result = await sdk.generate("ROMEO:", n=8, max_tokens=400, seed=5, ignore_eos=True)
    assert texts == [output.text for output in result.outputs]
    assert len(choices) < 8 * 200


@pytest.mark.parametrize("endless", [b"GET /health HTTP/1.1\r\nx: ", b"GET /"])
async def test_headers_without_end_end_the_connection(stack: Stack, endless: bytes) -> None:
    async with running_door(stack) as server:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(endless)
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"x" * 65536)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()
        async with caller(server) as client:
            assert (await client.get("/health")).status_code == 200


async def test_a_connection_without_a_request_does_not_stay(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.1)
    async with running_door(stack) as server:
        host, _, port = server.address.rpartition(":")
        for beginning in (b"", b"GET /health HTTP/1.1\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(beginning)
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()


async def test_browsers_of_named_origins_may_call(stack: Stack) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST",
             "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    async with running_door(stack, cors_origin=("https://a.example",)) as server, caller(server) as client:
        allowed = await client.options("/v1/chat/completions", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = await client.options("/v1/chat/completions", headers={**asked, "origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
    async with running_door(stack) as server, caller(server) as client:
        refused = await client.options("/v1/chat/completions", headers=asked)
        assert "access-control-allow-origin" not in refused.headers


async def test_metrics_and_one_line_in_the_log_without_any_text(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "Wherefore"
    async with running_door(stack) as server, caller(server) as client:
        asked = {**SHORT, "messages": [{"role": "user", "content": secret}]}
        answer = await client.post("/v1/chat/completions", json=asked)
        await client.post(f"/{secret}", json={secret: secret})
        await client.post("/v1/completions", json={"model": "demo", "prompt": secret, secret: 1})
        metrics = (await client.get(f"http://{server.metrics_address}/metrics")).text
    lines = [record for record in caplog.records if record.name == "tandem.http.access"]
    assert [line.getMessage() for line in lines] == [
        "POST /v1/chat/completions", "POST other", "POST /v1/completions",
    ]  # fmt: skip
    told = vars(lines[0])
    usage = answer.json()["usage"]
    assert (told["status"], told["prompt_tokens"]) == (200, usage["prompt_tokens"])
    ours = [record for record in caplog.records if record.name.startswith(("tandem", "uvicorn", "tandem.common"))]
    assert not any(secret in str(vars(record)) for record in ours)
    assert 'tandem_http_requests_total{route="/v1/chat/completions",status="200"} 1.0' in metrics
    assert 'tandem_http_requests_total{route="other",status="404"} 1.0' in metrics
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    for kind, count in {"completion": 4, "prompt": usage["prompt_tokens"], "cached": cached}.items():
        assert f'tandem_http_tokens_total{{kind="{kind}"}} {count}.0' in metrics
    assert "tandem_client_requests_total" in metrics and secret not in metrics


def test_the_page_tells_all_settings_and_metrics(repository: Path) -> None:
    page = (repository / "docs" / "http.md").read_text()
    for name in HttpSettings.model_fields.keys() - ServerSettings.model_fields.keys():
        assert f"`{name}`" in page, name
    for family in HttpMetrics().registry.collect():
        if family.name.startswith("tandem_"):
            assert f"`{family.name}{'_total' if family.type == 'counter' else ''}`" in page, family.name
    for name in OWN:
        assert f"`{name}`" in page, name


async def test_streams_survive_the_loss_of_a_worker(stack: Stack, tmp_path: Path) -> None:
    prompts = [f"{name}:" for name in ("ROMEO", "JULIET", "HAMLET", "LEAR", "PUCK", "ARIEL")]
    asked: dict[str, Any] = {"max_tokens": 100, "seed": 5}
    flags = (f"--model={stack.model}", f"--tokenizer-address={stack.tokenizer}")
    async with stack.client() as sdk:
        expected = [result.text for result in await sdk.generate_batch(prompts, ignore_eos=True, **asked)]
    async with (
        running_worker(tmp_path, *flags) as second,
        running_door(stack, worker_address=(stack.worker, second.address)) as server,
        openai.AsyncOpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0) as client,
    ):

        async def streamed(prompt: str) -> str:
            stream = await client.completions.create(
                model="demo", prompt=prompt, stream=True, extra_body={"ignore_eos": True}, **asked
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def begun() -> bool:
            return (await second.load(check=False)).running_requests > 0

        streams = asyncio.gather(*map(streamed, prompts))
        await until(begun)
        assert second.process is not None
        second.process.kill()
        assert await streams == expected
        failovers = server.metrics.registry.get_sample_value("tandem_client_failovers_total", {"service": "worker"})
        assert failovers
